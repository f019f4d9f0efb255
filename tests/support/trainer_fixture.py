"""Provide small pieces of work for the learner's tests: leases, the records that answer them, and their rules.

Everything is a function of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from learner.rollouts.admission import GrantedLease, Terms
from protocol.accounting.claims import CostClaim
from protocol.core.codec import pack_logprobs, pack_tokens
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion
from protocol.versions.staleness import Chain
from protocol.work import Lease, RolloutRecord, Sampler, Span, Timing
from tests.support.store_fixture import small_swarm

SWARM = small_swarm("work")
PEER, OTHER = Keypair(bytes([2]) * 32), Keypair(bytes([3]) * 32)
NOW_MS = 1_760_000_000_000
STOP = 0
VOCABULARY = 64


def version(text: str) -> PolicyVersion:
    """Return (incarnation, version) from "1.5"."""
    incarnation, number = text.split(".")
    return PolicyVersion(int(incarnation), int(number))


def manifest(of: PolicyVersion) -> ManifestHash:
    return ManifestHash(digest_of(f"manifest {of}".encode()))


CHAIN = Chain(bases=(0, 4), head=version("2.6"))
"""A chain that was restarted at step 4: 1.5 and 1.6 were cut off."""
PUBLISHED = [version(text) for text in ("1.2", "1.3", "1.4", "1.5", "1.6", "2.4", "2.5", "2.6")]
WINDOW = 3


def terms(**changes: Any) -> Terms:
    """Return terms with S = 3 at version 2.6; a completion's reward is the share of its tokens that are even."""
    settings: dict[str, Any] = {
        "swarm": SWARM.authority.swarm,
        "chain": CHAIN,
        "window": WINDOW,
        "manifests": {one: manifest(one) for one in PUBLISHED},
        "vocab_size": VOCABULARY,
    }
    return Terms(**settings | changes)


def even_share(index: int, tokens: Sequence[int]) -> float:
    return sum(token % 2 == 0 for token in tokens) / len(tokens)


def granted(number: int = 1, *, size: int = 2, prompt_index: int = 7, **changes: Any) -> GrantedLease:
    """Return lease `number` for PEER: `size` completions of up to 4 tokens, from version 1.3 or newer."""
    settings: dict[str, Any] = {
        "id": lease_id(number),
        "peer": PEER.peer_id,
        "task": "even",
        "prompt": pack_tokens((5, 6, 7)),
        "seeds": list(range(100, 100 + size)),
        "sampler": Sampler(temperature=1.0),
        "stop_ids": [STOP],
        "max_new_tokens": 4,
        "minimum": version("1.3"),
        "issued_ms": NOW_MS,
        "deadline_ms": NOW_MS + 60_000,
    }
    return GrantedLease(lease=Lease(**settings | changes), prompt_index=prompt_index)


def lease_id(number: int) -> LeaseId:
    return LeaseId(number.to_bytes(16, "big"))


def record(
    lease: Lease,
    /,
    index: int = 0,
    *,
    author: Keypair = PEER,
    made_by: str | Sequence[str] = "2.6",
    tokens: Sequence[int] = (1, 2, STOP),
    manifests: Mapping[PolicyVersion, ManifestHash] | None = None,
    **changes: Any,
) -> bytes:
    """Return the envelope of completion `index`; `made_by` names one version, or one for each token."""
    names = [made_by] * len(tokens) if isinstance(made_by, str) else made_by
    hashes = manifests or {}
    spans = [
        Span(place, place + 1, one, hashes.get(one, manifest(one))) for place, one in enumerate(map(version, names))
    ]
    settings: dict[str, Any] = {
        "lease": lease.id,
        "index": index,
        "tokens": pack_tokens(list(tokens)),
        "logprobs": pack_logprobs([-0.5] * len(tokens)),
        "spans": spans,
        "sampler": lease.sampler,
        "timing": Timing(started_ms=NOW_MS, generation_ms=20),
        "cost": CostClaim(engine_s=0.02),
    }
    return sign(author, SWARM.authority.swarm, RolloutRecord(**settings | changes))


def group(lease: GrantedLease, **changes: Any) -> list[bytes]:
    """Return all records of a lease."""
    return [record(lease.lease, index, **changes) for index in range(len(lease.lease.seeds))]


def with_bad_signature(raw: bytes) -> bytes:
    """Return the envelope with one bit of its signature, which comes last, flipped."""
    return raw[:-1] + bytes([raw[-1] ^ 1])
