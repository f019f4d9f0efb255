"""What is printed while a model is warmed up: lines for people, or one JSON object a line for programs.

The keys of the JSON are a promise: `event` is "examples", "begun", "step", "look", "undone", "stopped" or "done", and
each has the fields of the method of that name. Figures that are not there are null.
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
"""Seconds between two lines of steps for people; programs get every step."""


@dataclass(kw_only=True)
class Progress:
    """See the module's paragraph. Rates are over the time since the last line."""

    total: int = 0
    as_json: bool = False
    _told_at: float = field(default_factory=time.monotonic)
    _tokens: int = 0

    def reading(self) -> None:
        """Examples are read, which takes a minute for some hundred thousand; said to whoever sits before a terminal."""
        if sys.stderr.isatty():
            complain("Reading examples...")

    def examples(self, told: str) -> None:
        """What there is to learn from."""
        self._tell("examples", f"{told}.", text=told)

    def begun(self, steps: int, of: str) -> None:
        """Where it begins: after so many steps of an earlier call, or anew. `of`: what is taught."""
        self._told_at, self._tokens = time.monotonic(), 0
        where = f"Going on after step {steps} of {self.total}" if steps else f"{words.counted(self.total, 'step')}"
        self._tell("begun", f"{where}, {of}.", steps=steps, total=self.total)

    def step(self, number: int, *, loss: float, rate: float, tokens: int) -> None:
        """Step `number` was taken, on so many tokens."""
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
        """After step `number`: the loss on examples that are held back, and the score on held-out prompts."""
        parts = [] if loss is None else [f"held-out loss {loss:.4f}"]
        parts += [] if judged is None else [judged.told]
        if parts:
            figures = {} if judged is None else judged.figures
            told = f"step {number} of {self.total}: {'; '.join(parts)}"
            self._tell("look", told, step=number, held_out_loss=loss, **figures)
        self._told_at, self._tokens = time.monotonic(), 0

    def undone(self, number: int, *, block: int, rate: float) -> None:
        """The block before went too far: back to step `number`, in shorter blocks at a share `rate` of the rate."""
        shorter = f"in blocks of {words.counted(block, 'step')}, at {rate:g} of the rate"
        told = f"That is above the band: back to step {number}, {shorter}"
        self._tell("undone", told, step=number, block=block, rate=rate)

    def stopped(self, text: str) -> None:
        """Somebody stopped it."""
        self._tell("stopped", text, text=text)

    def done(self, text: str, *, out: str, steps: int) -> None:
        """The result is there."""
        self._tell("done", text, out=out, steps=steps)

    def asking(self, prompts: int) -> None:
        """So many held-out prompts are asked, which may take minutes; said to whoever sits before a terminal."""
        if sys.stderr.isatty():
            complain(f"Asking {words.counted(prompts, 'held-out prompt')}...")

    def waiting(self, header: Header) -> None:
        """The trainer waits for other machines, and says so."""
        if header.get("event") == "waiting":
            self.trouble(f"the trainer waits: {header.get('text')}")

    def trouble(self, text: str) -> None:
        """Something that somebody should see to."""
        complain(f"volery: note: {text}")

    def _tell(self, event: str, line: str, **fields: object) -> None:
        if self.as_json:
            say_drawn(json.dumps({"event": event, **fields}) + "\n")
        else:
            say(line)
