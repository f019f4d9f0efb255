"""Kill -9 at any moment, then open again: complete versions, parts that can be resumed, and nothing else.

A process lives through everything a store can do and reports each step done. It is killed between two lines of the
store's own code (a trace function counts them), so every moment can be tried and a failing one repeated: run this file
as a program, `python -m tests.integration.test_store_kill DIRECTORY LIFE FIRST STRIDE`. A second kind of test kills
from outside, at random moments.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import swarm.store
from protocol.core.digest import cid_of
from protocol.versions.chunking import changed_chunks
from swarm.store import ChunkStore
from tests.support.paths import ROOT
from tests.support.store_fixture import chunk_data, fill, model_files, small_model, small_swarm, write_model

STORE_CODE = str(Path(swarm.store.__file__).parent)
SWARM = small_swarm()
MODELS = {number: small_model(number) for number in (1, 2, 3)}
SIGNED = {number: SWARM.publish(files, version=number) for number, files in MODELS.items()}
NUMBERS = {signed.hash: number for number, signed in SIGNED.items()}

Done = Callable[[str], None]
"""Called after each step, with its name."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """A process's work on the store in `root`, and the rules for its state after some of the steps."""

    prepare: Callable[[Path], None]
    live: Callable[[Path, Done], None]
    check: Callable[[Path, list[str]], None]


# Life one: fetch, fetch with local copies, adopt, evict.


def prepare_export(root: Path) -> None:
    write_model(root.parent / "export", MODELS[3])


def fetch_adopt_evict(root: Path, done: Done) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        store.remember_genesis(SWARM.genesis)
        store.remember_newest(b"one")
        done("remembered")
        for number, finish in ((1, True), (2, False)):
            signed = SIGNED[number]
            store.begin(signed)
            for index in store.missing(signed.hash)[: None if finish else -1]:
                store.put(signed.hash, index, chunk_data(signed, MODELS[number], index))
                done(f"put {number} {index}")
            if finish:
                store.finish(signed.hash)
                done(f"complete {number}")
        store.adopt(SIGNED[3], root.parent / "export")
        done("complete 3")
        store.remember_newest(b"two")
        done("evicting")
        store.evict({SIGNED[3].hash})
        done("evicted")


def check_what_is_left(root: Path, steps: list[str]) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        held = {NUMBERS[one.hash]: one for one in store.versions()}
        names = {one.hash.hex() + ("" if one.complete else ".part") for one in held.values()}
        assert {path.name for path in (root / "versions").iterdir()} == names
        assert {path.name for path in (root / "manifests").iterdir()} == {one.hash.hex() for one in held.values()}
        assert {path.name for path in root.iterdir()} <= {"lock", "genesis", "newest", "manifests", "versions"}
        assert store.genesis() == SWARM.genesis or "remembered" not in steps
        assert store.newest() in {b"one", b"two"} or "remembered" not in steps
        for number, one in held.items():
            if one.complete:
                assert model_files(store.directory(one.hash)) == MODELS[number]
            for chunk in SIGNED[number].manifest.chunks:
                assert (data := store.get(chunk.name)) is None or cid_of(data) == chunk.name
        _check_steps(store, steps)
        for number, signed in SIGNED.items():
            assert model_files(fill(store, signed, MODELS[number])) == MODELS[number]
    assert model_files(root.parent / "export") == MODELS[3]


def _check_steps(store: ChunkStore, steps: list[str]) -> None:
    """Check that no reported step is lost. Once eviction begins, only what was to be kept must be there."""
    if "evicted" in steps:
        assert [one.hash for one in store.versions()] == [SIGNED[3].hash]
    for step in steps:
        match step.split():
            case ["put", number, index] if "evicting" not in steps:
                assert int(index) not in store.missing(SIGNED[int(number)].hash)
            case ["complete", number] if "evicting" not in steps or number == "3":
                assert store.is_complete(SIGNED[int(number)].hash)
            case _:
                pass


# Life two: a chunk has gone bad on the disk; find it, put it again.


def prepare_damage(root: Path) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        config = fill(store, SIGNED[1], MODELS[1]) / "config.json"
        config.write_bytes(b"?" * len(config.read_bytes()))


def find_and_repair(root: Path, done: Done) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        store.verify(SIGNED[1].hash)
        done("found")
        fill(store, SIGNED[1], MODELS[1])
        done("repaired")


def check_damage_is_known_or_gone(root: Path, steps: list[str]) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        if "repaired" in steps:
            assert store.is_complete(SIGNED[1].hash)
        if "found" in steps and store.is_complete(SIGNED[1].hash):
            assert model_files(store.directory(SIGNED[1].hash)) == MODELS[1]
        store.verify(SIGNED[1].hash)  # the process died before it found the damage
        assert model_files(fill(store, SIGNED[1], MODELS[1])) == MODELS[1]


# Life three: take up a part whose bitmap is lost, as it is between the last chunk and the rename.


