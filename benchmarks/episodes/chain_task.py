"""Ask the same prompts with a tool that takes time, and without a tool.

`benchmarks/turns.py` copies this file beside its swarm.toml, as an operator would put a task there. The reward is the
share of words that begin with an a. That teaches nothing, and differs among the episodes of a group, so that every
group is trained on.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from volery import Chat, ChatMessage, Completion, Environment, Problem, Spoken, TaskArguments, Tool

WAIT = Tool(
    name="wait",
    description="Take some time over a text.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}},
)


def reward_of(said: str) -> float:
    """Return the share of words that begin with an a."""
    words = re.findall(r"\b([a-z])\d+ ", said)
    return words.count("a") / max(1, len(words))


class Waiting:
    """An episode of `turns` turns; the tool takes `wait_s` in each."""

    tools = (WAIT,)

    def __init__(self, turns: int, wait_s: float) -> None:
        self.turns, self.wait_s = turns, wait_s
        self.said: list[str] = []

    async def step(self, spoken: Spoken) -> tuple[ChatMessage, ...] | None:
        """Let the tool work on the arguments of its call."""
        [call] = spoken.calls
        self.said.append(str(call.arguments["text"]))
        if self.wait_s:
            await asyncio.sleep(self.wait_s)
        if len(self.said) == self.turns:
            return None
        return (ChatMessage(role="tool", content="done", name=call.name, tool_call_id=call.id),)

    def reward(self) -> float:
        """Return the share of the words in all turns that begin with an a."""
        return reward_of("".join(self.said))

    def close(self) -> None:
        """Do nothing: it holds no resources."""


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The prompts of both sides."""

    name: str
    fingerprint: str
    levels: int = 1

    def problem(self, index: int) -> Problem:
        """Return the training problem of `index`."""
        return Problem(prompt=f"Do {2 * index}.", chat=Chat.ALWAYS)

    def held_out(self, index: int) -> Problem:
        """Return the held-out problem of `index`."""
        return Problem(prompt=f"Do {2 * index + 1}.", chat=Chat.ALWAYS)


@dataclass(frozen=True, kw_only=True)
class WithTool(Prompts):
    """Episodes of several turns, in an environment."""

    turns: int
    wait_s: float

    def environment(self, problem: Problem, seed: int) -> Environment:
        """Return a new environment."""
        return Waiting(self.turns, self.wait_s)


@dataclass(frozen=True, kw_only=True)
class Plain(Prompts):
    """Completions of one turn, without a tool."""

    def reward(self, problem: Problem, completion: Completion) -> float:
        """Return the share of the completion's words that begin with an a."""
        return reward_of(completion.text)


def with_tool(arguments: TaskArguments) -> WithTool:
    """`python:chain_task:with_tool:turns=3,wait_s=0.2`"""
    turns, wait_s = int(arguments.options["turns"]), float(arguments.options["wait_s"])
    return WithTool(name="with_tool", fingerprint=f"with_tool/1/{turns}/{wait_s}", turns=turns, wait_s=wait_s)


def plain(arguments: TaskArguments) -> Plain:
    """`python:chain_task:plain`"""
    return Plain(name="plain", fingerprint="plain/1")
