"""Test every rule of admission and their order; a group counts whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.rollouts.admission import GrantedLease, JudgedDelivery, Terms, check_delivery
from learner.rollouts.environment import Answered, Ended, Environment, Reply, Said
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.ids import PolicyVersion
from protocol.core.limits import MAX_GROUP_SIZE
from protocol.versions.staleness import Chain
from protocol.work import (
    MAX_RECEIPT_BYTES,
    MAX_RECORD_BYTES,
    Receipt,
    Rule,
    Sampler,
    Verdict,
    open_receipt,
)
from tests.support.environments import one_turn
from tests.support.examples import examples
from tests.support.trainer_fixture import (
    NOW_MS,
    OTHER,
    PEER,
    STOP,
    SWARM,
    VOCABULARY,
    even_share,
    granted,
    group,
    lease_id,
    manifest,
    record,
    terms,
    version,
    with_bad_signature,
)

LEASE = granted(minimum=version("1.2"))
EVEN_SHARE = one_turn(even_share)


def judge(
    raws: Sequence[bytes],
    lease: GrantedLease | None = LEASE,
    *,
    under: Terms | None = None,
    now_ms: int = NOW_MS + 1000,
    environment: Environment = EVEN_SHARE,
    said: Said | None = (),
) -> JudgedDelivery:
    """Check a delivery, and answer it as `environment` does."""
    name = lease.id if lease else LEASE.id
    checked = check_delivery(lease, PEER.peer_id, raws, under or terms(), arrived_ms=now_ms, lease=name, said=said)
    return checked.answered([environment(one.index, one.said, one.transcript) for one in checked.questions])


def rules(judged: JudgedDelivery) -> list[Rule]:
    return [verdict.rule for verdict in judged.verdicts]


def test_an_honest_group_is_admitted_in_the_order_of_its_seeds() -> None:
    first, second = record(LEASE.lease, 0, tokens=(2, 3, STOP)), record(LEASE.lease, 1, tokens=(1, 1, 1, 1))
    judged = judge([second, first])
    assert rules(judged) == [Rule.ADMITTED, Rule.ADMITTED]
    assert [one.signed.record.index for one in judged.group] == [0, 1]
    assert [one.reward for one in judged.group] == [pytest.approx(2 / 3), 0.0]
    assert [verdict.reward for verdict in judged.verdicts] == [0.0, pytest.approx(2 / 3)], "in the order of delivery"
    assert [verdict.record for verdict in judged.verdicts] == [digest_of(second), digest_of(first)]
    assert judged.tokens == 7
    assert judged.lag == 0


def test_the_reward_is_our_own_and_a_claim_is_only_remarked_upon() -> None:
    judged = judge([record(LEASE.lease, 0, reward=1.0), record(LEASE.lease, 1, reward=even_share(0, (1, 2, STOP)))])
    assert rules(judged) == [Rule.ADMITTED, Rule.ADMITTED]
    assert judged.verdicts[0].reward == pytest.approx(2 / 3)
    assert judged.verdicts[0].detail == "claimed reward 1, recomputed 0.666667"
    assert judged.verdicts[1].detail == ""


def test_what_goes_on_has_an_answer_and_no_reward_yet() -> None:
    asked: list[tuple[int, Said, int]] = []

    def environment(index: int, said: Said, transcript: int) -> Reply:
        asked.append((index, said, transcript))
        return Ended(reward=0.5) if said[-1][0] == 2 else Answered(tokens=(9,))

    raws = [record(LEASE.lease, 0, tokens=(1, STOP), reward=1.0), record(LEASE.lease, 1, tokens=(2, STOP))]
    judged = judge(raws, environment=environment, said=((7, STOP),))
    assert asked == [(7, ((7, STOP), (1, STOP)), 5), (7, ((7, STOP), (2, STOP)), 5)]
    assert [one.reply for one in judged.group] == [Answered(tokens=(9,)), Ended(reward=0.5)]
    assert [verdict.reward for verdict in judged.verdicts] == [None, 0.5]
    assert judged.verdicts[0].detail == "", "there is nothing yet to compare a claim with"


def test_an_episode_that_nobody_could_judge_is_credited_and_has_a_reward_only_if_it_counts() -> None:
    raws = [record(LEASE.lease, 0, tokens=(1, STOP), reward=1.0), record(LEASE.lease, 1, tokens=(2, STOP), reward=1.0)]

    def environment(index: int, said: Said, transcript: int) -> Reply:
        return Ended(reward=0.0, failure="timed out", void=said[-1][0] == 1)

    judged = judge(raws, environment=environment)
    assert rules(judged) == [Rule.ADMITTED, Rule.ADMITTED]
    assert [verdict.reward for verdict in judged.verdicts] == [None, 0.0]
    assert {verdict.detail for verdict in judged.verdicts} == {"no reward could be computed: timed out"}


def test_what_nobody_waits_for_any_more_is_credited_all_the_same() -> None:
    raws = [record(LEASE.lease, 0), record(LEASE.lease, 1)]
    judged = judge(raws, said=None)
    assert rules(judged) == [Rule.ADMITTED, Rule.ADMITTED]
    assert [(one.reply, one.reward) for one in judged.group] == [(None, None)] * 2
    assert judged.tokens == 6


@dataclass(frozen=True)
class Fault:
    """A way to break a record: changes to it, to what judges it, or to its bytes afterwards."""

    rule: Rule
    detail: str
    changes: dict[str, Any] | None = None
    spoil: Callable[[bytes], bytes] | None = None
    now_ms: int = NOW_MS + 1000


ONE_FAULT = {
    "too large": Fault(Rule.OVERSIZED, "bytes, at most", spoil=lambda raw: raw + bytes(MAX_RECORD_BYTES)),
    "no envelope": Fault(Rule.MALFORMED, "", spoil=lambda raw: b"\xc1 no message"),
    "nothing": Fault(Rule.MALFORMED, "", spoil=lambda raw: b""),
    "cut short": Fault(Rule.MALFORMED, "", spoil=lambda raw: raw[:-1]),
    "another lease's": Fault(Rule.UNKNOWN_LEASE, "the record names lease", {"lease": lease_id(2)}),
    "late": Fault(Rule.LATE, "arrived 1.0 s after the deadline", now_ms=NOW_MS + 61_000),
    "never published": Fault(Rule.UNKNOWN_VERSION, "version 3.9 was never published", {"made_by": "3.9"}),
    "between two publications": Fault(
        Rule.UNKNOWN_VERSION, "2.7 was never published", {"made_by": ("2.6", "2.6", "2.7")}
    ),
    "another manifest": Fault(
        Rule.UNKNOWN_VERSION, "version 2.6 has manifest", {"manifests": {version("2.6"): manifest(version("9.9"))}}
    ),
    "cut off by a restart": Fault(Rule.ORPHANED, "lost when the learner restarted", {"made_by": "1.5"}),
    "too old": Fault(Rule.STALE, "lag 4 at version 2.6, at most 3 allowed", {"made_by": "1.2"}),
    "one token too old": Fault(Rule.STALE, "lag 4", {"made_by": ("2.6", "1.2", "2.6")}),
    "a forged signature": Fault(Rule.BAD_SIGNATURE, "", spoil=with_bad_signature),
    "somebody else's": Fault(Rule.WRONG_PEER, "delivered by", {"author": OTHER}),
    "an index beyond the seeds": Fault(Rule.SETTINGS, "index 2, the lease has 2 seeds", {"index": 2}),
    "another temperature": Fault(
        Rule.SETTINGS, "sampled at 0.5, the lease says 1.0", {"sampler": Sampler(temperature=0.5)}
    ),
    "a format that is not taken": Fault(
        Rule.SETTINGS,
        "made with weights in the format int4, this swarm takes stored",
        {"ext": {"volery.quantized": b"int4"}},
    ),
    "a format that is none": Fault(
        Rule.SETTINGS,
        "made with weights in the format \\x1b[2J",
        {"ext": {"volery.quantized": b"\x1b[2J" + b"x" * 400}},
    ),
    "over the budget": Fault(Rule.SETTINGS, "5 tokens, the budget is 4", {"tokens": (1, 2, 3, 4, STOP)}),
    "no such token": Fault(Rule.SETTINGS, "token 64, the vocabulary has 64", {"tokens": (VOCABULARY, STOP)}),
    "the largest token there is": Fault(Rule.SETTINGS, "token 2147483647", {"tokens": (2**31 - 1, STOP)}),
    "goes on after the end": Fault(Rule.SETTINGS, "goes on after a stop token", {"tokens": (1, STOP, 2, 3)}),
    "ends in the middle": Fault(Rule.SETTINGS, "ends after 3 tokens with neither", {"tokens": (1, 2, 3)}),
}


@pytest.mark.parametrize("fault", ONE_FAULT.values(), ids=ONE_FAULT.keys())
def test_one_fault(fault: Fault) -> None:
    raw = record(LEASE.lease, **{"index": 1, **(fault.changes or {})})
    judged = judge([record(LEASE.lease, 0), fault.spoil(raw) if fault.spoil else raw], now_ms=fault.now_ms)
    assert judged.verdicts[1].rule is fault.rule
    assert fault.detail in judged.verdicts[1].detail
    assert not judged.group, "the good half of a group is not taken"
    assert not judged.verdicts[0].admitted
    assert judged.tokens == 0


def test_a_version_older_than_the_lease_asks_for() -> None:
    lease = granted(minimum=version("2.5"))
    judged = judge(group(lease, made_by=("2.5", "2.6", "2.4")), lease)
    assert rules(judged) == [Rule.SETTINGS] * 2
    assert judged.verdicts[0].detail == "made with version 2.4, the lease asks for 2.5 or newer"
    assert rules(judge(group(lease, made_by="2.5"), lease)) == [Rule.ADMITTED] * 2


def test_a_version_older_than_the_sender_said_that_it_begins_with() -> None:
    raws = group(LEASE, made_by=("2.5", "2.6", "2.5"))
    for begun, rule in (("2.4", Rule.ADMITTED), ("2.5", Rule.ADMITTED), ("2.6", Rule.SETTINGS)):
        checked = check_delivery(
            LEASE, PEER.peer_id, raws, terms(), arrived_ms=NOW_MS, lease=LEASE.id, begun=version(begun)
        )
        assert [verdict.rule for verdict in checked.verdicts] == [rule] * 2
    assert checked.verdicts[0].detail == "made with version 2.5, it was begun with 2.6"


def test_a_lease_that_is_not_open_for_the_sender() -> None:
    judged = judge(group(LEASE), None)
    assert rules(judged) == [Rule.UNKNOWN_LEASE] * 2
    assert "withdrawn while you were away" in judged.verdicts[0].detail


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sets(st.sampled_from(["unknown_lease", "late", "bad_signature", "wrong_peer", "settings"])),
    st.lists(st.sampled_from(["2.6", "1.2", "1.5", "3.9"]), min_size=3, max_size=3),
)
def test_the_first_rule_that_refuses_decides(broken: set[str], made_by: list[str]) -> None:
    changes: dict[str, Any] = {"made_by": made_by}
    if "unknown_lease" in broken:
        changes["lease"] = lease_id(9)
    if "wrong_peer" in broken:
        changes["author"] = OTHER
    if "settings" in broken:
        changes["sampler"] = Sampler(temperature=0.5)
    raw = record(LEASE.lease, **changes)
    if "bad_signature" in broken:
        raw = with_bad_signature(raw)
    judged = judge([raw, record(LEASE.lease, 1)], now_ms=NOW_MS + (61_000 if "late" in broken else 0))

    found = {Rule(name) for name in broken}
    found |= {{"1.2": Rule.STALE, "1.5": Rule.ORPHANED, "3.9": Rule.UNKNOWN_VERSION}[v] for v in made_by if v != "2.6"}
    order = list(Rule)
    assert judged.verdicts[0].rule is min(found or {Rule.ADMITTED}, key=order.index)


def test_a_forger_cannot_make_an_honest_record_a_duplicate() -> None:
    honest = group(LEASE)
    judged = judge([with_bad_signature(honest[0]), *honest])
    assert rules(judged) == [Rule.BAD_SIGNATURE, Rule.ADMITTED, Rule.ADMITTED]
    assert len(judged.group) == 2


def test_of_two_valid_records_for_one_index_the_first_counts() -> None:
    again = record(LEASE.lease, 0, tokens=(2, 2, 2, 2))
    judged = judge([record(LEASE.lease, 0), again, record(LEASE.lease, 1)])
    assert rules(judged) == [Rule.ADMITTED, Rule.DUPLICATE, Rule.ADMITTED]
    assert [one.signed.tokens for one in judged.group] == [(1, 2, STOP), (1, 2, STOP)]
    assert [verdict.reward is None for verdict in judged.verdicts] == [False, True, False]
    assert judged.tokens == 6


def test_a_refused_record_beside_a_whole_group_does_it_no_harm() -> None:
    judged = judge([*group(LEASE), record(LEASE.lease, 1, made_by="1.2")])
    assert rules(judged) == [Rule.ADMITTED, Rule.ADMITTED, Rule.STALE]
    assert judged.lag == 0, "the lag is that of what was admitted"


def test_a_group_with_a_record_that_is_too_old_is_stale_as_a_whole() -> None:
    judged = judge([record(LEASE.lease, 0), record(LEASE.lease, 1, made_by="1.2")])
    assert rules(judged) == [Rule.STALE, Rule.STALE]
    assert judged.verdicts[0].detail.startswith("its group has a record that is too old: lag 4")
    assert judged.lag == 4


@pytest.mark.parametrize("raws", [[], [record(LEASE.lease, 1)]])
def test_a_group_that_is_not_whole(raws: list[bytes]) -> None:
    judged = judge(raws)
    assert rules(judged) == [Rule.INCOMPLETE] * len(raws)
    assert not judged.group


def test_a_group_whose_records_span_an_installation_has_the_lag_of_its_oldest_token() -> None:
    judged = judge([record(LEASE.lease, 0, made_by=("1.4", "2.4", "2.5")), record(LEASE.lease, 1, made_by="2.6")])
    assert rules(judged) == [Rule.ADMITTED] * 2
    assert judged.lag == 2


# Honest peers around restarts and over a long run: staleness may cost them a record, nothing else.


def test_a_version_that_we_have_forgotten_is_too_old_and_not_a_lie() -> None:
    recent = {one: manifest(one) for one in map(version, ("2.4", "2.5", "2.6"))}
    judged = judge(group(LEASE, made_by="1.2"), under=terms(manifests=recent))
    assert rules(judged) == [Rule.STALE] * 2
    judged = judge(group(LEASE, made_by="1.6"), under=terms(manifests=recent))
    assert rules(judged) == [Rule.ORPHANED] * 2


def test_a_version_that_could_be_admissible_must_have_been_published() -> None:
    published = {one: manifest(one) for one in map(version, ("2.4", "2.6"))}
    judged = judge(group(LEASE, made_by="2.5"), under=terms(manifests=published))
    assert rules(judged) == [Rule.UNKNOWN_VERSION] * 2


def test_a_lease_from_before_a_restart_is_answered_with_a_version_from_after_it() -> None:
    lease = granted(minimum=version("1.4"))
    assert rules(judge(group(lease, made_by="2.4"), lease)) == [Rule.ADMITTED] * 2
    assert rules(judge(group(lease, made_by="1.4"), lease)) == [Rule.ADMITTED] * 2


@pytest.mark.parametrize("window", [0, 1, 3])
def test_the_window_is_the_bound_and_not_one_more(window: int) -> None:
    chain = Chain(bases=(0,), head=PolicyVersion(1, 9))
    versions = [PolicyVersion(1, number) for number in range(10)]
    lease = granted(minimum=PolicyVersion(1, 0))
    under = terms(chain=chain, window=window, manifests={one: manifest(one) for one in versions})
    found = [rules(judge(group(lease, made_by=str(one)), lease, under=under))[0] for one in versions]
    assert found == [Rule.STALE] * (9 - window) + [Rule.ADMITTED] * (window + 1)


# Work that a restart of ours made useless: not trained on, and counted.


def orphaned(*others: bytes, lease: GrantedLease = LEASE, **changes: Any) -> list[bytes]:
    """A group made with 1.5, which was published and cut off; `others` instead of the last record, if there are any."""
    first, *rest = group(lease, made_by="1.5", **changes)
    return [first, *(others or rest)]


def test_an_orphaned_group_counts_for_its_author_and_is_not_trained_on() -> None:
    judged = judge(orphaned())
    assert rules(judged) == [Rule.ORPHANED] * 2
    assert judged.group == ()
    assert (judged.tokens, judged.credited_tokens) == (0, 6)
    assert all(verdict.detail.endswith("it counts for you, and is not trained on") for verdict in judged.verdicts)
    assert all(verdict.reward is None for verdict in judged.verdicts)


def test_a_group_begun_before_the_restart_and_ended_after_it_is_orphaned_as_a_whole() -> None:
    judged = judge(orphaned(record(LEASE.lease, 1, made_by=("1.4", "2.5", "2.6"))))
    assert rules(judged) == [Rule.ORPHANED] * 2
    assert judged.verdicts[1].detail.startswith("its group has a record that was orphaned: ")
    assert judged.credited_tokens == 6


@pytest.mark.parametrize(
    ("other", "rule", "why"),
    [
        (record(LEASE.lease, 1, made_by="1.5", author=OTHER), Rule.ORPHANED, "delivered by"),
        (with_bad_signature(record(LEASE.lease, 1, made_by="1.5")), Rule.ORPHANED, "signature"),
        (record(LEASE.lease, 1, made_by="1.5", tokens=(1, 2, 3)), Rule.ORPHANED, "with neither a stop token"),
        (record(LEASE.lease, 0, made_by="1.5"), Rule.ORPHANED, "1 of its group are missing"),
        (record(LEASE.lease, 1, made_by="1.5", sampler=Sampler(temperature=0.5)), Rule.ORPHANED, "sampled at 0.5"),
        (record(LEASE.lease, 1, made_by="1.2"), Rule.STALE, "lag 4"),
        (record(granted(2).lease, 1, made_by="1.5"), Rule.UNKNOWN_LEASE, "names lease"),
    ],
)
def test_an_orphaned_group_with_another_fault_counts_for_nothing(other: bytes, rule: Rule, why: str) -> None:
    judged = judge(orphaned(other))
    assert rules(judged) == [Rule.ORPHANED, rule]
    assert why in judged.verdicts[1].detail
    assert "it does not count: 1 of its group are missing" in judged.verdicts[0].detail
    assert judged.credited_tokens == 0


def test_an_orphaned_version_must_have_been_published_and_lie_in_the_window() -> None:
    """Or a peer could name whatever a restart may have cut off."""
    made_up = judge(group(LEASE, made_by="1.6"), under=terms(manifests={version("1.5"): manifest(version("1.5"))}))
    assert rules(made_up) == [Rule.ORPHANED] * 2
    assert made_up.credited_tokens == 0
    assert "version 1.6 is not known here" in made_up.verdicts[0].detail
    other = {version("1.5"): manifest(version("9.9"))}
    assert judge(orphaned(manifests=other)).credited_tokens == 0
    old = judge(orphaned(), under=terms(chain=Chain(bases=(0, 4), head=version("2.9"))))
    assert (rules(old), old.credited_tokens) == ([Rule.ORPHANED] * 2, 0)
    assert "older than the window of 3 steps as well" in old.verdicts[0].detail


def test_an_orphaned_group_without_a_lease_counts_for_nothing() -> None:
    assert judge(orphaned(), None).credited_tokens == 0
    assert judge(orphaned(), now_ms=LEASE.lease.deadline_ms + 1).credited_tokens == 0


# Faults that a receipt must be able to hold.


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.binary(max_size=200) | st.just(record(LEASE.lease)), max_size=6))
def test_whatever_is_delivered_gets_a_verdict_each_and_they_fit_a_receipt(raws: list[bytes]) -> None:
    judged = judge(raws)
    assert len(judged.verdicts) == len(judged.records) == len(raws)
    for verdict in judged.verdicts:
        assert verdict.detail.isascii()
        assert len(verdict.detail) <= 512
    assert not judged.group, "two whole records are needed"


def test_details_are_ascii_whatever_a_peer_wrote() -> None:
    fields = msgspec.msgpack.decode(record(LEASE.lease))
    fields[1] = "ré" + "\N{SNOWMAN}" * 30
    judged = judge([msgspec.msgpack.encode(fields)])
    assert rules(judged) == [Rule.MALFORMED]
    assert judged.verdicts[0].detail.startswith("expected record, got 'r\\xe9\\u2603")


def test_the_longest_receipt_of_the_largest_group_fits() -> None:
    verdicts = [
        Verdict(record=bytes(32), index=MAX_GROUP_SIZE - 1, rule=Rule.UNKNOWN_VERSION, reward=-1e15, detail="x" * 512)
        for _ in range(MAX_GROUP_SIZE)
    ]
    receipt = Receipt(
        lease=LEASE.id,
        peer=PEER.peer_id,
        version=version("2.6"),
        issued_ms=NOW_MS,
        tokens=0,
        verdicts=verdicts,
        certificate=SWARM.certificate,
    )
    raw = sign(SWARM.learner, SWARM.authority.swarm, receipt)
    assert len(raw) <= MAX_RECEIPT_BYTES
    assert open_receipt(raw, SWARM.authority) == receipt


def test_a_format_that_is_taken() -> None:
    raws = group(LEASE, ext={"volery.quantized": b"int8"})
    assert rules(judge(raws, under=replace(terms(), formats=("stored", "int8")))) == [Rule.ADMITTED] * 2
    small = replace(terms(), formats=("int8",))
    assert rules(judge(raws, under=small)) == [Rule.ADMITTED] * 2
    refused = judge(group(LEASE), under=small)
    assert rules(refused) == [Rule.SETTINGS] * 2
    assert refused.verdicts[0].detail == "made with weights in the format stored, this swarm takes int8"
