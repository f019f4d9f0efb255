"""Patches: any files come back from any others, byte for byte; golden bytes; and what a hostile one cannot do."""

from __future__ import annotations

import struct
import threading
import tracemalloc
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.codec import encode
from protocol.core.errors import Fault, PeerError
from protocol.core.limits import MAX_FILES, MAX_PATCH_HEAD_BYTES, MIB, PATCH_SEGMENT_BYTES
from protocol.patches.byte_streams import number
from protocol.patches.patch import MAGIC, PatchFile, PatchHead, apply_patch, encode_patch
from protocol.patches.worker_pool import WorkerPool
from protocol.versions.chunking import Source
from protocol.versions.manifest import DTYPE_BYTES
from protocol.versions.safetensors_header import LayoutError
from tests.integration.test_golden_bytes import literal
from tests.support.examples import examples
from tests.support.store_fixture import Tensors, safetensors_file, source, tensor

Files = Mapping[str, bytes]
WEIGHTS = "model.safetensors"


def sources(files: Files) -> list[Source]:
    return [source(name, data) for name, data in files.items()]


def patch_of(base: Files, target: Files) -> bytes:
    return b"".join(encode_patch(sources(base), sources(target)))


def applied(base: Files, patch: bytes, target: Files) -> Files:
    """What a reader makes of `patch` who expects the names and sizes of `target`: each byte once, in order."""
    rebuilt = {name: bytearray() for name in target}
    sizes = {name: len(data) for name, data in target.items()}
    for piece in apply_patch(sources(base), source("patch", patch), sizes):
        assert piece.offset == len(rebuilt[piece.file])
        rebuilt[piece.file] += piece.data
    return {name: bytes(data) for name, data in rebuilt.items()}


def require_exact(base: Files, target: Files) -> bytes:
    """The patch, after it was found to make the target, and not to be longer than that by more than its tables."""
    patch = patch_of(base, target)
    assert applied(base, patch, target) == target
    records = sum(1 + len(data) // PATCH_SEGMENT_BYTES for data in target.values()) + 40
    assert len(patch) <= sum(map(len, target.values())) + 2 * records + 200 + 50 * len(target)
    return patch


NAMES = ["a", "b", "c", "lm_head", "embed", "norm"]
PLAIN = ["config.json", "tokenizer.json", "merges.txt"]


@st.composite
def models(draw: st.DrawFn) -> dict[str, bytes]:
    """Up to three weight files and others: tensors of few names, so that two models share some, with any bits."""
    files: dict[str, bytes] = {}
    shards: list[dict[str, tuple[str, tuple[int, ...], bytes]]] = [{} for _ in range(draw(st.integers(0, 3)))]
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True)) if shards else ():
        dtype = draw(st.sampled_from(["BF16", "BF16", "F32", *sorted(DTYPE_BYTES)]))
        shape = draw(st.sampled_from([(), (0,), (1,), (7,), (3, 0, 2), (16, 24)]))
        data = bytearray(tensor(draw(st.integers(0, 1)), *shape, dtype=dtype)[2])
        for place in draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=3)) if data else ():
            data[place] = draw(st.integers(0, 255))
        draw(st.sampled_from(shards))[name] = dtype, shape, bytes(data)
    for place, shard in enumerate(shards):
        files[f"model-{place}.safetensors"] = safetensors_file(shard, draw(st.sampled_from([None, {"format": "pt"}])))
    for name in draw(st.lists(st.sampled_from(PLAIN), unique=True)):
        files[name] = draw(st.sampled_from([b"", b"{}", b"[]", b'{"vocab": 512}', bytes(range(256)) * 3]))
    return files


@settings(max_examples=examples(200), deadline=None)
@given(models(), models())
def test_any_files_are_made_of_any_others(base: Files, target: Files) -> None:
    patch = require_exact(base, target)
    assert patch == patch_of(dict(reversed(base.items())), dict(reversed(target.items())))


