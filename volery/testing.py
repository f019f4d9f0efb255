"""Check a task of your own, before anybody trains on it.

`check_task` checks a task's promises. If one is broken, it raises AssertionError and says which in plain sentences:

    from volery.testing import check_task

    def test_my_task():
        check_task("python:my_task:MY_TASK")

`TaskChecks` makes a pytest test of each promise:

    from volery.testing import TaskChecks

    class TestMyTask(TaskChecks):
        task = "python:my_task:MY_TASK"

The promises:

- The same index gives the same problem, also in another process.
- No prompt is both for training and held out, whatever the seed.
- The fingerprint changes with the problems.
- Every completion has a reward within MAX_REWARD, and the same reward each time.
- The reference answer has the highest reward, and an empty completion a lower one.
- Prompts can be written in tokens.
- In a task of several turns, the same reply gets the same answer. An episode ends when the policy says nothing useful.
  Every turn's transcript begins with that of the turn before.

Seconds for a problem and for a reward are reported, and must keep to limits if you give some.

`volery tasks check SPEC` does the same on the command line.
"""

from __future__ import annotations

from node.tasks.checks.check_task import check_task
from node.tasks.checks.pytest_class import TaskChecks
from node.tasks.checks.report import Report, Result, Timing

__all__ = ["Report", "Result", "TaskChecks", "Timing", "check_task"]
