"""Choose a node's engine, report it, and report an environment that could not be built."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from node.config.loader import read_node_config
from node.config.node_config import EngineSection
from node.engine.selection import Here, as_values, choose_engine, look, table
from node.engine.vllm_install import (
    Build,
    VllmEnvironment,
    environment_command,
    has_gpu,
    has_vllm,
    install,
    read_installed,
    record_path,
)
from node.runtime.errors import RunError, UsageError

PYTHON = Path("somewhere/bin/python")


def here(*, gpu: bool = False, vllm: Build | None = None, transformers: bool = True) -> Here:
    environment = None if vllm is None else VllmEnvironment(python=PYTHON, build=vllm)
    return Here(gpu=gpu, transformers=transformers, vllm=environment, add_transformers="the line to type")


@pytest.mark.parametrize(
    ("there", "section", "kind", "why"),
    [
        (here(gpu=True, vllm="cuda"), EngineSection(), "vllm", "there is a GPU, and vLLM is installed"),
        (here(gpu=True, vllm="cuda"), EngineSection(device="cpu"), "transformers", 'device = "cpu"'),
        (here(gpu=True, vllm="cpu"), EngineSection(), "transformers", "for CPUs"),
        (here(gpu=True), EngineSection(), "transformers", "volery engines install vllm"),
        (here(vllm="cpu"), EngineSection(), "transformers", "no NVIDIA GPU"),
        (here(vllm="cpu"), EngineSection(kind="vllm"), "vllm", 'kind = "vllm"'),
        (here(gpu=True, vllm="cuda"), EngineSection(kind="transformers"), "transformers", 'kind = "transformers"'),
        (here(), EngineSection(kind="fake"), "fake", 'kind = "fake"'),
        (here(transformers=False), EngineSection(kind="fake"), "fake", 'kind = "fake"'),
        (here(transformers=False, vllm="cpu"), EngineSection(), "vllm", "vLLM is installed, and transformers is not"),
        (here(transformers=False, gpu=True, vllm="cuda"), EngineSection(), "vllm", "there is a GPU"),
    ],
)
def test_a_node_takes_what_is_there_and_says_why(there: Here, section: EngineSection, kind: str, why: str) -> None:
    choice = choose_engine(section, there)
    assert choice.section.kind == kind
    assert why in choice.why
    assert choice.section.python == (str(PYTHON) if kind == "vllm" else "")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (
            EngineSection(kind="vllm"),
            "vLLM is not installed here. Build an environment with it: volery engines install vllm",
        ),
        (EngineSection(kind="vllm", python="other/python"), "other/python has no vLLM"),
        (EngineSection(on_new_version="continue"), "is transformers: there is no NVIDIA GPU here. Set kind ="),
    ],
)
def test_what_is_not_there_is_refused_with_what_to_do(section: EngineSection, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        choose_engine(section, here())
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("section", "there", "why"),
    [
        (EngineSection(), here(transformers=False), "there is no NVIDIA GPU here"),
        (EngineSection(kind="transformers"), here(transformers=False, vllm="cuda"), '[engine] kind = "transformers"'),
        (EngineSection(quantization="int8"), here(transformers=False, vllm="cuda"), "only it supports"),
        (EngineSection(), here(transformers=False, gpu=True), "On this machine's GPU, vLLM is faster: volery engines"),
    ],
)
def test_without_an_engine_the_line_that_installs_one_is_told(section: EngineSection, there: Here, why: str) -> None:
    with pytest.raises(UsageError, match="The engine on transformers is not installed") as refused:
        choose_engine(section, there)
    assert "Type: the line to type" in str(refused.value)
    assert why in str(refused.value)


def test_transformers_in_an_environment_that_is_named_need_not_be_in_the_nodes_own() -> None:
    section = EngineSection(kind="transformers", python="other/python")
    assert choose_engine(section, here(transformers=False)).section == section


def test_without_an_engine_the_table_says_so() -> None:
    told = table(here(transformers=False)).splitlines()
    assert told[1].split()[:2] == ["transformers", "no"]
    assert told[1].endswith("not installed: the line to type")
    assert told[-1].startswith("No node can run here. The engine on transformers is not installed")
    assert as_values(here(transformers=False))["used"] is None


def test_the_table_says_of_each_engine_what_to_do() -> None:
    rows = [line.split() for line in table(here()).splitlines()]
    assert [row[:2] for row in rows[1:4]] == [["transformers", "yes"], ["vllm", "no"], ["fake", "yes"]]
    assert "volery engines install vllm" in table(here())
    assert f"{PYTHON}, built for CUDA" in table(here(gpu=True, vllm="cuda"))
    assert "uses vllm: there is a GPU" in table(here(gpu=True, vllm="cuda"))


def environment(root: Path) -> Path:
    """What looks like one with vLLM."""
    package = root / "lib" / "python3.11" / "site-packages" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    python = root / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    return python


def test_an_environment_is_found_as_long_as_it_has_its_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    python = environment(tmp_path / "made")
    assert read_installed() is None
    record_path().parent.mkdir(parents=True)
    record_path().write_text(json.dumps({"python": str(python), "build": "cpu"}))
    found = VllmEnvironment(python=python, build="cpu")
    assert read_installed() == found
    assert look(EngineSection()).vllm == found
    other = environment(tmp_path / "other")
    assert look(EngineSection(python=str(other))).vllm == VllmEnvironment(python=other, build=None)
    assert look(EngineSection(python=sys.executable)).vllm is None
    python.unlink()
    assert read_installed() is None
    record_path().write_text("{}")
    assert read_installed() is None
    assert not has_vllm(tmp_path / "absent" / "python")


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets what the disk has left, in 10^9 bytes; at first enough."""

    def sets(gigabytes: float) -> None:
        usage = shutil.disk_usage("/")._replace(free=round(gigabytes * 1e9))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)

    sets(100.0)
    return sets


