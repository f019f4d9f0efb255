"""The messages by which chunks travel: closed unions, told apart by tag, each within the bound of its stream."""

from __future__ import annotations

import os
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import work
from protocol.core.codec import decode, encode
from protocol.core.digest import cid_of
from protocol.core.errors import PeerError
from protocol.core.ids import Cid
from protocol.core.limits import (
    MANIFEST_PIECE_BYTES,
    MAX_ADDRESS_CHARS,
    MAX_ADDRESSES,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_PEERS_TOLD,
    MAX_REQUEST_BYTES,
)
from protocol.versions import exchange
from protocol.versions.exchange import (
    MAX_ANSWER_BYTES,
    MAX_CHUNK_FRAME_BYTES,
    MAX_HAVE_BYTES,
    Answer,
    Busy,
    Cancel,
    Chunk,
    ChunkAnswer,
    ChunkRequest,
    ExchangeFrame,
    Gained,
    Have,
    Missing,
    NotHeld,
    PeerAddresses,
    Question,
    Request,
    TellManifest,
    TellPeers,
    Want,
    chunk_head,
    split_chunk,
)

PEER = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
UNIONS = {
    "Question": Question,
    "Answer": Answer,
    "ExchangeFrame": ExchangeFrame,
    "ChunkRequest": ChunkRequest,
    "ChunkAnswer": ChunkAnswer,
    "FromNode": work.FromNode,
    "FromLearner": work.FromLearner,
}


def test_stream_names() -> None:
    names = [exchange.ASK, exchange.EXCHANGE, exchange.CHUNKS, work.WORK]
    assert names == ["/volery/ask/1", "/volery/exchange/1", "/volery/chunks/1", "/volery/work/1"]


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS.keys())
def test_a_frame_is_read_by_its_tag(union: Any) -> None:
    """With every field missing, the error still names the right class's first field, or there is none to miss."""
    for cls in get_args(union):
        raw = msgspec.msgpack.encode({"type": cls.__struct_config__.tag})
        if any(field.required for field in msgspec.structs.fields(cls)):
            with pytest.raises(PeerError, match="missing required field"):
                decode(union, raw, 100)
        else:
            assert type(decode(union, raw, 100)) is cls


@pytest.mark.parametrize("union", UNIONS.values(), ids=UNIONS.keys())
def test_an_unknown_frame_is_refused(union: Any) -> None:
    for raw in (b"\x80", msgspec.msgpack.encode({"type": "sonnet"}), msgspec.msgpack.encode({"type": 1})):
        with pytest.raises(PeerError):
            decode(union, raw, 100)


def test_questions_answers_and_frames_of_other_streams_are_told_apart() -> None:
    cid = cid_of(b"x")
    assert decode(ChunkRequest, encode(Request(cid=cid)), 100) == Request(cid=cid)
    assert decode(ChunkRequest, encode(Cancel(cid=cid)), 100) == Cancel(cid=cid)
    for answer in (Chunk(cid=cid, data=b"x"), Busy(cid=cid, retry_after_ms=1), Missing(cid=cid)):
        assert decode(ChunkAnswer, encode(answer), 200) == answer
        with pytest.raises(PeerError):
            decode(ChunkRequest, encode(answer), 200)
    with pytest.raises(PeerError):
        decode(Question, encode(NotHeld()), 100)


