"""`volery tasks`: which tasks there are, what a model reads of one, and whether one keeps its promises.

- `command`: what is asked, with the model and the settings of a swarm.toml if there is one
- `text`: what is shown, for a terminal and for programs
- `view`: what is shown, as values
"""
