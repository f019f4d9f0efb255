"""Test what each package loads into an interpreter, from outside this directory and without its environment variables.

Import-linter holds the same rules for the source text (`make check`). Here they are tested on real imports, plus two
that it cannot state: the engine workers, found by a pattern, and no pickle anywhere.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("volery", "node", "swarm", "learner", "protocol")
TENSOR_LIBRARIES = frozenset({"torch", "transformers", "vllm"})
LOADED_BY_WORKERS = [
    ROOT / "protocol" / "sampling.py",
    ROOT / "protocol" / "experts.py",
    ROOT / "protocol" / "core" / "errors.py",
    ROOT / "protocol" / "core" / "limits.py",
    ROOT / "protocol" / "core" / "visible.py",
    ROOT / "protocol" / "core" / "pipe.py",
    ROOT / "learner" / "artifacts" / "config_bounds.py",
    ROOT / "learner" / "artifacts" / "expert_routing.py",
    ROOT / "learner" / "trainer_api" / "exit_reasons.py",
    ROOT / "learner" / "trainer_api" / "last_resort_exit.py",
]
"""Files that an engine worker loads by their paths, without the packages around them."""
EXECUTING_FORMATS = frozenset({"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"})


def run_isolated(code: str, elsewhere: Path) -> str:
    """Run `code` with -I (no current directory on the path, no PYTHON* variables) in `elsewhere`; return its output."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=elsewhere, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(modules: list[str], elsewhere: Path) -> set[str]:
    """Top-level names in sys.modules after importing `modules`."""
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    # The last line: a library may greet on import.
    return set(json.loads(run_isolated(code, elsewhere).splitlines()[-1]))


def source_files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def modules_of(package: str) -> list[str]:
    """Every importable module: neither the engine workers, which are programs, nor `__main__`, which starts one."""
    return [
        module_name(path)
        for path in source_files(package)
        if not any(part.endswith("_worker") for part in module_name(path).split(".")) and path.stem != "__main__"
    ]


def imported_names(path: Path) -> Iterator[str]:
    """Dotted names that a file imports anywhere in it, also inside functions; `from a import b` gives "a.b"."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0, names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom(module=module, names=names):
                yield from (f"{path.parent.name}.{module or ''}.{alias.name}" for alias in names)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_ours(package: str, tmp_path: Path) -> None:
    # libp2p's wheel drops top-level examples, interop, docs and stubs beside us; nothing may do that with our names.
    location = run_isolated(f"import {package}; print({package}.__file__)", tmp_path).splitlines()[-1]
    assert Path(location).resolve() == (ROOT / package / "__init__.py").resolve()


def test_protocol_needs_no_tensors_network_or_event_loop(tmp_path: Path) -> None:
    loaded = loaded_by(modules_of("protocol"), tmp_path)
    assert "protocol" in loaded
    assert not loaded & (TENSOR_LIBRARIES | {"trio", "libp2p", "multiaddr", "asyncio"})


def test_cli_needs_no_tensors(tmp_path: Path) -> None:
    loaded = loaded_by(["node.cli.main"], tmp_path)
    assert not loaded & TENSOR_LIBRARIES


def test_node_process_needs_no_tensors(tmp_path: Path) -> None:
    loaded = loaded_by(modules_of("node") + modules_of("swarm"), tmp_path)
    assert {"node", "swarm", "protocol"} <= loaded
    assert not loaded & (TENSOR_LIBRARIES | {"pyarrow"}), (
        "a library for one kind of file must be loaded with such a file only"
    )


def test_learner_needs_no_network_and_tensors_only_to_train(tmp_path: Path) -> None:
    others = [name for name in modules_of("learner") if not name.startswith("learner.training")]
    loaded = loaded_by(others, tmp_path)
    assert "learner" in loaded
    assert not loaded & (TENSOR_LIBRARIES | {"trio", "libp2p", "multiaddr", "swarm", "node"})


def test_a_learner_of_few_machines_needs_no_solver(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from learner.provisioning.model.capacity import Clockwork\n"
        "from learner.provisioning.model.machine_selection import FEW, Candidate, Choice, Requirement, cheapest\n"
        "pool = [Candidate(name=str(i), price=1.0, rate=1.0) for i in range(FEW)]\n"
        "clock = Clockwork(train_s=100.0, rollouts=100, staleness=3, kappa=2)\n"
        "assert isinstance(cheapest(Requirement(clock, pool)), Choice)\n"
        "print('scipy' in sys.modules)"
    )
    assert run_isolated(code, tmp_path).strip() == "False", "its import takes 45 MiB and most of a second"


def test_engine_workers_stand_alone() -> None:
    engines = ROOT / "node" / "engine"
    shared = tuple(map(module_name, LOADED_BY_WORKERS))
    workers = sorted([*engines.glob("*_worker.py"), *engines.glob("*_worker/*.py")])
    assert workers
    for path in workers:
        nodes = [n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.ImportFrom)]
        upward = {str(node.module).partition(".")[0] for node in nodes if node.level == 2}
        assert max((node.level for node in nodes), default=0) <= 2, path.name
        assert upward <= {"common_worker"}, f"{path.name}: beside itself a worker has common_worker alone"
        ours = {name for name in imported_names(path) if name.partition(".")[0] in {*PACKAGES, "engine"}}
        assert {name for name in ours if not name.startswith(shared)} == set(), path.name


@pytest.mark.parametrize("path", LOADED_BY_WORKERS, ids=module_name)
def test_what_workers_load_stands_alone(path: Path) -> None:
    """A module that workers load names only what a worker loads as well, the standard library, and numpy."""
    names = {name for name in imported_names(path) if not name.startswith(tuple(map(module_name, LOADED_BY_WORKERS)))}
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy"}


def test_nothing_can_unpickle() -> None:
    offences = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in source_files(package)
        for name in imported_names(path)
        if name.partition(".")[0] in EXECUTING_FORMATS
    ]
    assert offences == []
