"""Run `volery learn` with another trainer's process.

    python -m benchmarks.live.learner SWARM_TOML TRAINER...     then the arguments of `benchmarks.live.trainer`

Invariant: everything but the trainer is the program that operators run.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import trio

from node.learner_role.command import learn
from node.runtime.startup import prepare_process

if __name__ == "__main__":
    prepare_process()
    command = (sys.executable, "-m", "benchmarks.live.trainer", *sys.argv[2:])
    sys.exit(trio.run(partial(learn, Path(sys.argv[1]), plain=True, trainer=command, trial=False)))
