"""The order of audits, their bounds, and that every lease is audited whole, once."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.rollouts.admission import AdmittedRecord
from learner.trust.audit_queue import TOKENS_TOGETHER, Agenda, Passage, Portion, Work, work_of
from learner.trust.ban_evidence import Found
from protocol.core.ids import LeaseId, ManifestHash, PolicyVersion
from protocol.work import read_record
from tests.support.examples import examples
from tests.support.trainer_fixture import OTHER, PEER, SWARM, granted, record


def passage(version: int = 1, *, start: int = 0, tokens: int = 3, seed: int = 7) -> Passage:
    return Passage(
        prompt=(5, 6),
        tokens=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        parts=((start, tokens),),
        seed=seed,
        temperature=1.0,
        version=PolicyVersion(1, version),
        manifest=ManifestHash(bytes([version]) * 32),
    )


def work(number: int, *passages: Passage, waits: bool = False) -> Work:
    lease = LeaseId(number.to_bytes(16, "big"))
    return Work(lease=lease, root=lease, peer=PEER.peer_id, passages=passages or (passage(),), waits=waits)


def numbers(portion: Portion | None) -> list[int]:
    assert portion is not None
    return [int.from_bytes(lease, "big") for lease, _, _ in portion.passages]


def found_of(portion: Portion) -> list[list[Found]]:
    """Each token's gap is its place, so that what comes out can be told."""
    return [[Found(gap=float(place), lead=1.0) for place in range(len(one.tokens))] for _, _, one in portion.passages]


def test_what_training_waits_for_comes_first_and_takes_its_version_along() -> None:
    agenda = Agenda()
    for one in (
        work(1, passage(1)),
        work(2, passage(2)),
        work(3, passage(2), waits=True),
        work(4, passage(3), waits=True),
    ):
        assert agenda.add(one) == []
    assert agenda.waiting == 2
    assert numbers(portion := agenda.next()) == [3, 2], "the oldest awaited group must come with others of its version"
    assert portion is not None
    assert agenda.next() == portion, "the same again until it is heard"
    assert [one.lease[-1] for one, _ in agenda.take_results(portion, found_of(portion))] == [3, 2]
    assert numbers(agenda.next()) == [4]
    assert len(agenda) == 2


def test_formats_of_one_version_are_asked_one_by_one() -> None:
    agenda = Agenda()
    for number, form in enumerate(["stored", "int4", "stored", "int4"], 1):
        agenda.add(work(number, replace(passage(1), form=form)))
    for numbers_of, form in (([1, 3], "stored"), ([2, 4], "int4")):
        portion = agenda.next()
        assert portion is not None
        assert (numbers(portion), portion.form) == (numbers_of, form)
        agenda.take_results(portion, found_of(portion))
    assert agenda.next() is None


def test_a_completion_of_two_versions_is_over_when_both_were_asked() -> None:
    agenda = Agenda()
    agenda.add(work(1, passage(1, tokens=2), passage(2, start=2, tokens=5)))
    first = agenda.next()
    assert first is not None
    assert first.version == PolicyVersion(1, 1)
    assert agenda.take_results(first, found_of(first)) == []
    second = agenda.next()
    assert second is not None
    assert second.version == PolicyVersion(1, 2)
    [(_, found)] = agenda.take_results(second, found_of(second))
    assert [one.gap for one in found] == [0.0, 1.0, 2.0, 3.0, 4.0], "each token must be compared with its own version"
    assert agenda.next() is None


def test_one_portion_is_bounded_unless_a_single_completion_is_more() -> None:
    agenda = Agenda()
    huge = passage(tokens=TOKENS_TOGETHER + 1)
    agenda.add(work(1, huge, replace(huge, seed=8), passage()))
    for expected in (1, 1, 1):
        portion = agenda.next()
        assert portion is not None
        assert len(portion.passages) == expected
        agenda.take_results(portion, found_of(portion))
    assert len(agenda) == 0


def test_however_often_a_completion_changes_its_version_each_reads_it_once() -> None:
    lease = granted(size=1)
    names = ["2.6", "2.6", "2.5", "2.6", "2.5", "2.5"]
    raw = record(lease.lease, 0, tokens=(1, 2, 3, 4, 5, 6), made_by=names)
    one = AdmittedRecord(signed=read_record(raw, SWARM.authority.swarm), reply=None)
    audit = work_of(lease, [one], waits=False)
    assert [(passage.version.version, passage.tokens) for passage in audit.passages] == [
        (6, (1, 2, 3, 4)),
        (5, (1, 2, 3, 4, 5, 6)),
    ]
    agenda, found = Agenda(), dict[int, list[float]]()
    agenda.add(audit)
    while (portion := agenda.next()) is not None:
        over = agenda.take_results(portion, found_of(portion))
        found[portion.version.version] = [1.0]
    [(_, tokens)] = over
    assert [one.gap for one in tokens] == [0.0, 1.0, 3.0, 2.0, 4.0, 5.0], "each by the version that made it"
    assert found.keys() == {5, 6}


