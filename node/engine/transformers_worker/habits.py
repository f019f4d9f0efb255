"""Find out how an architecture keeps what it has read, counts positions and treats padding.

This is tried on a few tokens, since transformers' models silently accept arguments that they do not know.

Invariants:

- A model that cannot generate token by token, or remembers other sequences, is refused here with the reason, and not at
  the first lease.
- Prompts are padded only if that leaves a prompt's logits unchanged, whichever tokens are used for padding.
- Sequences share a batch only if each then has the logits that it has alone, even when others come and go.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..common_worker.errors import Refused
from ..common_worker.rotary import original_lengths
from .forward import read_on
from .kv_cache import Keeping, ways_of_keeping
from .memory import is_out_of_memory

SAME_LOGITS = {torch.float32: 1e-4}
"""Two ways to compute the same logits differ by rounding, by about 1e-6 of the largest logit in float32."""
SAME_ROUNDED = 5e-2
"""The same in bfloat16 and float16, where the difference is about 1e-2."""

SHORT, LONG = 3, 7
"""Tokens of the two prompts that are tried together."""
STEPS = 2
"""Tokens that are appended to each prompt."""

POSITIONS = ("max_position_embeddings", "max_target_positions", "max_seq_len")
"""Names under which configs give the length of the longest sequence; transformers maps more names to the first."""


@dataclass(frozen=True, kw_only=True)
class Habits:
    """`keeping`: how the model keeps what it has read. `shares`: whether sequences may share a batch. `pads`: whether
    prompts of several lengths may share one. `first_position`: the position of a sequence's first token. `positions`:
    tokens of the longest sequence, or None."""

    keeping: Keeping
    shares: bool
    pads: bool
    first_position: int
    positions: int | None


def habits_of(model: Any) -> Habits:
    """Try `model` on a few tokens. Raises Refused("bad_model") if it cannot generate."""
    first = _first_position(model)
    keeping, alone = _keeping(model, first)
    _require_forgetting(model, keeping, first)
    shares = _tells_rows_apart(model, keeping, first)
    return Habits(
        keeping=keeping,
        shares=shares,
        pads=shares and not _counts_columns(model.config) and _heeds_padding(model, keeping, first, alone),
        first_position=first,
        positions=_positions(model.config, first),
    )


@torch.inference_mode()
def _keeping(model: Any, first: int) -> tuple[Keeping, torch.Tensor]:
    """Return the first way of keeping that works, and the logits (STEPS + 1, V) of the short prompt with it."""
    why = "it keeps nothing of what it has read for its next pass"
    for keeping in ways_of_keeping(model):
        try:
            return keeping, _logits(model, keeping, first, [_prompt(model, SHORT)])
        except Exception as error:  # third-party code may raise anything
            if is_out_of_memory(error):
                raise
            why = " ".join(str(error).split())[:400] or type(error).__name__
    raise Refused("bad_model", f"{type(model).__name__} cannot generate token by token in this engine: {why}")


@torch.inference_mode()
def _require_forgetting(model: Any, keeping: Keeping, first: int) -> None:
    """Raise Refused("bad_model") if an earlier sequence changes the logits of the next one. RecurrentGemma does this to
    a sequence that begins with one token: its layers still hold the last one."""
    ids = torch.tensor([[2]], device=model.get_input_embeddings().weight.device)
    said = []
    for before in (_prompt(model, SHORT), _prompt(model, LONG)):
        _logits(model, keeping, first, [before])
        memory = keeping.new(model.config, STEPS)
        said.append(read_on(model, ids, None, torch.zeros_like(ids), memory, first))
    if not _share(*said) <= SAME_LOGITS.get(said[0].dtype, SAME_ROUNDED):
        raise Refused(
            "bad_model",
            f"{type(model).__name__} keeps what it has read in its layers, so one sequence changes the logits of the "
            "next. Use a model of another architecture",
        )


@torch.inference_mode()
def _tells_rows_apart(model: Any, keeping: Keeping, first: int) -> bool:
    """Return whether a prompt continues in a batch as it does alone. RWKV's decoding mixes the rows of a batch."""
    one, other = _prompt(model, SHORT), _prompt(model, SHORT)[::-1]
    columns = torch.arange(SHORT + STEPS, device=model.get_input_embeddings().weight.device)[None]

    def read(ids: list[list[int]], start: int) -> torch.Tensor:
        told = torch.tensor(ids, device=columns.device)
        return read_on(model, told, None, columns[:, start : start + told.shape[1]].expand(told.shape), memory, first)

    try:
        memory = keeping.new(model.config, STEPS)
        alone = [read([other], 0), *(read([[step + 2]], SHORT + step) for step in range(STEPS))]
        memory = keeping.new(model.config, STEPS)
        beside = [read([one, other], 0)[1:]]
        memory.select(torch.tensor([0, 0, 1], device=columns.device))
        beside.append(read([[3], [4], [2]], SHORT)[2:])
        memory.select(torch.tensor([2], device=columns.device))
        beside.append(read([[3]], SHORT + 1))
    except Exception as error:  # third-party code may raise anything
        if is_out_of_memory(error):
            raise
        return False
    return _share(torch.cat(beside), torch.cat(alone)) <= SAME_LOGITS.get(alone[0].dtype, SAME_ROUNDED)


