"""A recorded run as a swarm to simulate: its peers as they were, coming and going when they did.

Pure. What always holds: of a run that was started several times, the start with most steps is replayed; what a peer was
is what it showed over all of that start, so whoever became slower is as slow as it was in the end. T_bcast as it was
measured contains the batch that a version waits for, and the installation: where a version must have been there when a
batch was delivered, what follows until it is in use is the installation; where a peer was idle longer than that, its
arrival shows; else half a batch is taken off, as far as the peer was busy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from learner.provisioning.observatory import Observatory, fit
from learner.provisioning.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Planned,
    Published,
    Recorded,
    Stepped,
)
from learner.provisioning.steps import Steps, steady, steps_of
from node.errors import UsageError
from node.plan.recordings import find_recording, read_events
from node.reports.words import NAME_CHARS, plain_name
from node.simulate.machines import Absence, Change, Machine
from node.simulate.outcome import NEVER_S, Learning
from node.simulate.rollout_node import SILENCE_S
from node.simulate.scenario import Swarm
from node.simulate.steering import Order
from protocol.ids import short

ENOUGH = 6
"""Deliveries of a peer from which on their spread says something."""

SPREAD = 0.1

IDLE_S = 0.5
"""Who had nothing to do for so long beyond an installation was waiting for the version."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """A swarm that was recorded in `source`, and what its steps, but for the first of its start, showed.

    `silent` peers neither delivered nor said how fast they are, and are left out."""

    source: str
    swarm: Swarm
    steps: Steps
    seconds: float
    silent: int


def read_replay(target: Path, command: Mapping[str, Any]) -> Replay:
    """The run that `target` names; `command` may say another T_train, R or price of the learner. Raises UsageError."""
    path, config = find_recording(target)
    events = _longest(read_events(path))
    if events is None:
        raise UsageError(f"{path} tells of no training step yet. Let the run take some, then replay it.")
    seen = fit(events)
    began = events[0]
    assert isinstance(began, Began)
    names = _names(events, seen)
    stepped, _ = steady(events)
    seconds = events[-1].at_s - began.at_s
    machines = tuple(_machines(events, seen, names, began))
    if not machines:
        raise UsageError(f"{path}: no peer delivered anything or said how fast it is, so there is nobody to simulate.")
    train_s, train_spread, publish_s = _training([event for event in events if isinstance(event, Stepped)])
    learning = Learning(
        rollouts=command.get("rollouts", began.rollouts),
        group_size=began.group_size,
        staleness=began.staleness,
        kappa=min(began.kappa, max(1, began.staleness)),
        broadcast_s=seen.source_s or 0.0,
        ahead=config.learn.ahead if config is not None else None,
        lease_s=config.learn.lease_s if config is not None else NEVER_S,
        price=command.get("learner_price", config.price.per_hour if config is not None else 0.0),
        train_s=command.get("train_s", train_s),
        train_spread=train_spread,
        publish_s=publish_s,
    )
    orders = tuple(
        Order(
            at_s=event.at_s - began.at_s,
            active=frozenset(names[peer] for peer in event.active if peer in names),
            kappa=min(event.kappa, max(1, began.staleness)),
        )
        for event in events
        if isinstance(event, Planned)
    )
    swarm = Swarm(
        learning=learning,
        machines=machines,
        kinds={one.name: one.name for one in machines},
        currency=began.currency,
        copy_s=learning.broadcast_s,
        seconds=max(seconds, 1.0),
        kappa=None if orders else learning.kappa,
        orders=orders,
        is_planned=bool(orders),
    )
    steps = steps_of(stepped)
    return Replay(source=str(path), swarm=swarm, steps=steps, seconds=seconds, silent=len(names) - len(machines))


def _longest(events: Sequence[Recorded]) -> list[Recorded] | None:
    """The start with most steps, up to the last of them."""
    starts: list[list[Recorded]] = []
    for event in events:
        if isinstance(event, Began):
            starts.append([])
        starts[-1].append(event)
    cut = [start[: last + 1] for start in starts if (last := _last_step(start)) is not None]
    return max(cut, key=lambda start: sum(isinstance(one, Stepped) for one in start), default=None)


def _last_step(events: Sequence[Recorded]) -> int | None:
    return max((number for number, event in enumerate(events) if isinstance(event, Stepped)), default=None)


def _names(events: Sequence[Recorded], seen: Observatory) -> dict[str, str]:
    """Peer ids as tables name them."""
    names: dict[str, str] = {}
    for event in events:
        if isinstance(event, Joined) and (event.peer not in names or event.name):
            called = plain_name(event.name, NAME_CHARS) or "peer"
            names[event.peer] = called if event.name == event.peer else f"{called} {short(event.peer)}"
    often = defaultdict(list)
    for peer, name in names.items():
        often[name].append(peer)
    return {peer: name if len(often[name]) == 1 else peer for peer, name in names.items()}


def _training(steps: Sequence[Stepped]) -> tuple[float, float, float]:
    """T_train without publication, its deviation over its mean, and what a publication took."""
    busy = [max(0.0, step.busy_s - step.publish_s) for step in steps]
    published = [step.publish_s for step in steps if step.publish_s > 0]
    mean = fmean(busy)
    spread = pstdev(busy) / mean if mean > 0 else 0.0
    return max(mean, 1e-3), spread, fmean(published) if published else 0.0


def _machines(
    events: Sequence[Recorded], seen: Observatory, names: Mapping[str, str], began: Began
) -> Iterator[Machine]:
    until_s = events[-1].at_s
    deliveries: defaultdict[str, list[Delivered]] = defaultdict(list)
    comings: defaultdict[str, list[Joined | Left]] = defaultdict(list)
    switched = _changes_of_version(events)
    shown = [install_s for peer in names if (install_s := _install_s(switched.get(peer, []))) is not None]
    usual_install_s = median(shown) if shown else 0.0
    for event in events:
        if isinstance(event, Delivered):
            deliveries[event.peer].append(event)
        elif isinstance(event, Joined | Left):
            comings[event.peer].append(event)
    profiles = {peer: profile for peer in names if (profile := seen.profile(peer)) is not None}
    delays = [one.broadcast_s.value for one in profiles.values() if one.broadcast_s is not None]
    usual_s = median(delays) if delays else 0.0
    spreads = [spread for peer in profiles if (spread := _spread(deliveries[peer])) is not None]
    for peer, profile in profiles.items():
        rate = profile.shown_rate.value if profile.shown_rate is not None else 0.0
        rate = rate or profile.claimed_rate
        if rate <= 0:
            continue
        held = profile.batch_rollouts
        batch = max(1, round(held.value)) if held is not None else began.group_size
        stays = list(_stays(comings[peer], began.at_s, until_s))
        present_s = sum(end - start for start, end in stays)
        made = sum(one.admitted for one in deliveries[peer])
        busy = min(1.0, made / rate / present_s) if present_s > 0 else 0.0
        measured_s = profile.broadcast_s.value if profile.broadcast_s is not None else usual_s
        own = switched.get(peer, [])
        install_s = _install_s(own)
        install_s = min(usual_install_s if install_s is None else install_s, measured_s)
        arrived_s = _arrived_s(own, install_s)
        broadcast_s = max(0.0, measured_s - install_s - busy * batch / rate / 2) if arrived_s is None else arrived_s
        start_s = profile.start_s.value if profile.start_s is not None else 0.0
        yield Machine(
            name=names[peer],
            rate=rate,
            batch_rollouts=batch,
            spread=median(spreads) if spreads else SPREAD,
            broadcast_s=broadcast_s,
            install_s=install_s,
            price=_first_price(comings[peer]),
            claimed_rate=profile.claimed_rate,
            start_s=max(0.0, start_s - broadcast_s - install_s),
            absences=tuple(_absences(stays, until_s - began.at_s)),
            changes=tuple(_changes(comings[peer], began.at_s)),
        )


@dataclass(frozen=True, kw_only=True)
class _Change:
    """A version came into service `after_s` its publication, `idle_s` after the last delivery."""

    after_s: float
    idle_s: float


def _changes_of_version(events: Sequence[Recorded]) -> dict[str, list[_Change]]:
    published: dict[int, float] = {}
    delivered: dict[str, float] = {}
    installed: dict[str, float] = {}
    found: defaultdict[str, list[_Change]] = defaultdict(list)
    for event in events:
        match event:
            case Published():
                published[event.version] = event.at_s
            case Delivered():
                if event.started_s < installed.get(event.peer, -math.inf) and found[event.peer]:
                    # It was busy with this until it changed versions; the delivery took a moment longer to come.
                    found[event.peer][-1] = replace(found[event.peer][-1], idle_s=0.0)
                delivered[event.peer] = event.at_s
            case Installed() if event.peer in delivered and event.version in published:
                installed[event.peer] = event.at_s
                idle_s = event.at_s - delivered.pop(event.peer)
                found[event.peer].append(_Change(after_s=event.at_s - published[event.version], idle_s=idle_s))
            case _:
                pass
    return found


def _install_s(changes: Sequence[_Change]) -> float | None:
    """What installing takes, if that shows."""
    if len(changes) < ENOUGH:
        return None
    usual_s = median(one.after_s for one in changes)
    waited = [one.idle_s for one in changes if one.after_s - one.idle_s >= usual_s]
    return median(waited) if waited else None


def _arrived_s(changes: Sequence[_Change], install_s: float) -> float | None:
    """How long versions take to arrive, if that shows."""
    idle = [one.after_s - install_s for one in changes if one.idle_s > install_s + IDLE_S]
    return max(0.0, median(idle)) if len(idle) >= ENOUGH else None


def _spread(deliveries: Sequence[Delivered]) -> float | None:
    """Deviation over mean of what a rollout took."""
    if len(deliveries) < ENOUGH:
        return None
    took = [one.at_s - one.started_s for one in deliveries]
    mean = fmean(took)
    return min(1.0, pstdev(took) / mean) if mean > 0 else None


def _stays(events: Sequence[Joined | Left], began_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """From when until when it was here, from the beginning on."""
    since_s: float | None = None
    for event in events:
        at_s = event.at_s - began_s
        match event:
            case Joined():
                since_s = at_s if since_s is None else since_s
            case Left() if since_s is not None:
                went_s = at_s - SILENCE_S if event.reason == "silent" else at_s
                yield since_s, max(since_s, went_s)
                since_s = None
            case _:
                pass
    if since_s is not None:
        yield since_s, until_s - began_s


def _absences(stays: Sequence[tuple[float, float]], end_s: float) -> Iterator[Absence]:
    gone_s = 0.0
    for start_s, until_s in stays:
        if start_s > gone_s:
            yield Absence(from_s=gone_s, until_s=start_s)
        gone_s = until_s
    if gone_s < end_s:
        yield Absence(from_s=gone_s, until_s=math.inf)


def _first_price(events: Sequence[Joined | Left]) -> float:
    return next((event.price for event in events if isinstance(event, Joined)), 0.0)


def _changes(events: Sequence[Joined | Left], began_s: float) -> Iterator[Change]:
    price = _first_price(events)
    for event in events:
        if isinstance(event, Joined) and event.price != price:
            price = event.price
            yield Change(at_s=event.at_s - began_s, price=price)
