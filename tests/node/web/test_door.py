"""The door: no server before a browser, one at a time, told the end, tried again if it fails."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from node.runtime.events import EventLog
from node.web import door as module
from node.web.address import Listen, open_listener
from node.web.door import LOG, PageDoor
from node.web.terms import PageTerms

ANSWERS_ONE = """
import json, os, socket, sys
terms = json.loads(sys.stdin.readline())
listener = socket.socket(fileno=terms["socket"])
taken, _ = listener.accept()
taken.sendall(f"served by {os.getpid()}".encode())
taken.close()
"""
"""A server that answers one browser and ends."""

WAITS = """
import json, socket, sys
terms = json.loads(sys.stdin.readline())
taken, _ = socket.socket(fileno=terms["socket"]).accept()
taken.sendall(b"here")
sys.stdin.read()
taken.sendall(b"the run has ended")
"""
"""A server that serves until its input ends."""

STAYS = WAITS + "import time\ntime.sleep(3600)\n"
"""A server that does not end when it should."""

FAILS = "import sys; print('no page today'); sys.exit(3)"


def door_of(state: Path, program: str) -> tuple[PageDoor, list[str]]:
    listener, heard = open_listener(Listen(host="127.0.0.1")), []
    terms = PageTerms(socket=listener.fileno(), kind="learner", title="x", state=str(state), token="0123456789abcdef")
    events = EventLog()

    def hear(event: str, fields: Any) -> None:
        heard.append(fields.get("text", event))

    events.listen(hear)
    return PageDoor(listener=listener, terms=terms, events=events, command=(sys.executable, "-c", program)), heard


async def connected(door: PageDoor) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", door.listener.getsockname()[1])


async def said(stream: trio.SocketStream) -> str:
    with trio.fail_after(60):
        return (await stream.receive_some(1000)).decode()


async def test_each_browser_after_a_servers_end_starts_another(tmp_path: Path) -> None:
    door, heard = door_of(tmp_path, ANSWERS_ONE)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run)
        servers = set()
        for _ in range(2):
            async with await connected(door) as stream:
                servers.add(await said(stream))
        assert len(servers) == 2
        nursery.cancel_scope.cancel()
    assert door.listener.fileno() == -1
    assert heard == []


async def test_a_server_hears_the_runs_end(tmp_path: Path) -> None:
    door, _ = door_of(tmp_path, WAITS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run)
        stream = await connected(door)
        assert await said(stream) == "here"
        nursery.cancel_scope.cancel()
    assert await said(stream) == "the run has ended"
    await stream.aclose()


async def test_a_server_that_stays_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GOODBYE_S", 0.2)
    door, _ = door_of(tmp_path, STAYS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(door.run)
        stream = await connected(door)
        assert await said(stream) == "here"
        nursery.cancel_scope.cancel()
    assert await said(stream) == "the run has ended"
    assert await said(stream) == "", "its connections end with it"
    await stream.aclose()


async def test_a_server_that_fails_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    tried_often = trio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            tried_often.set()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr("node.web.door.trio.sleep", pause)
    door, heard = door_of(tmp_path, FAILS)
    with socket.create_connection(door.listener.getsockname()):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.run)
            with trio.fail_after(60):
                await tried_often.wait()
            nursery.cancel_scope.cancel()
    assert pauses[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert heard == [f"The live page cannot be served, and is tried again. Its messages: {tmp_path / LOG}"]
    assert (tmp_path / LOG).read_text() == "no page today\n"


def test_terms_are_one_line() -> None:
    terms = PageTerms(socket=3, kind="learner", title="a\nb", state="/x", token="0123456789abcdef")
    assert json.loads(module.msgspec.json.encode(terms))["title"] == "a\nb"
    assert b"\n" not in module.msgspec.json.encode(terms)