@torch.inference_mode()
def _heeds_padding(model: Any, keeping: Keeping, first: int, alone: torch.Tensor) -> bool:
    """Return whether the short prompt beside a long one still has the logits `alone`, with any padding token."""
    prompts = [_prompt(model, SHORT), _prompt(model, LONG)]
    try:
        padded, otherwise = (_logits(model, keeping, first, prompts, pad) for pad in (0, 1))
    except Exception as error:  # third-party code may raise anything
        if is_out_of_memory(error):
            raise
        return False
    # A model that ignores padding gives the same bits, unless experts group the tokens of a batch differently.
    has_experts = any("expert" in name for name, _ in model.named_parameters())
    rounding = SAME_LOGITS.get(alone.dtype, SAME_ROUNDED)
    exactly = rounding if has_experts else SAME_LOGITS[torch.float32]
    return _share(padded, alone) <= rounding and _share(otherwise, padded) <= exactly


def _logits(model: Any, keeping: Keeping, first: int, prompts: list[list[int]], pad: int = 0) -> torch.Tensor:
    """Return the logits (STEPS + 1, V) of the first prompt, padded on the left with token `pad`, and of the tokens
    after it. The first prompt's row is doubled after the prefill, and the copy is dropped, as happens in a batch."""
    device = model.get_input_embeddings().weight.device
    longest = max(map(len, prompts))
    columns = torch.arange(longest + STEPS, device=device)[None]
    padding = torch.tensor([[longest - len(prompt)] for prompt in prompts], device=device)
    mask = (columns >= padding).long() if len(prompts) > 1 else None
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    memory = keeping.new(model.config, STEPS)
    positions = (columns[:, :longest] - padding).clamp(min=0)
    found = [read_on(model, ids, None if mask is None else mask[:, :longest], positions, memory, first)[0]]
    rows = torch.tensor([0, 0, *range(1, len(prompts))], device=device)
    memory.select(rows)
    kept = torch.tensor([0, *range(2, len(rows))], device=device)
    memory.select(kept)
    for token in range(STEPS):
        end = longest + token + 1
        nexts = torch.full((len(kept), 1), token + 2, device=device)
        told = None if mask is None else mask[:, :end]
        found.append(read_on(model, nexts, told, end - 1 - padding, memory, first)[0])
    return torch.stack(found).float() if model.dtype == torch.float32 else torch.stack(found)


def _prompt(model: Any, length: int) -> list[int]:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    return [(3 * length + place) % vocabulary for place in range(length)]


def _share(logits: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference divided by the largest expected logit; 0 where all are equal, even if infinite."""
    logits, expected = logits.float(), expected.float()
    apart = torch.where(logits == expected, 0.0, (logits - expected).abs())
    finite = expected[expected.isfinite()]
    tiny = torch.finfo(torch.float32).tiny
    return float(apart.max() / finite.abs().max().clamp(min=tiny)) if len(finite) else 0.0


def _first_position(model: Any) -> int:
    """Return the position of the first token. Descendants of fairseq's models (RoBERTa) begin after the id of the
    padding token. By default they also skip every token with that id, which a cache does not."""
    for module in model.modules():
        if hasattr(type(module), "create_position_ids_from_input_ids") and hasattr(module, "position_embeddings"):
            return int(module.padding_idx) + 1
    return 0


def _positions(config: Any, first: int) -> int | None:
    """Return the tokens of the longest sequence, None if the config names no limit (`learner.artifacts.model_limits`
    reads it from config.json).
    """
    config = config.get_text_config(decoder=True)
    named = (getattr(config, name, None) for name in POSITIONS)
    known = [size - first for size in named if isinstance(size, int) and size > 0][:1]
    return min([*known, *original_lengths(config.to_dict())], default=None)


def _counts_columns(config: Any) -> bool:
    """Return whether attention sees chunks that begin at fixed columns, which padding shifts. A short prompt cannot
    show this."""
    return bool(getattr(config.get_text_config(decoder=True), "attention_chunk_size", None))
