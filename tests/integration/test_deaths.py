"""Kill every child process in every way in which one dies: the true cause is reported, and only once.

Processes are real, and so is our code in them that reports it; only the failure is put there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

import node.engine
from node.learner_role.metrics.board import Row
from node.learner_role.metrics.wandb import WandbSink
from node.processes.child import open_child
from node.processes.event_log import child_events
from node.processes.outcomes import ChildCrashed, ChildDied, ChildEvent, ChildExit
from node.processes.spec import ChildSpec, RestartLimits
from node.runtime.events import EventLog
from node.ui.live_view import Role, ViewState
from node.ui.view_updates import follow
from node.verifiers.pool import VERIFIER
from tests.support.paths import ROOT

MARK = "the tensor is sad"

DEADLINE_S = float(os.environ.get("VOLERY_TEST_DEADLINE_S", "240"))
"""Seconds to wait for anything that is to happen: many times what it takes."""

WAYS = """
import ctypes, os, signal, sys, threading, time

def die(way):
    match way:
        case "raise":
            raise RuntimeError("the tensor is sad")
        case "exit":
            sys.exit(7)
        case "leave":
            os._exit(7)
        case "sentence":
            sys.exit("the tensor is sad")
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "memory":
            raise MemoryError("the tensor is sad")
        case "chain":
            try:
                raise ValueError("this was the first")
            except ValueError as error:
                raise RuntimeError("the tensor is sad\\nand this is its second line") from error
        case "hold":  # its interpreter would wait for this thread
            threading.Thread(target=time.sleep, args=(600,)).start()
            raise RuntimeError("the tensor is sad")
        case "close":  # neither an end nor a word
            os.closerange(3, 64)
            time.sleep(600)
        case _:
            os.kill(os.getpid(), getattr(signal, way))
"""
"""The ways in which a process can be ordered to die."""

SERVER = """
import json, os, sys, threading
from .ways import die
from protocol.core.pipe import encode_frame
from ..common_worker.reader import start_reading

if os.environ.get("DIE_AT") == "import":
    die(os.environ["DIE"])

def run(settings, output):
    asked = threading.Event()

    def take(header, arrays):
        if os.environ["DIE_AT"] == "thread":
            die(os.environ["DIE"])
        asked.set()

    output.write(encode_frame({"event": "ready"}))
    output.flush()
    start_reading(os.fdopen(0, "rb", buffering=0), take, lambda: os._exit(0))
    asked.wait()
    die(os.environ["DIE"])
"""
"""A worker that fails as a library in it might; everything else in its process is ours."""

TRAINER = """
import os, runpy, sys, threading
sys.path.insert(0, os.environ["WAYS"])
from ways import die

at = os.environ["DIE_AT"]
if at == "import":
    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "learner.training.checkpoint":
                die(os.environ["DIE"])
    sys.meta_path.insert(0, Finder())
else:
    import learner.trainer_api.requests
    class Trap(dict):
        pass
    import learner.training.model.loading
    import learner.training.model.policy
    learner.training.model.loading.quiet_transformers = lambda: None
    def boom(*_, **__):
        raise BaseException("unused")
    def load_policy(*_, **__):
        die(os.environ["DIE"])
    learner.training.model.policy.load_policy = load_policy
sys.argv = ["trainer"]
runpy.run_module("learner.training.server", run_name="__main__")
"""


@dataclass
class Told:
    """The reports of one process's end: to its watchers, and to its callers."""

    exit: ChildExit
    notices: list[str]
    error: str = ""


async def watch(
    name: str, argv: tuple[str, ...], env: Mapping[str, str], call: tuple[str, Mapping[str, Any]] | None
) -> Told:
    """Start it, send it a request if it comes so far, and return the reports of its end."""
    events, state = EventLog(), ViewState(role=Role.LEARNER)
    follow(state, events)
    log = child_events(events, name)
    exits: list[ChildExit] = []

    def heard(event: ChildEvent) -> None:
        log(event)
        if isinstance(event, ChildDied):
            exits.append(event.exit)

    spec = ChildSpec(
        name=name,
        argv=argv,
        env={"PYTHONPATH": str(ROOT), **env},
        restarts=RestartLimits(max_restarts=0),
    )
    try:
        async with open_child(spec, on_event=heard) as child:
            assert call is not None, "it should have died before the call"
            with pytest.raises(ChildCrashed) as crash:
                await child.call(call[0], call[1], {"nothing": np.zeros(1)})
            error = str(crash.value)
            while not exits:
                await trio.sleep(0)
    except ChildCrashed as stillborn:
        exits, error = [stillborn.exit], str(stillborn)
    return Told(exits[-1], [notice.text for notice in state.notices], error)


@pytest.fixture
def ways(tmp_path: Path) -> Path:
    (tmp_path / "ways.py").write_text(WAYS)
    return tmp_path


