"""Run Volery as people do: `volery` commands as processes of their own over loopback, watched from outside.

Invariants:

- A test waits for something it can observe: a file, an event in a log, a row in the ledger, a process that ends.
- When that does not come, the test fails with the ends of every program's output.
- Every process that was started here is gone when the test is over, children included, also when the test run itself is
  killed (`STOP_ON_EOF`).
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from typing import IO, Any, TypeVar
from unittest.mock import patch

import psutil
import typer.main

from node.cli.main import main
from node.runtime.loop_watch import HAD_TO_WAIT
from node.runtime.shutdown import STOP_ON_EOF
from tests.support.workers import worker_number

DEADLINE_S = float(os.environ.get("VOLERY_TEST_DEADLINE_S", "480"))
"""Seconds to wait for anything that is to happen: ten times what the longest of it takes here, since other people's
machines are busy as well."""

POLL_S = 0.05

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1", STOP_ON_EOF: "1"}

TRAINERS = ("learner.training.server", "tests.e2e.hashing_trainer")

FIRST_PORT, PORTS, WORKERS = 10_000, 1000, 20
"""Each of so many workers has so many ports. The system's own begin at 32,768."""

_turn = count(os.getpid())
"""Two test runs at a time begin at different ports."""

T = TypeVar("T")

_built_once = cache(typer.main.get_command)
"""Typer reads the signatures of all our commands at every call, which takes as long as most commands do."""

SWARM_TOML = """\
[swarm]
name = "{name}"

[network]
listen = ["/ip4/127.0.0.1/tcp/{port}"]
heartbeat_s = {heartbeat_s}
join_token = "{token}"

[model]
directory = "{model}"
weights_dtype = "{weights_dtype}"

[task]
spec = "{task}"
held_out = {held_out}

[learn]
steps = {steps}
mode = "{mode}"
staleness = {staleness}
publish_every = {publish_every}
prompts_per_step = 4
group_size = 4
max_new_tokens = 4
lease_timeout_s = {lease_s}
threads = 1

[trainer]
learning_rate = {learning_rate}
ranks = {ranks}
{trainer}

[evaluate]
every_versions = 3

[trust]
audits = {audits}
"""

NODE_TOML = """\
[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "{engine}"
threads = 1
batch_rollouts = 8

[testing]
fake_token_s = {token_s}

[energy]
watts = 250.0
per_kwh = 0.3
"""


