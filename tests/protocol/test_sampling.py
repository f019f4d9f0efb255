"""The sampler against its specification: golden words, an oracle in plain integers, and the statistics of its draws.

Every statistic comes from fixed seeds, so a test here passes always or never. Goodness of fit is judged on both tails:
samples that are too even betray a broken hash as surely as samples that are too uneven.
"""

from __future__ import annotations

import math
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from protocol import sampling
from tests.support.examples import examples

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[Any]]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
GAMMA = GOLDEN - (1 << 64)  # the same bits as an int64
NAMESPACES = pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
seeds_u64 = st.integers(0, MASK)


def as_numpy(array: Any) -> Any:
    return array.numpy() if isinstance(array, torch.Tensor) else array


def ints(xp: ModuleType, values: Any) -> Any:
    return xp.asarray(values, dtype=xp.int64)


def int_seeds(seeds: list[int]) -> Ints:
    return np.array([sampling.seed_to_int64(seed) for seed in seeds])


def sample(xp: ModuleType, logits: Floats, seeds: Any, positions: Any, temperature: Any = 1.0) -> tuple[Ints, Floats]:
    """Sample with either namespace from numpy inputs, to numpy outputs."""
    where = temperature if isinstance(temperature, float) else xp.asarray(temperature)
    tokens, logprobs = sampling.sample(xp, xp.asarray(logits), ints(xp, seeds), ints(xp, positions), where)
    return as_numpy(tokens), as_numpy(logprobs)


# The specification, once more, in Python's integers and one token at a time.


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def oracle_words(seed: int, position: int, vocab_size: int) -> tuple[list[int], list[int]]:
    size = 1
    while size * size < vocab_size:
        size *= 2
    key = mix(mix(seed + GOLDEN & MASK) + GOLDEN * (position + 1) & MASK)
    blocks = [mix(key + GOLDEN * (i + 1) & MASK) for i in range(math.ceil(vocab_size / size))]
    return blocks, [mix(key + GOLDEN * (2**32 + j + 1) & MASK) for j in range(size)]


def oracle_token(logits: list[float], seed: int, position: int) -> int:
    blocks, members = oracle_words(seed, position, len(logits))

    def gumbel(word: int) -> float:
        return -math.log(-math.log(((word >> 12) + 0.5) * 2.0**-52))

    size = len(members)
    level_one = [
        math.log(sum(map(math.exp, logits[size * i : size * (i + 1)]))) + gumbel(word) for i, word in enumerate(blocks)
    ]
    block = level_one.index(max(level_one))
    inside = logits[size * block : size * (block + 1)]
    level_two = [score + gumbel(word) for score, word in zip(inside, members, strict=False)]
    return size * block + level_two.index(max(level_two))


# Exact values.

# (seed, position): words of blocks 0..2, then of members 0..3, of a vocabulary of 10.
GOLDEN_WORDS = {
    (0, 0): "238275bc38fcbe91 f89a2566b5822c54 47200e1d9780fa44"
    " 22e24225db250bc3 1a568a675fb658ea be03f4f37f729214 28e83136cbebdd0b",
    (0, 1): "2f101fe21496ea20 a00624088f65d5b6 74963fa799894ab9"
    " d4989df0ce6528b2 2d82ba228dc8c3b4 6e00218203537617 436e81ad8d0035e3",
    (1, 0): "b18a02f46d8d86c3 f8c5b62c83f707e8 6d339d1740130edd"
    " 0f583436cc1ab29e dee53c920f40893f 98c10bbeb96132b0 c5f30da744817fd7",
    (MASK, 0): "fc042709560421da 493384625f4330a7 912e647564aed866"
    " 57948f07c46c7254 a75dd8cd59de2837 9789703f1487504e f68e770470c7339e",
    (0x0123456789ABCDEF, 131071): "96f3f0bdbe6ea84a 31d3d0b1078ad844 0478ca9d01c12505"
    " 4c39960b248cc630 4530e07e58d71aa0 2a871d4529c2f0a1 5c60b06285f912d7",
}