async def engine(place: Path, at: str, way: str) -> Told:
    """The common worker of all engines, with a worker of ours beside it."""
    home = place / "engine"
    shutil.copytree(Path(node.engine.__file__).parent / "common_worker", home / "common_worker")
    (home / "sad_worker").mkdir()
    (home / "sad_worker" / "__init__.py").write_text("")
    (home / "sad_worker" / "server.py").write_text(SERVER)
    (home / "sad_worker" / "ways.py").write_text(WAYS)
    launcher = str(home / "common_worker" / "__main__.py")
    argv = (sys.executable, "-I", launcher, "sad_worker", str(ROOT), json.dumps({}))
    return await watch("engine", argv, {"DIE_AT": at, "DIE": way}, ("score", {}))


async def trainer(place: Path, at: str, way: str) -> Told:
    request = {"directory": str(place), "hyperparameters": {"max_new_tokens": 4}}
    environment = {"DIE_AT": at, "DIE": way, "WAYS": str(place)}
    return await watch("trainer", (sys.executable, "-c", TRAINER), environment, ("load", request))


TASK = """
import os, sys
from node.tasks.api.interface import Problem
sys.path.insert(0, os.environ["WAYS"])
from ways import die

class Sad:
    name, levels, fingerprint = "sad", 1, "sad"
    def __init__(self, arguments):
        if os.environ["DIE_AT"] == "import":
            die(os.environ["DIE"])
    def problem(self, index):
        return Problem(prompt=str(index))
    held_out = problem
    def reward(self, problem, completion):
        die(os.environ["DIE"])
"""


async def verifier(place: Path, at: str, way: str) -> Told:
    (place / "sad.py").write_text(TASK)
    task = {"spec": "python:sad:Sad", "directory": str(place), "seed": 0}
    events, state = EventLog(), ViewState(role=Role.LEARNER)
    follow(state, events)
    log, exits = child_events(events, "verifier 1"), list[ChildExit]()

    def heard(event: ChildEvent) -> None:
        log(event)
        if isinstance(event, ChildDied):
            exits.append(event.exit)

    spec = ChildSpec(
        name="verifier 1",
        argv=VERIFIER,
        env={"PYTHONPATH": str(ROOT), "DIE_AT": at, "DIE": way, "WAYS": str(place)},
        dying_s=20.0 if way != "close" else 1.0,
        restarts=RestartLimits(max_restarts=0),
    )
    error = ""
    async with open_child(spec, on_event=heard) as child:
        try:
            await child.call(
                "open", {"tasks": {"sad": task}, "timeout_s": 0.5 if way == "hang" else 60.0, "memory_gb": 4}
            )
            judged = {
                "task": "sad",
                "index": 1,
                "held_out": False,
                "said": ["a"],
                "finished": True,
                "wants_reward": True,
            }
            await child.call("judge", judged)
        except ChildCrashed as crash:
            error = str(crash)
        while not exits:
            await trio.sleep(0)
    return Told(exits[-1], [notice.text for notice in state.notices], error)


RANK = """
import os, sys
sys.path.insert(0, os.environ["WAYS"])
from learner.trainer_api.last_resort_exit import tell_deaths
from learner.trainer_api.pipes import claim_pipes
from protocol.core.pipe import encode_frame
requests, replies = claim_pipes()
tell_deaths()
from learner.training.distributed.ranks import open_ranks
from ways import die
open_ranks()  # torch then puts a hook of its own before uncaught exceptions
if os.environ["RANK"] == "0":
    replies.write(encode_frame({"event": "ready"}))
    replies.flush()
    requests.read(1)
    open(os.environ["ASKED"], "w").close()
else:
    os.close(1)
    import time
    while not os.path.exists(os.environ["ASKED"]):
        time.sleep(0.05)
    die(os.environ["DIE"])
import time
time.sleep(600)
"""

LAUNCHER = (
    "import sys; from learner.training.distributed.launcher import main; sys.exit(main(['2'], program=sys.argv[1:]))"
)


async def ranks(place: Path, way: str) -> Told:
    """Watch the second of two ranks."""
    (place / "rank.py").write_text(RANK)
    argv = (sys.executable, "-c", LAUNCHER, str(place / "rank.py"))
    environment = {"DIE": way, "WAYS": str(place), "ASKED": str(place / "asked")}
    return await watch("trainer", argv, environment, ("load", {}))


CHILDREN: Mapping[str, Callable[[Path, str, str], Any]] = {
    "engine": engine,
    "trainer": trainer,
    "verifier 1": verifier,
}
SAID = rf"ended with exit code 1: RuntimeError: {MARK} \(at .*, line \d+, in die\)"
RAISED = [("raise", SAID), ("hold", SAID), ("chain", rf"ended with exit code 1: RuntimeError: {MARK} and this is its "
                                             r"second line \(at .*, line \d+, in die\)"),
          ("memory", rf"ended with exit code 1: MemoryError: {MARK} \(at .*, in die\)")]  # fmt: skip
