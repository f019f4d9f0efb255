"""Decide which audits wait and which is next: peers take turns, and audits of one version are made together.

A pure core. Audits of one version are made together because changing the weights costs more than a few audits.

Invariants:

- The waiting audits are bounded in number and in tokens.
- Audits that training waits for come first, and never make room for others.
- Among those, the first is of a peer that was never audited, then of the one that was not audited for longest. So a
  burst of one peer does not delay the audits of others.
- If the queue is full, the oldest audit of the peer with the most tokens in it gives way: first those that training
  does not wait for. So no peer crowds out the others.
- A lease is audited whole or not at all. Each completion is read once for each version that made a part of it.
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
"""Leases that wait for an audit. A peer whose groups wait has at most NEWCOMER_GROUPS of them under way at a time."""

MAX_WAITING_TOKENS = 1 << 23
"""Prompt and completion tokens of all that wait: about half a GB of Python's numbers, if most of them are
completions."""

MAX_TURNS = 4096
"""Peers whose last audit is remembered; the one that was not audited for longest counts as new again."""

TOKENS_TOGETHER = 1 << 15
"""Prompt and completion tokens that are given to the engine at a time, unless one completion has more: some seconds of
a small model on a CPU, so that nothing else waits long for the engine."""


@dataclass(frozen=True, kw_only=True)
class Passage:
    """All parts of a completion that were made, by its record, with `manifest`'s weights after `prompt`: `parts` are
    [start, end).

    `tokens` are those up to the last part, and `logprobs` the claimed log probability of each. `position` is the
    position of the first token: the prompt ends with this many tokens of the same completion, which other peers made.
    `form` is the format in which the engine held the weights, by its own claim. `experts` are the experts of a mixture
    that made each of `tokens`, by the same claim (`protocol.experts`); b"" if they were not requested.
    """

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
        """For each token, a number that it shares with all tokens that `manifest`'s weights made after the same
        text."""
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
    """The audit of one lease. `root` is the lease that opened its group; `waits` is whether training waits for it."""

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
    """Return the audit of an admitted group; `group` is in the order of the lease's seeds."""
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
    """Return the experts of the record's first `tokens` tokens; each token has the same number of bytes."""
    experts = signed.record.experts
    return experts[: len(experts) // max(1, len(signed.tokens)) * tokens]


def _by_manifest(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of each manifest together, however often it changed: one pass over the tokens judges all of
    them."""
    found: dict[bytes, list[Span]] = {}
    for span in spans:
        found.setdefault(span.manifest, []).append(span)
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Portion:
    """The next request to the engine: passages of `manifest`, held in the format `form`, each with its lease."""

    version: PolicyVersion
    manifest: ManifestHash
    passages: tuple[tuple[LeaseId, int, Passage], ...]
    form: str = STORED


def _portion(of: Passage, chosen: Sequence[tuple[LeaseId, int, Passage]]) -> Portion:
    return Portion(version=of.version, manifest=of.manifest, passages=tuple(chosen), form=of.form)


@dataclass(kw_only=True)
class _Under:
    """A lease under audit: the result for each passage, None while there is none."""

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
    """The audits that wait or are being made."""

    max_waiting: int = MAX_WAITING
    max_tokens: int = MAX_WAITING_TOKENS
    _under: dict[LeaseId, _Under] = field(default_factory=dict)
    _tokens: int = 0
    _of_peer: Counter[PeerId] = field(default_factory=Counter)
    _arrivals: int = 0
    _turns: dict[PeerId, int] = field(default_factory=dict)
    """When each peer was last audited, as the number of audits that were over by then; for peers that were audited
    lately."""
    _audits: int = 0

    def __len__(self) -> int:
        """Return how many leases wait, or are being audited."""
        return len(self._under)

    def __contains__(self, lease: LeaseId) -> bool:
        """Return whether this lease waits, or is being audited."""
        return lease in self._under

    @property
    def peers(self) -> set[PeerId]:
        """The peers of these leases."""
        return set(self._of_peer)

    @property
    def waiting(self) -> int:
        """The number of these leases that training waits for."""
        return sum(under.work.waits for under in self._under.values())

    def add(self, work: Work) -> list[Work]:
        """Add an audit; return those that had to give way for it, perhaps itself."""
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
        """Return what to ask the engine now; None if nothing waits. It is the same again until it is `heard` or
        `lost`."""
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

    def take_results(self, portion: Portion, told: Sequence[Sequence[Found]]) -> list[tuple[Work, tuple[Found, ...]]]:
        """Take in what was found of a portion's passages, of all tokens [0, end). Return the audits that are over with
        that, each with the results for all tokens of the lease."""
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
        """Remove and return the audits that need a version that is no longer there."""
        gone = [under.work.lease for under in self._under.values() if manifest in under.work.manifests]
        return [self._remove(lease) for lease in gone]

    def give_up(self, lease: LeaseId) -> list[Work]:
        """Remove and return this audit, if it was on the agenda, since it will not be made."""
        return [self._remove(lease)] if lease in self._under else []

    def withdraw(self, peer: PeerId) -> list[Work]:
        """Remove and return all audits of this peer."""
        return [self._remove(under.work.lease) for under in list(self._under.values()) if under.work.peer == peer]

    def clear(self) -> list[Work]:
        """Remove and return all audits."""
        return [self._remove(lease) for lease in list(self._under)]

    def _turn(self, one: _Under) -> tuple[bool, int, int]:
        """Return the key by which the least is next."""
        return not one.work.waits, self._turns.get(one.work.peer, 0), one.number

    def _stays(self, one: _Under) -> tuple[bool, int, int]:
        """Return the key by which the least gives way first."""
        return one.work.waits, -self._of_peer[one.work.peer], one.number

    def _remove(self, lease: LeaseId) -> Work:
        work = self._under.pop(lease).work
        self._tokens -= work.cost
        self._of_peer[work.peer] -= work.cost
        if not self._of_peer[work.peer]:
            del self._of_peer[work.peer]
        return work