def test_without_ensurepip_uv_makes_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    plain = [sys.executable, "-m", "venv", "place"]
    assert environment_command(Path("place"), has_ensurepip=False) == plain  # it says which package is missing
    uv = tmp_path / ".local" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.touch(0o755)
    assert environment_command(Path("place"), has_ensurepip=False)[:2] == [str(uv), "venv"]
    assert environment_command(Path("place"), has_ensurepip=True) == plain


def interrupt(said: str) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_build_is_not_found_and_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Callable[[float], None]
) -> None:
    """Also not where one that was recorded had lost its vLLM: half of another would be taken for it."""
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    with pytest.raises(KeyboardInterrupt):
        install(tmp_path / "made", "cuda", interrupt)
    assert not (tmp_path / "made").exists()
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "pyvenv.cfg").touch()
    (tmp_path / "link").symlink_to(tmp_path / "made")
    record_path().parent.mkdir(parents=True, exist_ok=True)
    record_path().write_text(json.dumps({"python": str(tmp_path / "made" / "bin" / "python"), "build": "cpu"}))
    with pytest.raises(KeyboardInterrupt):
        install(tmp_path / "link", "cuda", interrupt)
    environment(tmp_path / "made")
    assert read_installed() is None


def test_a_disk_without_the_room_is_told_of_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Callable[[float], None]
) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    free(9.9)
    with pytest.raises(UsageError, match=r"takes about 10 GB, .* has only 9\.9 GB left\. Free some space, or name"):
        install(tmp_path / "deep" / "below", "cuda", interrupt)
    assert not (tmp_path / "deep").exists()
    free(10.1)
    with pytest.raises(KeyboardInterrupt):
        install(tmp_path / "deep" / "below", "cuda", interrupt)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('compute_dtype = "half"', "compute_dtype"),
        ('kind = "vllm"\ndevice = "cuda:1"\ntensor_parallel_size = 2', '[engine] device = "cuda:1" is one GPU, and'),
        ('device = "gpu"', "device"),
        ('kind = "vllm"\nquantization = "int2"', "quantization"),
    ],
)
def test_a_section_that_cannot_be_is_refused_by_the_key(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f"[engine]\n{text}\n")
    with pytest.raises(UsageError, match=re.escape(says)):
        read_node_config(path)


def test_a_gpu_is_the_drivers_to_tell(tmp_path: Path) -> None:
    driver = tmp_path / "gpus"
    assert not has_gpu(lambda name: None, driver)
    driver.mkdir()
    assert not has_gpu(lambda name: None, driver)
    (driver / "0000:01:00.0").mkdir()
    assert has_gpu(lambda name: None, driver)
    command = tmp_path / "nvidia-smi"
    scripts = {"echo 'GPU 0: some'": True, "echo no devices were found": False, "echo GPU; exit 9": False}
    for script, told in scripts.items():
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        assert has_gpu(lambda name: str(command), tmp_path / "absent") is told


@pytest.mark.slow
def test_what_could_not_be_built_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: Callable[[float], None]
) -> None:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said: list[str] = []
    with pytest.raises(RunError, match="No matching distribution found for vllm"):
        install(tmp_path / "made", "cuda", said.append)
    assert read_installed() is None
    assert not (tmp_path / "made").exists()
    assert "for CUDA" in said[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter").touch()
    with pytest.raises(UsageError, match="not a virtual environment"):
        install(tmp_path / "mine", "cpu", said.append)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["letter"]
