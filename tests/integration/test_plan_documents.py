"""The documents show what `volery plan` prints, and describe every column and key."""

from __future__ import annotations

import os
import re

import pytest

from benchmarks.swarms.table2 import table2
from learner.provisioning.model.machine_selection import MARGIN
from learner.provisioning.model.windows import STANDS_S
from node.commands.plan.inputs import MAX_STALENESS, STALENESS
from node.commands.plan.pool_keys import COLUMNS, SETTINGS, Key
from tests.support.paths import ROOT
from tests.support.plan_calls import plan

DOCS = ROOT / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below `heading` whose first cells are quoted."""
    text = (DOCS / page).read_text(encoding="utf-8")
    below = text[text.index(heading) :]
    lines = below[below.index("\n| `") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("heading", "keys"), [("**The pool**", COLUMNS), ("**The swarm's own figures**", SETTINGS)])
def test_every_key_is_told(heading: str, keys: tuple[Key, ...]) -> None:
    told = rows("operator.md", heading)
    assert [row[0] for row in told] == [key.name for key in keys]
    assert {row[0] for row in told if row[1] == "required"} >= {key.name for key in keys if key.needed}


def test_defaults_are_told_as_they_are() -> None:
    told = {row[0]: row[1] for row in rows("operator.md", "**The swarm's own figures**")}
    shown = {key: float(told[key]) for key in ("staleness", "max_staleness", "margin", "hours")}
    assert shown == {
        "staleness": STALENESS,
        "max_staleness": MAX_STALENESS,
        "margin": MARGIN,
        "hours": STANDS_S / 3600,
    }


def test_the_output_that_is_shown_is_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DOCS.parent)
    assert os.path.exists("docs/examples/pool.toml")
    printed = plan("docs/examples/pool.toml", "--compare-echo2").out.strip("\n").splitlines()
    page = (DOCS / "provisioning.md").read_text(encoding="utf-8")
    shown = re.search(r"^     Plan for the staleness window.*?(?=^\S)", page, flags=re.MULTILINE | re.DOTALL)
    assert shown
    assert [line.removeprefix("    ") for line in shown[0].rstrip().splitlines()] == printed


def test_table_2_is_shown_as_it_is_computed() -> None:
    page = (DOCS / "provisioning.md").read_text(encoding="utf-8")
    found = table2()
    assert f"| measured | | {found.measured_s:.1f} s |" in page
    assert f"| the paper's formula | {found.paper_rate:.3f} | {found.paper_s:.1f} s |" in page
    assert f"| ours | {found.ours_rate:.3f} | {found.ours_s:.1f} s |" in page
