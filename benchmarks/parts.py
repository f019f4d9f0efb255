"""Claim "parts": if nodes leave in the middle of their leases, the tokens that they generated are not lost.

A learner and ten nodes run as processes of their own on this machine. The engines are the fake one, at `TOKEN_S` a
token, and the trainer sleeps, so that the machine's speed does not count. Repeatedly a node is stopped by Ctrl-C when
it has generated a random share of its current call, and another takes its place. It is in turn a current node, which
delivers its partial completions, and one that returns its leases, as all nodes did before.

Bar: lost_tokens_pct, at most 1: the percentage of tokens of a leaving node's last engine call that no training step
used. The engine itself counts the generated tokens (`benchmarks.live.leaving_node`); the ledger counts the trained
ones, once none of them waits any more. `lost_tokens_pct_before` among the figures is the same for the other nodes.
"""

from __future__ import annotations

import json
import random
import signal
import socket
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, number, say, scratch, table
from benchmarks.live.swarm import POLL_S, Program, count_events, fake_node_toml, open_program, wait_until
from benchmarks.network.payload import write_payload
from node.learner_role.command import EVENTS_FILE
from node.network.invites import found_swarm
from node.tasks.tokenizer import write_character_tokenizer

REPS = 4
NODES = 10
PROMPTS, GROUP, TOKENS = 10, 8, 256
TOKEN_S = 0.02
"""A lease takes five seconds."""
TRAIN_S = 0.5
SIZE_BYTES = 1 << 20
SETTLE_S = 180.0
"""Timeout until every token that a node delivered is trained on or dropped."""

LOST_PCT_AT_MOST = 1.0

SWARM_TOML = """\
[swarm]
name = "parts"
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
staleness = 8
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {tokens}
seed = {seed}

[evaluate]
every_versions = 0

[trust]
audits = false
"""


@dataclass(frozen=True, kw_only=True)
class Left:
    """A node that left: the tokens `made` in its last call, and how many of them were `trained` on."""

    way: str
    made: int
    trained: int

    @property
    def lost_pct(self) -> float:
        return 100 * (self.made - self.trained) / self.made


@dataclass(kw_only=True)
class Stage:
    """A running swarm. `out` holds all its files; `started` are the programs that must keep running."""

    out: Path
    invite: str
    stack: ExitStack
    started: list[Program]

    @property
    def ledger(self) -> Path:
        return self.out / "state" / "ledger.sqlite"

    def join(self, name: str, way: str, stack: ExitStack) -> Program:
        """Start a node."""
        config = self.out / f"{name}.toml"
        config.write_text(fake_node_toml(name, group=GROUP, token_s=TOKEN_S), encoding="utf-8")
        argv = [sys.executable, "-m", "benchmarks.live.leaving_node", str(self.account(name)), way, "join", self.invite]
        options = ["--config", str(config), "--state", str(self.out / name), "--plain"]
        return stack.enter_context(open_program(name, [*argv, *options], self.out))

    def account(self, name: str) -> Path:
        return self.out / f"{name}.jsonl"

    def ask(self, sql: str, *values: object) -> tuple[int, ...]:
        """Return a row of numbers from the learner's ledger."""
        with closing(sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True)) as db:
            return tuple(one or 0 for one in db.execute(sql, values).fetchone())


def claim() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--nodes", type=int, default=NODES, help=f"nodes at a time (default {NODES})")
    options = parser.parse_args()
    luck = random.Random(options.seed)
    found: list[Left] = []
    with scratch(options.keep) as out, ExitStack() as stack:
        stage = open_stage(out, stack, options.nodes - 1, options.seed)
        for repetition in range(options.reps):
            for way in ("parts", "returns") if repetition % 2 == 0 else ("returns", "parts"):
                found.append(leave(stage, f"{way}-{repetition}", way, luck.uniform(0.1, 0.9)))
                say(f"repetition {repetition + 1}, {way}: {found[-1].lost_pct:.2f} % of {found[-1].made} tokens lost")
        returned = count_events(out / "state" / EVENTS_FILE, "lease_handed_back")
    tell(found)
    bars = [Bar(name="lost_tokens_pct", value=lost_pct(found, "parts"), at_most=LOST_PCT_AT_MOST)]
    figures = {
        "lost_tokens_pct_before": lost_pct(found, "returns"),
        "lost_tokens_pct_each": [round(one.lost_pct, 2) for one in found if one.way == "parts"],
        "tokens": sum(one.made for one in found if one.way == "parts"),
        "leases_handed_back": returned,
        "nodes": options.nodes,
        "tokens_a_completion": TOKENS,
    }
    return conclude("parts", bars, figures)