@dataclass(kw_only=True)
class Program:
    """One `volery` process. `state` is where it writes events.jsonl, once it is known."""

    name: str
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    out: Path
    err: Path
    state: Path | None = None
    _events: list[dict[str, Any]] = field(default_factory=list, init=False, repr=False)
    _read_bytes: int = field(default=0, init=False, repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the events that it logged, in order; with `name`, only those of this name.

        Each call reads only what was written since the last one: whoever waits asks twenty times a second, and the
        processors are for the programs.
        """
        if self.state is not None and (path := self.state / "events.jsonl").exists():
            if path.stat().st_size < self._read_bytes:
                self._events, self._read_bytes = [], 0
            with path.open("rb") as log:
                log.seek(self._read_bytes)
                whole = log.read().rpartition(b"\n")
            for line in whole[0].splitlines():
                with suppress(json.JSONDecodeError):  # torn by a full disk, and ended before the next one (`EventLog`)
                    self._events.append(json.loads(line))
            self._read_bytes += len(whole[0] + whole[1])
        return [event for event in self._events if not name or event["event"] == name]

    @property
    def troubles(self) -> list[str]:
        """Return the troubles that it told, but those that a busy machine makes."""
        return [text for event in self.events("trouble") if not (text := event["text"]).startswith(HAD_TO_WAIT)]

    def wait(self, deadline_s: float = DEADLINE_S) -> int:
        """Wait until it ends and return its exit code."""
        try:
            return self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.story()}") from None

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def interrupt(self) -> None:
        """Send SIGINT to the whole foreground process group, as Ctrl-C in a terminal does."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill this process alone with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def family(self) -> list[psutil.Process]:
        """Return the process and everything below it."""
        root = psutil.Process(self.pid)
        return [root, *root.children(recursive=True)]

    def child(self, *modules: str) -> psutil.Process:
        """Return the child that runs one of `modules` or a file of that name, once there is one."""

        def found() -> psutil.Process | None:
            runs = (each for each in self.family()[1:] for word in _words(each) if any(one in word for one in modules))
            return next(runs, None)

        return wait_for(f"a child of {self.name} that runs {' or '.join(modules)}", found, self)

    def story(self) -> str:
        """Return the ends of its output, for people."""
        tails = [path.read_text(errors="replace")[-3000:] for path in (self.out, self.err)]
        events = "\n".join(str(event) for event in self.events() if event["event"] != "heartbeat")[-4000:]
        code = self.process.poll()
        return (
            f"--- {self.name}, exit code {code}, says\n{tails[0]}\n--- and complains\n{tails[1]}\n--- events\n{events}"
        )


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def wait_for(
    what: str, condition: Callable[[], T | None], *programs: Program, progress: Callable[[], object] = lambda: None
) -> T:
    """Return the result of `condition` once it is true. Fail when it takes too long, or when a program ends first.

    The time begins anew whenever `progress` returns something else: what takes many steps may take as long as a busy
    machine needs, while it moves.
    """
    ends, reached = time.monotonic() + DEADLINE_S, progress()
    while True:
        if (now := progress()) != reached:
            ends, reached = time.monotonic() + DEADLINE_S, now
        ended = [program for program in programs if program.process.poll() is not None]
        if found := condition():  # checked after looking which programs ended: what they did last still counts
            return found
        late = time.monotonic() > ends
        if ended or late:
            why = f"{ended[0].name} ended first" if ended else f"none within {DEADLINE_S:.0f} s"
            raise AssertionError("\n".join([f"{what}: {why}", *(program.story() for program in programs)]))
        time.sleep(POLL_S)


def wait_event(program: Program, name: str, /, *others: Program, after: int = 0, **fields: object) -> dict[str, Any]:
    """Wait until `program` has logged an event like this; `after` skips that many that are alike."""

    def found() -> dict[str, Any] | None:
        alike = [e for e in program.events(name) if all(e.get(key) == value for key, value in fields.items())]
        return alike[after] if len(alike) > after else None

    return wait_for(f"event {name} {fields or ''} of {program.name}", found, program, *others)


@dataclass(kw_only=True)
class Terminal:
    """A terminal that a program runs in. A thread keeps what it shows in the file `shown`, until it is closed."""

    master: int
    slave: int
    shown: Path

    @classmethod
    def open(cls, shown: Path) -> Terminal:
        """Open a terminal of 40 lines. `slave` is for the program, and is closed here once the program has it."""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        shown.touch()
        terminal = cls(master=master, slave=slave, shown=shown)
        threading.Thread(target=terminal._read, args=(os.dup(master),), daemon=True).start()
        return terminal

    def press(self, keys: bytes) -> None:
        """Type keys, such as `b"\\x03"` for Ctrl-C."""
        os.write(self.master, keys)

    def close(self) -> None:
        """Close the window: the kernel hangs up on all processes that run there, and writing there fails
        from now on.
        """
        self._over.set()
        os.close(self.master)
        self.wait_read()

    def wait_read(self) -> None:
        """Wait until all is kept that the programs there wrote, which have ended."""
        assert self._read_all.wait(DEADLINE_S)

    def text(self) -> str:
        """Return everything that was written there, without the sequences that move the cursor or set colours."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.read_text(errors="replace"))

    def __post_init__(self) -> None:
        self._over, self._read_all = threading.Event(), threading.Event()

    def _read(self, master: int) -> None:
        """Keep what is shown until the program has left the terminal, or the terminal is closed."""
        with open(master, "rb", buffering=0) as screen, self.shown.open("ab", buffering=0) as kept:
            while not self._over.is_set():
                if not select.select([screen], [], [], POLL_S)[0]:
                    continue
                try:
                    kept.write(screen.read(1 << 16) or b"")
                except OSError:  # no process has it open any more
                    break
        self._read_all.set()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a command ended."""

    code: object
    out: str
    err: str


@dataclass(kw_only=True)
class Machine:
    """A pretended machine: a directory for everything, and the programs that run on it.

    VOLERY_HOME and the current directory are below `root`; the fixture sees to it.
    """

    root: Path
    programs: list[Program] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **ENVIRONMENT}

    def call(self, *arguments: object) -> Outcome:
        """Run a command that only reads, or fails soon, to its end: in this interpreter, which has
        imported it already.
        """
        out, err = io.StringIO(), io.StringIO()
        before, sys.argv = sys.argv, ["volery", *map(str, arguments)]
        try:
            with redirect_stdout(out), redirect_stderr(err), patch.object(typer.main, "get_command", _built_once):
                main()
        except SystemExit as ended:
            return Outcome(code=ended.code, out=out.getvalue(), err=err.getvalue())
        finally:
            sys.argv = before
        raise AssertionError("the console script ended without an exit code")

    def start(
        self,
        name: str,
        *arguments: object,
        state: Path | None = None,
        module: str = "node",
        out_to: int | None = None,
    ) -> Program:
        """Start a command in a session of its own, as a terminal would; its output is kept in files.

        `module` is what runs instead of `volery`; `out_to` is the descriptor that takes its standard output instead.
        """
        number = len(self.programs)
        out, err = self.root / f"{number}-{name}.out", self.root / f"{number}-{name}.err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = self._popen(module, arguments, stdout if out_to is None else out_to, stderr)
        words = tuple(map(str, arguments))
        program = Program(name=name, arguments=words, process=process, out=out, err=err, state=state)
        self.programs.append(program)
        return program

    def start_in_terminal(
        self,
        name: str,
        *arguments: object,
        state: Path | None = None,
        module: str = "node",
        hangup_ignored: bool = False,
    ) -> tuple[Program, Terminal]:
        """Start a command as the foreground program of a terminal of its own, and keep what that shows in a file.

        With `hangup_ignored` it starts as after `trap '' HUP` in a shell, which is what `nohup` does. The program does
        not watch its stdin: a test run that is killed closes the terminal.
        """
        words = tuple(map(str, arguments))
        return self._in_terminal(name, [sys.executable, "-m", module, *words], state, hangup_ignored)

    def start_shell(self, *command: str) -> tuple[Program, Terminal]:
        """Start an interactive shell in a terminal of its own: `bash`, without anybody's settings."""
        return self._in_terminal("shell", [*command, "--norc", "--noprofile", "-i"], None, hangup_ignored=False)

    def _in_terminal(
        self, name: str, command: Sequence[str], state: Path | None, hangup_ignored: bool
    ) -> tuple[Program, Terminal]:
        number = len(self.programs)
        shown = self.root / f"{number}-{name}.screen"
        environment = {**self.environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        del environment[STOP_ON_EOF]
        terminal = Terminal.open(shown)

        def take_terminal() -> None:  # in the child, which leads a session by now
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            # The test run itself may ignore hang-ups, and children inherit that.
            signal.signal(signal.SIGHUP, signal.SIG_IGN if hangup_ignored else signal.SIG_DFL)

        with open(terminal.slave, "rb+", buffering=0) as slave:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=environment,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
                preexec_fn=take_terminal,
            )
        program = Program(name=name, arguments=tuple(command), process=process, out=shown, err=shown, state=state)
        self.programs.append(program)
        return program, terminal

    def _popen(
        self, module: str, arguments: Sequence[object], out: IO[bytes] | int, err: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )

    def clear(self) -> None:
        """End every process that was started here, and every process that those started, each by its id."""
        for program in self.programs:
            if program.process.poll() is None:
                family = program.family()
                for each in family:
                    _kill(each)
                psutil.wait_procs(family, timeout=10)
                program.process.wait()
            if program.process.stdin is not None:
                program.process.stdin.close()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


