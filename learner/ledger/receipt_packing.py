"""Pack receipts into an eighth of their bytes, by leaving out what the ledger has in its rows anyway.

A receipt of four records has about 850 bytes: the learner's certificate (the same in all receipts), names of fields,
and the lease, the peer and the records that it is about. Only the signature, a time and a few numbers are found nowhere
else. So a receipt is compressed (DEFLATE, RFC 1951) with a dictionary of all that is known. The reader makes the same
dictionary again from the rows.

    packed = 0 | u32 number of the certificate | u16 records in the dictionary | DEFLATE stream   (big endian)

A receipt as it was signed begins with 0x95, an array of five. Pure.

Invariants:

- `unpack` of what `pack` made, with the same `Known`, is the receipt, byte for byte.
- The contents of a dictionary never change: the lease's id and peer, and each record's id, place and reward.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

MARK = 0
HEAD = struct.Struct(">BIH")
LEVEL = 9

MAX_RECEIPT = 1 << 20
"""Bytes of the largest receipt that is unpacked (`protocol.work.MAX_RECEIPT_BYTES` with its envelope)."""

MAX_RECORDS = 512
"""Records in a dictionary at most, since DEFLATE looks back 32 KiB."""


class NotPacked(ValueError):
    """The bytes are no receipt that was packed with this dictionary."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The contents of the rows that a receipt is about. `records` are (id, place in the lease, reward), in order of
    arrival."""

    lease: bytes
    peer: str
    certificate: bytes
    records: Sequence[tuple[bytes, int, float | None]]


def is_packed(receipt: bytes) -> bool:
    """Return whether these bytes were packed."""
    return receipt[:1] == bytes([MARK])


def needed(packed: bytes) -> tuple[int, int]:
    """Return what `unpack` needs: the certificate's number, and how many of the lease's first records. Raises
    NotPacked."""
    if len(packed) <= HEAD.size or not is_packed(packed):
        raise NotPacked("it is too short")
    _, certificate, records = HEAD.unpack_from(packed)
    return certificate, records


def certificate_in(receipt: bytes) -> bytes:
    """Return the certificate that a receipt carries, empty if it has none."""
    try:
        payload = msgspec.msgpack.decode(receipt)[3]
        certificate = msgspec.msgpack.decode(payload)["certificate"]
    except (msgspec.MsgspecError, LookupError, TypeError):
        return b""
    return certificate if isinstance(certificate, bytes) else b""


def pack(receipt: bytes, number: int, known: Known) -> bytes:
    """Return the receipt, packed, or unchanged if packing does not make it shorter. `number` names the certificate."""
    records = known.records[:MAX_RECORDS]
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, zdict=_dictionary(known, len(records)))
    packed = HEAD.pack(MARK, number, len(records)) + deflate.compress(receipt) + deflate.flush()
    return packed if len(packed) < len(receipt) else receipt


def unpack(packed: bytes, known: Known) -> bytes:
    """Return the receipt as it was signed. Raises NotPacked."""
    _, records = needed(packed)
    inflate = zlib.decompressobj(-zlib.MAX_WBITS, zdict=_dictionary(known, records))
    try:
        receipt = inflate.decompress(packed[HEAD.size :], MAX_RECEIPT)
    except zlib.error as error:
        raise NotPacked(str(error)) from error
    if not inflate.eof or inflate.unused_data:
        raise NotPacked("it is cut short, or bytes follow its end")
    return receipt


def _dictionary(known: Known, records: int) -> bytes:
    """Return the known parts of a receipt as MessagePack, in the order of the fields."""
    parts = [
        known.certificate,
        b"\xa7receipt\x87\xa5lease\xc4\x10", known.lease, b"\xa4peer\xd94", known.peer.encode(),
        b"\xa7version\x92\x01\xa9issued_ms\xcf\x00\x00\x01\xa6tokens\xa8verdicts",
    ]  # fmt: skip
    for record, place, reward in known.records[:records]:
        parts += [b"\x84\xa6record\xc4 ", record, b"\xa5index", msgspec.msgpack.encode(place), b"\xa4rule\xa8admitted"]
        parts += [b"\xa6reward", msgspec.msgpack.encode(reward)]
    return b"".join([*parts, b"\xabcertificate\xc4", bytes([len(known.certificate) % 256]), known.certificate])
