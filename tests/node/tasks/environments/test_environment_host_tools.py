"""Calls of tools, as each family writes them, told to an environment, and answered with messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from learner.rollouts.environment import Answered, Ended, EpisodeLimits
from node.tasks.api.interface import Chat, ChatMessage, Problem, Spoken, Tool, ToolCall
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec
from node.tasks.tools.writing import write_calls
from tests.support.chat_templates import ADD, LLAMA3, MISTRAL, QWEN3, write_family_model

FAMILIES = {"qwen3": QWEN3, "llama3": LLAMA3, "mistral": MISTRAL}
LIMITS = EpisodeLimits(turns=8, tokens=100_000, turn_tokens=64)


class Calculator:
    """Adds where it is asked to, and is content with 5."""

    tools: tuple[Tool, ...] = (ADD,)

    def __init__(self) -> None:
        self.sums: list[int] = []
        self.words = ""

    async def step(self, spoken: Spoken) -> Any:
        self.words = spoken.content
        if not spoken.calls:
            return "; ".join(spoken.malformed) or None
        answers = []
        for call in spoken.calls:
            self.sums.append(call.arguments["a"] + call.arguments["b"])
            answers.append(ChatMessage(role="tool", content=str(self.sums[-1]), name=call.name, tool_call_id=call.id))
        return answers

    async def reward(self) -> float:
        return float(self.words == "5." and self.sums == [5])


@dataclass(frozen=True)
class Adding:
    name: str = "adding"
    levels: int = 1
    fingerprint: str = "adding"

    def problem(self, index: int) -> Problem:
        return Problem(prompt=(ChatMessage(role="user", content="2 + 3?"),), tools=(ADD,), chat=Chat.ALWAYS)

    held_out = problem

    def environment(self, problem: Problem, seed: int) -> Calculator:
        return Calculator()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tool_is_called_and_answered_in_each_family(tmp_path: Path, family: str) -> None:
    codec = TextCodec.load(write_family_model(tmp_path / family, FAMILIES[family]))
    assert codec.tool_format is not None
    task = EncodedTask(task=Adding(), codec=codec)  # type: ignore[arg-type]
    calling = write_calls(codec.tool_format, [ToolCall(id="abc123XYZ", name="add", arguments={"a": 2, "b": 3})])
    said = [tuple(codec.encode_answer(calling))]
    transcript = len(prompt := task.prompt(0)) + len(said[0])
    first = task.reply(0, tuple(said), transcript, LIMITS)
    assert isinstance(first, Answered)
    assert "5" in codec.decode(first.tokens)
    said.append(tuple(codec.encode_answer("5.")))
    again = task.reply(0, tuple(said), len(prompt) + 500, LIMITS, digests=(first.digest,))
    assert again == Ended(reward=1.0)


def test_a_call_that_cannot_be_read_is_told_to_the_policy(tmp_path: Path) -> None:
    codec = TextCodec.load(write_family_model(tmp_path / "qwen3", FAMILIES["qwen3"]))
    task = EncodedTask(task=Adding(), codec=codec)  # type: ignore[arg-type]
    said = tuple(codec.encode_answer('<tool_call>{"name": "add", "arguments": </tool_call>'))
    reply = task.reply(0, (said,), 100, LIMITS)
    assert isinstance(reply, Answered)
    assert "JSON" in codec.decode(reply.tokens)
    other = tuple(codec.encode_answer('<tool_call>{"name": "sub", "arguments": {}}</tool_call>'))
    reply = task.reply(0, (other,), 100, LIMITS)
    assert isinstance(reply, Answered)
    assert 'no tool "sub"' in codec.decode(reply.tokens)
