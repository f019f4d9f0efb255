"""Read what a policy said in one turn: its thinking, its words, and the tools that it calls.

A pure function of the format and the text. Whatever a policy says is a value: calls that cannot be read are told in
sentences, which an environment may show to the policy. Formats differ in where a call stands
(`node.tasks.tools.formats`).

Invariants:
- Nothing raises. The time grows with the length of the text alone.
- A call inside thinking is none. Thinking stands between <think> and </think>. A text may begin inside it, where the
  chat template has written <think>.
- A mark inside the JSON of a call is part of that JSON.
- Every call has an id of nine letters and digits; two of one text never share it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from node.tasks.api.interface import Spoken, ToolCall
from node.tasks.tools.formats import CALL, END_OF_CALL, PYTHON_TAG, TOOL_CALLS, ToolFormat
from node.tasks.tools.strict_json import Value, Wrong, read_value

MAX_CHARS = 1 << 20
"""Of one turn: 1 Mi characters, far beyond the words of any turn. Longer texts are not read at all. The worst text of
that length takes half a second."""

MAX_CALLS = 64
"""Of one turn, with those that cannot be read. Each costs its environment a step."""

MAX_NAME_SHOWN = 64
"""Characters of a tool's name in a sentence about it."""

THINK, END_OF_THINKING = "<think>", "</think>"

SPACE = " \t\r\n"
"""What JSON takes as space."""

ID = re.compile(r"[A-Za-z0-9]{9}")
"""Ids as Mistral's templates demand them."""


def read_spoken(
    tool_format: ToolFormat, text: str, *, tools: Collection[str] | None = None, in_thinking: bool = False
) -> Spoken:
    """Return what `text` says.

    `tools`: names of the tools that there are; a call of another one is malformed. None takes every name.
    `in_thinking`: the prompt has opened <think> already.
    """
    if len(text) > MAX_CHARS:
        return Spoken(content="", malformed=(f"The message is longer than {MAX_CHARS} characters, and was not read.",))
    reading = _Reading(text=text, in_thinking=in_thinking)
    match tool_format:
        case "hermes":
            reading.read_marked(CALL, reading.hermes_call)
        case "mistral":
            reading.read_marked(TOOL_CALLS, reading.mistral_calls)
        case "llama3":
            reading.read_bare("parameters", tag=PYTHON_TAG)
        case "json":
            reading.read_bare("arguments")
    return _among(reading.spoken(), tools)


def _among(spoken: Spoken, tools: Collection[str] | None) -> Spoken:
    """`spoken`, where calls of tools that are not among `tools` count as malformed."""
    unknown = [call.name for call in spoken.calls if tools is not None and call.name not in tools]
    if not unknown or tools is None:
        return spoken
    there = f"Tools: {', '.join(sorted(tools))}." if tools else "There are no tools."
    told = [f"There is no tool {_shown(name)}." for name in unknown]
    told[0] += f" {there}"
    return replace(
        spoken,
        calls=tuple(call for call in spoken.calls if call.name in tools),
        malformed=(*spoken.malformed, *told),
    )


def _shown(name: str) -> str:
    """A name in quotes, alike on every machine: what counts as printable changes with Python."""
    return json.dumps(name[:MAX_NAME_SHOWN])


