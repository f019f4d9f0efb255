"""`volery tasks`: list the tasks, show what a model reads of one, and check one.

- `command`: takes the model and the settings from a swarm.toml if there is one
- `text`: formats a task for a terminal and for programs
- `view`: collects what is shown, as values
"""
