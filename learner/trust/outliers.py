"""Peers whose rewards, lengths or log probabilities are unlike the swarm's of the same days: a reason to look, never a
verdict.

Pure. What always holds: each group is compared with what the swarm delivered about then of the same task, and its log
probabilities with those of the same lag, so that a policy that learns makes nobody unusual; who is far from the swarm's
mean is audited and loses nothing by it; memory is bounded by PEERS_REMEMBERED, whoever was heard of least lately going
first. A cheat that is better paid than sampling pays (greedy decoding, chosen answers), writes otherwise (cut short,
drawn out), or claims what its version does not say, is seen here after some twenty groups, also when it was honest for
long; between two audits of a trusted peer nothing else looks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

FAR = 5.0
"""Standard errors: of a million looks at honest peers not one is further, were they independent; half of them are as
good as the ones before."""

MOST_OF_ONE = 2.0
"""Standard deviations that one group counts for at most. Where nearly all are alike, the few others make nobody
unusual; and whoever makes absurd claims cannot hide in the deviation that they cause: p of all, at c deviations each,
make it grow without end if p (1 - p) c^2 > 1, which is never so."""

SWARM_GROUPS = 512
PEER_GROUPS = 32
"""Groups over which what the swarm delivers, and a peer, is averaged, the newest weighing most."""

LEAST_GROUPS = 64
"""Of the swarm that are alike, before anybody is compared with them; a peer has delivered 8 at least."""
LEAST_OF_A_PEER = 8

FIRST_WEIGHT = 8
"""As so many groups the first ones count later: their medians are rough, and hold only until there is more."""

NORMAL_OF_MEDIAN = 1.4826
"""Standard deviations in the median of what deviates, of normal numbers."""

PEERS_REMEMBERED = 4096

FORMATS_NATS = 0.02
"""By so many the log probabilities of honest engines differ, in the mean, for their number formats alone."""

MAX_LAG = 64
"""Beyond which lags are one: nobody trains on what is as old."""


@dataclass(slots=True)
class _Average:
    """Of the newest `groups` or so: mean, and mean square of what differs from the mean before it."""

    groups: int
    number: int = 0
    mean: float = 0.0
    square: float = 0.0

    def add(self, value: float) -> None:
        self.number += 1
        share = max(1 / self.number, 2 / (self.groups + 1))
        self.square += share * ((value - self.mean) ** 2 - self.square) if self.number > 1 else 0.0
        self.mean += share * (value - self.mean)

    @property
    def error(self) -> float:
        """The standard error of the mean, in standard deviations of a group: an average of n, or one whose weights
        fade like those of `groups`."""
        return math.sqrt(max(1 / max(1, self.number), 1 / self.groups))


@dataclass(slots=True)
class _Swarm:
    """What all deliver: of the first groups the median and what deviates from it, or who came first with something
    absurd would stay in the mean for long; from then on an average."""

    first: list[float] = field(default_factory=list)
    average: _Average = field(default_factory=lambda: _Average(SWARM_GROUPS))

    def heard(self, value: float, least: float) -> float | None:
        """One more value; how many deviations, which are `least` at least, it is above the others, MOST_OF_ONE at most
        either way. None while little is known, or all are equal."""
        known = self.average
        if known.number == 0:
            self.first.append(value)
            if len(self.first) == LEAST_GROUPS:
                middle = median(self.first)
                deviation = NORMAL_OF_MEDIAN * median(abs(one - middle) for one in self.first)
                self.average = _Average(SWARM_GROUPS, number=FIRST_WEIGHT, mean=middle, square=deviation**2)
                self.first = []
            return None
        deviation = max(math.sqrt(known.square), least)
        if deviation == 0:
            known.add(value)
            return None
        apart = max(-MOST_OF_ONE, min(MOST_OF_ONE, (value - known.mean) / deviation))
        known.add(known.mean + apart * deviation)
        return apart


@dataclass(kw_only=True)
class Unusual:
    """See the module's paragraph."""

    _swarm: dict[str, _Swarm] = field(default_factory=dict)
    _peers: OrderedDict[str, dict[str, _Average]] = field(default_factory=OrderedDict)

    def delivered(self, peer: str, task: str, rewards: Sequence[float], tokens: Sequence[int]) -> None:
        """A group of the peer has come, with these rewards, as far as they are known, and of so many tokens."""
        if tokens:
            self._see(peer, "length", f"length of {task}", fmean(math.log(max(1, one)) for one in tokens))
        if rewards:
            self._see(peer, "reward", f"reward of {task}", fmean(rewards))

    def trained(self, peer: str, lag: int, apart: float) -> None:
        """The group's log probabilities were so many nats `apart` from those of the policy in training, on average, of
        which it was `lag` steps behind."""
        self._see(peer, "mismatch", f"mismatch at lag {min(lag, MAX_LAG)}", max(apart, FORMATS_NATS), FORMATS_NATS)

    def told(self, peer: str) -> str | None:
        """In which way the peer's groups of late are unusual; None if they are not."""
        found = (_far(name, apart) for name, apart in self._peers.get(peer, {}).items())
        return next((words for words in found if words is not None), None)

    def _see(self, peer: str, name: str, alike: str, value: float, least: float = 0.0) -> None:
        """One more value, which is compared with those that are `alike`, in their standard deviations, which are
        `least` at least."""
        mine = self._peers.pop(peer, None) or {}
        self._peers[peer] = mine
        if len(self._peers) > PEERS_REMEMBERED:
            self._peers.popitem(last=False)
        apart = self._swarm.setdefault(alike, _Swarm()).heard(value, least)
        if apart is not None:
            mine.setdefault(name, _Average(PEER_GROUPS)).add(apart)


def _far(name: str, apart: _Average) -> str | None:
    """`apart`: in standard deviations of the swarm's groups."""
    errors = apart.mean / apart.error
    if apart.number < LEAST_OF_A_PEER or abs(errors) <= FAR or (name == "mismatch" and errors < 0):
        return None
    return f"{name} {apart.mean:+.1f} standard deviations beside the swarm's groups, {abs(errors):.1f} standard errors"
