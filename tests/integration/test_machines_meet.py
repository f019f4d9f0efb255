"""Machines that train together, without real machines: each one's messages reach the others, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.training.distributed.machines.first_machine import First
from learner.training.distributed.machines.joining_machine import Other
from learner.training.distributed.machines.messages import (
    FIRST_TOLD_S,
    POLL_S,
    SETTLE_S,
    STALE_S,
    TIMEOUT_S,
    TOLD_AGAIN_S,
    Begin,
    ConnectionLost,
    Effect,
    End,
    Ended,
    EndRanks,
    Event,
    Finish,
    Place,
    Present,
    Read,
    State,
    Tell,
    Ticked,
    Told,
)

MEETING = "10.0.0.1:29500"


@dataclass(kw_only=True)
class World:
    """Machine 0 and the others, each with one launcher at first; ranks that are told to end do so a moment later."""

    machines: int
    ranks: int = 1
    now_s: float = 100.0
    others: dict[Place, Other] = field(default_factory=dict)
    effects: dict[int, list[Effect]] = field(default_factory=dict)
    silent: set[int] = field(default_factory=set)
    seats: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first = First(machines=self.machines, ranks=self.ranks, meeting=MEETING, began_s=self.now_s)

    def join(self, machine: int, *, machines: int | None = None, ranks: int | None = None) -> Place:
        seat = self.seats[machine] = self.seats.get(machine, 0) + 1
        place = Place(machine, seat)
        self.others[place] = Other(
            place=place,
            machines=machines or self.machines,
            ranks=ranks or self.ranks,
            meeting=MEETING,
            address=f"10.0.0.{machine + 1}",
            reaches="10.0.0.1",
            began_s=self.now_s,
        )
        return place

    def gathered(self) -> World:
        for machine in range(1, self.machines):
            self.join(machine)
        self.run(2.0)
        assert all(Begin() in self.effects[machine] for machine in range(1, self.machines))
        return self

    def run(self, seconds: float) -> None:
        """Let all machines send and receive their messages, every POLL_S."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += POLL_S
            heard = {place: other for place, other in self.others.items() if place.machine not in self.silent}
            present = {place: other.say(self.now_s) for place, other in heard.items()}
            newest = {Place(machine, seat) for machine, seat in self.seats.items()}
            present = {**getattr(self, "present", {}), **present}
            self.present = {place: said for place, said in present.items() if place in newest | {*self.first.places}}
            self.give(0, Ticked() if 0 in self.silent else Read(present=dict(self.present)))
            if 0 not in self.silent:
                self.word = self.first.say(self.now_s)
            for place in self.others:
                deaf = place.machine in self.silent or not hasattr(self, "word")
                self.give(place.machine, Ticked() if deaf else Told(word=self.word), place)

    def give(self, machine: int, event: Event, place: Place | None = None) -> None:
        core = self.first if machine == 0 else self.others[place or Place(machine, self.seats[machine])]
        found = core.handle(event, self.now_s)
        self.effects.setdefault(machine, []).extend(found)
        if EndRanks() in found and machine not in self.silent:
            self.give(machine, Ended(end=None), place)

    def end(self, machine: int, end: End | None) -> None:
        self.give(machine, Ended(end=end))

    def told(self, machine: int = 0) -> list[str]:
        return [effect.text for effect in self.effects.get(machine, []) if isinstance(effect, Tell)]

    def lines(self, machine: int) -> tuple[str, ...] | None:
        found = [effect.lines for effect in self.effects.get(machine, []) if isinstance(effect, Finish)]
        assert len(found) < 2
        return found[0] if found else None


KILLED = End(cause="rank 1 was killed by SIGKILL")
LOST = End(
    cause="rank 0 ended with exit code 1: RuntimeError: gloo", words=("rank 0: Connection closed",), lost_line=True
)


def test_all_begin_when_the_last_has_come_and_each_with_the_address_by_which_it_is_reached() -> None:
    world = World(machines=3)
    world.join(2)
    world.run(20.0)
    assert world.first.state is State.GATHERING
    world.join(1)
    world.run(1.0)
    assert Begin(reached=("10.0.0.1", "10.0.0.1")) in world.effects[0]
    assert Begin() in world.effects[1]
    assert Begin() in world.effects[2]


def test_who_has_not_come_is_told_again_and_again_with_what_to_type() -> None:
    world = World(machines=3, ranks=4)
    world.join(2, ranks=4)
    world.run(FIRST_TOLD_S - 1)
    assert world.told() == []
    world.run(1.0 + 2 * TOLD_AGAIN_S)
    assert [text.partition(" s for")[0] for text in world.told()] == [
        f"the trainer has waited {waited}" for waited in (10, 70, 130)
    ]
    assert world.told()[0].endswith(
        "for machine 1 of 3; machine 2 (10.0.0.3) came. Run there: "
        "python -m learner.training.distributed.launcher 4 3 1 10.0.0.1:29500"
    )
    assert world.told(2) == ["this machine is ready, and waits for the others of 3"] * 3


