"""One gate checks everything that a task returns, and names a fault in one sentence."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from node.tasks.api.interface import (
    CANNOT_SAY,
    Chat,
    ChatMessage,
    Completion,
    Problem,
    TaskError,
    Tool,
    ToolCall,
    Turn,
)
from node.tasks.composed_reward import parts_of
from node.tasks.first_reward import require_reward
from node.tasks.gate import PROGRAM, PYTHON, Gate, NobodyCanSay, Place, WrongValue, has, place_in_code
from node.tasks.registry import open_task
from tests.support.paths import ROOT

HERE, HELD_OUT = Place(index=7), Place(index=3, held_out=True)
SAID = Completion(text="x", finished=True)


class Fine:
    """A task that returns what it should; each test puts something else in its place."""

    name: Any = "fine"
    levels: Any = 1
    fingerprint: Any = "fine"

    def problem(self, index: int) -> Any:
        return Problem(prompt=f"{index}?")

    def held_out(self, index: int) -> Any:
        return Problem(prompt=f"held out {index}?")

    def reward(self, problem: Problem, completion: Completion) -> Any:
        return 1.0


class Endless:
    """Its `repr` raises, as its length and everything else does."""

    def __repr__(self) -> str:
        raise ValueError("no")

    def __len__(self) -> int:
        raise ValueError("no")

    def __float__(self) -> float:
        raise ValueError("no")


def with_(**parts: Any) -> Gate:
    return Gate(type("Own", (Fine,), parts)())


def returning(value: Any) -> Callable[..., Any]:
    return lambda *arguments: value


def raising(error: BaseException) -> Callable[..., Any]:
    def method(*arguments: Any) -> Any:
        raise error

    return method


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (
            None,
            "None: `reward` must return a number, or numbers by their names, and one path through it ends",
        ),
        ("0.5", "'0.5' (of type str): `reward` must return a number, or numbers by their names."),
        (b"1", "b'1' (of type bytes)"),
        ([1.0], "[1.0] (of type list)"),
        ((), "() (of type tuple)"),
        (1j, "1j (of type complex)"),
        (np.zeros(2), "(of type ndarray)"),
        (Endless(), "(of type Endless)"),
        ("x" * 10_000, "..."),
        (Problem(prompt="?"), "(of type Problem)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_reward_that_is_no_number_is_told_with_task_problem_and_what_came(value: Any, shown: str) -> None:
    gate = with_(reward=returning(value))
    with pytest.raises(WrongValue) as told:
        gate.reward(HERE, gate.problem(HERE), SAID)
    assert str(told.value).startswith("task 'fine' gave no reward at index 7, but ")
    assert shown in str(told.value)
    assert len(str(told.value)) < 300
    with pytest.raises(WrongValue, match="no reward at held-out index 3"):
        gate.reward(HELD_OUT, gate.problem(HELD_OUT), SAID)


def rewarded(value: Any, **attributes: Any) -> float:
    gate = with_(reward=returning(value), **attributes)
    return gate.reward(HERE, gate.problem(HERE), SAID)


def test_rewards_with_names_are_summed_by_their_weights() -> None:
    found = rewarded(
        {"right": 1, "form": np.float32(0.5), "style": CANNOT_SAY}, reward_weights={"form": 0.5, "style": 9}
    )
    assert found == 1.25
    assert [(part.name, part.weight, part.is_known) for part in parts_of(found)] == [
        ("right", 1.0, True),
        ("form", 0.5, True),
        ("style", 9.0, False),
    ]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"right": 1.0}, "gave a reward called `right` at index 8, but rewards called `form`, `right` at index 7"),
        ({"right": 1.0, "style": 1.0}, "gave rewards called `right`, `style` at index 8, but"),
        (1.0, "gave one reward without a name at index 8, but rewards called `form`, `right` at index 7"),
    ],
    ids=range(3),
)
def test_all_completions_have_rewards_of_the_same_names(value: Any, says: str) -> None:
    gate = with_()
    gate.reward_of(HERE, {"right": 1.0, "form": 0.5})
    gate.reward_of(Place(index=8), {"form": CANNOT_SAY, "right": 1.0})
    with pytest.raises(NobodyCanSay):
        gate.reward_of(Place(index=8), CANNOT_SAY)
    with pytest.raises(WrongValue) as told:
        gate.reward_of(Place(index=8), value)
    assert says in str(told.value)


@pytest.mark.parametrize("value", [CANNOT_SAY, {"right": CANNOT_SAY, "form": CANNOT_SAY}], ids=["one", "each"])
def test_what_nobody_can_say_is_told_as_that(value: Any) -> None:
    with pytest.raises(NobodyCanSay, match="'fine' cannot say what the completion at index 7 is worth"):
        rewarded(value)


@pytest.mark.parametrize(
    ("value", "weights", "says"),
    [
        ({}, {}, "gave 0 rewards at index 7; give 1 to 32"),
        ({str(n): 1.0 for n in range(33)}, {}, "gave 33 rewards"),
        ({"right": None}, {}, "gave no reward at index 7, but None"),
        ({"right": {"deep": 1.0}}, {}, "gave no reward at index 7, but {'deep': 1.0}"),
        ({"right": math.nan}, {}, "gave the reward nan at index 7"),
        ({1: 1.0}, {}, "gave a reward called 1 at index 7; a name is text"),
        ({"": 1.0}, {}, "a reward called ''"),
        ({"a\n": 1.0}, {}, "a reward called 'a\\n'"),
        ({"overlong": 1.0}, {}, "and not 'overlong'"),
        ({"right": 1.0}, {"form": 1.0}, "has a weight for `form` in `reward_weights`, but `reward` gave only `right`"),
        ({"right": 1e18, "form": 1e18}, {}, "the sum of the rewards is 2e+18 at index 7"),
        ({"right": 1.0}, {"right": "2"}, "gave no reward_weights, but"),
        ({"right": 1.0}, {"right": math.inf}, "gave no reward_weights, but"),
        ({"right": 1.0}, [("right", 1.0)], "`reward_weights` must be numbers by the names of rewards"),
    ],
    ids=range(14),
)
def test_rewards_with_names_that_are_none(value: Any, weights: Any, says: str) -> None:
    with pytest.raises(WrongValue) as told:
        rewarded(value, reward_weights=weights)
    assert says in str(told.value)


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e19, 10**400, Decimal("nan"), np.float32("inf")])
def test_a_reward_that_no_trainer_could_take_is_told(value: Any) -> None:
    gate = with_(reward=returning(value))
    with pytest.raises(
        WrongValue, match=r"'fine' gave the reward .* at index 7; it must lie between -1e\+18 and 1e\+18"
    ):
        gate.reward(HERE, gate.problem(HERE), SAID)


@pytest.mark.parametrize(
    ("value", "reward"),
    [(True, 1.0), (False, 0.0), (2, 2.0), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (Fraction(1, 4), 0.25)],
    ids=lambda value: type(value).__name__,
)
def test_what_can_be_taken_for_a_number_is_one(value: Any, reward: float) -> None:
    gate = with_(reward=returning(value))
    found = gate.reward(HERE, gate.problem(HERE), SAID)
    assert (found, type(found)) == (reward, float)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "no problem at index 7, but None: `problem` must return a volery.Problem."),
        ({"prompt": "?"}, "no problem at index 7, but {'prompt': '?'} (of type dict)"),
        ("?", "no problem at index 7"),
        (Problem(prompt=None), "no prompt at index 7, but None: `prompt` of its Problem must be text, or messages"),  # type: ignore[arg-type]
        (Problem(prompt=[{"role": "user", "content": "?"}]), "no prompt at index 7, but [{"),  # type: ignore[arg-type]
        (Problem(prompt=(ChatMessage(role="user", content=None),)), "no prompt at index 7"),  # type: ignore[arg-type]
        (Problem(prompt=()), "no prompt at index 7"),
        (Problem(prompt="\ud800"), "no prompt at index 7"),
        (
            Problem(prompt="?", answer=4),
            "no answer at index 7, but 4 (of type int): `answer` of its Problem must be text",
        ),  # type: ignore[arg-type]
        (Problem(prompt="?", chat="never"), "no chat at index 7, but 'never'"),  # type: ignore[arg-type]
    ],
    ids=range(10),
)
def test_a_problem_that_is_none_is_told(value: Any, says: str) -> None:
    gate = with_(problem=returning(value))
    with pytest.raises(WrongValue) as told:
        gate.problem(HERE)
    assert says in str(told.value)
    assert gate.problem(HELD_OUT).prompt == "held out 3?"
    with pytest.raises(WrongValue, match=r"at held-out index 3, but"):
        with_(held_out=returning(value)).problem(HELD_OUT)


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": "and?"}],
        {"role": "user", "content": "and?"},
        5,
        (),
        [],
        ["and?"],
        b"and?",
        "\udfff",
    ],
    ids=range(8),
)
def test_an_answer_of_dicts_instead_of_messages_is_told(value: Any) -> None:
    gate = with_(answer_turn=returning(value))
    with pytest.raises(WrongValue, match=r"'fine' gave no answer at index 7, but .*ChatMessage\(role=\.\.\., content="):
        gate.answer_turn(HERE, gate.problem(HERE), (), "x")


def test_an_answer_is_text_or_messages_or_the_end() -> None:
    message = ChatMessage(role="tool", content="5")
    for value, answer in (("5", "5"), ([message], (message,)), ((message,), (message,)), (None, None)):
        gate = with_(answer_turn=returning(value))
        assert gate.has_turns
        assert gate.answer_turn(HERE, gate.problem(HERE), (), "x") == answer
    one_turn = with_(answer_turn=None)
    assert not one_turn.has_turns
    assert one_turn.answer_turn(HERE, one_turn.problem(HERE), (), "x") is None


FINITE = {"size": 2, "num_held_out": 0, "notes": (), "pass_rates": None}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"name": None}, "gave no name, but None: `name` must be text"),
        ({"levels": 0}, "'fine' gave no levels, but 0 (of type int): `levels` must be a whole number, at least 1"),
        ({"levels": True}, "gave no levels, but True"),
        ({"levels": "3"}, "gave no levels, but '3'"),
        ({"levels": lambda self: 3}, "gave no levels, but <bound method"),
        ({"is_cheap": lambda self: True}, "gave no is_cheap, but <bound method"),
        ({"is_cheap": 1}, "`is_cheap` must be True or False"),
        ({**FINITE, "size": 0}, "gave no size, but 0"),
        ({**FINITE, "size": None}, "gave no size, but None"),
        ({**FINITE, "num_held_out": -1}, "gave no num_held_out, but -1"),
        (
            {**FINITE, "notes": "one line"},
            "gave no notes, but 'one line' (of type str): `notes` must be a list of texts",
        ),
        ({**FINITE, "notes": [None]}, "gave no notes"),
        ({**FINITE, "pass_rates": [0.5]}, "`pass_rates` must be None, or 2 numbers from 0 to 1"),
        ({**FINITE, "pass_rates": [0.5, 1.5]}, "gave no pass_rates"),
        ({**FINITE, "pass_rates": ["0.5", 0.5]}, "gave no pass_rates"),
        ({**FINITE, "pass_rates": 0.5}, "gave no pass_rates"),
        (
            {"levels": property(raising(KeyError("x")))},
            "'fine' failed at its `levels`: KeyError: 'x' (test_gate.py, line ",
        ),
    ],
    ids=range(17),
)
def test_what_a_task_says_of_itself_is_checked_when_it_is_opened(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError) as told:
        with_(**parts)
    assert says in str(told.value)


def test_a_finite_task_is_taken_as_it_says() -> None:
    rates = np.array([0.5, math.nan])
    gate = with_(**{**FINITE, "size": np.int64(2), "notes": ["two problems"], "pass_rates": rates})
    assert gate.finite is not None
    assert (gate.finite.size, gate.finite.notes) == (2, ("two problems",))
    assert gate.finite.pass_rates is not None
    assert math.isnan(gate.finite.pass_rates[1])
    assert with_(size=2, num_held_out=0).finite is None, "its board has a size, for example"


def test_a_fingerprint_is_asked_for_once_and_checked() -> None:
    with pytest.raises(WrongValue, match="gave no fingerprint, but None"):
        _ = with_(fingerprint=None).fingerprint
    assert with_().fingerprint == "fine"


@pytest.mark.parametrize(
    "error", [KeyError("x"), SystemExit(3), asyncio.CancelledError(), MemoryError(), RecursionError()], ids=repr
)
def test_what_a_task_raises_ends_nothing_but_the_question(error: BaseException) -> None:
    gate = with_(problem=raising(error), reward=raising(error), answer_turn=raising(error))
    asked: list[Callable[[], Any]] = [
        lambda: gate.problem(HERE),
        lambda: gate.reward(HERE, Problem(prompt="?"), SAID),
        lambda: gate.answer_turn(HERE, Problem(prompt="?"), (), "x"),
    ]
    for ask in asked:
        with pytest.raises(TaskError, match=f"'fine' failed at index 7: {type(error).__name__}"):
            ask()


def test_an_operator_may_still_stop_what_runs() -> None:
    gate = with_(problem=raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        gate.problem(HERE)


class Counted(Fine):
    """A task whose properties are slow: each counts how often it is run."""

    def __init__(self) -> None:
        self.run: list[str] = []

    @property
    def fingerprint(self) -> str:
        self.run.append("fingerprint")
        return "counted"

    @property
    def is_cheap(self) -> bool:
        self.run.append("is_cheap")
        return True

    @property
    def size(self) -> int:
        self.run.append("size")
        return 4

    num_held_out = 2
    notes: Sequence[str] = ()
    pass_rates = None

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> str | None:
        return None


def test_what_a_task_is_is_decided_once_and_no_property_runs_to_find_out() -> None:
    task = Counted()
    assert has(task, "fingerprint")
    assert not has(task, "require")
    gate = Gate(task)
    assert task.run == ["is_cheap", "size"]
    for _ in range(3):
        assert (gate.is_cheap, gate.has_turns, gate.finite is not None, gate.fingerprint) == (
            True,
            True,
            True,
            "counted",
        )
        gate.reward(HERE, gate.problem(HERE), SAID)
    assert task.run == ["is_cheap", "size", "fingerprint"]


def test_no_module_asks_a_protocol_what_a_task_is() -> None:
    """`isinstance` with one of them runs the properties of the task on Python 3.11, and with which hash seed it does is
    chance."""
    asking = [
        path.name
        for package in ("node", "learner", "swarm", "protocol")
        for path in (ROOT / package).rglob("*.py")
        for kind in ("CheapTask", "NeedyTask", "FiniteTask", "TurnTask")
        if f", {kind})" in path.read_text(encoding="utf-8")
    ]
    assert asking == []


# One reward before a run begins


@pytest.mark.parametrize("reward", [returning(None), returning("1"), returning(math.nan)], ids=["None", "text", "NaN"])
def test_a_task_that_gives_no_reward_is_refused_at_the_start(reward: Callable[..., Any]) -> None:
    with pytest.raises(WrongValue, match="at index 0"):
        require_reward(with_(reward=reward))


def test_what_is_judged_is_the_reference_answer_where_there_is_one() -> None:
    def reward(self: object, problem: Problem, completion: Completion) -> float | None:
        return 1.0 if completion.text == problem.answer else None

    require_reward(with_(reward=reward, problem=returning(Problem(prompt="?", answer="4"))))
    with pytest.raises(WrongValue, match="no reward at index 0"):
        require_reward(with_(reward=reward))


def test_an_error_refuses_no_task_since_it_may_need_what_only_a_verifier_has() -> None:
    """A library that sets an alarm works on a main thread alone, for example."""

    def reward(self: object, problem: Problem, completion: Completion) -> float:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return 1.0

    require_reward(with_(reward=reward, problem=returning(Problem(prompt="?", answer="4"))))


def test_a_task_that_answers_dicts_is_refused_at_the_start() -> None:
    with pytest.raises(WrongValue, match="no answer at index 0"):
        require_reward(with_(answer_turn=returning([{"role": "user", "content": "and?"}])))


def test_built_in_tasks_are_ours() -> None:
    assert Gate(open_task("reverse")).is_ours
    assert not with_().is_ours


# --- tools ------------------------------------------------------------------------------------------------------------

ITSELF: dict[str, Any] = {}
ITSELF["a"] = ITSELF


def with_tools(*tools: Any, chat: Chat = Chat.ALWAYS) -> Gate:
    return with_(problem=returning(Problem(prompt="?", chat=chat, tools=tools)))


@pytest.mark.parametrize(
    "tool",
    [
        "add",
        Tool(name="add numbers"),
        Tool(name=""),
        Tool(name="add", description="\ud800"),
        Tool(name="add", parameters="{"),
        Tool(name="add", parameters="[1]"),
        Tool(name="add", parameters={"a": math.nan}),
        Tool(name="add", parameters={"a": {1, 2}}),
        Tool(name="add", parameters=ITSELF),
        Tool(name="add", parameters={"a": "\ud800"}),
    ],
)
def test_a_tool_that_is_none_is_told(tool: Any) -> None:
    with pytest.raises(WrongValue, match=r"gave no tools at index 7.*volery\.Tool\(name="):
        with_tools(tool).problem(HERE)


def test_tools_have_names_of_their_own_and_an_end() -> None:
    with pytest.raises(WrongValue, match="gave no tools"):
        with_tools(Tool(name="add"), Tool(name="add")).problem(HERE)
    with pytest.raises(WrongValue, match="gave no tools"):
        with_tools(*(Tool(name=f"tool{number}") for number in range(129))).problem(HERE)
    fine = (Tool(name="add", parameters='{"type": "object"}'), Tool(name="sub.two-1", description="Größe"))
    assert with_tools(*fine).problem(HERE).tools == fine


def test_tools_need_the_template_that_shows_them() -> None:
    with pytest.raises(WrongValue, match=r"only the chat template shows tools: give messages.*Chat\.ALWAYS"):
        with_tools(Tool(name="add"), chat=Chat.NEVER).problem(HERE)


@pytest.mark.parametrize(
    "message",
    [
        ChatMessage(role="assistant", content="", tool_calls=("add",)),  # type: ignore[arg-type]
        ChatMessage(role="assistant", content="", tool_calls=(ToolCall(id="1", name="add", arguments=ITSELF),)),
        ChatMessage(role="tool", content="", tool_call_id=5),  # type: ignore[arg-type]
        ChatMessage(role="tool", content="", name="\ud800"),
    ],
)
def test_a_message_with_a_call_that_is_none_is_told(message: ChatMessage) -> None:
    with pytest.raises(WrongValue, match="gave no prompt at index 7"):
        with_(problem=returning(Problem(prompt=(message,)))).problem(HERE)


class Formed(Fine):
    """A task that says what the right form is."""

    said: Any = True

    def in_form(self, problem: Problem, completion: Completion) -> Any:
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.mark.parametrize("said", [True, False])
def test_the_form_is_as_the_task_says(said: bool) -> None:
    task = Formed()
    task.said = said
    assert Gate(task).in_form(HERE, task.problem(7), SAID) is said
    assert Gate(Fine()).in_form(HERE, task.problem(7), SAID), "a task without `in_form` accepts every form"


@pytest.mark.parametrize(
    ("said", "told"),
    [(None, "gave no verdict on the form at index 7, but None"), (ValueError("no"), "failed at index 7, in `in_form`")],
)
def test_a_form_that_is_no_word_is_told(said: Any, told: str) -> None:
    task = Formed()
    task.said = said
    with pytest.raises(TaskError) as raised:
        Gate(task).in_form(HERE, task.problem(7), SAID)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("file", "is_named"),
    [
        ("/home/ann/rewards.py", True),
        (f"{PROGRAM[0][:-1]}_tasks/rewards.py", True),
        (f"{PYTHON}site-packages/rewards.py", True),
        (f"{PYTHON}rewards.py", False),
        (f"{PROGRAM[0]}tasks/rewards.py", False),
        ("<string>", False),
    ],
)
def test_the_place_of_an_error_is_in_a_file_that_an_author_may_have_written(file: str, is_named: bool) -> None:
    with pytest.raises(ValueError, match="wrong") as raised:
        exec(compile("\nraise ValueError('wrong')", file, "exec"), {})
    assert raised.value.__traceback__ is not None
    calls = raised.value.__traceback__.tb_next  # without the test's own call
    assert place_in_code(object(), raised.value.with_traceback(calls)) == (" (rewards.py, line 2)" if is_named else "")