def test_who_has_most_on_the_agenda_makes_room_first() -> None:
    agenda = Agenda(max_waiting=3)
    agenda.add(replace(work(1), peer=OTHER.peer_id))
    agenda.add(work(2))
    agenda.add(work(3))
    assert [one.lease[-1] for one in agenda.add(work(4))] == [2]
    assert [one.lease[-1] for one in agenda.add(replace(work(5), peer=OTHER.peer_id))] == [1], "as much: the oldest"
    assert [one.lease[-1] for one in agenda.add(replace(work(6, waits=True), peer=OTHER.peer_id))] == [3]


def test_room_is_made_by_the_oldest_that_nobody_waits_for() -> None:
    agenda = Agenda(max_waiting=2)
    agenda.add(work(1, waits=True))
    agenda.add(work(2))
    assert [one.lease[-1] for one in agenda.add(work(3))] == [2]
    assert [one.lease[-1] for one in agenda.add(work(4, waits=True))] == [3]
    assert [one.lease[-1] for one in agenda.add(work(5))] == [5], (
        "an audit that training does not wait for must give way"
    )
    assert [one.lease[-1] for one in agenda.add(work(6, waits=True))] == [1], (
        "the oldest of the waiting audits must give way"
    )


def test_what_is_gone_is_given_back() -> None:
    agenda = Agenda()
    agenda.add(work(1, passage(1), passage(2, start=1)))
    agenda.add(work(2, passage(2)))
    agenda.add(replace(work(3, passage(3)), peer=OTHER.peer_id))
    late = agenda.next()
    assert [one.lease[-1] for one in agenda.lost(ManifestHash(bytes([2]) * 32))] == [1, 2]
    assert late is not None
    assert agenda.take_results(late, found_of(late)) == [], "an answer that nobody waits for any more"
    assert [one.lease[-1] for one in agenda.withdraw(OTHER.peer_id)] == [3]
    assert agenda.clear() == []
    assert len(agenda) == 0


@settings(max_examples=examples(200))
@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4)),
        max_size=12,
    )
)
def test_every_lease_is_audited_whole_and_once(given: list[tuple[bool, list[tuple[int, int]]]]) -> None:
    agenda = Agenda()
    for number, (waits, parts) in enumerate(given):
        one = work(number, *(passage(version, tokens=tokens) for version, tokens in parts), waits=waits)
        assert agenda.add(one) == []
        assert agenda.add(one) == [], "it is there already"
    over: list[int] = []
    while (portion := agenda.next()) is not None:
        assert {one.manifest for _, _, one in portion.passages} == {portion.manifest}
        for one, found in agenda.take_results(portion, found_of(portion)):
            over.append(int.from_bytes(one.lease, "big"))
            assert len(found) == sum(tokens for _, tokens in given[over[-1]][1])
    assert sorted(over) == list(range(len(given)))
    assert agenda.waiting == 0


def test_tokens_are_bounded_too() -> None:
    agenda = Agenda(max_tokens=20)
    agenda.add(work(1, passage(tokens=8)))
    assert [one.lease[-1] for one in agenda.add(work(2, passage(tokens=9)))] == [1]
    assert agenda.add(work(3, passage(tokens=900)))[0].lease[-1] == 2
    assert len(agenda) == 1, "a single one is taken however large it is"


@pytest.mark.parametrize("waits", [True, False])
def test_what_was_given_up_is_said_once(waits: bool) -> None:
    agenda = Agenda()
    one = work(1, waits=waits)
    agenda.add(one)
    assert agenda.give_up(one.lease) == [one]
    assert agenda.give_up(one.lease) == []


@given(st.integers(0, 6), st.integers(1, 6))
def test_a_passage_has_the_experts_of_its_tokens(token_bytes: int, end: int) -> None:
    raw = record(granted(size=1).lease, 0, tokens=(1, 2, 3, 4, 5, 6), made_by=["2.5"] * end + ["2.6"] * (6 - end))
    signed = read_record(raw, SWARM.authority.swarm)
    experts = bytes(range(6 * token_bytes))
    signed = replace(signed, record=msgspec.structs.replace(signed.record, experts=experts))
    first, *_ = work_of(granted(size=1), [AdmittedRecord(signed=signed, reply=None)], waits=False).passages
    assert len(first.tokens) == end
    assert first.experts == experts[: token_bytes * end]
