"""Record how long completions are in a run of our own, for `benchmarks/skew.py`.

    .venv/bin/python -m benchmarks.lengths.record benchmarks/recorded/lengths.jsonl

`volery warmup` teaches the Collatz task to a small model of random weights. A learner and two rollout nodes then train
it by the default objective. They are processes of their own on this machine's CPUs, with the transformers engine. The
tokens of every completion are read from the learner's ledger. Prompts are leased as they come (`longest_first =
false`), so that the order of the recording is the curriculum's.

Warm-up and run resume where they were stopped if `--keep DIR` names the same directory again. The same seed gives the
same problems and the same warm-up; a group's version depends on the machine's speed.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import BenchmarkError, main, say
from benchmarks.lengths import collatz
from benchmarks.lengths.recording import RecordedGroup, Recording, write_recording
from benchmarks.live.swarm import count_events, open_program, wait_until
from node.learner_role.command import EVENTS_FILE
from node.learner_role.training.warm_start import TINY_QWEN3
from node.network.invites import found_swarm
from node.tasks.tokenizer import write_character_tokenizer

SIZE = 256
"""Numbers of the task, from 2: so few that a small model can learn most of their sequences by heart."""

STEPS, PROMPTS, GROUP = 128, 16, 8
"""Eight passes over all numbers, if none is skipped."""

TOKENS = 512
"""Most tokens of a completion; one right answer in a hundred is longer."""

STALENESS = 3
NODES, BATCH = 2, 64
WARM_STEPS, WARM_RATE, WARM_TOKENS = 450, 2e-3, 6144
LEARNING_RATE = 5e-6
"""At six times this rate, the policy, which has learnt most sequences by heart, is spoilt within forty steps."""

POSITIONS = 1024
MODEL = {**TINY_QWEN3, "max_position_embeddings": POSITIONS}

SWARM_TOML = """\
[swarm]
name = "lengths"
state = "state"

[network]
listen = ["/ip4/127.0.0.1/tcp/{port}"]

[model]
directory = "{model}"
weights_dtype = "float32"

[task]
spec = "python:collatz:build:size={size}"
held_out = 0

[learn]
steps = {steps}
staleness = {staleness}
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {tokens}
longest_first = false
seed = {seed}
threads = 1

[trainer]
learning_rate = {rate}

[provisioning]
select_peers = false

[evaluate]
every_versions = 0

[trust]
audits = false
"""

NODE_TOML = """\
name = "{name}"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "transformers"
threads = 1
batch_rollouts = {batch}
"""


def record() -> int:
    """Make the run and write the recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="where to write the recording")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the problems and the trainer (default 0)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"training steps (default {STEPS})")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="store the run here, and resume a run that is there")
    options = parser.parse_args()
    with ExitStack() as stack:
        out = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="volery-bench-")))
        out = out.resolve()
        out.mkdir(parents=True, exist_ok=True)
        warm_up(out, options.seed)
        train(out, options.seed, options.steps)
        groups = recorded_groups(out / "state" / "ledger.sqlite")
    recording = Recording(made=made(options.seed, options.steps), groups=tuple(groups))
    write_recording(options.file, recording)
    shown = ", ".join(f"{share:.0%}: {recording.percentile(share)}" for share in (0.5, 0.9, 0.99))
    say(f"{options.file}: {len(groups)} groups; tokens of a completion, {shown}, mean {recording.mean:.0f}")
    return 0


def made(seed: int, steps: int) -> dict[str, Any]:
    """Return how a recording is made."""
    return {
        "form": "version, problem, tokens of the prompt, tokens of each completion; in the order of the leases",
        "command": f".venv/bin/python -m benchmarks.lengths.record FILE --seed {seed} --steps {steps}",
        "date": datetime.now(UTC).date().isoformat(),
        "task": f"python:collatz:build:size={SIZE} (benchmarks/lengths/collatz.py)",
        "model": {name: value for name, value in MODEL.items() if name != "initializer_range"},
        "warm_up": {"steps": WARM_STEPS, "learning_rate": WARM_RATE, "batch_tokens": WARM_TOKENS},
        "run": {
            "steps": steps,
            "staleness": STALENESS,
            "prompts_per_step": PROMPTS,
            "group_size": GROUP,
            "max_new_tokens": TOKENS,
            "objective": "topr",
            "learning_rate": LEARNING_RATE,
        },
        "engine": f"transformers, CPU, {NODES} nodes with batches of {BATCH}",
        "seed": seed,
    }


