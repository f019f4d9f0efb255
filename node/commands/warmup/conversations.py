"""Turn rows of a data file into examples: a conversation, or a prompt with the assistant's completion.

    {"messages": [{"role": "user", "content": ...}, {"role": "assistant", "content": ...}], "tools": [...]}
    {"prompt": ..., "completion": ...}    {"prompt": ..., "answer": ...}

Messages are those of OpenAI's chat completions, with `tool_calls` and messages of role `tool`. An assistant's message
with `weight` 0 is not learnt. `prompt` is text or messages; `completion` is text, or messages that begin with the
assistant's.

An example is laid out token by token like an episode of the swarm: the prompt through the chat template, the
assistant's text, a token that ends its turn, and what follows a turn through the template again. So the model learns
what it generates later. Words that the template itself puts before the assistant's are not learnt.

Invariants:

- A row that cannot be used is an error with file and row. Only messages after the assistant's last one are left out.
- Exactly the assistant's tokens are learnt, including the end of its turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from learner.artifacts.text_files import parse_json
from node.learner_role.training.supervised import Passage
from node.runtime.user_paths import as_path
from node.tasks.api.interface import Chat, ChatMessage, Problem, TaskError, Tool, ToolCall
from node.tasks.data_files.delimited import open_delimited
from node.tasks.data_files.formats import SAVED
from node.tasks.data_files.json_lines import open_json_lines
from node.tasks.data_files.parquet import open_parquet
from node.tasks.data_files.rows import MISSING, BadRow, DataFile, Row, names_text
from node.tasks.data_files.saved_dataset import SavedDataset
from node.tasks.tokenizer import TextCodec
from node.tasks.tools.writing import write_calls

FIELDS = ("messages", "tools", "prompt", "completion", "answer")
"""Fields that a row may have. `--field` gives them other names in the file."""

SHAPES = "`messages`, `prompt` and `completion`, or `prompt` and `answer`"

THE_ASSISTANT = "assistant"

NO_ID = "000000000"
"""The id of a call that has none: nine digits, which the templates of all families accept."""


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] = msgspec.field(default_factory=dict)


class _Call(msgspec.Struct):
    function: _Function
    id: str | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    weight: float | None = None


class _ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    function: _ToolFunction


@dataclass(frozen=True, kw_only=True)
class Reader:
    """Reads rows.

    Args:
        chat: whether a prompt of text goes through the chat template.
        names: the name in the file, by the names of FIELDS.
    """

    codec: TextCodec
    chat: Chat = Chat.AUTO
    names: Mapping[str, str] = field(default_factory=lambda: {one: one for one in FIELDS})

    def read(self, file: DataFile) -> Iterator[tuple[int, list[Passage]]]:
        """Yield (number, passages) of each row. Raises TaskError, which names file and row."""
        for row in file.rows(list(self.names.values())):
            try:
                yield row.number, self.passages(row)
            except TaskError as error:  # from the chat template, or the tokenizer
                raise TaskError(f"{file.place(row.number)}: {error}") from error
            except ValueError as error:
                raise file.reject(row.number, error) from error

    def passages(self, row: Row) -> list[Passage]:
        """Return the parts of one row's example, in order. Raises ValueError, TaskError."""
        has = {name for name in FIELDS if self._value(row, name) is not None}
        said = next((name for name in ("completion", "answer") if name in has), "")
        if "messages" in has and not said:
            return self._conversation(self._messages(row, "messages"), self._tools(row))
        asked = next((name for name in ("prompt", "messages") if name in has), "")
        if not asked or not said:
            fix = "Name the fields that hold them, for example --field prompt=question"
            raise BadRow(f"has none of these: {SHAPES}; its fields are {names_text(row.names) or 'none'}", fix)
        return self._answered(row, asked, said)

    def _answered(self, row: Row, asked: str, said: str) -> list[Passage]:
        """Return a prompt, and the assistant's answer to it."""
        prompt, answer = self._value(row, asked), self._value(row, said)
        if isinstance(prompt, str) and not (asked == "messages" or _is_list(prompt)):
            if not isinstance(answer, str | int | float) or isinstance(answer, bool):
                raise ValueError(f"`{self.names[said]}` is not text, but `{self.names[asked]}` is")
            problem = Problem(prompt=prompt, chat=self.chat)
            return self._taught(problem, str(answer), self.names[said])
        before = self._messages(row, asked)
        if _is_list(answer):
            return self._conversation([*before, *self._messages(row, said)], self._tools(row), len(before))
        problem = Problem(prompt=tuple(map(_plain, before)), chat=Chat.ALWAYS, tools=self._tools(row))
        return self._taught(problem, str(answer), self.names[said])

    def _taught(self, problem: Problem, text: str, name: str) -> list[Passage]:
        if not text.strip():
            raise ValueError(f"`{name}` is empty")
        if not problem.prompt:
            raise ValueError("the prompt is empty")
        answer = self.codec.encode_answer(text, self.codec.end_of_turn(problem))
        return [(self.codec.encode_prompt(problem), False), (answer, True)]

    def _conversation(self, messages: Sequence[_Message], tools: tuple[Tool, ...], begin: int = 0) -> list[Passage]:
        """Return all messages in order. The assistant's are learnt, from message `begin` on."""
        first = next(
            (place for place, one in enumerate(messages) if one.role == THE_ASSISTANT and place >= begin), None
        )
        if first is None:
            raise ValueError("has no message of the assistant, so there is nothing to learn")
        if first == 0:
            raise ValueError("begins with a message of the assistant, so it has no prompt")
        problem = Problem(prompt=tuple(map(_plain, messages[:first])), chat=Chat.ALWAYS, tools=tools)
        passages: list[Passage] = [(self.codec.encode_prompt(problem), False)]
        end, heard = self.codec.end_of_turn(problem), list[ChatMessage]()
        for place, message in enumerate(messages[first:], start=first + 1):
            if message.role != THE_ASSISTANT:
                heard.append(_plain(message))
                continue
            if heard:
                passages.append((self.codec.encode_turn(problem, tuple(heard)), False))
                heard = []
            elif place > first + 1:
                raise ValueError(f"messages {place - 1} and {place} are both the assistant's: join them into one")
            passages.append((self.codec.encode_answer(self._said(message, place), end), message.weight != 0))
        if not any(is_said for _, is_said in passages):
            raise ValueError("all messages of the assistant have weight 0, so there is nothing to learn")
        return passages

    def _said(self, message: _Message, place: int) -> str:
        plain = _plain(message)
        text = plain.content
        if plain.tool_calls:
            text = write_calls(self.codec.require_tool_format(), plain.tool_calls, plain.content)
        if not text.strip():
            raise ValueError(f"message {place}, of the assistant, is empty")
        return text

    def _messages(self, row: Row, name: str) -> list[_Message]:
        found = _convert(self._value(row, name), list[_Message], self.names[name])
        if not found:
            raise ValueError(f"`{self.names[name]}` is empty")
        return found

    def _tools(self, row: Row) -> tuple[Tool, ...]:
        value = self._value(row, "tools")
        if value is None:
            return ()
        return tuple(
            Tool(
                name=one.function.name,
                description=one.function.description or "",
                **({"parameters": one.function.parameters} if one.function.parameters else {}),
            )
            for one in _convert(value, list[_Tool], self.names["tools"])
        )

    def _value(self, row: Row, name: str) -> Any:
        found = row.get(self.names[name])
        return None if found is MISSING or found == "" or found == [] else found


