"""Provide events for the tests of the code that uses them."""

from __future__ import annotations

from collections.abc import Iterable

from learner.provisioning.estimation.estimator import SwarmEstimator, fit
from learner.provisioning.estimation.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Published,
    Recorded,
    Stepped,
)
from learner.provisioning.model.windows import Timings

BEGAN = Began(at_s=0, swarm="s", mode="async", rollouts=64, group_size=8, staleness=3, kappa=2, currency="USD")


def seen(*events: Recorded, began: Began = BEGAN) -> SwarmEstimator:
    """Return an estimator that saw a run with these events."""
    return fit([began, *events])


def joined(peers: Iterable[str], at_s: float = 0, rate: float = 0.0) -> list[Recorded]:
    return [Joined(at_s=at_s, peer=peer, rate=rate) for peer in peers]


def left(peer: str, at_s: float) -> Left:
    return Left(at_s=at_s, peer=peer)


def published(version: int, at_s: float) -> Published:
    return Published(at_s=at_s, version=version)


def installed(peer: str, version: int, at_s: float) -> Installed:
    return Installed(at_s=at_s, peer=peer, version=version)


def stepped(at_s: float, busy_s: float, publish_s: float = 0.0) -> Stepped:
    return Stepped(at_s=at_s, step=1, waited_s=0, busy_s=busy_s, publish_s=publish_s, rollouts=64, lags={1: 64})


def delivered(
    at_s: float, took_s: float, peer: str = "a", admitted: int = 8, refused: int = 0, held_s: float | None = None
) -> Delivered:
    return Delivered(
        at_s=at_s,
        peer=peer,
        admitted=admitted,
        refused=refused,
        tokens=100 * admitted,
        version=0,
        leased_s=at_s - (took_s if held_s is None else held_s),
        started_s=at_s - took_s,
    )


def batches(peer: str, count: int, *, took_s: float, every_s: float, leases: int = 2) -> list[Recorded]:
    """Return so many batches of so many leases, each begun `every_s` after the one before."""
    return [delivered(every_s * batch + took_s, took_s, peer) for batch in range(count) for _ in range(leases)]


def timings(
    swarm: SwarmEstimator, *, train_s: float = 0.0, broadcast_s: float | None = None, generation_s: float | None = None
) -> Timings | None:
    """Return the measured values, with substitutes for missing ones; None while something is missing."""
    train = swarm.train_s.value if swarm.train_s else train_s
    broadcast = swarm.broadcast_s.value if swarm.broadcast_s else broadcast_s
    generation = swarm.generation_s.value if swarm.generation_s else generation_s
    if swarm.terms is None or not train or broadcast is None or generation is None:
        return None
    return Timings(train_s=train, rollouts=swarm.terms.rollouts, broadcast_s=broadcast, generation_s=generation)
