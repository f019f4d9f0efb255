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


def told(heading: str) -> dict[str, str]:
    """Return the keys of the first table below `heading` with their defaults. A row may be about several keys."""
    text = (DOCS / "operate" / "costs-and-planning.md").read_text(encoding="utf-8")
    below = text[text.index(heading) :]
    lines = below[below.index("\n| `") + 1 :].split("\n\n")[0].splitlines()
    found: dict[str, str] = {}
    for names, defaults, *_ in (line.strip("|").split("|") for line in lines):
        keys, values = re.findall(r"`(\w+)`", names), [value.strip() for value in defaults.split(";")]
        found |= dict(zip(keys, values if len(values) == len(keys) else values * len(keys), strict=True))
    return found


@pytest.mark.parametrize(("heading", "keys"), [("### The pool", COLUMNS), ("### The swarm's figures", SETTINGS)])
def test_every_key_is_told(heading: str, keys: tuple[Key, ...]) -> None:
    found = told(heading)
    assert set(found) == {key.name for key in keys}
    assert {name for name, default in found.items() if default == "required"} >= {
        key.name for key in keys if key.needed
    }


def test_defaults_are_told_as_they_are() -> None:
    found = told("### The swarm's figures")
    shown = {key: float(found[key]) for key in ("staleness", "max_staleness", "margin", "hours")}
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
    page = (DOCS / "explain" / "provisioning.md").read_text(encoding="utf-8")
    shown = re.search(r"^     Plan for the staleness window.*?(?=^\S)", page, flags=re.MULTILINE | re.DOTALL)
    assert shown
    assert [line.removeprefix("    ") for line in shown[0].rstrip().splitlines()] == printed


def test_table_2_is_shown_as_it_is_computed() -> None:
    page = (DOCS / "explain" / "provisioning.md").read_text(encoding="utf-8")
    found = table2()
    assert f"| measured | | {found.measured_s:.1f} s |" in page
    assert f"| the paper's formula | {found.paper_rate:.3f} | {found.paper_s:.1f} s |" in page
    assert f"| ours | {found.ours_rate:.3f} | {found.ours_s:.1f} s |" in page
