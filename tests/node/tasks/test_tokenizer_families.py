"""Prompts and turns through templates of known families, token for token what transformers makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from node.tasks.api.interface import Chat, ChatMessage, Problem, TaskError, Tool, ToolCall
from node.tasks.tokenizer import TextCodec
from node.tasks.tools.writing import write_calls
from node.tasks.ways.model_ways import ModelWays
from tests.support.chat_templates import ADD, LLAMA3, MISTRAL, QWEN3, write_family_model

FAMILIES = {"qwen3": QWEN3, "llama3": LLAMA3, "mistral": MISTRAL}

ORACLE = """
import json, sys
from transformers import AutoTokenizer
for line in sys.stdin:
    found = []
    for one in json.loads(line):
        tokenizer = AutoTokenizer.from_pretrained(one["directory"])
        more = dict(add_generation_prompt=True, tokenize=True, return_dict=False, **one["more"])
        found.append(tokenizer.apply_chat_template(one["messages"], tools=one["tools"], **more))
    print("ids", json.dumps(found), flush=True)
"""
"""A process of its own, so that the tests' process stays as free of torch as the node's. It ends with its stdin."""

Oracle = Callable[..., list[tuple[int, ...]]]

SYSTEM = ChatMessage(role="system", content="Be brief, & kind.")
ASK = ChatMessage(role="user", content=" What is 2 + 3? ")
ADDING = ToolCall(id="abc123XYZ", name="add", arguments={"a": 2, "b": 3, "why": 'Größe "so"'})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("families")
    return {name: write_family_model(base / name, template) for name, template in FAMILIES.items()}


def plain(message: ChatMessage) -> dict[str, Any]:
    """As transformers wants it."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        found["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        found |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return found


def schema(tool: Tool) -> dict[str, Any]:
    described = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": described}


def case(
    directory: Path, messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), **more: object
) -> dict[str, object]:
    return {
        "directory": str(directory),
        "messages": [plain(message) for message in messages],
        "tools": [schema(tool) for tool in tools] or None,
        "more": more,
    }