@dataclass(kw_only=True)
class _Reading:
    """One text while it is read, from `at` on."""

    text: str
    in_thinking: bool
    at: int = 0
    content: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)

    def spoken(self) -> Spoken:
        return Spoken(
            content="".join(self.content).strip(),
            calls=tuple(self.calls),
            malformed=tuple(self.malformed),
            thinking="\n".join(part.strip() for part in self.thinking),
        )

    # --- formats ------------------------------------------------------------------------------------------------------

    def read_marked(self, mark: str, read_call: Callable[[], None]) -> None:
        """Read a text where each call, or the list of them, stands behind `mark`."""
        self._begin(self.text.find(mark))
        call = -1
        while self.at < len(self.text):
            if (
                call < self.at
            ):  # looked for anew only where it is behind, or many thoughts would take the square of time
                found = self.text.find(mark, self.at)
                call = found if found >= 0 else len(self.text)
            think = self.text.find(THINK, self.at, call)
            self._say(think if think >= 0 else call)
            if think >= 0:
                self.at += len(THINK)
                self._think()
            elif call < len(self.text) and not self._is_full():
                self.at += len(mark)
                read_call()

    def hermes_call(self) -> None:
        """One call and the mark behind it. At the end of the text that mark may lack: it may be what ended the turn."""
        if (found := self._value("{")) is None:
            self._jump(END_OF_CALL)
            return
        self._skip_space()
        if self.text.startswith(END_OF_CALL, self.at):
            self.at += len(END_OF_CALL)
        elif self.at < len(self.text):
            self._wrong("is followed by other text before its end")
            self._jump(END_OF_CALL)
            return
        self._take(found.value, "arguments")

    def mistral_calls(self) -> None:
        """The list of all calls, with which the message ends."""
        if (found := self._value("[")) is None:
            self.at = len(self.text)
            return
        self._skip_space()
        if self.at < len(self.text):
            self._wrong("is followed by other text")
            self.at = len(self.text)
            return
        self._take_list(found.value, "arguments")

    def read_bare(self, key: str, *, tag: str = "") -> None:
        """Read a text that is nothing but calls, after its thinking, or none at all. Arguments are called `key`.

        JSON without a name and arguments is an answer, and no call, unless `tag` stands before it.
        """
        opening = ("{",) if tag else ("{", "[")
        begins = self.text.lstrip().startswith((*opening, *([tag] if tag else [])))
        self._begin(0 if begins else -1)
        while True:
            self._skip_space()
            if not self.text.startswith(THINK, self.at):
                break
            self.at += len(THINK)
            self._think()
        if tag and self.text.startswith(tag, self.at):
            self.at += len(tag)
            self._bare_calls(key, opening, separator=";")
        elif self.text.startswith(opening, self.at) and self._looks_like_calls(key):
            self._bare_calls(key, opening, separator=";" if tag else "")
        else:
            while (think := self.text.find(THINK, self.at)) >= 0:
                self._say(think)
                self.at += len(THINK)
                self._think()
            self._say(len(self.text))

    def _looks_like_calls(self, key: str) -> bool:
        """Whether the JSON that begins here means calls: read or not, it has a name and arguments."""
        found = read_value(self.text, self.at)
        if isinstance(found, Value):
            first = found.value[0] if isinstance(found.value, list) and found.value else found.value
            return isinstance(first, dict) and "name" in first and ("arguments" in first or key in first)
        return all(f'"{word}"' in self.text[self.at : found.end] for word in ("name", key))

    def _bare_calls(self, key: str, opening: tuple[str, ...], *, separator: str) -> None:
        while not self._is_full():
            if (found := self._value(*opening)) is None:
                break
            self._skip_space()
            more = bool(separator) and self.text.startswith(separator, self.at)
            if not more and self.at < len(self.text):
                self._wrong("is followed by other text")
                break
            self._take_list(found.value if isinstance(found.value, list) else [found.value], key)
            if not more:
                break
            self.at += len(separator)
        self.at = len(self.text)

    # --- thinking and words -------------------------------------------------------------------------------------------

    def _begin(self, call: int) -> None:
        """Go behind the thinking in which the text begins: known, or told by its end where nothing opened it before.
        `call` is where the first call may stand, -1 for nowhere."""
        end, think = self.text.find(END_OF_THINKING), self.text.find(THINK)
        if self.in_thinking or (end >= 0 and all(place < 0 or end < place for place in (call, think))):
            self._think()

    def _think(self) -> None:
        """Take what stands before the end of thinking, or before the end of the text."""
        end = self.text.find(END_OF_THINKING, self.at)
        self.thinking.append(self.text[self.at : end if end >= 0 else len(self.text)])
        self.at = end + len(END_OF_THINKING) if end >= 0 else len(self.text)

    def _say(self, end: int) -> None:
        self.content.append(self.text[self.at : end])
        self.at = end

    # --- calls --------------------------------------------------------------------------------------------------------

    def _value(self, *opening: str) -> Value | None:
        """The JSON that begins here with one of the `opening` brackets; None, and told, where there is none."""
        self._skip_space()
        found: Value | Wrong = Wrong(why="is not JSON", end=self.at)
        if self.text.startswith(opening, self.at):
            found = read_value(self.text, self.at)
        self.at = found.end
        if isinstance(found, Value):
            return found
        self._wrong(found.why)
        return None

    def _take_list(self, values: list[Any], key: str) -> None:
        if not values:
            self._wrong("is an empty list")
        for value in values:
            if self._is_full():
                return
            self._take(value, key)

    def _take(self, value: Any, key: str) -> None:
        """Add the call that an object means, or say what is wrong with it."""
        if not isinstance(value, dict):
            self._wrong("is no object")
        elif not isinstance(name := value.get("name"), str) or not name:
            self._wrong("names no tool")
        elif not isinstance(arguments := value.get(key, value.get("arguments")), Mapping):
            self._wrong(f"has no object as {_shown(key)}")
        elif odd := sorted(value.keys() - {"name", "arguments", key, "id", "type"}):
            self._wrong(f"has a key {_shown(odd[0])} beside its name and its {key}")
        else:
            self.calls.append(ToolCall(id=self._id(value.get("id")), name=name, arguments=arguments))

    def _id(self, given: object) -> str:
        taken = {call.id for call in self.calls}
        if isinstance(given, str) and ID.fullmatch(given) and given not in taken:
            return given
        return next(one for one in self._ids() if one not in taken)

    def _ids(self) -> Iterator[str]:
        for number in range(len(self.calls), MAX_CALLS * 2):
            yield f"{self._digest}{number:02x}"

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self.text.encode(errors="replace")).hexdigest()[:7]

    def _wrong(self, why: str) -> None:
        self.malformed.append(f"Call {len(self.calls) + len(self.malformed) + 1} {why}.")

    def _is_full(self) -> bool:
        """Whether there are MAX_CALLS; then the rest of the text is passed over, and that is told."""
        if len(self.calls) + len(self.malformed) < MAX_CALLS:
            return False
        self.malformed.append(f"There are more than {MAX_CALLS} calls; the others were not read.")
        self.at = len(self.text)
        return True

    def _skip_space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in SPACE:
            self.at += 1

    def _jump(self, mark: str) -> None:
        """Go behind the next `mark`, or to the end of the text."""
        place = self.text.find(mark, self.at)
        self.at = place + len(mark) if place >= 0 else len(self.text)
