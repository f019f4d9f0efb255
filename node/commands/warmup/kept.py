"""The directory beside the result, from which a warm-up that was stopped goes on: OUT.warmup.

It holds `state.json`, the checkpoint that it names, and what is exported to be scored. The checkpoint is written before
each block of steps: an overshoot goes back to it, and so does the same command after Ctrl-C, a crash or a power cut.

Invariants:
- `state.json` names a checkpoint that is whole, or there is none and the warm-up begins anew.
- A warm-up with another model, other examples, another order or another adapter is refused, and nothing is changed.
- One process at a time; the directory is gone once the result is there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import parse_json
from node.learner_role.training.supervised import Pace
from node.processes.temp_directory import FOLDER
from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError

STATE, LOCK, CHECKPOINT, LOOK = "state.json", "lock", "step-", "look-"

SUFFIX = ".warmup"


class Reached(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a warm-up goes on: after `steps` steps, with the weights of `checkpoint`. `fixed` may not change; `undone`
    blocks went too far; `score` is that of the weights before the first step."""

    fixed: dict[str, Any]
    steps: int
    checkpoint: str
    block: int
    rate: float
    best: float
    undone: int = 0
    score: float | None = None

    @property
    def pace(self) -> Pace:
        return Pace(block=self.block, rate=self.rate, best=self.best)


NAMES = {
    "model": "[model] directory",
    "ways": "[model]",
    "examples": "what is learnt from ([task], --data or --max-tokens)",
    "seed": "[learn] seed",
    "batch": "--batch-tokens or --batch-examples",
    "lora": "--lora, or the adapter in [trainer]",
}
"""What may not change, as a message names it."""


@dataclass(kw_only=True)
class Kept:
    """See the module's paragraph; made by `open_kept`. `reached` is None where nothing was begun."""

    place: Path
    fixed: Mapping[str, Any]
    reached: Reached | None

    def checkpoint(self, steps: int) -> Path:
        """Where the checkpoint after so many steps lies."""
        return self.place / f"{CHECKPOINT}{steps}"

    def look(self, number: int) -> Path:
        """Where the weights are exported to be scored."""
        return self.place / f"{LOOK}{number}"

    def note(self, steps: int, pace: Pace, *, undone: int = 0, score: float | None = None) -> None:
        """Say that the warm-up goes on after so many steps, whose checkpoint is there; remove the others. Raises
        RunError."""
        self.reached = Reached(
            fixed=dict(self.fixed),
            steps=steps,
            checkpoint=self.checkpoint(steps).name,
            block=pace.block,
            rate=pace.rate,
            best=pace.best,
            undone=undone,
            score=score,
        )
        write_durably(self.place / STATE, msgspec.json.encode(self.reached))
        self.tidy()

    def tidy(self) -> None:
        """Remove what `state.json` does not name: older checkpoints, exports, what a kill left."""
        wanted = {LOCK, FOLDER, *((STATE, self.reached.checkpoint) if self.reached else ())}
        for path in self.place.iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def remove(self) -> None:
        """Remove the directory: the result is there."""
        shutil.rmtree(self.place, ignore_errors=True)


def place_of(out: Path) -> Path:
    """Return the directory beside `out`."""
    return out.with_name(out.name + SUFFIX)


@contextmanager
def open_kept(out: Path, fixed: Mapping[str, Any], *, anew: bool) -> Iterator[Kept]:
    """Have the directory beside `out` while inside; with `anew` what was begun there is thrown away.

    Raises UsageError where something else was begun there, RunError where it cannot be used.
    """
    place = place_of(out)
    if place.exists() and not (place / LOCK).exists():
        raise UsageError(f"{place} is in the way, and is none of a warm-up's. Move it, or name another OUT.")
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunError(f"{place} cannot be made: {error.strerror}. Name another OUT.") from None
    try:
        _hold(lock, place)
        kept = Kept(place=place, fixed=fixed, reached=None if anew else _reached(place, fixed))
        kept.tidy()
        yield kept
    finally:
        os.close(lock)
        if not (place / STATE).exists():  # nothing to go on from
            shutil.rmtree(place, ignore_errors=True)


def _hold(lock: int, place: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RunError(f"{place} is used by a warm-up that is running. Stop that one, or name another OUT.") from None


def _reached(place: Path, fixed: Mapping[str, Any]) -> Reached | None:
    """Raises UsageError, RunError."""
    if not (place / STATE).exists():
        return None
    try:
        found = msgspec.convert(parse_json(read_file(place / STATE)), Reached)
    except (OSError, ValueError) as error:
        raise RunError(f"{place / STATE} cannot be read: {error}. Add --anew to begin again.") from None
    changed = [name for name in NAMES if found.fixed.get(name) != fixed.get(name)]
    if changed:
        raise UsageError(
            f"{NAMES[changed[0]]} is not what it was when the warm-up in {place} began. Put it back, add --anew to "
            "begin again, or name another OUT."
        )
    if not (place / found.checkpoint).is_dir():
        raise RunError(f"{place / found.checkpoint} is missing. Add --anew to begin again.")
    return found
