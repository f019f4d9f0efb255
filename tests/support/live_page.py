"""Run the process of a live page in tests, and ask it as a browser or a stranger would."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec

from node.web.address import Listen, open_listener
from node.web.terms import MODULE, Kind, PageTerms

TOKEN = "a-token-for-tests-01234567"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WAIT_S = 60.0
"""Seconds after which what a test waits for counts as never."""

SERVER = f"import sys; from {MODULE} import main; sys.exit(main())"


@dataclass(frozen=True)
class Answer:
    """What the page said."""

    status: int
    text: str
    headers: Message

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class LivePage:
    """A running page server. `port` is where it listens."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        """Return the answer to one request. Underscores in the names of headers stand for hyphens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=named)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), answer.headers)
        finally:
            connection.close()

    @contextmanager
    def watch(self, after: int = 0, **headers: str) -> Iterator[Watcher]:
        """Follow the page's changes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("GET", f"/events?after={after}", headers=headers)
            yield Watcher(connection.getresponse())
        finally:
            connection.close()

    def wait_for(self, text: str, path: str = "/", **headers: Any) -> str:
        """Return the first answer that holds `text`."""
        ends = time.monotonic() + WAIT_S
        while time.monotonic() < ends:
            if text in (answer := self.ask(path, **headers)).text:
                return answer.text
            time.sleep(0.1)
        raise AssertionError(f"{path} never said {text!r}. {self.log.read_text()}")

    def end_run(self) -> None:
        """End what the server knows as the run's program."""
        assert self.process.stdin is not None
        self.process.stdin.close()


@dataclass
class Watcher:
    """A browser that follows the page."""

    answer: http.client.HTTPResponse

    def next(self) -> dict[str, Any]:
        """Return the next event. Raises EOFError at the end."""
        line = self.answer.readline()
        while line and not line.startswith(b"data: "):
            line = self.answer.readline()
        if not line:
            raise EOFError
        told: dict[str, Any] = json.loads(line[6:])
        return told

    def until(self, text: str, key: str = "") -> dict[str, Any]:
        """Return the first event with a part, `key` if that is given, that holds `text`."""
        while True:
            told = self.next()
            if any(text in part["html"] and key in ("", part["id"]) for part in told["parts"]):
                return told


@contextmanager
def serving(
    state: Path, *, kind: Kind = "learner", port: int = 0, before: str = "", **terms: Any
) -> Iterator[LivePage]:
    """Serve the page of `state` until the block ends. `before`: Python that runs first. `port`: 0 for any."""
    log = state / "page.log"
    with open_listener(Listen(host="127.0.0.1", port=port)) as listener, log.open("wb") as output:
        told = PageTerms(
            socket=listener.fileno(), kind=kind, state=str(state.absolute()),
            **{"title": "a swarm", "token": TOKEN, "pid": os.getpid(), **terms},
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\n{SERVER}"],
            stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=(listener.fileno(),), start_new_session=True,
        )  # fmt: skip
        number = listener.getsockname()[1]
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(told) + b"\n")
            process.stdin.flush()
        yield LivePage(process=process, port=number, log=log)
    finally:
        with suppress(OSError):
            process.stdin.close()
        process.kill()
        process.wait()
