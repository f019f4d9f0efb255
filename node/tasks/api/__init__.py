"""What authors of tasks and rewards import, through the package `volery`. It imports nothing of the program but its
errors.

- `environment`: episodes that have a state
- `interface`: a task, a problem, a reward
- `options`: what follows a task's name: `NAME:ARGUMENT:key=value`
"""
