"""Audits accept honest peers whose machines round, for policies with large logits and at every temperature."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from learner.trust.audit_queue import Passage
from learner.trust.ban_evidence import History, count_above, log_evidence, with_audit
from learner.trust.margins import LARGE, MEDIUM, SMALL
from node.engine.interface import Verified
from node.learner_role.trust.auditor import found_of
from protocol import sampling
from protocol.core.ids import ManifestHash, PolicyVersion

VOCAB, TOKENS, AUDITS = 512, 512, 12

NOISE = 0.012
"""Nats by which engines differ before the logits are rounded."""

Floats = NDArray[np.float32]


def loud(chance: np.random.Generator, scale: float) -> Floats:
    return scale * chance.normal(size=(TOKENS, VOCAB)).astype(np.float32)


def certain(chance: np.random.Generator, ahead: float) -> Floats:
    """Return logits in which one to three tokens are ahead of all others by so much."""
    logits = chance.normal(size=(TOKENS, VOCAB)).astype(np.float32)
    for row in logits:
        row[chance.choice(VOCAB, chance.integers(1, 4), replace=False)] += ahead
    return logits


def shifted(chance: np.random.Generator, by: float) -> Floats:
    """Return logits with an added constant, which softmax removes, and rounding does not."""
    return loud(chance, 3) + np.float32(by)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(
    ("policy", "size"),
    [(loud, 3), (loud, 10), (loud, 20), (certain, 20), (certain, 40), (shifted, 24), (shifted, -100)],
)
def test_who_rounds_logits_to_bfloat16_is_never_suspected(policy: object, size: float, temperature: float) -> None:
    chance = np.random.default_rng(1)
    histories = {margins: History() for margins in (SMALL, MEDIUM, LARGE)}
    others = 0
    for audit in range(AUDITS):
        logits: Floats = policy(chance, size)  # type: ignore[operator]
        error = chance.normal(scale=NOISE, size=logits.shape).astype(np.float32)
        theirs = torch.from_numpy(logits + error).bfloat16().float().numpy()
        rows = chance.integers(2**62, size=TOKENS), np.arange(TOKENS)
        tokens, logprobs = sampling.sample(np, theirs, *rows, temperature)
        gaps = sampling.verify_tokens(np, logits, *rows, tokens, temperature)
        others += int((gaps.worst > 0).sum())
        verified = Verified(
            gaps=tuple(gaps.worst.tolist()),
            logprobs=tuple(gaps.logprobs.tolist()),
            leads=tuple(gaps.lead.tolist()),
            sizes=tuple(gaps.size.tolist()),
        )
        passage = Passage(
            prompt=(audit,), tokens=tuple(tokens.tolist()), logprobs=tuple(logprobs.tolist()), parts=((0, TOKENS),),
            seed=0, temperature=temperature, version=PolicyVersion(1, 1), manifest=ManifestHash(bytes(32)),
        )  # fmt: skip
        found = found_of(verified, passage)
        for margins, history in histories.items():
            histories[margins] = with_audit(history, count_above(found, margins), margins)
    assert others > 10, "it does round"
    assert max(map(log_evidence, histories.values())) < 0
