"""Feed thousands of wrong deliveries to the intake that judges them: each gets a verdict, and the learner goes on.

One learner lives through all examples of a test, with ledger, store and threads as they are; hypothesis runs beside it
and delivers the examples. The admitted records are compared with a second, literal reading of the rules.
"""

from __future__ import annotations

import gc
import math
import struct
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from learner.rollouts.admission import GrantedLease
from protocol.core.identity import verify
from protocol.core.ids import PeerId, PublicKey
from protocol.core.limits import MAX_REASON_CHARS
from protocol.versions.staleness import Chain
from protocol.work import Delivery, Receipt, Rule, Verdict, open_receipt
from tests.node.learner_role.peers.test_intake import lend, open_chain
from tests.support.growth_check import grown, rows_of, sizes_of
from tests.support.learner_fixture import Learner, Settings, hand_in, open_learner
from tests.support.message_mutations import CLAIMS, Mutation, Setting
from tests.support.trainer_fixture import (
    NOW_MS,
    OTHER,
    PEER,
    STOP,
    SWARM,
    VOCABULARY,
    granted,
    group,
    lease_id,
    manifest,
    version,
)

BUDGET, SEEDS = 4, 2
MADE_BY = "2.3"
FEW = 12
"""Examples of one class in `make test`: 400 in all."""

MANY = 300
"""The same in `make test-full`: 10,000 in all."""


def examples(number: int) -> settings:
    """Return settings for so many examples, the same ones in every run."""
    return settings(
        max_examples=number, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )


class Bench:
    """A learner at version 2.3, restarted at step 2 (so 1.3 was cut off), with S = 1; leases are made on request."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.numbers = count(1)
        open_chain(learner)
        learner.capacity.chain = Chain(bases=(0, 2), head=version(MADE_BY))
        learner.capacity.manifests = {one: manifest(one) for one in map(version, ("1.3", "2.2", MADE_BY))}

    def lease(self) -> GrantedLease:
        """Return the next lease, which no peer holds yet: hypothesis may give an example up while it draws."""
        return granted(next(self.numbers), minimum=version("1.0"))

    def lend(self, lease: GrantedLease) -> None:
        lend(self.learner, int.from_bytes(lease.id, "big"), minimum=version("1.0"))

    def setting(self) -> Setting:
        stale, orphaned = version("1.1"), version("1.3")
        return Setting(
            swarm=SWARM.authority.swarm, author=PEER, other=OTHER, other_lease=lease_id(10**9), budget=BUDGET,
            stop=STOP, vocabulary=VOCABULARY, seeds=SEEDS, stale=([1, 1], manifest(stale)),
            orphaned=([1, 3], manifest(orphaned)),
        )  # fmt: skip

    def hand_in(self, lease: GrantedLease, raws: Sequence[bytes], peer: PeerId = PEER.peer_id) -> Receipt:
        """From a thread of hypothesis: deliver, and return what the learner signed."""
        told = Delivery(lease=lease.id, records=list(raws))
        answer = trio.from_thread.run(hand_in, self.learner, peer, told)
        receipt = open_receipt(answer.receipt, SWARM.authority)
        assert (receipt.lease, receipt.peer) == (lease.id, peer)
        assert len(receipt.verdicts) == len(raws), "a verdict each"
        for verdict in receipt.verdicts:
            assert verdict.rule is not Rule.OTHER
            assert verdict.admitted or verdict.detail, "a rejection must say what was measured"
            assert len(verdict.detail) <= MAX_REASON_CHARS
        return receipt


def payload_of(raw: bytes) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.decode(raw)[3])


def honest_tree(lease: GrantedLease, index: int) -> dict[str, Any]:
    found: dict[str, Any] = payload_of(group(lease, made_by=MADE_BY)[index])
    return found


def keeps_to(lease: GrantedLease, raw: bytes) -> bool:
    """Return whether the bytes keep the rules of a lease, read literally. It shares nothing with the intake but
    the signature check.
    """
    swarm, kind, key, payload, signature = msgspec.msgpack.decode(raw)
    parts = (b"volery/1/" + swarm, kind.encode(), payload)
    signed = b"".join(varint(len(part)) + part for part in parts)
    word = msgspec.msgpack.decode(payload)
    count = len(word["tokens"]) // 4
    tokens = struct.unpack(f"<{count}I", word["tokens"])
    logprobs = struct.unpack(f"<{count}f", word["logprobs"])
    named = {tuple(span[2]): span[3] for span in word["spans"]}
    published = {(2, 2): manifest(version("2.2")), (2, 3): manifest(version("2.3"))}
    return (
        verify(PublicKey(key), signature, signed)
        and (swarm, kind, key) == (SWARM.authority.swarm, "record", PEER.public)
        and word["lease"] == lease.id
        and 0 <= word["index"] < SEEDS
        and 1 <= count <= BUDGET
        and all(token < VOCABULARY for token in tokens)
        and STOP not in tokens[:-1]
        and (tokens[-1] == STOP or count == BUDGET)
        and all(-100 <= one <= 1e-3 for one in logprobs)
        and word["spans"][0][0] == 0
        and word["spans"][-1][1] == count
        and all(one[1] == two[0] for one, two in zip(word["spans"], word["spans"][1:], strict=False))
        and named.items() <= published.items()
        and word["sampler"].get("temperature", 1.0) == 1.0
        and math.isfinite(word.get("reward") or 0.0)
    )


def varint(value: int) -> bytes:
    low = value & 0x7F
    return bytes([low | 0x80]) + varint(value >> 7) if value >> 7 else bytes([low])


def require_lawful(lease: GrantedLease, raws: Sequence[bytes], verdicts: Sequence[Verdict]) -> None:
    """Check that a group is admitted whole or not at all, and only if all of it keeps the lease's rules."""
    taken = [raw for raw, verdict in zip(raws, verdicts, strict=True) if verdict.admitted]
    if not taken:
        return
    assert sorted(payload_of(raw)["index"] for raw in taken) == list(range(SEEDS))
    assert all(keeps_to(lease, raw) for raw in taken)


