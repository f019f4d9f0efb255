"""Choose what a trial generates: completions that take seconds, and reach positions at which a model may change.

Some models compute in another way from a position on: rotary factors change where the original context ends (LongRoPE,
arXiv 2402.13753), a sliding window begins to forget, learned positions are used up. An engine that decodes token by
token and a trainer that reads a whole sequence must agree on both sides of it, so a completion has to cross it.

Invariants:

- The first stretches continue real prompts, as they are, and may end as a node's would.
- Unless the first prompt is longer than LONGEST, one stretch does not end before the run or LONGEST does.
- If a bend lies within reach of a turn of PAST_IT + 1 tokens, one stretch ends at it or before it, and one begins
  before it and goes PAST_IT beyond.
- No stretch generates more than a turn may, or reaches further than the run, or than FURTHEST.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

SHORT_TOKENS = 24
"""Tokens of a completion that only shows whether all is well: enough for a mean, and one or two seconds of a small
model on a processor."""

FIRST_GROUP = 2
"""Completions of the first prompt: the trainer may put completions of one prompt in one row, with one copy of the
prompt."""

BEYOND = 32
"""Tokens on either side of a position at which a model may change."""

PAST_IT = 2
"""Least number of tokens beyond a bend: the last token of a completion is generated and never read."""

LONGEST = 2048
"""Position that a completion reaches in a model without a known change. Beyond it, a small model on a processor would
need minutes. Few architectures with learned positions have more of them."""

FURTHEST = 16_384
"""Position that no stretch goes beyond, wherever a model changes: one microbatch of the trainer by default."""

MAX_BENDS = 3
"""Positions that are crossed: an original context, a window and a chunk. Each costs one pass over all tokens before
it."""

BENDS = ("original_max_position_embeddings", "sliding_window", "attention_chunk_size")
"""Keys of a config.json, at any depth, whose value is a position from which on a model may compute in another way."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a run goes: the tokens of one turn, and the tokens of a prompt with all that follows it. `prompt_tokens`
    is the length of the longest known prompt."""

    turn_tokens: int
    tokens: int
    prompt_tokens: int = 0
    has_turns: bool = False


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """A completion to generate: at most `tokens` after `prompt`. A stop id may end it before that only if `stops` is
    set."""

    prompt: tuple[int, ...]
    tokens: int
    stops: bool = False

    @property
    def end(self) -> int:
        """Positions of the prompt and all that is generated."""
        return len(self.prompt) + self.tokens


def bends_of(config: Mapping[str, Any]) -> list[int]:
    """Return the positions, in order, from which on the model of a config.json may compute in another way than
    before."""
    return sorted(set(_bends(config)))


def _bends(config: Mapping[str, Any]) -> Iterator[int]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _bends(value)
        elif key in BENDS and isinstance(value, int) and not isinstance(value, bool) and value > 1:
            is_off = key == "sliding_window" and not config.get("use_sliding_window", True)
            yield from () if is_off else (value,)


def stretches(prompts: Sequence[tuple[int, ...]], reach: Reach, bends: Sequence[int]) -> list[Stretch]:
    """Return what to generate: FIRST_GROUP of the first prompt, one of each other, and what crosses `bends` and goes
    far.

    Every prompt leaves room for a turn. Stretches beyond the first ones have prompts that are filled up, by repeating
    the first one, or cut.
    """
    short = min(reach.turn_tokens, SHORT_TOKENS)
    plain = [Stretch(prompt=prompt, tokens=short, stops=True) for prompt in prompts]
    longest = max(reach.prompt_tokens, *map(len, prompts))
    far = reach.tokens if reach.has_turns else min(reach.tokens, longest + reach.turn_tokens)
    within = [bend for bend in bends if 1 < bend <= min(far - PAST_IT, FURTHEST)][:MAX_BENDS]
    chosen = [*plain[:1] * FIRST_GROUP, *plain[1:]]
    if within and plain[0].end > within[0]:
        chosen.append(_before(prompts[0], short, within[0]))
    chosen += [_across(prompts[0], reach.turn_tokens, far, bend) for bend in within]
    furthest = max([one.end for one in chosen if not one.stops], default=0)
    last = _up_to(prompts[0], reach.turn_tokens, min(far, LONGEST))
    return chosen if last is None or last.end <= furthest else [*chosen, last]


def _before(prompt: tuple[int, ...], short: int, bend: int) -> Stretch:
    """Return a completion that ends where the model changes, or before."""
    kept = prompt if len(prompt) < bend else prompt[: max(1, bend // 2)]
    return Stretch(prompt=kept, tokens=min(short, bend - len(kept)))


def _across(prompt: tuple[int, ...], turn_tokens: int, far: int, bend: int) -> Stretch:
    """Return a completion that begins before `bend` and ends behind it."""
    tokens = min(turn_tokens, 2 * BEYOND)
    end = min(far, bend + max(PAST_IT, tokens // 2))
    start = max(1, end - tokens)
    if start < len(prompt) < bend:
        start = len(prompt)
    start = min(start, bend - 1)
    return Stretch(prompt=_filled(prompt, start), tokens=min(turn_tokens, end - start))


def _up_to(prompt: tuple[int, ...], turn_tokens: int, end: int) -> Stretch | None:
    """Return a completion that ends at position `end`; None if the prompt alone goes as far."""
    if (tokens := min(turn_tokens, 2 * BEYOND, end - len(prompt))) < 1:
        return None
    return Stretch(prompt=_filled(prompt, end - tokens), tokens=tokens)


def _filled(prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    return tuple(islice(cycle(prompt), length))
