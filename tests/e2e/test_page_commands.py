"""Type every command of every page as it stands, on a machine like the one that the pages speak of.

Placeholders (INVITE, PEER, a lease id of an example) become what this run has. A swarm is founded, trains with a node,
and both go on while most commands are typed; the commands that start a program, or need a quiet swarm, come after them.
A command that cannot be typed here is in ELSEWHERE with the reason, or with the test that types it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main

from node.cli.application import app
from protocol.core.identity import peer_id_of
from protocol.core.invite import read_invite
from tests.e2e.programs import Machine, Outcome, Program, Swarm, wait_for
from tests.support.page_commands import all_typed
from tests.support.paths import ROOT

TYPED = all_typed()

SERVICE = "needs a systemd of the user; tests/e2e/test_service.py"
NEW_TASK = "in the directory of `volery new task`; tests/e2e/test_new_task.py"

ELSEWHERE = {
    "volery init my-swarm --example reverse": "makes a model; tests/e2e/test_example.py",
    "volery engines install vllm": "downloads 3.5 GB; `make test-vllm` types it",
    "volery drill": "attacks for three minutes; tests/e2e/test_drill.py",
    "volery drill my-swarm --cheats 0.3 --attack greedy --attack 4bit": "tests/e2e/test_drill.py",
    "volery join INVITE --teacher path/to/teacher": "needs a swarm that distils; tests/e2e/test_distillation.py",
    "volery export my-swarm my-model --push ann/my-model --license apache-2.0": "needs Hugging Face's hub; "
    "tests/node/commands/export pushes to a hub of its own",
    "volery export my-swarm my-model --gguf my-model/my-model.gguf --gguf-type q8_0": "needs a tokenizer of byte-level "
    "BPE; tests/e2e/test_exports.py",
    "volery warmup my-swarm warm-model --by accuracy --epochs 200": "needs a file; tests/e2e/test_warmup.py",
    "volery tasks show": NEW_TASK,
    "volery learn .": NEW_TASK,
    "volery report my-swarm --html run.html --every 10": "ends with the run; tests/integration/test_kept_page.py",
    "volery service install --node INVITE": SERVICE,
    "volery service install --learner my-swarm": SERVICE,
    "volery service install --node INVITE --config node.toml --memory-gb 24": SERVICE,
    "volery service status": SERVICE,
    "volery service uninstall": SERVICE,
}

CODES = {
    "volery plan --from my-swarm": {0, 1},  # 1 if no number of such machines keeps so small a run busy
    "volery why 8d13709a my-swarm --replay": {2},  # no lease failed an audit here
}
"""The exit codes of commands whose honest answer here may be another one than 0, and why."""

FOUND = "volery init my-swarm --model runs/demo/model"
LEARN = "volery learn my-swarm"
JOIN = "volery join my-swarm/state/invite"

OWNER = [
    "volery limits --hours 22:00-07:00 --upload-mbit 4",
    "volery pause",
    "volery resume",
    "volery pause '~/.local/share/volery/SWARM/node-1'",
    "volery drain",
]
"""What the owner of the node types, in this order; the last one ends it."""

BANS = ["volery ban cheat1 my-swarm --reason 'see our mail'", "volery pardon cheat1 my-swarm"]
"""What an operator does to the node when it has ended: a node that hears of its ban leaves with an error."""

NODES = [
    command
    for command in TYPED
    if command.startswith("volery join INVITE") and "--dry-run" not in command and command not in ELSEWHERE
]
"""Commands that start a node, one after the other, when the first node has ended."""

LEARNERS = [
    command
    for command in TYPED
    if command.startswith("volery learn ") and "--dry-run" not in command and command not in ELSEWHERE
]
"""Commands that start a learner, when the first learner has ended."""

SERVERS = [command for command in TYPED if command.startswith("volery serve ")]

QUIET = [
    "volery compact my-swarm",
    "volery learn my-swarm --dry-run",
    "volery warmup my-swarm warm-model",
    "volery init my-swarm-2 --model warm-model",
]
"""Commands for a swarm that stands still, in this order."""

SMALL = {"prompts_per_step": "4", "group_size": "4", "max_new_tokens": "8", "steps": "100000", "staleness": "2"}
"""Values of [learn] with which a training step takes a fraction of a second."""


def parse(command: str) -> None:
    """Parse a command as the program does. Raises click's UsageError."""
    context, words = None, shlex.split(command)
    one = typer.main.get_command(app)
    while True:
        context = one.make_context(words[0], words[1:], parent=context)
        if not hasattr(one, "resolve_command"):
            return
        words = [*context._protected_args, *context.args]
        _, one, _ = one.resolve_command(context, words)