@dataclass(kw_only=True)
class Swarm:
    """One swarm on a `Machine`: its swarm.toml, its learner's state, its nodes."""

    machine: Machine
    directory: Path
    model: Path

    @property
    def config(self) -> Path:
        return self.directory / "swarm.toml"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def ledger_file(self) -> Path:
        return self.state / "ledger.sqlite"

    def configure(
        self,
        *,
        steps: int = 6,
        mode: str = "async",
        staleness: int = 3,
        publish_every: int = 1,
        held_out: int = 0,
        task: str = "reverse:letters=2",
        lease_s: float = 60.0,
        token: str = "",
        port: int = 0,
        heartbeat_s: float = 2.0,
        learning_rate: float = 1e-3,
        weights_dtype: str = "float32",
        ranks: int = 1,
        trainer: str = "",
        audits: bool = False,
    ) -> None:
        """Write swarm.toml. A learner that is to be found again after a restart needs a `port`. The audits are off by
        default, since the fake engine's tokens would fail them. `trainer`: more lines of that section.
        """
        self.directory.mkdir(exist_ok=True)
        text = SWARM_TOML.format(
            name=self.directory.name, model=self.model, steps=steps, mode=mode, staleness=staleness,
            publish_every=publish_every, held_out=held_out, task=task, lease_s=lease_s, token=token, port=port,
            heartbeat_s=heartbeat_s, learning_rate=learning_rate, weights_dtype=weights_dtype,
            ranks=ranks, trainer=trainer, audits=str(audits).lower(),
        )  # fmt: skip
        self.config.write_text(text, encoding="utf-8")

    def learn(self, *options: object, is_invited: bool = True) -> Program:
        """Start the learner. With `is_invited`, wait until there is an invite of this start."""
        return self._learner("learn", self.config, *options, is_invited=is_invited)

    def learn_doomed(self, *, is_invited: bool = True) -> Program:
        """Start a learner whose trainer hashes. `tests.e2e.doom` may strike there, even before there is an invite."""
        return self._learner(self.config, module="tests.e2e.doomed", is_invited=is_invited)

    def _learner(self, *arguments: object, module: str = "node", is_invited: bool = True) -> Program:
        (self.state / "invite").unlink(missing_ok=True)
        name = f"{self.directory.name}-learner"
        learner = self.machine.start(name, *arguments, state=self.state, module=module)
        if is_invited:
            self.wait_invite(learner)
        return learner

    def wait_invite(self, learner: Program) -> None:
        wait_for("an invite", (self.state / "invite").exists, learner)

    @property
    def invite(self) -> str:
        return (self.state / "invite").read_text(encoding="ascii").strip()

    def join(
        self, name: str, *options: object, engine: str = "fake", token_s: float = 0.0, out_to: int | None = None
    ) -> Program:
        """Start a rollout node with a state directory of its own beside the swarm. `token_s`: seconds that the fake
        engine takes for a token. A slow engine leaves more of the processors to the rest while a test only waits.
        """
        words = self.to_join(name, options, engine, token_s)
        return self.machine.start(name, *words, state=self.directory / name, out_to=out_to)

    def join_all(self, learner: Program, *each: Sequence[object], engine: str = "fake") -> list[Program]:
        """Start a node for each name and its options. The trainer stands still until all have joined. Otherwise a
        faster node could end the run before the others join, and these would look for the learner for ever.
        """
        with stopped(learner.child(*TRAINERS)):
            nodes = [self.join(str(name), *options, engine=engine) for name, *options in each]
            for node in nodes:
                wait_event(node, "joined", learner)
        return nodes

    def join_in_terminal(
        self, name: str, *options: object, engine: str = "fake", hangup_ignored: bool = False
    ) -> tuple[Program, Terminal]:
        """Start a node in the same way, in a terminal of its own."""
        words, state = self.to_join(name, options, engine), self.directory / name
        return self.machine.start_in_terminal(name, *words, state=state, hangup_ignored=hangup_ignored)

    def to_join(
        self, name: str, options: Sequence[object] = (), engine: str = "fake", token_s: float = 0.0
    ) -> tuple[object, ...]:
        """Return the words of the command that joins, after `volery`."""
        config = self.directory / f"{engine}{token_s or ''}.toml"
        config.write_text(NODE_TOML.format(engine=engine, token_s=token_s), encoding="utf-8")
        return ("join", self.invite, "--config", config, "--name", name, "--state", self.directory / name, *options)

    @property
    def steps_taken(self) -> int:
        """Return the training steps in the ledger."""
        ((step,),) = self.rows("SELECT coalesce(max(step), 0) FROM steps")
        return int(step)

    def wait_steps(self, number: int, *programs: Program) -> None:
        """Wait until so many training steps were taken."""
        wait_for(f"step {number}", lambda: self.steps_taken >= number, *programs, progress=lambda: self.steps_taken)

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of the ledger, also while the learner runs."""
        return rows_of(self.ledger_file, sql, *values)


def rows_of(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return rows of a SQLite file, opened to read only."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as db:
        return db.execute(sql, values).fetchall()


def wait_done(*programs: Program) -> None:
    """Wait until all have ended, and check that each has exit code 0."""

    def steps() -> int:
        return sum(len(program.events("step")) for program in programs)

    def done() -> bool:
        codes = [program.process.poll() for program in programs]
        assert not any(codes), (codes, "\n".join(program.story() for program in programs))
        return None not in codes

    try:
        wait_for("the end", done, progress=steps)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(program.story() for program in programs)])) from None


def receipts_of(node: Program) -> dict[tuple[bytes, int], tuple[bytes, str]]:
    """Return the verdicts in a node's receipts: (lease, index) -> (record id, rule)."""
    assert node.state is not None
    rows = rows_of(node.state / "receipts.sqlite", "SELECT lease, idx, record, rule FROM verdicts")
    return {(lease, index): (record, rule) for lease, index, record, rule in rows}


