"""`tools/bootstrap.sh`: what it installs with and without extras, and what it says next. Python is a stub here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "bootstrap.sh"

PYTHON = """#!/bin/sh
case "$*" in
    *get_path*) echo "$STUB/site" ;;
    *version_info\\[:2\\]*) echo 3.12 ;;
    *"-m pip"*) echo "$*" >>"$STUB/asked"; exit "${PIP_STATUS:-0}" ;;
esac
"""


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    """A checkout with the script alone, and an environment whose Python notes what pip is asked."""
    (tmp_path / "tools").mkdir()
    shutil.copy(SCRIPT, tmp_path / "tools")
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for name in ("python", "pip"):
        path = tmp_path / "env" / "bin" / name
        path.write_text(PYTHON)
        path.chmod(0o755)
    return tmp_path


def run(stub: Path, *extras: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STUB": str(stub), "PYTHON": str(stub / "env/bin/python"), "TORCH_INDEX": ""}
    command = ["sh", "tools/bootstrap.sh", "env", *extras]
    return subprocess.run(command, cwd=stub, env={**environment, **variables}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("extras", "package"), [((), ".[transformers]"), (("lora,gguf",), ".[lora,gguf]"), (("",), ".")]
)
def test_a_node_with_an_engine_is_installed_unless_extras_are_named(
    stub: Path, extras: tuple[str, ...], package: str
) -> None:
    done = run(stub, *extras)
    assert done.returncode == 0, done.stderr
    assert (stub / "asked").read_text().splitlines()[-1].endswith(f"-c constraints.txt -e {package}")
    last = done.stdout.splitlines()[-1]
    assert last == "volery: ready. Next:  source env/bin/activate  and then  volery --help"


def test_a_failure_names_the_log_and_the_command_to_type_again(stub: Path) -> None:
    done = run(stub, "lora", PIP_STATUS="3")
    assert done.returncode == 1
    assert "the full log in env/bootstrap.log" in done.stderr
    assert done.stderr.splitlines()[-1].strip() == "sh tools/bootstrap.sh env lora"
