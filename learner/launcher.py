"""The trainer on several ranks: torchrun, and one plain sentence when a rank ends before its time.

    python -m learner.launcher RANKS [MACHINES MACHINE HOST:PORT]

What always holds: stdin and stdout are those of rank 0, which alone talks to the node; when one rank ends, all do, and
so does this process, with status 1 unless all ended well. With MACHINES above 1 every machine starts it, each with
its own number MACHINE from 0, on which the node runs; HOST:PORT is where that one can be reached.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

TRAINER = ["-m", "learner.trainer"]


def arguments(ranks: int, machines: int = 1, machine: int = 0, meeting: str = "") -> list[str]:
    """What torchrun is told. It restarts nothing: the node does, and begins from the last checkpoint."""
    fixed = ["--nproc-per-node", str(ranks), "--max-restarts", "0"]
    if machines == 1:
        return ["--standalone", *fixed, *TRAINER]
    host, _, port = meeting.rpartition(":")
    place = ["--nnodes", str(machines), "--node-rank", str(machine), "--master-addr", host, "--master-port", port]
    return [*place, *fixed, *TRAINER]


def main(words: Sequence[str]) -> int:
    """Run all ranks of this machine to their end."""
    ranks, machines, machine, meeting = (*words, *("1", "0", "")[len(words) - 1 :])
    try:
        told = parse_args(arguments(int(ranks), int(machines), int(machine), meeting))  # type: ignore[no-untyped-call]
        run(told)  # type: ignore[no-untyped-call]
    except ChildFailedError as failed:
        rank, failure = failed.get_first_failure()
        how = f"was killed by signal {-failure.exitcode}" if failure.exitcode < 0 else f"ended with {failure.exitcode}"
        print(f"trainer: rank {rank} {how}, so all {ranks} ranks of this machine were ended", file=sys.stderr)
        return 1
    except SignalException as ended:
        return 128 + ended.sigval
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
