"""Regenerate every token that a run's ledger still holds, with the weights that its record claims.

Invariants:

- The model is torch's own forward pass in float32 over prompt and completion, so no result of an engine is trusted.
- A token's gap is how far it lies below the token that its seed draws, in nats (docs/reference/sampling.md).
- Records that cannot be audited, because their version is gone, are counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from learner.rollouts.open_leases import own_lease
from protocol import sampling
from protocol.core.codec import unpack_tokens
from protocol.core.ids import PeerId, SwarmId
from protocol.work import Lease, SignedRecord, read_record
from tests.e2e.programs import rows_of
from tests.support.ledgers import checkpoints_in


@dataclass
class Audited:
    """What was audited, by peer. `tokens`: tokens that were regenerated. `gap`: the largest gap among them, in nats.
    `apart`: the largest distance of a claimed log probability from ours. `gone`: records whose version is no longer
    held.
    """

    tokens: Counter[PeerId] = field(default_factory=Counter)
    gap: dict[PeerId, float] = field(default_factory=dict)
    apart: dict[PeerId, float] = field(default_factory=dict)
    gone: int = 0


def audit(state: Path) -> Audited:
    """Regenerate what the learner in `state` admitted, as far back as its ledger and its store go."""
    swarm = SwarmId(checkpoints_in(state / "ledger.sqlite")[0])
    sql = (
        "SELECT l.envelope, r.envelope FROM records r JOIN leases l USING (lease)"
        " WHERE r.rule = 'admitted' AND r.envelope IS NOT NULL AND l.envelope IS NOT NULL"
    )
    models = cache(_load)
    audited = Audited()
    for lease, record in rows_of(state / "ledger.sqlite", sql):
        signed = read_record(record, swarm)
        signed.envelope.verify_signature()
        places = [state / "store" / "versions" / bytes(span.manifest).hex() for span in signed.record.spans]
        if all(place.is_dir() for place in places):
            _regenerate(audited, own_lease(lease, swarm), signed, [models(place) for place in places])
        else:
            audited.gone += 1
    return audited


def _regenerate(audited: Audited, lease: Lease, signed: SignedRecord, models: list[Any]) -> None:
    prompt = unpack_tokens(lease.prompt)
    ids = torch.tensor([[*prompt, *signed.tokens]])
    seed = sampling.seed_to_int64(lease.seeds[signed.record.index])
    for span, model in zip(signed.record.spans, models, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, len(prompt) - 1 + span.start : len(prompt) - 1 + span.end]
        gaps = sampling.verify_tokens(
            torch,
            logits,
            torch.full((span.end - span.start,), seed),
            torch.arange(span.start, span.end),
            torch.tensor(signed.tokens[span.start : span.end]),
            lease.sampler.temperature,
        )
        peer, claimed = signed.author, torch.tensor(signed.logprobs[span.start : span.end])
        audited.tokens[peer] += span.end - span.start
        audited.gap[peer] = max(audited.gap.get(peer, 0.0), float(gaps.worst.max()))
        audited.apart[peer] = max(audited.apart.get(peer, 0.0), float((gaps.logprobs - claimed).abs().max()))


def _load(directory: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
