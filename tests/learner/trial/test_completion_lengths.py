"""A trial generates from real prompts first, then across every position at which a model may change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from learner.trial.completion_lengths import (
    BEYOND,
    FIRST_GROUP,
    FURTHEST,
    LONGEST,
    MAX_BENDS,
    PAST_IT,
    SHORT_TOKENS,
    Reach,
    Stretch,
    bends_of,
    stretches,
)

PROMPT = tuple(range(10, 22))


def test_a_model_without_bends_is_tried_on_its_prompt_and_as_long_as_the_run_allows() -> None:
    found = stretches([PROMPT], Reach(turn_tokens=100, tokens=512), [])
    assert found[:FIRST_GROUP] == [Stretch(prompt=PROMPT, tokens=SHORT_TOKENS, stops=True)] * FIRST_GROUP
    assert [one.end for one in found[FIRST_GROUP:]] == [len(PROMPT) + 100]
    assert found[-1].tokens == 2 * BEYOND


def test_a_run_of_a_few_tokens_is_tried_on_no_more() -> None:
    found = stretches([PROMPT], Reach(turn_tokens=1, tokens=512), [])
    assert [(one.tokens, one.stops) for one in found] == [*[(1, True)] * FIRST_GROUP, (1, False)]


def test_phi_with_long_rope_is_tried_before_and_across_the_end_of_its_original_context() -> None:
    found = stretches([PROMPT], Reach(turn_tokens=30, tokens=128), [24])
    assert [(len(one.prompt), one.end) for one in found[FIRST_GROUP:]] == [(12, 24), (12, 39), (12, 42)]


def test_a_bend_that_no_real_prompt_comes_near_is_crossed_with_a_prompt_that_is_filled_up() -> None:
    crossing = stretches([PROMPT], Reach(turn_tokens=8192, tokens=131_072), [4096])[FIRST_GROUP]
    assert (len(crossing.prompt), crossing.end) == (4096 - BEYOND, 4096 + BEYOND)
    assert crossing.prompt[:24] == PROMPT * 2


def test_a_prompt_beyond_the_bend_is_cut_before_it_and_tried_as_it_is() -> None:
    found = stretches([PROMPT * 3], Reach(turn_tokens=10, tokens=128), [24])
    assert found[0].prompt == PROMPT * 3
    assert [(len(one.prompt), one.end) for one in found[FIRST_GROUP:]] == [(12, 22), (19, 29), (36, 46)]


def test_episodes_of_several_turns_reach_as_far_as_their_tokens() -> None:
    one_turn, several = Reach(turn_tokens=16, tokens=512), Reach(turn_tokens=16, tokens=512, has_turns=True)
    assert [one.end for one in stretches([PROMPT], one_turn, [])] == [28] * (FIRST_GROUP + 1)
    assert stretches([PROMPT], several, [])[-1].end == 512


def test_a_longer_prompt_than_the_first_is_heeded() -> None:
    """A file whose first line is short, and others long: some completion of the run crosses the window."""
    reach = Reach(turn_tokens=100, tokens=8192, prompt_tokens=3000)
    assert 3100 >= max(one.end for one in stretches([PROMPT], reach, [512])) > 512
    assert any(len(one.prompt) < 512 < one.end for one in stretches([PROMPT], reach, [512]))


def test_every_task_has_its_first_prompt_tried() -> None:
    other = (7, 8, 9)
    found = stretches([PROMPT, other], Reach(turn_tokens=4, tokens=64), [])
    assert [one.prompt for one in found if one.stops] == [PROMPT, PROMPT, other]


def test_bends_are_found_at_any_depth_and_windows_that_are_switched_off_are_none() -> None:
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
    assert bends_of({"sliding_window": 512, "rope_parameters": {"full": rope}}) == [512, 4096]
    assert bends_of({"sliding_window": 512, "use_sliding_window": False, "rope_scaling": None}) == []
    assert bends_of({"text_config": {"sliding_window": None, "attention_chunk_size": 128, "n_layer": 2}}) == [128]
    assert bends_of({"original_max_position_embeddings": True, "sliding_window": "512"}) == []


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    turn_tokens=st.integers(1, 5000),
    room=st.integers(0, 20_000),
    has_turns=st.booleans(),
    bends=st.lists(st.integers(2, 40_000), max_size=5, unique=True).map(sorted),
)
def test_no_stretch_goes_beyond_the_run_and_every_bend_in_reach_is_crossed(
    lengths: list[int], turn_tokens: int, room: int, has_turns: bool, bends: list[int]
) -> None:
    prompts = [tuple(range(length)) for length in lengths]
    reach = Reach(turn_tokens=turn_tokens, tokens=max(lengths) + turn_tokens + room, has_turns=has_turns)
    found = stretches(prompts, reach, bends)
    assert [one.prompt for one in found[: FIRST_GROUP + len(prompts) - 1]] == [prompts[0], *prompts]
    far = reach.tokens if has_turns else max(lengths) + turn_tokens
    for one in found:
        assert 1 <= one.tokens <= turn_tokens
        assert one.prompt
        assert one.end <= far
        assert one.tokens <= max(SHORT_TOKENS, 2 * BEYOND)
        assert one.end <= max(FURTHEST + BEYOND, LONGEST, max(lengths) + SHORT_TOKENS)
    if lengths[0] < LONGEST:
        assert max(one.end for one in found if not one.stops) >= min(far, LONGEST)
    within = [bend for bend in bends if bend <= min(far - PAST_IT, FURTHEST)][:MAX_BENDS]
    if within:
        assert any(one.end <= within[0] for one in found)
    if turn_tokens > PAST_IT:
        assert all(any(len(one.prompt) < bend <= one.end - PAST_IT for one in found) for bend in within)
