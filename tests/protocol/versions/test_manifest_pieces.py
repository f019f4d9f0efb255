"""Manifests in pieces: any honest cutting gives the bytes back, any lie is found, nothing beyond the bound is held."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import decode, encode
from protocol.core.digest import digest_of
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import ManifestHash
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_MANIFEST_BYTES
from protocol.versions.exchange import MAX_ANSWER_BYTES, Answer, AskManifest, NotHeld, TellManifest
from protocol.versions.manifest_pieces import MAX_ENVELOPE_BYTES, ManifestPieces, manifest_piece

RAW = bytes(range(100))
HASH = ManifestHash(digest_of(RAW))


def collect(raw: bytes, piece_bytes: int, size_bytes: int | None = None) -> tuple[bytes, int]:
    """Return the bytes that an asker gets of an honest peer, and in how many answers."""
    pieces = ManifestPieces(ManifestHash(digest_of(raw)), size_bytes=size_bytes, piece_bytes=piece_bytes)
    asked = 0
    while (question := pieces.question) is not None:
        answer = manifest_piece(raw, question.offset, piece_bytes)
        assert isinstance(answer, TellManifest)
        pieces.take(answer)
        asked += 1
    return pieces.whole(), asked


@given(st.binary(min_size=1, max_size=200), st.integers(1, 250), st.booleans())
def test_whatever_the_cut_the_same_manifest_comes_back(raw: bytes, piece_bytes: int, announced: bool) -> None:
    whole, asked = collect(raw, piece_bytes, len(raw) if announced else None)
    assert whole == raw
    assert asked == -(-len(raw) // piece_bytes)


def test_up_to_one_piece_travels_as_it_always_did() -> None:
    assert manifest_piece(RAW, 0, len(RAW)) == TellManifest(manifest=RAW)
    assert ManifestPieces(HASH).question == AskManifest(manifest=HASH)
    assert encode(AskManifest(manifest=HASH)) == encode(AskManifest(manifest=HASH, offset=0))


def test_a_larger_one_is_cut_to_the_byte() -> None:
    pieces = [manifest_piece(RAW, offset, 40) for offset in (0, 40, 80)]
    assert pieces == [
        TellManifest(manifest=RAW[:40], total=100),
        TellManifest(manifest=RAW[40:80], total=100),
        TellManifest(manifest=RAW[80:], total=100),
    ]


@pytest.mark.parametrize("offset", [100, 101, 2**53 - 1])
def test_beyond_its_end_there_is_nothing(offset: int) -> None:
    assert manifest_piece(RAW, offset, 40) == NotHeld()


def test_the_largest_piece_fits_an_answer_and_a_larger_one_is_refused() -> None:
    largest = TellManifest(manifest=bytes(MANIFEST_PIECE_BYTES), total=MAX_ENVELOPE_BYTES)
    assert len(encode(largest)) <= MAX_ANSWER_BYTES
    assert decode(Answer, encode(largest), MAX_ANSWER_BYTES) == largest
    with pytest.raises(PeerError):
        decode(Answer, encode(TellManifest(manifest=bytes(MANIFEST_PIECE_BYTES + 1))), 1 << 30)
    assert MAX_ENVELOPE_BYTES >= MAX_MANIFEST_BYTES


honest = st.just("honest")
lies = st.sampled_from(["short", "long", "empty", "other bytes", "other total", "no total", "total too large"])


def told(kind: str, offset: int, piece_bytes: int, amount: int) -> TellManifest:
    """The answer to who asks from `offset` on, honest or a lie of this kind."""
    answer = manifest_piece(RAW, offset, piece_bytes)
    assert isinstance(answer, TellManifest)
    piece, total = answer.manifest, answer.total
    match kind:
        case "short":
            return TellManifest(manifest=piece[:-amount], total=total)
        case "long":
            return TellManifest(manifest=piece + bytes(amount), total=total)
        case "empty":
            return TellManifest(manifest=b"", total=total)
        case "other bytes":
            return TellManifest(manifest=bytes([piece[0] ^ amount]) + piece[1:], total=total)
        case "other total":
            return TellManifest(manifest=piece, total=100 + amount)
        case "no total":
            return TellManifest(manifest=piece)
        case "total too large":
            return TellManifest(manifest=piece, total=MAX_ENVELOPE_BYTES + amount)
    return answer


@given(
    st.lists(honest | lies, min_size=10, max_size=10),
    st.integers(10, 99),
    st.integers(1, 255),
    st.none() | st.just(100),
)
def test_any_lie_is_blamed_and_no_more_is_held_than_came_nor_than_is_allowed(
    kinds: list[str], piece_bytes: int, amount: int, size_bytes: int | None
) -> None:
    pieces = ManifestPieces(HASH, size_bytes=size_bytes, piece_bytes=piece_bytes)
    came, lied = 0, False
    whole, blamed = b"", None
    try:
        for kind in kinds:
            if (question := pieces.question) is None:
                break
            assert question.offset == pieces.held_bytes
            if question.offset >= len(RAW):  # it believed a larger total: there is nothing honest left to say
                answer, lied = TellManifest(manifest=b"", total=100 + amount), True
            else:
                answer = told(kind, question.offset, piece_bytes, amount)
                lied = lied or answer != manifest_piece(RAW, question.offset, piece_bytes)
            came += len(answer.manifest)
            pieces.take(answer)
            assert pieces.held_bytes == came <= MAX_ENVELOPE_BYTES
        whole = pieces.whole()
    except PeerError as error:
        blamed = error.fault
    assert lied == (blamed is not None), "only a liar may be blamed"
    assert blamed in (None, Fault.BROKEN_PROMISE, Fault.OVERSIZED)
    assert whole == (b"" if lied else RAW)
    assert pieces.held_bytes <= came


def test_a_promise_beyond_the_bound_is_refused_before_a_second_question() -> None:
    with pytest.raises(PeerError) as refused:
        ManifestPieces(HASH, piece_bytes=40).take(TellManifest(manifest=RAW[:40], total=MAX_ENVELOPE_BYTES + 1))
    assert refused.value.fault is Fault.OVERSIZED
    assert str(MAX_ENVELOPE_BYTES) in refused.value.detail


def test_a_promise_of_another_size_than_was_announced_is_refused_at_once() -> None:
    with pytest.raises(PeerError, match="101 bytes, but 100 were announced"):
        ManifestPieces(HASH, size_bytes=100, piece_bytes=40).take(TellManifest(manifest=RAW[:40], total=101))


def test_a_manifest_of_one_piece_is_judged_by_its_hash_alone() -> None:
    """A peer that announced a wrong size has harmed nobody."""
    pieces = ManifestPieces(HASH, size_bytes=99)
    pieces.take(TellManifest(manifest=RAW))
    assert pieces.whole() == RAW


def test_before_its_end_there_is_no_whole() -> None:
    pieces = ManifestPieces(HASH, piece_bytes=40)
    with pytest.raises(LocalProtocolError):
        pieces.whole()
    pieces.take(TellManifest(manifest=RAW[:40], total=100))
    with pytest.raises(LocalProtocolError, match="40 of 100"):
        pieces.whole()