def prepare_unmarked(root: Path) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        store.begin(SIGNED[1])
        for index in store.missing(SIGNED[1].hash):
            store.put(SIGNED[1].hash, index, chunk_data(SIGNED[1], MODELS[1], index))
    (root / "versions" / f"{SIGNED[1].hash.hex()}.part" / ".have").unlink()


def recover(root: Path, done: Done) -> None:
    ChunkStore.open(root, SWARM.authority).close()
    done("recovered")


def check_nothing_is_missing(root: Path, _: list[str]) -> None:
    with ChunkStore.open(root, SWARM.authority) as store:
        assert store.missing(SIGNED[1].hash) == []
        assert model_files(store.finish(SIGNED[1].hash)) == MODELS[1]


LIVES = {
    "fetching": Life(prepare=prepare_export, live=fetch_adopt_evict, check=check_what_is_left),
    "repairing": Life(prepare=prepare_damage, live=find_and_repair, check=check_damage_is_known_or_gone),
    "recovering": Life(prepare=prepare_unmarked, live=recover, check=check_nothing_is_missing),
}


# Killing between two lines.


def in_child(work: Callable[[Done], None], *, kill_at: int) -> tuple[bool, list[str]]:
    """Run `work` in a fork that dies before the store's line `kill_at`; return whether it died, and its steps."""
    receive, send = os.pipe()
    if (child := os.fork()) == 0:
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if not frame.f_code.co_filename.startswith(STORE_CODE):
                return None
            if event == "line":
                lines += 1
                if lines == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            work(lambda step: (os.write(send, f"{step}\n".encode()), None)[1])
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as said:
        steps = said.read().split("\n")[:-1]
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0, steps


def kill_at_every(stride: int, first: int, life: Life, scratch: Path) -> int:
    """Die at every `stride`-th line from `first` on, and again while recovering; return the number of deaths."""
    deaths, kill_at, died = 0, first, True
    while died:
        root = scratch / "life" / "store"
        root.parent.mkdir()
        life.prepare(root)
        died, steps = in_child(lambda done, root=root: life.live(root, done), kill_at=kill_at)  # type: ignore[misc]
        # The recovering process may die as well, at another line each time.
        in_child(lambda _, root=root: ChunkStore.open(root, SWARM.authority).close(), kill_at=1 + 37 * deaths % 400)  # type: ignore[misc]
        try:
            life.check(root, steps)
        except BaseException as error:
            error.add_note(f"killed at line {kill_at} of the store's, after {steps}")
            raise
        shutil.rmtree(root.parent)
        deaths, kill_at = deaths + died, kill_at + stride
    return deaths


def run_program(scratch: Path, life: str, first: int, stride: int) -> int:
    """`kill_at_every` in a process of its own, which may fork: it has one thread."""
    command = [sys.executable, "-m", "tests.integration.test_store_kill", str(scratch), life, str(first), str(stride)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


@pytest.mark.parametrize(
    ("life", "stride", "at_least"), [("fetching", 197, 10), ("repairing", 97, 5), ("recovering", 47, 5)]
)
def test_killed_at_some_moments(tmp_path: Path, life: str, stride: int, at_least: int) -> None:
    assert run_program(tmp_path, life, first=random.randrange(1, stride), stride=stride) >= at_least


@pytest.mark.slow
@pytest.mark.parametrize(
    ("life", "stride", "at_least"), [("fetching", 11, 200), ("repairing", 5, 90), ("recovering", 3, 80)]
)
def test_killed_at_many_moments(tmp_path: Path, life: str, stride: int, at_least: int) -> None:
    assert run_program(tmp_path, life, first=random.randrange(1, stride), stride=stride) >= at_least


# Killing from outside.


NUM_STEPS = len(SIGNED[1].manifest.chunks) + len(changed_chunks(SIGNED[1].manifest, SIGNED[2].manifest)) + 4


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7, 0.9, 1.0])
def test_killed_from_outside(tmp_path: Path, share: float) -> None:
    root = tmp_path / "life" / "store"
    root.parent.mkdir()
    prepare_export(root)
    command = [sys.executable, "-m", "tests.integration.test_store_kill", str(root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        steps = [process.stdout.readline().strip() for _ in range(max(1, int(share * NUM_STEPS)))]
        process.kill()  # it is on its way to the next step, or further
        steps += process.stdout.read().splitlines()
    assert "" not in steps
    check_what_is_left(root, steps)


def main(arguments: list[str]) -> None:
    """A store alone: live in it, then wait. With LIFE FIRST STRIDE: kill at every STRIDE-th line, print how often."""
    if len(arguments) == 1:
        fetch_adopt_evict(Path(arguments[0]), lambda step: print(step, flush=True))
        sys.stdin.read()
    else:
        directory, life, first, stride = arguments
        print(kill_at_every(int(stride), int(first), LIVES[life], Path(directory)))


if __name__ == "__main__":
    main(sys.argv[1:])
