"""Programs that an owner wants the machine for: found among real processes, and given room for a while."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from node.rollout_role.availability import Availability
from node.rollout_role.yield_to_programs import GONE_S, LOOK_S, first_running, make_room
from tests.support.learner_fixture import until
from tests.support.quiescence import settled

SHORT, LONG = f"v{os.getpid()}-blend", f"v{os.getpid()}-blender-with-a-long-name"
"""Nobody else's processes have these names. Linux keeps fifteen characters of one, and `ps` shows no more."""


@contextmanager
def running(directory: Path, name: str, *, ours: bool = False) -> Iterator[None]:
    """A process of that name: ours, or started by a shell that is gone, as an owner's programs are not ours."""
    program = directory / name
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    if ours:
        pid = os.posix_spawn(program, [str(program), "600"], os.environ)
    else:
        started = subprocess.run(
            ["sh", "-c", '"$0" 600 >/dev/null 2>&1 & echo $!', program], capture_output=True, text=True, check=True
        )
        pid = int(started.stdout)
    ended = os.pidfd_open(pid)
    while not os.path.samefile(f"/proc/{pid}/exe", program):  # until then it is a copy of the shell
        time.sleep(0.001)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], 60.0)[0], "it does not end"
        if ours:
            os.waitpid(pid, 0)
        os.close(ended)


@pytest.mark.parametrize("name", [SHORT, LONG], ids=["short", "long"])
def test_a_program_is_found_by_its_whole_name(tmp_path: Path, name: str) -> None:
    assert first_running([name]) == ""
    with running(tmp_path, name):
        assert first_running(["no-such-program", name.upper()]) == name.upper()
        assert first_running([name[:-1], f"{name}s", name[:-3]]) == "", "the whole name"
    assert first_running([name]) == ""
    assert first_running([]) == ""


def test_what_the_node_runs_itself_is_not_meant(tmp_path: Path) -> None:
    with running(tmp_path, SHORT, ours=True):
        assert first_running([SHORT]) == ""


async def test_room_is_made_while_it_runs_and_a_while_after(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    shift = Availability()

    async def look() -> None:
        """Time passes until it has looked again."""
        mock_clock.jump(LOOK_S)
        await settled()

    async with trio.open_nursery() as nursery:
        with running(tmp_path, SHORT):
            nursery.start_soon(make_room, [SHORT], shift)
            await until(lambda: not shift.is_lent)
            assert shift.held == f"paused while {SHORT} runs"
        ended_s = trio.current_time()
        while not shift.is_lent:
            await look()
        assert trio.current_time() - ended_s >= GONE_S - LOOK_S, "it may come back"
        nursery.cancel_scope.cancel()
