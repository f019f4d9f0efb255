"""Bring the trainer to the state from which a run continues: the model, then the newest checkpoint that can be read.

A start and a dry run use the same functions, so both give the same messages.

Invariants:

- A damaged checkpoint is skipped and reported. A checkpoint of another model raises an error, and nothing is changed.
- If all checkpoints are damaged, training does not begin again from the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from learner.ledger.rows import CheckpointRow
from node.processes.outcomes import ChildRefused
from node.runtime.errors import RunError, UsageError
from protocol.core.pipe import Header

Ask = Callable[[str, Mapping[str, object]], Awaitable[Header]]
"""Makes one request to the trainer, and returns its header. Raises ChildRefused, and its owner's error if the process
ends."""


async def load_policy(ask: Ask, load: Mapping[str, Any]) -> Header:
    """Load the model by the request `load`, and return the reply.

    Raises UsageError and RunError, and what `ask` raises.
    """
    try:
        return await ask("load", dict(load))
    except ChildRefused as refused:
        raise _explain(refused) from None


async def restore_newest(
    ask: Ask, rows: Sequence[CheckpointRow], checkpoints: Path, unusable: Callable[[Path, str], None]
) -> CheckpointRow | None:
    """Bring the trainer to the first of `rows`, newest first, that can be read. Return it; None if there are no rows.

    `unusable` is called with each directory that was skipped, and why. Raises RunError, and what `ask` raises.
    """
    reasons = []
    for row in rows:
        directory = checkpoints / row.directory
        try:
            await ask("restore", {"directory": str(directory), "keep_hyperparameters": True})
        except ChildRefused as refused:
            if refused.kind != "bad_checkpoint":
                named = "" if str(directory) in refused.error else f"{directory}: "
                raise RunError(f"This run cannot continue: {named}{refused.error}.") from None
            unusable(directory, refused.error)
            reasons.append(refused.error)
            continue
        return row
    if reasons:
        # A crash leaves at most one checkpoint that the ledger does not know, and removes none that it knows.
        there = {path.name for path in checkpoints.glob("*.*") if not path.name.startswith(".") and path.is_dir()}
        if newer := there - {row.directory for row in rows}:
            raise RunError(
                f"{checkpoints.parent / 'ledger.sqlite'} is older than the checkpoints beside it: it knows "
                f"{_list(row.directory for row in rows)}, but not {_list(newer)}. Restore ledger.sqlite and "
                "checkpoints from one copy, both or neither. Nothing was changed."
            )
        raise RunError(
            f"None of the {len(reasons)} checkpoints in {checkpoints} can be used, so training would begin at step 0. "
            f"Restore one from a copy, or choose another [swarm] state. {reasons[0]}."
        )
    return None


def _list(names: Iterable[str]) -> str:
    """Return at most three of the names as text."""
    every = sorted(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def _explain(refused: ChildRefused) -> RunError | UsageError:
    """Return why the policy could not be loaded, as a message for the operator."""
    match refused.kind:
        case "bad_model":
            return UsageError(f"[model] directory: {refused.error}")
        case "bad_request":
            return UsageError(f"[trainer] {refused.error}")
        case _:
            return RunError(f"The policy cannot be loaded: {refused.error}")
