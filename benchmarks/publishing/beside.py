"""Compare a learner that publishes every step to a real node with the same trainer alone, its batches ready.

    swarm     `volery learn` on logs alone, and a `volery join` that fetches, rebuilds and installs each version
    alone     the trainer's process, loaded and asked as that learner does, on batches of the same logs

Invariants:

- Both take the same steps of the same model with as many threads.
- Everything is real, except that rollouts come from a file: generating them here would take the cores that are timed.
- When a run returns or raises, none of its processes is left.
"""

from __future__ import annotations

import json
import random
import string
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from benchmarks.harness import BenchmarkError
from benchmarks.live.swarm import POLL_S, Program, count_events, open_program, wait_until
from benchmarks.trainer_vs_trl import LARGE
from learner.provisioning.estimation.learner_time import LearnerTime, read_time, summed
from learner.provisioning.estimation.recording import FILE, Published, Stepped, read_lines
from learner.rollouts.batch_arrays import offline_arrays
from node.config.invite_text import INVITE_FILE
from node.config.loader import read_swarm_config
from node.learner_role.command import EVENTS_FILE
from node.learner_role.training.restore import load_policy
from node.learner_role.training.trainer_process import TRAINER, child_spec, load_request
from node.processes.child import open_child
from node.processes.outcomes import ChildError
from node.processes.spec import ChildSpec
from node.tasks.task_suite import open_task_suite
from node.tasks.tokenizer import write_character_tokenizer
from protocol.core.pipe import Header
from swarm.transport.error_groups import first_cause

PROMPTS, GROUP = 4, 8
PROMPT_TOKENS, COMPLETION_TOKENS = 32, 64
"""A batch has the size of that in `benchmarks/trainer_vs_trl.py`."""

LOGPROB = -10.0
"""Log probability of each token in the logs: about that of a token drawn evenly from the vocabulary."""

STEPS, FIRST = 10, 4
"""Training steps of a run, and the first that counts: before it a node joins, and libraries warm up."""

RATE = 1e-6

TIMEOUT_S = 400.0
"""Timeout of a run."""

SWARM_TOML = """\
[swarm]
name = "bench"
state = "state"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[model]
directory = "model"
weights_dtype = "bfloat16"

[offline]
path = "logs.jsonl"
share = 1.0

[learn]
steps = {steps}
staleness = 3
publish_every = 1
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {tokens}
threads = 1

[trainer]
objective = "grpo"
learning_rate = {rate}
"""

NODE_TOML = """\
[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "transformers"
threads = 1
"""


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A run of the swarm, from training step FIRST on: its rate, the use of its time, and its versions."""

    steps_per_s: float
    time: LearnerTime
    published: int
    installed: int
    made_s: list[float]

    @property
    def blocked_percent(self) -> float:
        return 100 * (self.time.blocked or 0.0)


def prepare(out: Path) -> None:
    """Make a model of 50 M random weights, and logs, in `out`. Raises BenchmarkError."""

    async def make() -> None:
        with first_cause():
            async with open_child(ChildSpec(name="trainer", argv=TRAINER)) as trainer:
                await trainer.call("make_model", {"directory": str(out / "model"), "config": LARGE.model, "seed": 0})

    trio.run(make)
    write_character_tokenizer(out / "model")
    rng = random.Random(0)
    rows = [json.dumps(_group(rng)) for _ in range(PROMPTS * STEPS)]
    (out / "logs.jsonl").write_text("".join(f"{row}\n" for row in rows), encoding="ascii")


def _group(rng: random.Random) -> dict[str, Any]:
    """Return a prompt of PROMPT_TOKENS letters and its completions, half of them rewarded."""

    def letters(number: int) -> str:
        return "".join(rng.choices(string.ascii_lowercase, k=number))

    completions = [
        {
            "text": letters(COMPLETION_TOKENS),
            "finished": False,
            "logprobs": [LOGPROB] * COMPLETION_TOKENS,
            "reward": float(number % 2),
        }
        for number in range(GROUP)
    ]
    return {"prompt": letters(PROMPT_TOKENS), "completions": completions}


def write_config(out: Path, model: Path) -> Path:
    """Write the swarm's configuration into a new directory `out` that shares model and logs with `model`."""
    out.mkdir()
    for name in ("model", "logs.jsonl"):
        (out / name).symlink_to(model / name)
    config = out / "swarm.toml"
    text = SWARM_TOML.format(steps=STEPS, prompts=PROMPTS, group=GROUP, tokens=COMPLETION_TOKENS, rate=RATE)
    config.write_text(text, encoding="utf-8")
    (out / "node.toml").write_text(NODE_TOML, encoding="utf-8")
    return config


