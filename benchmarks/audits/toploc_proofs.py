"""Run TOPLOC (arXiv 2501.16007) on the same completions: proofs of the peer's last hidden states, against our own.

The package of PyPI makes and checks the proofs, 128 values of 32 tokens each, as it proposes. Nothing here is shipped.
`make bench-audit` builds the package for the installed torch; if that fails, the benchmark says so.

Invariants:

- The peer's states are those of a cached decoding, a token at a time, in its own number format; the verifier's are
  those of one pass over the whole.
- A token's figures are those of the proof that contains it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.audits.evidence import Floats, Pool
from benchmarks.audits.policies import GROUP
from benchmarks.audits.recording import HONEST, OWN, PLAIN, RELABELLED, Made, Peer, Recorded

CHUNK, TOP = 32, 128

VERIFIER = "float32"

PUBLISHED_BYTES = 258
"""Bytes of a proof: 2, and 2 for each value."""

WORST = 128.0
"""Largest mean error of mantissas, since bfloat16 has seven bits of them. Also used if no exponent fits, so that there
is no mean."""

ROWS = 128
"""Completions decoded together."""


@dataclass(frozen=True, kw_only=True)
class Proven:
    """TOPLOC's findings for one deed.

    Each token has its proof's three figures, [3][tokens]: exponents that differ, and the mean and median error of the
    mantissas of the others. `pool` has the groups.
    """

    pool: Pool
    figures: tuple[Floats, Floats, Floats]

    def half(self, which: int) -> Proven:
        """Return the same half as `Pool.half`."""
        index = self.pool.tokens_of_half(which)
        first, second, third = (figure[index] for figure in self.figures)
        return Proven(pool=self.pool.half(which), figures=(first, second, third))


@dataclass(frozen=True, kw_only=True)
class Toploc:
    """The results of one model.

    `proven`: findings by peer, deed, and whose states the proof has, the sampled policy's or the claimed one's. Then
    the bytes of proofs and the seconds of checking for a token, the pass over the tokens included.
    """

    proven: dict[tuple[Peer, str, str], Proven]
    bytes_per_token: float
    verify_s: float


def missing() -> str:
    """Return why TOPLOC is not available; "" if it is."""
    try:
        import toploc  # noqa: F401
    except ImportError as error:
        return str(error).splitlines()[0]
    return ""


def prove_all(recorded: Recorded, deeds: Sequence[str], groups: int) -> Toploc:
    """Make and check proofs of this many groups for each of `deeds`, and for honest work in either number format.

    The first deed is proven once more as by a peer that also knows the right weights ("relabelled").
    """
    proven: dict[tuple[Peer, str, str], Proven] = {}
    size = tokens = 0
    took_s = 0.0
    for made in recorded.made:
        wanted = made.deed.name == HONEST or (made.deed.name in deeds and made.peer == PLAIN)
        if made.peer.engine != "transformers" or not wanted:
            continue
        owners = {OWN: made.deed.weights}
        if made.deed.name == deeds[0]:
            owners[RELABELLED] = made.deed.claimed
        for claims, weights in owners.items():
            states = decoded(load(weights, made.peer.dtype), made, groups * GROUP)
            proofs = [prove(one) for one in states]
            size += sum(len(proof) for one in proofs for proof in one)
            began = time.perf_counter()
            mine = prefilled(load(made.deed.claimed, VERIFIER), made, len(proofs))
            proven[made.peer, made.deed.name, claims] = verify(mine, proofs)
            took_s += time.perf_counter() - began
            tokens += sum(map(len, states))
    return Toploc(proven=proven, bytes_per_token=size / tokens, verify_s=took_s / tokens)


def load(directory: Path, dtype: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype), local_files_only=True).eval()


def _batches(made: Made, count: int) -> Iterator[tuple[list[int], int]]:
    """Yield completions whose prompts have one length, with that length, so that padding is only at the end."""
    by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(made.prompts[:count]):
        by_length.setdefault(len(prompt), []).append(place)
    for length, places in by_length.items():
        for first in range(0, len(places), ROWS):
            yield places[first : first + ROWS], length


def _ids(made: Made, places: Sequence[int], length: int) -> torch.Tensor:
    rows = [[*made.prompts[place], *made.completions[place].tokens] for place in places]
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


@torch.inference_mode()
def decoded(model: Any, made: Made, count: int) -> list[torch.Tensor]:
    """Return the last hidden states (tokens, width) by which each completion's tokens were chosen, a step at a time."""
    found: dict[int, torch.Tensor] = {}
    for places, length in _batches(made, count):
        ids = _ids(made, places, length)
        cache = DynamicCache(config=model.config)
        steps = [model.model(input_ids=ids[:, :length], past_key_values=cache, use_cache=True).last_hidden_state[:, -1]]
        for at in range(length, ids.shape[1] - 1):
            output = model.model(input_ids=ids[:, at : at + 1], past_key_values=cache, use_cache=True)
            steps.append(output.last_hidden_state[:, -1])
        states = torch.stack(steps, dim=1)
        found |= {p: row[: len(made.completions[p].tokens)] for p, row in zip(places, states, strict=True)}
    return [found[place] for place in range(count)]


@torch.inference_mode()
def prefilled(model: Any, made: Made, count: int) -> list[torch.Tensor]:
    """Return the same states from one pass."""
    found: dict[int, torch.Tensor] = {}
    for places, length in _batches(made, count):
        states = model.model(input_ids=_ids(made, places, length), use_cache=False).last_hidden_state[:, length - 1 :]
        found |= {p: row[: len(made.completions[p].tokens)] for p, row in zip(places, states, strict=True)}
    return [found[place] for place in range(count)]


def prove(states: torch.Tensor) -> list[bytes]:
    """Return the proofs of one completion."""
    from toploc import build_proofs_bytes

    rows = list(states.bfloat16()[:, None])
    return list(build_proofs_bytes(rows, decode_batching_size=CHUNK, topk=_top(states), skip_prefill=True))


def _top(states: torch.Tensor) -> int:
    """Return how many values a proof has: TOP, or fewer for a short completion of a narrow model."""
    last = (len(states) - 1) % CHUNK + 1
    return min(TOP, last * states.shape[1])


def verify(states: Sequence[torch.Tensor], proofs: Sequence[list[bytes]]) -> Proven:
    """Check proofs against our own states."""
    from toploc import verify_proofs_bytes

    columns: list[list[float]] = [[], [], []]
    for mine, theirs in zip(states, proofs, strict=True):
        rows = mine.bfloat16()
        told = verify_proofs_bytes(rows, theirs, decode_batching_size=CHUNK, topk=_top(mine), skip_prefill=True)
        for number, result in enumerate(told):
            size = min(CHUNK, len(mine) - number * CHUNK)
            figures = (
                float(result.exp_mismatches),
                min(WORST, float(result.mant_err_mean)),
                min(WORST, float(result.mant_err_median)),
            )
            for column, figure in zip(columns, figures, strict=True):
                column += [figure] * size
    lengths = np.array([len(one) for one in states])
    starts = np.concatenate([[0], np.cumsum(lengths.reshape(-1, GROUP).sum(1))]).astype(np.int64)
    nothing = np.zeros(int(starts[-1]))
    first, second, third = (np.array(column, np.float64) for column in columns)
    return Proven(
        pool=Pool(gaps=nothing, apart=nothing, leads=nothing, contexts=np.arange(len(nothing)), starts=starts),
        figures=(first, second, third),
    )
