"""Run one real swarm, a learner and its nodes, from the invite to Ctrl-C: python -m tools.gpu.trial PLACE OUT

Checkpoints and versions go to PLACE, some 35 GB for the model of 0.6 billion parameters. Every setting is an
environment variable of its name.

Invariants:

- It ends within LIMIT_S seconds, and no process is left.
- OUT has the files that `summary` reads: settings, the learner's ledger, its events and those of the nodes. Beside them
  are logs and the program's own report.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TINY = os.environ.get("TINY") == "1"
STARTED_FROM = str(Path.cwd())
"""The folder with the program's modules, if they are not installed."""

SETTINGS: Mapping[str, tuple[Any, Any]] = {
    # Name: the value on a GPU, the value of a rehearsal.
    "DEVICE": ("cuda", "cpu"),
    "MODEL": ("", ""),  # the model's directory
    "PROMPT": (768, 24),  # tokens; with NEW, and 128 rollouts, a step has 131,072
    "NEW": (256, 16),
    "PROMPTS_PER_STEP": (16, 8),
    "GROUP": (8, 4),
    "STALENESS": (3, 3),
    "PUBLISH_EVERY": (1, 1),
    "LR": (1e-6, 1e-6),  # a usual one; patches are as long as it makes them
    "OBJECTIVE": ("topr", "topr"),
    "COMPILE": (1, 0),
    "MICRO": (8192, 1024),  # tokens of a microbatch
    "AHEAD": ("", ""),  # batches leased ahead; "" leaves it to the program
    "KEEP": (1, 2),  # checkpoints
    "AUDIT_KV_GB": (5.0, 0.2),
    "NODES": (2, 2),
    "ENGINE": ("transformers", "transformers"),
    "ENGINE_PYTHON": ("", ""),  # "" is the Python that runs this
    "ENGINE_MORE": ("", ""),  # further lines of [engine], separated by ;
    "BATCH": (128, 16),  # completions that a node generates at a time
    "KV_GB": (16.0, 0.2),
    "THREADS": (8, 1),
    "RUN_S": (80.0, 30.0),  # seconds after the first step
    "FIRST_STEP_S": (170.0, 150.0),  # most that the first step may take
    "STOP_S": (30.0, 30.0),  # kept back for Ctrl-C and reports
    "LIMIT_S": (370.0, 300.0),
    "WORDS": (100_000, 1500),  # of prompts
}

SWARM = """[swarm]
name = "trial"
state = "state"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]
heartbeat_s = 2.0

[model]
directory = "{model}"
weights_dtype = "bfloat16"

[task]
spec = "python:trial_task:Even:length={prompt}"
held_out = 0

[learn]
steps = 100000
staleness = {staleness}
publish_every = {publish_every}
prompts_per_step = {prompts_per_step}
group_size = {group}
max_new_tokens = {new}
threads = {threads}
keep_checkpoints = {keep}
{ahead_line}

[trainer]
objective = "{objective}"
learning_rate = {lr}
max_tokens_per_microbatch = {micro}
device = "{device}"
compile = {compiled}

[evaluate]
every_versions = 0
device = "{device}"
kv_cache_gb = {audit_kv_gb}

[provisioning]
select_peers = false

[trust]
audits = true
"""

NODE = """name = "n{number}"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "{engine}"
device = "{device}"
threads = {node_threads}
batch_rollouts = {batch}
{engine_lines}
"""

LARGEST_BYTES = 40_000_000
"""Largest size of a file that is copied to OUT. Only a ledger or a metrics file of a long run is larger."""


class TrialError(Exception):
    """The swarm took no step. The message says what ended it."""


def main() -> int:
    place, out = (Path(name).absolute() for name in sys.argv[1:3])
    trial = Trial(place, out, read_settings(os.environ))
    try:
        trial.run()
    except TrialError as error:
        trial.say(str(error))
        return 1
    finally:
        trial.kill_all()
    return 0