# Seed 42, positions 0..15, logits[v] = (37 v mod 11) / 4, by (V, T).
GOLDEN_TOKENS = {
    (10, 1.0): [5, 7, 5, 5, 8, 8, 5, 8, 2, 3, 2, 2, 2, 6, 5, 2],
    (1000, 0.5): [665, 888, 431, 980, 186, 596, 49, 975, 13, 332, 236, 524, 492, 706, 19, 558],
}


@NAMESPACES
@pytest.mark.parametrize(("name", "words"), GOLDEN_WORDS.items())
def test_golden_words(xp: ModuleType, name: tuple[int, int], words: str) -> None:
    keys = sampling.position_keys(xp, ints(xp, int_seeds([name[0]])), ints(xp, [name[1]]))
    bits = as_numpy(sampling.noise_bits(xp, keys, 10))[0]
    assert " ".join(f"{int(word) & MASK:016x}" for word in bits) == words


@NAMESPACES
def test_words_of_a_key_are_splitmix64(xp: ModuleType) -> None:
    """The published first outputs of splitmix64 at state 1234567 are the words of the first blocks."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    bits = sampling.noise_bits(xp, ints(xp, [1234567]), 25)  # 4 blocks of 8
    assert [int(word) & MASK for word in bits[0][:4]] == published


@NAMESPACES
@pytest.mark.parametrize(("setting", "tokens"), GOLDEN_TOKENS.items())
def test_golden_tokens(xp: ModuleType, setting: tuple[int, float], tokens: list[int]) -> None:
    vocab_size, temperature = setting
    logits = np.tile((np.arange(vocab_size) * 37 % 11 / 4).astype(np.float32), (16, 1))
    assert sample(xp, logits, [42] * 16, range(16), temperature)[0].tolist() == tokens


@NAMESPACES
@given(seed=seeds_u64, position=st.integers(0, 131_071), vocab_size=st.integers(1, 300))
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_words_equal_the_oracle(xp: ModuleType, seed: int, position: int, vocab_size: int) -> None:
    bits = sampling.noise_bits(
        xp, sampling.position_keys(xp, ints(xp, int_seeds([seed])), ints(xp, [position])), vocab_size
    )
    blocks, members = oracle_words(seed, position, vocab_size)
    assert [int(word) & MASK for word in bits[0]] == blocks + members


@NAMESPACES
@given(seed=seeds_u64, position=st.integers(0, 131_071), logits=st.lists(st.floats(-9, 9, width=32), min_size=1))
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_tokens_equal_the_oracle(xp: ModuleType, seed: int, position: int, logits: list[float]) -> None:
    tokens, _ = sample(xp, np.array([logits], np.float32), int_seeds([seed]), [position])
    assert tokens[0] == oracle_token(logits, seed, position)


@given(
    logits=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=70),
        elements=st.floats(-30, 30, width=32) | st.just(-math.inf),
    ),
    seed=seeds_u64,
    temperature=st.floats(0.1, 5),
)
@settings(max_examples=examples(60), deadline=None, derandomize=True)
def test_numpy_and_torch_agree(logits: Floats, seed: int, temperature: float) -> None:
    seeds, positions = int_seeds([seed] * len(logits)), np.arange(len(logits))
    ours, our_logprobs = sample(np, logits, seeds, positions, temperature)
    theirs, their_logprobs = sample(torch, logits, seeds, positions, temperature)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(our_logprobs, their_logprobs, atol=2e-5)


def test_noise_is_finite_at_the_ends_of_the_uniform() -> None:
    """The least and the largest uniform give the range of the noise that docs/reference/sampling.md states."""

    def unmix(
        word: int,
    ) -> int:  # the mixer is a bijection: a shift is undone by repeating it, a product by its inverse
        word ^= word >> 31 ^ word >> 62
        word = word * pow(0x94D049BB133111EB, -1, 1 << 64) & MASK
        word ^= word >> 27 ^ word >> 54
        word = word * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & MASK
        return word ^ word >> 30 ^ word >> 60

    for xp in (np, torch):
        keys = ints(xp, int_seeds([unmix(0) - GOLDEN & MASK, unmix(MASK) - GOLDEN & MASK]))
        least, largest = as_numpy(sampling.noise(xp, keys, 1))[:, 0]
        assert least == pytest.approx(-math.log(53 * math.log(2)))  # -3.60
        assert largest == pytest.approx(53 * math.log(2))  # 36.74


# Statistics.


def z_score(counts: Ints, expected: Floats) -> float:
    """Return chi-square as a normal deviate (Wilson and Hilferty 1931): below -4 is too even, above 4 too uneven."""
    assert expected.min() >= 5
    df = counts.size - 1
    ratio = float(((counts - expected) ** 2 / expected).sum()) / df
    spread = 2 / (9 * df)
    return float((ratio ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def softmax(scores: Floats) -> Floats:
    weights = np.exp(scores.astype(np.float64) - scores.max())
    probabilities: Floats = weights / weights.sum()
    return probabilities


def draws(logits: Floats, seeds: Ints, positions: Ints, temperature: float = 1.0) -> Ints:
    """One token of the distribution `logits` (V,) for each seed and position."""
    return sample(np, np.broadcast_to(logits, (len(seeds), len(logits))), seeds, positions, temperature)[0]


N = 20_000
COUNT = np.arange(N)
STREAMS = {
    "consecutive seeds": (COUNT, np.zeros_like(COUNT)),
    "consecutive positions": (np.full(N, 7), COUNT),
    "seeds in strides of 2**32": (COUNT << 32, np.zeros_like(COUNT)),
    "seeds in strides of the golden gamma": (COUNT * GAMMA, np.zeros_like(COUNT)),
    "seeds up, positions down": (COUNT, N - COUNT),
    "groups of 16 seeds, 1250 positions": (COUNT % 16, COUNT // 16),
    "random seeds": (np.random.default_rng(1).integers(-(2**63), 2**63 - 1, N), COUNT % 3),
}
DISTRIBUTIONS = {
    "V 37, T 0.8, short last block": (np.random.default_rng(2).normal(size=37).astype(np.float32), 0.8),
    "V 512, flat": (np.zeros(512, np.float32), 1.0),
    "V 5, masked": (np.array([0, -math.inf, 1, -math.inf, 2], np.float32), 1.0),
    "V 2": (np.array([0, 0.5], np.float32), 2.0),
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("stream", STREAMS)
def test_goodness_of_fit_on_both_tails(stream: str, distribution: str) -> None:
    logits, temperature = DISTRIBUTIONS[distribution]
    probabilities = softmax(logits / temperature)
    counts = np.bincount(draws(logits, *STREAMS[stream], temperature), minlength=len(logits))
    assert counts[probabilities == 0].sum() == 0
    possible = probabilities > 0
    assert abs(z_score(counts[possible], N * probabilities[possible])) < 4


def test_the_gauge_is_not_blunt() -> None:
    """Check that the test above finds faults: a hash of seed + index alone draws too evenly, a slightly wrong T too
    unevenly.
    """
    # 512 words of a key that is the bare seed: word c of seed s + 1 is word c + 1 of seed s.
    words = sampling.noise_bits(np, COUNT[:6000] * GAMMA, 512**2)[:, :512]
    too_even = np.bincount(np.argmax((words >> 12) & ((1 << 52) - 1), axis=1), minlength=512)
    assert z_score(too_even, np.full(512, 6000 / 512)) < -6
    logits, temperature = DISTRIBUTIONS["V 37, T 0.8, short last block"]
    counts = np.bincount(draws(logits, *STREAMS["consecutive seeds"], temperature * 1.1), minlength=37)
    assert z_score(counts, N * softmax(logits / temperature)) > 6


Stream = tuple[Any, Any]
PAIRS: dict[str, tuple[Stream, Stream]] = {
    "seed and seed + 1": ((2 * COUNT, 0), (2 * COUNT + 1, 0)),
    "position and position + 1": ((5, 2 * COUNT), (5, 2 * COUNT + 1)),
    "seed + 1 and position + 1": ((2 * COUNT + 1, 0), (2 * COUNT, 1)),
    "seed, position exchanged": ((COUNT + 1, 0), (0, COUNT + 1)),
    "golden gamma in the seed, one position": ((COUNT * GAMMA, 1), (COUNT * GAMMA + GAMMA, 0)),
    "seed and its complement": ((COUNT, 0), (~COUNT, 0)),
    "lowest and highest seed bit": ((COUNT, 0), (COUNT | -(2**63), 0)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_neighbouring_draws_are_independent(pair: str) -> None:
    first, second = (draws(np.zeros(16, np.float32), seeds + 0 * COUNT, at + 0 * COUNT) for seeds, at in PAIRS[pair])
    counts = np.bincount(16 * first + second, minlength=256)
    assert abs(z_score(counts, np.full(256, N / 256))) < 4


@pytest.mark.parametrize("stream", STREAMS)
def test_levels_are_independent(stream: str) -> None:
    """Block i and member i share an index; with one domain for both levels they would be one number."""
    tokens = draws(np.zeros(64, np.float32), *STREAMS[stream])
    counts = np.bincount(tokens, minlength=64)  # 8 blocks of 8 members
    assert abs(z_score(counts, np.full(64, N / 64))) < 4
    noise = sampling.noise(np, sampling.position_keys(np, *STREAMS[stream]), 64)
    correlation = np.corrcoef(noise[:-1], noise[1:], rowvar=False)  # all columns of a draw and of the next
    assert np.abs(np.triu(correlation, 1)).max() * math.sqrt(N) < 4.5


@pytest.mark.parametrize("of", ["seed", "position"])
def test_every_input_bit_moves_half_of_the_words_bits(of: str) -> None:
    bits = 64 if of == "seed" else 17
    base = np.arange(500)
    words = sampling.noise_bits(np, sampling.position_keys(np, base, base), 16)
    for bit in range(bits):
        flipped = base ^ sampling.seed_to_int64(1 << bit)
        seeds, positions = (flipped, base) if of == "seed" else (base, flipped)
        changed = words ^ sampling.noise_bits(np, sampling.position_keys(np, seeds, positions), 16)
        mean = np.unpackbits(changed.view(np.uint8)).mean()
        assert mean == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(64 * changed.size))


# Logprobs, shapes, rows that cannot be drawn from.


@NAMESPACES
@pytest.mark.parametrize("vocab_size", [1, 2, 3, 10, 63, 64, 65, 1000, 151_936])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_log_softmax(xp: ModuleType, vocab_size: int, temperature: float) -> None:
    logits = np.random.default_rng(vocab_size).normal(scale=4, size=(9, vocab_size)).astype(np.float32)
    tokens, logprobs = sample(xp, logits, range(9), range(9), temperature)
    exact = torch.log_softmax(torch.from_numpy(logits).double() / np.float32(temperature).item(), -1)
    assert tokens.min() >= 0
    assert tokens.max() < vocab_size
    assert logprobs.dtype == np.float32
    # float64, because torch's float32 log_softmax is itself 2e-5 off at 151,936 tokens; ours sums block by block.
    np.testing.assert_allclose(logprobs, exact.numpy()[range(9), tokens], atol=4e-6)


@NAMESPACES
def test_rows_do_not_depend_on_their_batch(xp: ModuleType) -> None:
    """Nine rows of 151,936 are reduced in several passes; one row alone in one."""
    logits = np.random.default_rng(0).normal(size=(9, 151_936)).astype(np.float32)
    together = sample(xp, logits, range(9), range(9), 0.7)
    alone = [sample(xp, logits[i : i + 1], [i], [i], 0.7) for i in range(9)]
    assert together[0].tolist() == [tokens[0] for tokens, _ in alone]
    np.testing.assert_allclose(together[1], [logprobs[0] for _, logprobs in alone], atol=2e-6)


@NAMESPACES
def test_temperature_by_row(xp: ModuleType) -> None:
    logits = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    tokens, logprobs = sample(xp, logits, range(4), range(4), np.array([[0.5], [1.0], [2.0], [0.0]]))
    for i, temperature in enumerate([0.5, 1.0, 2.0]):
        token, logprob = sample(xp, logits[i : i + 1], [i], [i], temperature)
        assert (tokens[i], logprobs[i]) == (token[0], logprob[0])
    assert tokens[3] == sampling.NO_TOKEN


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_logits_are_read_as_float32(dtype: torch.dtype) -> None:
    logits = torch.randn(8, 100, generator=torch.Generator().manual_seed(0)).to(dtype)
    tokens, logprobs = sampling.sample(torch, logits, torch.arange(8), torch.arange(8), 0.9)
    wide, wide_logprobs = sampling.sample(torch, logits.float(), torch.arange(8), torch.arange(8), 0.9)
    assert torch.equal(tokens, wide)
    assert torch.equal(logprobs, wide_logprobs)


@NAMESPACES
def test_noise_may_be_drawn_for_many_positions_at_once(xp: ModuleType) -> None:
    seeds = ints(xp, [3, -4, 5])
    ahead = sampling.noise(xp, sampling.position_keys(xp, seeds[:, None], ints(xp, range(6))), 30)
    logits = xp.asarray(np.random.default_rng(0).normal(size=(3, 30)).astype(np.float32))
    for position in range(6):
        now = sampling.sample(xp, logits, seeds, ints(xp, [position] * 3))
        before = sampling.sample_with_noise(xp, logits, ahead[:, position])
        for expected, actual in zip(now, before, strict=True):
            np.testing.assert_array_equal(as_numpy(actual), as_numpy(expected))


@NAMESPACES
def test_narrow_integers_are_widened(xp: ModuleType) -> None:
    wide = sampling.position_keys(xp, ints(xp, [1, 2]), ints(xp, [3, 4]))
    narrow = sampling.position_keys(xp, xp.asarray([1, 2], dtype=xp.int32), xp.asarray([3, 4], dtype=xp.int32))
    assert as_numpy(wide).tolist() == as_numpy(narrow).tolist()


@NAMESPACES
@pytest.mark.filterwarnings("error")
def test_rows_without_a_distribution_have_no_token(xp: ModuleType) -> None:
    logits = np.zeros((5, 20), np.float32)
    logits[0] = -math.inf
    logits[1, 19] = math.nan
    logits[2, 3] = math.inf
    logits[3, :16] = -math.inf  # whole blocks masked: still a distribution
    for temperature in (1.0, 0.5):
        tokens, logprobs = sample(xp, logits, range(5), range(5), temperature)
        assert (tokens == sampling.NO_TOKEN).tolist() == [True, True, True, False, False]
        assert np.isnan(logprobs).tolist() == [True, True, True, False, False]
        assert tokens[3] >= 16
        assert logprobs[3] == pytest.approx(-math.log(4))
    tokens, logprobs = map(as_numpy, sampling.greedy(xp, xp.asarray(logits)))
    assert tokens.tolist() == [-1, -1, -1, 16, 0]
    assert np.isnan(logprobs).tolist() == [True, True, True, False, False]


@NAMESPACES
def test_an_empty_batch_is_no_special_case(xp: ModuleType) -> None:
    tokens, logprobs = sample(xp, np.zeros((0, 7), np.float32), [], [])
    assert tokens.shape == logprobs.shape == (0,)


@NAMESPACES
def test_the_lowest_index_wins_a_tie(xp: ModuleType) -> None:
    silent = xp.zeros((1, 7), dtype=xp.float64)  # 10 tokens: 3 blocks, 4 members
    even = np.array([[1, 2, 2, 1, 1, 2, 2, 1, 0, 0]], np.float32)  # blocks 0 and 1 tie, and two members in each
    assert sampling.sample_with_noise(xp, xp.asarray(even), silent)[0][0] == 1
    assert sampling.greedy(xp, xp.asarray(even))[0][0] == 1


@NAMESPACES
def test_greedy_is_argmax_at_temperature_one(xp: ModuleType) -> None:
    logits = np.random.default_rng(3).normal(size=(20, 77)).astype(np.float32)
    tokens, logprobs = map(as_numpy, sampling.greedy(xp, xp.asarray(logits)))
    assert tokens.tolist() == logits.argmax(1).tolist()
    np.testing.assert_allclose(logprobs, torch.log_softmax(torch.from_numpy(logits), -1).numpy().max(1), atol=2e-6)


# Settings.


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, -math.inf, math.nan, 1e-300, 1e300])
def test_temperature_out_of_range_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        sampling.require_supported(temperature)
    with pytest.raises(ValueError, match="temperature"):
        sample(np, np.zeros((1, 4), np.float32), [0], [0], temperature)


def test_truncation_is_refused_and_its_absence_is_not() -> None:
    sampling.require_supported(0.7, top_p=1.0, top_k=0)
    sampling.require_supported(0.7, top_k=-1)
    with pytest.raises(ValueError, match=r"top_p 0\.9 is refused"):
        sampling.require_supported(1.0, top_p=0.9)
    with pytest.raises(ValueError, match="top_k 50 is refused"):
        sampling.require_supported(1.0, top_k=50)


@pytest.mark.parametrize(("seed", "signed"), [(0, 0), (2**63 - 1, 2**63 - 1), (2**63, -(2**63)), (2**64 - 1, -1)])
def test_seeds_keep_their_bits(seed: int, signed: int) -> None:
    assert sampling.seed_to_int64(seed) == signed


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_are_refused(seed: int) -> None:
    with pytest.raises(ValueError, match="64-bit"):
        sampling.seed_to_int64(seed)


@pytest.mark.parametrize(
    ("vocab_size", "size", "blocks"),
    [(1, 1, 1), (2, 2, 1), (4, 2, 2), (5, 4, 2), (64, 8, 8), (65, 16, 5), (32_000, 256, 125), (151_936, 512, 297)],
)
def test_blocks(vocab_size: int, size: int, blocks: int) -> None:
    assert 1 << sampling.block_shift(vocab_size) == size
    assert sampling.num_blocks(vocab_size) == blocks


# Verifying. 3000 tokens of distributions of about 4.4 nats over 512 tokens.

ROWS = 3000
LOGITS = np.random.default_rng(4).normal(scale=2, size=(ROWS, 512)).astype(np.float32)
SEEDS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, ROWS // 100).repeat(100)
POSITIONS = np.arange(ROWS) % 100
TOLERANCE = 0.05
HONEST = sample(np, LOGITS, SEEDS, POSITIONS)[0]


def accepted(tokens: Any, logits: Floats = LOGITS, seeds: Any = SEEDS, positions: Any = POSITIONS) -> float:
    return float((sampling.verify_tokens(np, logits, seeds, positions, tokens).worst <= TOLERANCE).mean())


@NAMESPACES
def test_what_was_drawn_has_no_gap(xp: ModuleType) -> None:
    gaps = sampling.verify_tokens(xp, *map(xp.asarray, (LOGITS, SEEDS, POSITIONS, HONEST)))
    assert float(gaps.worst.max()) < 1e-5
    np.testing.assert_allclose(as_numpy(gaps.logprobs), sample(np, LOGITS, SEEDS, POSITIONS)[1], atol=5e-6)


@given(bound=st.floats(1e-4, 2.0), rng=st.integers(0, 2**32 - 1), temperature=st.sampled_from([0.5, 1.0, 1.7]))
@settings(max_examples=examples(25), deadline=None, derandomize=True)
def test_an_honest_gap_is_at_most_twice_the_numerical_error(bound: float, rng: int, temperature: float) -> None:
    """docs/reference/sampling.md, "Tolerance": scores off by at most d give gaps of at most 2 d, at both levels."""
    error = np.random.default_rng(rng).uniform(-bound, bound, (300, 512)) * temperature
    theirs = (LOGITS[:300] + error).astype(np.float32)
    tokens, _ = sample(np, theirs, SEEDS[:300], POSITIONS[:300], temperature)
    gaps = sampling.verify_tokens(np, LOGITS[:300], SEEDS[:300], POSITIONS[:300], tokens, temperature)
    assert gaps.block.max() <= 2 * bound + 1e-4
    assert gaps.token.max() <= 2 * bound + 1e-4
    assert (gaps.worst == np.maximum(gaps.block, gaps.token)).all()


@given(bound=st.floats(1e-3, 2.0), rng=st.integers(0, 2**32 - 1), temperature=st.sampled_from([0.5, 1.0, 1.7]))
@settings(max_examples=examples(25), deadline=None, derandomize=True)
def test_a_draw_that_leads_by_more_than_twice_the_error_is_everybodys(
    bound: float, rng: int, temperature: float
) -> None:
    """docs/reference/sampling.md, "Tolerance"; and who draws another falls short of it by the lead at least."""
    error = np.random.default_rng(rng).uniform(-bound, bound, (300, 512)) * temperature
    theirs = (LOGITS[:300] + error).astype(np.float32)
    rows = (LOGITS[:300], SEEDS[:300], POSITIONS[:300])
    tokens, _ = sample(np, theirs, *rows[1:], temperature)
    own, _ = sample(np, *rows, temperature)
    found = sampling.verify_tokens(np, *rows, tokens, temperature)
    clear = found.lead > 2 * bound + 1e-4
    assert (tokens == own)[clear].all()
    assert (found.worst >= found.lead - 1e-9)[tokens != own].all()
    np.testing.assert_array_equal(found.lead, sampling.verify_tokens(np, *rows, own, temperature).lead)


@NAMESPACES
@pytest.mark.parametrize("temperature", [0.4, 1.0])
@pytest.mark.parametrize("vocab_size", [1, 2, 3, 20, 512])
def test_leads_are_what_the_runner_up_would_have_needed(xp: ModuleType, vocab_size: int, temperature: float) -> None:
    """Computed from the definition, in Python, level by level."""
    chance = np.random.default_rng(9)
    logits = chance.normal(scale=2, size=(40, vocab_size)).astype(np.float32)
    logits[::4, 1::2] = -math.inf
    seeds, positions, claimed = SEEDS[:40], POSITIONS[:40], chance.integers(-1, vocab_size + 1, 40)
    drawn = sampling.noise(np, sampling.position_keys(np, seeds, positions), vocab_size)
    size, blocks = 1 << sampling.block_shift(vocab_size), sampling.num_blocks(vocab_size)

    def ahead(scores: list[float]) -> float:
        first, second = sorted([*scores, -math.inf], reverse=True)[:2]
        return first - second

    expected, sizes = [], []
    for row, noise in zip(logits.astype(np.float64) / temperature, drawn, strict=True):
        members = [row[first : first + size] for first in range(0, vocab_size, size)]
        outer = [float(np.logaddexp.reduce(some) + one) for some, one in zip(members, noise[:blocks], strict=True)]
        inner = members[int(np.argmax(outer))] + noise[blocks : blocks + len(members[int(np.argmax(outer))])]
        expected.append(min(ahead(outer), ahead(inner.tolist())))
        own = members[int(np.argmax(outer))][int(np.argmax(inner))]
        sizes.append(max(abs(row.max()), abs(own)))
    arrays = (ints(xp, one) for one in (seeds, positions, claimed))
    found = sampling.verify_tokens(xp, xp.asarray(logits), *arrays, temperature)
    np.testing.assert_allclose(as_numpy(found.lead), expected, atol=1e-4)
    np.testing.assert_allclose(as_numpy(found.size), sizes, rtol=1e-5)


@NAMESPACES
def test_a_tie_leads_by_nothing(xp: ModuleType) -> None:
    assert as_numpy(sampling._lead(xp, xp.asarray([[1.0, 3.0, 3.0, 2.0], [1.0, 5.0, 3.0, 2.0]]))).tolist() == [
        [0.0],
        [2.0],
    ]


def test_numerical_noise_is_within_the_tolerance() -> None:
    error = np.random.default_rng(6).uniform(-TOLERANCE / 2, TOLERANCE / 2, LOGITS.shape)
    tokens = sample(np, (LOGITS + error).astype(np.float32), SEEDS, POSITIONS)[0]
    assert 0 < (tokens != HONEST).sum() < 0.03 * ROWS  # some tokens do flip, and
    assert accepted(tokens) > 1 - 1e-9  # none of them is blamed.


CHEATS = {
    # name: (tokens, most of them that may pass at a tolerance of 0.05)
    "another seed": (sample(np, LOGITS, SEEDS + 1, POSITIONS)[0], 0.06),
    "another position": (sample(np, LOGITS, SEEDS, POSITIONS + 1)[0], 0.06),
    "greedy": (LOGITS.argmax(1), 0.18),
    "temperature 0.8": (sample(np, LOGITS, SEEDS, POSITIONS, 0.8)[0], 0.80),
    "another policy, logits off by 0.3": (
        sample(np, LOGITS + np.random.default_rng(7).normal(scale=0.3, size=LOGITS.shape), SEEDS, POSITIONS)[0],
        0.87,
    ),
    "out of the vocabulary": (np.full(ROWS, 512), 0.0),
    "negative": (np.full(ROWS, -1), 0.0),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_show(cheat: str) -> None:
    tokens, most = CHEATS[cheat]
    assert accepted(tokens) <= most
    assert accepted(HONEST) > 1 - 1e-9


def test_masked_tokens_have_an_infinite_gap_and_unjudged_rows_none() -> None:
    logits = np.zeros((4, 20), np.float32)
    logits[0, 3] = -math.inf
    logits[1, :8] = -math.inf
    logits[2] = math.nan
    for xp in (np, torch):
        gaps = sampling.verify_tokens(xp, xp.asarray(logits), *(ints(xp, x) for x in ([0] * 4, [0] * 4, [3, 2, 0, 20])))
        assert np.array_equal(as_numpy(gaps.worst), [math.inf, math.inf, math.nan, math.inf], equal_nan=True)
        assert np.array_equal(as_numpy(gaps.logprobs), [-math.inf, -math.inf, math.nan, -math.inf], equal_nan=True)
        assert np.isnan(as_numpy(gaps.lead)).tolist() == [False, False, True, False]


# Standing alone.

ALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("volery_sampling", sys.argv[1])
sampling = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sampling)
ours = {"numpy", "torch", "protocol", "swarm", "learner", "node", "msgspec", "trio"}
assert not ours & set(sys.modules), ours & set(sys.modules)
import numpy as np
tokens, _ = sampling.sample(np, np.zeros((2, 9), np.float32), np.arange(2), np.arange(2))
assert "torch" not in sys.modules
print(*tokens)
"""


def test_loads_by_path_alone(tmp_path: Any) -> None:
    run = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, sampling.__file__],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    expected, _ = sample(np, np.zeros((2, 9), np.float32), range(2), range(2))
    assert run.stdout.split() == [str(token) for token in expected]
