"""Turn the peers of a recorded run into the machines of a simulation.

Pure. A machine has the averages that its peer showed over the whole run, like T_train, which is the average of all
steps. So a peer that became slower is simulated with its mean speed from the beginning.

A measured T_bcast contains the wait for the batch under way, and the installation. It is divided in this way:

- If a version must have arrived before a batch was delivered, the time from there until it is used is the installation.
- If a peer was idle for longer than that, the version's arrival shows.
- Otherwise half a batch is subtracted, as far as the peer was busy.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, pstdev

from learner.provisioning.estimation.estimates import RecentRatio
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.peer_profile import Profile
from learner.provisioning.estimation.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Published,
    Recorded,
    Withdrawn,
)
from learner.simulation.machines import Absence, Change, Machine
from learner.simulation.rollout_node import TIMEOUT_S

ENOUGH = 6
"""Deliveries of a peer from which on their spread is meaningful."""

SPREAD = 0.1

IDLE_S = 0.5
"""Seconds beyond an installation after which an idle peer counts as waiting for the version."""


def machines_of(
    events: Sequence[Recorded], seen: SwarmEstimator, names: Mapping[str, str], *, unseen_s: float = 0.0
) -> Iterator[Machine]:
    """Yield the machines of one start, whose events begin with `Began`.

    Args:
        names: the name of each peer. Those that neither delivered nor reported their speed are left out.
        unseen_s: T_bcast if no peer showed any.
    """
    profiles = {peer: profile for peer in names if (profile := seen.profile(peer)) is not None}
    past = _Past(events, profiles, unseen_s)
    for peer, profile in profiles.items():
        if (rate := past.rate(profile)) > 0:
            yield _machine(past, peer, profile, names[peer], rate)


class _Past:
    """A run, by peer. `usual_` values are medians, for peers that showed no value of their own."""

    def __init__(self, events: Sequence[Recorded], profiles: Mapping[str, Profile], unseen_s: float) -> None:
        began = events[0]
        assert isinstance(began, Began)
        self.began, self.until_s = began, events[-1].at_s
        self.deliveries: defaultdict[str, list[Delivered]] = defaultdict(list)
        self.comings: defaultdict[str, list[Joined | Left]] = defaultdict(list)
        self._over_all: dict[str, Profile] = {}

        def over_all(peer: str) -> Profile:
            return self._over_all.setdefault(peer, Profile(peer, _rates=RecentRatio(window=len(events))))

        for event in events:
            if isinstance(event, Delivered):
                self.deliveries[event.peer].append(event)
                over_all(event.peer).delivered(event)
            elif isinstance(event, Withdrawn) and event.status in ("expired", "recalled"):
                over_all(event.peer).expired(event.rollouts)
            elif isinstance(event, Joined | Left):
                self.comings[event.peer].append(event)
        self.switched = _changes_of_version(events)
        installs = [took for peer in profiles if (took := _install_s(self.switched.get(peer, []))) is not None]
        delays = [one.broadcast_s.value for one in profiles.values() if one.broadcast_s is not None]
        spreads = [spread for peer in profiles if (spread := _spread(self.deliveries[peer])) is not None]
        self.usual_install_s = median(installs) if installs else 0.0
        self.usual_s = median(delays) if delays else unseen_s
        self.is_delay_known = bool(delays)
        self.spread = median(spreads) if spreads else SPREAD

    def rate(self, profile: Profile) -> float:
        """Return rollouts per busy second over the whole run; the peer's promised rate if it delivered nothing."""
        over_all = self._over_all.get(profile.peer)
        shown = over_all.shown_rate if over_all is not None else None
        return (shown.value if shown is not None else 0.0) or profile.claimed_rate


def _machine(past: _Past, peer: str, profile: Profile, name: str, rate: float) -> Machine:
    began, comings = past.began, past.comings[peer]
    held = profile.batch_rollouts
    batch = max(1, round(held.value)) if held is not None else began.group_size
    presences = list(_presences(comings, began.at_s, past.until_s))
    present_s = sum(end - start for start, end in presences)
    made = sum(one.admitted for one in past.deliveries[peer])
    busy = min(1.0, made / rate / present_s) if present_s > 0 else 0.0
    measured_s = profile.broadcast_s.value if profile.broadcast_s is not None else past.usual_s
    own = past.switched.get(peer, [])
    install_s = _install_s(own)
    install_s = min(past.usual_install_s if install_s is None else install_s, measured_s)
    arrived_s = _arrived_s(own, install_s)
    if arrived_s is None:
        awaited_s = busy * batch / rate / 2 if past.is_delay_known else 0.0
        arrived_s = max(0.0, measured_s - install_s - awaited_s)
    start_s = profile.start_s.value if profile.start_s is not None else 0.0
    return Machine(
        name=name,
        rate=rate,
        batch_rollouts=batch,
        spread=past.spread,
        broadcast_s=arrived_s,
        install_s=install_s,
        price=_first_price(comings),
        claimed_rate=profile.claimed_rate,
        start_s=max(0.0, start_s - arrived_s - install_s),
        absences=tuple(_absences(presences, past.until_s - began.at_s)),
        changes=tuple(_changes(comings, began.at_s)),
    )


@dataclass(frozen=True, kw_only=True)
class _Change:
    """A version came into use `after_s` seconds after its publication, and `idle_s` after the last delivery."""

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
                    # It was busy with this until it changed versions; the delivery arrived a moment later.
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
    """Return the seconds of an installation, None if the run does not show it."""
    if len(changes) < ENOUGH:
        return None
    usual_s = median(one.after_s for one in changes)
    waited = [one.idle_s for one in changes if one.after_s - one.idle_s >= usual_s]
    return median(waited) if waited else None


def _arrived_s(changes: Sequence[_Change], install_s: float) -> float | None:
    """Return the seconds until versions arrive, None if the run does not show it."""
    idle = [one.after_s - install_s for one in changes if one.idle_s > install_s + IDLE_S]
    return max(0.0, median(idle)) if len(idle) >= ENOUGH else None


def _spread(deliveries: Sequence[Delivered]) -> float | None:
    """Return standard deviation over mean of the seconds of a delivery; None for too few deliveries."""
    if len(deliveries) < ENOUGH:
        return None
    took = [one.at_s - one.started_s for one in deliveries]
    mean = fmean(took)
    return min(1.0, pstdev(took) / mean) if mean > 0 else None


def _presences(events: Sequence[Joined | Left], began_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield the times in which it was connected within its owner's hours, in seconds from the beginning."""
    since_s: float | None = None
    lent_s = math.inf
    for event in [*events, None]:
        at_s = (until_s if event is None else event.at_s) - began_s
        if since_s is not None and lent_s < at_s:
            yield since_s, max(since_s, lent_s)
            since_s = None
        match event:
            case Joined():
                lent_s = math.inf if event.until_s is None else event.until_s - began_s
                if since_s is None and lent_s > at_s:
                    since_s = at_s
            case Left() if since_s is not None:
                went_s = at_s - TIMEOUT_S if event.reason == "silent" else at_s
                yield since_s, max(since_s, went_s)
                since_s = None
            case _:
                pass
    if since_s is not None:
        yield since_s, until_s - began_s


def _absences(presences: Sequence[tuple[float, float]], end_s: float) -> Iterator[Absence]:
    gone_s = 0.0
    for start_s, until_s in presences:
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