def read_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return each setting, by its name in lower case, with the type of its default."""
    defaults = {name: values[TINY] for name, values in SETTINGS.items()}
    return {name.lower(): type(value)(environment.get(name) or value) for name, value in defaults.items()}


def swarm_toml(settings: Mapping[str, Any]) -> str:
    """Return the learner's configuration."""
    ahead = f"max_batches_ahead = {settings['ahead']}" if settings["ahead"] else ""
    compiled = "true" if settings["compile"] else "false"
    return SWARM.format(compiled=compiled, ahead_line=ahead, **settings)


def node_toml(settings: Mapping[str, Any], number: int) -> str:
    """Return a node's configuration."""
    lines = [f'python = "{settings["engine_python"]}"'] if settings["engine_python"] else []
    lines += [] if settings["engine"] == "vllm" else [f"kv_cache_gb = {settings['kv_gb']}"]
    lines += settings["engine_more"].split(";")
    threads = max(1, settings["threads"] // 2)
    return NODE.format(number=number, node_threads=threads, engine_lines="\n".join(lines), **settings)


def end_of(path: Path, lines: int = 25) -> str:
    """Return the last lines of a log, or why it cannot be read."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return str(error)


class Trial:
    """One swarm in a place, with the folder that receives its files."""

    def __init__(self, place: Path, out: Path, settings: Mapping[str, Any]) -> None:
        self.place, self.out, self.settings = place, out, settings
        self.began = time.monotonic()
        self.started: list[subprocess.Popen[bytes]] = []
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.state = place / "state"
        behind = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([STARTED_FROM, *([behind] if behind else [])])
        own = {"TRIAL_WORDS": str(settings["words"]), "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
        self.environment = {**os.environ, **own}

    def run(self) -> None:
        """Run the whole trial. Raises TrialError."""
        self.place.mkdir(parents=True, exist_ok=True)
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "settings.json").write_text(json.dumps(self.settings, indent=1))
        shutil.copy(Path(__file__).with_name("trial_task.py"), self.place)
        (self.place / "swarm.toml").write_text(swarm_toml(self.settings))
        self.watch_gpu()
        learner = self.start(self.command("learn", "swarm.toml", "--plain"), "learner.log")
        try:
            self.wait_for_first_step(learner)
            self.let_run(learner)
            self.stop(learner)
        finally:
            self.keep()
        self.report()

    def wait_for_first_step(self, learner: subprocess.Popen[bytes]) -> None:
        """Start the nodes once there is an invite, and again if they end. Raises TrialError."""
        until = min(self.settings["first_step_s"], self.left_s() - self.settings["stop_s"]) + time.monotonic()
        while time.monotonic() < until:
            time.sleep(0.5)
            if learner.poll() is not None:
                log = end_of(self.out / "learner.log")
                raise TrialError(f"The learner ended with exit code {learner.returncode}. The end of its log:\n{log}")
            if not self.nodes and (self.state / "invite").is_file():
                self.say("the invite is there; nodes start")
                for number in range(self.settings["nodes"]):
                    self.join(number)
            if self.steps():
                self.say("first step")
                return
            for number in self.ended_nodes():
                self.join(number)
                time.sleep(2)
        logs = [self.out / "learner.log", *(self.out / f"node{number}.log" for number in self.nodes)]
        said = "\n".join(f"{log.name}:\n{end_of(log, 15)}" for log in logs)
        raise TrialError(f"No step was taken in time. The ends of the logs:\n{said}")

    def let_run(self, learner: subprocess.Popen[bytes]) -> None:
        """Wait for RUN_S, and print a step from time to time."""
        until = time.monotonic() + min(self.settings["run_s"], self.left_s() - self.settings["stop_s"])
        told = time.monotonic()
        while time.monotonic() < until and learner.poll() is None:
            time.sleep(1)
            for number in self.ended_nodes():
                del self.nodes[number]
            if time.monotonic() - told > 20:
                told, newest = time.monotonic(), self.steps()[-1]
                names = ("step", "train_s", "waited_s", "buffered", "max_lag")
                self.say(", ".join(f"{name} {newest.get(name)}" for name in names))
        if learner.poll() is not None:
            self.say(f"the learner ended early. The end of its log:\n{end_of(self.out / 'learner.log')}")

    def stop(self, learner: subprocess.Popen[bytes]) -> None:
        """Send Ctrl-C to the learner, then to the nodes."""
        self.say("Ctrl-C")
        at = time.monotonic()
        code = self.end(learner, max(10.0, min(75.0, self.left_s() - 15)))
        self.say(f"the learner ended with exit code {code} after {time.monotonic() - at:.1f} s")
        for node in self.nodes.values():
            self.end(node, 8.0)

    def keep(self) -> None:
        """Copy the useful files into OUT."""
        names = [f"{which}.sqlite{ending}" for which in ("metrics", "ledger") for ending in ("", "-wal")]
        wanted = [*self.place.glob("*.toml"), *self.state.glob("*.jsonl"), *(self.state / name for name in names)]
        targets = {source: self.out / source.name for source in wanted}
        for events in self.place.glob("n[0-9]/events.jsonl"):
            targets[events] = self.out / f"{events.parent.name}-events.jsonl"
        for source, target in targets.items():
            with contextlib.suppress(OSError):  # a database's second file may be gone by then
                if source.stat().st_size < LARGEST_BYTES:
                    shutil.copy(source, target)

    def report(self) -> None:
        """Write the program's own report."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.start(self.command("report", "swarm.toml"), "report.txt").wait(40)

    def watch_gpu(self) -> None:
        """Let nvidia-smi, if installed, record the GPU's utilisation once a second."""
        if shutil.which("nvidia-smi"):
            query = "--query-gpu=utilization.gpu,memory.used"
            self.start(["nvidia-smi", query, "--format=csv,noheader,nounits", "-l", "1"], "nvidia-smi.csv")

    def join(self, number: int) -> None:
        """Start a node."""
        config = self.place / f"node{number}.toml"
        config.write_text(node_toml(self.settings, number))
        options = ["--config", str(config), "--state", str(self.place / f"n{number}"), "--plain", "--wait", "60"]
        command = self.command("join", str(self.state / "invite"), *options)
        self.nodes[number] = self.start(command, f"node{number}.log")

    def ended_nodes(self) -> list[int]:
        """Return and report the nodes that have ended by themselves."""
        ended = [number for number, node in self.nodes.items() if node.poll() is not None]
        for number in ended:
            code = self.nodes[number].returncode
            self.say(f"node {number} ended with exit code {code}:\n{end_of(self.out / f'node{number}.log')}")
        return ended

    def steps(self) -> list[dict[str, Any]]:
        """Return the learner's step events so far."""
        path = self.state / "events.jsonl"
        lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
        return [json.loads(line) for line in lines if '"event": "step"' in line and line.endswith("}")]

    def command(self, *options: str) -> list[str]:
        """Return a command line of the program."""
        return [sys.executable, "-m", "volery", *options]

    def start(self, argv: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Start a process in its own group, so that Ctrl-C reaches one at a time; append its output to the log."""
        with (self.out / log).open("ab") as file:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=self.environment,
                cwd=self.place,
            )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], wait_s: float) -> int:
        """Send Ctrl-C, wait, and kill its group if that was not enough; return the exit code."""
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(wait_s)
            except subprocess.TimeoutExpired:
                self.say(f"process {process.pid} did not end; it is killed")
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def kill_all(self) -> None:
        """Kill all processes that still run."""
        for process in self.started:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def left_s(self) -> float:
        """Return the seconds left until LIMIT_S."""
        return float(self.settings["limit_s"]) - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        print(f"  [{time.monotonic() - self.began:5.1f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
