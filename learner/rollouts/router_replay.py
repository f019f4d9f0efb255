"""Put the experts of records into a batch, for a trainer that replays them.

A lease asks for experts by an extension. A record without them is rejected, because its tokens would be trained on
differently from others. A record whose bytes do not describe experts of this model is rejected before they are used.
The trainer checks whether the policy could have chosen them (`learner.training.model.router_replay`).

Invariants:

- Completions keep the bytes as they came, one or two for each choice; they are unpacked only when a batch is made.
- A sequence without experts is trained on as if nothing was replayed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from learner.rollouts.buffer import Batch
from protocol.core.pipe import Arrays
from protocol.experts import Routing, unpack_experts
from protocol.work import EXPERTS, Lease, Rule, SignedRecord


def experts_objection(record: SignedRecord, lease: Lease, routing: Routing | None) -> tuple[Rule, str] | None:
    """Return why the record's experts are not those that its lease asks for; None if they are. `routing` is None if
    nothing is replayed any more. Raises PeerError if they do not fit a model of `routing`."""
    given = record.record.experts
    if EXPERTS not in lease.ext:
        return (Rule.SETTINGS, "it names experts, but its lease does not ask for them") if given else None
    if routing is None:
        return None
    if not given:
        return Rule.SETTINGS, "it names no experts, but its lease asks for them"
    unpack_experts(given, len(record.tokens), routing)
    return None


def joined_experts(spans: Sequence[bytes]) -> bytes:
    """Return the experts of all tokens of several turns or parts; empty if one of them has none."""
    return b"".join(spans) if all(spans) else b""


def expert_arrays(batch: Batch, routing: Routing | None) -> Arrays:
    """Return the arrays `experts` and `routed` of the batch's generated tokens; no arrays if nothing is replayed."""
    if routing is None:
        return {}
    experts, routed = [], []
    for group in batch.groups:
        for one in group.completions:
            shape = (len(one.logprobs), routing.layers, routing.top_k)
            has = len(one.experts) == len(one.logprobs) * routing.token_bytes  # false if leased before a restart
            ids = np.frombuffer(one.experts, routing.dtype).reshape(shape) if has else np.zeros(shape, routing.dtype)
            experts.append(ids)
            routed.append(np.full(len(one.logprobs), has, np.uint8))
    return {"experts": np.concatenate(experts), "routed": np.concatenate(routed)}


def with_the_same_experts(batches: Sequence[Arrays]) -> Sequence[Arrays]:
    """Return the batches; those from a log get empty arrays of experts if any other batch has experts."""
    known = next((batch["experts"] for batch in batches if "experts" in batch), None)
    if known is None:
        return batches
    return [{**_without_experts(known.shape[1:], known.dtype, len(batch["lags"])), **batch} for batch in batches]


def _without_experts(shape: tuple[int, ...], dtype: np.dtype[np.generic], tokens: int) -> Arrays:
    return {"experts": np.zeros((tokens, *shape), dtype), "routed": np.zeros(tokens, np.uint8)}
