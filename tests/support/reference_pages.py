"""Write the pages of docs/reference that are made of the program's own texts.

    python -m tests.support.reference_pages

Every page says so in its first lines. `tests/test_docs.py` holds them to what this module makes.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.cli.help.catalogue import COMMANDS as CATALOGUE
from node.cli.help.catalogue import EXITS, PANELS
from node.cli.help.parser import exits_of, row_of, usage_of
from node.commands.plan import json_export as plan_json
from node.commands.simulate import json_export as simulate_json
from node.config.node_config import NodeConfig
from node.config.swarm_config import SwarmConfig
from node.learner_role.metrics.catalogue import TOPICS
from node.reports import machine_formats
from node.reports.model.verdict_meanings import MEANINGS
from node.runtime.event_reference import LEARNER_EVENTS, NODE_EVENTS
from node.tasks.api.options import usage
from node.tasks.registry import BUILT_IN
from protocol.work import Rule
from tests.support.command_line import COMMANDS, single_commands
from tests.support.config_tables import key_tables
from tests.support.paths import ROOT

DIRECTORY = ROOT / "docs" / "reference"
MADE = "<!-- Made by `python -m tests.support.reference_pages`. Change the program's texts, not this page. -->"


def swarm_toml() -> str:
    """Return the page of swarm.toml."""
    return _page(
        "swarm.toml, every key",
        "For operators: what each key of `swarm.toml` means, and its default. `volery init` writes a file with all of "
        "them. How to begin: [start a swarm](../start/start-a-swarm.md).",
        "An unknown key, a wrong type or a value out of range ends `volery learn` with exit code 2 and a sentence that "
        "names file, section and key. So does a key that has no effect because another is missing. Paths are relative "
        "to the file. A step is a training step. Unless a key says otherwise, it may change between two starts.",
        key_tables(SwarmConfig),
    )


def node_toml() -> str:
    """Return the page of node.toml."""
    return _page(
        "node.toml, every key",
        "For volunteers: what each key of `node.toml` means, and its default. Without the file the defaults apply; "
        "`volery join INVITE --config node.toml` reads it. Most need only the options of "
        "[join](../start/join.md).",
        "An unknown key, a wrong type or a value out of range ends `volery join` with exit code 2.",
        key_tables(NodeConfig),
    )


def command_line() -> str:
    """Return the page of all commands."""
    parts = []
    for panel in PANELS:
        rows = [(f"`volery {one.name}`", one.summary) for one in CATALOGUE if one.panel == panel]
        parts += [f"## {panel}", _table(("command", "what it does"), rows)]
    by_words = dict(single_commands())
    for one in CATALOGUE:
        if one.is_group:
            parts += _command((one.name,), COMMANDS[one.name])
        for words, command in by_words.items():
            if words[0] == one.name:
                parts += _command(words, command)
    return _page(
        "Command line",
        "For everybody who types `volery`: every command, argument and option. `volery COMMAND -h` shows the "
        "same in the terminal.",
        _table(("exit code", "meaning"), [(str(code), meaning) for code, meaning in EXITS.items()]),
        "`--json` prints one JSON value and nothing else. `--plain` prints lines instead of the live view.",
        *parts,
    )


def _command(words: Sequence[str], command: Any) -> Iterator[str]:
    yield f"### volery {' '.join(words)}"
    yield f"    volery {usage_of(words, command)}"
    yield " ".join((command.help or "").split())
    rows = [row_of(one) for one in command.params if not getattr(one, "hidden", False)]
    if rows:
        yield _table(("", "meaning"), [(f"`{typed}`", does) for typed, does in rows])
    special = {code: meaning for code, meaning in exits_of(words).items() if EXITS[code] != meaning}
    if special:
        yield _table(("exit code", "meaning"), [(str(code), meaning) for code, meaning in sorted(special.items())])


def events() -> str:
    """Return the page of all events."""
    return _page(
        "Events",
        "For operators, volunteers and programs that read `events.jsonl` in a state directory: every event, its "
        "fields, and when it is written.",
        "An event is one line of JSON: `at` (seconds since 1970), `event` (its name), and flat fields. At 64 MiB the "
        "file becomes `events.jsonl.1`. To follow the training steps:",
        '    tail -f my-swarm/state/events.jsonl | grep \'"event": "step"\'',
        "## Of a learner",
        _table(("event", "fields, and when"), _by_name(LEARNER_EVENTS)),
        "## Of a rollout node",
        "The events of its child processes have the names of the learner's, above.",
        _table(("event", "fields, and when"), _by_name(NODE_EVENTS)),
    )


def metrics() -> str:
    """Return the page of all metrics."""
    parts = []
    for topic, found in TOPICS.items():
        rows = [
            (f"`{one.name}`", one.kind.value, one.unit, ", ".join(f"`{label}`" for label in one.labels), one.words)
            for one in found
        ]
        parts += [f"## {topic}", _table(("metric", "kind", "unit", "labels", "meaning"), rows)]
    return _page(
        "Metrics",
        "For operators: every metric that a learner records. Which to watch, and where they go: "
        "[watching a run](../operate/watching.md).",
        "A gauge is the newest value. A counter only grows between two starts of the learner. A histogram counts "
        "values by size. A label tells the series of one metric apart.",
        *parts,
    )


def report_keys() -> str:
    """Return the page of the keys that programs read."""
    return _page(
        "Keys of reports",
        "For programs that read `volery report`, `volery plan` or `volery simulate` with `--json` or `--csv`. The keys "
        "are a promise: they are added to, and never renamed or removed within a format.",
        "## volery report",
        _document(machine_formats),
        "## volery plan",
        _document(plan_json),
        "## volery simulate",
        _document(simulate_json),
    )


def tasks() -> str:
    """Return the page of the built-in tasks."""
    parts = []
    for kind in BUILT_IN.values():
        summary = kind.summary[:1].upper() + kind.summary[1:].rstrip(".") + "."
        parts += [f"## {kind.name}", f"    {usage(kind)}", summary]
        if kind.options:
            rows = [(f"`{one.key}`", _shown(one.default), one.help) for one in kind.options]
            parts.append(_table(("key", "default", "meaning"), rows))
    return _page(
        "Tasks and their options",
        "For operators: every built-in task that `[task] spec` can name, with its options. How to choose one: "
        "[tasks](../operate/tasks.md).",
        "A spec is `NAME:ARGUMENT:key=value,key=value`. `volery tasks` prints this list, with the tasks of plug-ins.",
        *parts,
    )


def verdicts() -> str:
    """Return the page of the verdicts."""
    rows = [
        (f"`{rule.value}`", MEANINGS[rule].words, "yes" if MEANINGS[rule].blames else "no", MEANINGS[rule].advice)
        for rule in Rule
        if rule is not Rule.ADMITTED
    ]
    return _page(
        "Verdicts",
        "For volunteers and operators: why the learner rejected a record, and what to do. A receipt names the rule; "
        "`volery why` explains one record.",
        "The learner checks the rules in this order, and the first that fails decides. A group is admitted as a "
        "whole or not at all.",
        _table(("rule", "the record was rejected because", "counts against honesty", "what to do"), rows),
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "swarm-toml": swarm_toml,
    "node-toml": node_toml,
    "command-line": command_line,
    "events": events,
    "metrics": metrics,
    "report-keys": report_keys,
    "tasks": tasks,
    "verdicts": verdicts,
}


def path_of(name: str) -> Path:
    """Return where a page lies."""
    return DIRECTORY / f"{name}.md"


def _page(title: str, about: str, *parts: str) -> str:
    texts = [part if part.startswith(("|", "#", "    ", "- ")) or "\n" in part else _filled(part) for part in parts]
    return "\n\n".join([f"# {title}", MADE, _filled(about), *texts]) + "\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)


def _by_name(found: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"`{name}`", text) for name, text in sorted(found.items())]


def _document(module: Any) -> str:
    """Return a module's docstring, without its first paragraph, which is about the code."""
    return "\n\n".join(inspect.cleandoc(module.__doc__).split("\n\n")[1:])


def _shown(default: object) -> str:
    return "" if default == "" else f"`{default}`"


if __name__ == "__main__":
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, made in PAGES.items():
        path_of(name).write_text(made(), encoding="utf-8")
