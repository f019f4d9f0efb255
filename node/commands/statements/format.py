"""Define the form of a statement file: JSON lines, one signed item on each, in one encoding.

    {"volery":"statement","format":1,"swarm":HEX,"genesis":BASE64}
    {"kind":"receipt","envelope":BASE64}
    {"kind":"relay","envelope":BASE64,"note":BASE64}            a relay receipt; without "note": not credited
    {"kind":"credit","note":BASE64}                             a credit note without its relay receipt
    {"kind":"proof","tally":BASE64,"proof":BASE64}
    {"kind":"reputation","note":BASE64}                         a peer's reputation in the learner's ledger
    {"kind":"end","lines":COUNT,"sha256":HEX}                   of all lines before it, line ends included

The hash on the last line detects files that were cut off or damaged. It proves nothing; the envelopes do.

Invariants:

- A list of lines makes exactly one file.
- A line is bounded before it is parsed.
- A wrong line is a FormError with the field, never another exception.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from learner.artifacts.regular_file import open_file
from node.runtime.atomic_files import require_own, require_place
from protocol.accounting.credit_note import MAX_CREDIT_NOTE_BYTES
from protocol.accounting.relay_receipt import MAX_RELAY_RECEIPT_BYTES
from protocol.accounting.reputation_note import MAX_REPUTATION_NOTE_BYTES
from protocol.accounting.tally import MAX_PROOF_BYTES, MAX_TALLY_BYTES
from protocol.core.envelope import OVERHEAD_BYTES
from protocol.core.genesis import MAX_GENESIS_BYTES
from protocol.work import MAX_RECEIPT_BYTES

FORMAT = 1
"""Increases when an old program could misunderstand a new file."""

T = TypeVar("T")

Hex32 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: whose statement this is. `swarm` is the hash of the envelope `genesis`."""

    volery: Literal["statement"] = "statement"
    format: Annotated[int, Meta(ge=1, lt=1 << 53)] = FORMAT
    swarm: Hex32
    genesis: Annotated[bytes, Meta(max_length=MAX_GENESIS_BYTES + OVERHEAD_BYTES)]


class _Tagged(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="kind"
):
    """A later line, identified by its `kind`."""


class ReceiptLine(_Tagged, frozen=True, kw_only=True, tag="receipt"):
    """The envelope of a Receipt."""

    envelope: Annotated[bytes, Meta(max_length=MAX_RECEIPT_BYTES + OVERHEAD_BYTES)]


class RelayLine(_Tagged, frozen=True, kw_only=True, tag="relay"):
    """The envelopes of a RelayReceipt and of its CreditNote; the latter is empty if there is none."""

    envelope: Annotated[bytes, Meta(max_length=MAX_RELAY_RECEIPT_BYTES + OVERHEAD_BYTES)]
    note: Annotated[bytes, Meta(max_length=MAX_CREDIT_NOTE_BYTES + OVERHEAD_BYTES)] = b""


class CreditLine(_Tagged, frozen=True, kw_only=True, tag="credit"):
    """The envelope of a CreditNote alone. A relay has no relay receipts, because those are the receivers'."""

    note: Annotated[bytes, Meta(max_length=MAX_CREDIT_NOTE_BYTES + OVERHEAD_BYTES)]


class ProofLine(_Tagged, frozen=True, kw_only=True, tag="proof"):
    """The envelope of a Tally, and a Proof in its original encoding."""

    tally: Annotated[bytes, Meta(max_length=MAX_TALLY_BYTES + OVERHEAD_BYTES)]
    proof: Annotated[bytes, Meta(max_length=MAX_PROOF_BYTES)]


class ReputationLine(_Tagged, frozen=True, kw_only=True, tag="reputation"):
    """The envelope of a ReputationNote."""

    note: Annotated[bytes, Meta(max_length=MAX_REPUTATION_NOTE_BYTES + OVERHEAD_BYTES)]


class EndLine(_Tagged, frozen=True, kw_only=True, tag="end"):
    """The last line: the number of lines before it, and their hash."""

    lines: Annotated[int, Meta(ge=0, lt=1 << 53)]
    sha256: Hex32


Line = ReceiptLine | RelayLine | CreditLine | ProofLine | ReputationLine
AnyLine = Line | EndLine

