"""Keys and their names: published vectors, agreement with libp2p, and one name for one key."""

from __future__ import annotations

import base64

import base58
import pytest
from hypothesis import given
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from libp2p.peer.id import ID

from protocol.core.errors import Fault, PeerError
from protocol.core.identity import Keypair, peer_id_of, public_key_of, verify
from protocol.core.ids import PublicKey

SEEDS = st.binary(min_size=32, max_size=32)

# libp2p specs, peer-ids/peer-ids.md, "Test vectors": PrivateKey and PublicKey protobufs of an Ed25519 key.
SPEC_PRIVATE = (
    "08011240"  # field 1: Ed25519; field 2: 64 bytes
    "7e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"  # seed
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"  # public key
)
SPEC_PUBLIC = "08011220" + "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"


def test_public_key_protobuf_of_the_libp2p_specification() -> None:
    keypair = Keypair(bytes.fromhex(SPEC_PRIVATE)[4:36])
    assert keypair.public == bytes.fromhex(SPEC_PRIVATE)[36:]
    # identity multihash: code 0x00, length 0x24 = 36, then the protobuf itself
    assert base58.b58decode(keypair.peer_id) == bytes([0x00, 0x24]) + bytes.fromhex(SPEC_PUBLIC)


def test_peer_id_of_the_libp2p_specification() -> None:
    """The specification shows one peer id in both text forms, base58btc and base32 CIDv1 (libp2p-key)."""
    base58_form = "12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"
    base32_form = "bafzaajaiaejcal72gwuz2or47oyxxn6b3rkwdmmkrxgkjxzy3rqt5kczyn7lcm3l"
    cid = base64.b32decode(base32_form[1:].upper())
    assert cid[:2] == b"\x01\x72"
    multihash = cid[2:]
    assert multihash[:6].hex() == "002408011220"
    assert peer_id_of(PublicKey(multihash[6:])) == base58_form
    assert public_key_of(base58_form) == multihash[6:]


def test_signature_of_rfc_8032() -> None:
    """RFC 8032, section 7.1, TEST 2: the one-byte message 0x72."""
    keypair = Keypair(bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"))
    assert keypair.public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert keypair.sign(b"\x72") == signature
    assert verify(keypair.public, signature, b"\x72")


@given(SEEDS, st.binary(max_size=64))
def test_libp2p_agrees(seed: bytes, data: bytes) -> None:
    ours, theirs = Keypair(seed), Ed25519PrivateKey.from_bytes(seed)
    assert ID.from_pubkey(theirs.get_public_key()).to_base58() == ours.peer_id
    assert theirs.get_public_key().to_bytes() == ours.public
    assert verify(ours.public, theirs.sign(data), data)
    assert Ed25519PublicKey.from_bytes(ours.public).verify(data, ours.sign(data))


@given(SEEDS)
def test_the_key_can_be_read_out_of_the_name(seed: bytes) -> None:
    keypair = Keypair(seed)
    assert public_key_of(keypair.peer_id) == keypair.public
    assert len(keypair.peer_id) == 52


def test_new_keys_differ_and_never_show_their_seed() -> None:
    one, two = Keypair.generate(), Keypair.generate()
    assert one.seed != two.seed
    assert repr(one) == f"Keypair({one.peer_id})"


@given(SEEDS, st.binary(max_size=64), st.integers(0, 63), st.integers(1, 255))
def test_a_changed_signature_is_refused(seed: bytes, data: bytes, at: int, flip: int) -> None:
    keypair = Keypair(seed)
    signature = bytearray(keypair.sign(data))
    signature[at] ^= flip
    assert not verify(keypair.public, bytes(signature), data)


def test_a_signature_has_one_form() -> None:
    """S + L satisfies the same equation; RFC 8032 (5.1.7) wants S < L, or anybody could mint second signatures."""
    order = 2**252 + 27742317777372353535851937790883648493
    keypair = Keypair(bytes(32))
    signature = keypair.sign(b"x")
    larger = int.from_bytes(signature[32:], "little") + order
    assert not verify(keypair.public, signature[:32] + larger.to_bytes(32, "little"), b"x")


@pytest.mark.parametrize(("key", "signature"), [(b"", bytes(64)), (bytes(31), bytes(64)), (bytes(32), b"")])
def test_verify_is_false_for_the_wrong_shape(key: bytes, signature: bytes) -> None:
    assert not verify(PublicKey(key), signature, b"")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "12D3KooW",
        Keypair(bytes(32)).peer_id + " ",  # base58 code strips white space: two names for one peer
        Keypair(bytes(32)).peer_id[:-1] + "\n",
        "0" * 52,  # 0 is not a base58 digit
        "é" * 52,
        "1" * 52,
        "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",  # a hashed (RSA) peer id
        "z" * 1_000_000,  # base58 takes quadratic time
    ],
)
def test_other_texts_are_no_peer_id(text: str) -> None:
    with pytest.raises(PeerError) as caught:
        public_key_of(text)
    assert caught.value.fault is Fault.MALFORMED
