"""Which audits wait, and which is next: peers take turns, and those of one version are made together, since changing
the weights costs more than a few audits.

A pure core. What always holds: what waits is bounded in number and in tokens; whose training waits for an audit comes
first, and never makes room for what does not wait; among those comes first whoever was never audited, then whoever was
not for longest, so that a burst of one peer makes nobody else's audits late; of what does not wait, and then of what
does, the oldest of whoever has most on the agenda gives way, so that nobody crowds out the others; a lease is audited
whole or not at all, and each completion is read once for each version that made a part of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from learner.rollouts.admission import AdmittedRecord, GrantedLease
from learner.trust.ban_evidence import Found
from protocol.core.codec import unpack_tokens
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion
from protocol.versions.formats import STORED, format_of
from protocol.work import SignedRecord, Span

MAX_WAITING = 1024
"""Leases that wait for an audit; of a peer whose groups wait, NEWCOMER_GROUPS at most are under way at a time."""

MAX_WAITING_TOKENS = 1 << 23
"""Prompt and completion tokens of all that wait: half a GB or so of Python's numbers, where most are completions."""

MAX_TURNS = 4096
"""Peers of which is remembered when they were audited last; whoever was not for longest is new again."""

TOKENS_TOGETHER = 1 << 15
"""Prompt and completion tokens that are given to the engine at a time, unless one completion has more: some seconds of
a small model on a CPU, so that nobody waits long for the engine."""


@dataclass(frozen=True, kw_only=True)
class Passage:
    """All that `manifest`'s weights are said to have made of a completion, after `prompt`: `parts` of it, [start, end).
    `tokens` are those up to the last of these, and `logprobs` what is claimed of each. `position` is that of the first
    token: the prompt ends with so many that others made of the same completion. `form` is the format that the engine
    is said to have held the weights in. `experts`: those of a mixture that are said to have made each of `tokens`
    (`protocol.experts`); b"" where nobody asked for them."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    parts: tuple[tuple[int, int], ...]
    seed: int
    temperature: float
    version: PolicyVersion
    manifest: ManifestHash
    form: str = STORED
    position: int = 0
    experts: bytes = b""

    @property
    def contexts(self) -> tuple[int, ...]:
        """Of each token a number that it shares with all tokens that `manifest`'s weights made after the same."""
        found, context = [], hash((self.manifest, self.form, self.prompt))
        for token in self.tokens:
            found.append(context)
            context = hash((context, token))
        return tuple(found)

    @property
    def cost(self) -> int:
        """Tokens that the engine reads."""
        return len(self.prompt) + len(self.tokens)


@dataclass(frozen=True, kw_only=True)
class Work:
    """The audit of one lease. `root`: the lease that opened its group; `waits`: training waits for it."""

    lease: LeaseId
    root: LeaseId
    peer: PeerId
    passages: tuple[Passage, ...]
    waits: bool

    @property
    def cost(self) -> int:
        return sum(passage.cost for passage in self.passages)

    @property
    def manifests(self) -> frozenset[ManifestHash]:
        return frozenset(passage.manifest for passage in self.passages)


def work_of(granted: GrantedLease, group: Sequence[AdmittedRecord], *, waits: bool) -> Work:
    """The audit of an admitted group, `group` being in the order of the lease's seeds."""
    lease, prompt = granted.lease, unpack_tokens(granted.lease.prompt)
    passages = [
        Passage(
            prompt=prompt,
            tokens=record.signed.tokens[: spans[-1].end],
            logprobs=record.signed.logprobs[: spans[-1].end],
            parts=tuple((span.start, span.end) for span in spans),
            seed=lease.seeds[record.signed.record.index],
            temperature=lease.sampler.temperature,
            version=spans[-1].version,
            manifest=ManifestHash(spans[-1].manifest),
            form=format_of(record.signed.record.ext),
            position=lease.start,
            experts=_first_experts(record.signed, spans[-1].end),
        )
        for record in group
        for spans in _by_manifest(record.signed.record.spans)
    ]
    return Work(lease=granted.id, root=granted.root, peer=granted.peer, passages=tuple(passages), waits=waits)