def warm_up(out: Path, seed: int) -> None:
    """Write a model of random weights, and teach it by example, unless that has been done."""
    shutil.copy(Path(collatz.__file__), out)
    if not (out / "untrained").exists():
        write_untrained(out / "untrained", seed)
    config = out / "warmup.toml"
    config.write_text(swarm_toml("untrained", seed, STEPS, port=1), encoding="utf-8")
    if (out / "model").exists():
        return
    argv = [sys.executable, "-m", "node", "warmup", str(config), str(out / "model"), "--steps", str(WARM_STEPS)]
    argv += ["--learning-rate", str(WARM_RATE), "--batch-tokens", str(WARM_TOKENS)]
    if code := subprocess.run(argv, check=False).returncode:
        raise BenchmarkError(f"volery warmup ended with code {code}; its output is above.")


def write_untrained(directory: Path, seed: int) -> None:
    """Write config, random weights and the tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {name: value for name, value in MODEL.items() if name != "model_type"}
    torch.manual_seed(seed)
    Qwen3ForCausalLM(Qwen3Config(**shape, bos_token_id=1, eos_token_id=2, pad_token_id=0)).save_pretrained(directory)
    write_character_tokenizer(directory, collatz.ALPHABET)


def train(out: Path, seed: int, steps: int) -> None:
    """Run a learner and its nodes until the last step."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config, events = out / "swarm.toml", out / "state" / EVENTS_FILE
    config.write_text(swarm_toml("model", seed, steps, port=port), encoding="utf-8")
    invite = found_swarm(config)
    with ExitStack() as stack:
        argv = [sys.executable, "-m", "node", "learn", str(config), "--plain"]
        learner = stack.enter_context(open_program("learner", argv, out))
        wait_until("a learner", events.exists, [learner])
        for number in range(1, NODES + 1):
            name = f"n{number}"
            (out / f"{name}.toml").write_text(NODE_TOML.format(name=name, batch=BATCH), encoding="utf-8")
            argv = [sys.executable, "-m", "node", "join", invite, "--config", str(out / f"{name}.toml")]
            stack.enter_context(open_program(name, [*argv, "--state", str(out / name), "--plain"], out))
        while learner.process.poll() is None:
            try:
                learner.process.wait(60)
            except subprocess.TimeoutExpired:
                say(f"step {count_events(events, 'step')} of {steps}")
        if learner.process.returncode:
            raise BenchmarkError(learner.last_words())


def swarm_toml(model: str, seed: int, steps: int, *, port: int) -> str:
    """Return the configuration of the run, or of its warm-up."""
    return SWARM_TOML.format(
        port=port,
        model=model,
        size=SIZE,
        steps=steps,
        staleness=STALENESS,
        prompts=PROMPTS,
        group=GROUP,
        tokens=TOKENS,
        seed=seed,
        rate=LEARNING_RATE,
    )


def recorded_groups(ledger: Path) -> Sequence[RecordedGroup]:
    """Read all whole groups that were admitted, in the order of their leases."""
    task, found = collatz.Collatz(size=SIZE), dict[int, tuple[int, int, list[int]]]()
    asked = (
        "SELECT l.rowid, l.prompt, r.version, r.tokens FROM records r JOIN leases l USING (lease)"
        " WHERE r.rule = 'admitted' ORDER BY l.rowid, r.idx"
    )
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        for lease, prompt, version, tokens in db.execute(asked):
            found.setdefault(lease, (version, prompt % SIZE, []))[2].append(tokens)
    return [
        RecordedGroup(
            version=version,
            problem=problem,
            prompt_tokens=len(str(task.problem(problem).prompt)),
            lengths=tuple(lengths),
        )
        for version, problem, lengths in found.values()
        if len(lengths) == GROUP
    ]


if __name__ == "__main__":
    main(record)
