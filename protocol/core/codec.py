"""Encode messages as bytes and decode them (MessagePack through msgspec).

All messages from outside pass through `decode`, so consumers can use its results without further checks. No integer
overflows a column or an array, no number is NaN or infinite, no date is beyond calendars, and no text can control a
terminal.

Invariants:

- The size is checked before anything is parsed, and every field is bounded by its type. Messages that we sign or send
  pass the same bounds (`require_bounds`).
- Text for people (`Name`, `Reason`) becomes one harmless line (`protocol.core.visible`) when a message is built or
  read.
- A reader ignores unknown fields. Signatures cover the bytes as sent, so nothing is re-encoded to check one.
- Every message may carry named extensions (`ext`). Old readers keep them without understanding them.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from threading import Lock
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np
from msgspec import Meta

from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.limits import (
    MAX_ADDRESS_CHARS,
    MAX_EXTENSION_BYTES,
    MAX_EXTENSION_NAME_CHARS,
    MAX_EXTENSIONS,
    MAX_MILLIS,
    MAX_NAME_CHARS,
    MAX_REASON_CHARS,
    MAX_REWARD,
    MAX_SECONDS,
    MAX_TOKEN_ID,
)
from protocol.core.visible import one_line

Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bytes36 = Annotated[bytes, Meta(min_length=36, max_length=36)]
Bytes64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
"""A non-negative integer that a double represents exactly in every language."""
Millis = Annotated[int, Meta(ge=0, le=MAX_MILLIS)]
"""Milliseconds. Points in time count from 1970-01-01 UTC."""
TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Seed = Annotated[int, Meta(ge=0)]
"""An unsigned 64-bit integer. MessagePack integers end at 2**64 - 1, so the codec itself is the upper bound."""
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Reward = Annotated[float, Meta(ge=-MAX_REWARD, le=MAX_REWARD)]
"""A reward. The bound also excludes NaN and the infinities, which would spread through every sum."""


class Shown:
    """Marks text for people: it becomes one harmless line of at most the length that its type allows."""


class Packed:
    """Marks token ids that are packed by `pack_tokens`."""


Name = Annotated[str, Meta(max_length=MAX_NAME_CHARS), Shown]
Reason = Annotated[str, Meta(max_length=MAX_REASON_CHARS), Shown]
Label = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
"""A name that programs look up. It is not changed, so code that shows it must make it harmless."""
Address = Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS, pattern=r"^[^\x00-\x20\x7f-\x9f]*\Z")]
PeerText = Annotated[str, Meta(min_length=52, max_length=52, pattern=r"^[1-9A-HJ-NP-Za-km-z]*\Z")]
"""A peer id in base58."""
ExtensionName = Annotated[str, Meta(max_length=MAX_EXTENSION_NAME_CHARS)]
ExtensionValue = Annotated[bytes, Meta(max_length=MAX_EXTENSION_BYTES)]
Extensions = Annotated[dict[ExtensionName, ExtensionValue], Meta(max_length=MAX_EXTENSIONS)]


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of every message: a MessagePack map from field name to value; a field at its default may be left out.

    Because it may be left out or not, one message has several encodings. So a digest or a signature is only ever taken
    of bytes as sent.
    """

    ext: Extensions = {}

    def __post_init__(self) -> None:
        settle(self)


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Base of parts of messages that hold text for people or token ids: an array of values, settled like a message."""

    def __post_init__(self) -> None:
        settle(self)


class OpenEnum(Enum):
    """Base of enums that may gain values. Each has `OTHER`, which a reader uses for a value that it does not know.

    `OTHER` is never sent.
    """

    @classmethod
    def _missing_(cls, value: object) -> OpenEnum:
        return cls["OTHER"]


class OutOfRange(LocalProtocolError, ValueError):
    """A field that no type can bound is out of range. During decoding it becomes a PeerError."""


M = TypeVar("M")
K = TypeVar("K")

MAX_ERROR_CHARS = 200
"""Length of a quoted msgspec error. It contains the offending value, which a peer can make as long as its message."""

_encoder = msgspec.msgpack.Encoder()
_building = Lock()


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    with _building:
        return msgspec.msgpack.Decoder(kind)


def ready(kind: K) -> K:
    """Return `kind` after msgspec has prepared it completely. Call this before any thread decodes one.

    msgspec 0.22 prepares a class when it reads the first value, and other threads see the unfinished result. If two
    threads read the first value at the same time, one of them ends the process with SIGSEGV.
    """
    _decoder(kind)
    return kind


def encode(message: msgspec.Struct) -> bytes:
    """Return the bytes of `message`, fields in the order of declaration. Before sending, call `require_bounds`."""
    return _encoder.encode(message)


def decode(kind: Any, raw: bytes | memoryview, limit: int) -> Any:
    """Return the message of type `kind` (a Message class, or a union of tagged ones) in `raw`.

    Raises PeerError(OVERSIZED) before parsing if `raw` is longer than `limit` bytes, and PeerError(MALFORMED), naming
    the field, if it is not such a message.
    """
    if len(raw) > limit:
        raise PeerError(Fault.OVERSIZED, f"{len(raw)} bytes, at most {limit} allowed")
    try:
        return _decoder(kind).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(Fault.MALFORMED, str(error)[:MAX_ERROR_CHARS]) from error


def settle(message: msgspec.Struct) -> None:
    """Make the text for people in a new `message` harmless. Raise OutOfRange if its token ids are invalid.

    The constructor calls this, also during decoding. Nested messages have settled themselves.
    """
    for name, limit in texts_of(type(message)):
        text = getattr(message, name)
        if not text.isprintable():
            msgspec.structs.force_setattr(message, name, one_line(text, limit) or "-")  # never empty
    for name in packed_fields(type(message)):
        require_tokens(name, getattr(message, name))


@cache
def texts_of(kind: type) -> tuple[tuple[str, int], ...]:
    """Return the fields with text for people, and the largest length of each."""
    return tuple(
        (name, next(one.max_length for one in marks if isinstance(one, Meta) and one.max_length is not None))
        for name, marks in _marks(kind)
        if Shown in marks
    )


@cache
def packed_fields(kind: type) -> tuple[str, ...]:
    """Return the fields with packed token ids."""
    return tuple(name for name, marks in _marks(kind) if Packed in marks)


def _marks(kind: type) -> list[tuple[str, tuple[Any, ...]]]:
    return [(name, get_args(of)[1:]) for name, of in get_type_hints(kind, include_extras=True).items()]


def require_bounds(message: M) -> M:
    """Return our own `message` if it is within the declared bounds, else raise LocalProtocolError."""
    try:
        plain = msgspec.to_builtins(message, builtin_types=(bytes,))
        # Without `builtin_types` here, msgspec would read text as bytes in base64.
        msgspec.convert(plain, ready(type(message)), builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise LocalProtocolError(f"{type(message).__name__}: {error}") from error
    return message


TOKEN_DTYPE = np.dtype("<u4")
LOGPROB_DTYPE = np.dtype("<f4")


def pack_tokens(tokens: tuple[int, ...] | list[int]) -> bytes:
    """Pack token ids as unsigned 32-bit little-endian integers, 4 bytes each."""
    return np.asarray(tokens, TOKEN_DTYPE).tobytes()


def require_tokens(name: str, raw: bytes) -> None:
    """Raise OutOfRange, naming the field, unless `raw` is packed token ids up to MAX_TOKEN_ID."""
    if len(raw) % 4:
        raise OutOfRange(f"{name}: {len(raw)} bytes of token ids are not a multiple of 4")
    ids = np.frombuffer(raw, TOKEN_DTYPE)
    if ids.size and (largest := int(ids.max())) > MAX_TOKEN_ID:
        raise OutOfRange(f"{name}: token id {largest} is over {MAX_TOKEN_ID}")


def unpack_tokens(raw: bytes) -> tuple[int, ...]:
    """Unpack what `pack_tokens` packed. Raise PeerError(MALFORMED) if the length is not a multiple of four."""
    if len(raw) % 4:
        raise PeerError(Fault.MALFORMED, f"{len(raw)} bytes of token ids are not a multiple of 4")
    return tuple(np.frombuffer(raw, TOKEN_DTYPE).tolist())


def pack_logprobs(logprobs: tuple[float, ...] | list[float]) -> bytes:
    """Pack logprobs as 32-bit little-endian floats, 4 bytes each."""
    return np.asarray(logprobs, LOGPROB_DTYPE).tobytes()


def unpack_logprobs(raw: bytes) -> tuple[float, ...]:
    """Unpack what `pack_logprobs` packed.

    Raises PeerError(MALFORMED) for a bad length, a NaN, or a value that the seeded sampler cannot have drawn.
    """
    if len(raw) % 4:
        raise PeerError(Fault.MALFORMED, f"{len(raw)} bytes of logprobs are not a multiple of 4")
    values = np.frombuffer(raw, LOGPROB_DTYPE)
    # Written so that NaN fails.
    if not bool(((values >= MIN_LOGPROB) & (values <= MAX_POSITIVE_LOGPROB)).all()):
        raise PeerError(Fault.MALFORMED, f"a logprob is not a number from {MIN_LOGPROB:g} to 0")
    return tuple(values.tolist())


MIN_LOGPROB = -100.0
"""Smallest logprob, in nats. The seeded sampler's noise spans less than 41 nats a level, so no token that it draws can
be less likely than exp(-82)."""

MAX_POSITIVE_LOGPROB = 1e-3
"""Largest logprob. In bf16 arithmetic, log_softmax of a nearly certain token may be slightly above zero."""
