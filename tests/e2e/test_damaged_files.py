"""Damage every file that a learner or a node keeps, or that people hand around, under every command that reads it.

Each command must answer with a sentence, or with its output on sound files. It must never print a traceback or hang.

Files are found by walking the directories of a run that is over, and commands by walking the command line. So neither a
new file nor a new command can be forgotten. Commands are run in this process, so that thousands of cases take a minute.
"""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import unquote

import pytest

from node.cli.application import RENAMED
from tests.e2e.damages import Damage, damaged, damages_of
from tests.e2e.finished import finish, hashed_swarm, surroundings
from tests.e2e.programs import DEADLINE_S, Machine, Outcome, rows_of
from tests.support.command_line import single_commands

HANGS_S = int(DEADLINE_S)
"""Seconds. A command that reads takes a tenth of a second; one that waits for a writer of a pipe waits for ever."""

BLIND = 0.03
"""Fraction of the commands that do not open a damaged file, but are tried on it all the same: they may check that it
exists."""

NOT_HERE = {
    "init": "writes a file, and reads none of a run",
    "chat": "reads what `serve` reads, and then waits for an engine and for words; `tests/e2e/test_chat.py`",
    "demo": "makes a run of its own; `tests/e2e/test_demo.py`",
    "drill": "makes a run of its own; `tests/e2e/test_drill.py`",
    "engines": "looks at this machine",
    "new environment": "writes files, and reads none of a run",
    "new task": "writes files, and reads none of a run",
    "notify": "reads nothing of a run but its swarm.toml; `tests/node/commands/notify`",
    "service install": "needs a service manager; `tests/e2e/test_service.py`",
    "service status": "needs a service manager; `tests/e2e/test_service.py`",
    "service uninstall": "needs a service manager; `tests/e2e/test_service.py`",
    "verifier": "becomes another program",
    "warmup": "reads nothing of a run but its swarm.toml; `tests/e2e/test_warmup.py`",
}
"""Commands that read nothing of a run."""

CANNOT_HERE = {
    "drain": "no node runs there",
    "join --dry-run": "its learner has ended",
    "limits": "no node runs there",
    "plan": "the machines are too few, which is told with a plan",
    "plan CSV": "the machines are too few, which is told with a plan",
    "why --replay LEASE": "no audit failed",
}
EITHER = frozenset({"plan --from"})
"""A plan for the times that this run measured: on a busy machine its steps may take so long that one node is enough."""
"""Calls that fail on sound files too."""


