"""Text of strangers is harmless on every way to a screen, even where a caller did not escape it."""

from __future__ import annotations

import ast
import io
import json
import logging
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio
from rich.table import Table
from rich.text import Text

from node.runtime.events import EventLog
from node.runtime.formatting import plain_name
from node.runtime.safe_console import HarmlessConsole
from node.runtime.stdout import complain, say, tame_tracebacks
from node.ui.live_view import Role, ViewState
from node.ui.terminal import open_terminal
from protocol.core.digest import digest_of
from protocol.core.envelope import NO_SWARM, Kind, seal
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import SwarmId
from protocol.core.invite import Invite, write_invite
from protocol.core.limits import MAX_NAME_CHARS
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.transfer.serving import Knowledge, Serving
from tests.support.paths import ROOT
from tests.support.store_fixture import small_swarm

POISON = "\x1b]0;owned\x07\x1b[2Jno\x9b31m\x9d\u202egnp\u2066\u200b\x7f\b\x0e"
"""A title, a cleared screen, a colour in eight bits, a direction turned, a backspace, another alphabet."""
LONG = POISON + "x" * 100_000


def require_harmless(shown: str, *, lines: bool = True) -> None:
    """Check that the text has nothing but what a terminal prints, and ends of lines."""
    allowed = "\n" if lines else ""
    odd = {letter for letter in shown if unicodedata.category(letter)[0] == "C" and letter not in allowed}
    assert not odd, sorted(map(hex, map(ord, odd)))


