"""Claim "patch": one update is about a hundredth of the model, and is encoded and applied faster than disks read.

A Qwen3 of 42 million parameters, initialised with a deviation of 0.02, is trained on random tokens with AdamW on fp32
masters and exported as bf16. WARM_STEPS steps fill its moments, since its first steps move every weight by the whole
learning rate; 16 more follow, at three learning rates. For versions k = 1, 4, 16 steps apart, the table shows the share
of changed values, and the length of the patch compared with the full bf16 weights. It compares three other encodings,
each under zstd-3 tensor by tensor: the XOR of old and new by byte planes; gaps and raw new values, as PULSE sends them;
and the full tensor. The last row is an fp32 export, which has no bar.

The gain of a second thread is wall-clock time, so it is valid only on an otherwise idle machine. One thread and two
alternate PAIRS times at learning rate 1e-6 and k = 1, and each bar is a ratio of medians.

Bars:

- pct_1e6_k1: percent of the weights' bytes at learning rate 1e-6 and k = 1, at most 0.95.
- encode_mb_s_1e6_k1 and decode_mb_s_1e6_k1: megabytes of model per second and core there, at least 400 and 800.
- encode_two_cores and decode_two_cores: speed of two threads over that of one there, at least 1.6 each.
- slowest_mb_s: the slowest of both at all nine points, at least 150.
- of_zstd_full: the worst ratio of the patch to the full tensors under zstd, at most 1.
- memory_tensors: the most memory allocated besides the two models and the patch, in sizes of the largest tensor, at
  most 2.

Invariants:

- Every patch is applied, and the result compared byte for byte.
- Times are processor seconds of one thread, from bytes in memory to bytes in memory, so a shared machine changes them
  little.
- Encoding, decoding and the other encodings alternate, and figures are medians over the repetitions.
"""

from __future__ import annotations

import math
import os
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import zstandard
from harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, scratch, table
from numpy.typing import NDArray

from protocol.patches.patch import apply_patch, encode_patch
from protocol.patches.worker_pool import WorkerPool
from protocol.versions.chunking import Source
from protocol.versions.safetensors_header import read_table

REPS = 3
PAIRS = 5
WARM_STEPS = 8
LEARNING_RATES = (1e-6, 3e-6, 1e-5)
STEPS_APART = (1, 4, 16)
BATCH, TOKENS = 2, 32
VOCABULARY = 32_000
QWEN3 = {
    "vocab_size": VOCABULARY, "hidden_size": 512, "intermediate_size": 1_536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "tie_word_embeddings": True,
    "initializer_range": 0.02,
}  # fmt: skip
DTYPES = {"BF16": np.uint16, "F32": np.uint32}
SHARED = 0.8
"""Share of a core below which other processes slowed the benchmark, so that the table is not reliable."""

Bits = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Point:
    """Measurements between two versions; speeds in megabytes of model per processor second.

    `percent` is of the model's bytes: the patch's and the other encodings', by name. `core` is the share of a core that
    the process had while the patch was made and applied; wall-clock speeds are these speeds times it.
    """

    rate: float
    apart: int
    dtype: str
    changed: float
    percent: dict[str, float]
    mb_s: dict[str, float]
    memory_tensors: float
    core: float


@dataclass(frozen=True, kw_only=True)
class TwoCores:
    """Gain of two threads over one, in wall-clock time. `cores` is how many cores the two had on average."""

    encode: float
    decode: float
    cores: float


def benchmark() -> int:
    """Train, measure all points, print the table and the verdict."""
    options = arguments(__doc__ or "", reps=REPS).parse_args()
    points = []
    with scratch(options.keep) as out:
        for rate in LEARNING_RATES:
            began = time.monotonic()
            train(out, rate, options.seed)
            say(f"learning rate {rate:g}: trained in {time.monotonic() - began:.0f} s")
            points += [measure(out, rate, apart, "BF16", options.reps) for apart in STEPS_APART]
            if rate == LEARNING_RATES[0]:
                gain = measure_two_cores(out)
        in_full_width = measure(out, LEARNING_RATES[0], 1, "F32", options.reps)
    return report(points, in_full_width, gain)


def version_file(out: Path, rate: float, apart: int, dtype: str) -> Path:
    """Return the file with the weights `apart` steps after the warm-up."""
    return out / f"{rate:g}-{apart}-{dtype}.safetensors"


