"""Claim "demo": the four-node demo learns almost as fast as one process that has the whole machine.

Bars:

- time_ratio, at most 1.5: seconds to sampled accuracy 0.8 on the held-out problems of `volery demo` (a learner and
  three rollout nodes over libp2p), divided by those of TRL's GRPOTrainer in one process. TRL starts from the model of
  the demo's warm start, and takes hyperparameters, prompts and reward from the demo's swarm.toml.
- cpu_s_per_step, at most 0.34: processor seconds of the demo, from its start to its end, over its training steps.

The clocks start at the learner's first published version (its rollout nodes have loaded torch by then) and at
`trainer.train()` (imports done). Both policies are judged by the same code on the same problems with the same seeds,
after the same numbers of training steps. The demo's evaluations run beside its training, on its own time; TRL's run
after it has finished, from snapshots that were written while its clock was stopped. TRL trains with the number of
threads that proves faster here.

Invariants:

- Runs alternate, so that other load on the machine affects both.
- A ratio is taken within a seed, and the bar is on their median.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio
from harness import (
    Bar,
    BenchmarkError,
    Ran,
    arguments,
    conclude,
    crossing,
    main,
    median,
    number,
    run,
    say,
    scratch,
    table,
)

from learner.monitoring.eval_scores import Scores
from node.config.loader import read_swarm_config
from node.config.node_config import EngineSection
from node.config.swarm_config import SwarmConfig
from node.engine.factory import open_engine
from node.engine.interface import InstalledVersion
from node.learner_role.training.evaluation import EvaluationTerms, evaluate
from node.learner_role.training.trainer_process import load_request
from node.reports import SwarmReport, swarm_report
from node.runtime.events import EventLog
from node.tasks.task_suite import open_task_suite
from protocol.core.ids import ManifestHash, PolicyVersion
from swarm.transport.error_groups import first_cause

TARGET = 0.8
TIME_RATIO_AT_MOST = 1.5
CPU_S_PER_STEP_AT_MOST = 0.34
REPS = 3
SHARED = 0.3
"""Cores used by others above which a warning is printed. Memory sampling and system chores take up to 0.1."""
BASELINE = Path(__file__).parent / "baselines" / "trl_grpo.py"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A policy's scores, with the training steps and the seconds on its side's clock before them."""

    step: int
    seconds: float
    scores: Scores


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run of one side.

    `start_up_s` is the time before the clock starts, from the start of the learner's process, or of TRL's.
    `first_step_s` is the clock's time at the end of the first training step. `ran` covers the whole program, for the
    demo its warm start too.
    """

    name: str
    seed: int
    points: tuple[Point, ...]
    start_up_s: float
    first_step_s: float
    steps_per_s: float
    peak_pss_bytes: int
    ran: Ran

    @property
    def to_target_s(self) -> float | None:
        """Seconds on the clock until sampled accuracy reached TARGET, None if it never did."""
        return crossing([(point.seconds, point.scores.sampled) for point in self.points], TARGET)

    @property
    def with_start_up_s(self) -> float | None:
        return None if self.to_target_s is None else self.to_target_s + self.start_up_s

    @property
    def cpu_s_per_step(self) -> float:
        """Processor seconds of the whole program, over its training steps."""
        return self.ran.cores * self.ran.seconds / self.points[-1].step

    @property
    def after_first_step_s(self) -> float | None:
        return None if self.to_target_s is None else self.to_target_s - self.first_step_s


def ratio(one: float | None, other: float | None) -> float | None:
    """Return `one` / `other`; None if either is None."""
    return None if one is None or other is None else one / other


def benchmark() -> int:
    """Run everything, print the table and the verdict."""
    options = arguments(__doc__ or "", reps=REPS).parse_args()
    pairs: list[tuple[Outcome, Outcome]] = []
    with scratch(options.keep) as out:
        threads: int | None = None
        for seed in range(options.seed, options.seed + options.reps):
            demo = run_demo(out, seed)
            tell(demo)
            threads = threads or faster_threads(out, seed)
            trl = run_trl(out, seed, threads)
            tell(trl)
            require_same_start(demo, trl)
            pairs.append((demo, trl))
    return report(pairs, threads=threads)


def run_demo(out: Path, seed: int) -> Outcome:
    """Run `volery demo` and read its clock from the learner's ledger."""
    directory = demo_directory(out, seed)
    argv = ["-m", "node", "demo", "--out", str(directory), "--seed", str(seed), "--plain"]
    ran = run(argv, log=out / f"demo-{seed}.log", caches=out / "caches", measure_memory=False)
    ledger = swarm_report(directory / "learner" / "ledger.sqlite")
    published = {version.version: version.at_s for version in ledger.versions}
    zero_s = ledger.versions[0].at_s
    facts = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    return Outcome(
        name="demo",
        seed=seed,
        points=tuple(
            Point(
                step=found.version.version,
                seconds=published[found.version] - zero_s,
                scores=Scores(greedy=found.greedy, sampled=found.sampled),
            )
            for found in ledger.surviving_evaluations
        ),
        start_up_s=ledger.started_ms / 1000 + zero_s - warm_start_ended_at(directory),
        first_step_s=ledger.steps[0].at_s - zero_s,
        steps_per_s=swarm_steps_per_s(ledger),
        peak_pss_bytes=round(facts["peak_pss_mib"] * 2**20),
        ran=ran,
    )


