"""Wrong input through the command line gets one paragraph and the right exit code, and leaves nothing half-written."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from learner.ledger.ledger import Ledger
from node.runtime.events import Clock
from node.state.learner_state import open_learner_home
from protocol.core.identity import Keypair
from protocol.core.invite import Invite, read_invite, write_invite
from protocol.core.limits import PROTOCOL_VERSION
from tests.e2e.ledger_rules import AFTER_A_CRASH, Run, check_ledger
from tests.e2e.programs import Machine, Outcome, Swarm, free_port, stopped, wait_done, wait_event
from tests.support.command_line import single_commands

USAGE, TROUBLE = 2, 1


def needs_root(test: Callable[..., None]) -> Callable[..., None]:
    """Skip a test unless root runs it, since only root may mount a small file system."""
    return pytest.mark.root(pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")(test))


def check_refusal(outcome: Outcome, code: int, *words: str) -> None:
    """Check that stderr is one paragraph that holds `words`, and that the exit code is this one."""
    assert outcome.code == code, outcome
    check_paragraph(outcome.err, *words)


def check_paragraph(text: str, *words: str) -> None:
    """Check that `text` is one paragraph that ends as a sentence does and holds `words`."""
    assert text.startswith("volery: "), text
    assert text.endswith(".\n"), text
    assert "Traceback" not in text
    assert "\n\n" not in text
    for word in words:
        assert word in text, text


# --- swarm.toml, the model, the task: all found before anything is made ----------------------------------------------


def drop(name: str) -> Callable[[Swarm], None]:
    def change(swarm: Swarm) -> None:
        directory = swarm.directory / "model"
        shutil.copytree(swarm.model, directory)
        (directory / name).unlink()
        swarm.model = directory
        swarm.configure()

    return change


def edit(old: str, new: str) -> Callable[[Swarm], None]:
    def change(swarm: Swarm) -> None:
        text = swarm.config.read_text()
        assert text.count(old) == 1
        swarm.config.write_text(text.replace(old, new))

    return change


def missing_shard(swarm: Swarm) -> None:
    drop("model.safetensors")(swarm)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (swarm.model / "model.safetensors.index.json").write_text(json.dumps(index))


def task_file(line: str) -> Callable[[Swarm], None]:
    def change(swarm: Swarm) -> None:
        good = json.dumps({"prompt": "ab", "answer": "ba"})
        (swarm.directory / "task.jsonl").write_text(f"{good}\n{good}\n{line}\n{good}\n")
        swarm.configure(task="jsonl:task.jsonl")

    return change


OWN_TASK = """
from node.tasks.api.interface import Problem


class Own:
    name, levels, fingerprint, is_cheap = "own", 1, "own", {cheap}

    def __init__(self, arguments):
        pass

    def problem(self, index):
        return Problem(prompt=str(index))

    def held_out(self, index):
        return Problem(prompt="held out " + str(index))

    def reward(self, problem, completion):
        {reward}
{more}
"""


def own_task(reward: str, more: str = "", *, cheap: bool) -> Callable[[Swarm], None]:
    def change(swarm: Swarm) -> None:
        name = f"own_{abs(hash(str(swarm.directory))):x}"
        (swarm.directory / f"{name}.py").write_text(OWN_TASK.format(reward=reward, more=more, cheap=cheap))
        swarm.configure(task=f"python:{name}:Own")

    return change


DICTS = """
    def answer_turn(self, problem, turns, said):
        return [{"role": "user", "content": "and?"}]
"""


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A change to a good swarm, and what the refusal must name."""

    change: Callable[[Swarm], None]
    words: tuple[str, ...]


