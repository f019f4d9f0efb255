"""A verifier reports a problem's facts in the form that the node reads."""

from __future__ import annotations

import json
from typing import Any

from node.tasks.api.interface import Chat, ChatMessage, Completion, Problem, Tool, ToolCall, Turn
from node.tasks.gate import Gate
from node.tasks.grading import Asked
from node.verifiers.pool import _read_judgement, _read_problem
from node.verifiers.worker import _judge, _pose
from tests.support.chat_templates import ADD

CALL = ToolCall(id="abc123XYZ", name="add", arguments={"a": [1, {"b": None}], "ß": 0.5})


class WithTools:
    name = "with tools"
    levels = 1
    fingerprint = "with tools/1"

    def problem(self, index: int) -> Problem:
        shown = ChatMessage(role="assistant", content="", tool_calls=(CALL,))
        told = ChatMessage(role="tool", content="5", name="add", tool_call_id=CALL.id)
        asked = ChatMessage(role="user", content=f"{index}?")
        tools = (ADD, Tool(name="sub", parameters='{"type": "object"}'))
        return Problem(prompt=(asked, shown, told), answer="secret", chat=Chat.ALWAYS, tools=tools)

    held_out = problem

    def answer_turn(self, problem: Problem, turns: list[Turn], said: str) -> tuple[ChatMessage, ...]:
        return (ChatMessage(role="tool", content=said, name="add", tool_call_id=CALL.id),)

    def reward(self, problem: Problem, completion: Completion) -> float:
        return 1.0


def carried(reply: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(reply))  # type: ignore[no-any-return]


def test_a_problem_is_carried_with_its_tools_and_calls_and_without_its_answer() -> None:
    gate = Gate(WithTools())
    reply = carried(_pose(gate, {"index": 3, "held_out": False}))
    assert "secret" not in json.dumps(reply)
    expected = WithTools().problem(3)
    assert _read_problem(reply) == Problem(prompt=expected.prompt, chat=expected.chat, tools=expected.tools)
    assert _read_problem({"prompt": "Hi", "chat": "never"}) == Problem(prompt="Hi")  # as an older one tells it


def test_an_answer_is_carried_with_the_call_that_it_answers() -> None:
    asked = Asked(index=3, held_out=False, said=("a", "b"), finished=True, wants_reward=False)
    header = {"index": 3, "held_out": False, "said": ["a", "b"], "finished": True, "wants_reward": False}
    reply = carried(_judge(Gate(WithTools()), header))
    expected = (ChatMessage(role="tool", content="b", name="add", tool_call_id=CALL.id),)
    assert _read_judgement(asked, reply) == expected
