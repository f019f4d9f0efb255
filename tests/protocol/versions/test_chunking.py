"""Cutting and its inverse: byte identity, coverage, bounds, stable names; and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.digest import cid_of
from protocol.core.limits import KIB, MIB
from protocol.versions.chunking import MAX_CUT_BYTES, Tables, changed_chunks, chunk_size_for, placements, plan_files
from protocol.versions.manifest import DTYPE_BYTES
from protocol.versions.safetensors_header import LayoutError
from tests.support.chunks import describe, read_file
from tests.support.store_fixture import safetensors_file, small_model, small_swarm, source, tensor

SWARM = small_swarm()


@st.composite
def weights(draw: st.DrawFn) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensor tables with scalars, empty tensors, and sizes from a byte to several chunks."""
    names = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=8))
    out = {}
    for name in names:
        if name == "__metadata__":
            continue
        dtype = draw(st.sampled_from(sorted(DTYPE_BYTES)))
        shape = draw(st.lists(st.integers(0, 40), max_size=2))
        out[name] = tensor(draw(st.integers(0, 3)), *shape, dtype=dtype)
    return out


plain = st.binary(max_size=1500)
chunk_sizes = st.sampled_from([64, 128, 256, 1024, 64 * KIB])


@given(weights(), weights(), plain, chunk_sizes)
def test_files_come_back_byte_identical(first: dict, second: dict, other: bytes, chunk_bytes: int) -> None:  # type: ignore[type-arg]
    second = {name: value for name, value in second.items() if name not in first}
    files = {"a.safetensors": safetensors_file(first), "b.safetensors": safetensors_file(second), "c.json": other}
    signed = SWARM.publish(files, chunk_bytes=chunk_bytes)
    chunks = {}
    for index, places in enumerate(placements(signed.manifest)):
        ref = signed.manifest.chunks[index]
        for place in places:
            data = files[signed.manifest.files[place.file].name][place.offset : place.offset + ref.size]
            assert cid_of(data) == ref.name  # all places of a chunk hold the same bytes
            chunks[ref.name] = data
    assert {name: b"".join(read_file(signed.manifest, name, chunks.__getitem__)) for name in files} == files
    tensors = {entry.name: entry for entry in signed.manifest.tensors}
    for name, (dtype, shape, data) in {**first, **second}.items():
        entry = tensors.pop(name)
        file = files[signed.manifest.files[entry.file].name]
        assert (entry.dtype, tuple(entry.shape), file[entry.start : entry.end]) == (dtype, shape, data)
    assert not tensors


@given(weights(), plain, chunk_sizes)
def test_pieces_cover_every_byte_once_and_stay_small(tensors: dict, other: bytes, chunk_bytes: int) -> None:  # type: ignore[type-arg]
    files = {"m.safetensors": safetensors_file(tensors), "x.txt": other}
    for plan in plan_files([source(name, data) for name, data in files.items()], chunk_bytes=chunk_bytes):
        pieces = list(plan.pieces)
        assert sum(end - start for start, end in pieces) == plan.source.size
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
        assert all(0 < end - start <= chunk_bytes for start, end in pieces)