@pytest.mark.parametrize("command", TYPED)
def test_a_command_of_a_page_is_understood(command: str) -> None:
    parse(command)


def test_no_reason_is_left_behind() -> None:
    assert {*ELSEWHERE, *CODES} <= set(TYPED)
    assert {FOUND, LEARN, JOIN, *OWNER, *BANS, *QUIET} <= set(TYPED)


class World:
    """The machine of the pages: a home, the files that they name, a swarm at work, and what stands for placeholders."""

    def __init__(self, machine: Machine, model: Path) -> None:
        self.machine = machine
        self.root = machine.root
        self.swarm = Swarm(machine=machine, directory=self.root / "my-swarm", model=model)
        self.failed: list[str] = []
        self.done: set[str] = set()
        shutil.copytree(ROOT / "docs" / "examples", self.root / "docs" / "examples")
        for place in ("runs/demo/model", "Qwen3-0.6B", "MODEL_DIRECTORY"):
            shutil.copytree(model, self.root / place)
        shutil.copy(ROOT / "docs" / "examples" / "pool.csv", self.root / "machines.csv")
        shutil.copy(ROOT / "docs" / "examples" / "pool.toml", self.root / "machines.toml")
        rows = {"question": ["say 12.", "say 7."], "answer": ["12", "7"]}
        pq.write_table(pa.table(rows), self.root / "gsm8k.parquet")
        (self.root / "data").mkdir()
        (self.root / "data" / "train.jsonl").write_text(
            "".join(json.dumps({"prompt": f"say {number}.", "answer": number}) + "\n" for number in range(9))
        )
        (self.root / "serve.key").write_text("a-key-of-some-length\n", encoding="ascii")
        (self.root / "serve.key").chmod(0o600)

    def found(self) -> None:
        """Write the first swarm.toml, and make its training steps small."""
        self.type(FOUND)
        text = self.swarm.config.read_text(encoding="utf-8")
        for key, value in SMALL.items():
            text, times = re.subn(rf"(?m)^{key} = \S+", f"{key} = {value}", text)
            assert times == 1, key
        text = re.sub(r"(?m)^listen = \[.*?\]", 'listen = ["/ip4/127.0.0.1/tcp/0"]', text, count=1)
        self.swarm.config.write_text(text, encoding="utf-8")

    def start(self, command: str, name: str, evidence: str) -> Program:
        """Start a program, and wait until it has printed `evidence`."""
        self.done.add(command)
        program = self.machine.start(name, *self.words(command))
        wait_for(f"{evidence!r} of `{command}`", lambda: evidence in program.out.read_text("utf-8"), program)
        return program

    def start_and_stop(self, command: str, name: str, evidence: str) -> None:
        """The same, and press Ctrl-C."""
        try:
            program = self.start(command, name, evidence)
        except AssertionError as error:
            self.failed.append(str(error))
            return
        program.interrupt()
        if program.wait() not in (0, 130):
            self.failed.append(f"{command}\n{program.story()}")

    def type(self, command: str, *, at: Path | None = None) -> None:
        """Run a command to its end, and remember it if it fails."""
        self.done.add(command)
        with chdir(at or self.root):
            outcome = self.machine.call(*self.words(command))
        self._judge(command, outcome)

    def type_order(self, command: str, learner: Program) -> None:
        """Type an order to a learner, and wait until it has obeyed."""
        said = "SELECT count(*) FROM decisions"
        before = self.swarm.rows(said)
        self.type(command)
        wait_for(f"`{command}` to be obeyed", lambda: self.swarm.rows(said) != before, learner)

    def type_into(self, command: str, text: str) -> None:
        """Run a command as a process of its own that reads `text` and then the end of its input."""
        self.done.add(command)
        done = subprocess.run(
            [sys.executable, "-m", "node", *self.words(command)], input=text, capture_output=True, text=True,
            cwd=self.root, env=self.machine.environment, check=False,
        )  # fmt: skip
        self._judge(command, Outcome(code=done.returncode, out=done.stdout, err=done.stderr))

    def type_elsewhere(self, command: str) -> None:
        """Run a command in a directory of its own that has the same models: it makes what is there already."""
        at = self.root / f"elsewhere-{len(self.done)}"
        at.mkdir()
        for name in ("runs", "data", "gsm8k.parquet", "Qwen3-0.6B", "MODEL_DIRECTORY", "warm-model"):
            (at / name).symlink_to(self.root / name)
        self.type(command, at=at)

    def _judge(self, command: str, outcome: Outcome) -> None:
        if outcome.code not in CODES.get(command, {0}):
            self.failed.append(f"{command}: exit code {outcome.code}\n{outcome.out[-1500:]}\n{outcome.err[-1500:]}")

    def words(self, command: str) -> list[str]:
        """Return the arguments of a command, with what this run has in place of placeholders."""
        return [self._filled(word) for word in shlex.split(command)[1:]]

    def _filled(self, word: str) -> str:
        if word in ("INVITE", "volery1..."):
            return self.swarm.invite
        if word.endswith("@400"):
            steps = [int(path.name.split(".")[-1]) for path in (self.swarm.state / "checkpoints").iterdir()]
            return word.replace("@400", f"@{max(steps)}")
        if word == "12D3KooW...":
            return peer_id_of(read_invite(self.swarm.invite, now_ms=0).authority.operator)
        queries = {
            "3fa9c2": "SELECT substr(lower(hex(record)), 1, 12) FROM records WHERE step = 1 LIMIT 1",
            "LEASE": "SELECT lower(hex(lease)) FROM records WHERE step = 1 LIMIT 1",
            "8d13709a": "SELECT substr(lower(hex(lease)), 1, 12) FROM records WHERE step = 1 LIMIT 1",
            "PEER": "SELECT peer FROM peers WHERE role = 'rollout' LIMIT 1",
            "NXTN4h": "SELECT substr(peer, -6) FROM peers WHERE role = 'rollout' LIMIT 1",
            "cheat1": "SELECT substr(peer, -6) FROM peers WHERE role = 'rollout' LIMIT 1",
            "36": "SELECT max(version) - 1 FROM versions",
        }
        if word in queries:
            ((value,),) = self.swarm.rows(queries[word])
            return str(value)
        if "/SWARM/" in word:
            (home,) = (Path.home() / ".local" / "share" / "volery").iterdir()
            return str(home / word.rpartition("/")[2])
        return word


