"""Define what authors of tasks and rewards import, through the package `volery`.

Of the program it imports nothing but the errors.

- `environment`: episodes that have a state
- `interface`: tasks, problems, completions, rewards
- `options`: parse the options in a spec, `NAME:ARGUMENT:key=value`
"""
