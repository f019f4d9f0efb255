"""Run the trainer on several ranks with torchrun, and say in one plain sentence why a rank ended before its time.

    python -m learner.training.distributed.launcher RANKS [MACHINES MACHINE HOST:PORT]

With MACHINES above 1, start it on every machine with that machine's number MACHINE. Number 0 is the machine on which
the node runs, and HOST:PORT is where it can be reached. The machines meet first
(`learner.training.distributed.machines`), and a missing one is reported.

Invariants:

- stdin and stdout are those of rank 0, which alone communicates with the node. Before rank 0 exists, this process
  reports on stdout what it waits for, as the event {"event": "waiting", "text": str}.
- Lines that ranks write to stderr are passed on with the rank's number.
- When one rank ends, all ranks end, on all machines, and so does this process, with status 1 unless all ended well. Its
  last lines then begin with "trainer: ". They say which rank ended first, how, and what it printed last, or which
  machine is gone.
- It leaves no files.
"""

from __future__ import annotations

import os

from learner.trainer_api.last_resort_exit import tell_deaths

if __name__ == "__main__":
    tell_deaths()
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        # torch reads it once. About an unreachable store it prints twenty lines of C++ and raises an error, too.
        os.environ.update(TORCH_CPP_LOG_LEVEL="FATAL", VOLERY_QUIET="1")

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from learner.trainer_api.exit_reasons import explained, how_ended, is_of_lost_connection
from learner.training.distributed.machines.interfaces import stay_here
from learner.training.distributed.machines.meeting import Meeting, Terms, say
from learner.training.distributed.machines.messages import FIRST, End
from learner.training.distributed.machines.roll_call import NoStore, first_line
from learner.training.distributed.rank_output import Deaths, Ear
from learner.training.distributed.ranks import LAUNCHER
from protocol.core.pipe import encode_frame

TRAINER = ("-m", "learner.training.server")

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def arguments(
    ranks: int, machines: int = 1, machine: int = 0, meeting: str = "", *, program: Sequence[str] = TRAINER
) -> list[str]:
    """Return torchrun's arguments. It restarts nothing: the node does that, from the last checkpoint."""
    fixed = ["--nproc-per-node", str(ranks), "--max-restarts", "0", "--log-dir", os.devnull]
    if machines == 1:
        return ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *fixed, *program]
    host, _, port = meeting.rpartition(":")
    place = ["--nnodes", str(machines), "--node-rank", str(machine), "--master-addr", host, "--master-port", port]
    return [*place, *fixed, *program]


@dataclass(frozen=True)
class Signalled(Exception):
    """This process got a signal that ends it."""

    number: int


def main(words: Sequence[str], *, program: Sequence[str] = TRAINER) -> int:
    """Run all ranks of this machine to their end. Each is `program`, in torchrun's notation. Return the exit status."""
    terms = _terms(words)
    try:
        return _alone(terms, program) if terms.machines == 1 else _together(terms, program)
    except Signalled as end:
        signal.signal(end.number, signal.SIG_DFL)
        os.kill(os.getpid(), end.number)  # so that the parent process sees the signal
        return 128 + end.number


def _terms(words: Sequence[str]) -> Terms:
    ranks, machines, machine, meeting = (*words, *("1", "0", "")[len(words) - 1 :])
    host, _, port = meeting.rpartition(":")
    return Terms(
        ranks=int(ranks), machines=int(machines), machine=int(machine), host=host.strip("[]"), port=int(port or 0)
    )


def _alone(terms: Terms, program: Sequence[str]) -> int:
    stay_here()
    end = _run(terms, arguments(terms.ranks, program=program))
    if end is None:
        return 0
    say((f"{end.cause}. All {terms.ranks} ranks of this machine were ended", *end.words))
    return 1


def _together(terms: Terms, program: Sequence[str]) -> int:
    def tell(text: str) -> None:
        if terms.machine == FIRST and not meeting.has_begun:
            sys.stdout.buffer.write(encode_frame({"event": "waiting", "text": text}))
            sys.stdout.buffer.flush()
        else:
            print(f"trainer: {text}", file=sys.stderr, flush=True)

    meeting = Meeting(terms=terms, tell=tell)
    try:
        is_whole = meeting.begin()
    except NoStore as error:
        say((f"the machines cannot meet at {terms.meeting}: {error}. See [trainer] rendezvous",))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    lines = meeting.lines
    if is_whole:
        place = Terms(**{**vars(terms), "host": terms.store}).meeting
        words = arguments(terms.ranks, terms.machines, terms.machine, place, program=program)
        try:
            lines = meeting.end(_run(terms, words))
        except Signalled as signalled:
            meeting.end(End(cause=f"its launcher {how_ended(-signalled.number)}"))
            raise
    say(lines)
    return 1 if lines else 0


def _run(terms: Terms, words: Sequence[str]) -> End | None:
    """Run this machine's ranks. Return their end, None if all ended well. Raises Signalled."""
    if os.environ.pop("VOLERY_QUIET", ""):
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # ranks may print what they like
    config, command, rest = config_from_args(parse_args(list(words)))  # type: ignore[no-untyped-call]
    os.environ[LAUNCHER] = str(os.getpid())
    deaths = Deaths(terms.ranks)
    failures: dict[int, ProcessFailure] = {}
    with Ear() as ear:
        try:
            elastic_launch(replace(config, logs_specs=ear), command)(*rest)
        except ChildFailedError as failed:
            failures = failed.failures
        except SignalException as signalled:
            raise Signalled(signalled.sigval) from None
        except RuntimeError as error:
            return End(cause=f"torchrun cannot start its ranks: {first_line(error)}")
    if not failures:
        return None
    # Only now, when all their output was passed on, because the lines about them must come last.
    rank, failure = min(failures.items(), key=lambda item: (deaths.place(item[1].pid), item[1].timestamp))
    said = explained(failure.exitcode, ear.last_lines(rank))
    how = how_ended(failure.exitcode)
    return End(
        cause=f"rank {rank} {how}{f': {said.cause}' if said.cause else ''}",
        words=tuple(f"rank {rank}: {word}" for word in said.quoted),
        lost_line=is_of_lost_connection(said),
        ago_s=max(0.0, time.monotonic() - deaths.at_s(failure.pid)),
    )


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # threads of the meeting may be waiting for a store that is gone
