"""One cause instead of a group, and none hidden behind another."""

from __future__ import annotations

import pytest
import trio

from protocol.core.errors import Fault, PeerError
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import StreamBroken


def gravest(*errors: BaseException) -> BaseException:
    try:
        with first_cause():
            raise BaseExceptionGroup("several", [BaseExceptionGroup("nested", list(errors))])
    except BaseException as error:
        return error


def test_a_single_cause_is_raised_as_it_was() -> None:
    cause = ValueError("the disk is full")
    cause.__cause__ = OSError("ENOSPC")
    raised = gravest(cause)
    assert raised is cause
    assert isinstance(raised.__cause__, OSError)
    assert raised.__context__ is None
    assert not hasattr(raised, "__notes__")


def test_what_is_no_group_passes() -> None:
    with pytest.raises(KeyError), first_cause():
        raise KeyError("here")


def test_ctrl_c_goes_before_all_others() -> None:
    assert isinstance(gravest(ValueError(), KeyboardInterrupt()), KeyboardInterrupt)


def test_a_mistake_of_ours_is_not_hidden_by_a_broken_stream() -> None:
    raised = gravest(StreamBroken("gone"), PeerError(Fault.MALFORMED, "rubbish"), AssertionError("a bug"))
    assert isinstance(raised, AssertionError)
    assert raised.__notes__ == [
        "At the same time: StreamBroken('gone')",
        "At the same time: PeerError('malformed: rubbish')",
    ]


def test_of_several_as_grave_the_first_is_raised() -> None:
    assert str(gravest(StreamBroken("first"), StreamBroken("second"))) == "first"


async def test_an_error_beside_a_cancellation_is_not_lost() -> None:
    async def fail() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("while being cancelled")

    async def be_cancelled() -> None:
        with trio.CancelScope() as outer, first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                nursery.start_soon(fail)
                outer.cancel()

    with pytest.raises(ValueError, match="while being cancelled") as caught:
        await be_cancelled()
    assert not hasattr(caught.value, "__notes__")