def test_several_that_have_not_come_are_all_named() -> None:
    world = World(machines=4)
    world.run(FIRST_TOLD_S)
    assert (
        "for machine 1, 2, 3 of 4. Run there: python -m learner.training.distributed.launcher 1 4 NUMBER"
        in world.told()[0]
    )


def test_a_machine_that_went_again_before_all_had_come_is_waited_for() -> None:
    world = World(machines=3)
    world.join(1)
    world.run(1.0)
    world.silent.add(1)
    world.run(STALE_S + 1)
    world.join(2)
    world.run(FIRST_TOLD_S)
    assert world.first.state is State.GATHERING
    assert "for machine 1 of 3; machine 2 (10.0.0.3) came" in world.told()[0]


def test_a_launcher_that_was_started_again_takes_the_place_of_the_one_before() -> None:
    world = World(machines=3)
    before = world.join(1)
    world.run(1.0)
    world.end(1, None)  # stopped by hand
    world.run(1.0)
    del world.others[before]
    world.join(1)
    world.join(2)
    world.run(1.0)
    assert Begin() in world.effects[1]
    assert world.first.state is State.TRAINING


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        ({"ranks": 2}, "it was started with 2 ranks and 3 machines, but [trainer] has ranks = 1 and machines = 3"),
        ({"machines": 2}, "it was started with 1 ranks and 2 machines"),
        ({}, "machine 1 (10.0.0.2) is here already. Give each machine its own number"),
    ],
)
def test_a_machine_that_cannot_take_part_is_told_why_and_so_is_the_first(terms: dict[str, int], why: str) -> None:
    world = World(machines=3)
    world.join(1)
    world.run(1.0)
    kept, wrong = Place(1, 1), world.join(1, **terms)
    world.run(1.0)
    assert world.others[wrong].state is State.OVER
    assert why in str(world.lines(1))
    assert why in world.told()[0]
    world.join(2)
    world.run(1.0)
    assert world.first.state is world.others[kept].state is State.TRAINING


def test_one_that_is_started_again_and_again_is_refused_each_time_and_told_of_once() -> None:
    world = World(machines=3)
    for _ in range(50):
        world.join(1, ranks=2)
        world.run(1.0)
    told = [text for text in world.told() if "may not take part" in text]
    assert len(told) == 1
    assert len(world.first.say(world.now_s).refused) == 1, "the list of refusals must not grow with each attempt"
    assert all(other.state is State.OVER for other in world.others.values())
    world.join(1)
    world.join(2)
    world.run(1.0)
    assert world.first.state is State.TRAINING


def test_of_two_that_come_at_once_under_one_number_one_takes_part() -> None:
    world = World(machines=2)
    one, other = world.join(1), world.join(1)
    world.run(1.0)
    assert world.others[other].state is State.TRAINING
    assert world.others[one].state is State.OVER


def test_one_that_comes_when_all_have_begun_does_not_begin() -> None:
    world = World(machines=2).gathered()
    late = world.join(1)
    world.run(1.0)
    assert world.others[late].state is State.OVER
    assert "training has begun with another machine 1" in str(world.lines(1))
    assert world.others[Place(1, 1)].state is State.TRAINING


@pytest.mark.parametrize("machine", [0, 1, 2])
def test_when_a_rank_ends_all_end_and_all_say_which_it_was(machine: int) -> None:
    world = World(machines=3, ranks=2).gathered()
    world.end(machine, KILLED)
    world.run(2 * SETTLE_S)
    called = f"machine {machine}" + (f" (10.0.0.{machine + 1})" if machine else "")
    told = (f"{called}: rank 1 was killed by SIGKILL. All 6 ranks of 3 machines were ended",)
    assert [world.lines(number) for number in range(3)] == [told] * 3
    for number in {0, 1, 2} - {machine}:
        assert world.effects[number].count(EndRanks()) == 1


@pytest.mark.parametrize("first_heard", [0, 1])
def test_a_rank_that_only_lost_another_one_is_not_what_is_told(first_heard: int) -> None:
    world = World(machines=2).gathered()
    if first_heard == 0:
        world.end(0, LOST)
        world.run(POLL_S)
        assert EndRanks() in world.effects[1] or world.first.state is State.ENDING
        world.others[Place(1, 1)]._stopped_s = None  # its rank was dead before it heard of the end
        world.effects[1].clear()
        world.end(1, End(cause=KILLED.cause, ago_s=2 * POLL_S))
    else:
        world.end(1, KILLED)
        world.end(0, LOST)
    world.run(2 * SETTLE_S)
    assert str(world.lines(0)).startswith("('machine 1 (10.0.0.2): rank 1 was killed by SIGKILL. All 2 ranks")


