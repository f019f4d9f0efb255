"""Print the progress of a warm-up: lines for people, or one JSON object in each line for programs.

The keys of the JSON are a promise: `event` is "examples", "begun", "step", "look", "undone", "stopped" or "done", and
each has the fields of the method of that name. A missing number is null.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field

from node.commands.warmup.scoring import Judged
from node.runtime import formatting as words
from node.runtime.stdout import complain, say, say_drawn
from protocol.core.pipe import Header

EVERY_S = 5.0
"""Seconds between two lines about steps, for people; programs get every step."""


@dataclass(kw_only=True)
class Progress:
    """Prints the progress. Rates are averages since the last line."""

    total: int = 0
    as_json: bool = False
    _told_at: float = field(default_factory=time.monotonic)
    _tokens: int = 0

    def reading(self) -> None:
        """Report on a terminal that examples are being read, which takes a minute for some hundred thousand."""
        if sys.stderr.isatty():
            complain("Reading examples...")

    def examples(self, told: str) -> None:
        """Report the examples that were found."""
        self._tell("examples", f"{told}.", text=told)

    def begun(self, steps: int, of: str) -> None:
        """Report the start, after `steps` steps of an earlier call. `of`: what is taught."""
        self._told_at, self._tokens = time.monotonic(), 0
        where = f"Continuing after step {steps} of {self.total}" if steps else f"{words.counted(self.total, 'step')}"
        self._tell("begun", f"{where}, {of}.", steps=steps, total=self.total)

    def step(self, number: int, *, loss: float, rate: float, tokens: int) -> None:
        """Report step `number`, with so many tokens."""
        self._tokens += tokens
        passed = time.monotonic() - self._told_at
        if not self.as_json and passed < EVERY_S:
            return
        speed = self._tokens / max(passed, 1e-9)
        self._told_at, self._tokens = time.monotonic(), 0
        self._tell(
            "step",
            f"step {number} of {self.total}: loss {loss:.4f}, rate {rate:.2g}, {speed:,.0f} tokens/s",
            step=number,
            loss=loss,
            learning_rate=rate,
            tokens=tokens,
            tokens_per_s=round(speed, 1),
        )

    def look(self, number: int, *, loss: float | None, judged: Judged | None) -> None:
        """Report the loss on held-back examples, and the score on held-out prompts, after step `number`."""
        parts = [] if loss is None else [f"held-out loss {loss:.4f}"]
        parts += [] if judged is None else [judged.text]
        if parts:
            figures = {} if judged is None else judged.figures
            told = f"step {number} of {self.total}: {'; '.join(parts)}"
            self._tell("look", told, step=number, held_out_loss=loss, **figures)
        self._told_at, self._tokens = time.monotonic(), 0

    def undone(self, number: int, *, block: int, rate: float) -> None:
        """Report that the last block overshot: back to step `number`, in shorter blocks at `rate` times the rate."""
        shorter = f"in blocks of {words.counted(block, 'step')}, at {rate:g} times the rate"
        told = f"The score is above the range: back to step {number}, {shorter}"
        self._tell("undone", told, step=number, block=block, rate=rate)

    def stopped(self, text: str) -> None:
        """Report that the warm-up was stopped."""
        self._tell("stopped", text, text=text)

    def done(self, text: str, *, out: str, steps: int) -> None:
        """Report that the result is written."""
        self._tell("done", text, out=out, steps=steps)

    def asking(self, prompts: int) -> None:
        """Report on a terminal that so many held-out prompts are being evaluated, which may take minutes."""
        if sys.stderr.isatty():
            complain(f"Evaluating {words.counted(prompts, 'held-out prompt')}...")

    def waiting(self, header: Header) -> None:
        """Report that the trainer waits for other machines, if `header` says so."""
        if header.get("event") == "waiting":
            self.trouble(f"the trainer waits: {header.get('text')}")

    def trouble(self, text: str) -> None:
        """Report something that a person should look at."""
        complain(f"volery: note: {text}")

    def _tell(self, event: str, line: str, **fields: object) -> None:
        if self.as_json:
            say_drawn(json.dumps({"event": event, **fields}) + "\n")
        else:
            say(line)
