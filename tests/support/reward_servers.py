"""Run judge models and reward services for tests: real HTTP servers of this process, with answers set by the test."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A server's reply: `value` as JSON, or `body` as it is. `dies`: the connection ends before the reply does."""

    value: Any = None
    body: bytes | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    dies: bool = False

    @property
    def data(self) -> bytes:
        return json.dumps(self.value).encode() if self.body is None else self.body


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One request."""

    path: str
    headers: Mapping[str, str]
    value: Any


@dataclass(kw_only=True)
class Server:
    """A running server, and the requests that it got."""

    url: str
    heard: list[Heard] = field(default_factory=list)
    most_at_once: int = 0


Answer = Callable[[int, Heard], Reply]
"""Returns the reply to a request, by its number from 0 on."""


@contextmanager
def serving(answer: Answer) -> Iterator[Server]:
    """Run a server on a free port of this machine, until the end."""
    lock, open_now = Lock(), 0

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            nonlocal open_now
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            heard = Heard(path=self.path, headers=headers, value=json.loads(body))
            with lock:
                number = len(server.heard)
                server.heard.append(heard)
                open_now += 1
                server.most_at_once = max(server.most_at_once, open_now)
            try:
                reply = answer(number, heard)
            finally:
                with lock:
                    open_now -= 1
            self._say(reply)

        def _say(self, reply: Reply) -> None:
            data = reply.data
            self.send_response(reply.status)
            for name, value in {"content-length": str(len(data)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                self.wfile.write(data[: len(data) // 2] if reply.dies else data)
                self.wfile.flush()
                if reply.dies:
                    self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client has read enough
            self.close_connection = self.close_connection or reply.dies

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # the client has read enough

    with Listener(("127.0.0.1", 0), Handler) as listener:
        server = Server(url=f"http://127.0.0.1:{listener.server_address[1]}")
        Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server
        finally:
            listener.shutdown()


_TAKEN: list[socket.socket] = []


def nobody() -> str:
    """Return an address at which nothing listens, nor will while these tests run."""
    one = socket.socket()
    one.bind(("127.0.0.1", 0))
    _TAKEN.append(one)
    return f"http://127.0.0.1:{one.getsockname()[1]}"


def chat(content: str | None, *, finish: str = "stop", **more: Any) -> Reply:
    """Return a reply as vLLM's to /v1/chat/completions."""
    message = {"role": "assistant", "content": content, "refusal": None, "tool_calls": [], **more}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    usage = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": None}
    whole = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return Reply(value={**whole, "usage": usage, "prompt_logprobs": None})


def rewards(*worth: Any) -> Reply:
    """Return a reply as a reward service's."""
    return Reply(value={"rewards": list(worth)})