def test_a_line_that_broke_between_two_is_told_where_nothing_else_is_known() -> None:
    world = World(machines=2).gathered()
    world.end(0, LOST)
    world.run(2 * SETTLE_S)
    cause = "machine 0: rank 0 ended with exit code 1: RuntimeError: gloo. All 2 ranks of 2 machines were ended"
    assert world.lines(0) == world.lines(1) == (cause, "rank 0: Connection closed")


def test_a_machine_that_goes_without_a_word_is_named_and_ends_the_others() -> None:
    world = World(machines=3).gathered()
    world.silent.add(2)
    world.run(TIMEOUT_S - 2)
    assert world.first.state is State.TRAINING
    world.run(4 + SETTLE_S)
    told = (
        "machine 2 (10.0.0.3) has gone: nothing has been heard of it for 30 s. All 3 ranks of 3 machines were ended",
    )
    assert world.lines(0) == world.lines(1) == told


def test_that_a_machine_has_gone_is_seen_sooner_when_a_rank_lost_it() -> None:
    world = World(machines=2).gathered()
    world.silent.add(1)
    world.run(1.0)
    world.end(0, LOST)
    world.run(STALE_S + 1)
    assert str(world.lines(0)).startswith("('machine 1 (10.0.0.2) has gone: nothing has been heard of it for")


@pytest.mark.parametrize("how", ["silence", "broken"])
def test_when_the_first_goes_the_others_end_and_say_so(how: str) -> None:
    world = World(machines=2).gathered()
    if how == "silence":
        world.silent.add(0)
        world.run(TIMEOUT_S + 2)
    else:
        world.give(1, ConnectionLost(why="the connection to it ended"))
    why = "nothing has been heard of it for 30 s" if how == "silence" else "the connection to it ended"
    assert EndRanks() in world.effects[1]
    assert world.lines(1) == (f"machine 0 at 10.0.0.1:29500 has gone: {why}. All 1 ranks of this machine were ended",)


def test_one_that_waits_for_a_first_that_goes_says_so_and_ends() -> None:
    world = World(machines=3)
    world.join(1)
    world.run(1.0)
    world.give(1, ConnectionLost(why="the connection to it ended"))
    assert world.lines(1) == ("machine 0 at 10.0.0.1:29500 has gone: the connection to it ended",)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_when_all_end_well_nothing_is_told(order: tuple[int, ...]) -> None:
    world = World(machines=3).gathered()
    for machine in order:
        world.end(machine, None)
        world.run(POLL_S)
    world.run(1.0)
    assert [world.lines(machine) for machine in range(3)] == [()] * 3


def test_one_that_ended_well_does_not_mind_that_the_first_is_gone_already() -> None:
    world = World(machines=2).gathered()
    world.end(1, None)
    world.give(1, ConnectionLost(why="the connection to it ended"))
    assert world.lines(1) == ()


def test_a_launcher_that_is_stopped_while_it_waits_is_over_at_once() -> None:
    world = World(machines=2)
    world.run(1.0)
    world.end(0, None)
    assert world.lines(0) == ()


@given(
    machines=st.integers(2, 5),
    ends=st.lists(st.tuples(st.integers(0, 4), st.sampled_from([KILLED, LOST, None]), st.floats(0, 40)), max_size=6),
    gone=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 40)), max_size=3),
)
def test_whatever_ends_and_goes_it_is_over_once_for_all_that_are_left(
    machines: int, ends: list[tuple[int, End | None, float]], gone: list[tuple[int, float]]
) -> None:
    """All machines that are left finish once a rank ended with an error, or a machine has gone."""
    world = World(machines=machines).gathered()
    happens = [*((at_s, number, end, True) for number, end, at_s in ends)]
    happens += [(at_s, number, None, False) for number, at_s in gone]
    began_s, has_ended, troubled = world.now_s, set[int](), False
    for at_s, number, end, is_end in sorted(happens, key=lambda one: one[0]):
        if number >= machines:
            continue
        world.run(max(0.0, began_s + at_s - world.now_s))
        core = world.first if number == 0 else world.others[Place(number, 1)]
        if not is_end:
            world.silent.add(number)
            troubled = True
        elif number not in has_ended and number not in world.silent and not core._has_ended:
            has_ended.add(number)
            troubled |= end is not None
            world.end(number, end)
    world.run(2 * TIMEOUT_S + 3 * SETTLE_S)
    if troubled:
        left = set(range(machines)) - world.silent
        told = {number: world.lines(number) for number in left}
        assert all(lines is not None for lines in told.values())


def test_what_travels_is_small_json() -> None:
    import msgspec

    world = World(machines=2).gathered()
    assert len(msgspec.json.encode(world.first.say(0.0))) < 200
    said = msgspec.json.encode(world.others[Place(1, 1)].say(0.0))
    assert len(said) < 200
    assert msgspec.json.decode(said, type=Present).reaches == "10.0.0.1"
