"""Experts on their way from a record to a batch: requested, judged, kept as bytes, and laid out for the trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from learner.curriculum.offline_stream import Logged, LoggedGroup
from learner.rollouts.admission import GrantedLease, check_delivery
from learner.rollouts.batch_arrays import batch_arrays, mixed, offline_arrays
from learner.rollouts.buffer import Batch, Completion, Group
from learner.rollouts.environment import Answered, Ended, Unfinished
from learner.rollouts.episodes import Episodes, utterance_of
from learner.rollouts.open_leases import LeaseTerms, Leasing, Prompt, delivery_bytes
from learner.rollouts.overlong import Overlong
from learner.rollouts.router_replay import joined_experts
from protocol.core.codec import pack_tokens
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.core.limits import MAX_EXPERT_BYTES, MAX_WORK_BYTES
from protocol.experts import Routing
from protocol.work import EXPERTS, MAX_RECORD_BYTES, Rule, read_record
from tests.support.trainer_fixture import NOW_MS, PEER, SWARM, granted, record, terms, version

ROUTING = Routing(layers=2, experts=4, top_k=2)
ASKED = granted(ext={EXPERTS: b""})
PLAIN = granted()
OF_THREE = bytes([0, 1, 2, 3] * 3)
MADE = PolicyVersion(1, 0)


def verdicts(lease: GrantedLease, routing: Routing | None, **changes: Any) -> list[tuple[Rule, str]]:
    raws = [record(lease.lease, index, **changes) for index in range(2)]
    under = terms(routing=routing)
    found = check_delivery(lease, PEER.peer_id, raws, under, arrived_ms=NOW_MS, lease=lease.id)
    return [(one.rule, one.detail) for one in found.verdicts]


def test_records_with_the_experts_of_all_their_tokens_are_admitted() -> None:
    assert verdicts(ASKED, ROUTING, experts=OF_THREE) == [(Rule.ADMITTED, "")] * 2
    assert verdicts(PLAIN, None) == [(Rule.ADMITTED, "")] * 2


@pytest.mark.parametrize(
    ("experts", "rule", "said"),
    [
        (b"", Rule.SETTINGS, "names no experts"),
        (OF_THREE[:-1], Rule.MALFORMED, "11 bytes of experts, expected 12 for 3 tokens, 2 layers and 2 experts each"),
        (OF_THREE + OF_THREE, Rule.MALFORMED, "24 bytes of experts"),
        (OF_THREE[:-1] + b"\xff", Rule.MALFORMED, "expert 255, but a layer has 4 experts"),
        (OF_THREE[:-1] + b"\x02", Rule.MALFORMED, "names an expert twice"),
    ],
    ids=["none", "too few", "too many", "no such expert", "one twice"],
)
def test_hostile_experts_are_refused_by_name(experts: bytes, rule: Rule, said: str) -> None:
    for found, detail in verdicts(ASKED, ROUTING, experts=experts):
        assert found is rule
        assert said in detail


def test_what_was_not_asked_for_is_refused() -> None:
    for routing in (ROUTING, None):
        assert [rule for rule, _ in verdicts(PLAIN, routing, experts=OF_THREE)] == [Rule.SETTINGS] * 2


def test_leases_of_a_run_that_replays_no_more_are_taken_as_they_are() -> None:
    assert [rule for rule, _ in verdicts(ASKED, None, experts=OF_THREE)] == [Rule.ADMITTED] * 2
    assert [rule for rule, _ in verdicts(ASKED, None)] == [Rule.ADMITTED] * 2


def test_a_record_of_more_bytes_than_allowed_is_not_read() -> None:
    raw = record(ASKED.lease, experts=bytes(MAX_EXPERT_BYTES))
    assert len(read_record(raw, SWARM.authority.swarm).record.experts) == MAX_EXPERT_BYTES
    assert MAX_RECORD_BYTES < MAX_WORK_BYTES


def lease_terms(**changes: Any) -> LeaseTerms:
    settings: dict[str, Any] = {"group_size": 4, "temperature": 1.0, "max_new_tokens": 8, "stop_ids": (0,)}
    return LeaseTerms(**settings, deadline_s=60.0, **changes)


def test_leases_ask_for_experts_where_they_are_replayed() -> None:
    for routing, ext in ((ROUTING, {EXPERTS: b""}), (None, {})):
        leasing = Leasing(terms=lease_terms(routing=routing), secret=bytes(32), new_id=lambda: bytes(16))
        granted_now = leasing.grant(PEER.peer_id, Prompt(task="t", index=0, tokens=(1,)), version("1.2"), NOW_MS)
        assert granted_now.lease.ext == ext


def test_what_a_lease_asks_for_fits_a_delivery_with_its_experts() -> None:
    large = Routing(layers=48, experts=128, top_k=8)
    assert delivery_bytes(4, 8, large) == delivery_bytes(4, 8) + 4 * 8 * 384
    fits = LeaseTerms(group_size=8, temperature=1.0, max_new_tokens=5000, stop_ids=(0,), deadline_s=60.0, routing=large)
    assert delivery_bytes(8, 5000, fits.routing) <= MAX_WORK_BYTES
    with pytest.raises(LocalProtocolError, match="may not fit a delivery"):
        LeaseTerms(group_size=8, temperature=1.0, max_new_tokens=6000, stop_ids=(0,), deadline_s=60.0, routing=large)


def test_an_episode_has_the_experts_of_all_its_turns_or_none() -> None:
    assert joined_experts([b"ab", b"c"]) == b"abc"
    assert joined_experts([b"ab", b""]) == b""
    raw = record(ASKED.lease, 0, experts=OF_THREE)
    signed = read_record(raw, SWARM.authority.swarm)
    one = GrantedLease(lease=granted(size=1, ext={EXPERTS: b""}).lease, prompt_index=0)
    episodes = Episodes()
    assert episodes.admitted(one, [utterance_of(signed, Answered(tokens=(9,)))]) is None
    [waiting] = episodes.waiting()
    later = GrantedLease(lease=granted(2, size=1).lease, prompt_index=0, place=waiting.place)
    assert episodes.leased(later)
    group = episodes.admitted(later, [utterance_of(signed, Ended(reward=1.0))])
    assert group is not None
    assert group.completions[0].experts == OF_THREE * 2
    assert len(group.completions[0].logprobs) == 6


@pytest.mark.parametrize(
    ("first", "second", "joined"),
    [(OF_THREE, OF_THREE, OF_THREE * 2), (b"", OF_THREE, b""), (OF_THREE, b"", b"")],
    ids=["both", "only the second", "only the first"],
)
def test_a_turn_that_two_nodes_made_has_the_experts_of_both_or_none(first: bytes, second: bytes, joined: bytes) -> None:
    said = [utterance_of(read_record(record(ASKED.lease, 0), SWARM.authority.swarm), Unfinished())]
    part, end = replace(said[0], experts=first), replace(said[0], reply=Ended(reward=1.0), experts=second)
    episodes = Episodes()
    assert episodes.returned(granted(size=1), {0: part}) is None
    [waiting] = episodes.waiting()
    later = replace(granted(2, size=1, prompt=pack_tokens(waiting.prompt.tokens)), place=waiting.place)
    assert episodes.leased(later)
    group = episodes.admitted(later, [end])
    assert group is not None
    assert group.completions[0].tokens == said[0].tokens * 2
    assert group.completions[0].experts == joined


def batch(*experts: bytes) -> Batch:
    """A group of completions of two tokens each."""
    group = Group(
        lease=LeaseId(bytes(16)),
        peer=PeerId("p"),
        prompt_index=0,
        prompt=(1, 2),
        completions=tuple(
            Completion(tokens=(3, 4), logprobs=(-1.0, -2.0), reward=1.0, spans=((2, MADE),), experts=one)
            for one in experts
        ),
        behaviour=frozenset({MADE}),
    )
    return Batch(groups=(group,), lags={group.lease: 0}, dropped={})


def test_a_batch_has_the_experts_of_each_generated_token() -> None:
    arrays = batch_arrays(batch(bytes(range(4)) * 2, b"", b"odd"), MADE, Overlong(), ROUTING)
    assert arrays["experts"].dtype == np.uint8
    assert arrays["experts"].shape == (6, 2, 2)
    assert arrays["experts"][1].tolist() == [[0, 1], [2, 3]]
    assert arrays["routed"].tolist() == [1, 1, 0, 0, 0, 0], (
        "tokens without experts must be trained on as without replay"
    )
    assert "experts" not in batch_arrays(batch(b""), MADE, Overlong())


def test_logs_have_no_experts_beside_a_swarm_that_has() -> None:
    log = LoggedGroup(prompt=(1,), completions=(Logged(tokens=(2, 5, 6), reward=0.75, logprobs=(-1.0,) * 3),))
    logs = dict(offline_arrays([log]))
    swarm = batch_arrays(batch(bytes([0, 1, 2, 3, 3, 2, 1, 0])), MADE, Overlong(), ROUTING)
    for whole in (mixed(swarm, logs), mixed(logs, swarm)):
        assert sorted(whole["routed"].tolist()) == [0, 0, 0, 1, 1]
        assert whole["experts"].shape == (5, 2, 2)
        assert whole["experts"][whole["routed"] == 1].ravel().tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    assert "experts" not in mixed(logs, logs)
