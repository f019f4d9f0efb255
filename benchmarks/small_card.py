"""Claim "small_card": a node limited to 0.6 GB of memory works in a swarm whose policy takes 1 GB in bfloat16.

One learner and one node run on this machine. The node runs in a memory cgroup (version 1, which needs root) of 0.6 GB.
The cgroup holds `volery join`, the engine's process, the verifier's gate, and the pages of the files that they have
read, which the kernel can drop at any time. The node is configured with quantization = "auto" and chooses int4, whose
weights then lie in a mapped file. The policy is an untrained model of 511 M parameters with Qwen3's shapes. The trainer
computes nothing (`benchmarks/episodes/trainer.py`), so each version has the same weights under another name, which the
node fetches and installs. The learner's own engine audits in int4, outside of the cgroup.

Bars:

- rollouts, at least 16: admitted completions of the node.
- installs, at least 2: versions that it installed, the second in place of the first.
- killed, at most 0: processes that the kernel ended in the cgroup, and crashes of the engine.
- peak_gb, at most 0.6: the most memory that the cgroup held; the kernel enforces it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.cards.random_model import HALF_A_BILLION, write_random_model
from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, say, scratch
from benchmarks.live.swarm import Program, count_events, open_program, wait_until
from node.learner_role.command import EVENTS_FILE
from node.network.invites import found_swarm
from node.tasks.tokenizer import write_character_tokenizer

LIMIT_BYTES = 600_000_000
CGROUPS = Path("/sys/fs/cgroup/memory")
PROMPTS, GROUP, TOKENS = 2, 4, 8
ROLLOUTS, INSTALLS = 16, 2
TRAIN_S = 1.0
WAIT_S = 3000.0
POLL_S = 1.0

SWARM_TOML = """\
[swarm]
name = "small card"
state = "state"

[network]
listen = ["/ip4/127.0.0.1/tcp/{port}"]

[model]
directory = "model"

[task]
spec = "reverse:letters=6"
held_out = 0

[learn]
steps = 1000000
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {tokens}
lease_timeout_s = 1800.0
engine_formats = ["stored", "int8", "int4"]
seed = {seed}

[evaluate]
every_versions = 0
"""

NODE_TOML = """\
name = "small"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "transformers"
device = "cpu"
threads = 1
batch_rollouts = 8
quantization = "auto"
"""


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Yield a cgroup of version 1 with this limit. Raises BenchmarkError if it cannot be made."""
    folder = CGROUPS / f"volery-bench-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        raise BenchmarkError(f"{folder}: {error.strerror}. This needs root, and cgroups of version 1.") from error
    try:
        yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the cgroup. Its processes have ended, but the kernel may take a moment to notice."""
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.2)


def killed_in(folder: Path) -> int:
    """Return the number of processes that the kernel has ended in the cgroup."""
    lines = (folder / "memory.oom_control").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def run_once(out: Path, seed: int, limit_bytes: int) -> dict[str, float]:
    """Run one swarm until the node has made the rollouts and installs. Raises BenchmarkError."""
    out.mkdir(parents=True)
    model, begin = out / "model", out / "begin"
    model.mkdir()
    write_character_tokenizer(model)
    parameters = write_random_model(model, HALF_A_BILLION, seed, shard_bytes=1 << 40)
    begin.touch()
    config, events, home = out / "swarm.toml", out / "state" / EVENTS_FILE, out / "node"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config.write_text(SWARM_TOML.format(port=port, prompts=PROMPTS, group=GROUP, tokens=TOKENS, seed=seed))
    (out / "node.toml").write_text(NODE_TOML)
    invite = found_swarm(config)
    with ExitStack() as stack:
        group = stack.enter_context(memory_cgroup(limit_bytes))
        argv = [sys.executable, "-m", "benchmarks.episodes.learner", str(config), str(out / "account.jsonl")]
        argv += [str(TRAIN_S), str(begin), str(model), str(HALF_A_BILLION["vocab_size"])]
        learner = stack.enter_context(open_program("learner", argv, out))
        wait_until("an account", (out / "account.jsonl").exists, [learner])
        join = [sys.executable, "-m", "node", "join", invite, "--config", str(out / "node.toml")]
        join += ["--state", str(home), "--plain"]
        inside = ["/bin/sh", "-c", f'echo $$ > "{group}/cgroup.procs"; exec "$@"', "sh", *join]
        node = stack.enter_context(open_program("node", inside, out))
        began = time.monotonic()
        _wait(events, home / EVENTS_FILE, [learner, node])
        found = {
            "parameters": float(parameters),
            "rollouts": float(admitted(events)),
            "installs": float(count_events(home / EVENTS_FILE, "version_installed")),
            "killed": float(killed_in(group) + count_events(home / EVENTS_FILE, "child_died")),
            "peak_gb": int((group / "memory.max_usage_in_bytes").read_text()) / 1e9,
            "seconds": time.monotonic() - began,
            "audits": float(count_events(events, "audits_made")),
        }
        found |= {f"{name}_gb": size / 1e9 for name, size in _statistics(group).items()}
    return found


def _wait(events: Path, of_node: Path, programs: list[Program]) -> None:
    ends, said = time.monotonic() + WAIT_S, ""
    while admitted(events) < ROLLOUTS or count_events(of_node, "version_installed") < INSTALLS:
        if ended := next((one for one in programs if one.process.poll() is not None), None):
            raise BenchmarkError(f"{ended.name} ended. {ended.last_words()}")
        if time.monotonic() > ends:
            raise BenchmarkError(f"not done after {WAIT_S:g} s. {programs[1].last_words()}")
        now = f"{admitted(events)} rollouts, {count_events(of_node, 'version_installed')} versions installed"
        if now != said:
            say(now)
        said = now
        time.sleep(POLL_S)


def admitted(events: Path) -> int:
    """Return the number of completions that were admitted."""
    if not events.exists():
        return 0
    rows = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return sum(row.get("admitted", 0) for row in rows if row["event"] == "delivery_judged")


def _statistics(group: Path) -> dict[str, int]:
    rows = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
    return {name: int(value) for name, value in rows if name in ("rss", "cache", "mapped_file")}


def claim() -> int:
    """Run the benchmark; return its exit code."""
    parser = arguments(__doc__ or "", reps=1)
    parser.add_argument("--limit", type=int, default=LIMIT_BYTES, metavar="BYTES", help="of the node, 600000000")
    options = parser.parse_args()
    with scratch(options.keep) as out:
        runs = [run_once(out / f"run-{number}", options.seed + number, options.limit) for number in range(options.reps)]
    worst = {name: (max if name in ("killed", "peak_gb") else min)(run[name] for run in runs) for name in runs[0]}
    bars = [
        Bar(name="rollouts", value=worst["rollouts"], at_least=float(ROLLOUTS)),
        Bar(name="installs", value=worst["installs"], at_least=float(INSTALLS)),
        Bar(name="killed", value=worst["killed"], at_most=0.0),
        Bar(name="peak_gb", value=worst["peak_gb"], at_most=0.6),
    ]
    return conclude("small_card", bars, {name: round(value, 3) for name, value in worst.items()})


if __name__ == "__main__":
    main(claim)
