"""Keep what rollout nodes report that they cannot do, and summarise it in one sentence.

A pure core of the learner. A node and a report use its words for a trouble as well. Each report is a claim of its peer:
it is shown, stored and logged, and decides nothing. Nodes that are too old to report troubles are noticed by the leases
that they return (`learner.scheduling.lease_backoff`), with the reason that came with them.

Invariants:

- Each peer has at most one trouble of each kind; no more than MOST_PEERS peers are remembered.
- Text from a peer has become one harmless line before any other code sees it.
- For one peer and kind, there is news at most once in NEWS_EVERY_S, however often it changes.
- A trouble with a version counts only while that version is the newest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from learner.ledger.rows import TroubleRow
from protocol.core.ids import PeerId, PolicyVersion
from protocol.core.visible import one_line
from protocol.trouble import MAX_TROUBLE_CHARS, Trouble, TroubleKind

MOST_PEERS = 1024
"""Peers whose troubles are remembered, including peers that have left: one that gave up says why, and goes."""

NEWS_EVERY_S = 30.0
"""Least seconds between two news of one peer and kind. A peer may change what it says with every heartbeat, and the log
and the ledger must not grow with that."""

SEVERAL = 2
"""Failures in a row before a trouble counts, unless it is about installing a version: one batch may have a prompt that
no engine accepts, and one connection may have failed."""

GROUPS_TOLD = 2
"""Different troubles named in one sentence: the two that most nodes have."""

ORDER = (TroubleKind.FETCH, TroubleKind.INSTALL, TroubleKind.ENGINE, TroubleKind.LEASE, TroubleKind.OTHER)
"""Which of several troubles of one node is named: the first in this order, since without a version there is no
lease."""


OF_A_VERSION = frozenset({TroubleKind.FETCH, TroubleKind.INSTALL})
"""Troubles with one version, while the engine may still use another."""


@dataclass(frozen=True, kw_only=True)
class Unable:
    """`nodes` of `of` nodes cannot work with the newest version; `idle` of these can work with no other version either.
    `text` says what they cannot do and why, "" if all can work."""

    text: str = ""
    nodes: int = 0
    of: int = 0
    idle: int = 0

    @property
    def is_everyone(self) -> bool:
        """Return whether no node can work."""
        return 0 < self.idle == self.of


@dataclass(kw_only=True)
class _Said:
    """The reports of one peer.

    `troubles` has the time of each first report (ms). `gave_back` is the reason for its last returned leases. `news_s`
    is the time of the last news of each kind (s). `written` has the rows that are in the ledger.
    """

    troubles: dict[TroubleKind, tuple[Trouble, int]] = field(default_factory=dict)
    gave_back: str = ""
    news_s: dict[TroubleKind, float] = field(default_factory=dict)
    written: dict[TroubleKind, TroubleRow] = field(default_factory=dict)


@dataclass(kw_only=True)
class Troubles:
    """The troubles of all rollout nodes. `now_s` is of any steady clock, `now_ms` of the learner's."""

    _peers: dict[PeerId, _Said] = field(default_factory=dict)
    _unwritten: dict[tuple[PeerId, TroubleKind], TroubleRow] = field(default_factory=dict)

    def record(
        self, peer: PeerId, troubles: Sequence[Trouble], *, now_s: float, now_ms: int, present: Collection[PeerId] = ()
    ) -> list[Trouble]:
        """Record that the peer cannot do this, and can do everything else; return the news. No peer in `present` is
        forgotten before one that has left."""
        if not troubles and peer not in self._peers:
            return []
        said = self._said(peer, present)
        told = {one.kind: _harmless(one) for one in troubles}
        over = {kind: since for kind, (_, since) in said.troubles.items() if kind not in told}
        for kind, since_ms in over.items():
            self._write(peer, said, said.troubles.pop(kind)[0], since_ms, now_ms, ended=True)
        news = []
        for kind, trouble in told.items():
            before, since_ms = said.troubles.get(kind, (None, now_ms))
            is_same = before is not None and (before.version, before.reason) == (trouble.version, trouble.reason)
            said.troubles[kind] = (trouble, since_ms if is_same else now_ms)
            row = said.written.get(kind)
            was_told = is_same and row is not None and row.reason == trouble.reason and trouble.times < 2 * row.times
            if not was_told and now_s - said.news_s.get(kind, -math.inf) >= NEWS_EVERY_S:
                said.news_s[kind] = now_s
                self._write(peer, said, trouble, said.troubles[kind][1], now_ms)
                news.append(trouble)
        return news

    def gave_back(self, peer: PeerId, reason: str, present: Collection[PeerId] = ()) -> None:
        """Record that the peer returned leases, for this reason."""
        self._said(peer, present).gave_back = one_line(reason, MAX_TROUBLE_CHARS)

    def reason_of(self, peer: PeerId) -> str:
        """Return why the peer last returned leases, "" if it never did."""
        return self._peers[peer].gave_back if peer in self._peers else ""

    @property
    def gave_back_for(self) -> str:
        """Return the most frequent reason for the last returned leases of all peers, "" if none returned any."""
        reasons = Counter(said.gave_back for said in self._peers.values() if said.gave_back)
        return reasons.most_common(1)[0][0] if reasons else ""

    def unable(
        self,
        present: Collection[PeerId],
        newest: PolicyVersion | None,
        *,
        owing: Collection[PeerId] = (),
        serving: Collection[PeerId] = (),
    ) -> Unable:
        """Return which nodes cannot work with `newest`, among those present and those that left with such a trouble.
        `owing` are peers whose leases bring nothing; `serving` are peers that have another usable version in service.
        """
        found: dict[PeerId, Trouble] = {}
        for peer, said in self._peers.items():
            told = [trouble for trouble, _ in said.troubles.values()]
            if (worst := worst_of(told, newest, is_here=peer in present, serves=peer in serving)) is not None:
                found[peer] = worst
        for peer in owing:
            if peer not in found:
                reason = self.reason_of(peer) or "they are not delivered in time"
                found[peer] = Trouble(TroubleKind.LEASE, SEVERAL, reason)
        return unable_of(found, len({*present, *found}), serving)

    def count(self, present: Iterable[PeerId]) -> Mapping[TroubleKind, int]:
        """Return how many of those present report a trouble of each kind."""
        here = [self._peers[peer] for peer in present if peer in self._peers]
        return {kind: sum(kind in said.troubles for said in here) for kind in TroubleKind}

    def unwritten(self) -> list[TroubleRow]:
        """Return what the ledger does not have yet; it counts as written from now on."""
        rows, self._unwritten = list(self._unwritten.values()), {}
        return rows

    def _said(self, peer: PeerId, present: Collection[PeerId]) -> _Said:
        said = self._peers.pop(peer, None) or _Said()
        self._peers[peer] = said  # moves to the end: the peer heard last
        if len(self._peers) > MOST_PEERS:
            gone = next((one for one in self._peers if one not in present and one != peer), next(iter(self._peers)))
            del self._peers[gone]
        return said

    def _write(
        self, peer: PeerId, said: _Said, trouble: Trouble, since_ms: int, now_ms: int, *, ended: bool = False
    ) -> None:
        if ended and said.written.pop(trouble.kind, None) is None:
            return  # it began and ended between two news
        row = TroubleRow(
            peer=peer,
            kind=trouble.kind.value,
            version=trouble.version,
            times=trouble.times,
            reason=trouble.reason,
            since_ms=since_ms,
            ended_ms=now_ms if ended else None,
        )
        self._unwritten[peer, trouble.kind] = row
        if not ended:
            said.written[trouble.kind] = row


