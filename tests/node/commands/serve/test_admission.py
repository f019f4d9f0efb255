"""Decide which client is answered, which waits, and which is refused."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from node.commands.serve.admission import Admission
from node.commands.serve.api_error import ApiError


async def test_ten_thousand_requests_hold_no_more_than_there_is_room_for(autojump_clock: MockClock) -> None:
    admission = Admission(most_requests=3, most_completions=2, wait_s=1000)
    refused: list[ApiError] = []
    most = 0

    async def ask() -> None:
        nonlocal most
        try:
            with admission.entered() as place:
                await admission.begin(place, 1)
                most = max(most, admission.num_completions)
                await trio.sleep(1)
        except ApiError as error:
            refused.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(10_000):
            nursery.start_soon(ask)
    assert (len(refused), most) == (9_997, 2)
    assert {(error.status, *error.headers) for error in refused} == {(429, ("Retry-After", "2"))}
    assert (admission.num_requests, admission.num_completions) == (0, 0)


async def test_requests_begin_in_order_and_a_large_one_is_not_overtaken() -> None:
    admission = Admission(most_completions=4)
    order: list[int] = []
    done = [trio.Event() for _ in range(3)]

    async def ask(number: int, weight: int) -> None:
        with admission.entered() as place:
            await admission.begin(place, weight)
            order.append(number)
            await done[number].wait()

    async with trio.open_nursery() as nursery:
        for number, weight in enumerate((3, 4, 1)):
            nursery.start_soon(ask, number, weight)
            await wait_all_tasks_blocked()
        assert order == [0]
        for number in range(3):
            done[number].set()
            await wait_all_tasks_blocked()
    assert order == [0, 1, 2]


async def test_a_request_that_leaves_gives_its_place_back() -> None:
    admission = Admission(most_completions=1)
    async with trio.open_nursery() as nursery:

        async def ask() -> None:
            with admission.entered() as place:
                await admission.begin(place, 1)
                await trio.sleep_forever()

        for _ in range(2):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        assert (admission.num_requests, admission.num_completions) == (2, 1)
        nursery.cancel_scope.cancel()
    assert (admission.num_requests, admission.num_completions) == (0, 0)


async def test_who_waits_too_long_is_told(autojump_clock: MockClock) -> None:
    admission = Admission(most_completions=1, wait_s=5)
    with admission.entered() as first, admission.entered() as second:
        await admission.begin(first, 1)
        with pytest.raises(ApiError) as refused:
            await admission.begin(second, 1)
    assert refused.value.status == 503
    assert admission.num_completions == 0