def train(out: Path, rate: float, seed: int) -> None:
    """Write the versions of one training into `out`."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(Qwen3Config(**QWEN3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0, fused=True)
    for step in range(WARM_STEPS + max(STEPS_APART) + 1):
        if (apart := step - WARM_STEPS) in (0, *STEPS_APART):
            for dtype, kept in (("BF16", torch.bfloat16), ("F32", torch.float32)):
                weights = {name: weight.detach().to(kept) for name, weight in model.named_parameters()}
                save_file(weights, version_file(out, rate, apart, dtype), {"format": "pt"})
        tokens = torch.randint(0, VOCABULARY, (BATCH, TOKENS))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def measure(out: Path, rate: float, apart: int, dtype: str, reps: int) -> Point:
    """Time everything `reps` times between two versions, and measure memory once."""
    base, target = (version_file(out, rate, steps, dtype).read_bytes() for steps in (0, apart))
    old, new = tensors(base), tensors(target)
    size = sum(tensor.nbytes for tensor in new)
    lengths: dict[str, int] = {}
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    busy = passed = 0.0
    for _ in range(reps):
        rebuilt = bytearray(b"\xff") * len(target)  # touched, so that page allocation is not timed
        began = time.perf_counter()
        made, parts = timed(lambda: list(encode_patch(sources(base), sources(target))))
        patch = b"".join(parts)
        applied, _ = timed(lambda patch=patch, rebuilt=rebuilt: rebuild(base, patch, rebuilt))
        busy, passed = busy + made + applied, passed + time.perf_counter() - began
        if rebuilt != target:
            raise BenchmarkError(f"the patch at {rate:g}, k = {apart} does not rebuild its target version.")
        lengths["patch"] = len(patch)
        seconds["encode"].append(made)
        seconds["decode"].append(applied)
        for name, encode in OTHERS.items():
            took, lengths[name] = timed(lambda encode=encode: sum(map(encode, old, new)))
            seconds[name].append(took)
    return Point(
        rate=rate,
        apart=apart,
        dtype=dtype,
        changed=100 * sum(map(num_changed, old, new)) / sum(tensor.size for tensor in new),
        percent={name: 100 * length / size for name, length in lengths.items()},
        mb_s={name: size / 1e6 / (median(took) or 0.0) for name, took in seconds.items()},
        memory_tensors=most_memory(base, target, patch) / max(tensor.nbytes for tensor in new),
        core=busy / passed,
    )


def measure_two_cores(out: Path) -> TwoCores | None:
    """Time one thread and two in turn, at the lowest learning rate; return None on a machine with a single core."""
    if (os.cpu_count() or 1) < 2:
        return None
    base, target = (version_file(out, LEARNING_RATES[0], steps, "BF16").read_bytes() for steps in (0, 1))
    seconds: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    cores: list[float] = []
    for _ in range(PAIRS):
        for num_threads in (1, 2):
            rebuilt = bytearray(b"\xff") * len(target)
            with WorkerPool(num_threads) as pool:
                busy, began = time.process_time(), time.perf_counter()
                patch = b"".join(encode_patch(sources(base), sources(target), pool))
                made = time.perf_counter()
                rebuild(base, patch, rebuilt, pool)
                applied = time.perf_counter()
            seconds["encode", num_threads].append(made - began)
            seconds["decode", num_threads].append(applied - made)
            if rebuilt != target:
                raise BenchmarkError(f"the patch of {num_threads} threads does not rebuild its target version.")
        cores.append((time.process_time() - busy) / (applied - began))
    gain = {
        way: (median(seconds[way, 1]) or 0.0) / (median(seconds[way, 2]) or math.inf) for way in ("encode", "decode")
    }
    return TwoCores(encode=gain["encode"], decode=gain["decode"], cores=median(cores) or 0.0)


def most_memory(base: bytes, target: bytes, patch: bytes) -> int:
    """Return the most bytes allocated while a patch is made and while it is applied, besides the inputs and outputs.

    It counts allocations of numpy and Python. It does not see libzstd's own tables, 7 MiB for every model.
    """
    rebuilt = bytearray(len(target))
    tracemalloc.start()
    for _ in encode_patch(sources(base), sources(target)):
        pass
    rebuild(base, patch, rebuilt)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def sources(data: bytes) -> list[Source]:
    """Return the one file of a version."""
    view = memoryview(data)
    return [Source(name="model.safetensors", size=len(data), read=lambda start, size: view[start : start + size])]


def rebuild(base: bytes, patch: bytes, into: bytearray, pool: WorkerPool | None = None) -> None:
    """Apply `patch`, as a store would, piece by piece."""
    (source,) = sources(patch)
    octets = np.frombuffer(into, np.uint8)
    for piece in apply_patch(sources(base), source, {"model.safetensors": len(into)}, pool):
        octets[piece.offset : piece.offset + len(piece.data)] = np.frombuffer(piece.data, np.uint8)
        piece.release()


def tensors(data: bytes) -> list[Bits]:
    """Return the bits of all tensors of a version, in the order of their file."""
    found = read_table("model.safetensors", len(data), lambda start, size: data[start : start + size])
    return [np.frombuffer(data[span.start : span.end], DTYPES[span.dtype]) for span in found.spans]


def num_changed(old: Bits, new: Bits) -> int:
    return int(np.count_nonzero(old != new))


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return the processor seconds that `work` took, and its result."""
    began = time.process_time()
    done = work()
    return time.process_time() - began, done


