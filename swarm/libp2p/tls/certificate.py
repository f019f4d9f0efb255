"""Issue and verify certificates of the libp2p TLS handshake, which prove the host key behind a TLS key.

    SignedKey ::= SEQUENCE { publicKey OCTET STRING, signature OCTET STRING }     in extension 1.3.6.1.4.1.53594.1.1
    publicKey = libp2p PublicKey protobuf        signature over "libp2p-tls-handshake:" | SubjectPublicKeyInfo

There are no connections in this module. Our certificates carry this one extension and no other, because js-libp2p reads
only the first one; in other nodes' certificates it may have any place.
Specification: https://github.com/libp2p/specs/blob/master/tls/tls.md.

Invariants:

- A certificate that passes `verify` is self-signed and valid now, and the Ed25519 host key that is returned has signed
  its TLS key.
- Any other bytes raise `CertificateRefused`, which names the rule that they broke.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.core import identity
from protocol.core.ids import PUBLIC_KEY_BYTES, PublicKey

EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
SIGNED_PREFIX = b"libp2p-tls-handshake:"

ED25519_PREFIX = identity.PEER_ID_PREFIX[2:]
"""The head of the PublicKey protobuf. A peer id is the identity multihash (two bytes) of that protobuf."""

KEY_TYPES = {0: "an RSA", 1: "a malformed Ed25519", 2: "a secp256k1", 3: "an ECDSA"}
"""Key types by field 1 of the PublicKey protobuf."""

NOT_BEFORE, NOT_AFTER = datetime(1975, 1, 1, tzinfo=UTC), datetime(4096, 1, 1, tzinfo=UTC)
"""Rust's dates. The specification demands a certificate that is valid when it arrives. With these dates no clock, ours
or the peer's, can be wrong enough to keep us apart. The key lives as long as the process."""

MAX_CERTIFICATE_BYTES = 16 * 1024
"""A certificate with an RSA key of 4096 bits and all customary extensions has about 2 KiB; ours has 375 bytes."""

MIN_DIGEST_BYTES = 32
"""Bytes of the self-signature's digest, as the specification demands: no MD5, no SHA-1."""

UNDERSTOOD = frozenset({EXTENSION, x509.BasicConstraints.oid, x509.KeyUsage.oid, x509.ExtendedKeyUsage.oid})
"""Extensions that may be marked critical. The last three state nothing that matters between two peers."""

SEQUENCE, OCTET_STRING = 0x30, 0x04

UNREADABLE = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""The errors of `cryptography` for bytes that are no certificate, or for one that it cannot handle."""


class CertificateRefused(Exception):
    """The certificate does not prove which peer this is. The message says which rule it broke."""


def issue(key: ec.EllipticCurvePrivateKey, host: PublicKey, sign: Callable[[bytes], bytes]) -> x509.Certificate:
    """Return a certificate for the TLS key `key` in the name of `host`; `sign` makes the signature of `host`."""
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    signed_key = encode_signed_key(ED25519_PREFIX + host, sign(SIGNED_PREFIX + spki))
    nobody = x509.Name([])
    builder = x509.CertificateBuilder(nobody, nobody, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(NOT_BEFORE).not_valid_after(NOT_AFTER)
    builder = builder.add_extension(x509.UnrecognizedExtension(EXTENSION, signed_key), critical=False)
    return builder.sign(key, hashes.SHA256())


def verify(der: bytes, now: datetime) -> PublicKey:
    """Return the Ed25519 host key that a peer's certificate proves. Raises CertificateRefused."""
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise CertificateRefused(f"the certificate has {len(der)} bytes, more than {MAX_CERTIFICATE_BYTES}")
    try:
        certificate = x509.load_der_x509_certificate(der)
        _check_validity(certificate, now)
        signed_key = _signed_key(certificate)
        _check_self_signature(certificate)
        _check_whole_bytes(certificate, der)
        spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except UNREADABLE as error:
        raise CertificateRefused(f"the certificate cannot be read: {error}") from error
    key, signature = decode_signed_key(signed_key)
    host = _host_key(key)
    if not identity.verify(host, signature, SIGNED_PREFIX + spki):
        raise CertificateRefused("the host key did not sign the certificate's key")
    return host


