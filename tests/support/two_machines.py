"""Make two machines of this one: each with a network, a name and a file of hosts of its own, as Debian writes that.

Invariants:

- The name of a machine leads to 127.0.1.1 there, and nowhere else.
- Nothing of a machine outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.network.emulation import Network, Node, open_network
from learner.training.distributed.machines.interfaces import GLOO, NCCL
from protocol.core.pipe import PREFIX, Arrays, Header, decode_frame, encode_frame, frame_sizes
from tests.support.paths import ROOT

PORT = 29500
NAMES = ("alpha", "beta")

MACHINE = """
hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"
"""

DEADLINE_S = float(os.environ.get("VOLERY_TEST_DEADLINE_S", "240"))
"""Seconds to wait for anything that is to happen: many times what it takes."""


@dataclass(eq=False)
class Launcher:
    """A launcher on one machine: its pipe, and its lines on stderr."""

    process: subprocess.Popen[bytes]
    said: list[str] = field(default_factory=list)
    _heard: threading.Condition = field(default_factory=threading.Condition)
    _ended: bool = False

    def __post_init__(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()

    def receive(self) -> tuple[Header, Arrays]:
        """Return the next frame on its stdout. Kill a launcher that sends none within DEADLINE_S."""
        replies: Any = self.process.stdout
        watchdog = threading.Timer(DEADLINE_S, self.kill)
        watchdog.start()
        try:
            prefix = replies.read(PREFIX.size)
            assert len(prefix) == PREFIX.size, f"no frame; the launcher said {self.said}"
            header_size, body_size = frame_sizes(prefix)
            return decode_frame(replies.read(header_size), replies.read(body_size))
        finally:
            watchdog.cancel()

    def ready(self) -> list[Header]:
        """Wait until it is ready; return the events that came before, and that one."""
        events = [self.receive()[0]]
        while events[-1]["event"] != "ready":
            events.append(self.receive()[0])
        return events

    def ask(self, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
        requests: Any = self.process.stdin
        requests.write(encode_frame({"id": 3, "op": op, **fields}, arrays))
        requests.flush()
        reply, _ = self.receive()
        assert reply["ok"], reply
        return reply

    def ranks(self) -> list[int]:
        """Return the processes of its ranks."""
        pid = self.process.pid
        return [int(rank) for rank in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def hear(self, text: str) -> str:
        """Wait for a line with this, and return it."""
        with self._heard:
            found = self._heard.wait_for(lambda: self._line(text) or self._ended, DEADLINE_S)
            assert found, f"nothing of {text!r} in {self.said}"
            line = self._line(text)
            assert line, f"it ended without {text!r}: {self.said}"
            return line

    def end(self) -> int:
        """Wait until it has ended, and all its output was read; return its status."""
        status = self.process.wait(DEADLINE_S)
        with self._heard:
            assert self._heard.wait_for(lambda: self._ended, DEADLINE_S)
        return status

    def last(self) -> list[str]:
        """Return the lines in which it gave the reason of its end."""
        return [line.removeprefix("trainer: ") for line in self.said if line.startswith("trainer: ")]

    def kill(self) -> None:
        """Kill all its processes, as a power cut would."""
        for pid in [*self.ranks(), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _line(self, text: str) -> str:
        return next((line for line in self.said if text in line), "")

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._heard:
                self.said.append(line.decode(errors="replace").rstrip())
                self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()


@dataclass(eq=False)
class Machines:
    """Two machines; get them from `open_machines`."""

    network: Network
    directory: Path
    started: list[Launcher] = field(default_factory=list)

    @property
    def meeting(self) -> str:
        return f"{self.network.address(NAMES[0])}:{PORT}"

    def launch(
        self,
        machine: int,
        *,
        ranks: int = 1,
        number: int | None = None,
        meeting: str = "",
        command: Sequence[str] = ("-m", "learner.training.distributed.launcher"),
        **environment: str,
    ) -> Launcher:
        """Start a launcher on that machine, under its own number or another one."""
        name = NAMES[machine]
        hosts = self.directory / f"hosts-{name}"
        hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n", encoding="utf-8")
        place = (str(ranks), "2", str(machine if number is None else number), meeting or self.meeting)
        inside = ["unshare", "--uts", "--mount", "sh", "-c", MACHINE, "sh", name, str(hosts)]
        base = {key: value for key, value in os.environ.items() if key not in (GLOO, NCCL)}
        process = subprocess.Popen(
            self.network.inside(name, [*inside, sys.executable, *command, *place]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**base, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
            cwd=ROOT,
            start_new_session=True,
        )
        self.started.append(launcher := Launcher(process))
        return launcher


@contextmanager
def open_machines(directory: Path) -> Iterator[Machines]:
    """Yield two machines, connected, for as long as the block lasts."""
    with open_network([Node(name=name) for name in NAMES]) as network:
        machines = Machines(network, directory)
        try:
            yield machines
        finally:
            for launcher in machines.started:
                if launcher.process.poll() is None:
                    launcher.kill()
                launcher.process.wait()
