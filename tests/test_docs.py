"""Check the documents, as far as a program can.

Links lead somewhere, and commands and options exist. Every configuration key is explained once with its default. Every
path, event and message that a page quotes is in the tree. The figures of the demo's recipe are those of the code. A
failing test names the line and the page to change.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from string import Formatter
from typing import Any

import msgspec
import pytest

from node.cli.application import RENAMED as RENAMED_COMMANDS
from node.commands.demo.recipe import Recipe
from node.config.node_config import LimitsSection
from node.learner_role.metrics.catalogue import METRICS
from node.learner_role.metrics.collect import BY_EVENT, ONCE
from node.learner_role.training.warm_start import WarmStartTerms
from node.reports import summary, swarm_report
from node.runtime.event_reference import LEARNER_EVENTS, NODE_EVENTS
from node.tasks.registry import BUILT_IN
from node.ui.view_updates import AT_ZERO, SENTENCES, SUMMED
from tests.support.command_line import COMMANDS
from tests.support.ledgers import demo_run
from tests.support.paths import ROOT
from tests.support.reference_pages import PAGES as REFERENCE
from tests.support.reference_pages import path_of
from tools.site import headings

DOCS = ROOT / "docs"
OWN = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
FOLDERS = {"start": 5, "operate": 23, "lend": 7, "reference": 10, "explain": 9}
"""How many pages each folder has: a page that a test does not see would be lost in silence."""

NUM_STUBS = 20
"""Pages in docs/ itself, beside the index: they lead from addresses of before to where their parts are now."""

PAGES = sorted(
    [
        *(ROOT / name for name in OWN),
        *DOCS.glob("*.md"),
        *(page for folder in FOLDERS for page in (DOCS / folder).rglob("*.md")),
    ]
)
DEMO = DOCS / "start" / "demo.md"
PACKAGES = ("node", "swarm", "learner", "protocol")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


every_page = pytest.mark.parametrize("page", PAGES, ids=named)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(page: Path, heading: str) -> str:
    """A section of a page with its subsections. `heading` is its whole line."""
    level = heading.split(" ")[0]
    found = re.search(
        rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text_of(page), flags=re.MULTILINE | re.DOTALL
    )
    assert found, f"{named(page)} has no section {heading!r}"
    return found.group(1)


def table(text: str) -> list[list[str]]:
    """Rows whose first cell begins with a backquote: their cells, without backquotes around a whole cell."""
    lines = [line.strip()[1:-1] for line in text.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [[cell.strip("`") if cell.count("`") == 2 else cell for cell in row] for row in rows]


# Pages


def test_every_page_is_looked_at() -> None:
    found = {folder: len(list((DOCS / folder).rglob("*.md"))) for folder in FOLDERS}
    assert found == FOLDERS
    assert len(list(DOCS.glob("*.md"))) == NUM_STUBS + 1
    assert len(PAGES) == len(OWN) + sum(FOLDERS.values()) + NUM_STUBS + 1


@pytest.mark.parametrize("name", REFERENCE)
def test_a_page_of_the_reference_is_what_the_program_says(name: str) -> None:
    made = REFERENCE[name]()
    assert text_of(path_of(name)) == made, "renew it: python -m tests.support.reference_pages"


# Links# Links


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    return {anchor for _, anchor in headings(text_of(page))}


def without_code(text: str) -> str:
    """`text` without fenced blocks, in which # begins a comment."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", without_code(text_of(page))):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.is_file() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_the_index_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([\w-]+/[\w-]+\.md)\)", text_of(DOCS / "index.md")))
    assert listed == {str(page.relative_to(DOCS)) for folder in FOLDERS for page in (DOCS / folder).rglob("*.md")}


# What pages quote from the tree


@every_page
def test_quoted_paths_exist(page: Path) -> None:
    """`node/cli/main.py`, `swarm/store/` and the like; NAME in capitals stands for something else."""
    quoted = re.findall(r"`((?:\w+/)+(?:\w+\.(?:py|md|toml|sh))?)`", text_of(page))
    ours = [path for path in quoted if path.split("/")[0] in {*PACKAGES, "tests", "docs", "tools"}]
    assert [path for path in ours if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=named)
def test_files_quoted_by_their_name_alone_exist(page: Path) -> None:
    """`my_task.py` is the reader's own, and `convert_hf_to_gguf.py` llama.cpp's."""
    names = {path.name for package in (*PACKAGES, "tests", "tools") for path in (ROOT / package).rglob("*.py")}
    assert set(re.findall(r"`(\w+\.py)`", text_of(page))) - names <= {"my_task.py", "convert_hf_to_gguf.py"}


