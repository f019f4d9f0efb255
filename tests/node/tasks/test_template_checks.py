"""A start reports faults of a chat template that would fail every episode, and facts that are worth knowing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from node.tasks.api.interface import Chat, ChatMessage, Problem, TaskError
from node.tasks.template_checks import check_template
from node.tasks.tokenizer import TextCodec
from node.tasks.ways.model_ways import ModelWays
from tests.support.chat_templates import ADD, LLAMA3, MISTRAL, QWEN3, write_family_model

ASK = Problem(prompt="Hi", chat=Chat.ALWAYS)
WITH_TOOLS = Problem(prompt="Hi", chat=Chat.ALWAYS, tools=(ADD,))
PLAIN = Problem(prompt="Hi")

NUMBERED = (
    "{% for m in messages %}{{ loop.index }}:{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def checked(model: Path, problem: Problem, *, has_turns: bool = False, ways: ModelWays | None = None) -> list[str]:
    return check_template(TextCodec.load(model, ways or ModelWays()), problem, has_turns=has_turns)


@pytest.mark.parametrize("family", [LLAMA3, MISTRAL])
@pytest.mark.parametrize("problem", [ASK, WITH_TOOLS, PLAIN])
@pytest.mark.parametrize("has_turns", [False, True])
def test_of_most_there_is_nothing_to_say(tmp_path: Path, family: str, problem: Problem, has_turns: bool) -> None:
    assert checked(write_family_model(tmp_path, family), problem, has_turns=has_turns) == []


def test_thinking_that_is_stripped_from_earlier_turns_is_told_where_there_are_turns(tmp_path: Path) -> None:
    model = write_family_model(tmp_path, QWEN3)
    assert checked(model, ASK) == []
    [note] = checked(model, ASK, has_turns=True)
    assert "rewrites earlier turns" in note
    assert checked(model, WITH_TOOLS, has_turns=True) == []  # it strips nothing from tools' answers


def test_a_template_that_counts_turns_is_refused(tmp_path: Path) -> None:
    model = write_family_model(tmp_path, QWEN3)
    with pytest.raises(TaskError, match=r"depends on earlier turns.*\[model\] chat_template"):
        checked(model, ASK, has_turns=True, ways=ModelWays(chat_template=NUMBERED, template_file="own.jinja"))


def test_tools_without_a_place_or_a_format_are_refused(tmp_path: Path) -> None:
    model = write_family_model(tmp_path, QWEN3)
    shows_none = ModelWays(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(TaskError, match="does not show tools"):
        checked(model, WITH_TOOLS, ways=shows_none)
    other = ModelWays(chat_template=QWEN3 + "{# <function= #}", template_file="own.jinja")
    with pytest.raises(TaskError, match=r"own\.jinja: .*form that is not supported. Set \[model\] tool_format"):
        checked(model, WITH_TOOLS, ways=other)
    assert checked(model, ASK, ways=other) == []


def test_a_system_prompt_has_no_place_in_plain_text(tmp_path: Path) -> None:
    model = write_family_model(tmp_path, QWEN3)
    with pytest.raises(TaskError, match="cannot be used with prompts of plain text"):
        checked(model, PLAIN, ways=ModelWays(system_prompt="Be kind."))


@pytest.mark.parametrize("ways", [ModelWays(system_prompt="Be kind."), ModelWays(template_kwargs={"a": 1})])
def test_without_a_template_neither_system_prompt_nor_variables_have_a_place(tmp_path: Path, ways: ModelWays) -> None:
    model = write_family_model(tmp_path, QWEN3)
    (model / "chat_template.jinja").unlink()
    with pytest.raises(TaskError, match=r"has no chat template, and \[model\] \w+ needs one"):
        TextCodec.load(model, ways)


def test_an_end_that_no_file_calls_one_is_told(tmp_path: Path) -> None:
    """As where a base model gets a template of its chat sibling."""
    model = write_family_model(tmp_path, QWEN3)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|endoftext|>"}))
    [note] = checked(model, ASK)
    assert "with <|im_end|>, which no file of the model names as an end: add it to [model] stop" in note
    assert checked(model, ASK, ways=ModelWays(stop=["<|im_end|>"])) == []


# --- the beginning of a text ------------------------------------------------------------------------------------------


@pytest.fixture
def begins(tmp_path: Path) -> Path:
    """A model whose tokenizer begins every text with <s>."""
    model = write_family_model(tmp_path, MISTRAL)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    tokenizer.save(str(model / "tokenizer.json"))
    return model


@pytest.mark.parametrize("problem", [ASK, PLAIN, Problem(prompt="<s>Hi"), Problem(prompt="<s><s>Hi")])
def test_a_prompt_begins_once(begins: Path, problem: Problem) -> None:
    codec = TextCodec.load(begins)
    text = codec.decode(codec.encode_prompt(problem))
    assert text.startswith("<s>")
    assert text.count("<s>") == 1


def test_a_beginning_that_would_be_doubled_is_told(begins: Path) -> None:
    assert checked(begins, ASK) == checked(begins, PLAIN) == []
    [note] = checked(begins, Problem(prompt="<s>Hi"))
    assert "would begin with <s> twice" in note
    [note] = checked(begins, ASK, ways=ModelWays(chat_template="{{ bos_token }}" + MISTRAL))
    assert "would begin with <s> twice" in note


def test_a_template_that_forgets_the_beginning_is_told(begins: Path) -> None:
    bare = ModelWays(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    [note] = checked(begins, ASK, ways=bare)
    assert "the model's chat template does not write <s>" in note


def test_what_a_message_looks_like_to_a_template_of_calls_alone(tmp_path: Path) -> None:
    """One that takes a tool's answer only behind a call is asked so."""
    wants = (
        "{% for m in messages %}"
        "{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('x') }}{% endif %}"
        "{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
        "{{ eos_token }}{% endfor %}{{ tools | tojson }}"
    )
    model = write_family_model(tmp_path, QWEN3)
    ways = ModelWays(chat_template=wants, tool_format="json")
    assert checked(model, WITH_TOOLS, has_turns=True, ways=ways) == []
    codec = TextCodec.load(model, ways)
    answer = ChatMessage(role="tool", content="5", name="add")
    assert codec.decode(codec.encode_turn(WITH_TOOLS, (answer,))).startswith("tool:5<|im_end|>")
    endless = ModelWays(chat_template=wants.replace("{{ eos_token }}", ";"), tool_format="json")
    with pytest.raises(TaskError, match=r"ends a tool call with no token that ends a completion.*\[model\] stop"):
        checked(model, WITH_TOOLS, has_turns=True, ways=endless)