T = TypeVar("T")


def _convert(value: Any, kind: type[T], name: str) -> T:
    """Return a value of a row, or the JSON in its text, as in CSV. Raises ValueError."""
    try:
        return msgspec.convert(parse_json(value.encode()) if isinstance(value, str) else value, kind)
    except (msgspec.ValidationError, ValueError) as error:
        what = "tools" if kind == list[_Tool] else "messages"
        raise ValueError(f"`{name}` does not hold {what} in the form of OpenAI's API: {error}") from None


def _is_list(value: Any) -> bool:
    """Return whether a value is a list of messages, or a text with the JSON of one."""
    return isinstance(value, list) or (isinstance(value, str) and value.lstrip().startswith('[{"'))


def _plain(message: _Message) -> ChatMessage:
    """Return a message as chat templates take it. Raises ValueError."""
    content = message.content
    if isinstance(content, list):
        if other := [part for part in content if part.get("type") != "text" or not isinstance(part.get("text"), str)]:
            raise ValueError(f"a message has content of type {other[0].get('type')!r}, but only text can be learnt")
        content = "".join(part["text"] for part in content)
    calls = tuple(
        ToolCall(id=one.id or NO_ID, name=one.function.name, arguments=_arguments(one.function))
        for one in message.tool_calls or ()
    )
    return ChatMessage(
        role=message.role,
        content=content or "",
        name=message.name or "",
        tool_call_id=message.tool_call_id or "",
        tool_calls=calls,
    )


def _arguments(function: _Function) -> Mapping[str, Any]:
    if not isinstance(function.arguments, str):
        return function.arguments
    try:
        found = json.loads(function.arguments)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"the arguments of a call of {function.name!r} are not a JSON object")
    return found


def open_data(path: Path, split: str = "") -> DataFile:
    """Return the file at `path`, in the format of its name or content. Raises TaskError."""
    path = as_path(str(path))
    if path.is_dir() and any((path / name).exists() for name in SAVED):
        return SavedDataset(path, split)
    if split:
        raise TaskError(f"--split {split}: {path} is not a directory that save_to_disk wrote. Omit --split.")
    if path.is_dir():
        endings = {one.suffix.lower() for one in path.iterdir() if one.is_file()}
        suffix = next((one for one in FORMATS if one in endings), "")
    else:
        suffix = path.suffix.lower()
        if not path.exists() and not any(sign in path.name for sign in "*?"):
            raise TaskError(f"--data {path} does not exist. Name a file or a saved data set.")
    if suffix not in FORMATS:
        raise TaskError(
            f"--data {path}: its format is not known. Name a file that ends in {', '.join(FORMATS)}, or a directory "
            "that save_to_disk of datasets wrote."
        )
    if suffix in (".jsonl", ".json"):
        return open_json_lines(path)
    return open_parquet(path) if suffix == ".parquet" else open_delimited(path)


FORMATS = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
