"""Check the options of a warm-up, so that a mistake is reported before a model is loaded.

Invariants:

- The values in force are properties of `Wanted`. Only it decides whether held-out prompts are evaluated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from node.commands.warmup.batches import Bounds
from node.commands.warmup.conversations import FIELDS
from node.commands.warmup.schedule import RISE_SHARE, Decay, Schedule
from node.learner_role.training.learning_rates import USUAL, LearningRates
from node.runtime.errors import UsageError
from node.tasks.api.interface import Chat

FORMAT, ACCURACY = "format", "accuracy"

EPOCHS = 3
"""Default number of passes over finitely many examples, as in TRL's SFT."""

ENDLESS_STEPS = 1000
"""Default number of steps on an endless task."""

BATCH_TOKENS, BATCH_EXAMPLES = 8192, 64
"""A step of TRL's SFT has eight sequences of up to 1,024 tokens. With short ones, more give a steadier direction."""

LOOKS = 10
"""Default number of measurements in a warm-up: each takes an export and an evaluation."""

MOST_STEPS_BETWEEN = 50


@dataclass(frozen=True, kw_only=True)
class ScoreRange:
    """The range [`low`, `high`] in which the score on held-out prompts is to end."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


FORM_RANGE, SCORE_RANGE = ScoreRange(low=0.5, high=0.95), ScoreRange(low=0.3, high=0.6)
"""Default ranges for answers in the right form and for right answers; docs/operate/warm-start.md explains them."""


def read_range(text: str) -> ScoreRange:
    """Return the range that --until gives as LOW..HIGH. Raises UsageError."""
    found = re.fullmatch(r"\s*(\d*\.?\d+)\s*\.\.\s*(\d*\.?\d+)\s*", text)
    if found is None:
        raise UsageError(f"--until {text} is not a range. Write two fractions with two dots between: --until 0.3..0.6.")
    wanted = ScoreRange(low=float(found[1]), high=float(found[2]))
    if not 0 < wanted.low < wanted.high <= 1:
        raise UsageError(
            f"--until {text}: a range lies between 0 and 1, and its first fraction is above 0 and below the second. "
            "Write for example --until 0.3..0.6."
        )
    return wanted


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The options of one warm-up. None and 0 mean not given."""

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
        """Check the options. Raises UsageError."""
        if self.epochs and self.steps:
            raise UsageError("--epochs and --steps both set how long to teach. Omit one of them.")
        if self.data is None and (given := self.split or self.fields):
            option = "--split" if self.split else "--field"
            raise UsageError(f"{option} {given if self.split else given[0]} needs a file. Name it with --data FILE.")
        if (rate := self.learning_rate) is not None and not (math.isfinite(rate) and rate > 0):
            raise UsageError(
                f"--learning-rate {rate} is not a rate. Give a number above 0, such as {USUAL.supervised:g}."
            )
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise UsageError(
                f"--weight-decay {self.weight_decay} is not a decay. Give a number from 0 on, such as 0.01."
            )
        if not (math.isfinite(self.grad_clip) and self.grad_clip > 0):
            raise UsageError(f"--grad-clip {self.grad_clip} is not a norm. Give a number above 0, such as 1.0.")
        _ = self.target, self.names

    @property
    def scored(self) -> bool:
        """Whether held-out prompts are evaluated: unless only a length was given."""
        return bool(self.until or self.by or not (self.epochs or self.steps))

    @property
    def score(self) -> str:
        """Return the name of the score that the range is about."""
        return self.by or FORMAT

    @property
    def target(self) -> ScoreRange | None:
        """Return the range in force; None if no held-out prompts are evaluated. Raises UsageError."""
        if not self.scored:
            return None
        if self.until:
            return read_range(self.until)
        return FORM_RANGE if self.score == FORMAT else SCORE_RANGE

    @property
    def names(self) -> Mapping[str, str]:
        """Return the names in the file of a row's fields. Raises UsageError."""
        found = {one: one for one in FIELDS}
        for text in self.fields:
            key, sign, name = text.partition("=")
            if not sign or key not in FIELDS or not name:
                raise UsageError(
                    f"--field {text}: write KEY=NAME, where KEY is one of {', '.join(FIELDS)}, for example --field "
                    "prompt=question."
                )
            found[key] = name
        return found

    @property
    def bounds(self) -> Bounds:
        return Bounds(tokens=self.batch_tokens, examples=self.batch_examples)

    def schedule(self, total: int, rates: LearningRates) -> Schedule:
        """Return the learning rates of `total` steps. `rates`: those that suit the model."""
        return Schedule(
            rate=self.learning_rate or (rates.adapter if self.lora else rates.supervised),
            rise=math.ceil(RISE_SHARE * total) if self.rise is None else self.rise,
            total=total,
            decay=self.decay,
        )

    def block(self, total: int) -> int:
        """Return the number of steps between two measurements."""
        return self.check_every or max(1, min(MOST_STEPS_BETWEEN, math.ceil(total / LOOKS)))
