"""Claim "verifiers": rewards of mathematics and of sandboxed programs scale with the number of processes.

Pools of 1, 2 and 4 verifiers on this machine get the same questions of two tasks. The first is `jsonl` with match=math,
whose completions are short solutions with an answer in a box. The second is `code`, where each completion is a program
that reads two numbers in three tests, each in a sandbox of its own. Half of the completions are right. With fewer than
four cores, the last column shows the cost of oversubscription.

Bars:

- wrong, at most 0: rewards that differ from the right ones.
- scaling_math and scaling_code, at least 1.3: rewards a second with two verifiers over those with one. They are judged
  only if the asking process and two verifiers have a free core each, that is on four cores or more.

Invariants:

- Every reward is right, or the figure does not count.
- Pools are opened, and warmed by a few questions, before the clock starts.
- Orders of pools alternate between repetitions, and figures are medians.
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
"""Numbers of questions: a pool of one takes seconds, and all processes of a pool of four have work."""
WARM = 8
PROBLEMS = 512
"""More problems than questions: repeated mathematics would come from a cache."""
INPUTS = ((1, 2), (3, 4), (5, 6))
CORES = 4
"""One for the asking process, two for the verifiers, one for everything else."""
MIN_SCALING = 1.3
"""Two processes on two cores are nearly twice as fast; with the node's own part included, at least this."""
BUSY = 0.25
"""Share of the machine that others may use before the start; above it, the gain of two processes is not reliable."""
SPECS = {"math": "jsonl:math.jsonl:match=math,held_out=0", "code": "code:code.jsonl:held_out=0"}


@dataclass(frozen=True, kw_only=True)
class Question:
    """One completion, and its right reward."""

    asked: Asked
    reward: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """Rewards a second of one task with this many verifiers, and how many of them were wrong."""

    task: str
    workers: int
    per_s: float
    wrong: int


def write_files(directory: Path) -> None:
    """Write the two data sets."""
    math = [{"prompt": f"half of {n}?", "answer": f"\\frac{{{n}}}{{2}}"} for n in range(1, PROBLEMS + 1)]
    code = [
        {"prompt": f"a+{n}b", "tests": [{"input": f"{a} {b}\n", "output": str(a + n * b)} for a, b in INPUTS]}
        for n in range(PROBLEMS)
    ]
    for name, lines in (("math", math), ("code", code)):
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def said(task: str, index: int, *, right: bool) -> str:
    """Return a completion for problem `index` of `task`."""
    if task == "math":
        n = index % PROBLEMS + 1 + (0 if right else 1)
        return f"We divide by two, so that $x = {n} / 2$ and the answer is \\boxed{{{n / 2}}}."
    n = index % PROBLEMS + (0 if right else 1)
    return f"```python\na, b = map(int, input().split())\nprint(a + {n} * b)\n```"


def questions(task: str) -> list[Question]:
    """Return the questions; every other completion is right."""
    """Ask all questions, as a learner's intake does; return how many rewards were wrong."""
    return [
        Question(
            asked=Asked(
                index=i, held_out=False, said=(said(task, i, right=i % 2 == 0),), finished=True, wants_reward=True
            ),
            reward=float(i % 2 == 0),
        )
        for i in range(QUESTIONS[task])
    ]


async def rewards(pool: VerifierPool, task: str, asked: Sequence[Question]) -> int:
    """Ask all, as a learner's intake does; return how many answers were wrong."""
    waiting, wrong = iter(asked), 0

    async def ask() -> None:
        nonlocal wrong
        for one in waiting:
            wrong += await pool.judge(task, one.asked) != one.reward

    async with trio.open_nursery() as nursery:
        for _ in range(pool.size):
            nursery.start_soon(ask)
    return wrong


async def measured(directory: Path, tasks: dict[str, Task], workers: int) -> list[Run]:
    """Run both tasks with a pool of `workers`."""
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
        say(f"scaling is not judged: {os.cpu_count()} cores, of which others used {others:.0%}")
    figures: dict[str, Any] = {f"{task}_per_s_{workers}": round(value, 2) for (task, workers), value in per_s.items()}
    figures |= {f"scaling_{task}": round(value, 3) for task, value in scaling.items()} | {"others": round(others, 2)}
    return conclude("verifiers", bars, figures)


if __name__ == "__main__":
    main(benchmark)
