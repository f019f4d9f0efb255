"""How chunks are asked for and given: HAVE, REQUEST, CHUNK, CANCEL, BUSY, and the asking that repairs gossip.

Three stream protocols, each a sequence of frames (u32 big-endian length, then one message):

* `ASK`: one question, one answer, any number of times on one stream.
* `EXCHANGE` (control): the opener says which manifest it wants; the server answers with what it holds of it and goes
  on saying what it gains, until the opener wants another or either side closes. A server that has not heard of the
  manifest yet holds nothing of it; one that scatters shows less than it holds.
* `CHUNKS` (data): the opener requests chunks, several at a time if it likes; each request is answered once, in any
  order, by the chunk, by BUSY or by MISSING. Control and data are separate streams so that a HAVE never waits behind a
  chunk.

What always holds: a chunk is named by its content id alone, so it can be served to anyone whatever version it belongs
to.
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
"""The extension of Hello by which a rollout node names the number format that its engine computes in ("float32", or
"auto" for that of the weights), and of TellTerms by which a learner says which of these it takes, with commas between;
absent, it takes all."""
TERMS = "volery.terms"
"""The extension of TellGenesis, empty, by which a learner says that it answers AskTerms."""

ChunkIndex = Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]

MAX_ANSWER_BYTES = MANIFEST_PIECE_BYTES + OVERHEAD_BYTES
MAX_HAVE_BYTES = MAX_CHUNKS // 8 + 1024
MAX_CHUNK_FRAME_BYTES = MAX_CHUNK_BYTES + 1024


class AskGenesis(Message, frozen=True, kw_only=True, tag="genesis?"):
    """Which swarm is this? Answered by TellGenesis."""


class AskNewest(Message, frozen=True, kw_only=True, tag="newest?"):
    """Which version is newest? Answered by TellNewest."""


class AskManifest(Message, frozen=True, kw_only=True, tag="manifest?"):
    """The manifest with this hash, please, from byte `offset` of its envelope on.

    Answered by TellManifest, or NotHeld: also when the envelope ends before `offset`.
    """

    manifest: Bytes32
    offset: Count = 0


class AskPeers(Message, frozen=True, kw_only=True, tag="peers?"):
    """Whom do you know? Answered by TellPeers."""


class AskTerms(Message, frozen=True, kw_only=True, tag="terms?"):
    """What would a node that joins be asked to do? Answered by TellTerms, or NotTold; NotHeld by who is no learner.

    Only to a server whose TellGenesis has the extension TERMS. `token` is the join token of the invite, if it had one.
    """

    token: Annotated[str, Meta(max_length=MAX_TOKEN_CHARS)] = ""


class TellGenesis(Message, frozen=True, kw_only=True, tag="genesis"):
    """The signed genesis."""

    genesis: Annotated[bytes, Meta(max_length=MAX_GENESIS_BYTES + OVERHEAD_BYTES)]


class TellNewest(Message, frozen=True, kw_only=True, tag="newest"):
    """The newest announcement known, as its learner signed it; empty when none is."""

    announcement: Annotated[bytes, Meta(max_length=MAX_ANNOUNCEMENT_BYTES)] = b""


class TellManifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """The manifest's envelope, as signed, or a piece of it: then `total` bytes are the whole.

    Cutting and collecting is in `protocol.versions.manifest_pieces`.
    """

    manifest: Annotated[bytes, Meta(max_length=MANIFEST_PIECE_BYTES)]
    total: Count = 0


class PeerAddresses(Message, frozen=True, kw_only=True):
    """A peer and the addresses it may be dialled at; none when it can only dial out.

    Hearsay: dialling proves the peer.
    """

    peer: PeerText
    addresses: Annotated[list[Address], Meta(max_length=MAX_ADDRESSES)] = msgspec.field(default_factory=list)


class TellPeers(Message, frozen=True, kw_only=True, tag="peers"):
    """Peers that the answering node is connected to."""

    peers: Annotated[list[PeerAddresses], Meta(max_length=MAX_PEERS_TOLD)] = msgspec.field(default_factory=list)


class TaskTerms(Message, frozen=True, kw_only=True):
    """One task of the prompts: what leases call it, its share of them, and what it is, in a sentence."""

    name: Name
    share: Annotated[float, Meta(ge=0, le=1)] = 1.0
    about: Reason = ""


class TellTerms(Message, frozen=True, kw_only=True, tag="terms"):
    """What the learner asks of whoever joins, as it is now: claims, for people who decide.

    `certificate`: the operator's word that who answers is the learner, which the asker checks. `model` is what the
    operator calls it; `step` of `steps` are done; S = `staleness`; a prompt has `group_size` completions of
    `max_new_tokens` at most, and an episode `max_turns`. `now_ms` is the learner's clock, 0 if it is not told.
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
    """You are not told, and why: for want of the join token, for example."""

    reason: Reason


