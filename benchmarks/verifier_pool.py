"""Claim "verifiers": rewards of mathematics and of sandboxed programs come from as many processes as one gives them.

The same questions are put to pools of 1, 2 and 4 verifiers on this machine, of two tasks: `jsonl` with match=math,
whose completions are short solutions with an answer in a box, and `code`, each of whose completions is a program that
reads two numbers in three tests, each in a sandbox of its own. Half of the completions are right. What always holds:
every reward is what it should be, or the figure does not count; pools are opened, and warmed by a few questions, before
the clock starts; orders of pools alternate between repetitions, and figures are medians. A machine has no more to give
than it has cores, so with fewer than four the last column says what oversubscription costs.

Bars: wrong, rewards that are not what they should be, at most 0; scaling_math and scaling_code, rewards a second with
two verifiers beside one, at least 1.3, judged where who asks and two verifiers have a core each that nobody else keeps
busy: on four cores or more.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import trio
from harness import Bar, arguments, conclude, main, median, number, say, scratch, table

from node.tasks.api.interface import Task
from node.tasks.grading import Asked
from node.tasks.registry import open_task
from node.verifiers.pool import VERIFIER, PoolTerms, VerifierPool, open_pool

REPS = 3
WORKERS = (1, 2, 4)
QUESTIONS = {"math": 400, "code": 40}
"""So many that a pool of one takes seconds, and one of four has work for all."""
WARM = 8
PROBLEMS = 512
"""More than there are questions: the same mathematics twice would come from a cache."""
INPUTS = ((1, 2), (3, 4), (5, 6))
CORES = 4
"""One for who asks, two for the verifiers, one for everything else."""
MIN_SCALING = 1.3
"""Two processes on two cores make nearly twice as much; beside the node's own part in it, at least this."""
BUSY = 0.25
"""Of the machine, kept busy by others before we begin: from here on what two processes gain says nothing."""
SPECS = {"math": "jsonl:math.jsonl:match=math,held_out=0", "code": "code:code.jsonl:held_out=0"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """One completion, and what it is worth."""

    asked: Asked
    worth: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """Rewards a second of one task from so many verifiers, and how many of them were wrong."""

    task: str
    workers: int
    per_s: float
    wrong: int


def write_files(directory: Path) -> None:
    """The two data sets."""
    math = [{"prompt": f"half of {n}?", "answer": f"\\frac{{{n}}}{{2}}"} for n in range(1, PROBLEMS + 1)]
    code = [
        {"prompt": f"a+{n}b", "tests": [{"input": f"{a} {b}\n", "output": str(a + n * b)} for a, b in INPUTS]}
        for n in range(PROBLEMS)
    ]
    for name, lines in (("math", math), ("code", code)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def said(task: str, index: int, *, right: bool) -> str:
    """A completion to problem `index` of `task`."""
    if task == "math":
        n = index % PROBLEMS + 1 + (0 if right else 1)
        return f"We divide by two, so that $x = {n} / 2$ and the answer is \\boxed{{{n / 2}}}."
    n = index % PROBLEMS + (0 if right else 1)
    return f"```python\na, b = map(int, input().split())\nprint(a + {n} * b)\n```"


def questions(task: str) -> list[Question]:
    """Every other one is right."""
    return [
        Question(
            asked=Asked(
                index=i, held_out=False, said=(said(task, i, right=i % 2 == 0),), finished=True, wants_reward=True
            ),
            worth=float(i % 2 == 0),
        )
        for i in range(QUESTIONS[task])
    ]


async def rewards(pool: VerifierPool, task: str, asked: Sequence[Question]) -> int:
    """Ask all, as a learner's intake does; return how many answers were wrong."""
    waiting, wrong = iter(asked), 0

    async def ask() -> None:
        nonlocal wrong
        for one in waiting:
            wrong += await pool.judge(task, one.asked) != one.worth

    async with trio.open_nursery() as nursery:
        for _ in range(pool.size):
            nursery.start_soon(ask)
    return wrong


async def measured(directory: Path, tasks: dict[str, Task], workers: int) -> list[Run]:
    """Both tasks by a pool of `workers`."""
    terms = PoolTerms(
        tasks={name: {"spec": spec, "directory": str(directory), "seed": 0} for name, spec in SPECS.items()},
        fingerprints={name: task.fingerprint for name, task in tasks.items()},
        timeout_s=60.0,
        memory_gb=4.0,
    )
    runs = []
    async with open_pool([(f"verifier {n}", VERIFIER) for n in range(workers)], terms) as pool:
        for task in SPECS:
            asked = questions(task)
            await rewards(pool, task, asked[: WARM * workers])
            began = time.perf_counter()
            wrong = await rewards(pool, task, asked)
            runs.append(Run(task=task, workers=workers, per_s=len(asked) / (time.perf_counter() - began), wrong=wrong))
    return runs


def benchmark() -> int:
    """Measure, print the table and the verdict."""
    options = arguments(__doc__ or "", reps=REPS).parse_args()
    others = psutil.cpu_percent(interval=2.0) / 100
    runs: list[Run] = []
    with scratch(options.keep) as directory:
        write_files(directory)
        tasks = {name: open_task(spec, directory=directory) for name, spec in SPECS.items()}
        for repetition in range(options.reps):
            for workers in WORKERS[:: 1 if repetition % 2 == 0 else -1]:
                found = trio.run(measured, directory, tasks, workers)
                say(f"{workers} verifiers: " + ", ".join(f"{run.task} {run.per_s:.1f}/s" for run in found))
                runs += found
    per_s = {
        (task, workers): median([run.per_s for run in runs if (run.task, run.workers) == (task, workers)])
        for task in SPECS
        for workers in WORKERS
    }
    rows = [[task, *(number(per_s[task, workers], 1) for workers in WORKERS)] for task in SPECS]
    say(table(["rewards a second", *(f"{workers} verifier{'s' * (workers > 1)}" for workers in WORKERS)], rows))
    bars = [Bar(name="wrong", value=float(sum(run.wrong for run in runs)), at_most=0.0)]
    scaling = {task: per_s[task, 2] / per_s[task, 1] for task in SPECS}
    if (os.cpu_count() or 1) >= CORES and others < BUSY:
        bars += [Bar(name=f"scaling_{task}", value=value, at_least=MIN_SCALING) for task, value in scaling.items()]
    else:
        say(f"scaling is not judged: {os.cpu_count()} cores, others kept {others:.0%} of them busy")
    figures: dict[str, Any] = {f"{task}_per_s_{workers}": round(value, 2) for (task, workers), value in per_s.items()}
    figures |= {f"scaling_{task}": round(value, 3) for task, value in scaling.items()} | {"others": round(others, 2)}
    return conclude("verifiers", bars, figures)


if __name__ == "__main__":
    main(benchmark)