TERMS = ("--train-s", 1, "--rollouts", 8, "--broadcast-s", 1)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run that is over. `given`: files that people handed around. `calls`: the commands that read its files, by their
    names here.
    """

    machine: Machine
    learner: Path
    node: Path
    config: Path
    given: Path
    calls: dict[str, tuple[object, ...]]

    @property
    def files(self) -> list[Path]:
        """Return every file of the run, with only one version of each store, since its versions are alike."""
        roots = [self.learner, self.node, self.given, self.config]
        found = [path for root in roots for path in ([root] if root.is_file() else sorted(root.rglob("*")))]
        kept, seen = [], set()
        for path in (path for path in found if path.is_file() and not path.name.endswith(("-wal", "-shm"))):
            kind = tuple("*" if len(part) == 64 else part for part in path.parts)
            if kind not in seen:
                seen.add(kind)
                kept.append(path)
        return kept


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    root = tmp_path_factory.mktemp("ran")
    machine = Machine(root=root)
    sys.addaudithook(_opened)  # for as long as this process lives
    with surroundings(root):
        swarm = hashed_swarm(machine)
        try:
            finish(swarm)
        finally:
            machine.clear()
        yield _ran(machine, swarm.config, swarm.state, swarm.directory / "one", swarm.directory / "fake.toml")


def _ran(machine: Machine, config: Path, learner: Path, node: Path, node_config: Path) -> Ran:
    given, out = machine.root / "given", machine.root / "out"
    given.mkdir()
    shutil.copyfile(learner / "invite", given / "invite.txt")
    shutil.copyfile(node_config, given / "node.toml")
    (given / "pool.toml").write_text('[[machine]]\nname = "a"\nprice = 1.0\nrate = 2.0\ncount = 2\n')
    (given / "pool.csv").write_text("name,price,rate\na,1.0,2.0\n")
    for call in (
        ("receipts", "export", node, "--out", given / "receipts.jsonl", "--proofs"),
        ("reputation", "export", config, "--out", given / "reputation.jsonl"),
    ):
        outcome = machine.call(*call)
        assert outcome.code == 0, outcome
    (record,) = rows_of(learner / "ledger.sqlite", "SELECT lower(hex(record)) FROM records WHERE step = 1 LIMIT 1")[0]
    ((peer,),) = rows_of(learner / "ledger.sqlite", "SELECT peer FROM peers WHERE role = 'rollout'")
    ((lease,),) = rows_of(learner / "ledger.sqlite", "SELECT lower(hex(lease)) FROM leases LIMIT 1")
    invite = given / "invite.txt"
    calls: dict[str, tuple[object, ...]] = {
        "invite": ("invite", config),
        "invite --announce": ("invite", config, "--announce", "/ip4/127.0.0.1/tcp/9"),
        "learn --dry-run": ("learn", config, "--dry-run", "--quick"),
        "learn --resume --dry-run": ("learn", config, "--dry-run", "--quick", "--resume"),
        "join --dry-run": ("join", invite, "--config", given / "node.toml", "--state", node, "--dry-run", "--wait", 0),
        "doctor": ("doctor", "--config", given / "node.toml", "--state", node),
        "doctor --json": ("doctor", "--config", given / "node.toml", "--state", node, "--json"),
        "simulate": ("simulate", given / "pool.toml", "--steps", 3, *TERMS),
        "simulate --from": ("simulate", "--from", learner, "--steps", 3),
        "plan": ("plan", given / "pool.toml", *TERMS),
        "plan CSV": ("plan", given / "pool.csv", *TERMS),
        "plan --from": ("plan", "--from", config),
        "receipts verify": ("receipts", "verify", given / "receipts.jsonl", "--invite", invite),
        "receipts verify --json": ("receipts", "verify", given / "receipts.jsonl", "--json"),
        "reputation verify": ("reputation", "verify", given / "reputation.jsonl", "--json"),
        "reputation export": ("reputation", "export", config, "--out", out / "reputation.jsonl"),
        "samples": ("samples", config),
        "compact": ("compact", config),
        "samples --json": ("samples", learner, "--json"),
        "show": ("show", config),
        "tasks show": ("tasks", "show", "--config", config),
        "tasks check": ("tasks", "check", "--config", config, "--count", 1),
        "ban": ("ban", peer, learner),
        "pardon": ("pardon", peer, learner),
        "pause": ("pause", node),
        "resume": ("resume", node),
        "drain": ("drain", node),
        "limits": ("limits", node),
        "why --replay": ("why", peer, config, "--replay"),
        "why --replay LEASE": ("why", lease, config, "--replay"),
        "why LEASE": ("why", lease, config),
        "explain": ("explain", lease, config),
    }
    for role, place in {"learner": config, "node": node}.items():
        calls |= {
            f"status {role}": ("status", place),
            f"status {role} --json": ("status", place, "--json"),
            f"identity {role}": ("identity", "--state", learner if role == "learner" else node),
            f"report {role}": ("report", place),
            f"report {role} --json": ("report", place, "--json"),
            f"report {role} --csv": ("report", place, "--csv"),
            f"report {role} --html": ("report", place, "--html", out / "report.html"),
            f"receipts list {role}": ("receipts", "list", place, "--records"),
            f"receipts export {role}": ("receipts", "export", place, "--out", out / "receipts.jsonl", "--proofs"),
            f"prove {role}": ("prove", record, place, "--out", out / "proof.jsonl"),
            f"why {role}": ("why", record, place),
            f"export {role}": ("export", place, out / "model"),
            f"serve {role}": ("serve", place, "--dry-run", "--device", "cpu"),
        }
    return Ran(machine=machine, learner=learner, node=node, config=config, given=given, calls=calls)


def leaves() -> set[str]:
    """Every command that `volery` has, as it is typed."""
    return {" ".join(words) for words, _ in single_commands()}


def called(words: tuple[object, ...], known: set[str]) -> str:
    """Return which of the commands is called."""
    typed = [RENAMED.get(str(words[0]), words[0]), *words[1:]]
    return next(name for name in known if typed[: len(name.split())] == name.split())


class Hung(BaseException):
    """Raised when a command does not answer."""


@contextmanager
def watched() -> Iterator[None]:
    """Raise Hung inside this context after HANGS_S seconds."""

    def ring(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(HANGS_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answer(ran: Ran, call: tuple[object, ...]) -> Outcome:
    """Return a command's answer, and delete the files that it wrote."""
    out = ran.machine.root / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    for waits in ("paused", "drain"):
        (ran.node / waits).unlink(missing_ok=True)
    shutil.rmtree(ran.learner / "orders", ignore_errors=True)
    with watched():
        return ran.machine.call(*call)


