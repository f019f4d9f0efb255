"""Identify peers by Ed25519 keys, which their libp2p peer ids name.

The peer id is the base58 text of the identity multihash of the libp2p PublicKey protobuf (libp2p peer-ids
specification), so the key can be read back from the name. The node decides where keys lie on disk.
"""

from __future__ import annotations

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import PUBLIC_KEY_BYTES, PeerId, PublicKey

PEER_ID_PREFIX = bytes([0x00, 0x24, 0x08, 0x01, 0x12, 0x20])
"""Identity multihash of 36 bytes | field 1 (type) = Ed25519 | field 2 (data), 32 bytes follow."""
PEER_ID_CHARS = 52
"""Length of every Ed25519 peer id: "12D3KooW" and the rest of the key."""


class Keypair:
    """An Ed25519 key that signs. The seed is the 32-byte private key of RFC 8032."""

    def __init__(self, seed: bytes) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.seed = seed
        self.public = PublicKey(self._private.public_key().public_bytes_raw())
        self.peer_id = peer_id_of(self.public)

    @classmethod
    def generate(cls) -> Keypair:
        """Return a new key from the operating system's randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """Return the 64-byte signature of `data`."""
        return self._private.sign(data)

    def __repr__(self) -> str:
        return f"Keypair({self.peer_id})"


def verify(key: PublicKey, signature: bytes, data: bytes) -> bool:
    """Return whether `key` made `signature` over `data`; False also for a key or signature of the wrong shape."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def peer_id_of(key: PublicKey) -> PeerId:
    """Return the libp2p peer id of an Ed25519 public key."""
    return PeerId(base58.b58encode(PEER_ID_PREFIX + key).decode())


def public_key_of(peer: str) -> PublicKey:
    """Return the key inside a peer id. Raise PeerError(MALFORMED) if it holds no Ed25519 key."""
    if len(peer) != PEER_ID_CHARS:
        raise PeerError(Fault.MALFORMED, f"peer id {peer[:16]!r} has {len(peer)} characters, expected {PEER_ID_CHARS}")
    try:
        raw = base58.b58decode(peer)
    except ValueError as error:
        raise PeerError(Fault.MALFORMED, f"peer id {peer[:16]!r} is not base58") from error
    if len(raw) != len(PEER_ID_PREFIX) + PUBLIC_KEY_BYTES or not raw.startswith(PEER_ID_PREFIX):
        raise PeerError(Fault.MALFORMED, f"peer id {peer[:16]!r} does not hold an Ed25519 key")
    return PublicKey(raw[len(PEER_ID_PREFIX) :])
