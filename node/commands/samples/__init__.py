"""`volery samples`: completions of a step, with their rewards.

- `command`: reads and prints
- `text`: what is printed
- `view`: which samples are asked for
"""
