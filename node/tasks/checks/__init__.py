"""Check a task of an author before anybody trains on it (`volery.testing` and `volery tasks check`).

The checks call the task through the same gate as the learner.

- `asking`: ask a task one question, with or without environments
- `check_task`: run all checks
- `description_program`: describe a task in another process
- `elsewhere`: compare a task with the same task in another process
- `problems`: checks of problems and of the fingerprint
- `pytest_class`: the checks as pytest tests
- `report`: the results, as values and as text
- `rewards`: checks of rewards
- `tokens`: checks of prompts as token ids
- `trial`: the task under test, and variants of it
- `turns`: checks of episodes of several turns
"""
