"""The trainer on several ranks: torchrun, and one plain sentence when a rank ends before its time.

    python -m learner.launcher RANKS [MACHINES MACHINE HOST:PORT]

What always holds: stdin and stdout are those of rank 0, which alone talks to the node; what ranks say on stderr is
passed on under their numbers; when one rank ends, all do, and so does this process, with status 1 unless all ended
well. Its last lines, which begin with "trainer: ", then say which of this machine's ranks ended first, how, and what it
said last. With MACHINES above
1 every machine starts it, each with its own number MACHINE from 0, on which the node runs; HOST:PORT is where that one
can be reached. It leaves no files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from learner.last_words import how_ended
from learner.listening import Deaths, Ear

TRAINER = ("-m", "learner.trainer")


def arguments(
    ranks: int, machines: int = 1, machine: int = 0, meeting: str = "", *, program: Sequence[str] = TRAINER
) -> list[str]:
    """What torchrun is told. It restarts nothing: the node does, and begins from the last checkpoint."""
    fixed = ["--nproc-per-node", str(ranks), "--max-restarts", "0", "--log-dir", os.devnull]
    if machines == 1:
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *fixed, *program]
    host, _, port = meeting.rpartition(":")
    place = ["--nnodes", str(machines), "--node-rank", str(machine), "--master-addr", host, "--master-port", port]
    return [*place, *fixed, *program]


def main(words: Sequence[str], *, program: Sequence[str] = TRAINER) -> int:
    """Run all ranks of this machine to their end; each is `program`, as torchrun names one."""
    ranks, machines, machine, meeting = (*words, *("1", "0", "")[len(words) - 1 :])
    told = parse_args(arguments(int(ranks), int(machines), int(machine), meeting, program=program))  # type: ignore[no-untyped-call]
    config, command, rest = config_from_args(told)
    deaths = Deaths(int(ranks))
    with Ear() as ear:
        try:
            elastic_launch(replace(config, logs_specs=ear), command)(*rest)
        except ChildFailedError as failed:
            ended = failed
        except SignalException as signalled:
            return 128 + signalled.sigval
        else:
            return 0
    # Only now, when all that they said was passed on, for these are the last lines.
    rank, failure = min(ended.failures.items(), key=lambda item: (deaths.place(item[1].pid), item[1].timestamp))
    cause = f"rank {rank} {how_ended(failure.exitcode)}. All {ranks} ranks of this machine were ended"
    for line in (cause, *(f"rank {rank}: {word}" for word in ear.last_words(rank))):
        print(f"trainer: {line}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