def require_settled(learner: Learner) -> None:
    """Check that nothing is under way, and that the ledger, the buffer and the receipts agree on what was admitted."""
    assert learner.capacity.leasing.open_rollouts == 0
    assert (learner.capacity.leasing.judging, learner.run.asked) == ({}, 0)
    waiting = learner.ledger.work.unconsumed()
    assert len(waiting) == len(learner.capacity.buffer)
    told = [
        verdict.record
        for raw in learner.ledger.evidence.newest_receipts(10**6)
        for verdict in open_receipt(raw, SWARM.authority).verdicts
        if verdict.admitted
    ]
    assert len(told) == len(set(told)) == len(waiting)


async def beside(learner: Learner, work: Callable[[], None]) -> None:
    """Run `work` on a thread while the learner judges what it hands in."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(learner.intake.run, learner.arriving)
        await trio.to_thread.run_sync(work)
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
def number(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("name", CLAIMS)
async def test_a_record_made_wrong_is_refused_by_its_rule_and_the_honest_one_after_it_is_admitted(
    tmp_path: Path, name: str, number: int
) -> None:
    mutation, found = CLAIMS[name], Counter[Rule]()
    may_be = mutation.rules | ({Rule.ADMITTED, Rule.INCOMPLETE, Rule.DUPLICATE} if mutation.harmless else set())
    async with open_learner(tmp_path) as learner:
        bench = Bench(learner)

        @examples(number)
        @given(st.data())
        def refuse(data: st.DataObject) -> None:
            lease, place = bench.lease(), data.draw(st.integers(0, 1))
            raws = group(lease, made_by=MADE_BY)
            raws[place] = data.draw(made(mutation, lease, place, bench.setting()))
            bench.lend(lease)
            receipt = bench.hand_in(lease, raws)
            assert receipt.verdicts[place].rule in may_be, receipt.verdicts[place]
            require_lawful(lease, raws, receipt.verdicts)
            found[receipt.verdicts[place].rule] += 1
            again = bench.hand_in(lease, raws)
            assert again == receipt, "the second answer differs from the first"

        def all_of_it() -> None:
            refuse()
            lease = bench.lease()
            bench.lend(lease)
            receipt = bench.hand_in(lease, group(lease, made_by=MADE_BY))
            assert all(verdict.admitted for verdict in receipt.verdicts), "the learner must still admit honest rollouts"

        await beside(learner, all_of_it)
        assert sum(found[rule] for rule in mutation.rules) > 0, f"a weak mutation: {found}"
        require_settled(learner)


@st.composite
def made(draw: st.DrawFn, mutation: Mutation, lease: GrantedLease, place: int, setting: Setting) -> bytes:
    return mutation.make(draw, honest_tree(lease, place), setting)


# Several deliveries at once, in any order, repeated, and of other leases.

WAYS = ("whole", "half", "doubled", "backwards", "one wrong", "all wrong", "nothing", "many", "another's", "late")


def mixed(draw: st.DrawFn, way: str, lease: GrantedLease, other: GrantedLease, setting: Setting) -> list[bytes]:
    """Draw a delivery for `lease`, with the fault that `way` names."""
    raws = group(lease, made_by=MADE_BY)
    any_claim = st.sampled_from(sorted(set(CLAIMS) - {"a million tokens", "too many bytes"})).map(CLAIMS.__getitem__)
    match way:
        case "half":
            return raws[:1]
        case "doubled":
            return draw(st.permutations([*raws, *raws]))
        case "backwards":
            return raws[::-1]
        case "one wrong":
            wrong = draw(any_claim).make(draw, honest_tree(lease, 0), setting)
            return draw(st.permutations([wrong, *raws[1:]]))
        case "all wrong":
            return [draw(any_claim).make(draw, honest_tree(lease, place), setting) for place in range(SEEDS)]
        case "nothing":
            return []
        case "many":
            return [draw(any_claim).make(draw, honest_tree(lease, 0), setting)] * 1022 + raws
        case "another's":
            return draw(st.permutations([*raws, *group(other, made_by=MADE_BY)]))[: draw(st.integers(0, 4))]
        case _:
            return raws


@pytest.mark.parametrize("times", [6, pytest.param(60, marks=pytest.mark.slow)], ids=["few", "many"])
async def test_deliveries_in_any_order_are_answered_once_and_admitted_whole(tmp_path: Path, times: int) -> None:
    found: dict[str, Counter[Rule]] = {way: Counter() for way in WAYS}
    async with open_learner(tmp_path) as learner:
        bench = Bench(learner)

        @examples(times)
        @given(st.data())
        def mix(data: st.DataObject) -> None:
            told: list[tuple[GrantedLease, Receipt]] = []
            for way in data.draw(st.permutations(WAYS)):
                lease, other = bench.lease(), bench.lease()
                raws = data.draw(st.composite(mixed)(way, lease, other, bench.setting()))
                thief = data.draw(st.booleans())
                deadline_ms = NOW_MS - 1 if way == "late" else NOW_MS + 60_000
                number = int.from_bytes(lease.id, "big")
                lend(learner, number, minimum=version("1.0"), deadline_ms=deadline_ms)
                if thief:
                    stolen = bench.hand_in(lease, raws, OTHER.peer_id)
                    assert {verdict.rule for verdict in stolen.verdicts} <= {Rule.UNKNOWN_LEASE, *SHAPES}
                receipt = bench.hand_in(lease, raws)
                require_lawful(lease, raws, receipt.verdicts)
                found[way].update(verdict.rule for verdict in receipt.verdicts)
                told.append((lease, receipt))
                for known, before in data.draw(st.lists(st.sampled_from(told), max_size=3)):
                    again = Delivery(lease=known.id, records=raws)
                    answer = trio.from_thread.run(hand_in, learner, PEER.peer_id, again)
                    assert open_receipt(answer.receipt, SWARM.authority) == before, (
                        "a later answer differs from the first"
                    )

        await beside(learner, mix)
        assert set(found["whole"]) == set(found["backwards"]) == {Rule.ADMITTED}
        assert found["doubled"][Rule.ADMITTED] == found["doubled"][Rule.DUPLICATE] > 0
        assert found["many"][Rule.ADMITTED] > 0, "a whole group must be admitted beside wrong records"
        assert set(found["half"]) == {Rule.INCOMPLETE}
        assert set(found["late"]) == {Rule.LATE}
        assert not found["nothing"]
        assert found["one wrong"].keys() - {Rule.ADMITTED, Rule.INCOMPLETE}
        assert Rule.UNKNOWN_LEASE in found["another's"]
        require_settled(learner)


SHAPES = frozenset({Rule.MALFORMED, Rule.OVERSIZED})

# No growth.

WARM_UP, MEASURED = 300, 1000
LEFT_BYTES = 128 * 1024
"""Bytes that 1000 rejected deliveries may leave in memory, about 130 each. Our own pages count, SQLite's do not."""


