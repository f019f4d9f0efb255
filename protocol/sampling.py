"""Draw tokens that others can check: each is a function of (logits, temperature, seed, position).

The draw is the Gumbel-max trick in two levels. The vocabulary is cut into blocks of about sqrt(V) tokens. Gumbel noise
on the logsumexp of the blocks picks the block; Gumbel noise inside the block picks the token. The result follows
softmax(logits / T) exactly, with about 2 sqrt(V) noise values instead of V. Scores are floats, so a verifier measures
gaps and compares them with a tolerance (`verify_tokens`). docs/reference/sampling.md has the normative text, test
vectors and the proof of the tolerance. Auditing by a shared seed is the idea of Token-DiFR (arXiv 2511.20621); the
mixer is that of splitmix64 (Steele, Lea, Flood 2014).

This module imports the standard library only, so it can be loaded by path in any virtual environment. Functions take
the array namespace `xp`, numpy or torch, and arrays of that namespace, on any device with int64 and float64. No
gradient flows through them.

Invariants:

- The noise depends on (seed, position, level, index) alone. Its bits are exact integers, the same on every platform.
- A row without a distribution yields `NO_TOKEN`, never an arbitrary token.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

Array = Any
"""numpy.ndarray or torch.Tensor. This module imports neither, so it cannot name the types."""
Namespace = Any
"""The module numpy or torch."""

NO_TOKEN = -1
"""Token of a row without a distribution: one with a NaN, a +inf, only -inf, or an invalid temperature in its entry."""

_WHOLE = "the seeded sampler draws from the whole distribution"


def seed_to_int64(seed: int) -> int:
    """Return the int64 with the bits of `seed`. Raise ValueError unless 0 <= seed < 2**64."""
    if not 0 <= seed < 1 << 64:
        raise ValueError(f"seed {seed} is not an unsigned 64-bit integer")
    return _signed(seed)


def require_supported(temperature: float, top_p: float | None = None, top_k: int | None = None) -> None:
    """Raise ValueError, with a message for people, unless the seeded sampler supports these settings.

    Truncation is refused for two reasons: the behaviour logprob would no longer be log_softmax(logits / T), and a token
    at the edge of the truncation could not be audited. Values that switch truncation off (top-p 1, top-k 0 or -1, None)
    are accepted.
    """
    _require_temperature(temperature)
    if top_p is not None and top_p != 1.0:
        raise ValueError(f"top_p {top_p} is refused: {_WHOLE}. Leave it out or set it to 1.")
    if top_k is not None and top_k not in (0, -1):
        raise ValueError(f"top_k {top_k} is refused: {_WHOLE}. Leave it out or set it to 0.")


# Blocks depend on V alone.


def block_shift(vocab_size: int) -> int:
    """Return the smallest k with 4**k >= V: token v is member v mod 2**k of block v >> k.

    The block size is a power of two near sqrt(V), so the split is a shift and no square root has to be rounded.
    """
    if vocab_size < 1:
        raise ValueError(f"the vocabulary size is {vocab_size}; it must be at least 1")
    return ((vocab_size - 1).bit_length() + 1) // 2


def num_blocks(vocab_size: int) -> int:
    """Return the number of blocks of V tokens; the last one may be short."""
    return -(-vocab_size // (1 << block_shift(vocab_size)))


# Noise: exact integers up to the uniform variate. torch lacks some uint64 operations, so int64 stands in: it wraps like
# u64 under + and *, and a mask makes its right shift a logical one.


def position_keys(xp: Namespace, seeds: Array, positions: Array) -> Array:
    """Return the int64 noise keys of (seed, position); shapes broadcast and have at least one dimension.

    `seeds` (B,) and `positions` (B,) give the keys of one decoding step. (B, 1) and (T,) give those of whole
    completions, (B, T). Seeds are int64 with the bits of the u64 (`seed_to_int64`). A position is the index of a token
    in its completion.
    """
    steps = (_cast(positions, xp.int64) + 1) * _GOLDEN
    return _mix(steps + _mix(_cast(seeds, xp.int64) + _GOLDEN))


def noise_bits(xp: Namespace, keys: Array, vocab_size: int) -> Array:
    """Return the hashed int64 words (..., num_blocks + block size): level one by block, then level two by member.

    Word c of a key is output c of splitmix64 started at that key. The counters of level two begin at 2**32, so the
    levels share no word.
    """
    return _mix(keys[..., None] + _counters(xp, vocab_size, getattr(keys, "device", None)))


def noise(xp: Namespace, keys: Array, vocab_size: int) -> Array:
    """Return float64 Gumbel noise (..., num_blocks + block size) in the order of `noise_bits`.

    It does not depend on logits, so an engine may draw it for many positions in one call, which costs less per token.
    """
    uniform = _cast((noise_bits(xp, keys, vocab_size) >> 12) & _low(52), xp.float64)
    uniform += 0.5  # exact: 53 bits; keeps u inside (0, 1), so both logs below are finite
    uniform *= 2.0**-52
    exponential = xp.negative(xp.log(uniform, out=uniform), out=uniform)
    return xp.negative(xp.log(exponential, out=exponential), out=exponential)


# Sampling.


def sample(
    xp: Namespace, logits: Array, seeds: Array, positions: Array, temperature: float | Array = 1.0
) -> tuple[Array, Array]:
    """Draw one token per row. Return (tokens (B,) int64, behaviour logprobs (B,) float32).

    Args:
        xp: the array namespace, numpy or torch.
        logits: logits (B, V) of any float dtype; -inf masks a token.
        seeds: seeds (B,) as int64, see `seed_to_int64`.
        positions: indices (B,) of the tokens within their completions, int64.
        temperature: T > 0 and finite, a float or an array (B, 1). An invalid float raises ValueError; an invalid array
            entry yields NO_TOKEN in its row.

    The logprob is log_softmax(logits / T) of the token. A row without a distribution yields NO_TOKEN and NaN.
    """
    return sample_with_noise(xp, logits, noise(xp, position_keys(xp, seeds, positions), logits.shape[-1]), temperature)


def sample_with_noise(
    xp: Namespace, logits: Array, drawn: Array, temperature: float | Array = 1.0
) -> tuple[Array, Array]:
    """Draw one token per row as `sample` does, with noise `drawn` (B, num_blocks + block size) from `noise`."""
    with _quiet(xp):
        column = _temperature_column(xp, logits, temperature)
        rows = _rows(xp, logits, column)
        block = xp.argmax(_at_blocks(xp, rows, drawn), axis=-1)[:, None]
        scores, perturbed = _at_members(xp, logits, column, block, drawn)
        member = xp.argmax(perturbed, axis=-1)[:, None]
        tokens = (block << block_shift(logits.shape[-1])) + member
        # The log-sum of a row without a distribution is NaN already; only the token must be replaced.
        logprobs = _take(xp, scores, member) - rows.peak - rows.log_sum
        return xp.where(xp.isfinite(rows.peak), tokens, NO_TOKEN)[:, 0], logprobs[:, 0]


def greedy(xp: Namespace, logits: Array) -> tuple[Array, Array]:
    """Return the most likely token of each row (B,), the lowest id among equals, and its logprob (B,) at T = 1.

    A row without a distribution yields NO_TOKEN and NaN, as in `sample`.
    """
    with _quiet(xp):
        rows = _rows(xp, logits, None)
        tokens = xp.argmax(_scores(xp, logits, None), axis=-1)
        return xp.where(xp.isfinite(rows.peak[:, 0]), tokens, NO_TOKEN), -rows.log_sum[:, 0]


# Verifying.


class Gaps(NamedTuple):
    """How far claimed tokens fall short of the verifier's own draw, each (N,), in nats of logits / T; 0 when equal.

    `worst` is the larger of `block` and `token`: accept when `worst <= tolerance`. It is inf when no noise could have
    drawn the token (masked, or not in the vocabulary), and NaN when the verifier's own row has no distribution, so that
    it cannot judge. `logprobs` is log_softmax(logits / T) of the claimed token under the verifier's logits, to compare
    with the claimed logprob. `lead` does not depend on the claim. It is the distance between the verifier's own draw
    and the runner-up, at the closer of the two levels (inf: no other token could be drawn). If all scores are off by
    less than half of `lead`, the draw is the same token. `size` is the largest absolute score of the draw and of the
    likeliest token; the rounding error is in proportion to it.
    """

    worst: Array
    block: Array
    token: Array
    logprobs: Array
    lead: Array
    size: Array


def verify_tokens(
    xp: Namespace,
    logits: Array,
    seeds: Array,
    positions: Array,
    tokens: Array,
    temperature: float | Array = 1.0,
) -> Gaps:
    """Measure claimed `tokens` (N,) int64 against the verifier's `logits` (N, V); other arguments as in `sample`.

    If the peer's scores differ from the verifier's by at most d anywhere in a row, an honest token has `worst <= 2 d`
    plus rounding (docs/reference/sampling.md, "Tolerance"). Level two is measured inside the claimed block, even if the
    verifier would have picked another.
    """
    vocab_size = logits.shape[-1]
    drawn = noise(xp, position_keys(xp, seeds, positions), vocab_size)
    known = (tokens >= 0) & (tokens < vocab_size)
    claimed = xp.where(known, tokens, 0)[:, None]
    block = claimed >> block_shift(vocab_size)
    member = claimed & _low(block_shift(vocab_size))
    with _quiet(xp):
        column = _temperature_column(xp, logits, temperature)
        rows = _rows(xp, logits, column)
        scores, perturbed = _at_members(xp, logits, column, block, drawn)
        score = _take(xp, scores, member)
        possible = known[:, None] & (score > -math.inf)
        judged = xp.isfinite(rows.peak)

        def gap(values: Array, index: Array) -> Array:
            short = xp.amax(values, axis=-1, keepdims=True) - _take(xp, values, index)
            return xp.where(judged, xp.where(possible, short, math.inf), math.nan)[:, 0]

        at_blocks = _at_blocks(xp, rows, drawn)
        at_block, at_token = gap(at_blocks, block), gap(perturbed, member)
        own_scores, inside = _at_members(xp, logits, column, xp.argmax(at_blocks, axis=-1)[:, None], drawn)
        lead = xp.minimum(_lead(xp, at_blocks), _lead(xp, inside))
        own = _take(xp, own_scores, xp.argmax(inside, axis=-1)[:, None])
        size = xp.maximum(xp.abs(rows.peak), xp.abs(own))
        logprobs = xp.where(possible | ~judged, score - rows.peak - rows.log_sum, -math.inf)[:, 0]
        leads, sizes = (xp.where(judged, one, math.nan)[:, 0] for one in (lead, size))
        return Gaps(xp.maximum(at_block, at_token), at_block, at_token, logprobs, leads, sizes)


def _lead(xp: Namespace, values: Array) -> Array:
    """Return the distance (B, 1) of each row's largest value from the next: 0 for a tie, inf if there is no other."""
    first = xp.argmax(values, axis=-1)[:, None]
    is_first = _places(xp, values.shape[-1], getattr(values, "device", None)) == first
    return _take(xp, values, first) - xp.amax(xp.where(is_first, -math.inf, values), axis=-1, keepdims=True)


