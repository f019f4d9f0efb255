"""Check `docs/reference/protocol.md`: its tables, limits, tags, rules and worked bytes are those of the code.

Write the row of a new message or field there first; this file says which one is missing, or no longer right.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from protocol import work
from protocol.core import limits
from protocol.core.codec import Message, Row, decode, encode
from protocol.core.envelope import Kind, Signable, seal
from protocol.core.identity import Keypair, verify
from protocol.core.ids import SwarmId
from protocol.patches.byte_streams import Codec
from protocol.patches.patch import MAGIC
from protocol.patches.segment_format import FLOATS, MAX_SPLITS, SegmentEncoding
from protocol.versions import announcement, exchange
from protocol.versions.manifest import DTYPE_BYTES, FILE_NAME
from protocol.versions.safetensors_header import LENGTH_BYTES, MAX_HEADER_BYTES
from protocol.work import FromLearner, FromNode, Rule
from tests.protocol.patches import test_patch
from tests.support.paths import ROOT
from tests.support.protocol_modules import protocol_modules

TEXT = (ROOT / "docs" / "reference" / "protocol.md").read_text()
MODULES = protocol_modules()
NUMBERS = {"2^40": 2**40, "2^40-1": 2**40 - 1, "2^53-1": 2**53 - 1, "2^31-1": 2**31 - 1}


def struct_classes() -> Iterator[type[msgspec.Struct]]:
    """Every message of `protocol` and every part of one."""
    for module in MODULES:
        for name, value in vars(module).items():
            ours = isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
            if ours and value not in (Message, Row, Signable) and not name.startswith("_"):
                yield value


CLASSES = sorted(struct_classes(), key=lambda cls: cls.__name__)
SECTIONS = dict(re.findall(r"^#### (\w+)\n(.*?)(?=^#|\Z)", TEXT, flags=re.MULTILINE | re.DOTALL))


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows below a header, without backquotes."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:3] == "| `"]
    return [[cell.strip("`") if cell.count("`") == 2 else cell for cell in row] for row in cells]


def said(text: str) -> str:
    """Return a type as the tables write it, with its large numbers spelled out."""
    for power, number in NUMBERS.items():
        text = re.sub(re.escape(power) + r"(?!-)", str(number), text)
    return text


def written(kind: inspect.Type) -> str:
    """Return the same form of a type in the code."""
    match kind:
        case inspect.IntType(ge=0, lt=lt) if lt == 1 << 53:
            return "count"
        case inspect.IntType(ge=0, lt=None, le=None):
            return "u64"
        case inspect.IntType(ge=0, le=limits.MAX_MILLIS):
            return "ms"
        case inspect.IntType(ge=ge, lt=lt, le=le):
            return f"integer {ge}..{le if lt is None else lt - 1}"
        case inspect.FloatType(ge=ge, gt=gt, le=le):
            low, high = (f"{bound:g}".replace("e+", "e") for bound in (gt if ge is None else ge, le))
            return f"float {low}..{high}"
        case inspect.StrType(min_length=52, max_length=52):
            return "peer"
        case inspect.StrType(min_length=low, max_length=high):
            return "text" + bounds(low, high)
        case inspect.BytesType(min_length=low, max_length=high):
            return "bytes" + bounds(low, high)
        case inspect.ListType(item_type=item, min_length=low, max_length=high):
            return f"list{bounds(low, high)} of {written(item)}"
        case inspect.UnionType(types=(one, inspect.NoneType())) | inspect.UnionType(types=(inspect.NoneType(), one)):
            return written(one) + "?"
        case inspect.BoolType():
            return "bool"
        case inspect.EnumType():
            return "text"
        case inspect.StructType(cls=cls):
            return "version" if cls.__name__ == "PolicyVersion" else cls.__name__
    raise NotImplementedError(str(kind))


def bounds(low: int | None, high: int | None) -> str:
    if high is None:
        return ""
    if low == high:
        return f" {high}"
    return f" {low}..{high}" if low else f" <= {high}"


def test_every_message_has_a_section_and_every_section_a_message() -> None:
    assert set(SECTIONS) == {cls.__name__ for cls in CLASSES}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_section_is_true(cls: type[msgspec.Struct]) -> None:
    shape = inspect.type_info(cls)
    assert isinstance(shape, inspect.StructType)
    fields = [field for field in shape.fields if field.name != "ext"]
    table = {row[0]: row for row in rows(SECTIONS[cls.__name__]) if len(row) == 4}
    assert list(table) == [field.encode_name for field in fields]
    for field in fields:
        _, kind, default, _ = table[field.encode_name]
        assert said(kind) == written(field.type), field.encode_name
        if kind.endswith("?"):
            assert field.default is None
        elif not default:
            assert field.required or cls.__name__ == "Invite", field.encode_name
        else:
            empty = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            assert ast.literal_eval(default) == empty, field.encode_name
    tag = re.match(r"\s*Tag `([^`]+)`", SECTIONS[cls.__name__])
    assert (tag.group(1) if tag else None) == cls.__struct_config__.tag
    assert ("Array." in SECTIONS[cls.__name__]) == cls.__struct_config__.array_like


def test_limits_are_true_and_complete() -> None:
    told = {row[0]: int(row[1]) for row in rows(TEXT) if re.match(r"(MAX|PROTOCOL|OVERHEAD|PATCH|MANIFEST)_", row[0])}
    known = {name: value for module in MODULES for name, value in vars(module).items() if isinstance(value, int)}
    assert told == {name: known[name] for name in told}
    assert {name for name in vars(limits) if name.startswith("MAX_")} <= set(told)


def test_kinds_rules_and_streams_are_told() -> None:
    kinds = [
        name
        for row in rows(TEXT)
        if row[-1] in ("the swarm id", "32 zero bytes", "")
        for name in re.findall(r"[\w-]+", row[0])
    ]
    assert {kind.value for kind in Kind} <= set(kinds)
    table = TEXT[TEXT.index("| rule | a record is refused when") : TEXT.index("A group of which a record is stale")]
    rules = [row[0] for row in rows(table)]
    assert rules == [rule.value for rule in Rule if rule not in (Rule.ADMITTED, Rule.OTHER)] + ["admitted"]
    for stream in (exchange.ASK, exchange.EXCHANGE, exchange.CHUNKS, work.WORK):
        assert f"| `{stream}` |" in TEXT
    topic = announcement.topic_of(SwarmId(bytes(32)))
    assert topic.replace("0" * 64, "<swarm id, 64 lower-case hex digits>") in TEXT


def test_file_names_and_dtypes_are_told() -> None:
    assert f"`{FILE_NAME.pattern}`" in TEXT
    told = re.search(r"`(F64 [A-Z0-9_ ]+)`", TEXT)
    assert told
    assert set(told.group(1).split()) == set(DTYPE_BYTES)


def hex_blocks() -> list[list[str]]:
    return [block.strip().splitlines() for block in re.findall(r"```hex\n(.*?)```", TEXT, flags=re.DOTALL)]


def raw(line: str) -> bytes:
    """Return the bytes of one line: hex up to the first run of three spaces, without a direction mark."""
    return bytes.fromhex(re.split(r" {3,}", line.strip().lstrip("<> "))[0])


def test_worked_bytes_are_true() -> None:
    message, envelope, signed, *_ = hex_blocks()
    frame = b"".join(map(raw, message))
    assert frame == (len(frame) - 4).to_bytes(4, "big") + encode(exchange.AskManifest(manifest=b"\x8a" * 32))
    author = Keypair(bytes(range(32)))
    sealed = seal(author, SwarmId(b"\x8a" * 32), Kind.LEASE, b"words")
    assert b"".join(map(raw, envelope)) == sealed
    assert verify(author.public, sealed[-64:], b"".join(map(raw, signed)))


def test_the_worked_patch_is_one() -> None:
    *_, patch, _ = hex_blocks()
    assert b"".join(map(raw, patch)) == test_patch.GOLDEN


def test_patches_are_told() -> None:
    assert f'"{MAGIC.decode()[:-1]}\\n" | u32 length' in TEXT
    assert f"at most {LENGTH_BYTES + MAX_HEADER_BYTES}\n" in TEXT
    assert f"`{' '.join(dtype for dtype in DTYPE_BYTES if dtype in FLOATS)}`" in TEXT
    for member in (*SegmentEncoding, *Codec):
        assert f"| {member.value} | {member.name.lower()} |" in TEXT
    assert "three in all" in TEXT
    assert MAX_SPLITS == 3


def test_the_worked_exchange_is_one() -> None:
    lines = hex_blocks()[-1]
    unions: dict[str, Any] = {">": FromNode, "<": FromLearner}
    frames = [decode(unions[line[0]], raw(line), 1 << 16) for line in lines]
    told = ["Hello", "Welcome", "LeaseRequest", "Grant", "Started", "Delivery", "Acknowledgement", "Goodbye"]
    assert [type(frame).__name__ for frame in frames] == told
    assert [encode(frame) for frame in frames] == [raw(line) for line in lines]