MISTAKES = {
    "no weights": Mistake(change=drop("model.safetensors"), words=("[model] directory", "model.safetensors")),
    "no shard": Mistake(change=missing_shard, words=("model-00001-of-00002.safetensors",)),
    "no tokenizer": Mistake(change=drop("tokenizer.json"), words=("tokenizer.json",)),
    "no config.json": Mistake(change=drop("config.json"), words=("config.json",)),
    "no model": Mistake(change=edit("/model", "/nowhere"), words=("[model] directory", "nowhere")),
    "no TOML": Mistake(change=edit("steps = 6", "steps = "), words=("swarm.toml", "at line")),
    "unknown key": Mistake(change=edit("steps = 6", "stpes = 6"), words=("[learn]", "stpes", "steps")),
    "unknown section": Mistake(change=edit("[evaluate]", "[evalute]"), words=("evalute", "evaluate")),
    "wrong type": Mistake(change=edit("steps = 6", 'steps = "six"'), words=("[learn] steps", "int")),
    "async at S = 0": Mistake(
        change=edit("staleness = 3", "staleness = 0"), words=("[learn] staleness = 0", 'mode = "sequential"')
    ),
    "a mode that is none": Mistake(
        change=edit('mode = "async"', 'mode = "sync"'), words=("[learn] mode", "'async', 'sequential'")
    ),
    "more updates than groups": Mistake(
        change=edit("[trainer]", "[trainer]\nupdates_per_step = 5"),
        words=("[trainer] updates_per_step = 5", "prompts_per_step = 4"),
    ),
    "S < 0": Mistake(change=edit("staleness = 3", "staleness = -1"), words=("[learn] staleness",)),
    "no such objective": Mistake(
        change=edit("learning_rate", 'objective = "gprpo"\nlearning_rate'), words=("[trainer] objective", "grpo")
    ),
    "no address": Mistake(change=edit("/ip4/127.0.0.1/tcp/0", "localhost:80"), words=("[network] listen", "localhost")),
    "no such task": Mistake(change=edit("reverse:", "revers:"), words=("revers", "reverse")),
    "no such option": Mistake(change=edit("letters", "leters"), words=("leters", "letters")),
    "a line that is no JSON": Mistake(change=task_file("{"), words=("task.jsonl:3:", "not JSON")),
    "a reward without return": Mistake(
        change=own_task("1.0", cheap=False), words=("task 'own' gave no reward at index 0, but None", "`return`")
    ),
    "a cheap reward without return": Mistake(
        change=own_task("1.0", cheap=True), words=("task 'own' gave no reward at index 0, but None", "`return`")
    ),
    "a reward of text": Mistake(
        change=own_task("return '1.0'", cheap=False), words=("gave no reward at index 0, but '1.0' (of type str)",)
    ),
    "a reward that is NaN": Mistake(
        change=own_task("return float('nan')", cheap=True), words=("gave the reward nan at index 0",)
    ),
    "an answer of dicts": Mistake(
        change=own_task("return 1.0", DICTS, cheap=True),
        words=(
            "gave no answer at index 0, but [{'content': 'and?', 'role': 'user'}]",
            "ChatMessage(role=..., content=",
        ),
    ),
    "a line without answer": Mistake(change=task_file('{"prompt": "x"}'), words=("task.jsonl:3:", "answer")),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_the_door(swarm: Swarm, name: str) -> None:
    swarm.configure()
    MISTAKES[name].change(swarm)
    outcome = swarm.machine.call("learn", swarm.config)
    check_refusal(outcome, USAGE, *MISTAKES[name].words)
    assert outcome.out == ""
    assert not swarm.state.exists()


UNDIALABLE = ["/ip4/0.0.0.0/tcp/4001", "/ip4/192.0.2.1/tcp/0", "/dns/exa mple/tcp/1", "/ip6/fe80::1%eth0/tcp/1"]


@pytest.mark.parametrize("address", UNDIALABLE)
def test_what_nobody_can_dial_is_not_announced(swarm: Swarm, address: str) -> None:
    swarm.configure()
    swarm.state.mkdir()
    (swarm.state / "invite").write_text(LONG_INVITE)
    (swarm.state / "learner.key").write_text("")
    outcome = swarm.machine.call("invite", swarm.config, "--announce", address)
    check_refusal(outcome, USAGE, f"--announce: '{address}'", "For example")
    edit("heartbeat_s", f'announce = ["{address}"]\nheartbeat_s')(swarm)
    check_refusal(swarm.machine.call("learn", swarm.config), USAGE, "[network] announce", address)
    (swarm.directory / "node.toml").write_text(f'[network]\nannounce = ["{address}"]\n')
    outcome = swarm.machine.call("join", LONG_INVITE, "--config", swarm.directory / "node.toml", "--wait", "0")
    check_refusal(outcome, USAGE, "[network] announce", address)


def test_an_invite_names_the_learner_once_and_only_what_fits(swarm: Swarm) -> None:
    swarm.configure()
    swarm.state.mkdir()
    (swarm.state / "invite").write_text(LONG_INVITE)
    learner = invite_of(1).addresses[0].rpartition("/")[2]
    full = f"/ip4/192.0.2.1/tcp/1/p2p/{learner}"
    told = swarm.machine.call("invite", swarm.config, "--announce", full).out
    assert read_invite(told, now_ms=0).addresses == [full]
    other = invite_of(2).addresses[0]
    check_refusal(swarm.machine.call("invite", swarm.config, "--announce", other), USAGE, "is not this learner")
    many = [word for number in range(17) for word in ("--announce", f"/ip4/192.0.2.{number}/tcp/1")]
    check_refusal(swarm.machine.call("invite", swarm.config, *many), USAGE, "--announce", "Name fewer")
    assert swarm.machine.call("invite", swarm.config, "--expires", "inf").code == USAGE


def test_a_file_that_is_not_there(machine: Machine) -> None:
    check_refusal(machine.call("learn", "nowhere.toml"), USAGE, "nowhere.toml", "volery init")
    check_refusal(machine.call("report", "nowhere"), USAGE, "nowhere", "swarm.toml")
    check_refusal(machine.call("status"), USAGE, "swarm.toml")


def test_nothing_is_overwritten(machine: Machine, tmp_path: Path) -> None:
    assert machine.call("init", "mine").code == 0
    before = (tmp_path / "mine" / "swarm.toml").read_bytes()
    check_refusal(machine.call("init", "mine"), USAGE, "swarm.toml", "exists")
    assert (tmp_path / "mine" / "swarm.toml").read_bytes() == before
    check_refusal(machine.call("demo", "--out", "mine"), USAGE, "mine", "--out")
    assert (tmp_path / "mine" / "swarm.toml").read_bytes() == before


# --- places that cannot be used ---------------------------------------------------------------------------------------


@pytest.fixture
def taken_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield int(server.getsockname()[1])


def test_a_port_in_use(swarm: Swarm, taken_port: int) -> None:
    swarm.configure(port=taken_port)
    check_refusal(swarm.machine.call("learn", swarm.config), TROUBLE, str(taken_port), "[network] listen")
    assert not (swarm.state / "invite").exists()


def test_a_state_that_cannot_be_written(swarm: Swarm) -> None:
    swarm.configure()
    swarm.state.write_text("a file where a directory should be")
    check_refusal(swarm.machine.call("learn", swarm.config), TROUBLE, str(swarm.state))
    assert swarm.state.read_text().startswith("a file")


def test_a_store_that_cannot_be_written(swarm: Swarm) -> None:
    swarm.configure()
    swarm.state.mkdir()
    (swarm.state / "store").write_text("a file where a directory should be")
    check_refusal(swarm.machine.call("learn", swarm.config), TROUBLE, "store")
    assert not (swarm.state / "invite").exists()


# --- a state that is not this run's -----------------------------------------------------------------------------------


def test_a_state_of_another_swarm_or_program_is_named_and_left_alone(swarm: Swarm, tmp_path: Path) -> None:
    swarm.configure(task="reverse:letters=2")
    for state in (swarm.state, tmp_path / "other"):
        home = open_learner_home(state, name="x", certificate_days=90, now_ms=Clock.now_ms())
        home.close()
        Ledger(home.ledger, swarm=home.authority.swarm).close()
    theirs = (tmp_path / "other" / "ledger.sqlite").read_bytes()
    swarm.ledger_file.write_bytes(theirs)
    outcome = swarm.machine.call("learn", swarm.config)
    check_refusal(
        outcome, TROUBLE, str(swarm.ledger_file), "belongs to another swarm", "Choose another state directory"
    )
    with closing(sqlite3.connect(swarm.ledger_file)) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (b"99",))
        db.commit()
    outcome = swarm.machine.call("learn", swarm.config)
    check_refusal(outcome, TROUBLE, str(swarm.ledger_file), "format 99", "Use the version of volery that wrote it")
    check_refusal(swarm.machine.call("learn", swarm.config, "--resume"), TROUBLE, "format 99")
    with closing(sqlite3.connect(swarm.ledger_file)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchall() == [(b"99",)]
    swarm.ledger_file.unlink()
    check_refusal(swarm.machine.call("learn", swarm.config, "--resume"), USAGE, "no checkpoint to continue from")
    words = ("--fork-from", tmp_path / "other")
    check_refusal(swarm.machine.call("learn", swarm.config, *words), USAGE, "is not empty", "[swarm] state")
    check_refusal(swarm.machine.call("learn", swarm.config, "--resume", *words), USAGE, "choose one")


@pytest.mark.slow
def test_a_run_is_forked_and_to_another_model_it_is_not(swarm: Swarm) -> None:
    swarm.configure(steps=3)
    wait_done(swarm.learn(), swarm.join("one"))
    origin = swarm.config.rename(swarm.directory / "origin.toml")
    fork = Swarm(machine=swarm.machine, directory=swarm.machine.root / "fork", model=swarm.model)
    fork.configure(steps=5)
    # Which steps have checkpoints depends on how long each took to write; the newest two are kept.
    [(base,), (newest,)] = swarm.rows("SELECT step FROM checkpoints ORDER BY step")
    assert base < newest == 3
    learner = fork.learn("--fork-from", f"{origin}@{base}")
    wait_done(learner, fork.join("two"))
    assert fork.rows("SELECT step FROM steps ORDER BY step") == [(step,) for step in range(base + 1, 6)]
    assert fork.rows("SELECT incarnation, base FROM incarnations") == [(1, 0), (2, base)]
    assert fork.rows("SELECT min(version) FROM versions") == [(base,)]
    model = swarm.machine.root / "other-model"
    shutil.copytree(swarm.model, model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.01}))
    other = Swarm(machine=swarm.machine, directory=swarm.machine.root / "other", model=model)
    other.configure()
    program = swarm.machine.start("other", "learn", other.config, "--fork-from", origin, state=other.state)
    assert program.wait() == TROUBLE, program.story()
    check_paragraph(program.err.read_text(), "is a checkpoint of another model", "load the model that it was")
    assert not other.state.exists()
    other.configure(task="reverse:letters=3")
    outcome = swarm.machine.call("learn", other.config, "--fork-from", origin)
    check_refusal(outcome, USAGE, "the task is not the one this run began with")
    assert not other.state.exists()


