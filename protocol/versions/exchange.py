"""Define the messages that move chunks (HAVE, REQUEST, CHUNK, CANCEL, BUSY), and the questions that repair gossip.

There are three stream protocols, each a sequence of frames (u32 big-endian length, then one message):

* `ASK`: one question, one answer, any number of times on one stream.
* `EXCHANGE` (control): the opener says which manifest it wants. The server answers which of its chunks it holds, and
  reports each one that it gains, until the opener wants another manifest or either side closes. A server that does not
  know the manifest yet holds none of its chunks; one that scatters shows less than it holds.
* `CHUNKS` (data): the opener requests chunks, several at a time if it likes. Each request is answered once, in any
  order, by the chunk, by BUSY or by MISSING. Control and data are separate streams so that a HAVE never waits behind a
  chunk.

Invariants:

- A chunk is named by its content id alone, so a node can serve it to any peer, for any version.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.core.codec import Address, Bytes32, Bytes36, Count, Message, Millis, Name, PeerText, Reason, encode
from protocol.core.envelope import OVERHEAD_BYTES
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, MAX_GENESIS_BYTES
from protocol.core.ids import CID_BYTES, Cid
from protocol.core.limits import (
    MANIFEST_PIECE_BYTES,
    MAX_ADDRESSES,
    MAX_ANNOUNCEMENT_BYTES,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_PEERS_TOLD,
    MAX_STALENESS,
    MAX_TASKS_TOLD,
    MAX_TOKEN_CHARS,
)

ASK = "/volery/ask/1"
EXCHANGE = "/volery/exchange/1"
CHUNKS = "/volery/chunks/1"

COMPUTE_DTYPE = "volery.compute-dtype"
"""The extension for the number format that an engine computes in ("float32", or "auto" for that of the weights). In
Hello, the rollout node names its own. In TellTerms, the learner lists those that it accepts, separated by commas; if it
is absent, it accepts all."""
TERMS = "volery.terms"
"""An empty extension of TellGenesis: the learner answers AskTerms."""

ChunkIndex = Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]

MAX_ANSWER_BYTES = MANIFEST_PIECE_BYTES + OVERHEAD_BYTES
MAX_HAVE_BYTES = MAX_CHUNKS // 8 + 1024
MAX_CHUNK_FRAME_BYTES = MAX_CHUNK_BYTES + 1024


class AskGenesis(Message, frozen=True, kw_only=True, tag="genesis?"):
    """Asks which swarm this is. Answered by TellGenesis."""


class AskNewest(Message, frozen=True, kw_only=True, tag="newest?"):
    """Asks which version is newest. Answered by TellNewest."""


class AskManifest(Message, frozen=True, kw_only=True, tag="manifest?"):
    """Asks for the manifest with this hash, from byte `offset` of its envelope on.

    Answered by TellManifest, or by NotHeld if it is not here or its envelope ends before `offset`.
    """

    manifest: Bytes32
    offset: Count = 0


class AskPeers(Message, frozen=True, kw_only=True, tag="peers?"):
    """Asks which peers the node is connected to. Answered by TellPeers."""


class AskTerms(Message, frozen=True, kw_only=True, tag="terms?"):
    """Asks what a node that joins would have to do. Answered by TellTerms or NotTold; a node that is no learner answers
    NotHeld.

    Sent only to a server whose TellGenesis has the extension TERMS. `token` is the join token of the invite, if any.
    """

    token: Annotated[str, Meta(max_length=MAX_TOKEN_CHARS)] = ""


class TellGenesis(Message, frozen=True, kw_only=True, tag="genesis"):
    """The signed genesis."""

    genesis: Annotated[bytes, Meta(max_length=MAX_GENESIS_BYTES + OVERHEAD_BYTES)]


class TellNewest(Message, frozen=True, kw_only=True, tag="newest"):
    """The newest announcement known, as the learner signed it; empty if none is known."""

    announcement: Annotated[bytes, Meta(max_length=MAX_ANNOUNCEMENT_BYTES)] = b""


class TellManifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """The manifest's envelope, as signed, or a piece of it; then `total` is the size of the whole in bytes.

    `protocol.versions.manifest_pieces` cuts and collects the pieces.
    """

    manifest: Annotated[bytes, Meta(max_length=MANIFEST_PIECE_BYTES)]
    total: Count = 0


class PeerAddresses(Message, frozen=True, kw_only=True):
    """A peer and the addresses at which it can be dialled; none if it can only dial out.

    The list is not verified: only dialling proves that the peer is there.
    """

    peer: PeerText
    addresses: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)] = msgspec.field(default_factory=list)


class TellPeers(Message, frozen=True, kw_only=True, tag="peers"):
    """Peers that the answering node is connected to."""

    peers: Annotated[list[PeerAddresses], Meta(max_length=MAX_PEERS_TOLD)] = msgspec.field(default_factory=list)


class TaskTerms(Message, frozen=True, kw_only=True):
    """One task: its name in leases, its share of the prompts, and a sentence about it."""

    name: Name
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    about: Reason = ""


class TellTerms(Message, frozen=True, kw_only=True, tag="terms"):
    """The current terms for nodes that join. They are claims, for people who decide whether to join.

    `certificate` is the operator's statement that the answering node is the learner; the asker checks it. `model` is
    the operator's name for the model. `step` of `steps` training steps are done. `staleness` is the window S. A prompt
    has `group_size` completions of at most `max_new_tokens` tokens, and an episode at most `max_turns` turns. `now_ms`
    is the time on the learner's clock, 0 if it is not given.
    """

    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]
    model: Name = ""
    tasks: Annotated[list[TaskTerms], Meta(max_length=MAX_TASKS_TOLD)] = msgspec.field(default_factory=list)
    step: Count = 0
    steps: Count = 0
    staleness: Annotated[int, Meta(ge=0, le=MAX_STALENESS)] = 0
    group_size: Count = 0
    max_new_tokens: Count = 0
    max_turns: Count = 0
    now_ms: Millis = 0


class NotTold(Message, frozen=True, kw_only=True, tag="not-told"):
    """Refuses an answer, with the reason: for example, the join token is missing."""

    reason: Reason


class NotHeld(Message, frozen=True, kw_only=True, tag="not-held"):
    """Says that the node does not have what was asked for."""


Question = AskGenesis | AskNewest | AskManifest | AskPeers | AskTerms
Answer = TellGenesis | TellNewest | TellManifest | TellPeers | TellTerms | NotTold | NotHeld


class Want(Message, frozen=True, kw_only=True, tag="want"):
    """Opener of EXCHANGE, at any time: asks which of this manifest's chunks the server holds, now and as it changes.

    With `everything`, the server also names chunks that the opener holds itself: the opener scatters, and tracks where
    chunks are. A Want replaces an earlier one.
    """

    manifest: Bytes32
    everything: bool = False


class Have(Message, frozen=True, kw_only=True, tag="have"):
    """Server: the chunks of `manifest` that it shows as held, as a bitmap of the chunk table.

    Chunk i is bit i % 8 of byte i // 8, where bit 0 is the least significant. A later Have replaces the earlier one.
    Bytes left out at the end are zero, as are bits beyond the table.
    """

    manifest: Bytes32
    bitmap: Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8 + 1)]


class Gained(Message, frozen=True, kw_only=True, tag="gained"):
    """Server: the chunks (indices into the chunk table of the last Have's manifest) that arrived since then."""

    chunks: Annotated[list[ChunkIndex], Meta(max_length=4096)]


ExchangeFrame = Have | Gained


class Request(Message, frozen=True, kw_only=True, tag="request"):
    """Opener of CHUNKS: asks for this chunk."""

    cid: Bytes36


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Opener of CHUNKS: cancels a request, because the chunk is no longer needed or another peer is asked for it.

    A server that has not begun to send the chunk answers the Request with Missing; one that has begun finishes. Every
    Request gets exactly one answer; a Cancel gets none of its own.
    """

    cid: Bytes36


class Chunk(Message, frozen=True, kw_only=True, tag="chunk"):
    """Server: the bytes of a chunk.

    The receiver verifies them against the content id before it stores, announces or relays them.
    """

    cid: Bytes36
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


def chunk_head(cid: Cid, size: int) -> bytes:
    """Return the encoding of a Chunk up to its data. It is sent before the `size` bytes, which need no copy then."""
    mark, num_bytes = next(known for limit, known in _BIN_MARKS if size < limit)
    return _CHUNK_START + cid + _DATA_START + mark + size.to_bytes(num_bytes, "big")


def split_chunk(body: bytes) -> tuple[Cid, memoryview] | None:
    """Return content id and data of a Chunk in our own encoding, without a copy; None if `body` is anything else."""
    end = len(_CHUNK_START) + CID_BYTES
    start = end + len(_DATA_START) + 5
    if not body.startswith(_CHUNK_START) or body[end : start - 4] != _DATA_START + _BIN32:
        return None
    if not len(body) - start == int.from_bytes(body[start - 4 : start], "big") <= MAX_CHUNK_BYTES:
        return None
    return Cid(body[end - CID_BYTES : end]), memoryview(body)[start:]


class Busy(Message, frozen=True, kw_only=True, tag="busy"):
    """Server: it holds the chunk, but too many uploads are running. Ask elsewhere, or again after `retry_after_ms`."""

    cid: Bytes36
    retry_after_ms: Annotated[int, Meta(ge=0, le=60_000)]


class Missing(Message, frozen=True, kw_only=True, tag="missing"):
    """Server: it does not hold the chunk, or does not send it because of a Cancel."""

    cid: Bytes36


ChunkRequest = Request | Cancel
ChunkAnswer = Chunk | Busy | Missing

_BIN32 = b"\xc6"
"""MessagePack's mark of bytes with a 32-bit length, which most chunks need."""

_BIN_MARKS = ((1 << 8, (b"\xc4", 1)), (1 << 16, (b"\xc5", 2)), (1 << 32, (_BIN32, 4)))
"""For data below each size in bytes: MessagePack's mark, and how many bytes its length takes."""

_CHUNK_START, _DATA_START = encode(Chunk(cid=bytes(CID_BYTES), data=bytes(1 << 16)))[: -(1 << 16) - 5].split(
    bytes(CID_BYTES)
)
"""The encoded bytes before the content id, and those between it and the length of the data."""
