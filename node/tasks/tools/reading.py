"""Parse what a policy said in one turn: its thinking, its text, and its tool calls.

A pure function of the format and the text. Everything that a policy says gives a value: for each call that cannot be
parsed there is a sentence, which an environment may show to the policy. The formats are in `node.tasks.tools.formats`.

Invariants:

- Nothing raises. The time depends only on the length of the text.
- A call inside thinking does not count. Thinking stands between <think> and </think>. A text may begin inside it, if
  the chat template has written <think>.
- A mark inside the JSON of a call is part of that JSON.
- Every call has an id of nine letters and digits. No two calls of one text have the same id.
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
"""Maximum characters of one turn, far beyond any real one. Longer texts are not parsed at all. The worst text of that
length takes half a second."""

MAX_CALLS = 64
"""Maximum calls in one turn, malformed ones included. Each one costs its environment a step."""

MAX_NAME_SHOWN = 64
"""Characters of a tool's name to show in a sentence about it."""

THINK, END_OF_THINKING = "<think>", "</think>"

SPACE = " \t\r\n"
"""The characters that JSON accepts as white space."""

ID = re.compile(r"[A-Za-z0-9]{9}")
"""Ids that Mistral's templates accept."""


def read_spoken(
    tool_format: ToolFormat, text: str, *, tools: Collection[str] | None = None, in_thinking: bool = False
) -> Spoken:
    """Return the parsed `text`.

    `tools`: names of the available tools; a call of another one is malformed. None accepts every name. `in_thinking`:
    the prompt has already opened <think>.
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
    """Return `spoken`, with calls of tools that are not in `tools` counted as malformed."""
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
    """Return a name in quotes, the same on every machine: Python versions differ in which characters they print."""
    return json.dumps(name[:MAX_NAME_SHOWN])


@dataclass(kw_only=True)
class _Reading:
    """One text while it is parsed, from `at` on."""

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

    # --- Formats ------------------------------------------------------------------------------------------------------

    def read_marked(self, mark: str, read_call: Callable[[], None]) -> None:
        """Parse a text in which each call, or the list of calls, stands after `mark`."""
        self._begin(self.text.find(mark))
        call = -1
        while self.at < len(self.text):
            if call < self.at:  # searched again only after it was passed, or many thoughts would take quadratic time
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
        """Parse one call and its end mark. At the end of the text the mark may be missing: it may have ended the
        turn."""
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
        """Parse the list of all calls, which ends the message."""
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
        """Parse a text that, after its thinking, consists only of calls or has none. Arguments are called `key`.

        JSON without a name and arguments is an answer and no call, unless `tag` stands before it.
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
        """Return whether the JSON that begins here means calls: valid or not, it has a name and arguments."""
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

    # --- Thinking and text --------------------------------------------------------------------------------------------

    def _begin(self, call: int) -> None:
        """Skip the thinking with which the text begins. It is known from the prompt, or from an end without a beginning
        before it. `call`: where the first call may stand, -1 for nowhere."""
        end, think = self.text.find(END_OF_THINKING), self.text.find(THINK)
        if self.in_thinking or (end >= 0 and all(place < 0 or end < place for place in (call, think))):
            self._think()

    def _think(self) -> None:
        """Take the text up to the end of thinking, or up to the end of the text."""
        end = self.text.find(END_OF_THINKING, self.at)
        self.thinking.append(self.text[self.at : end if end >= 0 else len(self.text)])
        self.at = end + len(END_OF_THINKING) if end >= 0 else len(self.text)

    def _say(self, end: int) -> None:
        self.content.append(self.text[self.at : end])
        self.at = end

    # --- Calls --------------------------------------------------------------------------------------------------------

    def _value(self, *opening: str) -> Value | None:
        """Return the JSON that begins here with an `opening` bracket. If there is none, record it and return None."""
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
        """Add the call that an object means, or record what is wrong with it."""
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
        """Return whether there are MAX_CALLS. Then record that, and skip the rest of the text."""
        if len(self.calls) + len(self.malformed) < MAX_CALLS:
            return False
        self.malformed.append(f"There are more than {MAX_CALLS} calls; the others were not read.")
        self.at = len(self.text)
        return True

    def _skip_space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in SPACE:
            self.at += 1

    def _jump(self, mark: str) -> None:
        """Go to the position after the next `mark`, or to the end of the text."""
        place = self.text.find(mark, self.at)
        self.at = place + len(mark) if place >= 0 else len(self.text)