@given(weights(), chunk_sizes)
def test_cuts_respect_tensors(tensors: dict, chunk_bytes: int) -> None:  # type: ignore[type-arg]
    data = safetensors_file(tensors)
    (plan,) = plan_files([source("m.safetensors", data)], chunk_bytes=chunk_bytes)
    assert plan.table is not None
    cuts = {0, *plan.cuts}
    assert plan.table.header_bytes in cuts
    for span in plan.table.spans:
        inside = [cut for cut in plan.cuts if span.start < cut < span.end]
        if span.end - span.start <= chunk_bytes:
            assert not inside
        else:  # cut at both ends, and into as few pieces as fit
            assert {span.start, span.end} <= cuts
            assert len(inside) == -(-(span.end - span.start) // chunk_bytes) - 1
            assert all((cut - span.start) % 64 == 0 for cut in inside)
    # Small neighbours are packed: no two adjacent pieces of whole small tensors would have fitted into one.
    large = [span for span in plan.table.spans if span.end - span.start > chunk_bytes]
    pieces = [piece for piece in plan.pieces if piece[0] >= plan.table.header_bytes]
    for (start, _), (middle, end) in pairwise(pieces):
        cut_again = any(span.start < end and start < span.end for span in large)
        assert end - start > chunk_bytes or cut_again, middle


def test_equal_tensors_and_headers_share_chunks_between_versions() -> None:
    old, new = SWARM.publish(small_model(1), version=1), SWARM.publish(small_model(2), version=2)
    changed = {new.manifest.chunks[index].cid for index in changed_chunks(old.manifest, new.manifest)}
    weights_file = next(entry for entry in new.manifest.files if entry.name == "model.safetensors")
    offsets = {}
    offset = 0
    for index in weights_file.chunks:
        offsets[offset] = new.manifest.chunks[index].cid in changed
        offset += new.manifest.chunks[index].size
    embed = next(entry for entry in new.manifest.tensors if entry.name == "embed")
    assert not any(is_new for start, is_new in offsets.items() if start < embed.end)  # header and embedding
    assert all(is_new for start, is_new in offsets.items() if start >= embed.end)
    assert changed_chunks(new.manifest, new.manifest) == []
    assert changed_chunks(old.manifest, new.manifest) != []


def test_equal_chunks_are_listed_once() -> None:
    tables = describe([source("a.txt", bytes(1024)), source("b.txt", bytes(512))], chunk_bytes=256)
    assert len(tables.chunks) == 1
    assert [entry.chunks for entry in tables.files] == [[0] * 4, [0] * 2]


def test_an_empty_file_has_no_chunks() -> None:
    assert describe([source("empty.json", b"")]).files[0].chunks == []


def sharded() -> dict[str, bytes]:
    index = {
        "metadata": {},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
    return {
        "model-00001-of-00002.safetensors": safetensors_file({"a": tensor(1, 9)}),
        "model-00002-of-00002.safetensors": safetensors_file({"b": tensor(2, 9)}),
        "model.safetensors.index.json": json.dumps(index).encode(),
    }


def described(files: dict[str, bytes]) -> Tables:
    return describe([source(name, data) for name, data in files.items()])


def test_a_sharded_directory_names_each_tensor_in_its_shard() -> None:
    tables = described(sharded())
    assert [(entry.name, tables.files[entry.file].name) for entry in tables.tensors] == [
        ("a", "model-00001-of-00002.safetensors"),
        ("b", "model-00002-of-00002.safetensors"),
    ]


def test_the_order_of_files_does_not_matter() -> None:
    assert described(sharded()) == described(dict(reversed(sharded().items())))


def test_a_missing_shard_is_named() -> None:
    files = sharded()
    del files["model-00002-of-00002.safetensors"]
    with pytest.raises(LayoutError, match=r"index.json: says that tensor 'b' is in model-00002.*Is a shard missing"):
        described(files)


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b'{"weight_map": 3}', b"\xff"])
def test_a_broken_index_is_named(index: bytes) -> None:
    with pytest.raises(LayoutError, match=r"index\.json: not the index"):
        described({**sharded(), "model.safetensors.index.json": index})


def test_a_tensor_in_two_shards_is_named() -> None:
    same = safetensors_file({"a": tensor(1, 9)})
    with pytest.raises(LayoutError, match=r"y\.safetensors: tensor 'a' is in x\.safetensors as well"):
        described({"x.safetensors": same, "y.safetensors": same})


@pytest.mark.parametrize("name", ["../x.json", "a/b.json", ".x.json", "model.bin", "run.py", "", "x" * 200 + ".json"])
def test_names_that_may_not_travel_are_refused(name: str) -> None:
    with pytest.raises(LayoutError, match="may be published"):
        described({name: b"1"})


def test_a_file_given_twice_is_refused() -> None:
    with pytest.raises(LayoutError, match="was given twice"):
        describe([source("a.txt", b"1"), source("a.txt", b"2")])


def test_a_file_that_shrinks_while_it_is_read_is_named() -> None:
    shrinking = source("a.txt", b"12345678")
    with pytest.raises(LayoutError, match="ends at byte 4 instead of 8"):
        describe([type(shrinking)(name="a.txt", size=8, read=lambda offset, size: b"1234"[offset : offset + size])])