# The floats. Rows are reduced a few at a time. Otherwise temporaries of V = 152k and 64 rows would be mapped and
# page-faulted again on every decoding step, which was measured to take longer than the arithmetic.

_PASS_ELEMENTS = 1 << 19
"""Number of scores reduced at a time: 2 MiB, a core's share of cache, yet few passes for a GPU (22 at V = 152k and 64
rows)."""


class _Rows(NamedTuple):
    """The result of one pass over the logits."""

    peak: Array  # (B, 1) float32, the largest score; not finite exactly when the row has no distribution
    sums: Array  # (B, num_blocks) float32, sum of exp(score) over the block, up to a factor per row
    log_sum: Array  # (B, 1) float32, logsumexp of the row - peak


def _rows(xp: Namespace, logits: Array, column: Array | None) -> _Rows:
    count, vocab_size = logits.shape
    step = max(1, _PASS_ELEMENTS // vocab_size)
    parts = [
        _reduce(xp, _scores(xp, logits[i : i + step], None if column is None else column[i : i + step]))
        for i in range(0, max(1, count), step)
    ]
    return parts[0] if len(parts) == 1 else _Rows(*(xp.concatenate(part) for part in zip(*parts, strict=True)))


def _reduce(xp: Namespace, scores: Array) -> _Rows:
    peak = xp.amax(scores, axis=-1, keepdims=True)
    weights = _weights(xp, scores, peak)
    count, vocab_size = weights.shape
    size = 1 << block_shift(vocab_size)
    whole = vocab_size // size
    sums = weights[:, : whole * size].reshape((count, whole, size)).sum(-1)
    if whole * size < vocab_size:  # the short last block, without copying the row to pad it
        sums = xp.concatenate((sums, weights[:, whole * size :].sum(-1)[:, None]), axis=-1)
    # Division by the peak's weight cancels the factor, and the error of torch's float32 total over a large vocabulary.
    return _Rows(peak, sums, xp.log(sums.sum(-1) / xp.amax(weights, axis=-1))[:, None])


def _weights(xp: Namespace, scores: Array, peak: Array) -> Array:
    """Return exp(score) up to a factor per row, (B, V); NaN throughout a row without a distribution.

    One peak serves the whole row: a block that underflows lies over 70 nats below it, and noise spans only 41.
    """
    if hasattr(xp, "softmax"):  # torch: one pass instead of two, and a faster exp; a third of a step at V = 152k
        return xp.softmax(scores, -1)
    weights = scores - peak
    return xp.exp(weights, out=weights)


def _scores(xp: Namespace, logits: Array, column: Array | None) -> Array:
    scores = _cast(logits, xp.float32)
    return scores if column is None else scores / column


def _temperature_column(xp: Namespace, logits: Array, temperature: float | Array) -> Array | None:
    """Return T as float32 (B, 1), NaN where an array's entry is invalid; None for 1, which needs no division.

    One T also becomes an array: torch on CUDA turns division by a Python number into multiplication by its reciprocal.
    """
    if isinstance(temperature, int | float):
        _require_temperature(temperature)
        return None if temperature == 1.0 else xp.full_like(logits[:, :1], temperature, dtype=xp.float32)
    valid = (temperature > 0) & xp.isfinite(temperature)
    column = _cast(xp.where(valid, temperature, math.nan), xp.float32)
    return xp.broadcast_to(column, (logits.shape[0], 1))


def _at_blocks(xp: Namespace, rows: _Rows, drawn: Array) -> Array:
    """Return level one, float64 (B, num_blocks): logsumexp of each block, less a constant of the row, plus noise."""
    return xp.log(rows.sums) + drawn[:, : rows.sums.shape[-1]]


def _at_members(xp: Namespace, logits: Array, column: Array | None, block: Array, drawn: Array) -> tuple[Array, Array]:
    """Return the scores (B, block size) of the members of `block` (B, 1), and level two: scores plus noise, float64."""
    vocab_size = logits.shape[-1]
    shift = block_shift(vocab_size)
    index = _places(xp, 1 << shift, getattr(block, "device", None)) + (block << shift)
    if vocab_size & _low(shift) == 0:
        scores = _scores(xp, _take(xp, logits, index), column)
    else:
        inside = xp.clip(index, None, vocab_size - 1)
        scores = xp.where(index < vocab_size, _scores(xp, _take(xp, logits, inside), column), -math.inf)
    return scores, scores + drawn[:, num_blocks(vocab_size) :]


def _require_temperature(temperature: float) -> None:
    # Scores are float32, so T must survive the rounding: as inf it would make all tokens alike, as 0 none possible.
    if not 2.0**-126 <= temperature <= 2.0**127:
        raise ValueError(f"temperature {temperature} is refused: it must be positive, finite and in float32's range")


# The mixer.

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)
_LEVEL_TWO = 1 << 32
"""First counter of level two. It is above every block index, so the levels never share a word."""