def _first_experts(signed: SignedRecord, tokens: int) -> bytes:
    """Those of the record's first so many tokens, each of which has as many bytes as any other."""
    experts = signed.record.experts
    return experts[: len(experts) // max(1, len(signed.tokens)) * tokens]


def _by_manifest(spans: Sequence[Span]) -> list[list[Span]]:
    """Those of one manifest together, however often it was changed: a pass over the tokens judges all of them."""
    found: dict[bytes, list[Span]] = {}
    for span in spans:
        found.setdefault(span.manifest, []).append(span)
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Portion:
    """What the engine is asked next: passages that `manifest`, held in the format `form`, is said to have made, each
    with the lease it is of."""

    version: PolicyVersion
    manifest: ManifestHash
    passages: tuple[tuple[LeaseId, int, Passage], ...]
    form: str = STORED


def _portion(of: Passage, chosen: Sequence[tuple[LeaseId, int, Passage]]) -> Portion:
    return Portion(version=of.version, manifest=of.manifest, passages=tuple(chosen), form=of.form)


@dataclass(kw_only=True)
class _Under:
    """A lease under audit: what was found of each passage, None while nothing was."""

    work: Work
    number: int
    found: list[Sequence[Found] | None]

    @property
    def is_over(self) -> bool:
        return all(one is not None for one in self.found)

    def open(self) -> Iterator[tuple[int, Passage]]:
        return ((i, passage) for i, passage in enumerate(self.work.passages) if self.found[i] is None)


@dataclass(kw_only=True)
class Agenda:
    """See the module's paragraph."""

    max_waiting: int = MAX_WAITING
    max_tokens: int = MAX_WAITING_TOKENS
    _under: dict[LeaseId, _Under] = field(default_factory=dict)
    _tokens: int = 0
    _of_peer: Counter[PeerId] = field(default_factory=Counter)
    _arrivals: int = 0
    _turns: dict[PeerId, int] = field(default_factory=dict)
    """When each peer was audited last, of those that were of late, in audits that were over by then."""
    _audits: int = 0

    def __len__(self) -> int:
        """Leases that wait, or are being audited."""
        return len(self._under)

    def __contains__(self, lease: LeaseId) -> bool:
        """Whether this lease waits, or is being audited."""
        return lease in self._under

    @property
    def peers(self) -> set[PeerId]:
        """Whose they are."""
        return set(self._of_peer)

    @property
    def waiting(self) -> int:
        """Those of them that training waits for."""
        return sum(under.work.waits for under in self._under.values())

    def add(self, work: Work) -> list[Work]:
        """Put it on the agenda; return what had to give way for it, perhaps itself."""
        if work.lease in self._under or not work.passages:
            return []
        self._arrivals += 1
        self._under[work.lease] = _Under(work=work, number=self._arrivals, found=[None] * len(work.passages))
        self._tokens += work.cost
        self._of_peer[work.peer] += work.cost
        gone = []
        while len(self._under) > self.max_waiting or (self._tokens > self.max_tokens and len(self._under) > 1):
            least = min(self._under.values(), key=self._stays)
            gone.append(self._remove(least.work.lease))
        return gone

    def next(self) -> Portion | None:
        """What to ask the engine now; None when nothing waits. The same again until it is `heard` or `lost`."""
        if not self._under:
            return None
        first = min(self._under.values(), key=self._turn)
        _, passage = next(first.open())
        chosen: list[tuple[LeaseId, int, Passage]] = []
        cost = 0
        for under in sorted(self._under.values(), key=lambda one: (one is not first, *self._turn(one))):
            for place, one in under.open():
                if (one.manifest, one.form) != (passage.manifest, passage.form):
                    continue
                if chosen and cost + one.cost > TOKENS_TOGETHER:
                    return _portion(passage, chosen)
                chosen.append((under.work.lease, place, one))
                cost += one.cost
        return _portion(passage, chosen)

    def heard(self, portion: Portion, told: Sequence[Sequence[Found]]) -> list[tuple[Work, tuple[Found, ...]]]:
        """What was found of a portion's passages, of all tokens [0, end); return the audits that are over with that,
        with what was found of all tokens of the lease."""
        over = []
        for (lease, place, passage), found in zip(portion.passages, told, strict=True):
            under = self._under.get(lease)
            if under is None or under.work.passages[place] is not passage:
                continue
            under.found[place] = tuple(token for start, end in passage.parts for token in found[start:end])
            if under.is_over:
                self._audits += 1
                self._turns.pop(under.work.peer, None)
                self._turns[under.work.peer] = self._audits
                if len(self._turns) > MAX_TURNS:
                    del self._turns[next(iter(self._turns))]
                self._remove(lease)
                over.append((under.work, tuple(token for one in under.found for token in one or ())))
        return over

    def lost(self, manifest: ManifestHash) -> list[Work]:
        """A version is no longer there: the audits that need it cannot be made; they are returned."""
        gone = [under.work.lease for under in self._under.values() if manifest in under.work.manifests]
        return [self._remove(lease) for lease in gone]

    def give_up(self, lease: LeaseId) -> list[Work]:
        """This audit will not be made; it is returned if it was on the agenda."""
        return [self._remove(lease)] if lease in self._under else []

    def withdraw(self, peer: PeerId) -> list[Work]:
        """Nothing more is to be found out about this peer."""
        return [self._remove(under.work.lease) for under in list(self._under.values()) if under.work.peer == peer]

    def clear(self) -> list[Work]:
        """Forget everything, and return it."""
        return [self._remove(lease) for lease in list(self._under)]

    def _turn(self, one: _Under) -> tuple[bool, int, int]:
        """The least of these is next."""
        return not one.work.waits, self._turns.get(one.work.peer, 0), one.number

    def _stays(self, one: _Under) -> tuple[bool, int, int]:
        """The least of these gives way first."""
        return one.work.waits, -self._of_peer[one.work.peer], one.number

    def _remove(self, lease: LeaseId) -> Work:
        work = self._under.pop(lease).work
        self._tokens -= work.cost
        self._of_peer[work.peer] -= work.cost
        if not self._of_peer[work.peer]:
            del self._of_peer[work.peer]
        return work
