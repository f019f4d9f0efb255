"""Claim "intake": a learner judges the rollouts of thousands of peers on one core.

The records have 512 tokens, in groups of 8, each group under its own lease and signed by one of the peers. The
benchmark times all checks of a record that come before any forward pass: parsing, size and shape, lease, version and
manifest, signature, sampler settings and vocabulary, and completeness. The time includes the sketch of each completion
and its comparison with recent ones of other peers. It also times writing verdicts and envelopes to the ledger,
outside of the bar.

Bar: records_per_s, of one process with one thread.

Invariants:

- Every record is judged by the functions of a real run, and is admitted.
- No record is judged twice.
- Seconds are those of one core's time.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, table
from learner.ledger.ledger import Ledger
from learner.ledger.rows import LeaseRow, RecordRow
from learner.rollouts.admission import GrantedLease, JudgedDelivery, Terms, check_delivery
from learner.trust.near_duplicates import NearCopies, sketch
from protocol.accounting.claims import CostClaim
from protocol.core.codec import pack_logprobs, pack_tokens
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion, RecordId, SwarmId
from protocol.versions.staleness import Chain
from protocol.work import Lease, RolloutRecord, Rule, Sampler, Span, Timing

RECORDS_AT_LEAST = 2000.0
TOKENS = 512
PROMPT = 128
GROUP = 8
GROUPS = 128
"""Groups in one repetition: 1024 records, half a second."""
PEERS = 16
VOCABULARY = 152_000
NOW_MS = 1_700_000_000_000
VERSION = PolicyVersion(1, 7)
MANIFEST = ManifestHash(digest_of(b"the weights"))
SWARM = SwarmId(digest_of(b"the swarm"))


@dataclass(frozen=True, kw_only=True)
class Brought:
    """One delivery with the lease that it answers."""

    granted: GrantedLease
    envelope: bytes
    raws: tuple[bytes, ...]


def brought(seed: int, learner: Keypair, peers: Sequence[Keypair]) -> list[Brought]:
    """Return the deliveries of one repetition."""
    chance = random.Random(seed)
    found = []
    for place in range(GROUPS):
        author = peers[place % len(peers)]
        lease = Lease(
            id=chance.randbytes(16),
            peer=author.peer_id,
            task="bench",
            prompt=pack_tokens(chance.choices(range(VOCABULARY), k=PROMPT)),
            seeds=[chance.getrandbits(63) for _ in range(GROUP)],
            sampler=Sampler(temperature=1.0),
            stop_ids=[0],
            max_new_tokens=TOKENS,
            minimum=VERSION,
            issued_ms=NOW_MS,
            deadline_ms=NOW_MS + 60_000,
        )
        raws = tuple(_record(lease, index, author, chance) for index in range(GROUP))
        envelope = sign(learner, SWARM, lease)
        found.append(Brought(granted=GrantedLease(lease=lease, prompt_index=place), envelope=envelope, raws=raws))
    return found


def _record(lease: Lease, index: int, author: Keypair, chance: random.Random) -> bytes:
    record = RolloutRecord(
        lease=lease.id,
        index=index,
        tokens=pack_tokens(chance.choices(range(1, VOCABULARY), k=TOKENS)),
        logprobs=pack_logprobs([-chance.expovariate(1.0) for _ in range(TOKENS)]),
        spans=[Span(0, TOKENS, VERSION, MANIFEST)],
        sampler=lease.sampler,
        timing=Timing(started_ms=NOW_MS, generation_ms=900),
        cost=CostClaim(engine_s=0.9),
    )
    return sign(author, SWARM, record)


def judge(deliveries: Sequence[Brought], terms: Terms, copies: NearCopies) -> list[JudgedDelivery]:
    """Return the judged deliveries, after all checks that precede a forward pass."""
    judged = []
    for one in deliveries:
        granted = one.granted
        checked = check_delivery(
            granted, granted.peer, one.raws, terms, arrived_ms=NOW_MS + 1, lease=granted.id, said=None
        )
        for record in checked.admitted:
            mine = sketch(record.tokens, 1)
            copies.seen(granted.id, record.record.index, mine, sum(record.logprobs))
        judged.append(checked.answered(()))
    return judged


def write(ledger: Ledger, deliveries: Sequence[Brought], judged: Sequence[JudgedDelivery]) -> None:
    """Write verdicts as intake does: those of 32 deliveries together."""
    for first in range(0, len(judged), 32):
        rows = [
            RecordRow(
                record=RecordId(verdict.record),
                lease=one.lease,
                index=verdict.index,
                peer=record.author,
                rule=verdict.rule,
                reward=1.0,
                tokens=len(record.tokens),
                version=VERSION,
                lag=0,
                received_ms=NOW_MS,
                generation_ms=900,
                detail="",
                envelope=record.raw,
            )
            for one in judged[first : first + 32]
            for verdict, record in zip(one.verdicts, one.records, strict=True)
            if record is not None
        ]
        ledger.work.deliveries_judged(rows, {one.lease: b"receipt" * 100 for one in judged[first : first + 32]}, NOW_MS)


def claim() -> int:
    options = arguments(__doc__ or "", reps=7).parse_args()
    learner, peers = Keypair.generate(), [Keypair.generate() for _ in range(PEERS)]
    terms = Terms(
        swarm=SWARM,
        chain=Chain(bases=(0,), head=VERSION),
        window=3,
        manifests={VERSION: MANIFEST},
        vocab_size=VOCABULARY,
    )
    copies = NearCopies()
    rates, writes = [], []
    with (
        tempfile.TemporaryDirectory(prefix="volery-bench-") as directory,
        Ledger(Path(directory) / "ledger.sqlite", swarm=SWARM) as ledger,
    ):
        for repetition in range(options.reps + 1):  # the first warms up imports and caches, and is not counted
            deliveries = brought(options.seed + repetition, learner, peers)
            ledger.work.leases_issued([_row(one) for one in deliveries])
            began = time.thread_time()  # time of one core: nothing here waits
            judged = judge(deliveries, terms, copies)
            took_s = time.thread_time() - began
            if any(verdict.rule is not Rule.ADMITTED for one in judged for verdict in one.verdicts):
                raise BenchmarkError("a record was rejected, so the figure would be of something else.")
            began = time.perf_counter()
            write(ledger, deliveries, judged)
            write_s = time.perf_counter() - began
            if repetition:
                rates.append(GROUPS * GROUP / took_s)
                writes.append(GROUPS * GROUP / write_s)
    say(
        table(
            ["repetition", "records a second", "written a second"],
            [
                [str(place + 1), number(rate, 0), number(written, 0)]
                for place, (rate, written) in enumerate(zip(rates, writes, strict=True))
            ],
        )
    )
    bars = [Bar(name="records_per_s", value=median(rates), at_least=RECORDS_AT_LEAST)]
    return conclude("intake", bars, figures={"written_per_s": median(writes)})


def _row(one: Brought) -> LeaseRow:
    return LeaseRow(
        lease=LeaseId(one.granted.id),
        peer=one.granted.peer,
        task="bench",
        prompt=one.granted.prompt_index,
        rollouts=GROUP,
        issued_ms=NOW_MS,
        deadline_ms=NOW_MS + 60_000,
        envelope=one.envelope,
    )


if __name__ == "__main__":
    main(claim)
