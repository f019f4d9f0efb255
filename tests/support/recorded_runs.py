"""Provide the recording of a swarm whose events are evenly spaced, so that all its times are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from learner.provisioning.estimation.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Published,
    Recorded,
    Stepped,
    encode_line,
)

STEP_S, TRAIN_S, WAIT_S = 12.0, 10.0, 2.0
BROADCAST_S, GENERATION_S = 3.0, 4.0
PEERS = {"peer-aaaaaa": 0.5, "peer-bbbbbb": 0.0}
ADMITTED = 16


def run(steps: int = 40, *, leave: bool = True, deliveries: bool = True) -> list[Recorded]:
    """Return a run of two peers, 16 rollouts each every step, in one lease; they leave when the run is over."""
    events: list[Recorded] = [
        Began(at_s=0, swarm="s", mode="async", rollouts=32, group_size=8, staleness=2, kappa=1, currency="EUR")
    ]
    events += [Joined(at_s=0, peer=peer, name=f"box {peer[-1]}", price=price) for peer, price in PEERS.items()]
    for step in range(steps):
        events += _step(step, deliveries=deliveries)
    if leave:
        events += [Left(at_s=steps * STEP_S + 1, peer=peer) for peer in PEERS]
    return events


def _step(step: int, *, deliveries: bool) -> Iterator[Recorded]:
    at_s = step * STEP_S
    yield Published(at_s=at_s, version=step)
    for peer in PEERS:
        yield Installed(at_s=at_s + BROADCAST_S, peer=peer, version=step)
    for peer in PEERS if deliveries else ():
        yield Delivered(
            at_s=at_s + BROADCAST_S + GENERATION_S,
            peer=peer,
            admitted=ADMITTED,
            tokens=100,
            version=step,
            leased_s=at_s,
            started_s=at_s + BROADCAST_S,
        )
    lags = {1: 24, 2: 8} if step else {0: 32}
    yield Stepped(at_s=at_s + STEP_S, step=step + 1, waited_s=WAIT_S, busy_s=TRAIN_S, rollouts=32, lags=lags, stale=1)


def write(path: Path, events: list[Recorded]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(map(encode_line, events)))
    return path