def test_what_may_be_said_fits_its_stream() -> None:
    """The frame limits leave room for the largest message that the fields' own bounds allow."""
    digest, cid = bytes(32), cid_of(b"x")
    assert len(encode(Want(manifest=digest))) <= MAX_REQUEST_BYTES
    assert len(encode(Have(manifest=digest, bitmap=bytes(MAX_CHUNKS // 8 + 1)))) <= MAX_HAVE_BYTES
    assert len(encode(Gained(chunks=[MAX_CHUNKS - 1] * 4096))) <= MAX_HAVE_BYTES
    assert len(encode(Chunk(cid=cid, data=bytes(MAX_CHUNK_BYTES)))) <= MAX_CHUNK_FRAME_BYTES
    assert len(encode(TellManifest(manifest=bytes(MANIFEST_PIECE_BYTES), total=2**53 - 1))) <= MAX_ANSWER_BYTES
    known = PeerAddresses(peer=PEER, addresses=["a" * MAX_ADDRESS_CHARS] * MAX_ADDRESSES)
    assert len(encode(TellPeers(peers=[known] * MAX_PEERS_TOLD))) <= MAX_ANSWER_BYTES


TOO_MUCH: dict[str, tuple[Any, msgspec.Struct]] = {
    "bitmap": (ExchangeFrame, Have(manifest=bytes(32), bitmap=bytes(MAX_CHUNKS // 8 + 2))),
    "gained": (ExchangeFrame, Gained(chunks=[0] * 4097)),
    "negative chunk": (ExchangeFrame, Gained(chunks=[-1])),
    "chunk": (ChunkAnswer, Chunk(cid=cid_of(b"x"), data=bytes(MAX_CHUNK_BYTES + 1))),
    "retry": (ChunkAnswer, Busy(cid=cid_of(b"x"), retry_after_ms=60_001)),
    "cid": (ChunkRequest, Request(cid=bytes(35))),
    "piece": (Answer, TellManifest(manifest=bytes(MANIFEST_PIECE_BYTES + 1))),
    "manifest hash": (Question, exchange.AskManifest(manifest=bytes(31))),
    "peers": (Answer, TellPeers(peers=[PeerAddresses(peer=PEER)] * (MAX_PEERS_TOLD + 1))),
    "addresses": (Answer, TellPeers(peers=[PeerAddresses(peer=PEER, addresses=["a"] * (MAX_ADDRESSES + 1))])),
    "address": (Answer, TellPeers(peers=[PeerAddresses(peer=PEER, addresses=["a" * (MAX_ADDRESS_CHARS + 1)])])),
    "peer id": (Answer, TellPeers(peers=[PeerAddresses(peer=PEER[:-1])])),
}


@pytest.mark.parametrize(("union", "message"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_a_value_beyond_its_bound_is_refused(union: Any, message: msgspec.Struct) -> None:
    with pytest.raises(PeerError):
        decode(union, encode(message), 1 << 30)


CID = bytes([1, 0x55, 0x12, 0x20]) + bytes(range(32))
SIZES = st.one_of(st.integers(0, 300), st.integers(65_000, 70_000), st.just(MAX_CHUNK_BYTES))


@given(SIZES)
def test_a_chunk_that_is_sent_in_parts_is_a_chunk(size: int) -> None:
    data = os.urandom(size)
    assert chunk_head(Cid(CID), size) + data == encode(Chunk(cid=CID, data=data))


@given(SIZES)
def test_a_chunk_is_split_as_it_is_decoded(size: int) -> None:
    data = os.urandom(size)
    body = encode(Chunk(cid=CID, data=data))
    found = split_chunk(body)
    assert found is None if size < 1 << 16 else found == (CID, data)


LARGE = encode(Chunk(cid=CID, data=bytes(1 << 16)))


@given(st.integers(0, 70), st.integers(1, 255), st.integers(-2, 2))
def test_what_is_not_encoded_as_we_do_it_is_left_to_the_decoder(at: int, change: int, longer: int) -> None:
    """The fast path accepts no other form: no other byte of the head, and no wrong length."""
    changed = bytearray(LARGE + bytes(longer) if longer > 0 else LARGE[: len(LARGE) + longer])
    if at < len(LARGE) - (1 << 16):
        changed[at] ^= change
    body = bytes(changed)
    if (found := split_chunk(body)) is not None:
        assert decode(Chunk, body, len(body)) == Chunk(cid=found[0], data=bytes(found[1]))
    elif body == LARGE:
        raise AssertionError("a chunk as we encode it was not split")


def test_more_than_a_chunk_may_have_is_left_to_the_decoder_which_refuses_it() -> None:
    body = encode(Chunk(cid=CID, data=bytes(MAX_CHUNK_BYTES + 1)))
    assert split_chunk(body) is None
    with pytest.raises(PeerError):
        decode(Chunk, body, len(body))
