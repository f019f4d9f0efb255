"""Read tool calls in a policy's text: calls are read as written, and any text gives a value."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.tasks.api.interface import Spoken, ToolCall
from node.tasks.tools.formats import FORMATS, ToolFormat
from node.tasks.tools.reading import MAX_CALLS, MAX_CHARS, read_spoken
from node.tasks.tools.writing import write_calls

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MARKS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>", "{", "}", '"', "\\", ";"]
)
WORDS = st.lists(TEXTS | MARKS, max_size=4).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.builds(
        ToolCall,
        id=st.from_regex(r"[A-Za-z0-9]{9}", fullmatch=True),
        name=st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True),
        arguments=st.dictionaries(WORDS, VALUES, max_size=3),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda call: call.id,
)

HERMES = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def plain(calls: Sequence[ToolCall]) -> list[tuple[str, Mapping[str, Any]]]:
    return [(call.name, call.arguments) for call in calls]


def call(name: str = "add", **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


# --- tool calls are read as they were written -------------------------------------------------------------------------


@pytest.mark.parametrize("tool_format", FORMATS)
@given(calls=CALLS)
def test_calls_that_are_written_are_read(tool_format: ToolFormat, calls: list[ToolCall]) -> None:
    spoken = read_spoken(tool_format, write_calls(tool_format, calls))
    assert plain(spoken.calls) == plain(calls)
    assert (spoken.content, spoken.malformed, spoken.thinking) == ("", (), "")
    if tool_format == "mistral":
        assert spoken.calls == tuple(calls)


@pytest.mark.parametrize("tool_format", FORMATS)
@given(text=st.lists(WORDS | st.just(HERMES) | st.just(call()) | st.text(max_size=9)).map("".join))
def test_nothing_that_is_said_raises_and_the_same_is_always_read(tool_format: ToolFormat, text: str) -> None:
    spoken = read_spoken(tool_format, text, tools=["add"])
    assert spoken == read_spoken(tool_format, text, tools=["add"])
    assert len(spoken.calls) + len(spoken.malformed) <= MAX_CALLS + 1
    assert len({each.id for each in spoken.calls}) == len(spoken.calls)
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each.id) for each in spoken.calls)
    json.dumps([dict(each.arguments) for each in spoken.calls], allow_nan=False, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    ("tool_format", "text", "content"),
    [
        ("hermes", f"I add.\n{HERMES}\nThen I wait.", "I add.\n\nThen I wait."),
        ("hermes", HERMES.removesuffix("</tool_call>"), ""),  # which may be what ended the turn
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]', ""),
        ("mistral", 'I add.[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "short"}]', "I add."),
        ("llama3", '{"name": "add", "parameters": {"a": 1}}', ""),
        ("llama3", '<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}}', ""),
        ("llama3", '\n{"name": "add", "arguments": {"a": 1}}\n', ""),
        ("json", '{"name": "add", "arguments": {"a": 1}}', ""),
        ("json", ' [{"name": "add", "arguments": {"a": 1}}] ', ""),
    ],
)
def test_forms_that_models_use(tool_format: ToolFormat, text: str, content: str) -> None:
    spoken = read_spoken(tool_format, text)
    assert plain(spoken.calls) == [("add", {"a": 1})]
    assert (spoken.content, spoken.malformed) == (content, ())


def test_several_calls_are_in_order() -> None:
    text = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'
    assert [one.name for one in read_spoken("llama3", text).calls] == ["f", "g"]
    assert [one.name for one in read_spoken("hermes", HERMES + HERMES.replace("add", "g")).calls] == ["add", "g"]


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("text", ["", "four", "  four\n", '{"answer": 4}', "{4}", "[4]", "[]", '{"name": "Ada"}'])
def test_what_calls_nothing_is_content(tool_format: ToolFormat, text: str) -> None:
    assert read_spoken(tool_format, text) == Spoken(content=text.strip())


# --- thinking ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "in_thinking", "content", "thinking"),
    [
        (f"<think>{HERMES}</think>four", False, "four", HERMES),
        (f"{HERMES}</think>four", True, "four", HERMES),
        (f"{HERMES}", True, "", HERMES),
        (f"<think>{HERMES}", False, "", HERMES),
        ("so</think>four", False, "four", "so"),  # the template had opened it
        (f"<think>a</think>four<think>{HERMES}</think>!", False, "four!", f"a\n{HERMES}"),
    ],
)
def test_a_call_inside_thinking_is_none(text: str, in_thinking: bool, content: str, thinking: str) -> None:
    expected = Spoken(content=content, thinking=thinking)
    assert read_spoken("hermes", text, in_thinking=in_thinking) == expected


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize(("before", "in_thinking"), [("<think>so</think>\n", False), ("so</think>\n", True)])
def test_a_call_after_thinking_counts(tool_format: ToolFormat, before: str, in_thinking: bool) -> None:
    made = ToolCall(id="123456789", name="add", arguments={"text": "<think></think>"})
    spoken = read_spoken(tool_format, before + write_calls(tool_format, [made]), in_thinking=in_thinking)
    assert plain(spoken.calls) == plain([made])
    assert (spoken.content, spoken.thinking) == ("", "so")


@pytest.mark.parametrize("tool_format", ["llama3", "json"])
def test_json_inside_thinking_is_no_call(tool_format: ToolFormat) -> None:
    assert read_spoken(tool_format, f"<think>{call()}</think>four").calls == ()
    assert read_spoken(tool_format, f"it is <think>{call()}</think>four").content == "it is four"
    assert read_spoken(tool_format, f"<think>{call()}").calls == ()


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ("no", "Call 1 is not JSON."),
        ("", "Call 1 is not JSON."),
        ('{"name": "add", "arguments": {"a": 1}', "Call 1 is not JSON: it does not end."),
        ('{"name": "add" "arguments": {}}', "Call 1 is not JSON."),
        ('{"name": "add", "arguments": {"a": NaN}}', "Call 1 holds NaN, which is no number of JSON."),
        ('{"name": "add", "arguments": {"a": 1e999}}', "Call 1 holds a number that is too large."),
        ('{"name": "add", "arguments": {"a": ' + "1" * 5000 + "}}", "Call 1 holds a number that is too large."),
        ('{"name": "add", "name": "sub", "arguments": {}}', "Call 1 has a key twice."),
        ('{"name": "add", "arguments": {"a": 1, "a": 2}}', "Call 1 has a key twice."),
        ('{"name": "add", "arguments": {"a": "\\ud800"}}', "Call 1 holds half of a surrogate pair."),
        ('{"name": "add", "arguments": {"\\udfff": 1}}', "Call 1 holds half of a surrogate pair."),
        ('{"name": "add", "arguments": ' + "[" * 10_000 + "]" * 10_000 + "}", "Call 1 nests deeper than 64 levels."),
        ('{"name": "add", "arguments": ' + '{"a":' * 10_000, "Call 1 nests deeper than 64 levels."),
        ('{"name": 5, "arguments": {}}', "Call 1 names no tool."),
        ('{"arguments": {}}', "Call 1 names no tool."),
        ('{"name": "", "arguments": {}}', "Call 1 names no tool."),
        ('{"name": "add"}', "Call 1 has no object as \"arguments\"."),
        ('{"name": "add", "arguments": [1]}', "Call 1 has no object as \"arguments\"."),
        ('{"name": "add", "arguments": "{}"}', "Call 1 has no object as \"arguments\"."),
        ('{"name": "add", "arguments": {}, "x": 1}', "Call 1 has a key \"x\" beside its name and its arguments."),
        ('{"name": "add", "arguments": {}} and so on', "Call 1 is followed by other text before its end."),
        ('"' + '\\"' * 50_000, "Call 1 is not JSON."),
        ('{"' + '\\"' * 50_000, "Call 1 is not JSON: it does not end."),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_read_says_why(told: str, why: str) -> None:
    spoken = read_spoken("hermes", f"Well. <tool_call>{told}</tool_call>")
    assert spoken == Spoken(content="Well.", malformed=(why,))


def test_a_malformed_call_leaves_the_others() -> None:
    spoken = read_spoken("hermes", f"<tool_call>oh</tool_call>{HERMES}")
    assert plain(spoken.calls) == [("add", {"a": 1})]
    assert spoken.malformed == ("Call 1 is not JSON.",)


@pytest.mark.parametrize(
    ("tool_format", "text", "why"),
    [
        ("mistral", '[TOOL_CALLS]{"name": "add", "arguments": {}}', "Call 1 is not JSON."),
        ("mistral", "[TOOL_CALLS][]", "Call 1 is an empty list."),
        ("mistral", "[TOOL_CALLS][5]", "Call 1 is no object."),
        ("mistral", f"[TOOL_CALLS][{call()}] so", "Call 1 is followed by other text."),
        ("llama3", "<|python_tag|>print(5)", "Call 1 is not JSON."),
        ("llama3", '<|python_tag|>{"answer": 5}', "Call 1 names no tool."),
        ("llama3", '{"name": "add", "parameters": {"a": NaN}}', "Call 1 holds NaN, which is no number of JSON."),
        ("llama3", '{"name": "add", "parameters": {"a": 1', "Call 1 is not JSON: it does not end."),
        ("llama3", '{"name": "add", "parameters": {}} so', "Call 1 is followed by other text."),
        ("json", '{"name": "add", "arguments": {}, "why": "so"}',
         "Call 1 has a key \"why\" beside its name and its arguments."),
        ("json", f"{call()}{call()}", "Call 1 is followed by other text."),
    ],
)  # fmt: skip
def test_other_formats_say_why_too(tool_format: ToolFormat, text: str, why: str) -> None:
    assert read_spoken(tool_format, text) == Spoken(content="", malformed=(why,))


def test_a_tool_that_is_not_there_is_told() -> None:
    spoken = read_spoken("hermes", HERMES + HERMES.replace("add", "sub"), tools={"sub", "mul"})
    assert [one.name for one in spoken.calls] == ["sub"]
    assert spoken.malformed == ('There is no tool "add". Tools: mul, sub.',)
    assert read_spoken("hermes", HERMES, tools=()).malformed == ('There is no tool "add". There are no tools.',)


def test_a_message_of_50_mb_is_not_read() -> None:
    text = call(text="x" * 50_000_000)
    for tool_format in FORMATS:
        [why] = read_spoken(tool_format, text).malformed
        assert why == f"The message is longer than {MAX_CHARS} characters, and was not read."


def test_calls_without_end_are_cut_off() -> None:
    for text in (HERMES * 5000, "<tool_call></tool_call>" * 5000):
        spoken = read_spoken("hermes", text)
        assert len(spoken.calls) + len(spoken.malformed) == MAX_CALLS + 1
        assert spoken.malformed[-1] == f"There are more than {MAX_CALLS} calls; the others were not read."
    many = read_spoken("mistral", f"[TOOL_CALLS][{', '.join([call()] * 5000)}]")
    assert (len(many.calls), len(many.malformed)) == (MAX_CALLS, 1)


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("part", ["<think></think>", "<think>", "</think>", "<tool_call>", "{}", "[", '"', " "])
def test_a_million_characters_of_anything_are_read(tool_format: ToolFormat, part: str) -> None:
    """Which takes minutes where anything is looked for again from each place."""
    spoken = read_spoken(tool_format, f"<think></think>{part * (1_000_000 // len(part))}")
    assert spoken.calls == ()


def test_an_id_that_is_given_twice_is_given_once() -> None:
    made = ToolCall(id="123456789", name="add", arguments={})
    found = read_spoken("mistral", write_calls("mistral", [made, replace(made, name="sub")])).calls
    assert found[0].id == made.id
    assert found[1].id != made.id