@pytest.fixture
def world(machine: Machine, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.delenv("VOLERY_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(machine.root / "home"))
    return World(machine, model)


@pytest.mark.rest
def test_every_command_of_every_page_works(world: World) -> None:
    world.found()
    learner = world.start(LEARN, "learner", "volery join volery1")
    node = world.start(JOIN, "node", "joined")
    wait_for("ten training steps", lambda: world.swarm.steps_taken >= 10, learner, node)
    later = {*OWNER, *BANS, *NODES, *LEARNERS, *SERVERS, *QUIET}
    for command in TYPED:
        if command in ELSEWHERE or command in later or command in world.done:
            continue
        if command.startswith("volery export "):
            shutil.rmtree(world.root / "my-model", ignore_errors=True)
        if command.startswith("volery init "):
            world.type_elsewhere(command)
        elif command.startswith("volery chat "):
            world.type_into(command, "rev:ab=\n")
        else:
            world.type(command)
    for command in SERVERS:
        world.start_and_stop(command, "server", "Serving ")
    for command in OWNER:
        world.type(command)
    assert node.wait() == 0, node.story()
    for command in BANS:
        world.type_order(command, learner)
    for command in NODES:
        world.start_and_stop(command, "again", "joined")
    learner.interrupt()
    assert learner.wait() == 130, learner.story()
    for command in QUIET:
        (world.type_elsewhere if "init" in command else world.type)(command)
    (world.root / "another").mkdir()
    shutil.copy(world.swarm.config, world.root / "another")
    for command in LEARNERS:
        if command not in world.done:
            world.start_and_stop(command, "again", "volery join volery1")
    assert not world.failed, "\n\n".join(world.failed)
    assert set(TYPED) == world.done | set(ELSEWHERE)
