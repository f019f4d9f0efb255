"""The distribution: what a wheel holds, what it starts, and that pins and documents name every dependency."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from node.installation.extras import EXTRA_OF
from tests.support.paths import ROOT

PACKAGES = ("volery", "node", "swarm", "learner", "protocol")
FOREIGN = {"pytest"}
"""Libraries of people who write a task: they are imported by files for their tests alone."""
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
UNPINNED_EXTRAS = {"vllm"}
"""vLLM pins its own torch, so it lives in an environment of its own, outside constraints.txt."""


def normalised(name: str) -> str:
    """PEP 503: one spelling of a distribution's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirement_name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return normalised(found.group())


def direct_dependencies(*, without_extras: set[str]) -> set[str]:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    chosen = [requirement for extra, wanted in extras.items() if extra not in without_extras for requirement in wanted]
    names = {requirement_name(requirement) for requirement in [*PROJECT["dependencies"], *chosen]}
    return names - {"volery"}  # an extra that holds another one


def third_party_imports(package: str) -> set[str]:
    """Top-level names that a package's files import, at any place, and that are neither Python's nor ours."""
    found: set[str] = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    found.update(alias.name.partition(".")[0] for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - set(PACKAGES)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel of this checkout, built by hatchling in this process: no network."""
    directory = tmp_path_factory.mktemp("wheel")
    built = next(iter(WheelBuilder(str(ROOT)).build(directory=str(directory))))
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_installed_version_is_the_projects() -> None:
    assert metadata.version("volery") == PROJECT["version"]


def test_console_script_starts_the_cli() -> None:
    (script,) = [entry for entry in metadata.distribution("volery").entry_points if entry.group == "console_scripts"]
    assert (script.name, script.value) == ("volery", "node.cli.main:main")
    assert callable(script.load())


def test_wheel_holds_the_packages_and_the_licence(wheel: list[str]) -> None:
    info = f"volery-{PROJECT['version']}.dist-info"
    assert {name.partition("/")[0] for name in wheel} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in wheel


def test_wheel_holds_every_module(wheel: list[str]) -> None:
    sources = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert sources <= set(wheel)


def test_wheel_holds_what_modules_read_beside_them(wheel: list[str]) -> None:
    assert {"node/reports/html/page.css", "node/reports/html/page.js"} <= set(wheel)
    templates = (ROOT / "node" / "commands" / "new" / "template").iterdir()
    assert {path.relative_to(ROOT).as_posix() for path in templates} <= set(wheel)


def test_wheel_and_sdist_hold_the_examples(wheel: list[str], tmp_path: Path) -> None:
    """A link leads to them, so each builder could miss them in its own way."""
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.*")}
    assert len(there) > 10
    assert {f"node/commands/init/{name}" for name in there} <= set(wheel)
    with tarfile.open(next(iter(SdistBuilder(str(ROOT)).build(directory=str(tmp_path))))) as archive:
        held = [name.partition("/")[2] for name in archive.getnames()]
    assert {*there, *(f"node/commands/init/{name}" for name in there)} <= set(held)
    assert len(held) == len(set(held))


def test_constraints_pin_every_direct_dependency() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    # Nothing but name==version: no paths of the machine that made it, no local versions such as +cpu.
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)] == []
    assert direct_dependencies(without_extras=UNPINNED_EXTRAS) <= {requirement_name(pin) for pin in pins}


def test_everything_imported_is_declared() -> None:
    providers = metadata.packages_distributions()
    declared = direct_dependencies(without_extras={"dev", "bench"})
    undeclared = [
        f"{package}: {name}"
        for package in PACKAGES
        for name in sorted(third_party_imports(package))
        # A package that is not installed, such as vllm here, is its own distribution's name.
        if not {normalised(provider) for provider in providers.get(name, [name])} & declared
    ]
    assert undeclared == []


def test_every_library_outside_the_base_has_its_extra() -> None:
    """`volery` says which line installs what a command lacks, so it knows of each library which extra brings it."""
    for name, extra in EXTRA_OF.items():
        brought = {requirement_name(requirement) for requirement in PROJECT["optional-dependencies"][extra]}
        providers = {normalised(provider) for provider in metadata.packages_distributions().get(name, [name])}
        assert providers & brought, f"{name} is not in the extra {extra}"
    base = {requirement_name(requirement) for requirement in PROJECT["dependencies"]}
    providers_of = metadata.packages_distributions()
    outside = {
        name
        for package in PACKAGES
        for name in third_party_imports(package)
        if not {normalised(provider) for provider in providers_of.get(name, [name])} & base
    }
    assert outside <= EXTRA_OF.keys() | FOREIGN


@pytest.mark.parametrize("file", ["install.sh", "README.md", "docs/start/join.md"])
def test_the_installer_has_one_address(file: str) -> None:
    """`volery` prints the address of pyproject.toml; whoever publishes changes it there and in these files."""
    typed = re.findall(r"curl -LsSf (\S+/install\.sh) \|", (ROOT / file).read_text(encoding="utf-8"))
    assert set(typed) == {PROJECT["urls"]["Installer"]}


def test_what_trains_has_an_upper_bound_that_was_tested() -> None:
    engine = {requirement_name(one): one for one in PROJECT["optional-dependencies"]["transformers"]}
    assert "<" in engine["torch"]
    assert "<" in engine["transformers"]


def test_every_direct_dependency_has_its_line_in_the_documents() -> None:
    page = (ROOT / "docs" / "explain" / "dependencies.md").read_text(encoding="utf-8")
    explained = {normalised(name) for name in re.findall(r"^\| `([A-Za-z0-9._-]+)` \|", page, re.MULTILINE)}
    assert explained == direct_dependencies(without_extras=set())


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_demo_hands_its_variables_on() -> None:
    # A dry run; without MAKEFLAGS, or the options of the make that runs these tests would leak into it.
    environment = {key: value for key, value in os.environ.items() if key not in {"MAKEFLAGS", "MAKEOVERRIDES"}}
    command = ["make", "-n", "demo", "SEED=7", "OUT=runs/seven", "ENGINE=fake"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert ".venv/bin/volery demo --seed 7 --out runs/seven --engine fake" in done.stdout
