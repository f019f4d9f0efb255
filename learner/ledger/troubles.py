"""Keep what rollout nodes say that they cannot do, and say it in one sentence.

A pure core of the learner's, and the words for a trouble, which a node and a report use as well. What a peer says is a
claim: it is shown, written down and logged, and decides nothing. Nodes that are too old to say anything are noticed by
the leases that they give back (`learner.scheduling.lease_backoff`), with the reason that came with these.

Invariants:
- Of one peer there is at most one trouble of each kind; no more than MOST_PEERS are remembered.
- Text of a peer has become one harmless line before anything else sees it.
- Of one peer and kind, something is news at most once in NEWS_EVERY_S, however often it changes.
- What concerns a version that is not the newest is nobody's trouble any more.
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
"""Peers whose troubles are remembered, those who have left among them: one that gave up says why, and is gone."""

NEWS_EVERY_S = 30.0
"""A peer may change what it says with every heartbeat; the log and the ledger are not to grow with that."""

SEVERAL = 2
"""Failures in a row before a trouble counts that is not about installing a version: one batch may have a prompt that no
engine takes, and one line may have been down."""

GROUPS_TOLD = 2
"""Different troubles in one sentence: the two that most nodes have."""

ORDER = (TroubleKind.FETCH, TroubleKind.INSTALL, TroubleKind.ENGINE, TroubleKind.LEASE, TroubleKind.OTHER)
"""Which of several troubles of one node is told: without a version there is no lease."""


OF_A_VERSION = frozenset({TroubleKind.FETCH, TroubleKind.INSTALL})
"""Troubles with one version, while another may be in service."""


@dataclass(frozen=True, kw_only=True)
class Unable:
    """`nodes` of `of` nodes cannot work with the newest version, and `idle` of these with no other either; `text` says
    what they cannot do and why, "" if all can."""

    text: str = ""
    nodes: int = 0
    of: int = 0
    idle: int = 0

    @property
    def is_everyone(self) -> bool:
        """Whether nobody can work."""
        return 0 < self.idle == self.of


@dataclass(kw_only=True)
class _Said:
    """One peer: its troubles, each with the time at which it was first heard (ms); the reason of its last give-back;
    the time of the last news of each kind (s); the rows that the ledger has."""

    troubles: dict[TroubleKind, tuple[Trouble, int]] = field(default_factory=dict)
    gave_back: str = ""
    news_s: dict[TroubleKind, float] = field(default_factory=dict)
    written: dict[TroubleKind, TroubleRow] = field(default_factory=dict)


@dataclass(kw_only=True)
class Troubles:
    """See the module's paragraph. `now_s` is of any steady clock, `now_ms` the learner's."""

    _peers: dict[PeerId, _Said] = field(default_factory=dict)
    _unwritten: dict[tuple[PeerId, TroubleKind], TroubleRow] = field(default_factory=dict)

    def heard(
        self, peer: PeerId, troubles: Sequence[Trouble], *, now_s: float, now_ms: int, present: Collection[PeerId] = ()
    ) -> list[Trouble]:
        """The peer cannot do this, and can do all else; return what is news of it. Of those in `present` none is
        forgotten before one who has left is."""
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
        """The peer gave leases back, for this reason."""
        self._said(peer, present).gave_back = one_line(reason, MAX_TROUBLE_CHARS)

    def reason_of(self, peer: PeerId) -> str:
        """Why the peer last gave leases back, "" if it never did."""
        return self._peers[peer].gave_back if peer in self._peers else ""

    @property
    def gave_back_for(self) -> str:
        """Why most of those last gave leases back who ever did, "" if nobody did."""
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
        """Who of those present, and of those who have left with such a trouble, cannot work with `newest`. `owing` are
        those whose leases bring nothing, `serving` those who have another version in service that is of use."""
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
        """How many of those present say that they have a trouble of each kind."""
        here = [self._peers[peer] for peer in present if peer in self._peers]
        return {kind: sum(kind in said.troubles for said in here) for kind in TroubleKind}

    def unwritten(self) -> list[TroubleRow]:
        """What the ledger does not know yet; it counts as written from now on."""
        rows, self._unwritten = list(self._unwritten.values()), {}
        return rows

    def _said(self, peer: PeerId, present: Collection[PeerId]) -> _Said:
        said = self._peers.pop(peer, None) or _Said()
        self._peers[peer] = said  # last in the order of who was heard
        if len(self._peers) > MOST_PEERS:
            gone = next((one for one in self._peers if one not in present and one != peer), next(iter(self._peers)))
            del self._peers[gone]
        return said

    def _write(
        self, peer: PeerId, said: _Said, trouble: Trouble, since_ms: int, now_ms: int, *, ended: bool = False
    ) -> None:
        if ended and said.written.pop(trouble.kind, None) is None:
            return  # it came and went between two of its news
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
    """Which trouble of a node keeps it from working with `newest`; None: none does. What one that has left said of
    another version is no matter; where one `serves` another version, first comes what it could not do with that."""
    counted = [one for one in troubles if _counts(one, newest, is_here=is_here)]
    return min(counted, key=lambda one: (serves and one.kind in OF_A_VERSION, ORDER.index(one.kind)), default=None)


def _counts(trouble: Trouble, newest: PolicyVersion | None, *, is_here: bool) -> bool:
    is_of_version = trouble.kind in OF_A_VERSION or not is_here
    if is_of_version and newest is not None and trouble.version != newest:
        return False
    return trouble.times >= (1 if trouble.kind is TroubleKind.INSTALL or not is_here else SEVERAL)


def unable_of(found: Mapping[PeerId, Trouble], of: int, serving: Collection[PeerId] = ()) -> Unable:
    """The sentence for these troubles, one of each node, of `of` nodes. Of those `serving` another version only leases
    and the engine can keep a node idle."""
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
    """The reason that most give, and how many others there are."""
    by_reason = Counter(one.reason for one in troubles)
    more = f" (and {len(by_reason) - 1} other reasons)" if len(by_reason) > 1 else ""
    return by_reason.most_common(1)[0][0].rstrip(".") + more


def in_words(troubles: Sequence[Trouble]) -> str:
    """What a node cannot do, for its owner; "": nothing."""
    return "; ".join(f"{cannot(one, its='its')}: {one.reason}" for one in troubles)


def cannot(trouble: Trouble, *, its: str) -> str:
    """What cannot be done, as the rest of a sentence; `its` is whose leases and engine they are."""
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
    """Its text was made harmless where it was decoded; here it only gets words where it has none."""
    reason = trouble.reason.strip() or "no reason given"
    return Trouble(trouble.kind, trouble.times, reason, trouble.version)
