"""Spans of a completion, and their seeds."""

from __future__ import annotations

from node.serving.spans import MOST_TOKENS, SPAN_TOKENS, choice_seed, span_tokens


def test_spans_grow_with_what_is_read_to_a_bound() -> None:
    assert span_tokens(1, joins=False) == SPAN_TOKENS
    assert span_tokens(4 * 100, joins=False) == 100
    assert span_tokens(10**6, joins=False) == MOST_TOKENS
    assert span_tokens(1, joins=True) is None


def test_every_choice_has_noise_of_its_own() -> None:
    assert choice_seed(7, 0) == 7
    found = {choice_seed(seed, choice) for seed in (7, 8) for choice in range(3)}
    assert len(found) == 6
    assert all(0 <= seed < 1 << 64 for seed in found)
