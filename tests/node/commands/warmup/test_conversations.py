"""Turn rows of a file into examples: the part that is learned, and rows that cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from node.commands.warmup.conversations import FIELDS, Reader, open_data
from node.learner_role.training.supervised import Passage, example_of
from node.tasks.api.interface import Chat, TaskError
from node.tasks.data_files.rows import Row
from node.tasks.tokenizer import TextCodec, write_character_tokenizer
from tests.support.chat_templates import LLAMA3, MISTRAL, QWEN3, write_family_model

ASK, SAY = {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}
MORE, LAST = {"role": "user", "content": "and 3"}, {"role": "assistant", "content": "7"}


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, TextCodec]:
    root = tmp_path_factory.mktemp("families")
    shapes = {"qwen3": QWEN3, "llama3": LLAMA3, "mistral": MISTRAL}
    return {name: TextCodec.load(write_family_model(root / name, text)) for name, text in shapes.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    directory = tmp_path_factory.mktemp("plain")
    write_character_tokenizer(directory)
    return TextCodec.load(directory)


def row(**fields: Any) -> Row:
    return Row(number=1, fields=fields, names=tuple(fields))


def read(codec: TextCodec, **fields: Any) -> list[Passage]:
    return Reader(codec=codec).passages(row(**fields))


def shown(codec: TextCodec, passages: list[Passage]) -> tuple[str, str]:
    """(all of it, what is learnt) as text."""
    one = example_of(passages)
    return codec.decode(one.tokens.tolist()), codec.decode(one.tokens[one.learnt.astype(bool)].tolist())


WHOLE = {
    "qwen3": (
        "<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n"
        "<|im_start|>user\nand 3<|im_end|>\n<|im_start|>assistant\n7<|im_end|>"
    ),
    "llama3": (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nbe short<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\n2+2<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        "4<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nand 3<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n7<|eot_id|>"
    ),
}
ENDS = {"qwen3": "<|im_end|>", "llama3": "<|eot_id|>"}


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_a_conversation_is_as_its_template_has_it_and_the_assistant_is_learnt(
    families: Mapping[str, TextCodec], family: str
) -> None:
    codec, system = families[family], {"role": "system", "content": "be short"}
    whole, learnt = shown(codec, read(codec, messages=[system, ASK, SAY, MORE, LAST]))
    assert whole == WHOLE[family]
    assert learnt == f"4{ENDS[family]}7{ENDS[family]}"


def test_tools_are_called_as_the_family_writes_calls_and_what_they_say_is_not_learnt(
    families: Mapping[str, TextCodec],
) -> None:
    codec = families["qwen3"]
    call = {"id": "call00001", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}}
    tool = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}
    messages = [
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "four", "tool_call_id": "call00001"},
        SAY,
    ]
    whole, learnt = shown(codec, read(codec, messages=messages, tools=[tool]))
    said = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 2}}\n</tool_call><|im_end|>'
    assert learnt == f"{said}4<|im_end|>"
    assert '"description": "Add."' in whole
    assert "<tool_response>\nfour\n</tool_response>" in whole


def test_weight_nought_is_read_and_not_learnt(families: Mapping[str, TextCodec]) -> None:
    codec = families["qwen3"]
    _, learnt = shown(codec, read(codec, messages=[ASK, SAY | {"weight": 0}, MORE, LAST | {"weight": 1}]))
    assert learnt == "7<|im_end|>"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "2+2", "completion": "4"},
        {"prompt": "2+2", "answer": 4},
        {"prompt": [ASK], "completion": "4"},
        {"prompt": [ASK], "completion": [SAY]},
        {"messages": [ASK], "answer": "4"},
        {"messages": [ASK, SAY]},
        {"messages": json.dumps([ASK, SAY])},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}]},
                SAY,
            ]
        },
    ],
    ids=["completion", "answer", "chat prompt", "both chats", "task rows", "messages", "JSON text", "content parts"],
)
def test_every_shape_gives_the_same_example(families: Mapping[str, TextCodec], fields: dict[str, Any]) -> None:
    codec = families["qwen3"]
    assert read(codec, **fields) == read(codec, messages=[ASK, SAY])


def test_a_prompt_of_text_stays_text_where_there_is_no_template(
    plain: TextCodec, families: Mapping[str, TextCodec]
) -> None:
    assert shown(plain, read(plain, prompt="2+2=", completion="4")) == ("2+2=4<eos>", "4<eos>")
    codec = families["qwen3"]
    bare = Reader(codec=codec, chat=Chat.NEVER).passages(row(prompt="2+2=", completion="4"))
    assert shown(codec, bare) == ("2+2=4<|im_end|>", "4<|im_end|>")


def test_of_a_completion_of_messages_only_that_is_learnt(families: Mapping[str, TextCodec]) -> None:
    codec = families["qwen3"]
    _, learnt = shown(codec, read(codec, prompt=[ASK, SAY, MORE], completion=[LAST]))
    assert learnt == "7<|im_end|>"


def test_the_template_says_what_ends_a_turn_where_it_is_a_stop_id(tmp_path: Path) -> None:
    directory = write_family_model(tmp_path / "base", QWEN3)
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<|endoftext|>"}))
    alone = TextCodec.load(directory)
    assert shown(alone, read(alone, messages=[ASK, SAY]))[1] == "4<|endoftext|>"
    end = alone.tokenizer.token_to_id("<|im_end|>")
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [end, alone.eos_id]}))
    both = TextCodec.load(directory)
    assert shown(both, read(both, messages=[ASK, SAY]))[1] == "4<|im_end|>"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "has none of these: `messages`, `prompt` and `completion`"),
        ({"question": "2+2", "reply": "4"}, "its fields are `question`, `reply`"),
        ({"prompt": "2+2"}, "has none of these"),
        ({"prompt": "2+2", "completion": "  "}, "`completion` is empty"),
        ({"prompt": "2+2", "completion": [SAY]}, "`completion` is not text, but `prompt` is"),
        ({"messages": [ASK]}, "has no message of the assistant"),
        ({"messages": [SAY, ASK]}, "begins with a message of the assistant"),
        ({"messages": [ASK, SAY, LAST]}, "messages 2 and 3 are both the assistant's"),
        ({"messages": [ASK, SAY | {"content": ""}]}, "message 2, of the assistant, is empty"),
        ({"messages": [ASK, SAY | {"weight": 0}]}, "all messages of the assistant have weight 0"),
        ({"messages": "hello"}, "does not hold messages in the form of OpenAI's API"),
        ({"messages": [{"from": "human", "value": "2+2"}]}, "does not hold messages in the form of OpenAI's API"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAY]}, "content of type 'image_url'"),
        ({"messages": [ASK, SAY], "tools": [{"name": "add"}]}, "`tools` does not hold tools"),
        (
            {"messages": [ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]},
            "the arguments of a call of 'f' are not a JSON object",
        ),
    ],
)
def test_rows_that_cannot_be_used(families: Mapping[str, TextCodec], fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read(families["qwen3"], **fields)


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_what_a_template_refuses_is_told_with_its_line(families: Mapping[str, TextCodec], tmp_path: Path) -> None:
    good = {"messages": [ASK, SAY]}
    path = write(tmp_path / "talk.jsonl", good, {"messages": [{"role": "system", "content": "short"}, ASK, SAY]})
    with pytest.raises(TaskError) as raised:
        list(Reader(codec=families["mistral"]).read(open_data(path)))
    assert str(raised.value).startswith(f"{path}:2: ")
    assert "fails on messages of role system" in str(raised.value)


def test_conversations_need_a_template(plain: TextCodec, tmp_path: Path) -> None:
    path = write(tmp_path / "talk.jsonl", {"messages": [ASK, SAY]})
    with pytest.raises(TaskError, match=r"talk.jsonl:1: .*has no chat template"):
        list(Reader(codec=plain).read(open_data(path)))


def test_fields_of_other_names(plain: TextCodec, tmp_path: Path) -> None:
    path = write(tmp_path / "sums.jsonl", {"q": "2+2=", "extra": {"final": "4"}})
    names = {one: one for one in FIELDS} | {"prompt": "q", "answer": "extra.final"}
    [(number, passages)] = Reader(codec=plain, names=names).read(open_data(path))
    assert (number, shown(plain, passages)[0]) == (1, "2+2=4<eos>")


def test_a_table_of_text(plain: TextCodec, tmp_path: Path) -> None:
    path = tmp_path / "sums.csv"
    path.write_text("prompt,completion\n2+2=,4\n3+3=,6\n")
    found = [shown(plain, passages)[1] for _, passages in Reader(codec=plain).read(open_data(path))]
    assert found == ["4<eos>", "6<eos>"]
    tabs = tmp_path / "sums.tsv"
    tabs.write_text("prompt\tcompletion\n2+2=\t4\n")
    assert len(list(Reader(codec=plain).read(open_data(tabs)))) == 1


def test_parts_in_a_directory(plain: TextCodec, tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"part-{number}.jsonl", {"prompt": f"{number}=", "completion": str(number)})
    for name in (tmp_path, tmp_path / "part-*.jsonl"):
        found = [shown(plain, passages)[1] for _, passages in Reader(codec=plain).read(open_data(name))]
        assert found == ["0<eos>", "1<eos>", "2<eos>"]


@pytest.mark.parametrize(
    ("name", "split", "said"),
    [
        ("none.jsonl", "", "does not exist. Name a file"),
        ("notes.txt", "", "its format is not known"),
        ("empty", "", "its format is not known"),
        ("notes.txt", "train", "--split train: "),
        ("empty", "train", "is not a directory that save_to_disk wrote"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, split: str, said: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TaskError) as raised:
        list(open_data(tmp_path / name, split).rows(["prompt"]))
    assert said in str(raised.value)