def encode_signed_key(key: bytes, signature: bytes) -> bytes:
    """Return the extension's value. Key and signature are shorter than 128 bytes each, as those of Ed25519 are."""
    return _element(SEQUENCE, _element(OCTET_STRING, key) + _element(OCTET_STRING, signature))


def decode_signed_key(der: bytes) -> tuple[bytes, bytes]:
    """Return (public key protobuf, signature) of the extension's value. Raises CertificateRefused."""
    content, after = _split(der, SEQUENCE)
    key, rest = _split(content, OCTET_STRING)
    signature, more = _split(rest, OCTET_STRING)
    if after or more:
        raise CertificateRefused("something follows the signed key in its extension")
    return key, signature


def _check_validity(certificate: x509.Certificate, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise CertificateRefused(
            f"the certificate is not valid before {certificate.not_valid_before_utc}; is our clock right?"
        )
    if now > certificate.not_valid_after_utc:
        raise CertificateRefused(f"the certificate ended at {certificate.not_valid_after_utc}; is our clock right?")


def _signed_key(certificate: x509.Certificate) -> bytes:
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in UNDERSTOOD:
            raise CertificateRefused(f"its critical extension {extension.oid.dotted_string} is not understood here")
    try:
        value = certificate.extensions.get_extension_for_oid(EXTENSION).value
    except x509.ExtensionNotFound:
        raise CertificateRefused("the certificate has no libp2p extension") from None
    return value.public_bytes()


def _check_whole_bytes(certificate: x509.Certificate, der: bytes) -> None:
    """Require that all bits of the signature count.

    The byte before a signature says how many of its last bits do not count. Were any number allowed, one certificate
    would have several forms.
    """
    if der[-len(certificate.signature) - 1] != 0:
        raise CertificateRefused("the certificate's signature is not a whole number of bytes")


def _check_self_signature(certificate: x509.Certificate) -> None:
    digest = certificate.signature_hash_algorithm  # None if the signature implies its own, as Ed25519's does
    if digest is not None and digest.digest_size < MIN_DIGEST_BYTES:
        raise CertificateRefused(f"the certificate is signed with {digest.name}")
    try:
        certificate.verify_directly_issued_by(certificate)
    except InvalidSignature:
        raise CertificateRefused("the certificate's key did not sign the certificate") from None


def _host_key(protobuf: bytes) -> PublicKey:
    if protobuf.startswith(ED25519_PREFIX) and len(protobuf) == len(ED25519_PREFIX) + PUBLIC_KEY_BYTES:
        return PublicKey(protobuf[len(ED25519_PREFIX) :])
    known = protobuf[0] == ED25519_PREFIX[0] and protobuf[1] in KEY_TYPES if len(protobuf) > 1 else False
    kind = KEY_TYPES[protobuf[1]] if known else "an unknown"
    raise CertificateRefused(f"the peer has {kind} host key; only Ed25519 is spoken here")


def _element(tag: int, content: bytes) -> bytes:
    return bytes([tag, len(content)]) + content


def _split(data: bytes, tag: int) -> tuple[bytes, bytes]:
    """Split DER into the content of its first element, which must be a `tag`, and what follows it."""
    if len(data) < 2 or data[0] != tag:
        raise CertificateRefused("the libp2p extension holds no signed key")
    size, start = data[1], 2
    if size >= 0x80:
        start += size & 0x7F
        size = int.from_bytes(data[2:start], "big")
        if start > 4 or size < (0x80 if start == 3 else 0x100):
            raise CertificateRefused("a length in the libp2p extension is not DER")
    if len(data) < start + size:
        raise CertificateRefused("the libp2p extension is cut short")
    return data[start : start + size], data[start + size :]
