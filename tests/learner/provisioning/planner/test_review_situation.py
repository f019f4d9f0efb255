"""A situation holds what was observed, and no more."""

from __future__ import annotations

import math

from learner.provisioning.estimation.recording import Joined
from learner.provisioning.planner.review import situation_of
from tests.support.observed_swarm import delivered, installed, joined, published, seen, stepped


def test_before_anything_was_seen() -> None:
    situation = situation_of(seen(*joined("ab", rate=0.5)), 7.0)
    assert (situation.now_s, situation.train_s, situation.broadcast_s, situation.publish_s) == (7.0, None, 0.0, 0.0)
    assert [(one.name, one.rate) for one in situation.candidates] == [("a", 0.5), ("b", 0.5)]
    assert situation.unproven == {"a", "b"}


def test_a_step_and_its_publication_are_told_apart() -> None:
    events = [stepped(10, 12.0, publish_s=2.0), stepped(30, 10.0), stepped(50, 12.0, publish_s=2.0)]
    situation = situation_of(seen(*joined("a"), *events), 50.0)
    assert (situation.train_s, situation.publish_s) == (10.0, 2.0)


def test_the_source_is_busy_no_longer_than_peers_show() -> None:
    events = [
        *joined("a"),
        *(event for n in range(4) for event in (published(2 * n, 20.0 * n), installed("a", 2 * n, 20.0 * n + 19))),
        stepped(90, 9.0),
    ]
    assert situation_of(seen(*events), 90.0).broadcast_s == 18.0


def test_who_delivered_in_vain_is_unproven() -> None:
    events = [*joined("ab"), delivered(10, 5.0, "a"), delivered(11, 5.0, "b", admitted=0, refused=8)]
    assert situation_of(seen(*events), 11.0).unproven == {"b"}


def test_who_is_outside_its_owners_hours_is_no_candidate_and_is_told_of() -> None:
    """Also when nothing was heard since they ended."""
    said = [
        Joined(at_s=10, peer=peer, rate=0.5, until_s=until_s)
        for peer, until_s in zip("abc", (60.0, 90.0, None), strict=True)
    ]
    situation = situation_of(seen(*said), 70.0)
    assert [(one.name, one.remaining_s) for one in situation.candidates] == [("b", 20.0), ("c", math.inf)]
    assert situation.resting == {"a"}
    again = Joined(at_s=80, peer="a", rate=0.5, until_s=3680.0)
    assert situation_of(seen(*said, again), 80.0).resting == frozenset()
    assert situation_of(seen(*said, again), 80.0).candidates[0].remaining_s == 3600.0
