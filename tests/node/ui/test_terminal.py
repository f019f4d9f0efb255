"""Run a program on a screen: its outcome, its failure, and a request to stop."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
import trio

from node.reports.model.report import Role
from node.runtime.errors import RunError
from node.runtime.shutdown import Stopped
from node.ui.live_view import ViewState
from node.ui.terminal import open_terminal, run_shown


async def run(program: object, **options: object) -> object:
    with open_terminal(ViewState(role=Role.ROLLOUT, title="a swarm"), plain=True) as terminal:
        return await run_shown(terminal, program, **options)  # type: ignore[arg-type]


def test_the_outcome_is_returned() -> None:
    async def program() -> str:
        await trio.lowlevel.checkpoint()
        return "well done"

    assert trio.run(run, program) == "well done"


def test_what_ends_it_is_raised_as_it_is() -> None:
    async def program() -> None:
        await trio.lowlevel.checkpoint()
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        trio.run(run, program)


@pytest.mark.parametrize("error", [BrokenPipeError("nobody reads"), RunError("standard output cannot be written")])
def test_a_screen_that_cannot_be_written_is_left_in_order(error: Exception) -> None:
    left = []

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        left.append("in order")

    async def main() -> None:
        with open_terminal(ViewState(role=Role.ROLLOUT, title="a swarm"), plain=True) as terminal:

            def refresh() -> None:
                raise error

            broken = replace(terminal, refresh=refresh)
            await run_shown(broken, trio.sleep_forever, leave=leave)

    with pytest.raises(type(error)):
        trio.run(main)
    assert left == ["in order"]


def test_asked_in_its_first_moment_it_leaves_and_stops() -> None:
    """Also where whoever started it had Ctrl-C ignored, as a shell script does for what it starts in the background."""
    left = []

    async def program() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    async def leave() -> None:
        await trio.lowlevel.checkpoint()
        left.append("in order")

    async def main() -> None:
        with trio.fail_after(60):
            await run(program, leave=leave)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(Stopped):
            trio.run(main)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert left == ["in order"]