# --- a volunteer's side, with a learner to knock at -------------------------------------------------------------------


def invite_of(number: int, **changes: object) -> Invite:
    keypair = Keypair(number.to_bytes(32, "big"))
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{keypair.peer_id}"
    return msgspec.structs.replace(
        Invite(operator=keypair.public, swarm=bytes([number]) * 32, addresses=[address]), **changes
    )


EXPIRED = write_invite(invite_of(1, expires_ms=1_700_000_000_000))
INVITES = {
    "cut short": (EXPIRED[:-9], "cut short"),
    "mistyped": (EXPIRED.replace(EXPIRED[20], "1" if EXPIRED[20] != "1" else "2", 1), "checksum"),
    "no invite": ("hello", "volery1"),
    "empty": ("volery1", "cut short"),
    "expired": (EXPIRED, "expired"),
    "of another protocol": (write_invite(invite_of(1, protocol=PROTOCOL_VERSION + 1)), "Update volery"),
}


def at_no_time(text: str) -> str:
    """Return `text` without times of day and ages: two programs do not start in the same second."""
    return re.sub(r"expired .*? ago|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "<time>", text)


@pytest.mark.parametrize("name", INVITES)
def test_an_invite_that_is_none(machine: Machine, tmp_path: Path, name: str) -> None:
    text, word = INVITES[name]
    outcome = machine.call("join", text)
    check_refusal(outcome, USAGE, word)
    (tmp_path / "invite.txt").write_text(text + "\n")
    path = tmp_path / "invite.txt"
    of_file = machine.call("join", path).err
    assert at_no_time(of_file) == at_no_time(outcome.err.replace("usage: ", f"usage: {path}: ", 1))
    assert not (tmp_path / "home").exists()


# --- any text pasted in place of a file, a directory or an invite -----------------------------------------------------

LONG_INVITE = write_invite(invite_of(1, addresses=4 * invite_of(1).addresses))
PASTED = {
    "an invite": LONG_INVITE,
    "an invite, quoted": f'"{LONG_INVITE}"',
    "the whole line": f"volery join {LONG_INVITE}",
    "a long name": "a" * 300,
    "a deep path": "x/" * 3000,
    "a link to itself": "loop",
    "below a file": "file/below",
    "no text": "\udcff",
}
QUICK = ("the whole line", "a long name")
GIVEN = {
    "config": "swarm.toml", "source": "swarm.toml", "invite": LONG_INVITE, "record": "ab", "peer": "x", "name": "x",
    "file": "file", "directory": "file", "out": "file/out",
}  # fmt: skip
"""The valid arguments of a command where another parameter is tried."""


TAKES_NOTHING = {("verifier",), ("engines",), ("tasks",)}
PLACES = [
    (words, parameter, command)
    for words, command in single_commands()
    for parameter in command.params
    if words not in TAKES_NOTHING and ("Path" in str(parameter.type_descriptor) or parameter.name in GIVEN)
]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in PASTED]
)
def test_whatever_is_pasted_into_any_command_is_answered_in_a_paragraph(machine: Machine, kind: str) -> None:
    """There is never a traceback. Some commands may accept the value."""
    open_learner_home(machine.root / "state", name="x", certificate_days=90, now_ms=Clock.now_ms()).close()
    (machine.root / "swarm.toml").write_text(
        '[swarm]\nname = "x"\n[model]\ndirectory = "model"\n[task]\nspec = "sort"\n'
    )
    (machine.root / "file").write_text("no model, no pool and no receipts")
    (machine.root / "loop").symlink_to(machine.root / "loop")
    assert len(PLACES) >= 50
    for words, parameter, command in PLACES:
        call = list(words)
        for other in command.params:
            if other is parameter or other.required:
                value = PASTED[kind] if other is parameter else GIVEN[other.name]
                call += [value] if other.param_type_name == "argument" else [other.opts[0], value]
        call += {("join",): ["--wait", "0"], ("learn",): ["--dry-run"]}.get(words, [])
        outcome = machine.call(*call)
        assert outcome.code in (0, 1, 2), (words, parameter.name, outcome)
        if outcome.code and not outcome.out and not outcome.err.startswith("Usage: "):
            check_paragraph(outcome.err)


