"""From audits to trust: which peers wait, are trusted or are banned; honest peers are never banned."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trust.audit_history import FLOOR, NEWCOMER_GROUPS, AuditHistory, TrustLevel, after, is_audited, pardoned
from learner.trust.ban_evidence import Audited, Counted, Found, History, Margin, Measure, count_above, with_audit
from learner.trust.margins import (
    BETS,
    LARGE,
    MEDIUM,
    MEDIUM_PARAMETERS,
    SMALL,
    SMALL_PARAMETERS,
    TINY_PARAMETERS,
    Arithmetic,
    Experts,
    experts_in,
    margins_of,
)
from learner.trust.margins import TINY as MARGINS
from protocol.core.ids import LeaseId, ManifestHash

CLEAR, CLOSE = 1.0, 0.1
"""Leads of draws: beyond all rounding, and not."""

CLEAN = count_above([Found(gap=0.0, lead=CLEAR)] * 500 + [Found(gap=0.0, lead=CLOSE)] * 12, MARGINS)
MADE_UP = count_above([Found(gap=2.0 * (place < 25), lead=CLEAR, apart=2.0) for place in range(28)], MARGINS)
SECRET = bytes(32)


def passed(count: int, known: AuditHistory | None = None) -> AuditHistory:
    known = known or AuditHistory()
    for _ in range(count):
        known, _ = after(known, CLEAN, MARGINS)
    return known


def lease(number: int) -> LeaseId:
    return LeaseId(number.to_bytes(16, "big"))


def version(number: int) -> ManifestHash:
    """Return the version of a lease: four leases in a row have the same."""
    return ManifestHash((number // 4).to_bytes(32, "big"))


def test_a_newcomer_waits_until_enough_have_passed() -> None:
    for count in range(NEWCOMER_GROUPS):
        known = passed(count)
        assert (known.standing, known.waits, known.share) == (TrustLevel.NEWCOMER, True, 1.0)
        assert all(is_audited(known, SECRET, lease(number), version(number)) for number in range(64))
    assert passed(NEWCOMER_GROUPS).standing is TrustLevel.TRUSTED


def test_what_passes_is_suspected_while_all_audits_together_speak_against_its_peer() -> None:
    """An audit with a token or two of 28 that no rounding explains passes, but is no reason to trust a newcomer. One of
    a trusted peer may be chance, and one or two honest audits then clear it.
    """
    off = [[Found(gap=2.0 * (place < number), lead=CLEAR) for place in range(28)] for number in range(3)]
    findings = [after(AuditHistory(), count_above(one, MARGINS), MARGINS) for one in off]
    assert [finding.passed for _, finding in findings] == [True] * 3
    assert [finding.suspected for _, finding in findings] == [False, True, True]
    known = findings[2][0]
    for _ in range(4):
        known, finding = after(known, CLEAN, MARGINS)
    assert finding.suspected is False
    trusted = [after(passed(NEWCOMER_GROUPS), count_above(one, MARGINS), MARGINS)[1].suspected for one in off]
    assert trusted == [False, False, True]
    assert after(passed(NEWCOMER_GROUPS), CLEAN, MARGINS)[1].suspected is False


def test_who_is_trusted_is_audited_by_chance_and_where_something_is_odd() -> None:
    known = passed(10_000)
    share = sum(is_audited(known, SECRET, lease(number), version(number)) for number in range(20_000)) / 20_000
    assert 0.8 * FLOOR < share < 1.2 * FLOOR
    assert all(is_audited(known, SECRET, lease(number), version(number), odd=True) for number in range(64))
    chosen = [is_audited(known, SECRET, lease(number), version(number), floor=0.5) for number in range(2000)]
    assert 0.45 < sum(chosen) / 2000 < 0.55


def test_made_up_tokens_are_found_at_once_and_however_long_one_was_honest() -> None:
    for known in (AuditHistory(), passed(500)):
        found, finding = after(known, MADE_UP, MARGINS)
        assert (finding.passed, finding.convicted, found.standing) == (False, True, TrustLevel.BANNED)
        assert "in 28 of 28 contexts log probabilities" in finding.detail
        own = count_above([Found(gap=2.0 * (place < 25), lead=CLEAR) for place in range(28)], MARGINS)
        assert after(known, own, MARGINS)[1].detail == (
            "25 of 28 tokens (at most one for each context) are not what the seeded sampler draws with the version"
            " named (more than 0.4 nats below it, where it leads by more than 0.4), where 0.01% are allowed"
        )
        assert found.banned == finding.detail
        assert after(found, CLEAN, MARGINS)[0].standing is TrustLevel.BANNED, "an honest audit takes nothing back"
        again = pardoned(found)
        assert (again.standing, again.failed) == (TrustLevel.NEWCOMER, 1)


def test_a_group_that_fails_is_a_soft_strike() -> None:
    some = count_above([Found(gap=0.2 * (place < 9), lead=CLOSE) for place in range(28)], MARGINS)
    known, finding = after(passed(100), some, MARGINS)
    assert not finding.passed
    assert not finding.convicted
    assert (known.passed, known.failed, known.standing) == (0, 1, TrustLevel.SUSPECT)
    assert finding.detail.startswith("9 of 28 tokens")
    assert finding.detail.endswith("where it leads by 0.06 to 0.15), where 2% are allowed")
    calm = passed(3000, known)
    assert calm.standing is TrustLevel.TRUSTED, "honest audits take suspicion back"


@pytest.mark.rest
def test_an_honest_peer_at_the_very_margin_is_never_banned() -> None:
    """Exactly as many tokens are beyond each margin as an honest peer may have: 200 lives of 200 audits."""
    chance = random.Random(5)
    for _ in range(200):
        known, failed = AuditHistory(), 0
        for _ in range(200):
            trials = [1 if margin.measure is Measure.MEAN else 64 for margin in MARGINS]
            counts = tuple(
                Counted(above=sum(chance.random() < margin.rate for _ in range(of)), trials=of)
                for margin, of in zip(MARGINS, trials, strict=True)
            )
            known, finding = after(known, Audited(tokens=192, counts=counts), MARGINS)
            failed += not finding.passed
        assert known.standing is not TrustLevel.BANNED
        assert failed <= 2


def test_a_large_model_is_given_more_room_and_a_cheat_in_it_is_found_all_the_same() -> None:
    assert margins_of(TINY_PARAMETERS) is MARGINS
    assert margins_of(TINY_PARAMETERS + 1) is margins_of(SMALL_PARAMETERS) is SMALL
    assert margins_of(SMALL_PARAMETERS + 1) is margins_of(MEDIUM_PARAMETERS) is MEDIUM
    assert margins_of(MEDIUM_PARAMETERS + 1) is LARGE
    assert margins_of(TINY_PARAMETERS, experts=Experts.TOLD) is margins_of(MEDIUM_PARAMETERS, experts=Experts.TOLD)
    assert margins_of(MEDIUM_PARAMETERS + 1, experts=Experts.TOLD) is LARGE


@given(st.integers(0, 1 << 40), st.sampled_from(Arithmetic), st.sampled_from(Experts))
def test_there_are_as_many_bets_on_all_margins_so_that_what_was_heard_goes_on(
    parameters: int, arithmetic: Arithmetic, experts: Experts
) -> None:
    margins = margins_of(parameters, arithmetic, experts)
    known = with_audit(History(), count_above([Found(gap=0.0, lead=1.0)], margins), margins)
    assert len(known.log_wealth) == BETS


def test_margins_of_a_mixture_are_nowhere_closer_than_those_of_a_dense_model_of_its_size() -> None:
    for arithmetic in Arithmetic:
        for parameters in (TINY_PARAMETERS, SMALL_PARAMETERS, MEDIUM_PARAMETERS + 1):
            dense = margins_of(parameters, arithmetic)
            for experts in Experts:
                for one, other in zip(margins_of(parameters, arithmetic, experts), dense, strict=True):
                    assert (one.measure, one.over, one.upto) == (other.measure, other.over, other.upto)
                    assert one.above >= other.above
                    assert one.rate >= other.rate


def test_whether_experts_are_told_goes_by_config_and_lease() -> None:
    moe = {"model_type": "qwen3_moe", "num_experts": 128}
    assert experts_in(moe, told=True) is Experts.TOLD
    assert experts_in(moe, told=False) is Experts.UNKNOWN
    assert experts_in({"model_type": "qwen3"}, told=False) is Experts.NONE
    assert experts_in(None, told=True) is Experts.NONE
    assert len(LARGE) == len(MEDIUM) == len(SMALL) == len(MARGINS), (
        "a peer's history must stay when a model gets more margins"
    )
    rounded = [Found(gap=0.2 * (place < 12), lead=CLOSE, apart=0.02) for place in range(60)]
    rounded += [Found(gap=0.6 * (place < 3), lead=0.3) for place in range(80)]
    rounded += [Found(gap=3.0 * (place < 1), lead=CLEAR) for place in range(372)]
    assert after(AuditHistory(), count_above(rounded, LARGE), LARGE)[0].standing is TrustLevel.NEWCOMER
    assert after(AuditHistory(), count_above(rounded, MARGINS), MARGINS)[0].standing is TrustLevel.BANNED
    greedy = [Found(gap=3.0 * (place < 120), lead=CLEAR) for place in range(512)]
    assert after(AuditHistory(), count_above(greedy, LARGE), LARGE)[0].standing is TrustLevel.BANNED


def audit_of(apart: float, tokens: int) -> Audited:
    """A group of 56 tokens, of which so many have a log probability that is so far off."""
    found = [Found(gap=0.0, lead=CLEAR, apart=apart if place < tokens else 0.001) for place in range(56)]
    return count_above(found, MARGINS)


@pytest.mark.parametrize("margins", [MARGINS, SMALL, MEDIUM, LARGE])
def test_a_context_that_eight_completions_share_is_off_once(margins: Sequence[Margin]) -> None:
    """However far: one place where a machine computes otherwise is no proof of anything."""
    shared = [Found(gap=0.0, lead=CLEAR, apart=9.0, context=1)] * 8
    alone = [Found(gap=0.0, lead=CLEAR, apart=0.001, context=2 + place) for place in range(500)]
    counted = count_above([*shared, *alone], margins)
    assert (counted.tokens, counted.counts[-1]) == (508, Counted(above=1, trials=501))
    known, finding = after(AuditHistory(), counted, margins)
    assert finding.passed
    assert known.standing is TrustLevel.NEWCOMER
    assert not after(AuditHistory(), count_above(shared[:1] * 3, margins), margins)[1].convicted, "nor in a short one"


def test_what_a_group_has_in_common_is_no_evidence_of_many() -> None:
    """As it was seen of an honest peer in bfloat16: eight completions that begin alike, and a likelihood on an edge."""
    known, finding = after(AuditHistory(), audit_of(0.3, 7), MARGINS)
    assert finding.passed
    for _ in range(200):
        known = passed(100, known)
        known, finding = after(known, audit_of(0.3, 7), MARGINS)
        assert finding.passed
        assert known.standing is TrustLevel.TRUSTED


def test_false_log_probabilities_are_found_in_some_groups_and_absurd_ones_in_one() -> None:
    known, groups = AuditHistory(), 0
    while known.standing is not TrustLevel.BANNED:
        known, finding = after(known, audit_of(0.2, 56), MARGINS)
        groups += 1
    assert groups <= 8
    assert (
        "the 56 log probabilities are 0.01 nats and more from those of the version named, on average" in finding.detail
    )
    assert after(passed(500), audit_of(20.0, 20), MARGINS)[1].convicted
    assert not after(passed(500), audit_of(20.0, 5), MARGINS)[1].passed
