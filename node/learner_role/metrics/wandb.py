"""Metrics for Weights & Biases, where it is installed: the node's end of a process of its own.

What always holds: the node imports nothing of it. wandb starts threads and a service, waits for a network and installs
exit handlers, none of which goes with trio, so it lives in a child (`node.learner_role.metrics.wandb_child`) that reads
rows from its stdin and tells on its stdout what people should know, hears no Ctrl-C, ends when its stdin does, and is
waited for no longer than WAIT_S; what it has not uploaded by then it goes on uploading by itself, for UPLOAD_S at most.
A run at W&B has one value for a step: it goes on after a restart that lost no step, else another run of the same group
begins.
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
"""In that directory: which run rows went to, and up to which step."""

LOG = "volery.log"
"""In that directory: what the child and wandb say."""

WAIT_S = 2.0
"""How long the end waits for the child: enough offline. Ctrl-C is to end the learner within 5 s."""

TOLD_CHARS = 240

NOTICE_CHARS = 1000
"""Of what the child tells: two sentences with a path."""


@dataclass(kw_only=True)
class WandbSink:
    """See the module's paragraph. `group` names the swarm at W&B; a run there is `GROUP-INCARNATION`."""

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
        """Start the child, on the run that the series go on in."""
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
        """Hand a row to the child."""
        self._send({tag(series): value for series, value in row.values.items()} | {"step": row.step})
        self._last = max(self._last, row.step)
        self._remember()

    def notice(self) -> str:
        """What the child has told that people should know, one at a time; empty if there is nothing new."""
        with suppress(Empty):
            return self._told.get_nowait()
        return ""

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        """On a thread, until the child ends: keep what it tells. Its lines are our own program's, and few."""
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
        """How the child ended, and why: of the log, what this child said, and not one before it."""
        assert self._child is not None
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(WAIT_S)
        lines: list[str] = []
        with suppress(OSError), open_file(self.directory / LOG) as log:
            log.seek(self._log_begins)
            lines = log.read().decode(errors="replace").splitlines()
        code = self._child.returncode
        how = "closed its pipe and goes on" if code is None else how_ended(code)
        said = explained(code, lines)
        words = said.cause or (said.quoted[-1] if said.quoted else "without a word")
        return f"{how}: {words}"[:TOLD_CHARS]

    def _before(self) -> tuple[str, int]:
        """The run that rows went to last, and the last step that it has; ("", -1) if there was none."""
        try:
            state = parse_json(read_file(self.directory / STATE))
            return str(state["run"]), int(state["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", -1

    def _remember(self) -> None:
        replace_file(self.directory / STATE, json.dumps({"run": self._run, "step": self._last}).encode())