def test_what_was_pasted_joins_all_the_same(machine: Machine) -> None:
    """So does a whole line that was pasted with its other words, and an invite that a mail program broke."""
    pasted = [
        (f'"{LONG_INVITE}"',), ("volery", "join", LONG_INVITE), (f"volery join {LONG_INVITE}",),
        (LONG_INVITE[:100], LONG_INVITE[100:]),
    ]  # fmt: skip
    for words in pasted:
        outcome = machine.call("join", *words, "--wait", "0")
        check_refusal(outcome, TROUBLE, "The learner cannot be reached at /ip4/127.0.0.1/tcp/1/")


def test_an_invite_names_the_node_that_has_joined_its_swarm(machine: Machine) -> None:
    """A volunteer has the invite at hand more often than a directory's name."""
    check_refusal(machine.call("status", LONG_INVITE), USAGE, "no node in the usual places", "volery join INVITE")
    machine.call("join", LONG_INVITE, "--wait", "0")
    for command in ("status", "report", "identity --state"):
        outcome = machine.call(*command.split(), f'"{LONG_INVITE}"')
        assert outcome.code == 0, outcome
    assert "rollout" in outcome.out


def test_an_invite_that_is_not_written_yet(machine: Machine) -> None:
    check_refusal(
        machine.call("join", "my-swarm/state/invite"),
        USAGE,
        "there is no such file, and an invite begins",
        "volery learn",
    )