@settings(max_examples=examples(50), deadline=None)
@given(models(), models(), st.integers(2, 4))
def test_threads_change_no_byte_and_no_order(base: Files, target: Files, num_threads: int) -> None:
    patch, sizes = source("patch", patch_of(base, target)), {name: len(data) for name, data in target.items()}
    serial = list(apply_patch(sources(base), patch, sizes))
    with WorkerPool(num_threads) as pool:
        pieces = list(encode_patch(sources(base), sources(target), pool))
        rebuilt = list(apply_patch(sources(base), patch, sizes, pool))
    assert pieces == list(encode_patch(sources(base), sources(target)))
    assert [(piece.file, piece.offset, bytes(piece.data)) for piece in rebuilt] == [
        (piece.file, piece.offset, bytes(piece.data)) for piece in serial
    ]


@settings(max_examples=examples(50), deadline=None)
@given(models())
def test_what_stays_costs_a_byte_a_run(files: Files) -> None:
    tensors = len(NAMES) if any(name.endswith(".safetensors") for name in files) else 0
    assert len(require_exact(files, files)) <= len(MAGIC) + 20 + 45 * len(files) + tensors


def bf16(*values: float) -> bytes:
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def one_file(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> dict[str, bytes]:
    return {WEIGHTS: safetensors_file(tensors, metadata)}


def noise(length: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(length)


def size_of(base: Files, target: Files) -> int:
    return len(require_exact(base, target))


def test_a_tensor_that_moves_to_another_shard_costs_nothing_but_headers() -> None:
    first, second = ("BF16", (500,), noise(1000)), ("BF16", (500,), noise(1000, 1))
    base = {"one.safetensors": safetensors_file({"a": first, "b": second})}
    target = {"one.safetensors": safetensors_file({"b": second}), "two.safetensors": safetensors_file({"a": first})}
    assert size_of(base, target) < 350


def test_tensors_in_another_order_cost_nothing_but_the_header() -> None:
    parts = {name: ("F32", (300,), noise(1200, place)) for place, name in enumerate(["a", "b", "c"])}
    assert size_of(one_file(parts), one_file(dict(reversed(parts.items())))) < 300


def test_a_tensor_that_is_no_longer_tied_is_sent_and_one_that_is_again_is_not() -> None:
    embed = ("BF16", (400, 2), noise(1600))
    tied, untied = one_file({"embed": embed}), one_file({"embed": embed, "lm_head": embed})
    assert 1600 < size_of(tied, untied) < 2000
    assert size_of(untied, tied) < 200


@pytest.mark.parametrize(
    "changed",
    [("F16", (500,), noise(1000)), ("BF16", (5, 100), noise(1000)), ("BF16", (400,), noise(800))],
    ids=["dtype", "shape", "length"],
)
def test_a_tensor_of_another_kind_is_sent_whole(changed: tuple[str, tuple[int, ...], bytes]) -> None:
    base = one_file({"a": ("BF16", (500,), noise(1000))})
    assert size_of(base, one_file({"a": changed})) > len(changed[2])


def test_equal_files_of_other_names_are_not_found() -> None:
    text = noise(300)
    assert size_of({"a.txt": text}, {"a.txt": text}) < 100 < 300 < size_of({"a.txt": text}, {"b.txt": text})


def test_runs_longer_than_a_segment_are_cut() -> None:
    length = 2 * PATCH_SEGMENT_BYTES + 100
    base, target = bytearray(noise(length)), bytearray(noise(length))
    for place in (0, PATCH_SEGMENT_BYTES - 1, PATCH_SEGMENT_BYTES, length - 1):
        target[place] ^= 1
    old, new = (
        {"merges.txt": bytes(data), **one_file({"w": ("U8", (length,), bytes(data))})} for data in (base, target)
    )
    assert size_of(old, new) < 250


def test_memory_is_a_few_segments_and_never_the_model() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, 14 * MIB, np.uint16)
    base = one_file({"w": ("BF16", bits.shape, bits.tobytes())})
    bits += rng.integers(0, 2, len(bits), np.uint16)
    target = one_file({"w": ("BF16", bits.shape, bits.tobytes())})
    old, new = ([viewed(WEIGHTS, files[WEIGHTS])] for files in (base, target))
    patch = viewed("patch", b"".join(encode_patch(old, new)))
    sizes = {WEIGHTS: len(target[WEIGHTS])}
    few = 12 * PATCH_SEGMENT_BYTES
    assert len(base[WEIGHTS]) > few
    assert peak(lambda: sum(map(len, encode_patch(old, new)))) < few
    assert peak(lambda: sum(len(piece.data) for piece in apply_patch(old, patch, sizes))) < few
    with WorkerPool(2) as pool:
        assert peak(lambda: sum(map(len, encode_patch(old, new, pool)))) < 2 * few
        assert peak(lambda: sum(len(piece.data) for piece in apply_patch(old, patch, sizes, pool))) < 2 * few


def long_model(seed: int, num_segments: int = 12) -> dict[str, bytes]:
    """A model of so many segments, a few values of each of which depend on the seed."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, num_segments * PATCH_SEGMENT_BYTES // 2, np.uint16)
    bits[:: 1 << 17] += np.uint16(seed)
    return one_file({"w": ("BF16", bits.shape, bits.tobytes())})


def test_long_models_are_rebuilt_on_threads_from_memory_that_is_used_again() -> None:
    old, new = long_model(0), long_model(1)
    with WorkerPool(3) as pool:
        patch = b"".join(encode_patch(sources(old), sources(new), pool))
        assert patch == patch_of(old, new)
        rebuilt = bytearray()
        for piece in apply_patch(sources(old), source("patch", patch), {WEIGHTS: len(new[WEIGHTS])}, pool):
            rebuilt += piece.data
            piece.release()
    assert rebuilt == new[WEIGHTS]


def counted(source: Source, reads: list[int]) -> Source:
    """`source`, which notes what is read of it beyond its header."""

    def read(offset: int, size: int) -> bytes | memoryview:
        if size > 1000:
            reads.append(offset)
        return source.read(offset, size)

    return Source(name=source.name, size=source.size, read=read)


def test_the_first_pieces_leave_before_the_last_segment_was_looked_at() -> None:
    reads: list[int] = []
    old, new = sources(long_model(0))[0], sources(long_model(1))[0]
    with WorkerPool(2) as pool:
        pieces = encode_patch([old], [counted(new, reads)], pool)
        head, header, first = next(pieces), next(pieces), next(pieces)
        pieces.close()
        read = len(reads)
        assert all((head, header, first))
        assert 0 < read < 12
        assert len(reads) == read, "nobody reads on"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("patch")]


def test_an_error_of_a_thread_comes_where_it_would_come_without_threads() -> None:
    """A base that ends early, which is known when its segment is read, comes before a patch that ends early."""
    old, new = long_model(0), long_model(1)
    patch = patch_of(old, new)
    base, sizes = sources(old)[0], {WEIGHTS: len(new[WEIGHTS])}
    short = 3 * PATCH_SEGMENT_BYTES
    cut = Source(name=WEIGHTS, size=base.size, read=lambda at, size: base.read(at, min(size, max(short - at, 0))))
    for num_threads in (1, 2, 3):
        rebuilt: list[int] = []
        with WorkerPool(num_threads) as pool, pytest.raises(LayoutError, match="ends at byte"):
            rebuilt.extend(piece.offset for piece in apply_patch([cut], source("patch", patch[:-6]), sizes, pool))
        assert len(rebuilt) == 3, "the header, and two segments"


def viewed(name: str, data: bytes) -> Source:
    """As a mapped file: reading copies nothing."""
    view = memoryview(data)
    return Source(name=name, size=len(data), read=lambda offset, size: view[offset : offset + size])


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# Golden bytes: a writer may choose otherwise, a reader must read these for ever.

CONFIG = b"{}"
OLD = {"config.json": CONFIG, **one_file({"w": ("BF16", (12,), bf16(0, 1, -1, 2, -2, 0.5, -0.5, 0.25, 3, 4, 5, 6))})}
NEW = {
    "config.json": CONFIG,
    **one_file({"w": ("BF16", (12,), bf16(0, 1.0078125, -1, 2, -1.9921875, 0.5, -0.5, 0.25, 3, -4, 5, 6))}),
}
GOLDEN = literal("""
    766f6c657279207061746368 20 31 0a         # "volery patch 1\\n"
    0000002c                                  # head: 44 bytes
      81                                      #   PatchHead: map of 1
        a5 66696c6573 92                      #     files: array of 2
          93                                  #       PatchFile: array of 3
            ab 636f6e6669672e6a736f6e         #         name: "config.json"
            02                                #         size: 2
            02                                #         plain: 2
          93                                  #       PatchFile: array of 3
            b1 6d6f64656c2e736166             #         name: "model.safetensors"
               6574656e736f7273
            60                                #         size: 96
            48                                #         plain: 72
    00                                        # config.json: same
    00                                        # model.safetensors, its header: same
    01                                        # w: gaps
      00000003                                #   three elements move
      00000003                                #   told by three bytes
      01 01 02 04                             #   raw: 1, 2 and 4 elements stay before them
      01 11 0f                                #   nibbles, raw: 1 (step 2), 1 (step 2); 15 (see planes), none
      01 fe                                   #   lowest bytes of long steps, raw
      01 fd                                   #   highest bytes, raw: 0xfdfe
""")


def test_golden_bytes() -> None:
    assert patch_of(OLD, NEW) == GOLDEN
    assert applied(OLD, GOLDEN, NEW) == NEW


# Hostile patches


def head_of(*files: PatchFile) -> bytes:
    raw = encode(PatchHead(files=list(files)))
    return MAGIC + number(len(raw)) + raw


SMALL_CONFIG, SMALL_WEIGHTS = PatchFile("config.json", 2, 2), PatchFile(WEIGHTS, 96, 72)
BODY = GOLDEN[len(head_of(SMALL_CONFIG, SMALL_WEIGHTS)) :]
OTHER_HEADER = safetensors_file({"w": ("BF16", (11,), bytes(22))})[:72]

WRONG: dict[str, tuple[bytes, Fault, str]] = {
    "no magic": (b"PK\3\4" + GOLDEN, Fault.INCOMPATIBLE, "version 1"),
    "another version": (GOLDEN.replace(b"patch 1", b"patch 2"), Fault.INCOMPATIBLE, "version 1"),
    "a head without end": (MAGIC + number(MAX_PATCH_HEAD_BYTES + 1), Fault.OVERSIZED, "a head of"),
    "a head that is none": (MAGIC + number(1) + b"\xc1", Fault.MALFORMED, "malformed"),
    "a file that is not in the manifest": (
        head_of(SMALL_CONFIG, SMALL_WEIGHTS, PatchFile("x.json", 0, 0)) + BODY, Fault.MALFORMED, "not those of",
    ),
    "a path": (head_of(PatchFile("../config.json", 2, 2), SMALL_WEIGHTS) + BODY, Fault.MALFORMED, "not those of"),
    "a file is missing": (head_of(SMALL_WEIGHTS) + BODY[1:], Fault.MALFORMED, "not those of"),
    "a file twice": (head_of(SMALL_CONFIG, SMALL_CONFIG, SMALL_WEIGHTS), Fault.MALFORMED, "not those of"),
    "another size": (head_of(PatchFile("config.json", 3, 3), SMALL_WEIGHTS) + BODY, Fault.MALFORMED, "not those of"),
    "tensors in a configuration": (
        head_of(PatchFile("config.json", 2, 0), SMALL_WEIGHTS) + BODY, Fault.MALFORMED, "no tensors",
    ),
    "a header longer than its file": (
        head_of(SMALL_CONFIG, PatchFile(WEIGHTS, 96, 97)) + BODY, Fault.OVERSIZED, "a header of 97",
    ),
    "a header of another length": (
        head_of(SMALL_CONFIG, PatchFile(WEIGHTS, 96, 71)) + BODY, Fault.MALFORMED, WEIGHTS,
    ),
    "a header that runs into its tensor": (
        head_of(SMALL_CONFIG, PatchFile(WEIGHTS, 96, 73)) + b"\0\5\1" + OLD[WEIGHTS][:73] + BODY[2:],
        Fault.MALFORMED, "has 72 bytes, not 73",
    ),
    "a header of no length": (head_of(SMALL_CONFIG, PatchFile(WEIGHTS, 96, 0)) + BODY, Fault.MALFORMED, WEIGHTS),
    "a header that leaves a hole": (
        head_of(SMALL_CONFIG, SMALL_WEIGHTS) + b"\0\5\1" + OTHER_HEADER + BODY[2:], Fault.MALFORMED, "ends? at byte",
    ),
    "something left over": (GOLDEN + b"\0", Fault.MALFORMED, "1 bytes are left over"),
    "too short by all segments": (head_of(SMALL_CONFIG, SMALL_WEIGHTS), Fault.MALFORMED, "ends at byte"),
}  # fmt: skip


def fault_of(base: Files, patch: bytes, target: Files) -> PeerError:
    with pytest.raises(PeerError) as caught:
        applied(base, patch, target)
    return caught.value


@pytest.mark.parametrize(("patch", "fault", "detail"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_patch_is_refused_for_what_is_wrong(patch: bytes, fault: Fault, detail: str) -> None:
    with pytest.raises(PeerError, match=detail) as caught:
        applied(OLD, patch, NEW)
    assert caught.value.fault is fault


def test_the_rest_of_the_wrong_ones_is_right() -> None:
    """Or they would be refused for something else."""
    assert head_of(SMALL_CONFIG, SMALL_WEIGHTS) + BODY == GOLDEN


def test_the_largest_head_fits() -> None:
    files = [PatchFile("n" * 120 + f"{place:04d}.txt", 2**40, 2**40) for place in range(MAX_FILES)]
    assert len(encode(PatchHead(files=files))) <= MAX_PATCH_HEAD_BYTES


def test_a_base_whose_header_is_wrong_is_the_signers_fault() -> None:
    assert fault_of({**OLD, WEIGHTS: b"no"}, GOLDEN, NEW).fault is Fault.MALFORMED


def test_a_patch_cut_anywhere_is_refused() -> None:
    for length in range(len(GOLDEN)):
        assert fault_of(OLD, GOLDEN[:length], NEW).fault in (Fault.MALFORMED, Fault.INCOMPATIBLE)


def test_any_byte_may_be_any_other() -> None:
    for place in range(len(GOLDEN)):
        for value in range(256):
            survives(OLD, GOLDEN[:place] + bytes([value]) + GOLDEN[place + 1 :], NEW)


def survives(base: Files, patch: bytes, target: Files) -> None:
    """Whatever a patch holds: files of the right names and sizes, or the blame of who signed it."""
    try:
        rebuilt = applied(base, patch, target)
    except PeerError:
        return
    assert {name: len(data) for name, data in rebuilt.items()} == {name: len(data) for name, data in target.items()}


@settings(max_examples=examples(200), deadline=None)
@given(models(), models(), models(), st.data())
def test_damaged_patches_and_other_bases_are_survived(
    base: Files, other: Files, target: Files, data: st.DataObject
) -> None:
    patch = bytearray(patch_of(base, target))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(patch) - 1))
        patch[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    survives(data.draw(st.sampled_from([base, other])), bytes(patch), target)


def test_a_file_that_became_shorter_is_our_own_trouble() -> None:
    full, cut = sources(OLD), source(WEIGHTS, OLD[WEIGHTS])
    shorter = Source(name=WEIGHTS, size=cut.size, read=lambda offset, size: cut.read(offset, min(size, 80 - offset)))
    sizes = {name: len(data) for name, data in NEW.items()}
    with pytest.raises(LayoutError, match="ends at byte"):
        list(apply_patch([full[0], shorter], source("patch", GOLDEN), sizes))
    with pytest.raises(LayoutError, match="ends at byte"):
        list(encode_patch(sources(OLD), [full[0], shorter]))
