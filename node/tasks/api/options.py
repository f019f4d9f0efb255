"""Parse the options of a spec, `key=value[,key=value]`, by what a kind of task declares.

Invariants:

- Every declared option is in the result, with its type and in its range.
- Every mistake is a TaskError that says what would be right.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from node.tasks.api.interface import Chat, Option, OptionValue, TaskError, TaskKind

CHAT = Option(key="chat", default="auto", help="use of the model's chat template", choices=tuple(c.value for c in Chat))
"""The option of tasks that can write their prompts for chat models."""


def usage(kind: TaskKind) -> str:
    """Return the form of a kind's spec, with defaults: "jsonl:PATH[:match=exact,chat=auto,held_out=0.1]"."""
    argument = f":{kind.argument}" if kind.argument else ""
    shown = [f"{option.key}={'...' if option.default == '' else option.default}" for option in kind.options]
    options = ",".join([*shown, "key=value,..."] if kind.free_options else shown)
    return f"{kind.name}{argument}" + (f"[:{options}]" if options else "")


def parse_options(kind: TaskKind, text: str) -> dict[str, OptionValue]:
    """Return the options in `text`, for a task of this kind. Raises TaskError."""
    by_key = {option.key: option for option in kind.options}
    values: dict[str, OptionValue] = {option.key: option.default for option in kind.options}
    given: set[str] = set()
    for part in text.split(",") if text else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise TaskError(f"task {kind.name!r}: {part!r} is not key=value. Use: {usage(kind)}.")
        if key not in by_key and not kind.free_options:
            known = ", ".join(by_key) or "none"
            meant = suggestion(key, by_key)
            if not meant and "prompt" in by_key:
                meant = f". If {key!r} is the field with the prompt, write prompt={key}"
            raise TaskError(f"task {kind.name!r} has no key {key!r}{meant}. Keys: {known}.")
        if key in given:
            raise TaskError(f"task {kind.name!r}: key {key!r} is given twice. Leave one out.")
        given.add(key)
        values[key] = _parse_value(kind, by_key[key], value) if key in by_key else value
    return values


def _parse_value(kind: TaskKind, option: Option, text: str) -> OptionValue:
    where = f"task {kind.name!r}: {option.key}={text}"
    if isinstance(option.default, str):
        if option.choices and text not in option.choices:
            raise TaskError(f"{where}: must be one of {', '.join(option.choices)}.")
        return text
    convert = type(option.default)
    try:
        value = convert(text)
    except ValueError as error:
        wanted = "a whole number" if convert is int else "a number"
        raise TaskError(f"{where}: must be {wanted} ({option.help}).") from error
    # Written so that NaN fails.
    if not option.minimum <= value <= option.maximum:
        raise TaskError(f"{where}: must lie in {option.minimum:g} to {option.maximum:g} ({option.help}).")
    return value


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'X'?)" for the known word that is closest to `word`, or "" if none is close."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