ENDED = [
    ("exit", "ended with exit code 7"),
    ("leave", "ended with exit code 7"),
    ("segfault", "was killed by SIGSEGV: Segmentation fault"),
    ("abort", "was killed by SIGABRT: Aborted"),
    ("SIGTERM", "was killed by SIGTERM"),
    ("SIGKILL", "was killed by SIGKILL; if nobody killed it, the machine ran out of memory"),
]
CLOSED = ("close", "was ended: it closed its pipe, and had not ended 1 s later")
TIMED_OUT = ("hang", r"ended with exit code 1: Timeout \(0:00:00.500000\)!")
TABLE = [
    *(("engine", at, *row) for at in ("import", "call") for row in [*RAISED, *ENDED]),
    *(("engine", "thread", *row) for row in [*RAISED, ENDED[2], ENDED[5]]),
    ("trainer", "import", *RAISED[0]),
    *(pytest.param("trainer", "import", *row, marks=pytest.mark.slow) for row in [*RAISED[1:], ENDED[0]]),
    *(pytest.param("trainer", "call", *row, marks=pytest.mark.slow) for row in ENDED),
    # A task that raises SystemExit ends no verifier: that is a value (`node.tasks.gate`).
    *(("verifier 1", "call", *row) for row in [*ENDED[1:], CLOSED, TIMED_OUT]),
]


@pytest.mark.parametrize(("child", "at", "way", "told"), TABLE)
async def test_what_is_told_of_an_end_is_what_happened_and_once(
    ways: Path, child: str, at: str, way: str, told: str
) -> None:
    if way == "hang":
        (ways / "ways.py").write_text(
            WAYS.replace('case "exit":', 'case "hang":\n            time.sleep(600)\n        case "exit":')
        )
    with trio.fail_after(DEADLINE_S):
        found: Told = await CHILDREN[child](ways, at, way)
    assert re.fullmatch(told, found.exit.predicate), found.exit.predicate
    assert found.error.splitlines()[0].startswith(f"the {child} process {found.exit.predicate}")
    if found.notices:  # the opener reports an end before the child came into service, by an exception
        assert sum(f"the {child} process {found.exit.predicate}"[:200] == notice[:200] for notice in found.notices) == 1
    if MARK in told:
        assert found.error.splitlines()[0].count(MARK) == 1
        assert sum(MARK in notice for notice in found.notices) <= 1
    if way in ("segfault", "hang"):
        assert re.fullmatch(r"at .*ways\.py, line \d+, in die|at .*ctypes.*, in string_at", *found.exit.last_words)


@pytest.mark.parametrize(
    ("way", "told"),
    [pytest.param(*RAISED[0], marks=pytest.mark.rest), *(pytest.param(*one, marks=pytest.mark.slow) for one in ENDED)],
)
async def test_what_is_told_of_a_rank_is_what_happened_and_once(ways: Path, way: str, told: str) -> None:
    with trio.fail_after(DEADLINE_S):
        found = await ranks(ways, way)
    expected = rf"ended with exit code 1: rank 1 {told}\. All 2 ranks of this machine were ended"
    assert re.fullmatch(expected, found.exit.predicate), found.exit.predicate
    assert sum("rank 1" in notice for notice in found.notices) == 1 + sum(
        "rank 1" in word for word in found.exit.last_words
    )


@pytest.mark.slow
async def test_a_launcher_that_somebody_ends_is_told_of_as_that(ways: Path) -> None:
    """torchrun turns the signal into an exit code."""
    (ways / "rank.py").write_text(RANK.replace('die(os.environ["DIE"])', "os.kill(os.getppid(), 15)"))
    argv = (sys.executable, "-c", LAUNCHER, str(ways / "rank.py"))
    environment = {"DIE": "", "WAYS": str(ways), "ASKED": str(ways / "asked")}
    with trio.fail_after(DEADLINE_S):
        found = await watch("trainer", argv, environment, ("load", {}))
    assert found.exit.predicate == "was killed by SIGTERM"


def test_a_child_of_wandb_is_told_of_with_its_own_last_words_and_none_of_one_before(ways: Path) -> None:
    """The children share one file for their last words."""
    program = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ways)!r}]; "
        "from learner.trainer_api.last_resort_exit import tell_deaths; tell_deaths(); "
        "from ways import die; sys.stdin.buffer.readline(); die(sys.argv[1])"
    )
    for way, told in (RAISED[0], *ENDED):
        sink = WandbSink(directory=ways / "wandb", project="p", group="g", command=(sys.executable, "-c", program, way))
        sink.begin(1, 0)
        assert sink._child is not None
        sink._child.wait(DEADLINE_S)
        with pytest.raises(RuntimeError) as failed:
            sink.write(Row(incarnation=1, step=1, at_ms=0, values={}))
        said = str(failed.value).removeprefix("its process ").partition(" (all of it")[0]
        assert re.match(told[:60], said), said
        assert (MARK in said) is (way == "raise"), "the message holds another child's last words"
        sink.close()
