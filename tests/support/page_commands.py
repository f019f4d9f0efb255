"""Find the commands that pages show in blocks of their own, for readers to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.support.command_line import COMMANDS
from tests.support.paths import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(
        page for folder in ("start", "operate", "lend", "explain") for page in (ROOT / "docs" / folder).rglob("*.md")
    ),
]
"""Pages whose commands a reader types. Those of `docs/reference/` show the form of a command, not an example."""


def blocks(text: str) -> Iterator[str]:
    """Yield every line of a page's fenced and indented blocks."""
    fenced = re.compile(r"^```[^\n]*\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
    for block in fenced.findall(text):
        yield from block.split("\n")
    yield from re.findall(r"^ {4,}(\S.*)$", fenced.sub("", text), flags=re.MULTILINE)


def typed(page: Path) -> list[str]:
    """Return each `volery` command in the blocks of a page once, without comments, in the order of the page."""
    lines = [line.strip() for line in blocks(page.read_text(encoding="utf-8"))]
    calls = [line for line in lines if line.startswith("volery ") and line.split()[1] in COMMANDS and "──" not in line]
    return list(dict.fromkeys(shlex.join(shlex.split(line, comments=True)) for line in calls))


def all_typed() -> dict[str, list[str]]:
    """Return every such command, with the names of the pages that show it."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for command in typed(page):
            found.setdefault(command, []).append(str(page.relative_to(ROOT)))
    return found
