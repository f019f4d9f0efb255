"""An owner's hours over days, in virtual time: waiting tasks wake when they begin, working tasks stop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import trio
import trio.testing
from trio.testing import MockClock

from node.config.daily_hours import parse_hours
from node.rollout_role.availability import LOOK_S, Availability

MORNING = datetime(2026, 3, 28, 6, 0, 0, 250_000)


class Wall:
    """A clock on a wall, which goes as trio's does, until somebody sets it."""

    def __init__(self, shows: datetime = MORNING) -> None:
        self._ahead = shows - timedelta(seconds=trio.current_time())

    def __call__(self) -> datetime:
        return self._ahead + timedelta(seconds=trio.current_time())

    def set(self, by: timedelta) -> None:
        self._ahead += by


async def followed(
    shift: Availability, wall: Wall, hours: float, meanwhile: Callable[[], None] = lambda: None
) -> list[str]:
    """What the shift said, and when, in so many hours; `meanwhile` happens in the middle."""
    told: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shift.run, lambda: told.append(f"{wall():%d %H:%M:%S} {shift.is_lent} {shift.turns_at}"))
        await trio.sleep(1800 * hours)
        meanwhile()
        await trio.sleep(1800 * hours)
        nursery.cancel_scope.cancel()
    return told


async def test_a_day(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours("19:00-07:30,12:00-13:00"), wall)
    assert (shift.is_lent, shift.left_s, shift.turns_at) == (True, 5399.75, "07:30")
    assert await followed(shift, wall, 24) == [
        "28 07:30:00 False 12:00",
        "28 12:00:00 True 13:00",
        "28 13:00:00 False 19:00",
        "28 19:00:00 True 07:30",
    ]


async def test_who_begins_outside_its_hours_is_told_at_once(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours("06:30-06:45"), wall)
    assert (shift.is_lent, shift.left_s) == (False, 0.0)
    assert await followed(shift, wall, 0.9) == [
        "28 06:00:00 False 06:30",
        "28 06:30:00 True 06:45",
        "28 06:45:00 False 06:30",
    ]


async def test_without_hours_nothing_is_ever_said(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours(""), wall)
    assert await followed(shift, wall, 48) == []
    assert (shift.is_lent, shift.left_s, shift.turns_at) == (True, None, "")


async def test_a_clock_that_is_set_is_followed_within_a_look(autojump_clock: MockClock) -> None:
    """Summer time, a sleeping machine, a wrong battery: two hours pass in no time, then one twice."""
    wall = Wall()
    shift = Availability(parse_hours("07:00-08:00"), wall)
    told = await followed(shift, wall, 1.5, lambda: wall.set(timedelta(hours=2)))
    assert told[:1] == ["28 06:00:00 False 07:00"]
    assert told[1:] == [], "it was 8:45 at once"
    back = Wall()
    shift = Availability(parse_hours("06:00-06:40"), back)
    first, second, third = await followed(shift, back, 1.5, lambda: back.set(-timedelta(minutes=20)))
    assert first == "28 06:40:00 False 06:00"
    at = datetime.strptime(second.split()[1], "%H:%M:%S")
    assert 0 <= (at - datetime(1900, 1, 1, 6, 25)).total_seconds() <= LOOK_S + 1, "it is 6:25 again"
    assert second.endswith("True 06:40")
    assert third == "28 06:40:00 False 06:00"


async def test_who_waits_is_woken_and_who_works_is_stopped(autojump_clock: MockClock) -> None:
    wall, done = Wall(), list[str]()
    shift = Availability(parse_hours("07:00-08:00,09:00-10:00"), wall)

    async def work() -> None:
        while True:
            await shift.wait_on()
            with shift.until_over():
                await trio.sleep(2400)
                done.append(f"{wall():%H:%M}")
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await followed(shift, wall, 8)
        nursery.cancel_scope.cancel()
    assert done == ["07:40", "09:40"]


async def test_holds_stop_and_release_within_the_hours_only(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours("05:00-07:00"), wall)
    told: list[tuple[bool, str]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shift.run, lambda: told.append((shift.is_lent, shift.held)))
        await trio.testing.wait_all_tasks_blocked()
        with shift.until_over():
            shift.hold("owner", "paused")
            await trio.sleep_forever()
        shift.hold("owner", "paused")
        shift.hold("program", "blender runs")
        assert (shift.is_lent, shift.left_s) == (False, 0.0)
        shift.release("owner")
        shift.release("owner")
        shift.release("program")
        shift.hold("owner", "paused")
        await trio.sleep(7200)  # the hours end meanwhile, of which nothing is to be said
        shift.release("owner")
        nursery.cancel_scope.cancel()
    assert told == [
        (False, "paused"),
        (False, "paused, and blender runs"),
        (False, "blender runs"),
        (True, ""),
        (False, "paused"),
        (False, ""),
    ]


async def test_a_machine_that_is_held_back_from_the_start_is_told_so(autojump_clock: MockClock) -> None:
    shift, told = Availability(), list[bool]()
    shift.hold("owner", "paused")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shift.run, lambda: told.append(shift.is_lent))
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await shift.wait_off()
        shift.release("owner")
        with trio.fail_after(1):
            await shift.wait_on()
        nursery.cancel_scope.cancel()
    assert told == [False, True]


async def test_other_hours_hold_at_once_and_are_followed(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours(""), wall)

    def close() -> None:
        shift.change(parse_hours("07:00-07:30"))
        assert (shift.is_lent, shift.left_s, shift.turns_at) == (False, 0.0, "07:00")

    assert await followed(shift, wall, 4, close) == ["28 08:00:00 False 07:00"], "07:30 was before"
    wall = Wall()
    shift = Availability(parse_hours("10:00-11:00"), wall)
    told = await followed(shift, wall, 2, lambda: shift.change(parse_hours("06:00-07:30")))
    assert told == ["28 06:00:00 False 10:00", "28 07:00:00 True 07:30", "28 07:30:00 False 06:00"]


async def test_hours_that_are_given_to_a_machine_without_any_end_when_they_should(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours(""), wall)
    told = await followed(shift, wall, 4, lambda: shift.change(parse_hours("06:00-09:00")))
    assert told == ["28 09:00:00 False 06:00"], "while it stays lent, nothing is to be said"


async def test_who_is_outside_old_and_new_hours_hears_when_they_begin_now(autojump_clock: MockClock) -> None:
    wall = Wall()
    shift = Availability(parse_hours("20:00-21:00"), wall)
    told = await followed(shift, wall, 2, lambda: shift.change(parse_hours("22:00-23:00")))
    assert told == ["28 06:00:00 False 20:00", "28 07:00:00 False 22:00"]


async def test_other_hours_wake_who_waits_and_stop_who_works_but_end_no_hold(autojump_clock: MockClock) -> None:
    wall, told = Wall(), list[str]()
    shift = Availability(parse_hours("22:00-23:00"), wall)

    async def work() -> None:
        while True:
            await shift.wait_on()
            told.append("on")
            with shift.until_over():
                await trio.sleep_forever()
            told.append("off")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(shift.run, lambda: None)
        nursery.start_soon(work)
        for hours, expected in (("", ["on"]), ("22:00-23:00", ["on", "off"])):
            shift.change(parse_hours(hours))
            await trio.testing.wait_all_tasks_blocked()
            assert told == expected
        shift.hold("owner", "paused")
        shift.change(parse_hours(""))
        assert (shift.is_lent, shift.held) == (False, "paused")
        shift.release("owner")
        assert shift.is_lent
        nursery.cancel_scope.cancel()
