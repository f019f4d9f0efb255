"""Print a task's text: no stranger's text leaves its bar or moves a cursor, and the JSON form has all of it."""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from learner.rollouts.environment import EpisodeLimits
from learner.rollouts.reward_parts import RewardPart
from node.commands.tasks.text import FIRST_LINES, LAST_LINES, as_json, as_text
from node.commands.tasks.view import ShownProblem, ShownReward, ShownTask, Token
from node.tasks.api.interface import ChatMessage, Turn

POISON = "\x1b]0;owned\x07\x1b[2Jno\x9b31m\x9d\u202egnp\u2066\u200b\x7f\b\x0e"

PROBLEM = ShownProblem(
    index=0,
    held_out=False,
    tokens=(Token(id=1, text="<bos>", is_special=True), Token(id=10, text="g", is_special=False)),
    text="<bos>g",
    trouble="",
    has_room=True,
    answer="on",
    reference=ShownReward(reward=1.0),
    empty=ShownReward(reward=0.0),
)
TASK = ShownTask(
    spec="mine:letters=3",
    name="mine",
    fingerprint="mine/3",
    levels=2,
    size=None,
    num_held_out=None,
    notes=(),
    has_turns=True,
    is_cheap=False,
    model="model",
    stop_ids=(Token(id=2, text="<eos>", is_special=True),),
    limits=EpisodeLimits(turns=16, tokens=64, turn_tokens=8),
    lacks="",
    problems=(PROBLEM,),
)


def of(**changes: object) -> ShownTask:
    return replace(TASK, problems=(replace(PROBLEM, **changes),))  # type: ignore[arg-type]


def test_a_task_as_it_is_shown() -> None:
    assert as_text([TASK], width=100) == (
        "Task mine (spec mine:letters=3)\n"
        "  fingerprint  mine/3\n"
        "  training     unlimited problems, 2 levels of difficulty\n"
        "  held out     as many problems as [task] held_out says, never trained on\n"
        "  episodes     several turns\n"
        "  rewards      computed by verifiers\n"
        "  tokenizer    model\n"
        "  stop tokens  2:<eos>\n"
        "\n"
        "Problem 0: 2 tokens\n"
        "| <bos>g\n"
        "tokens: 1:<bos> 10:'g'\n"
        "The reference answer has reward 1, an empty one 0.\n"
        "| on"
    )


def test_an_episode_as_it_is_shown() -> None:
    told = (ChatMessage(role="tool", content="3"), ChatMessage(role="user", content="Go on."))
    shown = as_text([of(turns=(Turn("on", "more"), Turn("on", told)))], width=100)
    assert shown.endswith("| on\n: more\n| on\n: tool: 3\n: user: Go on.\n| on")


def test_an_answer_that_the_model_cannot_write() -> None:
    unwritten = of(answer="ON", answer_trouble="model: its tokenizer has no token for 'O' in 'ON'")
    assert as_text([unwritten], width=120).endswith(
        "| ON\nThe model cannot write this answer. model: its tokenizer has no token for 'O' in 'ON'"
    )
    [told] = json.loads(as_json([unwritten]))["tasks"][0]["problems"]
    assert told["answer_trouble"] == "model: its tokenizer has no token for 'O' in 'ON'"


def test_rewards_with_names_stand_behind_their_sum() -> None:
    parts = (RewardPart(name="right", value=1.0), RewardPart(name="style", value=math.nan, weight=0.5))
    problem = of(reference=ShownReward(reward=1.0, parts=parts))
    shown = as_text([problem], width=100)
    assert "The reference answer has reward 1 (right 1, style unknown), an empty one 0." in shown
    told = json.loads(as_json([problem]))["tasks"][0]["problems"][0]
    assert told["reference_rewards"] == {
        "right": {"value": 1.0, "weight": 1.0},
        "style": {"value": None, "weight": 0.5},
    }
    assert told["empty_rewards"] == {}


@given(st.text(max_size=200), st.integers(60, 120))
def test_no_text_leaves_its_bar(text: str, width: int) -> None:
    shown = as_text([of(text=text, answer=text, turns=(Turn(text, text),))], width=width)
    body = shown.split("\n\n", 1)[1].split("\n")[1:]
    assert all(line.startswith(("|", ":", "tokens: ", "   ", "The reference")) for line in body)
    assert max(map(cell_len, body)) <= width


def test_no_text_moves_a_cursor() -> None:
    poisoned = replace(
        of(
            text=POISON, answer=POISON, trouble=POISON, turns=(Turn(POISON, POISON),),
            empty=ShownReward(reward=None, why=POISON), tokens=(Token(id=1, text=POISON, is_special=True),) * 2,
        ),
        name=POISON, spec=POISON, fingerprint=POISON, notes=(POISON,), lacks=POISON,
    )  # fmt: skip
    for shown in (as_text([poisoned], width=80), as_json([poisoned])):
        assert max(map(len, as_text([poisoned], width=80).splitlines())) <= 80
        odd = {letter for letter in shown if unicodedata.category(letter)[0] == "C" and letter != "\n"}
        assert odd == set()


def test_of_a_long_text_the_middle_is_left_out() -> None:
    shown = as_text([of(text="\n".join(map(str, range(1000))))], width=80)
    lines = [line for line in shown.splitlines() if line.startswith("| ")]
    assert len(lines) == FIRST_LINES + LAST_LINES + 2, (
        "there must be one line for the omitted part, and one for the answer"
    )
    assert "| (940 more lines)" in lines
    assert "| 999" in lines


def test_of_many_tokens_the_middle_is_left_out() -> None:
    many = as_text([of(tokens=tuple(Token(id=one, text="a", is_special=False) for one in range(1000)))], width=80)
    assert "1,000 tokens" in many
    assert "191:'a' ... 744 more ... 936:'a'" in " ".join(many.split())
    assert max(map(len, many.splitlines())) <= 80


def test_the_json_form_has_all() -> None:
    told = json.loads(as_json([of(text=POISON, turns=(Turn("on", "more"),))]))
    assert told["format"] == "volery-tasks/1"
    [task] = told["tasks"]
    assert task["stop_ids"] == [2]
    [problem] = task["problems"]
    assert problem["text"] == POISON
    assert problem["tokens"][0] == {"id": 1, "text": "<bos>", "special": True}
    assert problem["turns"] == [{"said": "on", "answered": "more"}]
    assert (problem["reference_worth"], problem["empty_worth"]) == (1.0, 0.0)
