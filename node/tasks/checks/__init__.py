"""What authors run on a task of their own before anybody trains on it (through `volery.testing` and `volery tasks
check`). It asks the task through the gate that the learner uses.

- `asking`: one question to a task, of either kind of turns
- `check_task`: all checks, one after the other
- `description_program`: what a process says of a task
- `elsewhere`: the same task in another process
- `problems`: checks of problems and of the fingerprint
- `pytest_class`: the checks as tests of pytest
- `report`: what was found, as values and as text
- `rewards`: checks of rewards
- `tokens`: checks of prompts as token ids
- `trial`: the task under test, and others like it
- `turns`: checks of episodes of several turns
"""
