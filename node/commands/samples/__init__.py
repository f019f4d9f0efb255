"""`volery samples`: completions of a training step, with their rewards.

- `command`: reads samples and prints them
- `text`: formats samples
- `view`: chooses the samples that were asked for
"""