MAX_LINE_BYTES = 4 * (MAX_RELAY_RECEIPT_BYTES + MAX_CREDIT_NOTE_BYTES + 2 * OVERHEAD_BYTES + 3) // 3 + 256
"""Most bytes of a line: the largest relay receipt and its note in base64, 1.4 MB."""

MAX_ERROR_CHARS = 160
"""Most characters of an error: msgspec quotes the wrong value, which may be long."""

_encoder = msgspec.json.Encoder()
_head = msgspec.json.Decoder(Head)
_line: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


class FormError(ValueError):
    """A wrong line. `field` is the part concerned, or "line" for all of it."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(detail)
        self.field = field


class TooLong(FormError):
    """A line that is longer than allowed. Its end and the following lines are not read."""


def write_lines(head: Head, lines: Iterable[Line]) -> Iterator[bytes]:
    """Yield the file, line by line."""
    digest, count = hashlib.sha256(), 0
    for line in chain[Head | Line]((head,), lines):
        raw = _encoder.encode(line) + b"\n"
        digest.update(raw)
        count += 1
        yield raw
    yield _encoder.encode(EndLine(lines=count, sha256=digest.hexdigest())) + b"\n"


def read_head(raw: bytes) -> Head:
    """Return the first line of a file. Raises FormError."""
    head = _decoded(_head, raw)
    if head.format != FORMAT:
        raise FormError("format", f"the file has format {head.format}, this program reads {FORMAT}: use a newer volery")
    _require_canonical(head, raw)
    return head


def read_line(raw: bytes) -> AnyLine:
    """Return a later line. Raises FormError."""
    line = _decoded(_line, raw)
    _require_canonical(line, raw)
    return line


def _decoded(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    if len(raw) > MAX_LINE_BYTES:
        raise TooLong("line", f"it has more than {MAX_LINE_BYTES} bytes; the lines after it were not read")
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # msgspec puts the field at the end, such as "$.envelope", after its message.
        what, _, path = str(error)[:MAX_ERROR_CHARS].partition(" - at `$.")
        raise FormError(path.rstrip("`") or "line", what) from None


def _require_canonical(line: msgspec.Struct, raw: bytes) -> None:
    """Require the one encoding of a line, so that equal statements are equal files. Raises FormError."""
    if _encoder.encode(line) + b"\n" != raw:
        raise FormError("line", "it is not as `volery receipts export` writes it (order, spaces, line end)")


LOOKED_AT = 4
"""Lines that are read, the first included: what follows the receipt and the proof tells a proof from an export."""


class Shape(Enum):
    """The kind of a statement. The value is its name for people."""

    RECEIPTS = "export of receipts"
    PROOF = "proof of a record"
    REPUTATIONS = "export of reputations"


def require_out(out: Path, shape: Shape) -> None:
    """Check, before any other work, that a statement may be written to `out`. Raises UsageError, RunError.

    An existing file is replaced only if it has the same shape, or states nothing.
    """
    require_place(out, "--out")
    require_own(out, "--out", f"no {shape.value} that volery wrote", lambda path: shape in shapes_of(path))


def shapes_of(path: Path) -> frozenset[Shape]:
    """Return which commands may have written a statement file, judged by its first lines. Raises OSError.

    It is empty if the file is no statement, and holds all shapes if the file states nothing. Only four lines are read,
    and they are not verified. Two exports look like those of another command: one receipt with one proof, which is what
    proves a record; and a node's export that has a reputation and nothing before it.
    """
    with open_file(path) as file:
        lines = list(islice(_lines(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")), LOOKED_AT))
    match lines:
        case []:
            return frozenset()
        case [EndLine(), *_]:
            return frozenset(Shape)
        case [ReputationLine(), *_]:
            return frozenset({Shape.REPUTATIONS})
        case [ProofLine(), EndLine(), *_] | [ReceiptLine(), ProofLine(), EndLine(), *_]:
            return frozenset({Shape.PROOF})
        case [ReceiptLine(), ProofLine(), ProofLine(), *_] | [ProofLine(), *_]:
            return frozenset({Shape.PROOF, Shape.RECEIPTS})  # many records, or one that was trained on twice
        case _:
            return frozenset({Shape.RECEIPTS})


def _lines(raw: Iterator[bytes]) -> Iterator[AnyLine]:
    """Yield the lines after the first, up to a wrong one; none if the file does not begin as a statement does."""
    try:
        read_head(next(raw, b""))
        for one in raw:
            yield read_line(one)
    except FormError:
        return
