"""Find out the name and the licence of the model that a run began with.

A directory does not say where it came from, unless it is in the cache of the hub's client. A directory is believed only
while it holds the files whose digests are in the ledger: the licence or name of another model on a card would be worse
than none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from learner.artifacts.regular_file import read_file
from node.learner_role.training.base_model import WEIGHTS, digests_of
from node.runtime.errors import NodeError, UsageError

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""ORG/NAME, the hub's form of a model's name."""

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+_-]{0,63}", re.ASCII)
"""The hub's name of a licence, such as "apache-2.0"."""

SAID = re.compile(r"^license:[ \t]*[\"']?([A-Za-z0-9.+_-]{1,64})[\"']?[ \t]*(?:#.*)?\r?$", re.MULTILINE | re.ASCII)
"""The line of a card's front matter that names the licence."""

FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.MULTILINE | re.DOTALL)

MAX_CARD_BYTES = 1 << 20
"""Most bytes of a README.md or LICENSE that is read: the longest licences have 40 KB."""

KNOWN_TEXTS = (
    ("apache-2.0", ("Apache License", "Version 2.0, January 2004")),
    ("mit", ("MIT License", "Permission is hereby granted, free of charge")),
)
"""Licences that are recognised by their text, because models contain it unchanged."""


@dataclass(frozen=True, kw_only=True)
class BaseModel:
    """What is known about a base model.

    Args:
        hub: its name on the hub, "" if it is not known.
        called: the name for people.
        licence: the hub's name of its licence, "" if the directory does not say.
        other: whether the directory holds other weights than the run began with.
    """

    hub: str = ""
    called: str = ""
    licence: str = ""
    other: bool = False


def describe_base(directory: Path | None, recorded: Mapping[str, str], given: str) -> BaseModel:
    """Return what is known about the model in `directory`.

    Args:
        recorded: digests of its files in the ledger.
        given: the hub's name for it, from the operator. Raises UsageError if that cannot be a name.
    """
    if given and HUB_NAME.fullmatch(given) is None:
        raise UsageError(f"--base-model {given!r}: write the hub's name ORG/NAME, such as Qwen/Qwen3-0.6B.")
    if directory is None or not directory.is_dir():
        return BaseModel(hub=given, called=given)
    if recorded and _differs(directory, recorded):
        return BaseModel(hub=given, called=given, other=True)
    hub = given or _in_a_cache(directory.parts) or _in_a_cache(directory.resolve().parts)
    return BaseModel(hub=hub, called=hub or directory.name, licence=licence_of(directory))


def _differs(directory: Path, recorded: Mapping[str, str]) -> bool:
    """Return whether the weights are not those that the run began with, or cannot be read."""
    try:
        found = digests_of(directory)
    except NodeError:
        return True
    names = {name for name in found.keys() | recorded.keys() if name.endswith(WEIGHTS)}
    return any(found.get(name) != recorded.get(name) for name in names)


def _in_a_cache(parts: Iterable[str]) -> str:
    """Return ORG/NAME of a path in the hub client's cache, .../models--ORG--NAME/snapshots/...; "" for other paths."""
    for part in parts:
        kind, _, name = part.partition("--")
        if kind == "models" and HUB_NAME.fullmatch(name.replace("--", "/", 1)):
            return name.replace("--", "/", 1)
    return ""


def licence_of(directory: Path) -> str:
    """Return the hub's name of the licence that the model in `directory` states; "" if it states none."""
    if said := licence_in(_text(directory / "README.md")):
        return said
    text = _text(directory / "LICENSE") or _text(directory / "LICENSE.txt")
    return next((name for name, words in KNOWN_TEXTS if text and all(word in text for word in words)), "")


def licence_in(card: str) -> str:
    """Return the licence in the front matter of a card; "" if it names none."""
    front = FRONT_MATTER.match(card)
    said = SAID.search(front[1]) if front else None
    return said[1].lower() if said else ""


def read_licence(given: str) -> str:
    """Return `given` as the hub writes it. Raises UsageError if it cannot be a licence's name."""
    licence = given.strip().lower()
    if LICENCE.fullmatch(licence) is None:
        raise UsageError(
            f"--license {given!r}: write the hub's name of the licence, such as apache-2.0, mit or other "
            "(https://huggingface.co/docs/hub/repositories-licenses)."
        )
    return licence


def _text(path: Path) -> str:
    try:
        return read_file(path, MAX_CARD_BYTES).decode(errors="replace")
    except OSError:
        return ""
