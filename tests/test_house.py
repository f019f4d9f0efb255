"""The house: each room says what is in it and is not crowded, tests lie where their modules lie, imports go one way."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import grimp

from tests.support.paths import ROOT

PACKAGES = ("node", "swarm", "learner", "protocol")

MOST_FILES = 16
"""In a folder, its `__init__.py` included: as many as one looks through at a glance."""


def rooms() -> list[str]:
    """Every folder of the packages that holds modules."""
    found = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return sorted(str(path.relative_to(ROOT)) for path in found)


def test_the_architecture_names_every_room() -> None:
    page = (ROOT / "docs" / "explain" / "architecture.md").read_text(encoding="utf-8")
    assert [room for room in rooms() if f"`{room}/`" not in page] == []


def test_every_room_says_what_is_in_it() -> None:
    """A line for each file and folder, in the docstring of its `__init__.py`, and none for what is not there."""
    assert len(rooms()) > 50
    for room in rooms():
        docstring = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))) or ""
        told = re.findall(r"^- `(\w+)`: ", docstring, re.M)
        inside = [path for path in (ROOT / room).iterdir() if not path.name.startswith("_")]
        there = [path.stem for path in inside if path.suffix == ".py" or (path / "__init__.py").exists()]
        assert sorted(told) == sorted(there), room


def test_no_room_is_crowded() -> None:
    counts = {room: len(list((ROOT / room).glob("*.py"))) for room in rooms()}
    assert {room: count for room, count in counts.items() if count > MOST_FILES} == {}


def test_tests_lie_where_their_modules_lie() -> None:
    """`test_packing.py` and `test_packing_minibatches.py` both test `packing.py`. What tests several modules at once
    lies in tests/integration, and runs of programs in tests/e2e and others.
    """
    found = [path for package in PACKAGES for path in (ROOT / "tests" / package).rglob("test_*.py")]
    assert len(found) > 200
    lost = [path for path in found if not any((ROOT / module).exists() for module in modules_tested(path))]
    assert lost == []


def modules_tested(path: Path) -> list[Path]:
    """The modules that a test file may be named for, relative to the repository."""
    words = path.stem.removeprefix("test_").split("_")
    room = path.parent.relative_to(ROOT / "tests")
    return [room / f"{'_'.join(words[:length])}.py" for length in range(1, len(words) + 1)]


SQL = re.compile(
    r"\b(SELECT .*\bFROM|INSERT( OR \w+)? INTO|UPDATE \w+ SET|DELETE FROM|^FROM \w+ (WHERE|ORDER))\b", re.S
)

OWN_TABLES = {
    "node/learner_role/metrics/sample_store.py",
    "node/learner_role/metrics/sqlite.py",
    "node/state/receipt_queries.py",
    "node/state/receipts.py",
}
"""Modules that query tables of a file of their own, which is no ledger."""


def test_the_ledgers_tables_are_asked_in_its_room_alone() -> None:
    asking = set()
    for path in (path for package in (*PACKAGES, "volery") for path in (ROOT / package).rglob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if is_text(node)]
        if any(map(SQL.search, texts)):
            asking.add(str(path.relative_to(ROOT)))
    assert any(name.startswith("learner/ledger/queries/") for name in asking)
    assert {name for name in asking if not name.startswith("learner/ledger/")} == OWN_TABLES


def is_text(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_no_module_imports_itself_by_a_circle() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 600
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