def on_terminal(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    view = ViewState(role=Role.ROLLOUT, title=text)
    with open_terminal(view, plain=True) as terminal:
        terminal.say(text)
    return out.getvalue()


def on_console(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    out, text = io.StringIO(), text[:2000]  # rich takes a minute to lay out a word of 100 kB
    table = Table(title=text)
    table.add_column(Text(text))
    table.add_row(Text(text))
    console = HarmlessConsole(file=out, width=100)
    console.print(table, text, markup=False)
    return out.getvalue()


def said(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    say(text)
    return out.getvalue()


def complained(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    complain(text)
    return err.getvalue()


def unforeseen(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    tame_tracebacks()
    sys.excepthook(ValueError, ValueError(text), None)
    return err.getvalue()


def logged(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    tame_tracebacks()
    assert logging.lastResort is not None
    return logging.lastResort.format(logging.LogRecord("swarm", logging.WARNING, "", 0, "%s", (text,), None))


def blamed(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    return str(PeerError(Fault.MALFORMED, text))


SINKS: list[Callable[[pytest.MonkeyPatch, str], str]] = [
    on_terminal, on_console, said, complained, unforeseen, logged, blamed,
]  # fmt: skip


@pytest.mark.parametrize("text", [POISON, LONG], ids=["short", "long"])
@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_writes_out_what_a_terminal_would_obey(
    monkeypatch: pytest.MonkeyPatch, sink: Callable[[pytest.MonkeyPatch, str], str], text: str
) -> None:
    shown = sink(monkeypatch, text)
    require_harmless(shown)  # rich leaves some out, such as a bell
    assert "\\x1b]0;owned" in shown.replace("\n", "")


@pytest.mark.parametrize("text", [POISON, LONG], ids=["short", "long"])
def test_a_name_leaves_it_out_so_that_names_that_look_alike_are_one(text: str) -> None:
    shown = plain_name(text, 200)
    require_harmless(shown)
    assert shown.startswith("]0;owned")
    assert plain_name("bob\x1b") == plain_name("bob\u200b") == "bob"


def test_our_own_colours_reach_the_terminal() -> None:
    out = io.StringIO()
    HarmlessConsole(file=out, force_terminal=True, color_system="standard", width=40).print("[red]ours[/red]")
    assert "\x1b[31mours\x1b[0m" in out.getvalue()


def test_an_event_is_one_line_of_ascii(tmp_path: Path) -> None:
    events = EventLog(tmp_path / "events.jsonl")
    events.emit("peer_joined", name=LONG + "\u2028\n")
    events.close()
    raw = (tmp_path / "events.jsonl").read_bytes()
    require_harmless(raw.decode("ascii"))
    assert raw.count(b"\n") == 1
    assert json.loads(raw)["name"].startswith(POISON)


OWN_OUTPUT = {
    "node/runtime/stdout.py",  # the one place that writes to standard output
    "node/learner_role/metrics/catalogue.py",  # writes a page of the documentation
    "node/verifiers/episodes.py",  # part of a verifier's program, whose standard error the node reads
}
CHILDREN = ("_program.py", "_child.py")
"""Programs of their own, whose output another process reads."""


def test_nothing_else_writes_to_a_terminal() -> None:
    """No `print` to standard output, no `echo`, no console of rich's own in the node's modules."""
    found = set()
    for file in sorted((ROOT / "node").rglob("*.py")):
        place = file.relative_to(ROOT).as_posix()
        if place in OWN_OUTPUT or place.endswith(CHILDREN) or "_worker/" in place:
            continue
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func)
            if name in ("print", "typer.echo", "Console", "rich.console.Console", "click.echo"):
                found.add(f"{place}: {ast.unparse(call)[:80]}")
    ours = "Stopped. Nothing was started", "Making a trial of the run"
    assert {line for line in found if not any(one in line for one in ours)} == set()


def invite_of(swarm: SwarmId, operator: bytes, addresses: list[str], name: str) -> str:
    """Return an invite as an attacker writes it: with a name that our own program would make harmless."""
    invite = Invite(operator=operator, swarm=swarm, addresses=addresses)
    msgspec.structs.force_setattr(invite, "name", name)
    return write_invite(invite)


async def test_a_hostile_learner_does_nothing_to_a_volunteers_terminal(tmp_path: Path) -> None:
    """A real `volery join` meets a learner whose swarm's name and answer would clear the screen."""
    swarm = small_swarm()
    name = POISON[:MAX_NAME_CHARS]
    word = {"protocol": 1, "name": name, "operator": swarm.operator.public, "created_ms": 1, "nonce": bytes(16)}
    genesis = seal(swarm.operator, NO_SWARM, Kind.GENESIS, msgspec.msgpack.encode(word))

    async def joined(invite: str) -> str:
        program = "import sys; sys.argv = ['volery', *sys.argv[1:]]; from node.cli.main import main; main()"
        command = [sys.executable, "-c", program, "join", invite, "--state", str(tmp_path / "node"), "--plain"]
        ended = await trio.run_process(
            [*command, "--no-listen", "--wait", "5"], capture_stdout=True, stderr=subprocess.STDOUT, check=False,
            cwd=ROOT,
        )  # fmt: skip
        assert ended.returncode in (1, 2), ended.stdout
        text: str = ended.stdout.decode()
        return text

    with ChunkStore.open(tmp_path / "store", swarm.authority) as store:
        async with open_libp2p(swarm.learner.seed, ["/ip4/127.0.0.1/tcp/0"], []) as transport:
            knowledge = Knowledge(genesis=genesis, newest=lambda: None, peers=list, terms=refuse)
            Serving(transport=transport, store=store, knowledge=knowledge).start()
            own = SwarmId(digest_of(genesis))
            said_by_learner = await joined(invite_of(own, swarm.operator.public, transport.addresses(), name))
            other = await joined(invite_of(SwarmId(bytes(32)), swarm.operator.public, transport.addresses(), name))
    for told in (said_by_learner, other):
        require_harmless(told)
        assert "\\x1b" in told
    assert "The learner refused this node" in said_by_learner
    assert "another swarm" in other


class Poisoned(msgspec.Struct, frozen=True, tag="not-told"):
    """NotTold as an attacker sends it."""

    reason: str


def refuse(token: str) -> Poisoned:
    return Poisoned(reason=POISON)
