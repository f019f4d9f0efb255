"""Keep what a stopped warm-up needs to continue, in a directory beside the result: OUT.warmup.

It holds `state.json`, the checkpoint that it names, and exported weights to be scored. The checkpoint is written before
each block of steps. A block that overshoots goes back to it, and so does the same command after Ctrl-C, a crash or a
power cut.

Invariants:

- `state.json` names a complete checkpoint; without it the warm-up begins at step 0.
- A warm-up with another model, other examples, another order or another adapter is refused, and nothing is changed.
- Only one process uses the directory, and it is removed when the result exists.
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
    """The point from which a warm-up continues: `steps` steps are done, and `checkpoint` has the weights.

    Args:
        fixed: settings that may not change.
        undone: number of blocks that overshot.
        score: score of the weights before the first step.
    """

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
"""The settings that may not change, and their names in messages."""


@dataclass(kw_only=True)
class Kept:
    """The directory beside the result, opened by `open_kept`. `reached` is None if there is nothing to continue."""

    place: Path
    fixed: Mapping[str, Any]
    reached: Reached | None

    def checkpoint(self, steps: int) -> Path:
        """Return the path of the checkpoint after so many steps."""
        return self.place / f"{CHECKPOINT}{steps}"

    def look(self, number: int) -> Path:
        """Return the path to which weights are exported to be scored."""
        return self.place / f"{LOOK}{number}"

    def note(self, steps: int, pace: Pace, *, undone: int = 0, score: float | None = None) -> None:
        """Record that the warm-up continues after so many steps, whose checkpoint exists, and remove the others.

        Raises RunError.
        """
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
        """Remove everything that `state.json` does not name: older checkpoints, exports, remains of a kill."""
        wanted = {LOCK, FOLDER, *((STATE, self.reached.checkpoint) if self.reached else ())}
        for path in self.place.iterdir():
            if path.name not in wanted:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def remove(self) -> None:
        """Remove the directory, because the result exists."""
        shutil.rmtree(self.place, ignore_errors=True)


def place_of(out: Path) -> Path:
    """Return the path of the directory beside `out`."""
    return out.with_name(out.name + SUFFIX)


@contextmanager
def open_kept(out: Path, fixed: Mapping[str, Any], *, anew: bool) -> Iterator[Kept]:
    """Open the directory beside `out` while inside; with `anew` its earlier content is discarded.

    Raises UsageError if it belongs to another warm-up, RunError if it cannot be used.
    """
    place = place_of(out)
    if place.exists() and not (place / LOCK).exists():
        raise UsageError(f"{place} exists, and is not from a warm-up. Move it, or name another result directory.")
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise RunError(f"{place} cannot be made: {error.strerror}. Name another result directory.") from None
    try:
        _hold(lock, place)
        kept = Kept(place=place, fixed=fixed, reached=None if anew else _reached(place, fixed))
        kept.tidy()
        yield kept
    finally:
        os.close(lock)
        if not (place / STATE).exists():  # there is nothing to continue from
            shutil.rmtree(place, ignore_errors=True)


def _hold(lock: int, place: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RunError(
            f"{place} is in use by a running warm-up. Stop that one, or name another result directory."
        ) from None


def _reached(place: Path, fixed: Mapping[str, Any]) -> Reached | None:
    """Return the point to continue from; None if there is none. Raises UsageError, RunError."""
    if not (place / STATE).exists():
        return None
    try:
        found = msgspec.convert(parse_json(read_file(place / STATE)), Reached)
    except (OSError, ValueError) as error:
        raise RunError(f"{place / STATE} cannot be read: {error}. Add --anew to begin again.") from None
    changed = [name for name in NAMES if found.fixed.get(name) != fixed.get(name)]
    if changed:
        raise UsageError(
            f"{NAMES[changed[0]]} has changed since the warm-up in {place} began. Restore it, add --anew to begin "
            "again, or name another result directory."
        )
    if not (place / found.checkpoint).is_dir():
        raise RunError(f"{place / found.checkpoint} is missing. Add --anew to begin again.")
    return found