def test_a_learner_that_is_not_there(machine: Machine) -> None:
    outcome = machine.call("join", write_invite(invite_of(1)), "--wait", "1")
    check_refusal(outcome, TROUBLE, "/ip4/127.0.0.1/tcp/1/", "firewall")


def test_a_node_that_is_misconfigured(machine: Machine, tmp_path: Path) -> None:
    invite = write_invite(invite_of(1))
    (tmp_path / "node.toml").write_text("[engine]\nknd = 'fake'\n")
    check_refusal(machine.call("join", invite, "--config", "node.toml"), USAGE, "node.toml", "[engine]", "knd")
    check_refusal(machine.call("join", invite, "--config", "nowhere.toml"), USAGE, "nowhere.toml")
    check_refusal(machine.call("join", invite, "--state", "node.toml"), TROUBLE, "node.toml", "--state")


def test_a_learner_and_who_is_turned_away(swarm: Swarm) -> None:
    machine = swarm.machine
    swarm.configure(steps=1, token="sesame")
    learner = swarm.learn_doomed()
    good = read_invite(swarm.invite, now_ms=int(time.time() * 1000))
    node = swarm.directory / "fake.toml"
    node.write_text("[engine]\nkind = 'fake'\n[network]\nlisten = []\n")

    def join(state: str, invite: Invite, *options: str) -> Outcome:
        words = ("join", write_invite(invite), "--config", node, "--state", swarm.directory / state)
        return machine.call(*words, *options)

    before = join("none", good, "--dry-run")
    assert (before.code, "task reverse, 100 %" in " ".join(before.out.split())) == (0, True), before
    assert not (swarm.directory / "none").exists()
    assert swarm.rows("SELECT name FROM peers") == [(swarm.directory.name,)], (
        "a node joined; only the learner should be listed"
    )
    for options in ((), ("--dry-run",)):
        wrong = join("one", msgspec.structs.replace(good, token="please"), *options)
        check_refusal(wrong, USAGE, "token", "new invite")
        other = join("two", msgspec.structs.replace(invite_of(1), addresses=good.addresses), *options)
        check_refusal(other, USAGE, "another swarm", "new invite")
    check_refusal(join("state", good), USAGE, "learner")
    check_refusal(machine.call("learn", swarm.config), TROUBLE, str(swarm.state), "running")
    assert learner.is_running

    # A node that was turned away may come back with the right token, and with its old state.
    wait_done(learner, swarm.join("one"))