class NotHeld(Message, frozen=True, kw_only=True, tag="not-held"):
    """What you asked for is not here."""


Question = AskGenesis | AskNewest | AskManifest | AskPeers | AskTerms
Answer = TellGenesis | TellNewest | TellManifest | TellPeers | TellTerms | NotTold | NotHeld


class Want(Message, frozen=True, kw_only=True, tag="want"):
    """Opener of EXCHANGE, at any time: tell me what you hold of this manifest's chunks, now and as it changes.

    With `everything` also of what the opener holds itself: it scatters, and follows where chunks are. Replaces an
    earlier Want.
    """

    manifest: Bytes32
    everything: bool = False


class Have(Message, frozen=True, kw_only=True, tag="have"):
    """Server: what it shows that it holds of `manifest`, a bitmap of its chunk table.

    Bit i of byte i // 8, least significant first, is chunk i. A later Have replaces the earlier one. Bytes left out at
    the end are zero, as are bits beyond the table.
    """

    manifest: Bytes32
    bitmap: Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8 + 1)]


class Gained(Message, frozen=True, kw_only=True, tag="gained"):
    """Server: these chunks (indices into the chunk table of the last Have's manifest) arrived since then."""

    chunks: Annotated[list[ChunkIndex], Meta(max_length=4096)]


ExchangeFrame = Have | Gained


class Request(Message, frozen=True, kw_only=True, tag="request"):
    """Opener of CHUNKS: this chunk, please."""

    cid: Bytes36


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Opener of CHUNKS: this chunk is no longer needed, or rather asked of somebody else.

    A server that has not begun to send it answers its Request by Missing, one that has goes on. Every Request gets
    exactly one answer, a Cancel none of its own.
    """

    cid: Bytes36


class Chunk(Message, frozen=True, kw_only=True, tag="chunk"):
    """Server: the bytes.

    The receiver verifies them against the content id before it stores, announces or relays them.
    """

    cid: Bytes36
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


def chunk_head(cid: Cid, size: int) -> bytes:
    """The encoding of a Chunk up to its data: what is sent before `size` bytes that need not be copied for it."""
    mark, num_bytes = next(known for limit, known in _BIN_MARKS if size < limit)
    return _CHUNK_START + cid + _DATA_START + mark + size.to_bytes(num_bytes, "big")


def split_chunk(body: bytes) -> tuple[Cid, memoryview] | None:
    """Content id and data of a Chunk that was encoded as we do it, without a copy; None for whatever else `body` is."""
    end = len(_CHUNK_START) + CID_BYTES
    start = end + len(_DATA_START) + 5
    if not body.startswith(_CHUNK_START) or body[end : start - 4] != _DATA_START + _BIN32:
        return None
    if not len(body) - start == int.from_bytes(body[start - 4 : start], "big") <= MAX_CHUNK_BYTES:
        return None
    return Cid(body[end - CID_BYTES : end]), memoryview(body)[start:]


class Busy(Message, frozen=True, kw_only=True, tag="busy"):
    """Server: held, but too many uploads are under way; ask elsewhere, or again after `retry_after_ms`."""

    cid: Bytes36
    retry_after_ms: Annotated[int, Meta(ge=0, le=60_000)]


class Missing(Message, frozen=True, kw_only=True, tag="missing"):
    """Server: not held, or given back after a Cancel."""

    cid: Bytes36


ChunkRequest = Request | Cancel
ChunkAnswer = Chunk | Busy | Missing

_BIN32 = b"\xc6"
"""MessagePack's mark of bytes whose number takes 32 bits, as that of most chunks does."""

_BIN_MARKS = ((1 << 8, (b"\xc4", 1)), (1 << 16, (b"\xc5", 2)), (1 << 32, (_BIN32, 4)))
"""Below so many bytes, the mark before them, and how many bytes their number takes."""

_CHUNK_START, _DATA_START = encode(Chunk(cid=bytes(CID_BYTES), data=bytes(1 << 16)))[: -(1 << 16) - 5].split(
    bytes(CID_BYTES)
)
"""What stands before the content id, and between it and the data."""
