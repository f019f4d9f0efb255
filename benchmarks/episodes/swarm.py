"""Run a learner and its nodes once, and return what they generated in the measured time.

    learner     `volery learn` with an account of its loop (`benchmarks.episodes.learner`), audits on, and a
                trainer that computes nothing (`benchmarks.episodes.trainer`)
    nodes       `volery join` with the transformers engine
    policy      `benchmarks.episodes.chain_model`

Invariants:

- A step takes `PROMPTS` groups of `GROUP` rollouts, each of `TURNS` times `TOKENS` tokens, on both sides.
- The measured time begins and ends with an admitted delivery, and holds all tokens of the deliveries after the first.
- When `run_side` returns or raises, none of its processes is left.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.episodes import chain_task
from benchmarks.episodes.chain_model import Shape, write_chain_model
from benchmarks.harness import BenchmarkError, machine_seconds
from benchmarks.live.swarm import Program, count_events, open_program, wait_until
from node.learner_role.command import EVENTS_FILE
from node.network.invites import found_swarm

TURNS = 3
TOKENS = 256
"""Tokens of a turn: a sentence or two and the tool call."""

PROMPTS, GROUP = 8, 4
NODES = 2
TRAIN_S = 0.1
SHAPE = Shape(positions=TURNS * TOKENS)
POLL_S = 0.25
WARM_TOKENS = 16 * TURNS * TOKENS
"""Tokens before the measured time: by then some episodes have ended, and first and later turns are mixed as usual."""

WARM_AT_MOST_S = 240.0

SWARM_TOML = """\
[swarm]
name = "turns"
state = "state"

[network]
listen = ["/ip4/127.0.0.1/tcp/{port}"]

[model]
directory = "model"
tool_format = "hermes"

[task]
spec = "{spec}"
held_out = 0

[learn]
steps = 1000000
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {tokens}
{limits}seed = {seed}

[evaluate]
every_versions = 0
"""
EPISODE_LIMITS = """\
max_turns = {turns}
max_episode_tokens = 2048
"""

NODE_TOML = """\
name = "{name}"

