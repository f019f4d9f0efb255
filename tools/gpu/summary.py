"""Report where a step's seconds went and which bars were met, from a run's files: python -m tools.gpu.summary OUT

It reads the files of `run` and the parts: run.json, model.json, trainer.json, plain_vllm.json, and for each swarm the
folder with ledger, events and settings. It prints tables, the bars, and last one line of JSON in the form of
`benchmarks/harness.py`. OUT/gpu.txt and OUT/gpu.json get the same. Each swarm gets steps.csv, one row a step. FLOP of a
step and the peak are those of `benchmarks/trainer_gpu.py`.

Invariants:

- The learner's time comes from its ledger (`LearnerTime`), so its kinds add up to the wall-clock time.
- The first steps of a swarm, which compile and wait, count in no median and no share.
- A bar without a value says why.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, conclude, number, say, table
from benchmarks.trainer_gpu import MFU_AT_LEAST, flop_per_token, peak_of
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import StepRow
from learner.provisioning.estimation.learner_time import BLOCKED, LearnerTime, TimeKind, summed
from node.reports.model.time_words import NAMES
from tools.gpu.run import TITLES

Event = dict[str, Any]
Figures = dict[str, Any]

LEFT_OUT = 3
"""Steps left out at the start: torch compiles in them, and they wait for the first rollouts."""

SWARMS = ("transformers", "vllm")
"""Parts that are swarms, by the engine of their nodes. Bars are of the first, unless they say otherwise."""

VLLM_AT_LEAST = 0.85
"""Minimum over the speed of vLLM alone, as `benchmarks/engines.py` requires of the seeded sampler on a CPU."""

REHEARSED = "a rehearsal: a tiny model on the CPU says nothing of a GPU"

TROUBLE = {
    *("alarm_raised", "audit_failed", "audit_impossible", "batch_dropped", "checkpoint_failed", "child_died"),
    *("engine_crashed", "group_doubted", "install_failed", "peer_banned", "peer_quarantined", "trainer_restarted"),
    *("trouble", "versions_skipped"),
}
"""Events that are reported by name, with their number."""


def main() -> int:
    out = Path(sys.argv[1])
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = tell(out)
    text = said.getvalue()
    (out / "gpu.txt").write_text(text)
    (out / "gpu.json").write_text(text.splitlines()[-1] + "\n")
    print(text, end="")
    return code


def tell(out: Path) -> int:
    """Print the whole summary; return 0 if every bar was met, 1 otherwise."""
    run, model = read(out / "run.json"), read(out / "model.json")
    swarms = {name: swarm_of(out / name, model) for name in SWARMS if (out / name / "ledger.sqlite").is_file()}
    trainer, plain = read(out / "trainer.json"), read(out / "plain_vllm.json")
    figures = alone_of(trainer, plain, swarms.get("vllm", {}))
    say(f"Volery at {str(run.get('commit'))[:12]}, {model.get('device')}: {told_steps(swarms)}\n")
    if swarms:
        say(table(["", *swarms], rows_of(swarms)) + "\n")
    say(table(["alone", ""], [[ALONE[name], told(value)] for name, value in figures.items()]))
    for name, swarm in swarms.items():
        if swarm["trouble"]:
            say(f"\nEvents of trouble, {name}: {', '.join(f'{what} {n}' for what, n in swarm['trouble'].items())}")
    for part, why in run.get("skipped", {}).items():
        say(f"\nNot measured, {TITLES[part]}: {why}")
    for name, swarm in swarms.items():
        prefix = "" if name == SWARMS[0] else f"{name}_"
        figures |= {f"{prefix}{key}": value for key, value in swarm.items() if key != "trouble"}
    return conclude("gpu", bars_of(figures, run), figures | {"device": model.get("device")})


def bars_of(figures: Mapping[str, Any], run: Mapping[str, Any]) -> list[Bar]:
    """Return the bars, each with its value or with the reason why it has none."""
    skipped = run.get("skipped", {})
    no_swarm = skipped.get(SWARMS[0], "the swarm took no step that counts")
    no_vllm = skipped.get("plain_vllm") or skipped.get("vllm") or "vLLM told no speed"
    promises: dict[str, tuple[dict[str, float], str]] = {
        "training_pct": ({"at_least": 90}, no_swarm),
        "blocked_pct": ({"at_most": 3}, no_swarm),
        "mfu": ({"at_least": MFU_AT_LEAST}, "the device's peak is not known"),
        "mfu_alone": ({"at_least": MFU_AT_LEAST}, skipped.get("trainer", "the device's peak is not known")),
        "patch_gb_per_s": ({"at_least": 5}, "no patch was made"),
        "apply_s": ({"at_most": 1}, "no node applied a patch"),
        "vllm_vs_bare": ({"at_least": VLLM_AT_LEAST}, no_vllm),
    }
    bars = []
    for name, (bound, why) in promises.items():
        if name in ("mfu", "patch_gb_per_s", "apply_s") and figures.get("steps") is None:
            why = no_swarm
        value = None if run.get("tiny") else figures.get(name)
        bars.append(Bar(name=name, value=value, why=REHEARSED if run.get("tiny") else why, **bound))
    return bars


def alone_of(trainer: Mapping[str, Any], plain: Mapping[str, Any], vllm: Figures) -> Figures:
    """Return the figures of the trainer alone and of vLLM alone."""
    bars = {bar["name"]: bar["value"] for bar in trainer.get("bars", [])}
    figures, bare = trainer.get("figures", {}), plain.get("tokens_per_s", {})
    worker, start = vllm.get("node_tokens_per_s"), bare.get("start")
    return {
        "mfu_alone": bars.get("mfu"),
        "alone_step_s": figures.get("step_s"),
        "alone_tokens_per_s": figures.get("tokens_per_s"),
        "bare_vllm_tokens_per_s": bare.get("step"),
        "bare_vllm_start_tokens_per_s": start,
        "bare_vllm_start_s": plain.get("start_s"),
        "vllm_vs_bare": worker / start if worker and start else None,
    }


# A swarm.


def swarm_of(kept: Path, model: Mapping[str, Any]) -> Figures:
    """Return the figures of a swarm; None is not known."""
    settings, events = read(kept / "settings.json"), read_lines(kept / "events.jsonl")
    with read_ledger(kept / "ledger.sqlite") as ledger:
        steps, rows = ledger.training.steps(), ledger.training.learner_time()
    of_step = {step.step: summed(row.time for row in rows if row.step == step.step) for step in steps}
    write_steps(kept / "steps.csv", steps, of_step)
    steady = steps[LEFT_OUT:]
    time = summed(of_step[step.step] for step in steady)
    nodes = [event for file in sorted(kept.glob("n*-events.jsonl")) for event in read_lines(file)]
    return {
        "steps": len(steps) or None,
        "steady_steps": len(steady),
        "steady_wall_s": time.wall_s,
        "whole_wall_s": summed(row.time for row in rows).wall_s,
        "training_pct": percent(time, TimeKind.TRAINING),
        "blocked_pct": percent(time, *BLOCKED),
        **{f"{kind}_pct": percent(time, kind) for kind in TimeKind if time.of(kind) and kind != TimeKind.TRAINING},
        "training_pct_of_not_waiting": without_waiting(time),
        "step_s": median(of_step[step.step].wall_s for step in steady),
        "train_s": median(step.train_s for step in steady),
        "mfu": median(mfu_of(step, settings, model) for step in steady),
        **published_of(events, {str(step.step) for step in steps[:LEFT_OUT]}),
        **fetched_of(nodes),
        **worked_of(events, nodes),
        "gpu_busy_pct": gpu_busy(kept / "nvidia-smi.csv"),
        "trouble": dict(Counter(event["event"] for event in [*events, *nodes] if event["event"] in TROUBLE)),
    }


def published_of(events: Sequence[Event], early: set[str]) -> Figures:
    """Return the times of publishing: medians, without the versions of the first steps."""
    versions = [e for e in named(events, "version_published") if e["version"].partition(".")[2] not in early | {"0"}]
    patched = [e for e in versions if e.get("patches") and e.get("patch_seconds")]
    skipped = sum(e["last"] - e["first"] + 1 for e in named(events, "versions_skipped"))
    return {
        "versions": len(versions),
        "versions_skipped": skipped,
        "version_mb": median(e["total_bytes"] / 1e6 for e in versions),
        "patch_mb": median(e["patch_bytes"] / e["patches"] / 1e6 for e in patched),
        "publish_s": median(e["seconds"] for e in versions),
        "export_s": median(e.get("export_seconds") for e in versions),
        "patch_s": median(e["patch_seconds"] for e in patched),
        "patch_gb_per_s": median(e["patches"] * e["total_bytes"] / 1e9 / e["patch_seconds"] for e in patched),
        "checkpoint_s": median(e["seconds"] for e in named(events, "checkpoint_saved")),
    }


def fetched_of(nodes: Sequence[Event]) -> Figures:
    """Return a version's times on the nodes, for versions with patches: medians."""
    patched = [e for e in named(nodes, "version_fetched") if e["patches"]]
    return {
        "fetch_s": median(e["seconds"] for e in patched),
        "apply_s": median(e["apply_seconds"] / e["patches"] for e in patched),
        "install_s": median(e["seconds"] for e in named(nodes, "version_installed")),
    }


