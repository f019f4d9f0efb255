"""Test the life of a mapping: a list of events, and the actions after each."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from swarm.libp2p.port_mapping.lease import (
    FIRST_RETRY_S,
    MAX_LIFETIME_S,
    MAX_PORTS_TRIED,
    MAX_RETRY_S,
    MIN_LIFETIME_S,
    MIN_PAUSE_S,
    RECOVERY_S,
    Ask,
    Effect,
    End,
    Event,
    Failed,
    Forgot,
    LookAgain,
    Lost,
    Mapped,
    MappingLease,
    Moved,
    ReleaseMapping,
    Standing,
    Tick,
)
from swarm.libp2p.port_mapping.outcomes import Granted, NoAnswer, Refused
from swarm.libp2p.sockets.addresses import Address

OUTSIDE = Address(kind="ip4", host="30.77.0.1", port=4001)
GRANTED = Granted(external=OUTSIDE, lifetime_s=1200.0)


def asked() -> MappingLease:
    lease = MappingLease(internal_port=4001, rng=random.Random(7))
    assert lease.handle(Tick(), 0.0) == [Ask(external_port=4001, renews=False)]
    return lease


def granted() -> MappingLease:
    lease = asked()
    assert lease.handle(GRANTED, 0.0) == [Mapped(external=OUTSIDE, until_s=1200.0, is_news=True)]
    return lease


def test_it_is_renewed_at_half_its_life() -> None:
    lease = granted()
    assert lease.next_s() == 600.0
    assert lease.handle(Tick(), 599.0) == []
    assert lease.handle(Tick(), 600.0) == [Ask(external_port=4001, renews=True)]
    assert lease.handle(GRANTED, 600.5) == [Mapped(external=OUTSIDE, until_s=1800.5, is_news=False)]


def test_what_the_gateway_gave_is_what_is_renewed() -> None:
    lease = asked()
    other = Granted(external=Address(kind="ip4", host="30.77.0.1", port=20000), lifetime_s=100.0)
    lease.handle(other, 0.0)
    assert lease.handle(Tick(), 50.0) == [Ask(external_port=20000, renews=True)]


def test_a_silent_gateway_is_asked_again_until_the_mapping_is_over() -> None:
    lease, now, asks = granted(), 0.0, 0
    while lease.external is not None:
        now = lease.next_s()
        effects = lease.handle(Tick(), now)
        if effects[-1:] == [Ask(external_port=4001, renews=True)]:
            asks += 1
            effects = lease.handle(NoAnswer(why="silence"), now)
    assert now == 1200.0
    assert 5 <= asks <= 10
    assert lease.standing in (Standing.WAITING, Standing.ASKED)


def test_a_gateway_that_was_told_of_a_change_and_is_silent_has_lost_it() -> None:
    lease = granted()
    assert lease.handle(LookAgain(), 10.0) == [Ask(external_port=4001, renews=True)]
    assert lease.handle(NoAnswer(why="silence"), 13.75) == [Lost(why="silence")]
    assert lease.next_s() <= 14.0


def test_looking_again_waits_for_the_least_pause() -> None:
    lease = granted()
    assert lease.handle(LookAgain(), 1.0) == []
    assert lease.next_s() == MIN_PAUSE_S
    assert lease.handle(Tick(), MIN_PAUSE_S) == [Ask(external_port=4001, renews=True)]


def test_what_was_forgotten_is_asked_for_again_soon() -> None:
    lease = granted()
    assert lease.handle(Forgot(why="restarted"), 100.0) == [Lost(why="restarted")]
    assert 100.0 <= lease.next_s() <= 100.0 + RECOVERY_S
    assert lease.handle(Tick(), lease.next_s()) == [Ask(external_port=4001, renews=False)]


def test_refusals_are_asked_about_ever_more_seldom() -> None:
    lease, now, pauses = asked(), 0.0, []
    for _ in range(10):
        effects = lease.handle(Refused(why="not allowed"), now)
        pauses.append(lease.next_s() - now)
        assert effects == [Failed(why="not allowed", again_s=pauses[-1])]
        now = lease.next_s()
        lease.handle(Tick(), now)
    assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert pauses[-1] == MAX_RETRY_S


def test_looking_again_ends_a_long_pause() -> None:
    lease = asked()
    lease.handle(Refused(why="not allowed", wait_s=1000.0), 0.0)
    assert lease.next_s() == 1000.0
    assert lease.handle(LookAgain(), 60.0) == [Ask(external_port=4001, renews=False)]


def test_taken_ports_are_passed_over() -> None:
    lease, ports = asked(), [4001]
    effects: list[Effect] = []
    while not effects or isinstance(effects[-1], Ask):
        effects = lease.handle(Refused(why="taken", is_conflict=True), 0.0)
        ports += [one.external_port for one in effects if isinstance(one, Ask)]
    assert len(ports) == len(set(ports)) == MAX_PORTS_TRIED
    assert effects == [Failed(why="taken", again_s=FIRST_RETRY_S)]


def test_an_address_that_changed_is_news() -> None:
    lease = granted()
    moved = Address(kind="ip4", host="30.77.0.9", port=4001)
    assert lease.handle(Moved(host="30.77.0.9"), 1.0) == [Mapped(external=moved, until_s=1200.0, is_news=True)]
    assert lease.handle(Moved(host="30.77.0.9"), 2.0) == []


@pytest.mark.parametrize("renewing", [False, True])
def test_the_end_gives_it_back(renewing: bool) -> None:
    lease = granted()
    if renewing:
        lease.handle(Tick(), 600.0)
    effects = lease.handle(End(), 601.0)
    assert [type(one) for one in effects] == [Lost, ReleaseMapping]
    assert lease.handle(Tick(), 10_000.0) == []
    assert lease.next_s() == math.inf


def test_what_was_asked_for_may_exist() -> None:
    assert asked().handle(End(), 1.0) == [ReleaseMapping()]


def test_nothing_is_given_back_that_was_refused() -> None:
    lease = asked()
    lease.handle(Refused(why="not allowed"), 0.0)
    assert lease.handle(End(), 1.0) == []


@given(st.integers(0, int(MIN_LIFETIME_S) - 1))
def test_a_grant_too_short_to_renew_is_a_refusal(lifetime_s: int) -> None:
    effects = asked().handle(Granted(external=OUTSIDE, lifetime_s=lifetime_s), 0.0)
    assert effects == [Failed(why=f"the router grants it for {lifetime_s} s only", again_s=FIRST_RETRY_S)]


@given(st.integers(int(MIN_LIFETIME_S), (1 << 32) - 1))
def test_no_lifetime_is_believed_beyond_a_day(lifetime_s: int) -> None:
    lease = asked()
    lease.handle(Granted(external=OUTSIDE, lifetime_s=lifetime_s), 0.0)
    assert lease.until_s == min(lifetime_s, MAX_LIFETIME_S)
    assert lease.next_s() <= lease.until_s


class AnyGateway(RuleBasedStateMachine):
    """A gateway that answers as it likes, at any time, on a clock that may go back."""

    def __init__(self) -> None:
        super().__init__()
        self.lease = MappingLease(internal_port=4001, rng=random.Random(1))
        self.now, self.latest = 0.0, -math.inf
        self.open = False
        self.told: Address | None = None
        self.asks: list[float] = []
        self.conflicts = 0
        self.ended = False

    def event(self, event: Event) -> None:
        self.latest = max(self.latest, self.now)
        if isinstance(event, Granted | Refused | NoAnswer):
            self.open = False
        effects = self.lease.handle(event, self.now)
        if self.ended:
            assert effects == []
        assert all(not isinstance(one, Ask) for one in effects[:-1])
        for effect in effects:
            match effect:
                case Ask():
                    assert not self.open
                    self.open = True
                    follows_conflict = isinstance(event, Refused) and event.is_conflict
                    self.conflicts = self.conflicts + 1 if follows_conflict else 0
                    assert self.conflicts < MAX_PORTS_TRIED
                    if self.asks and not follows_conflict:
                        assert self.latest >= self.asks[-1] + MIN_PAUSE_S - 1e-6
                    self.asks.append(self.latest)
                case Mapped(external=external, until_s=until_s):
                    assert until_s > self.latest
                    self.told = external
                case Lost():
                    assert self.told is not None
                    self.told = None
                case _:
                    pass

    @rule(pause=st.floats(-100.0, 2000.0))
    def passes(self, pause: float) -> None:
        self.now += pause
        self.event(Tick())

    @rule()
    def comes_due(self) -> None:
        if (due := self.lease.next_s()) < math.inf:
            self.now = max(self.now, due)
            self.event(Tick())

    @precondition(lambda self: self.open)
    @rule(port=st.integers(1, 65535), lifetime_s=st.integers(0, 1 << 32))
    def grants(self, port: int, lifetime_s: int) -> None:
        self.event(Granted(external=Address(kind="ip4", host="30.77.0.1", port=port), lifetime_s=lifetime_s))

    @precondition(lambda self: self.open)
    @rule(is_conflict=st.booleans(), wait_s=st.floats(0.0, 1e9))
    def refuses(self, is_conflict: bool, wait_s: float) -> None:
        self.event(Refused(why="no", is_conflict=is_conflict, wait_s=wait_s))

    @precondition(lambda self: self.open)
    @rule()
    def is_silent(self) -> None:
        self.event(NoAnswer(why="silence"))

    @rule()
    def forgets(self) -> None:
        self.event(Forgot(why="restarted"))

    @rule(host=st.sampled_from(["30.77.0.1", "30.77.0.2"]))
    def moves(self, host: str) -> None:
        self.event(Moved(host=host))

    @rule()
    def looks_again(self) -> None:
        self.event(LookAgain())

    @precondition(lambda self: len(self.asks) > 3)
    @rule()
    def ends(self) -> None:
        self.event(End())
        self.ended, self.open = True, False

    @invariant()
    def what_is_told_is_what_is_held(self) -> None:
        assert self.told == self.lease.external

    @invariant()
    def something_happens_next(self) -> None:
        if not self.ended and not self.open:
            assert self.lease.next_s() < math.inf


TestAnyGateway = AnyGateway.TestCase
