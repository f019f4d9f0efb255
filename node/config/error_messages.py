"""Explain what is wrong with a value of the configuration, with the section and the key as the file spells them.

msgspec says where in a structure a value does not fit. The author of the file thinks in its tables and keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin

import msgspec

from node.config.common import Section

_UNKNOWN = re.compile(r"Object contains unknown field `([^`]+)`")
_TYPES = re.compile(r"Expected `([^`]+)`, got `([^`]+)`")
_PATTERN = re.compile(r"matching regex '([^']+)'")
_MISSING = re.compile(r"Object missing required field `([^`]+)`")

_WRITE = {
    "int": "Write a whole number, such as 1000, without quotes, point or exponent.",
    "float": "Write a number, such as 0.5 or 1e-6, without quotes.",
    "str": "Write text in quotes.",
    "bool": "Write true or false, without quotes.",
    "array": "Write a list in brackets.",
    "object": "Write a section of its own.",
}
_PATTERNS = {
    "^[^/]+$": 'Write a name as `ps -e` shows it, such as "blender", without a path.',
    "^[A-Z]{3}$": 'Write three capital letters, such as "EUR".',
    "^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$": 'Write "auto", "cpu", "mps", "cuda", or one of several GPUs: "cuda:1".',
}


NAMES_ELSEWHERE = {
    "num_generations": "[learn] group_size",
    "max_completion_length": "[learn] max_new_tokens",
    "vllm_max_model_length": "[learn] max_episode_tokens",
    "generation_batch_size": "[learn] prompts_per_step",
    "max_steps": "[learn] steps",
    "steps_per_generation": "[trainer] updates_per_step",
    "eval_steps": "[evaluate] every_versions",
    "save_steps": "[learn] keep_every",
    "loss_type": "[trainer] objective",
    "beta": "[trainer] kl_coefficient",
    "epsilon": "[trainer] clip_low",
    "epsilon_high": "[trainer] clip_high",
}
"""What TRL calls keys of swarm.toml (docs/operate/coming-from.md)."""


def explain_validation(message: str, kind: type[Any], raw: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return msgspec's message with the section and key as the file spells them, and with the next step.

    `raw`: the file's content, which shows whether an unknown name is that of a section.
    """
    text, _, where = message.partition(" - at `$")
    place = where.rstrip("`").strip(".")
    section, _, key = place.partition(".")
    if (unknown := _UNKNOWN.match(text)) is not None:
        known = types_of(_struct_at(kind, place))
        meant = _meant(unknown[1], known, kind)
        if not place and isinstance(raw.get(unknown[1]), dict):
            return f"there is no section [{unknown[1]}]{meant}. Known sections and keys: {', '.join(known)}."
        return f"{_place(kind, section, key)}there is no key {unknown[1]!r}{meant}. Known keys: {', '.join(known)}."
    if (missing := _MISSING.match(text)) is not None:
        return f"{_place(kind, section, key)}the key {missing[1]!r} is missing."
    if (write := _how_to_write(text, section, key)) != "":
        write = f" {write}"
    plain = text.replace("`object`", "a table").replace("`array`", "a list").replace(" | null`", "`")
    if plain.startswith("Invalid enum value"):
        choices = choices_of(types_of(_section(kind, section) or kind).get((key or section).partition("[")[0]))
        plain = f"{plain}; choose one of {', '.join(map(repr, choices))}"
    return f"{_place(kind, section, key)}{lower(plain)}.{write}"


def _meant(wrong: str, known: Iterable[str], kind: type[Any]) -> str:
    """Return what the unknown key may mean: a section, a key of another section, or a key with a similar name."""
    sections = {name: types_of(found) for name in types_of(kind) if (found := _section(kind, name)) is not None}
    if wrong in sections and wrong not in known:
        return f"; it is a section, [{wrong}]"
    if wrong in NAMES_ELSEWHERE and "learn" in sections:
        return f"; TRL's {wrong} is {NAMES_ELSEWHERE[wrong]} here"
    elsewhere = [f"[{name}]" for name, keys in sections.items() if wrong in keys]
    if elsewhere:
        return f"; {' and '.join(elsewhere)} {'has' if len(elsewhere) == 1 else 'have'} one"
    close = get_close_matches(wrong, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _how_to_write(text: str, section: str, key: str) -> str:
    """Return the next step for a wrong type or a pattern that does not match; "" if the message needs none."""
    if (pattern := _PATTERN.search(text)) is not None:
        return _PATTERNS.get(pattern[1], "")
    if (types := _TYPES.match(text)) is None:
        return ""
    wanted, got = types[1].removesuffix(" | null"), types[2]
    if (wanted, got) == ("array", "object"):
        return f"Write [[{section}.{key}]], once for each."
    if (wanted, got) == ("object", "array"):
        return f"Write [{section}]."
    return _WRITE.get(wanted, "")


def choices_of(declared: Any) -> tuple[Any, ...]:
    """Return the values of a Literal, also of one that may be unset."""
    if get_origin(declared) is Literal:
        return get_args(declared)
    return next((found for one in get_args(declared) if (found := choices_of(one))), ())


def lower(sentence: str) -> str:
    """Return the sentence with a small first letter, to stand after a colon."""
    return sentence[:1].lower() + sentence[1:]


def _place(kind: type[Any], section: str, key: str) -> str:
    if section and _section(kind, section) is None:
        return f"{section}: "
    return f"[{section}] {key}: " if key else f"[{section}] " if section else ""


def _section(kind: type[Any], name: str) -> type[Any] | None:
    """Return the section called `name`; None if `name` is a plain key or does not exist."""
    found = types_of(kind).get(name)
    return found if isinstance(found, type) and issubclass(found, Section) else None


def _struct_at(kind: type[Any], place: str) -> type[Any]:
    """Return the type at a place as msgspec names it, such as `task.mixture[0]`."""
    for name in filter(None, re.sub(r"\[[^]]*\]", "", place).split(".")):
        found = types_of(kind)[name]
        while not isinstance(found, type) or not issubclass(found, Section):
            found = get_args(found)[0]
        kind = found
    return kind


def types_of(kind: type[Any]) -> dict[str, Any]:
    """Return the declared type of every key of a section, or of the file."""
    return {field.name: field.type for field in msgspec.structs.fields(kind)}