NONE_YET = "store holds no complete version yet."


def fault_of(outcome: Outcome, path: Path, sound: Outcome) -> str:
    """Return the fault of an answer about a damaged file, or "" if it has none. `sound`: the answer without damage."""
    if outcome.code == 0 or outcome == sound:
        return ""
    said = outcome.err.strip()
    if "Traceback" in said or outcome.code not in (1, 2):
        return "no sentence"
    if path.name == "recording.jsonl" and "Too few: " in outcome.out:
        return ""  # a damaged number can make the plan say that there are too few machines, which is no error
    if not said:  # a file of statements that does not hold is told of on standard output
        return "" if path.parent.name == "given" and outcome.out else "nothing said"
    if not said.endswith("."):
        return "no sentence"
    if path.name == "recording.jsonl" and "is not known. Give" in said:
        return ""  # the command asks for a value that the recording lacks
    if "store" in path.parts and said.removesuffix(" Start its learner or node first.").endswith(NONE_YET):
        return ""  # a version with a damaged manifest is not listed
    named = [path.name] if path.exists() else [path.name, path.parent.name]
    return "" if any(name in said for name in named) else "names no file"


def test_every_command_is_called_or_known_to_read_nothing(ran: Ran) -> None:
    known = leaves()
    assert {called(words, known) for words in ran.calls.values()} | NOT_HERE.keys() == known


def test_on_sound_files_every_command_does_its_work(ran: Ran) -> None:
    """Otherwise a failure for another reason could hide a damage."""
    failed = {name: outcome.err for name, call in ran.calls.items() if (outcome := answer(ran, call)).code != 0}
    assert failed.keys() - EITHER == CANNOT_HERE.keys(), failed


OPENED: set[str] = set()
"""Names of the files that this process has opened since the set was last emptied."""


def _opened(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "sqlite3.connect", "os.listdir", "os.scandir"):
        OPENED.add(Path(unquote(str(arguments[0])).removeprefix("file://").partition("?")[0]).name)


def readers(ran: Ran) -> dict[str, set[str]]:
    """Return the files that each command opens, by their names."""
    found = {}
    for name, call in ran.calls.items():
        OPENED.clear()
        answer(ran, call)
        found[name] = set(OPENED)
    return found


def trials(ran: Ran, share: float, seed: int = 7) -> Iterator[tuple[Path, Damage, list[str]]]:
    """Yield a random share of all cases: each damage of each file, with the commands that open the file and a few
    others.
    """
    rng, opens = Random(seed), readers(ran)
    for path in ran.files:
        for damage in damages_of(path, rng):
            names = [name for name in ran.calls if rng.random() < share * (1.0 if path.name in opens[name] else BLIND)]
            if names:
                yield path, damage, names


def try_all(ran: Ran, share: float) -> int:
    """Return how many cases were tried. Fail with a list of all failures."""
    wrong, tried = [], 0
    sound = {name: answer(ran, call) for name, call in ran.calls.items()}
    for path, damage, names in trials(ran, share):
        with damaged(path, damage):
            for name in names:
                tried += 1
                try:
                    fault = fault_of(outcome := answer(ran, ran.calls[name]), path, sound[name])
                    told = f"{outcome.code} {outcome.err[-300:]}"
                except Hung:
                    fault, told = "hangs", ""
                except Exception as error:
                    fault, told = "a traceback", repr(error)[:300]
                if fault:
                    wrong.append(f"{path.name}, {damage.name}: {name}: {fault}: {told}")
    assert not wrong, f"{len(wrong)} of {tried}:\n" + "\n".join(wrong)
    return tried


@pytest.mark.rest
def test_some_files_damaged_under_some_commands(ran: Ran) -> None:
    assert try_all(ran, 0.05) > 100


@pytest.mark.slow
def test_every_file_damaged_in_every_way_under_every_command(ran: Ran) -> None:
    assert len(ran.files) >= 30
    assert try_all(ran, 1.0) > 4_000
