"""Define what authors of tasks and rewards import, through the package `volery`.

From the rest of the program it imports only the errors.

- `environment`: episodes that have a state
- `interface`: tasks, problems, completions, rewards
- `options`: parse the options in a spec, `NAME:ARGUMENT:key=value`
"""
