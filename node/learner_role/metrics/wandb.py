"""Send metrics to Weights & Biases, if it is installed: the node's side of a child process.

wandb starts threads and a service, waits for a network and installs exit handlers. None of this works with trio, so it
runs in a child (`node.learner_role.metrics.wandb_child`). The child reads rows from its stdin, and writes notices for
people to its stdout. A run at W&B has one value for a step. It continues after a restart that lost no step; otherwise
another run of the same group begins.

Invariants:

- The node imports nothing of wandb.
- The child gets no Ctrl-C, and ends when its stdin does.
- The node waits at most WAIT_S for the child. The child goes on uploading by itself, for UPLOAD_S at most.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

from learner.artifacts.atomic_directory import replace_file
from learner.artifacts.regular_file import open_file, read_file
from learner.artifacts.text_files import parse_json
from learner.trainer_api.exit_reasons import explained, how_ended
from node.learner_role.metrics.board import Row
from node.learner_role.metrics.tensorboard import tag

DIRECTORY = "wandb"

STATE = "volery.json"
"""File in that directory with the last run, and its last step."""

LOG = "volery.log"
"""File in that directory with the output of the child and of wandb."""

WAIT_S = 2.0
"""Seconds to wait for the child at the end, which is enough offline. Ctrl-C must end the learner within 5 s."""

TOLD_CHARS = 240

NOTICE_CHARS = 1000
"""Most characters of a notice of the child, which has two sentences with a path."""


@dataclass(kw_only=True)
class WandbSink:
    """Starts the child, and sends it rows. `group` names the swarm at W&B. A run there is `GROUP-INCARNATION`."""

    directory: Path
    project: str
    group: str
    offline: bool = False
    name: str = "wandb"
    command: tuple[str, ...] = (sys.executable, "-m", "node.learner_role.metrics.wandb_child")
    _child: subprocess.Popen[bytes] | None = None
    _log_begins: int = 0
    _told: SimpleQueue[str] = field(default_factory=SimpleQueue)
    _run: str = ""
    _last: int = field(default=-1)

    def begin(self, incarnation: int, base: int) -> None:
        """Start the child with the run in which the series continue."""
        self.close()
        self.directory.mkdir(parents=True, exist_ok=True)
        run, last = self._before()
        self._run = run if run and last <= base else f"{self.group}-{incarnation}"
        self._last = max(base, 0)
        with (self.directory / LOG).open("ab") as log:
            self._log_begins = log.tell()
            self._child = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        Thread(target=self._listen, args=(self._child,), daemon=True).start()
        terms = {"project": self.project, "group": self.group, "id": self._run, "offline": self.offline}
        self._send({**terms, "directory": str(self.directory.parent)})
        self._remember()

    def write(self, row: Row) -> None:
        """Send a row to the child."""
        self._send({tag(series): value for series, value in row.values.items()} | {"step": row.step})
        self._last = max(self._last, row.step)
        self._remember()

    def notice(self) -> str:
        """Return the next notice of the child for people; empty if there is none."""
        with suppress(Empty):
            return self._told.get_nowait()
        return ""

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        """On a thread, until the child ends: keep its notices. The lines come from our own program, and are few."""
        assert child.stdout is not None
        with child.stdout:
            for line in child.stdout:
                self._told.put(line.decode(errors="replace").strip()[:NOTICE_CHARS])

    def close(self) -> None:
        """Let the child finish."""
        child, self._child = self._child, None
        if child is None or child.stdin is None:
            return
        with suppress(OSError):
            child.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            child.wait(WAIT_S)

    def _send(self, what: Mapping[str, object]) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(what).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(f"its process {self._end()} (all of it: {self.directory / LOG})") from None

    def _end(self) -> str:
        """Return how the child ended, and why, from the part of the log that this child wrote."""
        assert self._child is not None
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(WAIT_S)
        lines: list[str] = []
        with suppress(OSError), open_file(self.directory / LOG) as log:
            log.seek(self._log_begins)
            lines = log.read().decode(errors="replace").splitlines()
        code = self._child.returncode
        how = "closed its pipe and keeps running" if code is None else how_ended(code)
        said = explained(code, lines)
        words = said.cause or (said.quoted[-1] if said.quoted else "without a message")
        return f"{how}: {words}"[:TOLD_CHARS]

    def _before(self) -> tuple[str, int]:
        """Return the last run that got rows, and its last step; ("", -1) if there was none."""
        try:
            state = parse_json(read_file(self.directory / STATE))
            return str(state["run"]), int(state["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", -1

    def _remember(self) -> None:
        replace_file(self.directory / STATE, json.dumps({"run": self._run, "step": self._last}).encode())
