"""Bring the trainer's process to where a run goes on from: the model, then the newest checkpoint that can be read.

A start and a dry run do this by the same functions, so that both refuse alike.

Invariants:
- a checkpoint that is damaged is passed over and told of; one that is foreign ends it, and nothing is changed;
- where all checkpoints are damaged, training never begins anew by itself.
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
"""One request to the trainer, for its header. Raises ChildRefused, and what its owner raises of a process that ends."""


async def load_policy(ask: Ask, load: Mapping[str, Any]) -> Header:
    """Load the model as `load` has it and return the reply. Raises UsageError, RunError, and what `ask` raises."""
    try:
        return await ask("load", dict(load))
    except ChildRefused as refused:
        raise _explain(refused) from None


async def restore_newest(
    ask: Ask, rows: Sequence[CheckpointRow], checkpoints: Path, unusable: Callable[[Path, str], None]
) -> CheckpointRow | None:
    """Bring the trainer to the first of `rows`, newest first, that can be read, and return it; None if there is none.

    `unusable` is told of each directory that was passed over, and why. Raises RunError, and what `ask` raises.
    """
    reasons = []
    for row in rows:
        directory = checkpoints / row.directory
        try:
            await ask("restore", {"directory": str(directory), "keep_hyperparameters": True})
        except ChildRefused as refused:
            if refused.kind != "bad_checkpoint":
                named = "" if str(directory) in refused.error else f"{directory}: "
                raise RunError(f"This run cannot be gone on with: {named}{refused.error}.") from None
            unusable(directory, refused.error)
            reasons.append(refused.error)
            continue
        return row
    if reasons:
        # A crash leaves one that the ledger has never heard of at most, and removes none that it knows.
        there = {path.name for path in checkpoints.glob("*.*") if not path.name.startswith(".") and path.is_dir()}
        if newer := there - {row.directory for row in rows}:
            raise RunError(
                f"{checkpoints.parent / 'ledger.sqlite'} is older than the checkpoints beside it: it knows "
                f"{_list(row.directory for row in rows)}, and there are {_list(newer)}, which it does not know. "
                "Restore ledger.sqlite and checkpoints from one copy, both or neither. Nothing was changed."
            )
        raise RunError(
            f"None of the {len(reasons)} checkpoints in {checkpoints} can be used, and training would begin "
            f"anew. Restore one from a copy, or choose another [swarm] state. {reasons[0]}."
        )
    return None


def _list(names: Iterable[str]) -> str:
    """At most three of them, by name."""
    every = sorted(names)
    return ", ".join(every[:3]) + (f" and {len(every) - 3} more" if len(every) > 3 else "")


def _explain(refused: ChildRefused) -> RunError | UsageError:
    """Why the policy could not be loaded, as the operator should read it."""
    match refused.kind:
        case "bad_model":
            return UsageError(f"[model] directory: {refused.error}")
        case "bad_request":
            return UsageError(f"[trainer] {refused.error}")
        case _:
            return RunError(f"The policy cannot be loaded: {refused.error}")