def lost_pct(found: Sequence[Left], way: str) -> float | None:
    """Return the percentage lost of all tokens that nodes of this way had generated."""
    mine = [one for one in found if one.way == way]
    made = sum(one.made for one in mine)
    return 100 * (made - sum(one.trained for one in mine)) / made if made else None


def open_stage(out: Path, stack: ExitStack, nodes: int, seed: int) -> Stage:
    """Start a learner and this many nodes that stay; return when they work."""
    write_character_tokenizer(out / "model")
    (out / "model" / "config.json").write_text("{}", encoding="ascii")
    write_payload(out / "model", 1 << 16, seed=0)
    config, begin = out / "swarm.toml", out / "begin"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    text = SWARM_TOML.format(port=port, prompts=PROMPTS, group=GROUP, tokens=TOKENS, seed=seed)
    config.write_text(text, encoding="utf-8")
    argv = [sys.executable, "-m", "benchmarks.live.learner", str(config), str(TRAIN_S), str(SIZE_BYTES), str(begin)]
    stage = Stage(out=out, invite=found_swarm(config), stack=stack, started=[])
    stage.started.append(stack.enter_context(open_program("learner", argv, out)))
    begin.touch()
    for place in range(1, nodes + 1):
        stage.started.append(stage.join(f"n{place}", "parts", stack))
    events = out / "state" / EVENTS_FILE
    wait_until("all nodes", lambda: count_events(events, "peer_joined") >= nodes, stage.started)
    wait_until("a training step", lambda: count_events(events, "step") > 0, stage.started)
    return stage


def leave(stage: Stage, name: str, way: str, share: float) -> Left:
    """Start one more node, and stop it when it has generated about this share of its current call."""
    with ExitStack() as stack:
        node = stage.join(name, way, stack)
        events = stage.out / name / "events.jsonl"
        wait_until("receipts of a new node", lambda: count_events(events, "receipt") > 0, [*stage.started, node])
        calls = begun(stage.account(name))
        wait_until("its next call", lambda: begun(stage.account(name)) > calls, [*stage.started, node])
        time.sleep(share * TOKENS * TOKEN_S)
        node.process.send_signal(signal.SIGINT)
        node.process.wait()
    made = made_last(stage.account(name))
    if not made:
        raise BenchmarkError(f"{name} left between two calls, or had generated nothing; choose another --seed.")
    return Left(way=way, made=made, trained=trained_of(stage, name))


def begun(account: Path) -> int:
    """Return the number of calls of its engine that a node has begun."""
    return sum("began" in line for line in lines_of(account))


def made_last(account: Path) -> int:
    """Return the tokens that its engine had generated in its last call."""
    lines = lines_of(account)
    return int(lines[-1].get("made", 0)) if lines else 0


def lines_of(account: Path) -> list[dict[str, int]]:
    """Return the complete lines. A line may be cut while it is being written."""
    if not account.exists():
        return []
    return [json.loads(line) for line in account.read_text(encoding="ascii").splitlines(keepends=True) if "\n" in line]


def trained_of(stage: Stage, name: str) -> int:
    """Return the trained tokens of the node's unfinished leases, once none of their tokens waits."""
    mine = (
        "FROM records r JOIN leases l USING (lease) JOIN peers p ON p.peer = r.peer"
        " LEFT JOIN continuations c USING (lease) LEFT JOIN dropped d ON d.lease = coalesce(c.root, r.lease)"
        " WHERE p.name = ? AND l.status = 'returned' AND r.rule = 'admitted'"
    )
    ends = time.monotonic() + SETTLE_S
    while stage.ask(f"SELECT count(*) {mine} AND r.step IS NULL AND d.lease IS NULL", name)[0]:
        if time.monotonic() > ends:
            raise BenchmarkError(f"Tokens that {name} delivered on leaving still wait after {SETTLE_S:.0f} s.")
        time.sleep(POLL_S)
    return stage.ask(f"SELECT sum(r.tokens) {mine} AND r.step IS NOT NULL", name)[0]


def tell(found: Sequence[Left]) -> None:
    """Print a row for each node that left."""
    rows = [[one.way, str(one.made), str(one.trained), number(one.lost_pct, 2)] for one in found]
    say(table(["node", "made", "trained on", "lost, %"], rows))


if __name__ == "__main__":
    main(claim)
