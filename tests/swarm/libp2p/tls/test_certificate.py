"""Certificates: the specification's vectors, what we issue, and every way in which a peer's can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from libp2p.security.tls import certificate as stock

from protocol.core.identity import Keypair, peer_id_of
from swarm.libp2p.tls.certificate import (
    ED25519_PREFIX,
    EXTENSION,
    MAX_CERTIFICATE_BYTES,
    NOT_AFTER,
    NOT_BEFORE,
    SIGNED_PREFIX,
    CertificateRefused,
    decode_signed_key,
    encode_signed_key,
    issue,
    verify,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST = Keypair(b"h" * 32)
TLS_KEY = ec.generate_private_key(ec.SECP256R1())
NOBODY = x509.Name([])

# Test vectors of https://github.com/libp2p/specs/blob/master/tls/tls.md.

SPEC_ED25519 = bytes.fromhex(
    "308201773082011ea003020102020900f5bd0debaa597f52300a06082a8648ce3d04030230003020170d3735303130313030303030305a180f"
    "34303936303130313030303030305a30003059301306072a8648ce3d020106082a8648ce3d030107034200046bf9871220d71dcb3483ecdfcb"
    "fcc7c103f8509d0974b3c18ab1f1be1302d643103a08f7a7722c1b247ba3876fe2c59e26526f479d7718a85202ddbe47562358a37f307d307b"
    "060a2b0601040183a25a01010101ff046a30680424080112207fda21856709c5ae12fd6e8450623f15f11955d384212b89f56e7e136d2e1728"
    "0440aaa6bffabe91b6f30c35e3aa4f94b1188fed96b0ffdd393f4c58c1c047854120e674ce64c788406d1c2c4b116581fd7411b309881c3c7f"
    "20b46e54c7e6fe7f0f300a06082a8648ce3d040302034700304402207d1a1dbd2bda235ff2ec87daf006f9b04ba076a5a5530180cd9c2e8f63"
    "99e09d0220458527178c7e77024601dbb1b256593e9b96d961b96349d1f560114f61a87595"
)
SPEC_ECDSA = bytes.fromhex(
    "308201c030820166a003020102020900eaf419a6e3edb4a6300a06082a8648ce3d04030230003020170d3735303130313030303030305a180f"
    "34303936303130313030303030305a30003059301306072a8648ce3d020106082a8648ce3d030107034200048dbf1116c7c608d6d5292bd826"
    "c3feb53483a89fce434bf64538a359c8e07538ff71f6766239be6a146dcc1a5f3bb934bcd4ae2ae1d4da28ac68b4a20593f06ba381c63081c3"
    "3081c0060a2b0601040183a25a01010101ff0481ae3081ab045f0803125b3059301306072a8648ce3d020106082a8648ce3d03010703420004"
    "84b93fa456a74bd0153919f036db7bc63c802f055bc7023395d0203de718ee0fc7b570b767cdd858aca6c7c4113ff002e78bd2138ac1a3b26d"
    "de3519e06979ad04483046022100bc84014cea5a41feabdf4c161096564b9ccf4b62fbef4fe1cd382c84e11101780221009204f086a84cb8ed"
    "8a9ddd7868dc90c792ee434adf62c66f99a08a5eba11615b300a06082a8648ce3d0403020348003045022054b437be9a2edf591312d68ff24b"
    "f91367ad4143f76cf80b5658f232ade820da022100e23b48de9df9c25d4c83ddddf75d2676f0b9318ee2a6c88a736d85eab94a912f"
)
SPEC_SECP256K1 = bytes.fromhex(
    "3082018230820128a003020102020900f3b305f55622cfdf300a06082a8648ce3d04030230003020170d3735303130313030303030305a180f"
    "34303936303130313030303030305a30003059301306072a8648ce3d020106082a8648ce3d0301070342000458f7e9581748ff9bdd933b655c"
    "c0e5552a1248f840658cc221dec2186b5a2fe4641b86ab7590a3422cdbb1000cf97662f27e5910d7569f22feed8829c8b52e0fa38188308185"
    "308182060a2b0601040183a25a01010101ff0471306f042508021221026b053094d1112bce799dc8026040ae6d4eb574157929f1598172061f"
    "753d9b1b04463044022040712707e97794c478d93989aaa28ae1f71c03af524a8a4bd2d98424948a782302207b61b7f074b696a25fb9e00591"
    "41a811cccc4cc28042d9301b9b2a4015e87470300a06082a8648ce3d04030203480030450220143ae4d86fdc8675d2480bb6912eca5e39165d"
    "f7f572d836aa2f2d6acfab13f8022100831d1979a98f0c4a6fb5069ca374de92f1a1205c962a6d90ad3d7554cb7d9df4"
)
SPEC_INVALID = bytes.fromhex(
    "308201773082011da003020102020830a73c5d896a1109300a06082a8648ce3d04030230003020170d3735303130313030303030305a180f34"
    "303936303130313030303030305a30003059301306072a8648ce3d020106082a8648ce3d03010703420004bbe62df9a7c1c46b7f1f21d556de"
    "ec5382a36df146fb29c7f1240e60d7d5328570e3b71d99602b77a65c9b3655f62837f8d66b59f1763b8c9beba3be07778043a37f307d307b06"
    "0a2b0601040183a25a01010101ff046a3068042408011220ec8094573afb9728088860864f7bcea2d4fd412fef09a8e2d24d482377c20db604"
    "40ecabae8354afa2f0af4b8d2ad871e865cb5a7c0c8d3dbdbf42de577f92461a0ebb0a28703e33581af7d2a4f2270fc37aec6261fcc95f8af0"
    "8f3f4806581c730a300a06082a8648ce3d040302034800304502202dfb17a6fa0f94ee0e2e6a3b9fb6e986f311dee27392058016464bd13093"
    "0a61022100ba4b937a11c8d3172b81e7cd04aedb79b978c4379c2b5b24d565dd5d67d3cb3c"
)


def test_the_vector_of_an_ed25519_peer() -> None:
    assert peer_id_of(verify(SPEC_ED25519, NOW)) == "12D3KooWJRSrypvnpHgc6ZAgyCni4KcSmbV7uGRaMw5LgMKT18fq"


@pytest.mark.parametrize(
    ("der", "words"),
    [
        (SPEC_ECDSA, "an ECDSA host key; only Ed25519"),
        (SPEC_SECP256K1, "a secp256k1 host key; only Ed25519"),
        (SPEC_INVALID, "host key did not sign"),
    ],
)
def test_the_vectors_that_are_refused(der: bytes, words: str) -> None:
    with pytest.raises(CertificateRefused, match=words):
        verify(der, NOW)


# Ours.


def issued() -> x509.Certificate:
    return issue(TLS_KEY, HOST.public, HOST.sign)


def test_ours_is_believed_here_and_by_the_stock_implementation() -> None:
    der = issued().public_bytes(Encoding.DER)
    assert verify(der, NOW) == HOST.public
    assert stock.verify_certificate_chain([x509.load_der_x509_certificate(der)]).to_bytes() == HOST.public


def test_ours_has_one_extension_and_no_name() -> None:
    certificate = issued()
    (extension,) = certificate.extensions
    assert (extension.oid, extension.critical) == (EXTENSION, False)
    assert (certificate.subject, certificate.issuer) == (NOBODY, NOBODY)


def test_ours_is_valid_whatever_the_clocks_say() -> None:
    der = issued().public_bytes(Encoding.DER)
    for now in (datetime(1980, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)):
        assert verify(der, now) == HOST.public


def test_golden_signed_key() -> None:
    # SEQUENCE (0x30) of 9 bytes: OCTET STRING (0x04) of 3, OCTET STRING of 2
    golden = bytes.fromhex("30 09 0403 6b6579 0402 7369")
    assert encode_signed_key(b"key", b"si") == golden
    assert decode_signed_key(golden) == (b"key", b"si")


@given(st.binary(max_size=120), st.binary(max_size=120))
def test_signed_keys_survive_here_and_in_the_stock_implementation(key: bytes, signature: bytes) -> None:
    if len(key) + len(signature) > 120:
        return
    der = encode_signed_key(key, signature)
    assert decode_signed_key(der) == (key, signature)
    theirs = stock.decode_signed_key(der)
    assert (theirs.public_key_bytes, theirs.signature) == (key, signature)


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_long_signed_keys_of_others_are_read(key_size: int, signature_size: int) -> None:
    key, signature = b"k" * key_size, b"s" * signature_size
    if signature_size <= 2048:  # the stock encoder's own limit
        assert decode_signed_key(stock.encode_signed_key(key, signature)) == (key, signature)


# A peer's, with one thing wrong.


def signed_key(
    host: Keypair = HOST, tls_key: ec.EllipticCurvePrivateKey = TLS_KEY, prefix: bytes = SIGNED_PREFIX
) -> bytes:
    spki = tls_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encode_signed_key(ED25519_PREFIX + host.public, host.sign(prefix + spki))


def libp2p(value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(EXTENSION, value)


def certificate(
    *extensions: tuple[x509.ExtensionType, bool],
    start: datetime = NOT_BEFORE,
    end: datetime = NOT_AFTER,
    signer: ec.EllipticCurvePrivateKey = TLS_KEY,
    algorithm: hashes.SHA256 | hashes.SHA224 = hashes.SHA256(),  # noqa: B008
    issuer: x509.Name = NOBODY,
) -> bytes:
    """A certificate for TLS_KEY, as a peer might have made it."""
    builder = x509.CertificateBuilder(issuer, NOBODY, TLS_KEY.public_key(), 1, start, end)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, algorithm).public_bytes(Encoding.DER)


GOOD = (libp2p(signed_key()), False)
USAGE = x509.BasicConstraints(ca=False, path_length=None)
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
STRANGER = ec.generate_private_key(ec.SECP256R1())
OTHER_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "another")])

REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "no extension": (lambda: certificate(), "no libp2p extension"),
    "another extension": (lambda: certificate((USAGE, False)), "no libp2p extension"),
    "signed by another host": (
        lambda: certificate((libp2p(encode_signed_key(ED25519_PREFIX + HOST.public, bytes(64))), False)),
        "host key did not sign",
    ),
    "for another TLS key": (
        lambda: certificate((libp2p(signed_key(tls_key=STRANGER)), False)),
        "host key did not sign",
    ),
    "without the prefix": (lambda: certificate((libp2p(signed_key(prefix=b"")), False)), "host key did not sign"),
    "self-signature": (lambda: certificate(GOOD, signer=STRANGER), "key did not sign the certificate"),
    "issued by another name": (lambda: certificate(GOOD, issuer=OTHER_NAME), "cannot be read"),
    "weak digest": (lambda: certificate(GOOD, algorithm=hashes.SHA224()), "signed with sha224"),
    "ended": (lambda: certificate(GOOD, end=NOW - timedelta(seconds=1)), "ended at 2025"),
    "not yet valid": (lambda: certificate(GOOD, start=NOW + timedelta(seconds=1)), "not valid before 2026"),
    "critical": (lambda: certificate(GOOD, (UNKNOWN, True)), "critical extension 1.2.3.4"),
    "RSA host key": (
        lambda: certificate((libp2p(encode_signed_key(b"\x08\x00\x12\x02no", b"")), False)),
        "an RSA host key; only Ed25519",
    ),
    "short host key": (
        lambda: certificate((libp2p(encode_signed_key(ED25519_PREFIX + b"short", b"")), False)),
        "a malformed Ed25519 host key",
    ),
    "no host key": (lambda: certificate((libp2p(encode_signed_key(b"", b"")), False)), "an unknown host key"),
    "no signed key": (lambda: certificate((libp2p(b""), False)), "holds no signed key"),
    "indefinite length": (lambda: certificate((libp2p(b"\x30\x80" + bytes(9)), False)), "not DER"),
    "enormous length": (lambda: certificate((libp2p(b"\x30\x84\xff\xff\xff\xff"), False)), "not DER"),
    "long form of a short length": (lambda: certificate((libp2p(b"\x30\x81\x04\x04\x00\x04\x00"), False)), "not DER"),
    "cut short": (lambda: certificate((libp2p(signed_key()[:-1]), False)), "cut short"),
    "something after": (lambda: certificate((libp2p(signed_key() + b"x"), False)), "something follows"),
    "no certificate": (lambda: b"\x30\x03\x02\x01\x00", "cannot be read"),
    "oversized": (lambda: bytes(MAX_CERTIFICATE_BYTES + 1), str(MAX_CERTIFICATE_BYTES)),
}


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_with_a_certificate_is_said(make: Callable[[], bytes], words: str) -> None:
    with pytest.raises(CertificateRefused, match=words):
        verify(make(), NOW)


ACCEPTED = {
    "marked critical": ((GOOD[0], True),),
    "after others": ((USAGE, True), (UNKNOWN, False), GOOD),
    "before others": (GOOD, (UNKNOWN, False)),
}


@pytest.mark.parametrize("extensions", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_others_may_arrange_theirs_differently(extensions: tuple[tuple[x509.ExtensionType, bool], ...]) -> None:
    assert verify(certificate(*extensions), NOW) == HOST.public


OTHER_KEYS = {
    "P-384": lambda: (ec.generate_private_key(ec.SECP384R1()), hashes.SHA384()),
    "Ed25519": lambda: (ed25519.Ed25519PrivateKey.generate(), None),
    "RSA": lambda: (rsa.generate_private_key(65537, 2048), hashes.SHA256()),
}


@pytest.mark.parametrize("make", OTHER_KEYS.values(), ids=OTHER_KEYS.keys())
def test_others_may_use_another_kind_of_tls_key(make: Callable[[], tuple[ed25519.Ed25519PrivateKey, None]]) -> None:
    key, algorithm = make()
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    value = encode_signed_key(ED25519_PREFIX + HOST.public, HOST.sign(SIGNED_PREFIX + spki))
    builder = x509.CertificateBuilder(NOBODY, NOBODY, key.public_key(), 1, NOT_BEFORE, NOT_AFTER)
    der = builder.add_extension(libp2p(value), critical=False).sign(key, algorithm).public_bytes(Encoding.DER)
    assert verify(der, NOW) == HOST.public


# Hostile bytes.

OURS = issued().public_bytes(Encoding.DER)


@given(st.integers(0, len(OURS) - 1), st.integers(1, 255))
def test_a_damaged_certificate_is_refused(at: int, change: int) -> None:
    damaged = bytearray(OURS)
    damaged[at] ^= change
    with pytest.raises(CertificateRefused):
        verify(bytes(damaged), NOW)


def test_bits_of_a_signature_that_would_not_count_are_refused() -> None:
    """Where its last bit is 0, as in every other certificate, nobody else would notice."""
    ends_in_zero = next(der for der in iter(lambda: issued().public_bytes(Encoding.DER), b"") if not der[-1] & 1)
    damaged = bytearray(ends_in_zero)
    damaged[-len(x509.load_der_x509_certificate(ends_in_zero).signature) - 1] = 1
    with pytest.raises(CertificateRefused, match="not a whole number of bytes"):
        verify(bytes(damaged), NOW)


@given(st.integers(0, len(OURS)), st.binary(max_size=40), st.integers(0, 40))
def test_a_certificate_with_bytes_put_in_or_left_out_is_refused(at: int, inserted: bytes, left_out: int) -> None:
    changed = OURS[:at] + inserted + OURS[at + left_out :]
    if changed != OURS:
        with pytest.raises(CertificateRefused):
            verify(changed, NOW)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CertificateRefused):
        verify(data, NOW)


@given(st.binary(max_size=300))
def test_any_extension_is_refused_or_said_to_be_wrong(value: bytes) -> None:
    with pytest.raises(CertificateRefused):
        verify(certificate((libp2p(value), False)), NOW)
