"""Describe how the learner spent its time, in words and for programs, the same wherever it is shown."""

from __future__ import annotations

from collections.abc import Iterator

from learner.provisioning.estimation.learner_time import BLOCKED, OTHER, LearnerTime, TimeKind
from node.runtime import formatting as words

NAMES = {
    TimeKind.TRAINING: "training",
    TimeKind.WAITING: "waiting for rollouts",
    TimeKind.PUBLICATION: "blocked by publication",
    TimeKind.CHECKPOINT: "blocked by checkpoints",
    TimeKind.EVALUATION: "evaluating the last version",
    TimeKind.BATCH: "exchanging batches with the trainer",
    TimeKind.LEDGER: "writing the ledger",
    TimeKind.STARTING: "starting",
    TimeKind.ENDING: "ending",
    TimeKind.UNDIVIDED: "training steps, not divided further",
    TimeKind.UNTOLD: "not recorded",
}
"""The kinds as people read them."""

PARTS = (
    ("training", "training", (TimeKind.TRAINING, TimeKind.UNDIVIDED)),
    ("waiting", "waiting for rollouts", (TimeKind.WAITING,)),
    ("publishing", "publishing and checkpoints", BLOCKED),
)
"""The kinds in few parts, for a bar: key, name, kinds. The rest is "other"."""

OLDER = "not known: the program that recorded this run did not measure its training time"


def trained(time: LearnerTime) -> str:
    """Return how busy it was, as a part of a sentence."""
    if time.utilisation is None:
        return OLDER if time.wall_s else "has not run yet"
    bubble = "" if time.bubble is None else f", waiting {words.share(time.bubble)} of the steps' time (bubble)"
    return f"training {words.share(time.utilisation)} of {words.duration(time.wall_s)}{bubble}"


def trains(time: LearnerTime) -> str:
    """Return how busy it is in a simulation; if a recording has no kinds, only waiting is known."""
    if time.utilisation is not None:
        return f"trains {words.share(time.utilisation)} of its time"
    return f"waits {words.share(time.bubble)} of its time"


def kinds(time: LearnerTime) -> str:
    """Return the fractions of the wall time, which add up to all of it; small kinds together, then by name."""
    told = [
        f"{NAMES[kind]} {words.share(time.share(kind))}" for kind in TimeKind if kind not in OTHER and time.of(kind)
    ]
    others = [f"{NAMES[kind]} {words.share(time.share(kind))}" for kind in OTHER if time.of(kind)]
    if others:
        told.append(f"other {words.share(time.share(*OTHER))} ({', '.join(others)})")
    return ", ".join(told)


def parts(time: LearnerTime) -> Iterator[tuple[str, str, float]]:
    """Yield (key, name, fraction of the wall time) of each part; together they are all of it."""
    left = 1.0
    for key, name, of in PARTS:
        share = time.share(*of) or 0.0
        left -= share
        yield key, name, share
    yield "other", "other", max(0.0, left)


def part_names() -> list[str]:
    """Return the names of the parts, in order."""
    return [*(name for _, name, _ in PARTS), "other"]


def time_rows(time: LearnerTime) -> Iterator[tuple[str, float, float | None]]:
    """Yield (name, seconds, fraction of the wall time) of each kind that passed."""
    for kind in TimeKind:
        if seconds := time.of(kind):
            yield NAMES[kind], seconds, time.share(kind)


def as_values(time: LearnerTime) -> dict[str, float | None]:
    """Return values for programs: seconds by kind, which add up to `wall_s`, and the shares made of them."""
    return {
        "wall_s": time.wall_s,
        **{f"{kind}_s": time.of(kind) for kind in TimeKind},
        "utilisation": time.utilisation,
        "blocked": time.blocked,
        "bubble": time.bubble,
    }
