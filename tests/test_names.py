"""The code's names follow the glossary: no identifier of the packages holds a word that the glossary replaces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("node", "swarm", "learner", "protocol", "volery")

BANNED = {
    "schooling": "warm start; the tasks of a run are a suite",
    "school": "the same",
    "redraw": "regenerate",
    "redrawn": "regenerate",
    "draw_again": "regenerate",
    "drawn_again": "regenerate",
    "give_back": "return",
    "given_back": "return",
    "giveback": "return",
    "hand_back": "return",
    "handed_back": "return",
    "choosing": "selective delivery",
    "doubt": "suspicion",
    "doubted": "suspected",
    "is_on": "is_active, is_lent",
    "switch_on": "activate",
    "switch_off": "deactivate",
    "line_lost": "connection lost",
    "lost_line": "lost connection",
    "work_line": "session",
    "road": "route",
    "journey": "broadcast, fetch",
    "detour": "circuit",
    "silence": "timeout",
    "patience": "timeout, retries",
    "beat": "heartbeat",
    "book": "ledger, receipts",
    "worth": "reward, value",
    "sibling": "group",
    "parcel": "delivery",
    "steward": "provisioner",
    "probation": "quarantine",
    "karma": "reputation",
    "cherry": "selective delivery",
}
"""Words and phrases, as the parts of an identifier in lower case, with what the glossary says instead."""

PROMISED = {
    "patience_s": "a key of [engine] in node.toml",
    "lost_line": "a field of a message between the learner's machines",
    "worth": "a field of the event `choice_drawn`",
    "siblings": "an attribute of the Hugging Face Hub's library",
}
"""Whole names that keep their spelling, each with the reason. Others are renamed instead."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def parts_of(name: str) -> list[str]:
    return [word.lower() for word in WORD.findall(name)]


def faults_of(name: str) -> list[str]:
    """Return the banned words in an identifier, unless its whole name is promised."""
    parts = parts_of(name)
    if "_".join(parts) in PROMISED:
        return []
    spelt = f"_{'_'.join(parts)}_"
    singular = f"_{'_'.join(part.removesuffix('s') for part in parts)}_"
    return [word for word in BANNED if f"_{word}_" in spelt or f"_{word}_" in singular]


def identifiers_in(path: Path) -> Iterator[str]:
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name


@cache
def identifiers() -> dict[str, str]:
    """Return all names in the packages, each with a file that has it."""
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return {name: str(path.relative_to(ROOT)) for path in paths for name in identifiers_in(path)}


def test_no_identifier_says_what_the_glossary_does_not() -> None:
    assert len(identifiers()) > 10_000
    found = {
        f"{path}: {name} (say: {BANNED[word]})"
        for name, path in identifiers().items()
        if not name.startswith("test_")  # checks that authors of tasks run, whose names are shown as sentences
        for word in faults_of(name)
    }
    assert sorted(found) == []


@pytest.mark.parametrize("name", ["_Journey", "JOURNEY_S", "journeys", "the_journey_of"])
def test_a_word_is_found_in_any_spelling(name: str) -> None:
    assert faults_of(name) == ["journey"]


@pytest.mark.parametrize("name", ["broadcast", "heartbeat", "patience_s", "is_only"])
def test_other_words_and_promised_names_pass(name: str) -> None:
    assert faults_of(name) == []


def test_every_promised_name_is_still_there() -> None:
    assert PROMISED.keys() - {"_".join(parts_of(name)) for name in identifiers()} == set()
