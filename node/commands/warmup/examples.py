"""Collect the examples to learn from: a task's reference answers, or the rows of a file. Count those that do not fit.

Invariants:

- No example is cut. One that is longer than the model or `most` allows is left out and counted.
- Held-back examples, on which the loss is measured, are never learnt, nor are copies of them. They come from the
  training side: the held-out problems of a task are only evaluated.
- A problem without a reference answer is left out and counted. It is an error if no problem has one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from node.learner_role.training.supervised import Example, Passage, example_of
from node.tasks.api.interface import TaskError
from node.tasks.gate import Place
from node.tasks.task_suite import TaskSuite
from node.tasks.tokenized_task import EncodedTask

MAX_HELD_BACK = 128
"""Most examples on which the loss is measured: enough for two digits of it."""

HELD_BACK_SHARE = 0.05
"""Fraction of finitely many examples that is held back. If there are fewer than 20, none is."""

HELD_BACK_ENDLESS = 64
"""Examples of endless tasks that are held back: their first ones."""

LOOKED_AT = 64
"""Problems of an endless task that are checked first: if none has an answer, hardly any other will."""

TOO_LONG, NO_ANSWER = "too long", "no reference answer"

WHO_CAN = (
    "Tasks with reference answers are reverse, sort, product and arithmetic, files (jsonl, csv, parquet, dataset) with "
    "an answer in each row, most of reasoning_gym, `tools:` of any of these, and your own tasks whose Problem has "
    "`answer`. For all others name conversations to learn from: --data FILE."
)


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """The examples to learn from.

    Args:
        held_back: examples on which the loss is measured; they are never learnt.
        examples: the finitely many examples to learn.
        draw: for endless tasks, returns the example for (number of the task, how many were drawn of it before).
        weights: weights of endless tasks.
        left_out: numbers of examples that were left out, by reason.
    """

    held_back: Sequence[Example]
    digest: str
    examples: Sequence[Example] = ()
    draw: Callable[[int, int], Example | None] | None = None
    weights: Sequence[float] = ()
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """Return a sentence on what was found."""
        counts = [f"{count:,} left out ({reason})" for reason, count in sorted(self.left_out.items())]
        if self.draw is not None:
            return "; ".join(["Unlimited examples, made by the task", *counts])
        tokens = sum(map(len, self.examples))
        found = (
            f"{len(self.examples):,} examples of {tokens:,} tokens, {len(self.held_back):,} more held back for the loss"
        )
        return "; ".join([found, *counts])


def of_rows(rows: Iterable[list[Passage]], most: int) -> Lessons:
    """Return the examples of a file's rows, of at most `most` tokens each. Raises TaskError."""
    return _finite(iter(rows), most)


def of_tasks(suite: TaskSuite, weights: Sequence[float], most: int) -> Lessons:
    """Return the reference answers of one finite task, or of tasks drawn by their weights. Raises TaskError."""
    tasks = list(suite.tasks.values())
    if len(tasks) == 1 and (finite := tasks[0].gate.finite) is not None:
        found = (reference(tasks[0], index) for index in range(finite.size))
        return _finite(found, most, task=tasks[0].gate.name)
    return _endless(tasks, weights, most)


def reference(encoded: EncodedTask, index: int) -> list[Passage] | None:
    """Return the example of a training problem; None if the task has no answer to it."""
    if encoded.gate.problem(Place(index=index)).answer is None and not encoded.gate.demonstrates:
        return None
    return encoded.example(index)


def _finite(found: Iterator[list[Passage] | None], most: int, *, task: str = "") -> Lessons:
    examples, left_out, digest = list[Example](), Counter[str](), hashlib.sha256()
    for passages in found:
        if passages is None:
            left_out[NO_ANSWER] += 1
            continue
        example = example_of(passages)
        if len(example) > most:
            left_out[TOO_LONG] += 1
        else:
            examples.append(example)
            digest.update(len(example).to_bytes(4, "big") + example.tokens.tobytes() + example.learnt.tobytes())
    if not examples and left_out[NO_ANSWER] > left_out[TOO_LONG]:
        raise no_answers(task)
    if not examples:
        raise TaskError(
            f"all {left_out[TOO_LONG]:,} examples are longer than the {most:,} tokens that the model or --max-tokens "
            "allows. Shorten them, or use a model with more positions."
        )
    taught, held_back = _apart(examples)
    return Lessons(examples=taught, held_back=held_back, digest=digest.hexdigest(), left_out=left_out)


def no_answers(task: str) -> TaskError:
    """Return the error for a task that gives no reference answers."""
    return TaskError(f"[task] {task} gives no reference answers, so nothing can be learnt from it. {WHO_CAN}")


def _apart(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Return (to learn, held back). Examples with the lowest digests are held back, with all their copies."""
    digests = [hashlib.blake2b(one.tokens.tobytes() + one.learnt.tobytes(), digest_size=8).digest() for one in examples]
    count = min(MAX_HELD_BACK, int(HELD_BACK_SHARE * len(set(digests))))
    chosen = set(sorted(set(digests))[:count])
    pairs = list(zip(digests, examples, strict=True))
    back = {digest: one for digest, one in pairs if digest in chosen}
    return [one for digest, one in pairs if digest not in chosen], list(back.values())


def _endless(tasks: Sequence[EncodedTask], weights: Sequence[float], most: int) -> Lessons:
    left_out = Counter[str]()
    told = [one.gate.fingerprint for one in tasks]
    digest = hashlib.sha256(repr((told, list(weights), most)).encode()).hexdigest()

    def made(task: int, index: int) -> Example | None:
        passages = reference(tasks[task], index)
        example = None if passages is None else example_of(passages)
        if example is None or len(example) > most:
            left_out[NO_ANSWER if example is None else TOO_LONG] += 1
            return None
        return example

    def draw(task: int, drawn: int) -> Example | None:
        finite = tasks[task].gate.finite
        return made(task, drawn % finite.size if finite else HELD_BACK_ENDLESS + drawn)

    held_back = list[Example]()
    for number, encoded in enumerate(tasks):
        count = LOOKED_AT if encoded.gate.finite is None else min(LOOKED_AT, encoded.gate.finite.size)
        found = [made(number, index) for index in range(count)]
        if not any(one is not None for one in found):
            raise no_answers(encoded.gate.name) if left_out[NO_ANSWER] else _all_too_long(encoded.gate.name, most)
        if encoded.gate.finite is None:
            share = HELD_BACK_ENDLESS // len(tasks) or 1
            held_back += [one for one in found if one is not None][:share]
    left_out.clear()
    return Lessons(held_back=held_back, digest=digest, draw=draw, weights=weights, left_out=left_out)


def _all_too_long(task: str, most: int) -> TaskError:
    return TaskError(
        f"[task] {task}: its examples are longer than the {most:,} tokens that the model or --max-tokens allows. Make "
        "its options smaller, or use a model with more positions."
    )