def verdicts_for(swarm: Swarm, peer: str) -> dict[tuple[bytes, int], tuple[bytes, str]]:
    """Return the ledger's verdicts on a peer's records, in the same form."""
    rows = swarm.rows("SELECT lease, idx, record, rule FROM records WHERE peer = ?", peer)
    return {(lease, index): (record, rule) for lease, index, record, rule in rows}


def counted_by(node: Program) -> int:
    """Return the tokens that count for a node, by its receipts."""
    assert node.state is not None
    ((tokens,),) = rows_of(node.state / "receipts.sqlite", "SELECT coalesce(sum(tokens), 0) FROM receipts")
    return int(tokens)


def counted_for(swarm: Swarm, peer: str) -> int:
    """Return the tokens that count for a peer, by the ledger."""
    ((tokens,),) = swarm.rows(
        "SELECT (SELECT coalesce(sum(tokens), 0) FROM records WHERE peer = ?1 AND rule = 'admitted')"
        " + (SELECT coalesce(sum(o.tokens), 0) FROM orphans o JOIN leases l USING (lease) WHERE l.peer = ?1)",
        peer,
    )
    return int(tokens)


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """Stop a process with SIGSTOP inside this context, and continue it with SIGCONT afterwards."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def free_port() -> int:
    """Return a port that is free, and that no other test is given: each worker has ports of its own.

    They are below those that the system hands out to whoever asks for any.
    """
    for _ in range(PORTS):
        port = FIRST_PORT + PORTS * (worker_number() % WORKERS) + next(_turn) % PORTS
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def wait_gone(processes: Sequence[psutil.Process]) -> None:
    """Wait until none of them is left."""
    _, left = psutil.wait_procs(processes, timeout=DEADLINE_S)
    assert not left, left
