"""Ask peers one question, or for a manifest, which may need several answers and several peers.

`swarm.versions.manifest_inquiry` decides which peer to ask, and when to ask another as well.

Invariants:

- Every answer has a deadline.
- A manifest comes whole from one peer, over one stream. So a defect is the fault of that peer; if the manifest has the
  requested hash, it is the fault of its signer.
- A peer that lied about a manifest is not asked for it again. A peer that failed to deliver is asked last from then on.
- A manifest is checked on a worker thread.

Loops: `ManifestSearch.find` is woken when a peer ends, and when no peer keeps up any more. One task for each asked peer
consumes its pieces.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import ManifestHash, PeerId
from protocol.core.limits import MANIFEST_PIECE_BYTES
from protocol.versions import exchange
from protocol.versions.manifest import SignedManifest, open_manifest
from protocol.versions.manifest_pieces import ManifestPieces
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import Report, StreamBroken, StreamRefused, Transport
from swarm.versions.manifest_inquiry import (
    MANIFEST_TIMEOUT_S,
    Ask,
    Ended,
    Event,
    Heard,
    Leave,
    ManifestInquiry,
    PieceCame,
    Tick,
    WholeCame,
)

ASK_TIMEOUT_S = 20.0
"""Seconds to wait for one answer: a piece of 4 MiB at 1.7 Mbit/s."""

MAX_LIES = 256
"""Number of remembered lies; then all are forgotten. Honest peers tell none, and one version is fetched at a time."""


async def ask(
    transport: Transport, peer: PeerId, question: exchange.Question, *, timeout_s: float = ASK_TIMEOUT_S
) -> exchange.Answer | None:
    """Ask `peer` one question and return the answer, or None if the peer closed the stream without one.

    Raises StreamRefused, StreamBroken, PeerError, or trio.TooSlowError after `timeout_s`.
    """
    with trio.fail_after(timeout_s):
        stream = await transport.open_stream(peer, exchange.ASK)
        async with open_frames(stream, exchange.MAX_ANSWER_BYTES) as frames:
            return await _answer(frames, question)


async def _answer(frames: FrameStream, question: exchange.Question) -> exchange.Answer | None:
    await frames.send(question)
    answer: exchange.Answer | None = await frames.receive(exchange.Answer)
    return answer


@dataclass(kw_only=True, eq=False)
class _Asked:
    """One peer that is being asked."""

    pieces: ManifestPieces
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    frames: FrameStream | None = None

    @property
    def received_bytes(self) -> int:
        return 0 if self.frames is None else self.frames.received_bytes


class _WrongManifest(Exception):
    """The bytes have the requested hash, but their signer made a wrong manifest."""

    def __init__(self, error: PeerError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(kw_only=True)
class ManifestSearch:
    """Searches manifests among the connected peers.

    Args:
        report: function that is called with peers' faults.
        rng: random generator that orders the peers.
        piece_bytes: size of a piece of a manifest in bytes, the same for all nodes of the swarm.
    """

    transport: Transport
    authority: Authority
    report: Report
    rng: random.Random = field(default_factory=random.Random)
    piece_bytes: int = MANIFEST_PIECE_BYTES
    _lied: set[tuple[PeerId, ManifestHash]] = field(default_factory=set)
    _let_down: Counter[PeerId] = field(default_factory=Counter)

    async def find(
        self,
        manifest: ManifestHash,
        *,
        size_bytes: int | None = None,
        in_a_hurry: Callable[[], bool] = lambda: False,
    ) -> SignedManifest | None:
        """Ask the connected peers, including those that connect meanwhile, until one has the manifest.

        Returns None if no peer has it. If `in_a_hurry` returns True, also as soon as no peer keeps up. `size_bytes` is
        the announced size of the manifest's envelope. Raises PeerError if its signer is at fault.
        """
        asking = _Asking(search=self, manifest=manifest, size_bytes=size_bytes)
        async with trio.open_nursery() as nursery:
            await asking.run(nursery, in_a_hurry)
            for peer in asking.core.late(trio.current_time()):
                self.note_no_answer(peer)
            nursery.cancel_scope.cancel()
        if asking.wrong is not None:
            raise asking.wrong
        return asking.found

    def candidates(self, manifest: ManifestHash) -> list[PeerId]:
        """Return the peers to ask, the best first."""
        peers = sorted(peer for peer in self.transport.connected_peers() if (peer, manifest) not in self._lied)
        self.rng.shuffle(peers)
        return sorted(peers, key=lambda peer: self._let_down[peer])

    def blame(self, peer: PeerId, manifest: ManifestHash, error: PeerError) -> None:
        """Note and report that `peer` broke the protocol when asked for `manifest`."""
        if len(self._lied) >= MAX_LIES:
            self._lied.clear()
        self._lied.add((peer, manifest))
        self.note_no_answer(peer)
        self.report(peer, error.fault, error.detail)

    def note_no_answer(self, peer: PeerId) -> None:
        """Note that `peer` did not deliver in time."""
        for gone in self._let_down.keys() - self.transport.connected_peers():
            del self._let_down[gone]
        self._let_down[peer] += 1

    def note_success(self, peer: PeerId) -> None:
        """Note that `peer` delivered a manifest."""
        del self._let_down[peer]


@dataclass(kw_only=True)
class _Asking:
    """One search for one manifest."""

    search: ManifestSearch
    manifest: ManifestHash
    size_bytes: int | None
    found: SignedManifest | None = None
    wrong: PeerError | None = None
    core: ManifestInquiry = field(init=False)
    asked: dict[PeerId, _Asked] = field(default_factory=dict)
    wake: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        self.core = ManifestInquiry(piece_bytes=self.search.piece_bytes)

    async def run(self, nursery: trio.Nursery, in_a_hurry: Callable[[], bool]) -> None:
        """Ask until there is an answer, or no peer is left that might have one."""
        while self.found is None and self.wrong is None:
            self.wake = trio.Event()  # set by each task that ends
            for peer, asked in self.asked.items():
                self._handle(Heard(peer=peer, size_bytes=asked.received_bytes), nursery)
            self._handle(Tick(present=self.search.candidates(self.manifest)), nursery)
            now = trio.current_time()
            keeping_up = self.core.next_at > now
            if not self.core.waiting or (not keeping_up and in_a_hurry()):
                return
            # If no peer keeps up, all were asked. Look again a little later, because others may connect.
            with trio.move_on_at(self.core.next_at if keeping_up else now + MANIFEST_TIMEOUT_S):
                await self.wake.wait()

    def _handle(self, event: Event, nursery: trio.Nursery) -> None:
        for effect in self.core.handle(event, trio.current_time()):
            match effect:
                case Ask(peer=peer):
                    pieces = ManifestPieces(
                        self.manifest, size_bytes=self.size_bytes, piece_bytes=self.search.piece_bytes
                    )
                    self.asked[peer] = _Asked(pieces=pieces)
                    nursery.start_soon(self._ask_one, peer, self.asked[peer], nursery)
                case Leave(peer=peer):
                    self.search.note_no_answer(peer)
                    self.asked[peer].scope.cancel()

    async def _ask_one(self, peer: PeerId, asked: _Asked, nursery: trio.Nursery) -> None:
        with asked.scope:
            try:
                if (found := await self._fetch(peer, asked, nursery)) is not None:
                    self.found = found
                    self.search.note_success(peer)
            except PeerError as error:
                self.search.blame(peer, self.manifest, error)
            except _WrongManifest as wrong:
                self.wrong = wrong.error
            except (StreamBroken, trio.TooSlowError):
                self.search.note_no_answer(peer)
            except StreamRefused:
                pass
        del self.asked[peer]
        self._handle(Ended(peer=peer), nursery)
        self.wake.set()

    async def _fetch(self, peer: PeerId, asked: _Asked, nursery: trio.Nursery) -> SignedManifest | None:
        """Return the manifest from `peer`, or None if the peer does not have it, or no longer."""
        with trio.fail_after(ASK_TIMEOUT_S) as time_limit:
            stream = await self.search.transport.open_stream(peer, exchange.ASK)
            async with open_frames(stream, exchange.MAX_ANSWER_BYTES) as frames:
                asked.frames = frames
                while (question := asked.pieces.question) is not None:
                    match await _answer(frames, question):
                        case exchange.TellManifest() as answer:
                            asked.pieces.take(answer)
                        case exchange.NotHeld() | None:
                            return None
                        case other:
                            raise PeerError(
                                Fault.BROKEN_PROMISE, f"answered a request for a manifest with {type(other).__name__}"
                            )
                    if asked.pieces.question is not None:
                        time_limit.deadline = trio.current_time() + ASK_TIMEOUT_S
                        self._handle(Heard(peer=peer, size_bytes=frames.received_bytes), nursery)
                        self._handle(PieceCame(peer=peer), nursery)
        self._handle(WholeCame(peer=peer), nursery)
        return await trio.to_thread.run_sync(_checked, asked.pieces, self.search.authority)


def _checked(pieces: ManifestPieces, authority: Authority) -> SignedManifest:
    """Return the checked manifest. Runs on a worker thread, because 500,000 chunks take 0.6 s.

    Raises PeerError if the peer lied, and _WrongManifest if the signer made an error.
    """
    raw = pieces.whole()
    try:
        return open_manifest(raw, authority)
    except PeerError as error:
        raise _WrongManifest(error) from error