def worst_of(
    troubles: Iterable[Trouble], newest: PolicyVersion | None, *, is_here: bool, serves: bool
) -> Trouble | None:
    """Return the trouble that keeps a node from working with `newest`, or None. Reports of a node that has left count
    only if they are about that version. If the node `serves` another version, troubles that stop that one as well come
    first."""
    counted = [one for one in troubles if _counts(one, newest, is_here=is_here)]
    return min(counted, key=lambda one: (serves and one.kind in OF_A_VERSION, ORDER.index(one.kind)), default=None)


def _counts(trouble: Trouble, newest: PolicyVersion | None, *, is_here: bool) -> bool:
    is_of_version = trouble.kind in OF_A_VERSION or not is_here
    if is_of_version and newest is not None and trouble.version != newest:
        return False
    return trouble.times >= (1 if trouble.kind is TroubleKind.INSTALL or not is_here else SEVERAL)


def unable_of(found: Mapping[PeerId, Trouble], of: int, serving: Collection[PeerId] = ()) -> Unable:
    """Summarise these troubles, one of each node, out of `of` nodes. For nodes `serving` another version, only troubles
    with leases or the engine make a node idle."""
    if not found:
        return Unable(of=of)
    alike: dict[str, list[Trouble]] = {}
    for trouble in found.values():
        alike.setdefault(cannot(trouble, its="their"), []).append(trouble)
    groups = sorted(alike.items(), key=lambda group: -len(group[1]))
    said = [f"{len(troubles)} of {of} nodes {what}: {_reasons(troubles)}" for what, troubles in groups[:GROUPS_TOLD]]
    idle = sum(peer not in serving or trouble.kind not in OF_A_VERSION for peer, trouble in found.items())
    return Unable(text="; ".join(said), nodes=len(found), of=of, idle=idle)


def _reasons(troubles: Sequence[Trouble]) -> str:
    """Return the most frequent reason, and how many others there are."""
    by_reason = Counter(one.reason for one in troubles)
    others = len(by_reason) - 1
    more = f" (and {others} other reason{'s' if others > 1 else ''})" if others else ""
    return by_reason.most_common(1)[0][0].rstrip(".") + more


def in_words(troubles: Sequence[Trouble]) -> str:
    """Return what a node cannot do, for its owner; "" if it can do everything."""
    return "; ".join(f"{cannot(one, its='its')}: {one.reason}" for one in troubles)


def cannot(trouble: Trouble, *, its: str) -> str:
    """Return what cannot be done, as the rest of a sentence. `its` is the word for whose leases and engine they are."""
    match trouble.kind:
        case TroubleKind.FETCH:
            return f"cannot fetch {trouble.version or 'a version'}"
        case TroubleKind.INSTALL:
            return f"cannot install {trouble.version or 'a version'}"
        case TroubleKind.LEASE:
            return f"cannot use {its} leases"
        case TroubleKind.ENGINE:
            return f"cannot keep {its} engine alive"
        case TroubleKind.OTHER:
            return "cannot work"


def _harmless(trouble: Trouble) -> Trouble:
    """Return the trouble with a reason in words, if it has none. Its text was made harmless when it was decoded."""
    reason = trouble.reason.strip() or "no reason given"
    return Trouble(trouble.kind, trouble.times, reason, trouble.version)
