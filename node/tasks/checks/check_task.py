"""Run all checks of a task.

Invariants:

- The task is called through its gate (`node.tasks.gate`), like in the learner.
- A check that does not apply to a task says why, and is no fault. An exception of the task is a fault.
- Times are reported. They are a fault only if they exceed a limit that the author gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from node.tasks.api.interface import Task, TaskError, TaskKind
from node.tasks.checks import problems, rewards, tokens, turns
from node.tasks.checks.report import MAX_FAULTS, Report, Result, Timing
from node.tasks.checks.trial import LeftOut, Source, Trial, source_of
from node.tasks.gate import Gate
from node.tasks.registry import Services
from node.tasks.tokenizer import TextCodec
from protocol.core.visible import one_line

Check = Callable[[Trial], Iterator[str]]
"""Yields each fault as a sentence. Raises LeftOut or TaskError."""

CHECKS: Mapping[str, tuple[str, Check]] = {
    "problems": ("an index names the same problem every time", problems.same_again),
    "elsewhere": ("another process has the same problems", problems.same_elsewhere),
    "held-out": ("no held-out prompt is trained on, whatever the seed", problems.apart),
    "fingerprint": ("it stays the same, and changes with the problems", problems.fingerprint),
    "numbers": ("every completion gets a number as its reward, even a senseless one", rewards.numbers),
    "pure": ("the same completion gets the same reward again, in any order", rewards.pure),
    "reference": ("the reference answer gets the highest reward, an empty one less", rewards.reference),
    "answers": ("the same turns get the same answer again", turns.turns_pure),
    "end": ("an episode ends if the policy says nothing useful", turns.turns_end),
    "transcripts": ("every turn's transcript begins with the one before", turns.transcripts_grow),
    "tokens": ("every prompt can be written in tokens", tokens.encodes),
}
"""All checks except those of opening and of times, by name, each with the promise of a task that it tests."""

OPENS = ("opens", "it has what every task needs, and this machine has what the task needs")
TIMES = ("times", "problems and rewards take no longer than their limits")

NAMES = (OPENS[0], *CHECKS, TIMES[0])

SLOW_CHEAP_S = 1e-3
"""Seconds above which a reward is too slow for a task that says it is cheap: it blocks the node's own threads."""

INDEXES = 32
MAX_TURNS = 64


def check_task(
    task: Task | TaskKind | str,
    indexes: int = INDEXES,
    *,
    directory: Path | None = None,
    seed: int = 0,
    model: Path | None = None,
    max_turns: int = MAX_TURNS,
    max_problem_s: float | None = None,
    max_reward_s: float | None = None,
    only: str = "",
) -> Report:
    """Check the promises of a task, and return the results. Raises AssertionError if one is broken.

    Args:
        task: a spec as in `[task] spec`, which allows all checks; a `TaskKind`, built with its default options; or a
            task object, which cannot be opened a second time.
        indexes: number of training problems to try.
        directory: where relative paths of a spec start; the working directory by default.
        seed: orders the training problems.
        model: the directory of the model that will be trained. By default a small tokenizer with one token for each
            character; a text that it cannot write is no fault.
        max_turns: the number of turns after which an episode must be over if the policy says nothing useful.
        max_problem_s, max_reward_s: seconds that one problem and one reward may take; by default they are only
            reported.
        only: the name of the one check to run; "" runs all.

    Raises:
        AssertionError: a promise is broken. The message says which, where, and what to do.
        TaskError: the model cannot be read.
    """
    report = try_task(
        task,
        indexes,
        directory=directory,
        seed=seed,
        codec=TextCodec.load(model) if model is not None else None,
        max_turns=max_turns,
        max_problem_s=max_problem_s,
        max_reward_s=max_reward_s,
        only=only,
    )
    report.require()
    return report


