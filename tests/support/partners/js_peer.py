"""Run a peer of js-libp2p: `js/peer.mjs` as a process on loopback, with orders to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from protocol.core.ids import PeerId
from swarm.libp2p.security import Identity
from tests.support.partners.programs import JS_PACKAGES, NODE

PROGRAM = Path(__file__).parent / "js/peer.mjs"

PUBLIC = "127.0.0.2"
"""An address of loopback that this peer takes for a public one: it punches and dials back no others."""

ANSWER_S = 120.0
"""Seconds for an order to be carried out: orders give up after 20 s themselves, which takes longer on a
busy machine."""


class JsError(Exception):
    """The reason of js-libp2p why it did not do something."""


@dataclass(kw_only=True)
class JsPeer:
    """A running process, and the orders to it."""

    process: trio.Process
    peer: PeerId
    addresses: list[str] = field(default_factory=list)
    """Its addresses at the start, with its name at the end."""
    protocols: list[str] = field(default_factory=list)
    _unread: bytearray = field(default_factory=bytearray)

    async def order(self, do: str, **about: object) -> Any:
        """Have it do something; the program lists the orders. Raises JsError."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(json.dumps({"do": do, **about}).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        """Return the result of the last order."""
        with trio.fail_after(ANSWER_S):
            answer = json.loads(await self._line())
        if "error" in answer:
            raise JsError(answer["error"])
        return answer["ok"]

    async def _line(self) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            piece = await self.process.stdout.receive_some()
            assert piece, "js-libp2p ended without an answer"
            self._unread += piece
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread[:] = rest
        return line


def js_name(seed: int) -> PeerId:
    """Return the name of the peer that `js_peer` will be."""
    return Identity.from_seed(bytes([seed]) * 32).peer_id


@asynccontextmanager
async def js_peer(
    seed: int,
    *,
    relays: Sequence[str] = (),
    security: Sequence[str] = ("noise", "tls"),
    public: bool = False,
    punches: bool = False,
    limits: bool = True,
) -> AsyncIterator[JsPeer]:
    """Run a process that ends with the scope.

    Args:
        seed: seed of its key.
        relays: addresses of peers to be reached through. Without any it is a relay itself.
        security: its security protocols, the preferred one first.
        public: whether it listens on PUBLIC.
        punches: whether it speaks DCUtR, and claims to be seen where it listens on PUBLIC.
        limits: whether circuits through it are limited.
    """
    settings = {
        "seed": seed,
        "relays": list(relays),
        "security": list(security),
        "public": public,
        "punches": punches,
        "limits": limits,
    }
    # A program given as text finds its imports from the directory in which it is started.
    command = [str(NODE), "--input-type=module", "--eval", PROGRAM.read_text(encoding="utf-8"), json.dumps(settings)]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr, cwd=JS_PACKAGES
    )
    try:
        peer = JsPeer(process=process, peer=js_name(seed))
        info = await peer.answer()
        assert info["peer"] == peer.peer
        peer.addresses, peer.protocols = info["addresses"], info["protocols"]
        yield peer
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
