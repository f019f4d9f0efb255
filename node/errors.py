"""What ends the program with a paragraph instead of a traceback.

Each message names the file or field concerned and the next thing to do. Exit codes: 2 for usage (arguments,
configuration, an invite), 1 for trouble at run time (disk, network, a child that keeps failing).
"""

from __future__ import annotations


class NodeError(Exception):
    """Base. `exit_code` is what the program ends with."""

    exit_code = 1


class UsageError(NodeError):
    """The user asked for something that cannot be: a wrong argument, configuration, invite, model or task."""

    exit_code = 2


class RunError(NodeError):
    """Something failed while running. What was durable stays so; starting again resumes."""
