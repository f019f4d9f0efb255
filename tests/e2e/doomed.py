"""`volery learn` with a trainer that needs no torch, and points at which it can be killed.

python -m tests.e2e.doomed SWARM_TOML
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import trio

from learner.ledger.training import TrainingLedger
from learner.ledger.work import WorkLedger
from node.learner_role.command import learn
from node.runtime.errors import NodeError, UsageError
from node.runtime.stdout import complain, keep_outlet
from swarm.store import ChunkStore
from tests.e2e.doom import Doom

LEDGER_CALLS = {
    WorkLedger: ("leases_issued", "deliveries_judged"),
    TrainingLedger: (
        "step_trained", "version_published", "checkpointed", "checkpoints_removed", "begin_incarnation",
    ),
}  # fmt: skip

if __name__ == "__main__":
    keep_outlet()  # as `volery` does
    doom = Doom()
    for book, names in LEDGER_CALLS.items():
        for name in names:
            doom.surround(book, name)
    doom.surround(ChunkStore, "adopt")
    trainer = (sys.executable, "-m", "tests.e2e.hashing_trainer")
    try:
        sys.exit(trio.run(partial(learn, Path(sys.argv[1]), plain=True, trainer=trainer, trial=False)))
    except NodeError as error:  # as `volery` does
        complain(f"volery: {'usage' if isinstance(error, UsageError) else 'error'}: {error}")
        sys.exit(error.exit_code)
