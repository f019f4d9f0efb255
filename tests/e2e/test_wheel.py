"""A wheel of this checkout, installed with `install.sh` in an environment of its own, as a volunteer does it, and run.

Libraries come from the package index; the wheel is served from loopback. This takes a minute, half of it downloads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path
from threading import Thread

import pytest
from hatchling.builders.wheel import WheelBuilder

from tests.support.paths import ROOT

pytestmark = pytest.mark.rest

MOST_MB = 300
MOST_PACKAGES = 100
"""What the base may take: 190 MB and 88 packages when this was written. torch alone has 700 MB."""

ENGINES = {"torch", "transformers", "vllm", "tokenizers", "scipy", "matplotlib"}
"""What a rollout node on vLLM does not need."""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def index_of(wheels: Path) -> Iterator[str]:
    """Serve a package index (PEP 503) that has this wheel alone, from loopback."""
    page = wheels / "simple" / "volery"
    page.mkdir(parents=True)
    (wheel,) = wheels.glob("*.whl")
    (page / "index.html").write_text(
        f'<!DOCTYPE html><html><body><a href="../../{wheel.name}">{wheel.name}</a></body></html>'
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(wheels)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment variables of somebody who ran the installer. Its output is in home/install.txt."""
    place = tmp_path_factory.mktemp("installed")
    home = place / "home"
    home.mkdir()
    next(iter(WheelBuilder(str(ROOT)).build(directory=str(place / "wheels"))))
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "VOLERY"))}
    search = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"  # uv is one of the developers' packages
    environment = {**kept, "HOME": str(home), "PATH": search, "COLUMNS": "500", "UV_PYTHON_DOWNLOADS": "never"}
    environment |= {"UV_TOOL_DIR": str(home / "tools"), "UV_TOOL_BIN_DIR": str(home / "bin")}
    environment |= {"VOLERY_PYTHON": sys.executable, "VOLERY_PINS": str(ROOT / "constraints.txt")}
    with index_of(place / "wheels") as index, (ROOT / "install.sh").open() as script:
        done = subprocess.run(
            ["sh", "-s", "--", "base"],
            stdin=script, cwd=place, env={**environment, "VOLERY_INDEX": index}, capture_output=True, text=True,
        )  # fmt: skip
        (home / "install.txt").write_text(done.stdout + done.stderr)
        assert (home / "bin" / "volery").is_file(), done.stdout + done.stderr
        yield environment


def volery(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [f"{environment['UV_TOOL_BIN_DIR']}/volery", *arguments]
    done = subprocess.run(command, cwd=environment["HOME"], env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_installer_looks_at_the_machine_and_says_what_is_missing(installed: dict[str, str]) -> None:
    told = (Path(installed["HOME"]) / "install.txt").read_text()
    assert "no other distribution here owns one of Volery's package names" in told
    assert "The engine on transformers is not installed" in told
    assert "| sh -s -- transformers" in told


def test_the_base_is_small(installed: dict[str, str]) -> None:
    (site,) = Path(installed["UV_TOOL_DIR"], "volery").glob("lib/python3*/site-packages")
    names = {distribution.metadata["Name"] for distribution in metadata.distributions(path=[str(site)])}
    assert not names & ENGINES
    assert len(names) <= MOST_PACKAGES
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= MOST_MB * 1e6


def test_the_program_knows_its_version(installed: dict[str, str]) -> None:
    assert volery(installed, "--version").stdout == f"volery {metadata.version('volery')}\n"


def test_the_doctor_says_what_is_missing_to_programs(installed: dict[str, str]) -> None:
    done = volery(installed, "doctor", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert told["machine"]["package_names"]["value"] == []
    (missing,) = told["missing"]
    assert missing.startswith("The engine on transformers is not installed")


def test_a_broken_invite_is_told_as_such(installed: dict[str, str]) -> None:
    done = volery(installed, "join", "volery1broken")
    assert done.returncode == 2
    assert done.stderr.startswith("volery: usage: The invite is damaged")


@pytest.mark.parametrize("command", ["learn", "demo", "serve"])
def test_a_command_of_the_learner_says_which_line_to_type(installed: dict[str, str], command: str) -> None:
    done = volery(installed, command, *(["swarm.toml"] if command == "learn" else []))
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    assert "needs the extra 'learner'" in told
    assert told.endswith("| sh -s -- learner")


def test_what_needs_no_extra_works(installed: dict[str, str]) -> None:
    for command in (["--help"], ["engines"], ["status"], ["report"], ["pause"], ["init", "swarm"]):
        assert volery(installed, *command).returncode in (0, 2), command


def test_examples_come_with_the_program(installed: dict[str, str]) -> None:
    """Without the learner's libraries, too: a machine that only writes a configuration needs none."""
    done = volery(installed, "init", "ours", "--example", "gsm8k")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in Path(installed["HOME"], "ours").iterdir()} == {"README.md", "swarm.toml"}
    done = volery(installed, "init", "named", "--model", "Qwen/Qwen3-0.6B", "--minimal")
    assert done.returncode == 0, done.stderr
    assert "hf download Qwen/Qwen3-0.6B --local-dir named/Qwen3-0.6B" in done.stdout