def run_alone(config: Path) -> float:
    """Return the training steps a second of the trainer that has nothing else to do. Raises BenchmarkError."""
    try:
        return trio.run(_take_steps, config)
    except ChildError as error:
        raise BenchmarkError(f"The trainer alone failed: {error}") from error


async def _take_steps(path: Path) -> float:
    config = read_swarm_config(path)
    stream = open_task_suite(config, path.parent).offline
    assert stream is not None
    batches = [offline_arrays(stream.draw()) for _ in range(STEPS)]
    with first_cause():
        async with open_child(child_spec(TRAINER, config)) as trainer:

            async def ask(op: str, header: Any, *rest: Any) -> Header:
                reply, _ = await trainer.call(op, header)
                return reply

            await load_policy(ask, load_request(config))
            ends = []
            for batch in batches:
                await trainer.call("step", {}, batch)
                ends.append(time.perf_counter())
    return _rate(ends)


def _rate(ends: Sequence[float]) -> float:
    """Return the steps a second from the end of step FIRST - 1 on; `ends` are the ends of all steps, in seconds."""
    return (len(ends) - FIRST + 1) / (ends[-1] - ends[FIRST - 2])


def run_beside(config: Path) -> Beside:
    """Let the swarm train, and return the run. Raises BenchmarkError."""
    out = config.parent
    state = out / "state"
    with ExitStack() as stack:
        learner = stack.enter_context(open_program("learner", _volery("learn", config), out))
        wait_until("an invite", (state / INVITE_FILE).exists, [learner])
        invite = (state / INVITE_FILE).read_text(encoding="ascii").strip()
        join = _volery("join", invite, "--config", out / "node.toml", "--state", out / "node")
        node = stack.enter_context(open_program("node", join, out))
        wait_until("a node", lambda: count_events(state / EVENTS_FILE, "peer_joined") > 0, [learner, node])
        _wait(learner, node)
    return _read(state, out / "node")


def _volery(*words: object) -> list[str]:
    return [sys.executable, "-m", "node", *map(str, words), "--plain"]


def _wait(learner: Program, node: Program) -> None:
    ends = time.monotonic() + TIMEOUT_S
    while (code := learner.process.poll()) is None:
        if time.monotonic() > ends:
            raise BenchmarkError(f"The run takes longer than {TIMEOUT_S:.0f} s. {learner.last_words()}")
        time.sleep(POLL_S)
    if code or node.process.poll():
        raise BenchmarkError((learner if code else node).last_words())


def _read(state: Path, node: Path) -> Beside:
    recording = state / FILE
    events = list(read_lines(recording.read_bytes().splitlines(keepends=True), str(recording)))
    steps = [event for event in events if isinstance(event, Stepped)]
    counted = [event for event in steps if event.step >= FIRST]
    published = [event for event in events if isinstance(event, Published) and event.version >= FIRST]
    return Beside(
        steps_per_s=_rate([event.at_s for event in steps]),
        time=summed(read_time(event.time) for event in counted),
        published=len(published),
        installed=count_events(node / EVENTS_FILE, "version_installed"),
        made_s=[event.made_s for event in published],
    )
