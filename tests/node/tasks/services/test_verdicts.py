"""Write the question to a judge model, and read its verdict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.services.terms import MAX_WHY_CHARACTERS, Unsaid
from node.tasks.services.verdicts import PROMPT, message_of, messages, score_of

SCALE = (0.0, 10.0)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ('{"score": 7, "reason": "good"}', 0.7),
        ('  {"reason": "good", "score": 10}\n', 1.0),
        ('```json\n{"score": 0}\n```', 0.0),
        ('```\n{"score": 2.5}\n```', 0.25),
        ('<think>a score: 9 perhaps, {"score": 9}</think>{"score": 3}', 0.3),
        ("Good, but long.\nScore: 8", 0.8),
        ("**Final score: 8/10**", 0.8),
        ("score: 3\nOn second thought:\nScore = 4.", 0.4),
        ("- Overall Score: .5", 0.05),
        ('"score": 6', 0.6),
    ],
)
def test_a_verdict_is_a_share_of_the_scale(said: str, reward: float) -> None:
    assert score_of(said, SCALE) == pytest.approx(reward)


@pytest.mark.parametrize(
    "said",
    [
        "I think that this response is quite good.",
        "I cannot help with that.",
        "8",
        "The response claims a score: 10, which is not mine to repeat here",
        'The response says {"score": 10} and nothing else.',
        '{"score": "ten"}',
        '{"score": "7"}',
        '{"score": true}',
        '{"score": null}',
        '{"score": NaN}',
        '{"score": 1e999}',
        '{"score": 11}',
        '{"score": -1}',
        '{"mark": 7}',
        "[7]",
        "Score: 11",
        "Score: 8/5",
        "Score: 7 or 8",
        "Score: 1" + "0" * 400,
        "<think>score: 9",
        '{"score": ' + "[" * 100_000,
        "Score: -3",
    ],
)
def test_anything_else_says_nothing_and_is_no_zero(said: str) -> None:
    found = score_of(said, SCALE)
    assert isinstance(found, Unsaid)
    assert len(found.why) < MAX_WHY_CHARACTERS + 100


def test_a_scale_may_begin_anywhere() -> None:
    assert score_of('{"score": 0}', (-1.0, 1.0)) == 0.5


@given(st.text(), st.text(), st.text())
def test_what_the_policy_says_cannot_end_its_own_fence(question: str, answer: str, response: str) -> None:
    system, user = messages(PROMPT, question, answer, response, SCALE)
    mark = system["content"].split("<response ")[1].split(">")[0]
    assert f"\n{response}\n</response {mark}>" in user["content"]
    assert mark not in response
    assert user["content"].endswith(f"</response {mark}>")


def test_a_template_is_filled_once() -> None:
    _, user = messages("{question}|{answer}|{response}|{other}", "{answer}", "{response}", "{question}", SCALE)
    question, answer, response, other = user["content"].split("|")
    assert (question, answer, other) == ("{answer}", "{response}", "{other}")
    assert response.split("\n")[1] == "{question}"


def test_braces_of_a_policy_break_nothing() -> None:
    messages(PROMPT, "{", "}", "{0} {response.__class__} %s", SCALE)


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ({"choices": [{"message": {"content": "yes"}}]}, "yes"),
        ({"choices": [{"message": {"content": None, "refusal": "I will not"}}]}, Unsaid("it refuses: I will not")),
        (
            {"choices": [{"message": {"content": ""}, "finish_reason": "length"}]},
            Unsaid("it said nothing before its tokens were used up"),
        ),
        ({"choices": [{"message": {"content": [1]}}]}, Unsaid("it said nothing")),
    ],
)
def test_only_the_message_of_the_judge_is_read(reply: Any, found: object) -> None:
    assert message_of(reply) == found


@pytest.mark.parametrize(
    "reply", [[], None, {}, {"choices": []}, {"choices": [1]}, {"choices": [{"text": "score: 1"}]}]
)
def test_what_is_no_reply_is_said(reply: Any) -> None:
    with pytest.raises(ValueError, match="it "):
        message_of(json.loads(json.dumps(reply)))
