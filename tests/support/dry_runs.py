"""Show a dry run without the trial, which would need the children."""

from __future__ import annotations

from pathlib import Path

from node.learner_role.dry_run import describe_start
from node.learner_role.preflight import look_at


def show_dry_run(path: Path, *, resume: bool = False, fork_from: str = "") -> str:
    """Return what `volery learn` would print for `path` and these options, without a trial. Raises UsageError,
    RunError.
    """
    return describe_start(look_at(path, resume=resume, fork_from=fork_from), fork_from, None).text