# --- full disks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(swarm: Swarm) -> Iterator[SmallDisk]:
    swarm.directory.mkdir()
    disk = SmallDisk(path=swarm.directory / "disk")
    disk.path.mkdir()
    try:
        disk.mount("size=8m")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield disk
    finally:
        swarm.machine.clear()
        subprocess.run(["umount", disk.path], check=True)


@dataclass(frozen=True, kw_only=True)
class SmallDisk:
    """A file system in memory."""

    path: Path

    def mount(self, options: str) -> None:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path], check=True, capture_output=True)

    def fill(self, leave: int) -> Path:
        """Fill the disk but for `leave` bytes; return the file to delete to get the room back."""
        ballast = self.path / "ballast"
        room = shutil.disk_usage(self.path).free - leave
        ballast.write_bytes(bytes(max(0, room)))
        return ballast


@needs_root
@pytest.mark.rest
def test_a_learner_whose_disk_is_full(swarm: Swarm, small_disk: SmallDisk) -> None:
    swarm.configure(steps=6, port=free_port())
    swarm.state.symlink_to(small_disk.path)
    learner = swarm.learn()
    node = swarm.join("node")
    with stopped(learner.child("learner.training.server")):
        wait_event(node, "joined", learner)
        # room for a version or two, and for what SQLite needs to report the error
        ballast = small_disk.fill(leave=400_000)
    assert learner.wait() == TROUBLE, learner.story()
    check_paragraph(learner.err.read_text(), "disk")

    ballast.unlink()
    learner = swarm.learn()
    wait_done(learner, node)
    incarnations = swarm.rows("SELECT count(*) FROM incarnations")
    check_ledger(swarm, Run(steps=6, incarnations=incarnations[0][0], verdicts=AFTER_A_CRASH))