def swarm_steps_per_s(ledger: SwarmReport) -> float:
    """Return the training steps per second between the first and the last."""
    first, last = ledger.steps[0], ledger.steps[-1]
    return (len(ledger.steps) - 1) / (last.at_s - first.at_s)


def warm_start_ended_at(directory: Path) -> float:
    """Return when (`time.time()`) the demo had its model, which is when it starts the learner."""
    return float([event["at"] for event in events(directory / "events.jsonl") if event["event"] == "warm_start"][-1])


def events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a log."""
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def faster_threads(out: Path, seed: int) -> int:
    """Return the number of threads with which TRL's steps are shortest on this machine."""
    candidates = sorted({1, 2, os.cpu_count() or 1})
    found, _ = baseline(out, seed, "threads", "--probe", *map(str, candidates))
    timed = ", ".join(f"{threads}: {seconds:.3f} s" for threads, seconds in found["seconds_per_step"].items())
    say(f"TRL's step by number of threads: {timed}")
    return int(found["threads"])


def run_trl(out: Path, seed: int, threads: int) -> Outcome:
    """Train with TRL from the model of the demo of that seed, then evaluate the snapshots."""
    config = demo_config(out, seed)
    every = max(1, config.evaluate.every_versions * config.learn.publish_every)
    found, ran = baseline(out, seed, "trl", "--threads", str(threads), "--every", str(every))
    taken = found["snapshots"]
    scores = trio.run(evaluate_all, config, [out / f"trl-{seed}" / str(snapshot["step"]) for snapshot in taken])
    return Outcome(
        name="trl",
        seed=seed,
        points=tuple(
            Point(step=snapshot["step"], seconds=snapshot["seconds"], scores=score)
            for snapshot, score in zip(taken, scores, strict=True)
        ),
        start_up_s=found["began_at"] - ran.began,
        first_step_s=found["first_step_s"],
        steps_per_s=taken[-1]["step"] / taken[-1]["seconds"],
        peak_pss_bytes=ran.peak_pss_bytes,
        ran=ran,
    )


def baseline(out: Path, seed: int, name: str, *options: str) -> tuple[dict[str, Any], Ran]:
    """Run the baseline's program; return its result and the measurements from outside."""
    directory = out / f"{name}-{seed}"
    hyperparameters = json.dumps(load_request(demo_config(out, seed))["hyperparameters"])
    argv = [str(BASELINE), str(demo_directory(out, seed) / "swarm.toml"), hyperparameters, str(directory), *options]
    ran = run(argv, log=out / f"{name}-{seed}.log", caches=out / "caches", measure_memory=True)
    return json.loads((directory / "result.json").read_text(encoding="utf-8")), ran


async def evaluate_all(config: SwarmConfig, directories: Sequence[Path]) -> list[Scores]:
    """Return the scores of model directories, with the learner's own evaluation: the same engine, prompts and seeds."""
    suite = open_task_suite(config, Path(config.model.directory).parent)
    terms = EvaluationTerms(
        every_versions=0,
        temperature=config.learn.temperature,
        max_new_tokens=config.learn.max_new_tokens,
        stop_ids=frozenset(suite.stop_ids),
    )
    scores = []
    with first_cause():
        async with open_engine(
            EngineSection(kind="transformers", threads=1, nice=0), EventLog(), name="evaluation"
        ) as engine:
            for place, directory in enumerate(directories):
                name, manifest = PolicyVersion(1, place), ManifestHash(place.to_bytes(32, "big"))
                await engine.install(InstalledVersion(name=name, manifest=manifest), directory)
                scores.append(await evaluate(engine, suite.held_out, terms))
    return scores


