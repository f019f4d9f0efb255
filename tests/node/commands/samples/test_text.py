"""Samples on a screen stay within its width, and are harmless for any completion."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from node.commands.samples.text import as_json, as_terminal, as_text
from node.commands.samples.view import Shown, chosen, shown_group
from node.learner_role.metrics.sample_selection import KeptCompletion, KeptGroup
from protocol.core.ids import LeaseId, PeerId, PolicyVersion
from protocol.core.visible import visible

TEXTS = {1: "rev:abc=", 2: "cba", 3: "<eos>", 4: "look: it rains\n", 5: "umbrella"}


def words(tokens: object) -> str:
    return "".join(TEXTS[token] for token in tokens)  # type: ignore[attr-defined]


def group(number: int, *rewards: float, text: str | None = None) -> KeptGroup:
    generated = ((0, 2), (3, 4))
    return KeptGroup(
        lease=LeaseId(bytes([number]) * 16),
        peer=PeerId("a peer of ours"),
        task="reverse",
        prompt_index=number,
        lag=2,
        prompt=(1,),
        completions=tuple(
            KeptCompletion(
                tokens=(2, 3, 4, 5),
                reward=reward,
                advantage=reward - 0.5,
                spans=((2, PolicyVersion(1, 3)), (1, PolicyVersion(1, 4))),
                generated=generated,
            )
            for reward in rewards
        ),
    )


def shown(*groups: KeptGroup) -> Shown:
    told = tuple(
        shown_group(one, number + 1, decode=words, task=one.task, peer_name="at\x1blas", verdicts={0: "admitted"})
        for number, one in enumerate(groups)
    )
    return Shown(
        version=PolicyVersion(1, 5), at_ms=1_760_000_000_000, rollouts=256, reward=0.25, kept=len(told), groups=told
    )


PAGE = """\
Version 1.5 was trained on 256 rollouts with mean reward 0.250 (2025-10-09 08:53:20 UTC); 1 group is
    kept, the worst first.

Group 1: prompt 7 of reverse, by at las f ours, lag 2, mean reward 0.500, lease 07070707
prompt, 1 tokens
: rev:abc=
1: reward 1.000, advantage +0.500, 4 tokens, 2 by version 1.3, 1 by version 1.4, admitted
| cba<eos>
: look: it rains
:
| umbrella
2: reward 0.000, advantage -0.500, 4 tokens, 2 by version 1.3, 1 by version 1.4, admitted
| cba<eos>
: look: it rains
:
| umbrella
"""


def test_a_page_of_samples() -> None:
    assert as_text(shown(group(7, 1.0, 0.0))) == PAGE


def test_the_best_and_the_worst_keep_their_numbers() -> None:
    whole = shown(group(1, 0.0, 0.4, 0.9), group(2, 0.2, 1.0))
    few = chosen(whole, best=2, worst=1)
    assert [(one.number, [c.number for c in one.completions]) for one in few.groups] == [(1, [1, 3]), (2, [2])]
    assert [one.number for one in chosen(whole, group=2).groups] == [2]
    assert chosen(whole, group=1, best=1).groups[0].completions[0].number == 3
    assert chosen(whole) == whole
    assert len(chosen(whole, best=99, worst=99).groups[0].completions) == 3


def test_long_prompts_are_shown_from_their_end() -> None:
    one = shown(group(1, 0.5))
    prompt = replace(one.groups[0].prompt, text="\n".join(f"line {number}" for number in range(40)))
    lines = as_text(replace(one, groups=(replace(one.groups[0], prompt=prompt),))).splitlines()
    assert ": (24 earlier lines not shown)" in lines
    assert ": line 24" in lines
    assert ": line 23" not in lines


def with_text(text: str) -> Shown:
    one = shown(group(1, 0.5))
    [completion] = one.groups[0].completions
    part = replace(completion.parts[0], text=text)
    completion = replace(completion, parts=(part,))
    return replace(one, groups=(replace(one.groups[0], completions=(completion,)),))


@given(st.text(max_size=200), st.integers(20, 120))
def test_no_text_can_do_anything_to_a_terminal(text: str, width: int) -> None:
    drawn = as_terminal(with_text(text), width=width, color=False)
    for line in drawn.splitlines():
        assert cell_len(line) <= width
    assert drawn.count("\n") >= 6
    assert not [c for c in drawn if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\rb", "a\\x0db"),
        ("a\tb", "a\\tb"),
        ("a\nb", "a\nb"),
        ("\u202edcba", "\\u202edcba"),
        ("\x9b31m", "\\x9b31m"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
        ("naïve 数学 \N{REPLACEMENT CHARACTER}", "naïve 数学 \N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_cannot_be_seen_is_written_out(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_nobody_can_write_lines_that_look_like_ours() -> None:
    forged = "x\n2: reward 1.000, advantage +9.000, 4 tokens, by 1.3, admitted"
    assert [line for line in as_text(with_text(forged)).splitlines() if line.startswith("2:")] == []


def test_the_form_for_programs_has_all_of_it() -> None:
    told = json.loads(as_json(with_text("a\x1b\u202eb")))
    assert (told["version"], told["rollouts"], told["groups_kept"]) == ("1.5", 256, 1)
    [one] = told["groups"]
    assert (one["task"], one["lag"], one["prompt_tokens"], one["left_out"]) == ("reverse", 2, [1], 0)
    [completion] = one["completions"]
    assert completion["made_by"] == [{"tokens": 2, "version": "1.3"}, {"tokens": 1, "version": "1.4"}]
    assert completion["parts"][0]["text"] == "a\x1b\u202eb"
    assert as_json(with_text("a\u202e")).isascii()
