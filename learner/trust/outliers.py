"""Find peers whose rewards, lengths or log probabilities are unlike the swarm's: a reason for an audit.

Pure. This is never a verdict. A cheat may be paid better than sampling pays (greedy decoding, chosen completions),
write differently (cut short, stretched), or claim log probabilities that its version does not give. It is noticed here
after about twenty groups, even if it was honest for long. Between two audits of a trusted peer, nothing else looks at
it.

Invariants:

- Each group is compared with what the swarm delivered at about that time for the same task, and its log probabilities
  with those of the same lag. So a policy that learns makes no peer unusual.
- A peer that is far from the swarm's mean is audited and loses nothing by it.
- Memory is bounded by PEERS_REMEMBERED; the peer that was heard of longest ago goes first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

FAR = 5.0
"""Standard errors at which a peer is unusual. If looks were independent, none of a million at honest peers would be
further; in fact a look mostly repeats the ones before."""

MOST_OF_ONE = 2.0
"""Standard deviations that one group counts for at most. If nearly all groups are alike, the few others make no peer
unusual. A peer with absurd claims cannot hide in the deviation that they cause. A share p of all, at c deviations each,
makes it grow without end only if p (1 - p) c^2 > 1, which is never so."""

SWARM_GROUPS = 512
PEER_GROUPS = 32
"""Groups over which the values of the swarm, and of a peer, are averaged; the newest weigh most."""

LEAST_GROUPS = 64
"""Comparable groups of the swarm before any peer is compared with them. A peer must have delivered 8."""
LEAST_OF_A_PEER = 8

FIRST_WEIGHT = 8
"""The first groups later count as this many: their medians are rough, and are used only until there is more."""

NORMAL_OF_MEDIAN = 1.4826
"""Standard deviation of normal numbers over the median of their absolute deviations."""

PEERS_REMEMBERED = 4096

FORMATS_NATS = 0.02
"""Nats by which the log probabilities of honest engines differ on average because of their number formats alone."""

MAX_LAG = 64
"""Lags above this count as one: rollouts as old are not trained on."""


@dataclass(slots=True)
class _Average:
    """Mean of about the newest `groups` values, and the mean square of each value's difference from the mean before
    it."""

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
        """The standard error of the mean, in standard deviations of a group: for an average of n values, or for one
        whose weights fade like those of `groups`."""
        return math.sqrt(max(1 / max(1, self.number), 1 / self.groups))


@dataclass(slots=True)
class _Swarm:
    """The values of all deliveries. The first groups give a median and the deviation from it; otherwise an absurd first
    value would stay in the mean for long. From then on it is an average."""

    first: list[float] = field(default_factory=list)
    average: _Average = field(default_factory=lambda: _Average(SWARM_GROUPS))

    def observe(self, value: float, least: float) -> float | None:
        """Take in one more value. Return by how many deviations, which are at least `least`, it is above the others,
        limited to MOST_OF_ONE either way. Return None while little is known, or if all are equal."""
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
    """The recent averages of the swarm and of each peer."""

    _swarm: dict[str, _Swarm] = field(default_factory=dict)
    _peers: OrderedDict[str, dict[str, _Average]] = field(default_factory=OrderedDict)

    def delivered(self, peer: str, task: str, rewards: Sequence[float], tokens: Sequence[int]) -> None:
        """Record a group of the peer, with its known rewards and its tokens."""
        if tokens:
            self._see(peer, "length", f"length of {task}", fmean(math.log(max(1, one)) for one in tokens))
        if rewards:
            self._see(peer, "reward", f"reward of {task}", fmean(rewards))

    def trained(self, peer: str, lag: int, apart: float) -> None:
        """Record that the group's log probabilities were on average `apart` nats from those of the policy in training;
        the group was `lag` steps behind it."""
        self._see(peer, "mismatch", f"mismatch at lag {min(lag, MAX_LAG)}", max(apart, FORMATS_NATS), FORMATS_NATS)

    def describe(self, peer: str) -> str | None:
        """Return in which way the peer's recent groups are unusual; None if they are not."""
        found = (_far(name, apart) for name, apart in self._peers.get(peer, {}).items())
        return next((words for words in found if words is not None), None)

    def _see(self, peer: str, name: str, alike: str, value: float, least: float = 0.0) -> None:
        """Take in one more value. It is compared with those that are `alike`, in their standard deviations, which are
        at least `least`."""
        mine = self._peers.pop(peer, None) or {}
        self._peers[peer] = mine
        if len(self._peers) > PEERS_REMEMBERED:
            self._peers.popitem(last=False)
        apart = self._swarm.setdefault(alike, _Swarm()).observe(value, least)
        if apart is not None:
            mine.setdefault(name, _Average(PEER_GROUPS)).add(apart)


def _far(name: str, apart: _Average) -> str | None:
    """Return the deviation in words, if it is far. `apart` is in standard deviations of the swarm's groups."""
    errors = apart.mean / apart.error
    if apart.number < LEAST_OF_A_PEER or abs(errors) <= FAR or (name == "mismatch" and errors < 0):
        return None
    return f"{name} {apart.mean:+.1f} standard deviations from the swarm's groups, {abs(errors):.1f} standard errors"
