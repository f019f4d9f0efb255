"""Peers whose rewards or lengths are unlike the swarm's of the same days: a reason to look, never a verdict.

Pure. What always holds: each group is compared with what the swarm delivered about then, so that a policy that learns
makes nobody unusual; who is far from the swarm's mean, either way, is audited and loses nothing by it; memory is
bounded by PEERS_REMEMBERED, whoever was heard of least lately going first. A cheat that is better paid than sampling
pays (greedy decoding, chosen answers) or writes otherwise (cut short, drawn out) is seen here after some twenty groups,
also when it was honest for long; between two audits of a trusted peer nothing else looks.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

FAR = 5.0
"""Standard errors: of a million looks at honest peers not one is further, were they independent; half of them are as
good as the ones before."""

SWARM_GROUPS = 512
PEER_GROUPS = 32
"""Groups over which what the swarm delivers, and a peer, is averaged, the newest weighing most."""

LEAST_GROUPS = 64
"""Of the swarm, before anybody is compared with it; a peer has delivered 8 at least."""
LEAST_OF_A_PEER = 8

PEERS_REMEMBERED = 4096


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


@dataclass(kw_only=True)
class Unusual:
    """See the module's paragraph."""

    _swarm: dict[str, _Average] = field(default_factory=dict)
    _peers: OrderedDict[str, dict[str, _Average]] = field(default_factory=OrderedDict)

    def seen(self, peer: str, rewards: Sequence[float], tokens: Sequence[int]) -> str | None:
        """A group of the peer has come, with these rewards, as far as they are known, and of so many tokens; in which
        way its groups of late are unusual, None if they are not."""
        mine = self._peers.pop(peer, None) or {}
        self._peers[peer] = mine
        if len(self._peers) > PEERS_REMEMBERED:
            self._peers.popitem(last=False)
        figures = {"length": fmean(math.log(max(1, one)) for one in tokens)} if tokens else {}
        if rewards:
            figures["reward"] = fmean(rewards)
        told = None
        for name, value in figures.items():
            swarm = self._swarm.setdefault(name, _Average(SWARM_GROUPS))
            if swarm.number >= LEAST_GROUPS:
                apart = mine.setdefault(name, _Average(PEER_GROUPS))
                apart.add(value - swarm.mean)
                told = told or _far(name, apart, swarm)
            swarm.add(value)
        return told


def _far(name: str, apart: _Average, swarm: _Average) -> str | None:
    error = math.sqrt(swarm.square) * apart.error
    if apart.number < LEAST_OF_A_PEER or error == 0 or abs(apart.mean) <= FAR * error:
        return None
    words = f"{apart.mean:+.2f}" if name == "reward" else f"{100 * math.expm1(apart.mean):+.0f} %"
    return f"{name} {words} beside the swarm's, {abs(apart.mean) / error:.1f} standard errors"