def try_task(
    task: Task | TaskKind | str,
    indexes: int = INDEXES,
    *,
    directory: Path | None = None,
    seed: int = 0,
    codec: TextCodec | None = None,
    max_turns: int = MAX_TURNS,
    max_problem_s: float | None = None,
    max_reward_s: float | None = None,
    only: str = "",
    services: Services | None = None,
) -> Report:
    """Run the same checks, and return the results without raising for a broken promise. `codec`: of a model that was
    read already, None for the small tokenizer. `services`: the sections of swarm.toml about reward services."""
    if only and only not in NAMES:
        raise ValueError(f"there is no check {only!r}; the checks are {', '.join(NAMES)}")
    try:
        source = None
        if isinstance(task, str | TaskKind):
            source = source_of(task, directory=directory or Path(), seed=seed, services=services)
        trial = _trial(task, source, codec, max(1, indexes), max(1, max_turns))
        trial.gate.require()
        _ = trial.gate.fingerprint
    except TaskError as error:
        return _unopened(task, indexes, str(error))
    results = [Result(name=OPENS[0], promise=OPENS[1])]
    chosen = {name: check for name, check in CHECKS.items() if only in ("", name)}
    results += [_result(name, promise, check, trial) for name, (promise, check) in chosen.items()]
    if only == TIMES[0]:  # no other check has measured times
        _result("numbers", *CHECKS["numbers"], trial)
    seconds = {what: Timing.of(found) for what, found in trial.stopwatch.seconds.items()}
    limits = {"problem": max_problem_s, "reward": max_reward_s}
    results.append(_times(seconds, limits))
    return Report(
        task=trial.gate.name,
        fingerprint=trial.gate.fingerprint,
        indexes=trial.indexes,
        results=tuple(_told_once(results)),
        problem=seconds["problem"],
        reward=seconds["reward"],
        notes=tuple(_notes(trial, seconds["reward"])),
    )


def _trial(
    task: Task | TaskKind | str, source: Source | None, codec: TextCodec | None, indexes: int, max_turns: int
) -> Trial:
    """Return the task, with the variants of it that can be opened. Raises TaskError."""
    plain = Trial(
        gate=source.open() if source is not None else Gate(_object(task)),
        again=source.open() if source is not None else Gate(_object(task)),
        codec=codec or tokens.small_codec(),
        own_model=codec is not None,
        indexes=indexes,
        max_turns=max_turns,
        source=source,
    )
    if source is None:
        return plain
    varied = {}
    for what, other in source.varied():
        with suppress(TaskError):  # some values do not fit the other options
            varied[what] = other.open()
    return replace(plain, reseeded=source.reseeded().open(), varied=varied)


def _object(task: Task | TaskKind | str) -> Task:
    assert not isinstance(task, str | TaskKind), "a spec or kind has a source"
    return task


def _result(name: str, promise: str, check: Check, trial: Trial) -> Result:
    faults: list[str] = []
    try:
        faults += islice(check(trial), MAX_FAULTS)
    except LeftOut as why:
        if not faults:
            return Result(name=name, promise=promise, left_out=f"{why}.")
    except TaskError as error:
        faults.append(str(error))
    return Result(name=name, promise=promise, faults=tuple(dict.fromkeys(faults)))


def _told_once(results: Iterable[Result]) -> Iterator[Result]:
    """Yield the results without faults that an earlier check has too: an exception of the task stops several checks. A
    check without other faults is left out."""
    told: dict[str, str] = {}
    for result in results:
        faults = tuple(fault for fault in result.faults if fault not in told)
        if result.faults and not faults:
            yield replace(result, faults=(), left_out=f"the task failed as in `{told[result.faults[0]]}`.")
            continue
        told |= dict.fromkeys(faults, result.name)
        yield replace(result, faults=faults)


def _times(seconds: Mapping[str, Timing], limits: Mapping[str, float | None]) -> Result:
    faults = [
        f"a {what} took {seconds[what].longest_s:.3g} s; the limit is {limit:g} s."
        for what, limit in limits.items()
        if limit is not None and seconds[what].longest_s > limit
    ]
    left_out = "no limit was given." if all(limit is None for limit in limits.values()) else ""
    return Result(name=TIMES[0], promise=TIMES[1], faults=tuple(faults), left_out=left_out)


def _notes(trial: Trial, reward: Timing) -> Iterator[str]:
    if trial.gate.is_cheap and reward.median_s > SLOW_CHEAP_S:
        yield "The task says that it is cheap, but a reward takes more than a millisecond. Leave `is_cheap` out."


def _unopened(task: object, indexes: int, why: str) -> Report:
    """Return the report on a task that cannot be opened."""
    name = task if isinstance(task, str) else str(getattr(task, "name", type(task).__name__))
    return Report(
        task=one_line(name, 64),
        fingerprint="unknown",
        indexes=indexes,
        results=(Result(name=OPENS[0], promise=OPENS[1], faults=(why,)),),
        problem=Timing(),
        reward=Timing(),
    )