def header(text: str | bytes, body: bytes = b"") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return len(raw).to_bytes(8, "little") + raw + body


ONE = '"dtype":"U8","shape":[4],"data_offsets":'


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"1234567", "too few"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "at most 16777216"),
        (header("{}")[:-1], "ends inside its header"),
        (header("[]"), "brace"),
        (header("{"), "not JSON"),
        (header(b'{"\xff":1}'), "not JSON"),
        (header("{" + '"a":{' * 100_000), "not JSON"),
        (header(f'{{"a":{{{ONE}[0,4]}},"a":{{{ONE}[0,4]}}}}', bytes(4)), "twice"),
        (header(f'{{"a":{{{ONE}[0,4]}},"b":{{{ONE}[2,6]}}}}', bytes(6)), "tensor 'b' overlaps"),
        (header(f'{{"a":{{{ONE}[0,4]}},"b":{{{ONE}[5,9]}}}}', bytes(9)), "tensor 'b' has a gap"),
        (header(f'{{"a":{{{ONE}[1,5]}}}}', bytes(5)), "tensor 'a' has a gap"),
        (header(f'{{"a":{{{ONE}[0,4]}}}}', bytes(5)), "tensors end at byte 65, but the file at 6[46]"),
        (header(f'{{"a":{{{ONE}[0,4]}}}}', bytes(3)), "tensors end at byte 65, but the file at 6[46]"),
        (header(f'{{"a":{{{ONE}[0,3]}}}}', bytes(3)), "tensor 'a' has 3 bytes, but its shape needs 4"),
        (header(f'{{"a":{{{ONE}[4,0]}}}}', bytes(4)), "tensor 'a' has -4 bytes"),
        (header('{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,4]}}', bytes(4)), "unknown dtype 'F4'"),
        (header('{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,4]}}', bytes(4)), "tensor 'a': .*shape"),
        (header('{"a":{"dtype":"U8","shape":[4.0],"data_offsets":[0,4]}}', bytes(4)), "tensor 'a': .*shape"),
        (header('{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4]}}', bytes(4)), "tensor 'a'"),
        (header('{"a":{"dtype":"U8","shape":[4]}}', bytes(4)), "tensor 'a': .*data_offsets"),
        (header('{"\\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', bytes(4)), "surrogates"),
    ],
)
def test_a_bad_safetensors_file_is_named_with_its_tensor(data: bytes, complaint: str) -> None:
    with pytest.raises(LayoutError, match=rf"w\.safetensors: .*{complaint}"):
        described({"w.safetensors": data})


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_hostile_headers_raise_nothing_but_layout_errors(text: bytes, body: bytes) -> None:
    for data in (text + body, header(text, body), header(b'{"a":' + text + b"}", body)):
        with suppress(LayoutError):
            assert sum(chunk.size for chunk in described({"w.safetensors": data}).chunks) <= len(data)


def test_metadata_and_padding_belong_to_the_header() -> None:
    data = safetensors_file({"a": tensor(1, 3, dtype="U8")}, {"format": "pt"})
    (plan,) = plan_files([source("w.safetensors", data)])
    assert plan.table is not None
    assert [(span.name, span.start, span.end) for span in plan.table.spans] == [("a", len(data) - 3, len(data))]


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (0, 64 * KIB),
        (16 * MIB - 1, 64 * KIB),
        (64 * MIB, 128 * KIB),
        (256 * MIB - 1, 128 * KIB),
        (256 * MIB, 512 * KIB),
        (2048 * MIB - 1, 512 * KIB),
        (2048 * MIB, MIB),
        (8192 * MIB - 1, MIB),
        (8192 * MIB, 2 * MIB),
        (1 << 39, 4 * MIB),
    ],
)
def test_chunk_size_follows_model_size(total: int, expected: int) -> None:
    assert chunk_size_for(total) == expected


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_chunk_size_is_a_bounded_power_of_two_and_grows(first: int, second: int) -> None:
    small, large = sorted((first, second))
    size = chunk_size_for(small)
    assert 64 * KIB <= size <= MAX_CUT_BYTES
    assert size & (size - 1) == 0
    assert size <= chunk_size_for(large)
