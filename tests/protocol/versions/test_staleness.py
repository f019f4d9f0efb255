"""Lag and admissibility, against a literal learner: steps, crashes, and the weights that survive them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.errors import LocalProtocolError
from protocol.core.ids import PolicyVersion
from protocol.versions.staleness import Admissibility, Chain, bases_of, judge, lag_of
from tests.support.examples import examples


def at(incarnation: int, version: int) -> PolicyVersion:
    return PolicyVersion(incarnation, version)


@dataclass
class Life:
    """A learner as it happens: every training step makes weights that never existed before.

    `line[s]` are the weights after step s on the way to the present ones; `named` are those that each name got.
    """

    fresh: count[int] = field(default_factory=count)
    incarnation: int = 1
    line: list[int] = field(default_factory=list)
    named: dict[PolicyVersion, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.step()

    @property
    def head(self) -> PolicyVersion:
        return at(self.incarnation, len(self.line) - 1)

    def step(self) -> None:
        self.line.append(next(self.fresh))
        self.named[self.head] = self.line[-1]

    def crash(self, durable: int) -> None:
        """Go on from the weights after step `durable`, which were on disk."""
        self.line = self.line[: durable + 1]
        self.incarnation += 1
        self.named[self.head] = self.line[-1]

    def survives(self, version: PolicyVersion) -> bool:
        """Whether the weights once named `version` are among those that the present ones were trained from."""
        return version in self.named and self.named[version] in self.line

    def lag(self, version: PolicyVersion) -> int:
        return self.line.index(self.line[-1]) - self.line.index(self.named[version])


HISTORIES = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=40)
"""None is a training step; a number is a crash, resumed from that fraction of the surviving line."""


def live(history: list[float | None]) -> tuple[Life, Chain]:
    """The same history, lived literally and kept as a Chain."""
    life, chain = Life(), Chain(bases=(0,), head=at(1, 0))
    for event in history:
        if event is None:
            life.step()
            chain = chain.advance()
        else:
            durable = round(event * (len(life.line) - 1))
            life.crash(durable)
            chain = chain.restart(durable)
        assert chain.head == life.head
    return life, chain


@settings(max_examples=examples(400), deadline=None)
@given(HISTORIES)
def test_contains_exactly_the_weights_that_survived(history: list[float | None]) -> None:
    life, chain = live(history)
    names = {at(i, v) for i in range(life.incarnation + 2) for v in range(len(history) + 2)}
    assert {name for name in names if chain.contains(name)} == {name for name in names if life.survives(name)}


@settings(max_examples=examples(400), deadline=None)
@given(HISTORIES, st.integers(0, 12), st.data())
def test_judges_as_the_literal_history_does(history: list[float | None], window: int, data: st.DataObject) -> None:
    life, chain = live(history)
    names = st.builds(at, st.integers(0, life.incarnation + 1), st.integers(0, len(history) + 1))
    behaviour = data.draw(st.lists(st.one_of(st.sampled_from(sorted(life.named)), names), min_size=1, max_size=4))
    if any(name > life.head for name in behaviour):
        expected = Admissibility.FROM_THE_FUTURE
    elif not all(life.survives(name) for name in behaviour):
        expected = Admissibility.ORPHANED
    elif max(life.lag(name) for name in behaviour) > window:
        expected = Admissibility.STALE
    else:
        expected = Admissibility.ADMISSIBLE
    assert judge(chain, behaviour, window) is expected


@given(HISTORIES)
def test_a_name_never_means_two_sets_of_weights(history: list[float | None]) -> None:
    """Why incarnations exist: every step and every restart is named once."""
    life, steps = Life(), 1
    for event in history:
        life.step() if event is None else life.crash(round(event * (len(life.line) - 1)))
        steps += 1
    assert len(life.named) == steps


def test_one_crash() -> None:
    """1.0 .. 1.10 published, 1.7 durable: 1.8 to 1.10 are orphaned, 2.7 has the weights of 1.7."""
    chain = Chain(bases=(0,), head=at(1, 10)).restart(7)
    assert chain == Chain(bases=(0, 7), head=at(2, 7))
    assert [chain.contains(at(1, v)) for v in (6, 7, 8, 10)] == [True, True, False, False]
    assert [chain.contains(at(2, v)) for v in (6, 7, 8)] == [False, True, False]
    assert chain.advance().contains(at(2, 8))


def test_a_lower_base_orphans_earlier_incarnations_too() -> None:
    """2 went on from 1.7; its own versions were never durable, nor was 1.7 after all: 3 goes on from 1.5."""
    chain = Chain(bases=(0, 7), head=at(2, 12)).restart(5)
    for _ in range(4):
        chain = chain.advance()
    assert chain == Chain(bases=(0, 7, 5), head=at(3, 9))
    assert [chain.contains(at(1, v)) for v in (5, 6, 7)] == [True, False, False]
    assert not any(chain.contains(at(2, v)) for v in range(13))
    assert [chain.contains(at(3, v)) for v in (4, 5, 9, 10)] == [False, True, True, False]
    # A later crash above the low base does not bring the orphans back.
    assert not chain.restart(8).contains(at(1, 7))
    assert not chain.restart(8).contains(at(2, 8))


def test_lag_is_that_of_the_oldest_version() -> None:
    assert lag_of(at(1, 10), [at(1, 9), at(1, 7), at(1, 10)]) == 3
    chain = Chain(bases=(0,), head=at(1, 10))
    assert judge(chain, [at(1, 9), at(1, 7)], 3) is Admissibility.ADMISSIBLE
    assert judge(chain, [at(1, 9), at(1, 7)], 2) is Admissibility.STALE
    assert judge(chain, [at(1, 10)], 0) is Admissibility.ADMISSIBLE


def test_one_orphaned_span_spoils_the_record() -> None:
    chain = Chain(bases=(0, 7), head=at(2, 9))
    assert judge(chain, [at(1, 7), at(2, 8)], 5) is Admissibility.ADMISSIBLE
    assert judge(chain, [at(1, 8), at(2, 8)], 5) is Admissibility.ORPHANED


def test_a_higher_incarnation_is_the_future_whatever_its_step() -> None:
    assert at(2, 0) > at(1, 10**9)
    chain = Chain(bases=(0,), head=at(1, 50))
    assert judge(chain, [at(2, 3)], 5) is Admissibility.FROM_THE_FUTURE
    assert judge(chain.restart(), [at(1, 51)], 5) is Admissibility.ORPHANED


@pytest.mark.parametrize(
    ("bases", "head"),
    [
        ((), at(1, 0)),
        ((0,), at(2, 0)),
        ((0, 3), at(1, 5)),
        ((1,), at(1, 5)),
        ((0, 7), at(2, 6)),
        ((0, -1), at(2, 6)),
        ((), at(0, 0)),
    ],
)
def test_what_never_happened_cannot_be_written_down(bases: tuple[int, ...], head: PolicyVersion) -> None:
    with pytest.raises(LocalProtocolError):
        Chain(bases=bases, head=head)


@pytest.mark.parametrize("step", [-1, 11])
def test_only_a_step_of_the_chain_can_be_resumed_from(step: int) -> None:
    with pytest.raises(LocalProtocolError):
        Chain(bases=(0,), head=at(1, 10)).restart(step)


def test_incarnations_that_nobody_remembers_hold_no_version() -> None:
    bases = bases_of([(1, 0), (2, 10), (6, 12)])
    chain = Chain(bases=bases, head=PolicyVersion(6, 20))
    assert [bases[number - 1] for number in (1, 2, 6)] == [0, 10, 12]
    for number in (3, 4, 5):
        assert not any(chain.contains(PolicyVersion(number, version)) for version in range(40))
    assert chain.contains(PolicyVersion(1, 10))
    assert chain.contains(PolicyVersion(2, 12))
    assert not chain.contains(PolicyVersion(2, 13))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_bases_of_a_chain_without_gaps_are_those_it_was_told(bases: list[int]) -> None:
    bases[0] = 0
    assert bases_of(enumerate(bases, 1)) == tuple(bases)
