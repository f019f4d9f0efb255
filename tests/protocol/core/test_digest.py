"""Content ids: known answers, agreement with other CID code, and refused values."""

from __future__ import annotations

import hashlib

import cid  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.digest import CID_PREFIX, as_cid, cid_of, digest_of
from protocol.core.errors import Fault, PeerError


def test_known_answers() -> None:
    # FIPS 180-2, appendix B.1, behind: version 1, raw codec, sha2-256, 32 bytes
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of(b"abc").hex() == abc
    assert cid_of(b"abc").hex() == "01551220" + abc
    # The empty file as IPFS names it.
    assert cid_of(b"") == cid.from_string("bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku").buffer


@given(st.binary(max_size=200))
def test_cid_agrees_with_other_code_and_holds_the_digest(data: bytes) -> None:
    assert cid_of(data) == cid.make_cid(1, "raw", b"\x12\x20" + hashlib.sha256(data).digest()).buffer
    assert cid_of(data) == CID_PREFIX + digest_of(data)
    assert cid_of(memoryview(data)) == cid_of(data)
    assert as_cid(cid_of(data)) == cid_of(data)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        cid_of(b"x")[:-1],
        cid_of(b"x") + b"\0",
        b"\x01\x70" + cid_of(b"x")[2:],  # dag-pb instead of raw
        b"\x12\x20" + bytes(32),  # CIDv0
        b"\x01\x55\x1b\x20" + bytes(32),  # keccak-256 instead of sha2-256
    ],
)
def test_other_content_ids_are_refused(raw: bytes) -> None:
    with pytest.raises(PeerError) as caught:
        as_cid(raw)
    assert caught.value.fault is Fault.MALFORMED