# The other encodings: each returns the length of one encoded tensor.


def zstd_full(old: Bits, new: Bits) -> int:
    return squeezed(new)


def xor_planes(old: Bits, new: Bits) -> int:
    planes = np.ascontiguousarray((old ^ new).view(np.uint8).reshape(-1, new.itemsize).T)
    return sum(squeezed(plane) for plane in planes)


def gaps_and_values(old: Bits, new: Bits) -> int:
    places = np.flatnonzero(old != new)
    gaps = np.diff(places, prepend=-1) - 1
    whole = gaps // 255
    ends = np.cumsum(whole + 1) - 1
    octets = np.full(len(places) + int(whole.sum()), 255, np.uint8)
    octets[ends] = gaps % 255
    return squeezed(octets) + squeezed(new[places])


def squeezed(data: Bits) -> int:
    return len(zstandard.ZstdCompressor(level=3).compress(data.data))


OTHERS: dict[str, Callable[[Bits, Bits], int]] = {
    "XOR + zstd": xor_planes,
    "gaps + raw": gaps_and_values,
    "zstd full": zstd_full,
}


def report(points: Sequence[Point], in_full_width: Point, gain: TwoCores | None) -> int:
    """Print every point and the bars; return the exit code."""
    say("\n" + table(HEADER, [cells(point) for point in (*points, in_full_width)]))
    if min(point.core for point in points) < SHARED:
        say("\nThe process did not have a whole core: repeat this on an idle machine before trusting the speeds.")
    if gain is None or gain.cores < 2 * SHARED:
        had = "one core alone" if gain is None else f"{gain.cores:.2f} cores"
        say(f"\nTwo threads had {had}: repeat this with two idle cores before trusting their gain.")
    first = points[0]
    bars = [
        Bar(name="pct_1e6_k1", value=first.percent["patch"], at_most=0.95),
        Bar(name="encode_mb_s_1e6_k1", value=first.mb_s["encode"], at_least=400),
        Bar(name="decode_mb_s_1e6_k1", value=first.mb_s["decode"], at_least=800),
        Bar(name="encode_two_cores", value=gain and gain.encode, at_least=1.6),
        Bar(name="decode_two_cores", value=gain and gain.decode, at_least=1.6),
        Bar(name="slowest_mb_s", value=min(p.mb_s[way] for p in points for way in ("encode", "decode")), at_least=150),
        Bar(name="of_zstd_full", value=max(p.percent["patch"] / p.percent["zstd full"] for p in points), at_most=1),
        Bar(name="memory_tensors", value=max(point.memory_tensors for point in points), at_most=2),
    ]
    figures: dict[str, Any] = {"two_cores_had": gain and gain.cores}
    for point in (*points, in_full_width):
        name = f"{point.rate:g}_k{point.apart}_{point.dtype}"
        figures |= {
            f"{name}_changed_pct": point.changed,
            f"{name}_pct": point.percent["patch"],
            f"{name}_core": point.core,
        }
        figures |= {f"{name}_{way}_mb_s": point.mb_s[way] for way in ("encode", "decode")}
    return conclude("patch", bars, figures)


HEADER = [
    "lr", "k", "dtype", "changed [%]", "patch [%]", *(f"{name} [%]" for name in OTHERS), "encode [MB/s]",
    "decode [MB/s]", *(f"{name} [MB/s]" for name in OTHERS), "memory [tensors]", "core",
]  # fmt: skip


def cells(point: Point) -> list[str]:
    """Return a point's row under HEADER."""
    return [
        f"{point.rate:g}",
        str(point.apart),
        point.dtype,
        number(point.changed),
        *(number(point.percent[name]) for name in ("patch", *OTHERS)),
        *(number(point.mb_s[name], 0) for name in ("encode", "decode", *OTHERS)),
        number(point.memory_tensors),
        number(point.core),
    ]


if __name__ == "__main__":
    main(benchmark)