@pytest.fixture(scope="module")
def by_transformers() -> Iterator[Oracle]:
    with subprocess.Popen(
        [sys.executable, "-c", ORACLE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as oracle:
        assert oracle.stdin is not None
        assert oracle.stdout is not None
        asked, told = oracle.stdin, oracle.stdout

        def ask(*cases: Mapping[str, object]) -> list[tuple[int, ...]]:
            asked.write(json.dumps(cases) + "\n")
            asked.flush()
            line = next(line for line in told if line.startswith("ids "))
            return [tuple(ids) for ids in json.loads(line.removeprefix("ids "))]

        yield ask
        asked.close()


def test_prompts_are_what_transformers_writes(models: dict[str, Path], by_transformers: Oracle) -> None:
    cases, found = [], []
    for name, directory in models.items():
        for system in [(), (SYSTEM,)] if name != "mistral" else [()]:
            for tools in [(), (ADD,)]:
                for more in [{}, {"enable_thinking": False}] if name == "qwen3" else [{}]:
                    codec = TextCodec.load(directory, ModelWays(template_kwargs=more))
                    found.append(codec.encode_prompt(Problem(prompt=(*system, ASK), tools=tools)))
                    cases.append(case(directory, [*system, ASK], tools, **more))
    assert found == by_transformers(*cases)


def test_transcripts_with_tools_are_what_transformers_writes(models: dict[str, Path], by_transformers: Oracle) -> None:
    """Prompt, call, the tool's answer, words, a question: what follows each turn, put behind what was said."""
    again = ChatMessage(role="user", content="And twice that?")
    cases, found = [], []
    for name, directory in models.items():
        codec = TextCodec.load(directory)
        assert codec.tool_format is not None
        problem = Problem(prompt=(ASK,), tools=(ADD,))
        before = " " if name == "mistral" else ""
        text = write_calls(codec.tool_format, [ADDING]).replace("[TOOL_CALLS]", f"[TOOL_CALLS]{before}")
        said = [tuple(codec.encode_answer(text)), tuple(codec.encode_answer(f"{before}5."))]
        [call] = codec.spoken(problem, text).calls
        assert (call.name, call.arguments) == ("add", ADDING.arguments)
        answer = ChatMessage(role="tool", content='{"sum": 5}', name="add", tool_call_id=call.id)
        turn = codec.encode_turn(problem, (answer,))
        calling = ChatMessage(role="assistant", content="", tool_calls=(call,))
        if name == "qwen3":  # whose template writes a line end before a call
            said[0] = tuple(codec.encode_answer(f"\n{text}"))
        prompt = codec.encode_prompt(problem)
        found.append((*prompt, *said[0], *turn))
        cases.append(case(directory, [ASK, calling, answer], (ADD,)))
        if name != "mistral":  # whose template takes the tools out of the question before the last
            found.append((*found[-1], *said[1], *codec.encode_turn(problem, (again,))))
            words = ChatMessage(role="assistant", content="5.")
            cases.append(case(directory, [ASK, calling, answer, words, again], (ADD,)))
    for ours, theirs in zip(found, by_transformers(*cases), strict=True):
        assert ours == theirs


def test_thinking_of_earlier_turns_stays_where_the_template_would_strip_it(
    models: dict[str, Path], by_transformers: Oracle
) -> None:
    codec = TextCodec.load(models["qwen3"])
    problem, again = Problem(prompt=(ASK,)), ChatMessage(role="user", content="Sure?")
    thinking = "<think>\n2 + 3\n</think>\n\n5"
    said, turn = codec.encode_answer(thinking), codec.encode_turn(problem, "Sure?")
    transcript = (*codec.encode_prompt(problem), *said, *turn)
    assert thinking in codec.decode(transcript)
    answered = ChatMessage(role="assistant", content=thinking)
    [stripped] = by_transformers(case(models["qwen3"], [ASK, answered, again]))
    assert "<think>" not in codec.decode(stripped)
    assert stripped[-len(turn) :] == turn
    assert codec.decode(transcript).replace("<think>\n2 + 3\n</think>\n\n", "") == codec.decode(stripped)


def test_a_system_prompt_begins_every_conversation_that_has_none(
    models: dict[str, Path], by_transformers: Oracle
) -> None:
    codec = TextCodec.load(models["llama3"], ModelWays(system_prompt=SYSTEM.content))
    expected, other = by_transformers(
        case(models["llama3"], [SYSTEM, ASK]),
        case(models["llama3"], [ChatMessage(role="system", content="Shout."), ASK]),
    )
    assert codec.encode_prompt(Problem(prompt=ASK.content, chat=Chat.ALWAYS)) == expected
    assert codec.encode_prompt(Problem(prompt=(ASK,))) == expected
    assert codec.encode_prompt(Problem(prompt=(ChatMessage(role="system", content="Shout."), ASK))) == other
    assert codec.encode_turn(Problem(prompt=(ASK,)), "So?") == TextCodec.load(models["llama3"]).encode_turn(
        Problem(prompt=(ASK,)), "So?"
    )


def test_a_template_that_refuses_the_system_role_says_so(models: dict[str, Path]) -> None:
    codec = TextCodec.load(models["mistral"], ModelWays(system_prompt="Be brief."))
    with pytest.raises(TaskError, match=r"fails on messages of role system .* Leave \[model\] system_prompt out"):
        codec.encode_prompt(Problem(prompt=(ASK,)))


def test_turns_that_do_not_alternate_are_told(models: dict[str, Path]) -> None:
    with pytest.raises(TaskError, match="roles must alternate"):
        TextCodec.load(models["mistral"]).encode_prompt(Problem(prompt=(ASK, ASK)))