def worked_of(events: Sequence[Event], nodes: Sequence[Event]) -> Figures:
    """Return the nodes' work and the results of their audits."""
    judged, audits = named(events, "delivery_judged"), named(events, "audited")
    span_s = judged[-1]["at"] - judged[0]["at"] if judged else 0.0
    tokens = sum(e.get("tokens") or 0 for e in judged)
    return {
        "node_tokens_per_s": median(e["tokens_per_s"] for e in named(nodes, "speed_measured")),
        "delivered_tokens_per_s": tokens / span_s if span_s else None,
        "rollouts_admitted": sum(e["admitted"] for e in judged),
        "rollouts_refused": sum(e["refused"] for e in judged),
        "audits_passed": sum(bool(e["passed"]) for e in audits),
        "audits_failed": sum(not e["passed"] for e in audits),
    }


def mfu_of(step: StepRow, settings: Mapping[str, Any], model: Mapping[str, Any]) -> float | None:
    """Return the model FLOP utilisation of a step; None if the device's peak is not known."""
    peak = peak_of(str(model.get("device")))
    if peak is None or not step.train_s or not step.rollouts:
        return None
    tokens: float = step.rollouts * settings["prompt"] + step.tokens
    return tokens * flop_per_token(model["config"], tokens / step.rollouts) / step.train_s / peak


