"""Tests for a task of one's own, before anybody trains on it.

`check_task` tries a task's promises out and raises AssertionError, in plain sentences, where one is broken:

    from volery.testing import check_task

    def test_my_task():
        check_task("python:my_task:MY_TASK")

`TaskChecks` makes a test of pytest of each promise:

    from volery.testing import TaskChecks

    class TestMyTask(TaskChecks):
        task = "python:my_task:MY_TASK"

The promises:

- The same index asks the same problem, also in another process.
- Training and held-out prompts do not meet, whatever the seed.
- The fingerprint changes with the problems.
- Every answer is worth a number within MAX_REWARD, and the same again.
- The reference answer is worth most, and an empty one less.
- Prompts can be written in tokens.
- In a task of several turns the same words are answered alike, an episode ends when the policy says nothing useful, and
  every turn's transcript begins with the one before.

Seconds for a problem and for a reward are reported, and held to limits if you give some.

`volery tasks check SPEC` does the same on the command line.
"""

from __future__ import annotations

from node.tasks.checks.check_task import check_task
from node.tasks.checks.pytest_class import TaskChecks
from node.tasks.checks.report import Report, Result, Timing

__all__ = ["Report", "Result", "TaskChecks", "Timing", "check_task"]