@lru_cache
def words_of_the_program() -> str:
    """All string constants of the packages, f-strings in their parts, one a line."""
    found = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(" ".join(node.value.split()))
    return "\n".join(found)


@pytest.mark.parametrize("folder", ["operate", "lend"])
def test_messages_in_the_troubleshooting_are_the_programs(folder: str) -> None:
    lines = text_of(DOCS / folder / "troubleshooting.md").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    quoted = [words for cell in cells for words in re.findall(r"`([^`]+)`", cell) if " " in words]
    assert len(quoted) > 5
    assert [words for words in quoted if words not in words_of_the_program()] == []


def emitted() -> dict[str, set[str]]:
    """Fields of all events by name, as every `emit` has them; `**` where some have names that are only known then."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "node").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                for name in texts(node.args[0]):
                    found.setdefault(name, set()).update(keyword.arg or "**" for keyword in node.keywords)
    return found


def texts(node: ast.AST) -> list[str]:
    """The texts that an expression, or a pattern, may be."""
    match node:
        case ast.IfExp(body=one, orelse=other):
            return texts(one) + texts(other)
        case ast.MatchOr(patterns=patterns):
            return [text for pattern in patterns for text in texts(pattern)]
        case ast.Constant(value=str(text)) | ast.MatchValue(value=ast.Constant(value=str(text))):
            return [text]
    return []


def explained() -> list[tuple[str, set[str], set[str]]]:
    """Return for each event's row the fields that it lists, and all words in backquotes, since the text after names
    more.
    """
    found: list[tuple[str, set[str], set[str]]] = []
    for name, told in (*LEARNER_EVENTS.items(), *NODE_EVENTS.items()):
        words = set(re.findall(r"`(\w+)`", told)) | (found[-1][2] if "the same" in told else set())
        plain = re.sub(r"\([^()]*\)", "", told.removeprefix("at the end: "))
        found.append((name, set(re.findall(r"`(\w+)`", plain.split(": ")[0])), words))
    return found


def test_every_event_is_explained() -> None:
    listed = {name for name, _, _ in explained()}
    of_the_demo = set(re.findall(r"`(\w+)`", section(DEMO, "## What lies in runs/demo")))
    assert listed <= emitted().keys() <= listed | of_the_demo


def test_every_field_of_an_event_is_explained() -> None:
    """And no other is listed, where all are known before."""
    events = emitted()
    for name, listed, words in explained():
        assert events[name] - {"**"} <= words, name
        assert listed <= events[name] or "**" in events[name], name


LISTENERS = (
    "ui/view_updates.py",
    "learner_role/metrics/monitor.py",
    "learner_role/metrics/collect.py",
    "learner_role/app.py",
)


def test_who_listens_to_events_asks_for_fields_that_they_have() -> None:
    words: dict[str, set[str]] = {}
    for name, _, of_a_row in explained():
        words.setdefault(name, set()).update(of_a_row)
    asked = [(name, set(measured.values()) - {ONCE}) for name, measured in BY_EVENT.items()]
    asked += [
        (name, {label}) for name, measured in BY_EVENT.items() for key in measured for label in METRICS[key].labels
    ]
    asked += [
        (name, {field for _, field, _, _ in Formatter().parse(text) if field}) for name, text in SENTENCES.items()
    ]
    asked += [(name, {field}) for name, (field, _) in AT_ZERO.items()]
    for path in LISTENERS:
        for node in ast.walk(ast.parse((ROOT / "node" / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.MatchSequence) and isinstance(node.patterns[-1], ast.MatchMapping):
                keys = {text for key in node.patterns[-1].keys for text in texts(key)}
                asked += [(name, keys) for name in texts(node.patterns[0])]
    assert len(asked) > 120
    made = {"called", "gone", "now", "found"}  # words of the view and of the metrics
    for name in SUMMED:
        words[name].add("leases")  # which the view counts
    assert [(name, more) for name, fields in asked if (more := fields - words[name] - made)] == []


def test_every_built_in_task_is_on_the_page_of_tasks() -> None:
    told = set(re.findall(r"`(\w+)[:`]", section(DOCS / "operate" / "tasks.md", "## Choose a task")))
    assert set(BUILT_IN) <= told


# Commands


def quoted_commands(page: Path) -> Iterator[list[str]]:
    """Every `volery ...` and `make ...` of a page, in backquotes or in an indented block, as words."""
    text = without_code(text_of(page))
    lines = re.findall(r"`((?:volery|make)(?: [^`]*)?)`", text)
    lines += re.findall(r"^(?: {4})+((?:volery|make) [^|\n]*)$", text, flags=re.MULTILINE)
    for line in lines:
        yield shlex.split(line.split("──")[0].split("  ")[0])


def options_of(command: str, action: str = "") -> set[str]:
    """Return the options of a command; with actions, those of one action or of all."""
    found = COMMANDS[RENAMED_COMMANDS.get(command, command)]
    actions = getattr(found, "commands", {"": found})
    chosen = [actions[action]] if action in actions else actions.values()
    return {option for one in chosen for p in one.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}


@every_page
def test_commands_and_options_exist(page: Path) -> None:
    wrong = []
    for words in quoted_commands(page):
        if words[0] != "volery" or len(words) == 1 or words[1] == "COMMAND" or words[1].startswith("-"):
            continue
        options = {word for word in words if word.startswith("--")}
        if words[1] not in {*COMMANDS, *RENAMED_COMMANDS} or not options <= options_of(*words[1:3]):
            wrong.append(" ".join(words))
    assert wrong == []


# benchmarks.md speaks of the benchmarks' own options.
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "benchmarks.md"], ids=named)
def test_options_named_alone_exist(page: Path) -> None:
    alone = set(re.findall(r"`(--[a-z-]+)(?: [A-Z]+)?`", text_of(page)))
    assert alone <= {"--version"}.union(*map(options_of, COMMANDS))


def test_every_command_is_told() -> None:
    pages = [page for page in PAGES if page.parent.name != "reference"]
    told = {words[1] for page in pages for words in quoted_commands(page) if words[1:]}
    assert set(COMMANDS) <= told


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    prefixes = tuple(target.removesuffix("%") for target in targets if target.endswith("%"))
    called = [words[1] for words in quoted_commands(page) if words[0] == "make" and len(words) > 1]
    assert [name for name in called if name not in targets and not name.startswith(prefixes)] == []


# Limits, rules, figures, summary


def test_the_gaps_of_every_limit_are_told_among_the_threats() -> None:
    told = section(DOCS / "explain" / "threats.md", "## Open in 0.1.0")
    for key in msgspec.structs.fields(LimitsSection):
        assert f"{key.encode_name}`" in told, key.encode_name


@pytest.mark.parametrize(("heading", "kind"), [("| `Recipe` |", Recipe), ("| `WarmStartTerms` |", WarmStartTerms)])
def test_the_recipe_is_told_as_it_is(heading: str, kind: type[Any]) -> None:
    text = section(DEMO, "## The recipe")
    rows = table(text[text.index(heading) :].split("\n\n")[0])[1:]
    told = {row[0]: row[1] if row[0] == "by" else float(row[1]) for row in rows}
    assert told == {field.name: field.default for field in fields(kind)}


def test_every_key_of_the_summary_is_explained(tmp_path: Path) -> None:
    demo_run(tmp_path / "ledger.sqlite", steps=2)
    told = summary(swarm_report(tmp_path / "ledger.sqlite"), staleness_bound=3, peak_pss_mib=None, seeds={})
    keys = [(re.findall(r"\w+", cell), meaning) for cell, meaning in table(section(DEMO, "## summary.json"))]
    assert sorted(name for names, _ in keys for name in names) == sorted(told)
    (about_peers,) = [meaning for names, meaning in keys if names == ["peers"]]
    assert re.findall(r"`(\w+)`", about_peers) == list(told["peers"][0])


# Manners


EXAMPLE_HOSTS = re.compile(r"0\.0\.0\.0|127\.|192\.0\.2\.|198\.51\.100\.|203\.0\.113\.")
"""Addresses that are nobody's: RFC 5737, loopback, and all interfaces."""


@every_page
def test_nothing_of_the_makers_own_machines_is_told(page: Path) -> None:
    text = text_of(page)
    assert re.findall(r"(?<![\w.$~*/-])/(?:work|root|tmp|home|Users|var|opt|mnt|srv)/\S*", text) == []
    hosts = re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text)
    assert [host for host in hosts if not EXAMPLE_HOSTS.match(host)] == []


@every_page
def test_pages_speak_of_the_program_and_not_of_its_making(page: Path) -> None:
    # "assistant" is also a role in conversations, which tasks.md quotes.
    words = r"assistants?|sessions?|workplace|chatbot|co-?authored"
    assert re.findall(rf'(?<![`"])\b(?:{words})\b(?![`"])', text_of(page), flags=re.IGNORECASE) == []