def percent(time: LearnerTime, *kinds: TimeKind) -> float | None:
    """Return the share of the wall-clock time, 0 to 100; None if no time has passed."""
    share = time.share(*kinds)
    return None if share is None else 100 * share


def without_waiting(time: LearnerTime) -> float | None:
    """Return training over all time but waiting, 0 to 100: the utilisation with nodes on other machines."""
    rest_s = time.wall_s - time.of(TimeKind.WAITING)
    return 100 * time.of(TimeKind.TRAINING) / rest_s if rest_s > 0 else None


def write_steps(path: Path, steps: Sequence[StepRow], of_step: Mapping[int, LearnerTime]) -> None:
    """Write one row a step: its seconds by kind, which add up to its wall-clock time."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "rollouts", "tokens", "wall_s", *(f"{kind}_s" for kind in TimeKind)])
        for step in steps:
            time = of_step[step.step]
            seconds = [round(value, 4) for value in (time.wall_s, *(time.of(kind) for kind in TimeKind))]
            writer.writerow([step.step, step.rollouts, step.tokens, *seconds])


def gpu_busy(path: Path) -> float | None:
    """Return the mean utilisation that nvidia-smi recorded, 0 to 100."""
    lines = path.read_text().splitlines() if path.is_file() else []
    values = [int(first) for line in lines if (first := line.partition(",")[0].strip()).isdigit()]
    return statistics.mean(values) if values else None


# Words.

LABELS = {
    "steps": "training steps",
    "steady_steps": f"of them counted (all but the first {LEFT_OUT})",
    "steady_wall_s": "the counted steps together, s",
    "whole_wall_s": "the whole run, s",
    "training_pct": "training, % of the counted steps",
    "blocked_pct": "blocked by publication and checkpoints, %",
    **{f"{kind}_pct": f"{NAMES[kind]}, %" for kind in TimeKind if kind != TimeKind.TRAINING},
    "training_pct_of_not_waiting": "training, % of all but waiting",
    "step_s": "a step, s",
    "train_s": "its training, s",
    "mfu": "mfu of its training",
    "versions": "versions published",
    "versions_skipped": "versions skipped",
    "version_mb": "a version, MB",
    "patch_mb": "a patch, MB",
    "publish_s": "publishing a version, s",
    "export_s": "of it export, s",
    "patch_s": "of it making the patches, s",
    "patch_gb_per_s": "making patches, GB of model/s",
    "checkpoint_s": "a checkpoint until it is durable, s",
    "fetch_s": "a node fetches a version, s",
    "apply_s": "of it applying a patch, s",
    "install_s": "its engine installs a version, s",
    "node_tokens_per_s": "a node's speed at its start, tokens/s",
    "delivered_tokens_per_s": "delivered by all nodes, tokens/s",
    "rollouts_admitted": "rollouts admitted",
    "rollouts_refused": "rollouts refused",
    "audits_passed": "audits passed",
    "audits_failed": "audits failed",
    "gpu_busy_pct": "GPU busy, %",
}

ALONE = {
    "mfu_alone": "mfu of the trainer",
    "alone_step_s": "a training step, s",
    "alone_tokens_per_s": "the trainer, tokens/s",
    "bare_vllm_tokens_per_s": "vLLM, rollouts as of a step, tokens/s",
    "bare_vllm_start_tokens_per_s": "vLLM, as a node measures its speed, tokens/s",
    "bare_vllm_start_s": "vLLM until it has started, s",
    "vllm_vs_bare": "a node on vLLM against it",
}


def rows_of(swarms: Mapping[str, Figures]) -> list[list[str]]:
    """Return a row for each figure that a swarm has."""
    keys = [key for key in LABELS if any(key in swarm for swarm in swarms.values())]
    return [[LABELS[key], *(told(swarm.get(key)) for swarm in swarms.values())] for key in keys]


def told(value: float | None) -> str:
    """Return a figure for people: three significant digits."""
    if value is None or isinstance(value, int):
        return "-" if value is None else str(value)
    return number(value, 4 if abs(value) < 1 else 2 if abs(value) < 100 else 0)


def told_steps(swarms: Mapping[str, Figures]) -> str:
    """Return how many steps the figures are based on."""
    counted = ", ".join(f"{swarm['steady_steps']} steps on {name}" for name, swarm in swarms.items())
    return f"{counted}; seconds are medians" if counted else "no swarm took a step"


# Files and numbers.


def read(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file; empty without a file."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def read_lines(path: Path) -> list[Event]:
    """Return the events of a log; a line that a kill cut short is left out."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.is_file() else []:
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found


def named(events: Iterable[Event], name: str) -> list[Event]:
    """Return the events of this name."""
    return [event for event in events if event["event"] == name]


def median(values: Iterable[float | None]) -> float | None:
    """Return the median of the values that are not None; None without any."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


if __name__ == "__main__":
    sys.exit(main())
