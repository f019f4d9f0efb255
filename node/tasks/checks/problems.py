"""Check problems and the fingerprint."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from node.tasks.api.interface import Problem, TaskError
from node.tasks.checks.description_program import Answered, describe
from node.tasks.checks.elsewhere import ask_elsewhere
from node.tasks.checks.trial import LeftOut, Trial, asked, shown
from node.tasks.gate import Gate, Place


def same_again(trial: Trial) -> Iterator[str]:
    """Check that an index gives the same problem in any order, and when the task is opened a second time."""
    first = trial.problems()
    for index in reversed(range(trial.indexes)):
        later = trial.again.problem(Place(index=index))
        if asked(later) != asked(first[index]):
            yield (
                f"index {index} asked {shown(first[index].prompt)} at first and {shown(later.prompt)} later. Let "
                "`problem` depend only on the options, the seed and the index."
            )
    if trial.gate.finite is not None:
        size = trial.gate.finite.size
        for index, problem in enumerate(first[:size]):
            if asked(trial.gate.problem(Place(index=index + size))) != asked(problem):
                yield f"`size` is {size}, but index {index + size} asks something else than index {index}."


def same_elsewhere(trial: Trial) -> Iterator[str]:
    """Check that another process has the same problems, because rewards are computed in other processes, even after
    years."""
    if trial.source is None or not trial.source.spec:
        raise LeftOut("the task was not given as a spec, so another process cannot open it")
    here = describe(trial.gate, trial.indexes)
    there = ask_elsewhere(trial.source, trial.indexes)
    yield from _differences(here, there)


def _differences(here: Answered, there: Answered) -> Iterator[str]:
    cause = "It must not depend on `hash`, the order of a set, a clock, or random numbers without a seed."
    if here.fingerprint != there.fingerprint:
        yield f"the fingerprint is {here.fingerprint!r} here and {there.fingerprint!r} in another process. {cause}"
    for index, (ours, theirs) in enumerate(zip(here.problems, there.problems, strict=True)):
        if ours != theirs:
            yield f"index {index} asks something else in another process. {cause}"


def apart(trial: Trial) -> Iterator[str]:
    """Check that held-out problems are never trained on, and are the same for every seed."""
    held_out = _held_out(trial.gate, trial.indexes)
    reseeded = [] if trial.reseeded is None else _problems(trial.reseeded, trial.indexes)
    places = {repr(problem.prompt): place for place, problem in enumerate(held_out)}
    for index, problem in chain(enumerate(trial.problems()), enumerate(reseeded)):
        if (place := places.get(repr(problem.prompt))) is not None:
            yield (
                f"index {index} asks the same as the held-out index {place}, {shown(problem.prompt)}. Decide from the "
                "prompt itself which problems are held out."
            )
    if trial.reseeded is not None:
        for place, (one, other) in enumerate(zip(held_out, _held_out(trial.reseeded, trial.indexes), strict=False)):
            if asked(one) != asked(other):
                yield f"the held-out index {place} asks something else with another seed. Do not use the seed there."


def _held_out(gate: Gate, count: int) -> list[Problem]:
    """Return the first held-out problems. Raises LeftOut if there are none, TaskError if the task fails."""
    if gate.finite is not None:
        count = min(count, gate.finite.num_held_out)
    if count == 0:
        raise LeftOut("it has no held-out problems")
    try:
        gate.problem(Place(index=0, held_out=True))
    except TaskError as error:
        if error.__cause__ is None and gate.finite is None and type(error) is TaskError:
            raise LeftOut(f"it has no held-out problems: {error}") from None
        raise
    return [gate.problem(Place(index=index, held_out=True)) for index in range(count)]


def _problems(gate: Gate, count: int) -> list[Problem]:
    return [gate.problem(Place(index=index)) for index in range(count)]


def fingerprint(trial: Trial) -> Iterator[str]:
    """Check that the fingerprint stays the same, and changes with the problems."""
    if trial.gate.fingerprint != trial.again.fingerprint:
        yield (
            f"it is {trial.gate.fingerprint!r} at first and {trial.again.fingerprint!r} later. Make it only from the "
            "options, the seed and the content of files."
        )
    ours = describe(trial.gate, trial.indexes).problems
    others = {**({"seed": trial.reseeded} if trial.reseeded is not None else {}), **trial.varied}
    for what, other in others.items():
        if other.fingerprint != trial.gate.fingerprint:
            continue
        theirs = describe(other, trial.indexes).problems
        if different := [index for index, (one, two) in enumerate(zip(ours, theirs, strict=True)) if one != two]:
            changed = "another seed" if what == "seed" else what
            missing = "the seed" if what == "seed" else f"`{what.partition('=')[0]}`"
            yield (
                f"with {changed} index {different[0]} is another problem under the same fingerprint. "
                f"Put {missing} into the fingerprint."
            )