async def test_a_thousand_refused_deliveries_leave_nothing_behind(tmp_path: Path) -> None:
    corpus: list[tuple[str, bytes]] = []
    async with open_learner(tmp_path, Settings(audits=True)) as learner:
        bench = Bench(learner)
        rejected = sorted(name for name, mutation in CLAIMS.items() if not mutation.harmless)
        heavy = {"a million tokens", "too many bytes"}

        @examples(WARM_UP + MEASURED)
        @given(st.data())
        def collect(data: st.DataObject) -> None:
            name = data.draw(st.sampled_from([name for name in rejected if name not in heavy]))
            lease = granted(1, minimum=version("1.0"))
            corpus.append((name, data.draw(made(CLAIMS[name], lease, 0, bench.setting()))))

        def refuse(first: int, number: int) -> None:
            for place in range(first, first + number):
                lease = bench.lease()
                if place % 4 == 0:  # the lease is open: the ledger then keeps the rejection
                    bench.lend(lease)
                receipt = bench.hand_in(lease, [corpus[place % len(corpus)][1]] * 3)
                assert not any(verdict.admitted for verdict in receipt.verdicts)
            learner.log.clear()
            gc.collect()

        def all_of_it() -> None:
            collect()
            refuse(0, WARM_UP)
            parts = (learner.run, learner.sessions, learner.intake, learner.recorder, learner.watch)
            sizes, rows = sizes_of(*parts), rows_of(learner.ledger.path)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            refuse(WARM_UP, MEASURED)
            left = tracemalloc.get_traced_memory()[0] - before
            tracemalloc.stop()
            assert grown(sizes, sizes_of(*parts)) == {}
            more = {
                name: after - rows[name] for name, after in rows_of(learner.ledger.path).items() if after != rows[name]
            }
            tables = ("lease_rows", "lease_payloads", "receipts", "record_rows")
            assert more == dict.fromkeys(tables, MEASURED // 4), "the same bytes three times must be one record"
            assert left < LEFT_BYTES, left

        await beside(learner, all_of_it)