[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "transformers"
threads = 1
batch_rollouts = 8
"""


@dataclass(frozen=True, kw_only=True)
class Side:
    """A side of the comparison: episodes of `turns` turns of `tokens` tokens each, with a tool that takes `wait_s`;
    without `wait_s`, one turn and no tool."""

    name: str
    turns: int
    tokens: int
    wait_s: float | None

    @property
    def spec(self) -> str:
        """The spec of its task."""
        if self.wait_s is None:
            return "python:chain_task:plain"
        return f"python:chain_task:with_tool:turns={self.turns},wait_s={self.wait_s}"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The measured time, in which `tokens` were admitted.

    `loop_s`, `env_s` and `turns` are those of the account (`benchmarks.episodes.learner`). `cores` are those that all
    processes of the swarm used, `others_cores` those of all other processes. `failed` counts rewards that could not be
    computed, since the start.
    """

    seconds: float
    tokens: int
    loop_s: float
    env_s: float
    turns: int
    cores: float
    others_cores: float
    failed: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def tokens_per_core_s(self) -> float:
        return self.tokens_per_s / self.cores

    @property
    def env_loop_ms(self) -> float:
        return 1000 * self.env_s / max(1, self.turns)

    @property
    def loop_s_per_token(self) -> float:
        return self.loop_s / self.tokens


def run_side(side: Side, out: Path, *, span_s: float, seed: int) -> Shown:
    """Run one side in `out`, a new directory, for `span_s` of measured time. Raises BenchmarkError."""
    out.mkdir(parents=True)
    model, begin = out / "model", out / "begin"
    vocabulary = write_chain_model(model, SHAPE, side.tokens)
    begin.touch()
    shutil.copy(Path(chain_task.__file__), out)
    config, account, events = out / "swarm.toml", out / "account.jsonl", out / "state" / EVENTS_FILE
    config.write_text(_swarm_toml(side, seed), encoding="utf-8")
    invite = found_swarm(config)
    with ExitStack() as stack:
        argv = [sys.executable, "-m", "benchmarks.episodes.learner", str(config), str(account)]
        argv += [str(TRAIN_S), str(begin), str(model), str(vocabulary)]
        learner = stack.enter_context(open_program("learner", argv, out))
        wait_until("an account", account.exists, [learner])
        started = [learner, *(stack.enter_context(_node(f"n{number}", invite, out)) for number in range(1, NODES + 1))]
        wait_until("all nodes", lambda: count_events(events, "peer_joined") >= NODES, started)
        _wait_warm(events, started)
        began_s, before = time.monotonic(), (_seconds_of(started), machine_seconds())
        _wait(span_s, started)
        used, everybody = (
            now - then for now, then in zip((_seconds_of(started), machine_seconds()), before, strict=True)
        )
    seconds = time.monotonic() - began_s
    return _shown(events, account, cores=used / seconds, others_cores=max(0.0, everybody - used) / seconds)


def _swarm_toml(side: Side, seed: int) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    return SWARM_TOML.format(
        port=port,
        spec=side.spec,
        prompts=PROMPTS,
        group=GROUP,
        tokens=side.tokens,
        limits="" if side.wait_s is None else EPISODE_LIMITS.format(turns=side.turns),
        seed=seed,
    )


def _node(name: str, invite: str, out: Path) -> AbstractContextManager[Program]:
    config = out / f"{name}.toml"
    config.write_text(NODE_TOML.format(name=name), encoding="utf-8")
    options = ["--config", str(config), "--state", str(out / name), "--plain"]
    return open_program(name, [sys.executable, "-m", "node", "join", invite, *options], out)


def _wait_warm(events: Path, started: Sequence[Program]) -> None:
    ends = time.monotonic() + WARM_AT_MOST_S
    while sum(one["tokens"] for one in _admitted(events)) < WARM_TOKENS:
        if time.monotonic() > ends:
            raise BenchmarkError(f"{WARM_TOKENS} tokens take more than {WARM_AT_MOST_S} s. {started[0].last_words()}")
        _wait(POLL_S, started)


def _wait(seconds: float, started: Sequence[Program]) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if ended := next((one for one in started if one.process.poll() is not None), None):
            raise BenchmarkError(f"{ended.name} ended. {ended.last_words()}")
        time.sleep(POLL_S)


def _shown(events: Path, account: Path, *, cores: float, others_cores: float) -> Shown:
    admitted, before = list(_admitted(events)), 0
    while before < WARM_TOKENS:
        first, *admitted = admitted
        before += first["tokens"]
    began, over = first["at"], admitted[-1]["at"]
    lines = list(_lines(account))
    loop_s, env_s, turns = (_at(lines, key, over) - _at(lines, key, began) for key in ("loop_s", "env_s", "turns"))
    return Shown(
        seconds=over - began,
        tokens=sum(one["tokens"] for one in admitted),
        loop_s=loop_s,
        env_s=env_s,
        turns=round(turns),
        cores=cores,
        others_cores=others_cores,
        failed=sum(one["event"] == "reward_failed" for one in _lines(events)),
    )


def _seconds_of(started: Sequence[Program]) -> float:
    """Return the processor time so far of all our processes that are alive; none is short-lived."""
    total = 0.0
    for one in started:
        family = psutil.Process(one.process.pid)
        for process in (family, *family.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
    return total


def _admitted(events: Path) -> Iterator[dict[str, Any]]:
    return (one for one in _lines(events) if one["event"] == "delivery_judged" and one["admitted"])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):  # the last one may be incomplete
            yield json.loads(line)


def _at(lines: Sequence[dict[str, Any]], key: str, at_s: float) -> float:
    """Return the value at this time, interpolated between the lines before and after."""
    after = next((number for number, line in enumerate(lines) if line["at_s"] >= at_s), len(lines) - 1)
    low, high = lines[max(0, after - 1)], lines[after]
    span_s = high["at_s"] - low["at_s"]
    share = min(1.0, max(0.0, (at_s - low["at_s"]) / span_s)) if span_s else 1.0
    return float(low[key] + share * (high[key] - low[key]))
