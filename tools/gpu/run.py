"""Run every part of the trial within TOTAL_S seconds, and write the results to OUT: python3 -m tools.gpu.run

Start it in the checkout or in bundle A, with the Python that has torch. The parts follow one another: the trainer
alone, a swarm whose nodes run transformers, a swarm whose node runs vLLM, vLLM alone, the summary. Settings are
environment variables, which README.md explains. This file needs only the standard library.

Invariants:

- A part that fails or is left out is noted in OUT/run.json, and the others run.
- The exit code is 0 if no part failed, even if bars were missed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

TINY = os.environ.get("TINY") == "1"
TITLES = {
    "trainer": "the trainer alone",
    "transformers": "a swarm on transformers",
    "vllm": "a swarm on vLLM",
    "plain_vllm": "vLLM alone",
}
"""Titles of the parts, by the names of their files in OUT."""

TOTAL_S = float(os.environ.get("TOTAL_S") or 480)
PARTS = Path(os.environ.get("PARTS") or "/tmp/volery-parts")
VLLM_ARCHIVES = ("vllm.tar.zst", "vllm-library.zst")
NO_VLLM = "none"
"""Value of VLLM_PYTHON that leaves out the parts that need vLLM."""

AS_ASKED = f"VLLM_PYTHON is {NO_VLLM}"

ROOM_GB = 1 if TINY else 42
"""Free space in GB that checkpoints and versions need, with some to spare."""

VLLM_SWARM_S = 150
"""Seconds reserved for the swarm on vLLM: its first step comes after some 95 s, then B_RUN_S, then the end."""

PLAIN_S = 70
"""Seconds reserved for vLLM alone, which finds most of its compiled code in the cache that the node left."""

SUMMARY_S = 10
LEAST_S = 30
"""Minimum of seconds left for a part to begin."""

VLLM_SETTINGS = {
    "ENGINE": "vllm",
    "NODES": "1",
    "AHEAD": "4.0",
    "COMPILE": "0",
    "BATCH": "16" if TINY else "256",
    "ENGINE_MORE": 'gpu_memory_utilization = 0.4;max_model_len = 4096;on_new_version = "continue"',
}
"""Settings for a node on vLLM for which `trial` has no better default."""


class Failed(Exception):
    """A part did not run to its end. The message says why."""


class Run:
    """All parts, with those that were left out or failed."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        if not os.environ.get("OUT"):
            sys.exit("Set OUT to a new folder, which gets logs and figures: OUT=runs/gpu python3 -m tools.gpu.run")
        self.out = Path(os.environ["OUT"]).absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        self.room = find_room()
        self.model = Path(os.environ.get("MODEL") or self.room / "model")
        self.skipped: dict[str, str] = {}
        self.failed = False
        own = {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.environment = {**os.environ, **own, "VLLM_NO_USAGE_STATS": "1", "MODEL": str(self.model)}

    def run(self) -> int:
        """Run all parts; return the exit code."""
        if (self.out / "run.json").exists():
            sys.exit(f"{self.out} holds an earlier run. Set OUT to a new folder, or remove it.")
        self.describe_machine()
        try:
            self.python = self.volery_python()
            self.make_model()
        except Failed as why:
            sys.exit(str(why))
        with ThreadPoolExecutor(1) as beside:  # unpacking uses one core for some 20 s, and not the GPU
            finding = beside.submit(self.find_vllm)
            self.part("trainer", self.trainer_alone)
            vllm, why_not = finding.result()
        for name in () if vllm else ("vllm", "plain_vllm"):
            self.skip(name, f"no vLLM was found: {why_not}" if why_not != AS_ASKED else why_not)
        kept_back = SUMMARY_S + (VLLM_SWARM_S + PLAIN_S if vllm else 0)
        self.part("transformers", lambda: self.swarm("transformers", kept_back, {"RUN_S": os.environ.get("A_RUN_S")}))
        if vllm:
            settings = {**VLLM_SETTINGS, "ENGINE_PYTHON": vllm, "RUN_S": os.environ.get("B_RUN_S") or "45"}
            self.part("vllm", lambda: self.swarm("vllm", SUMMARY_S + PLAIN_S, settings))
            self.part("plain_vllm", lambda: self.plain_vllm(vllm))
        told = {"commit": commit(), "tiny": TINY, "seconds": round(self.since_s(), 1), "skipped": self.skipped}
        (self.out / "run.json").write_text(json.dumps(told, indent=1))
        self.say("summary")
        done = subprocess.run([self.python, "-m", "tools.gpu.summary", str(self.out)], cwd=ROOT, check=False)
        shutil.rmtree(self.room / "places", ignore_errors=True)
        # 1: bars were missed, which is no failure of the trial. A summary that could not be written is one.
        return int(self.failed or done.returncode not in (0, 1) or not (self.out / "gpu.json").exists())

    def part(self, name: str, action: Callable[[], None]) -> None:
        """Run one part; if it fails, report it and go on."""
        self.say(TITLES[name])
        try:
            action()
        except Failed as why:
            self.failed = True
            self.skip(name, str(why))

    def skip(self, name: str, why: str) -> None:
        self.skipped[name] = why
        self.say(f"{TITLES[name]} is left out: {why}")

    # Parts.

    def trainer_alone(self) -> None:
        """Let the trainer take steps while nothing else runs, to measure its mfu."""
        options = ["--reps", "3", *(["--rehearse"] if TINY else [])]
        self.do("trainer", [self.python, "-m", "benchmarks.trainer_gpu", *options], 110, codes=(0, 1))
        last = (self.out / "trainer.log").read_text(errors="replace").splitlines()[-1:]
        if not last or not last[0].startswith("{"):
            raise Failed(f"the benchmark of the trainer gave no figures; see {self.out / 'trainer.log'}")
        (self.out / "trainer.json").write_text(last[0])

    def swarm(self, name: str, kept_back_s: float, settings: Mapping[str, str | None]) -> None:
        """Run a swarm in the time that the parts after it leave."""
        limit_s = self.left_s() - kept_back_s
        if limit_s < LEAST_S:
            raise Failed(f"no time was left for it, of {TOTAL_S:g} s; set TOTAL_S to more")
        given = {key: value for key, value in settings.items() if value}
        environment = {**self.environment, "LIMIT_S": f"{limit_s:.0f}", **given}
        environment |= {key: os.environ[key] for key in VLLM_SETTINGS if os.environ.get(key)}
        argv = [self.python, "-m", "tools.gpu.trial", str(self.room / "places" / name), str(self.out / name)]
        if subprocess.run(argv, cwd=ROOT, env=environment, check=False).returncode:
            raise Failed("the swarm took no step in time; its logs are in OUT")
        shutil.rmtree(self.room / "places" / name, ignore_errors=True)

    def plain_vllm(self, python: str) -> None:
        """Measure vLLM alone in the time left; a run that was cut short may have left figures."""
        limit_s = self.left_s() - SUMMARY_S
        if limit_s < LEAST_S:
            raise Failed(f"no time was left for it, of {TOTAL_S:g} s; set TOTAL_S to more")
        argv = [python, "-I", str(HERE / "plain_vllm.py"), str(self.model), str(self.out / "plain_vllm.json")]
        self.do("plain_vllm", argv, limit_s)

    # What parts need.

    def volery_python(self) -> str:
        """Return the Python that has Volery: the one that is named, one made from bundle A, or this one."""
        if named := os.environ.get("VOLERY_PYTHON"):
            return named
        packages = ROOT / "volery.tar.xz"
        return self.make_environment("volery", sys.executable, packages) if packages.is_file() else sys.executable

    def find_vllm(self) -> tuple[str | None, str]:
        """Return the Python that has vLLM; or None, and the reason."""
        if named := os.environ.get("VLLM_PYTHON"):
            return (named, "") if named != NO_VLLM else (None, AS_ASKED)
        if (installed := ROOT / ".venv-vllm" / "bin" / "python").is_file():
            return str(installed), ""
        folders = (PARTS, ROOT.parent / "B1", ROOT.parent / "B")
        found = [folder / name for name in VLLM_ARCHIVES for folder in folders if (folder / name).is_file()]
        archives = {path.name: path for path in reversed(found)}
        if len(archives) < len(VLLM_ARCHIVES):
            return None, "there is no VLLM_PYTHON, no .venv-vllm (make test-vllm), no bundles B1 and B"
        try:
            return self.make_environment("vllm", self.python, *(archives[name] for name in VLLM_ARCHIVES)), ""
        except Failed as why:
            self.failed = True
            return None, f"its bundles could not be unpacked: {why}"

    def make_environment(self, name: str, python: str, *archives: Path) -> str:
        """Unpack archives into an environment, unless an earlier run did, and return its Python. Raises Failed."""
        folder, this = self.room / f"env-{name}", " ".join([commit(), *(str(path.stat().st_size) for path in archives)])
        done = folder / "done"
        if not done.is_file() or done.read_text() != this:
            shutil.rmtree(folder, ignore_errors=True)
            argv = [python, "-m", "tools.gpu.environment", str(folder), *map(str, archives)]
            self.do(f"environment-{name}", argv, 90)
            done.write_text(this)
        return str(folder / "bin" / "python")

    def make_model(self) -> None:
        """Make the model, unless it exists. Raises Failed."""
        if not (self.model / "made.json").is_file():
            argv = [self.python, "-m", "tools.gpu.make_model", str(self.model), *(["tiny"] if TINY else [])]
            self.do("model", argv, 90)
        shutil.copy(self.model / "made.json", self.out / "model.json")

    def describe_machine(self) -> None:
        disk = shutil.disk_usage(self.room)
        self.say(f"{sys.executable} {sys.version.split()[0]}, {os.cpu_count()} cores, room {self.room}")
        self.say(f"{disk.free / 1e9:.0f} GB are free there, of {disk.total / 1e9:.0f}")
        if shutil.which("nvidia-smi"):
            subprocess.run(["nvidia-smi", "-L"], check=False)
        elif not TINY:
            self.say("nvidia-smi is not installed; without a GPU, rehearse: TINY=1")

    def do(self, name: str, argv: list[str], limit_s: float, codes: tuple[int, ...] = (0,)) -> None:
        """Run a program to its end, output to OUT/NAME.log. Raises Failed."""
        log = self.out / f"{name}.log"
        with log.open("w") as file:
            try:
                code = subprocess.run(
                    argv,
                    cwd=ROOT,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    timeout=limit_s,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise Failed(f"it was not done after {limit_s:.0f} s; see {log}") from None
        if code not in codes:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
            raise Failed(f"it ended with exit code {code}; the end of {log}:\n{tail}")

    def since_s(self) -> float:
        return time.monotonic() - self.began

    def left_s(self) -> float:
        return TOTAL_S - self.since_s()

    def say(self, text: str) -> None:
        print(f"[{self.since_s():5.1f} s] {text}", flush=True)


def find_room() -> Path:
    """Return the folder for environments, model, checkpoints and versions: /tmp, or memory where /tmp has no room."""
    if named := os.environ.get("ROOM"):
        room = Path(named).absolute()
    else:
        # A memory file system says nothing about a disk's flushes.
        base = next((p for p in ("/tmp", "/dev/shm") if gb_free(p) >= ROOM_GB), None)
        if base is None:
            sys.exit(f"Neither /tmp nor /dev/shm has {ROOM_GB} GB free. Set ROOM to a folder that has.")
        room = Path(base, "volery-trial-tiny" if TINY else "volery-trial")
    room.mkdir(parents=True, exist_ok=True)
    return room


def gb_free(folder: str) -> float:
    return shutil.disk_usage(folder).free / 1e9 if os.path.isdir(folder) else 0.0


def commit() -> str:
    """Return the commit: bundle A has it in a file, a checkout in git."""
    file = ROOT / "volery.commit"
    if file.is_file():
        return file.read_text().strip()
    argv = ["git", "rev-parse", "HEAD"]
    try:
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    sys.exit(Run().run())
