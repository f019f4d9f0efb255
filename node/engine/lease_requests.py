"""Turn a lease into requests to an engine, and the completions into records to be signed. Pure.

Invariants:

- Each seed gives one request, in the order of the seeds.
- A record says of every token which version produced it.
"""

from __future__ import annotations

from node.engine.interface import Generation, GenerationRequest
from protocol.accounting.claims import CostClaim
from protocol.core.codec import pack_logprobs, pack_tokens, unpack_tokens
from protocol.core.limits import MAX_MILLIS
from protocol.experts import experts_bytes
from protocol.versions.formats import STORED, format_extension
from protocol.work import EXPERTS, Lease, RolloutRecord, Span, Timing


def requests_of(lease: Lease) -> list[GenerationRequest]:
    """Return the requests of a lease: one for each seed."""
    prompt = unpack_tokens(lease.prompt)
    return [
        GenerationRequest(
            prompt=prompt,
            seed=seed,
            temperature=lease.sampler.temperature,
            max_new_tokens=lease.max_new_tokens,
            stop_ids=frozenset(lease.stop_ids),
            start=lease.start,
            experts=EXPERTS in lease.ext,
        )
        for seed in lease.seeds
    ]


def record_of(lease: Lease, index: int, completion: Generation, started_ms: int, form: str = STORED) -> RolloutRecord:
    """Return the record of completion `index` of `lease`, made by an engine that holds weights in the format `form`."""
    return RolloutRecord(
        lease=lease.id,
        index=index,
        tokens=pack_tokens(completion.tokens),
        logprobs=pack_logprobs(completion.logprobs),
        spans=[
            Span(start=span.start, end=span.end, version=span.version.name, manifest=span.version.manifest)
            for span in completion.spans
        ],
        sampler=lease.sampler,
        timing=Timing(started_ms=started_ms, generation_ms=round(completion.generation_s * 1000)),
        cost=CostClaim(engine_s=completion.generation_s),
        ext=format_extension(form),
        experts=b"" if completion.experts is None else experts_bytes(completion.experts),
    )


def learners_clock(now_ms: int, offset_ms: int) -> int:
    """Return `now_ms` by the learner's clock, which is ahead by `offset_ms` as the learner said, within the bounds of a
    record."""
    return min(max(0, now_ms + offset_ms), MAX_MILLIS)