def _mix(state: Array) -> Array:
    """Return splitmix64's finaliser of each int64 word: every output bit depends on every input bit.

    Seed, position and counter each pass through it separately. If two of them were added into one word, the noise of
    seed + 1 would be a shift of that of seed, and samples over consecutive seeds would be too even (chi2/df 0.42).
    """
    word = state ^ ((state >> 30) & _low(34))
    word *= _MIX_1
    word ^= (word >> 27) & _low(37)
    word *= _MIX_2
    word ^= (word >> 31) & _low(33)
    return word


def _low(bits: int) -> int:
    return (1 << bits) - 1


def _signed(word: int) -> int:
    word &= _low(64)
    return word - (1 << 64) if word >> 63 else word


@lru_cache(maxsize=64)
def _counters(xp: Namespace, vocab_size: int, device: Any) -> Array:
    """Return splitmix64's Weyl steps (num_blocks + block size,): the number added to a key for each word."""
    counters = [*range(num_blocks(vocab_size)), *(_LEVEL_TWO + j for j in range(1 << block_shift(vocab_size)))]
    return _constant(xp, [_signed(_GOLDEN * (counter + 1)) for counter in counters], device)


@lru_cache(maxsize=64)
def _places(xp: Namespace, count: int, device: Any) -> Array:
    return _constant(xp, list(range(count)), device)


# Differences between numpy and torch.


def _constant(xp: Namespace, values: list[int], device: Any) -> Array:
    placed = {} if device is None else {"device": device}  # arrays of numpy 1 have no device
    return xp.asarray(values, dtype=xp.int64, **placed)


def _cast(values: Array, dtype: Any) -> Array:
    return values.to(dtype) if hasattr(values, "to") else values.astype(dtype, copy=False)


def _take(xp: Namespace, values: Array, index: Array) -> Array:
    take = getattr(xp, "take_along_dim", None) or xp.take_along_axis
    return take(values, index, -1)


def _quiet(xp: Namespace) -> Any:
    """Return a context without numpy's warnings of log 0 and inf - inf. Masked tokens cause both; torch never warns."""
    return xp.errstate(all="ignore") if hasattr(xp, "errstate") else nullcontext()