def demo_directory(out: Path, seed: int) -> Path:
    return out / f"demo-{seed}"


def demo_config(out: Path, seed: int) -> SwarmConfig:
    """Return the configuration of that demo's learner."""
    return read_swarm_config(demo_directory(out, seed) / "swarm.toml")


def require_same_start(demo: Outcome, trl: Outcome) -> None:
    """Raise BenchmarkError unless both sides began with the same weights and get the same scores for them."""
    one, other = demo.points[0], trl.points[0]
    if (one.step, one.scores.greedy, one.scores.sampled) != (other.step, other.scores.greedy, other.scores.sampled):
        raise BenchmarkError(f"seed {demo.seed}: the demo began with {one}, TRL with {other}; they should be the same.")


def tell(outcome: Outcome) -> None:
    """Print the progress."""
    last = outcome.points[-1]
    say(
        f"seed {outcome.seed}: {outcome.name} {number(outcome.to_target_s, 1)} s to sampled accuracy {TARGET}, "
        f"at the end {last.scores.sampled:.2f} (greedy {last.scores.greedy:.2f}) after {last.step} steps"
    )


def report(pairs: Sequence[tuple[Outcome, Outcome]], *, threads: int | None) -> int:
    """Print every run, the medians and the bars; return the exit code."""
    say("\n" + table(HEADER, [cells(outcome) for pair in pairs for outcome in pair]))
    sides = {"demo": [demo for demo, _ in pairs], "trl": [trl for _, trl in pairs]}
    figures: dict[str, Any] = {
        "reps": len(pairs),
        "trl_threads": threads,
        "time_ratio_with_start_up": median([ratio(d.with_start_up_s, t.with_start_up_s) for d, t in pairs]),
        "time_ratio_after_first_step": median([ratio(d.after_first_step_s, t.after_first_step_s) for d, t in pairs]),
    }
    for side, outcomes in sides.items():
        figures |= {
            f"{side}_to_target_s": median([outcome.to_target_s for outcome in outcomes]),
            f"{side}_start_up_s": median([outcome.start_up_s for outcome in outcomes]),
            f"{side}_steps_per_s": median([outcome.steps_per_s for outcome in outcomes]),
            f"{side}_cores": median([outcome.ran.cores for outcome in outcomes]),
            f"{side}_cpu_s_per_step": median([outcome.cpu_s_per_step for outcome in outcomes]),
            f"{side}_others_cores": median([outcome.ran.others_cores for outcome in outcomes]),
            f"{side}_peak_pss_mib": median([outcome.peak_pss_bytes / 2**20 for outcome in outcomes]),
            f"{side}_sampled_end": median([outcome.points[-1].scores.sampled for outcome in outcomes]),
        }
    say("\n" + table(["median", "value"], [[name, number(value)] for name, value in figures.items()]))
    if max(outcome.ran.others_cores for pair in pairs for outcome in pair) > SHARED:
        say("\nOther processes used the machine (see others' cores): repeat this on an idle one before trusting it.")
    time_ratio = median([ratio(demo.to_target_s, trl.to_target_s) for demo, trl in pairs])
    bars = [
        Bar(name="time_ratio", value=time_ratio, at_most=TIME_RATIO_AT_MOST),
        Bar(name="cpu_s_per_step", value=figures["demo_cpu_s_per_step"], at_most=CPU_S_PER_STEP_AT_MOST),
    ]
    return conclude("demo", bars, figures)


HEADER = [
    "seed", "side", f"to {TARGET} [s]", "start-up [s]", "first step [s]", "steps/s", "PSS [MiB]", "cores",
    "others' cores", "sampled", "greedy",
]  # fmt: skip
"""The last two at the end of training."""


def cells(outcome: Outcome) -> list[str]:
    """Return a run's row under HEADER."""
    last = outcome.points[-1].scores
    return [
        str(outcome.seed),
        outcome.name,
        number(outcome.to_target_s, 1),
        number(outcome.start_up_s, 1),
        number(outcome.first_step_s, 1),
        number(outcome.steps_per_s),
        f"{outcome.peak_pss_bytes / 2**20:.0f}",
        number(outcome.ran.cores),
        number(outcome.ran.others_cores),
        number(last.sampled),
        number(last.greedy),
    ]


if __name__ == "__main__":
    main(benchmark)
