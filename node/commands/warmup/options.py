"""What was asked for on the command line, checked: a mistake is told before a model is loaded.

Invariant: what is in force is a value that says so; whether held-out prompts are asked is decided here alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.commands.warmup.batches import Bounds
from node.commands.warmup.conversations import FIELDS
from node.commands.warmup.schedule import FULL_RATE, LORA_RATE, RISE_SHARE, Decay, Schedule
from node.runtime.errors import UsageError
from node.tasks.api.interface import Chat

FORMAT, ACCURACY = "format", "accuracy"

EPOCHS = 3
"""Passes over finitely many examples where nothing else is said, as TRL's SFT takes."""

ENDLESS_STEPS = 1000
"""Steps on a task without end, at most, where nothing else is said."""

BATCH_TOKENS, BATCH_EXAMPLES = 8192, 64
"""A step of TRL's SFT has eight sequences of up to 1,024 tokens; of short ones more give a steadier direction."""

LOOKS = 10
"""Looks in a whole warm-up, where nothing else is said: each takes an export and an evaluation."""

MOST_STEPS_BETWEEN = 50


@dataclass(frozen=True, kw_only=True)
class Band:
    """Where the score on held-out prompts is to end: within [`low`, `high`]."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


FORM_BAND, SCORE_BAND = Band(low=0.5, high=0.95), Band(low=0.3, high=0.6)
"""Of answers in the right form, and of right answers, where nothing else is said: docs/warmup.md."""


def read_band(text: str) -> Band:
    """Return what --until says, LOW..HIGH. Raises UsageError."""
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*\.\.\s*(\d*\.?\d+)\s*", text)
    if found is None:
        raise UsageError(f"--until {text}: is no band. Write two shares with two dots between, as --until 0.3..0.6.")
    band = Band(low=float(found[1]), high=float(found[2]))
    if not 0 < band.low < band.high <= 1:
        raise UsageError(
            f"--until {text}: a band lies between 0 and 1, and its first share is above 0 and below its second. Write "
            "for example --until 0.3..0.6."
        )
    return band


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One warm-up as it was asked for; None and 0 where nothing was said."""

    config: Path
    out: Path
    data: Path | None = None
    split: str = ""
    fields: Sequence[str] = ()
    chat: Chat = Chat.AUTO
    until: str = ""
    by: str = ""
    epochs: int = 0
    steps: int = 0
    lora: int = 0
    learning_rate: float | None = None
    decay: Decay = "linear"
    rise: int | None = None
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    batch_tokens: int = BATCH_TOKENS
    batch_examples: int = BATCH_EXAMPLES
    max_tokens: int = 0
    check_every: int = 0
    anew: bool = False

    def require(self) -> None:
        """Refuse what cannot be meant. Raises UsageError."""
        if self.epochs and self.steps:
            raise UsageError("--epochs and --steps both say how long to teach. Leave one of them out.")
        if self.data is None and (given := self.split or self.fields):
            option = "--split" if self.split else "--field"
            raise UsageError(f"{option} {given if self.split else given[0]} is about a file. Name it with --data FILE.")
        if (rate := self.learning_rate) is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(f"--learning-rate {rate}: is no rate. Give a number above 0, as {FULL_RATE:g}.")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(f"--weight-decay {self.weight_decay}: is no decay. Give 0, or a number above it, as 0.01.")
        if not (math.isfinite(self.grad_clip) and self.grad_clip > 0):
            raise UsageError(f"--grad-clip {self.grad_clip}: is no norm. Give a number above 0, as 1.0.")
        _ = self.band, self.names

    @property
    def scored(self) -> bool:
        """Whether held-out prompts are asked: unless a length alone was given."""
        return bool(self.until or self.by or not (self.epochs or self.steps))

    @property
    def score(self) -> str:
        """Which score the band is about."""
        return self.by or FORMAT

    @property
    def band(self) -> Band | None:
        """The band in force; None where no held-out prompts are asked. Raises UsageError."""
        if not self.scored:
            return None
        if self.until:
            return read_band(self.until)
        return FORM_BAND if self.score == FORMAT else SCORE_BAND

    @property
    def names(self) -> Mapping[str, str]:
        """Where the fields of a row stand. Raises UsageError."""
        found = {one: one for one in FIELDS}
        for text in self.fields:
            key, sign, name = text.partition("=")
            if not sign or key not in FIELDS or not name:
                raise UsageError(
                    f"--field {text}: write KEY=NAME, where KEY is one of {', '.join(FIELDS)}, as in --field "
                    "prompt=question."
                )
            found[key] = name
        return found

    @property
    def bounds(self) -> Bounds:
        return Bounds(tokens=self.batch_tokens, examples=self.batch_examples)

    def schedule(self, total: int) -> Schedule:
        """The rates of `total` steps."""
        return Schedule(
            rate=self.learning_rate or (LORA_RATE if self.lora else FULL_RATE),
            rise=math.ceil(RISE_SHARE * total) if self.rise is None else self.rise,
            total=total,
            decay=self.decay,
        )

    def block(self, total: int) -> int:
        """Steps between two looks."""
        return self.check_every or max(1, min(MOST_STEPS_BETWEEN, math.ceil(total / LOOKS)))