@needs_root
@pytest.mark.slow
def test_a_disk_for_checkpoints_that_is_full(swarm: Swarm, small_disk: SmallDisk) -> None:
    swarm.configure(steps=40, port=free_port())
    swarm.state.mkdir()
    (swarm.state / "checkpoints").symlink_to(small_disk.path)
    learner = swarm.learn()
    node = swarm.join("node")
    wait_event(learner, "checkpoint_saved", node)
    with stopped(learner.child("learner.training.server")):
        ballast = small_disk.fill(leave=0)
    assert learner.wait() == TROUBLE, learner.story()
    check_paragraph(learner.err.read_text(), "3 checkpoints in a row could not be written", "Free its disk")
    assert len(learner.events("checkpoint_failed")) >= 3

    ballast.unlink()
    ((durable,),) = swarm.rows("SELECT max(step) FROM checkpoints")
    learner = swarm.learn()
    wait_done(learner, node)
    assert [event["step"] for event in learner.events("incarnation_began")] == [0, durable]
    check_ledger(swarm, Run(steps=40, incarnations=2, verdicts=AFTER_A_CRASH))


@needs_root
def test_a_learner_founded_on_a_full_disk(swarm: Swarm, small_disk: SmallDisk) -> None:
    swarm.configure(steps=1)
    swarm.state.symlink_to(small_disk.path)
    ballast = small_disk.fill(leave=0)
    check_refusal(swarm.machine.call("learn", swarm.config), TROUBLE, str(swarm.state), "No space left")
    ballast.unlink()
    learner = swarm.learn_doomed()
    wait_done(learner, swarm.join("node"))


@needs_root
@pytest.mark.parametrize("command", ["drill", "demo"])
def test_a_small_model_made_on_a_full_disk(swarm: Swarm, small_disk: SmallDisk, command: str) -> None:
    small_disk.fill(leave=300_000)
    outcome = swarm.machine.call(command, "--out", small_disk.path / "out", "--plain")
    check_refusal(outcome, TROUBLE, str(small_disk.path / "out"), "No space left", "--out")


@needs_root
@pytest.mark.parametrize("leave", [0, 100_000, 400_000], ids=["at once", "while fetching", "while working"])
def test_a_node_whose_disk_is_full(swarm: Swarm, small_disk: SmallDisk, leave: int) -> None:
    swarm.configure(steps=12)
    (swarm.directory / "node").symlink_to(small_disk.path)
    learner = swarm.learn_doomed()  # the hashing trainer starts at once; this test is not about training
    ballast = small_disk.fill(leave=leave)
    node = swarm.join("node")
    assert node.wait() == TROUBLE, node.story()
    check_paragraph(node.err.read_text(), "disk")
    assert learner.is_running

    ballast.unlink()
    wait_done(learner, swarm.join("node"))
