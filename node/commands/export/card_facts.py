"""Collect what a model card tells about a run, from its ledger and its configuration, as values.

Private data is left out: paths are cut to file names, and addresses of services, keys and tokens are never read. Names
that peers chose are shown as in a report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.config.swarm_config import SwarmConfig, regime
from node.learner_role.training.trainer_process import recipe_in
from node.reports.model.report import Evaluation, SwarmReport
from node.reports.text.peer_columns import known_as
from node.runtime.formatting import figure

MAX_CONTRIBUTORS = 200
"""Rows in the table of peers. All other peers share one more row."""

HIDDEN = "..."
"""Stands for a part of a task's spec that must not be shown."""

_FRACTION = re.compile(r"[0-9.]+/[0-9.]+")


@dataclass(frozen=True, kw_only=True)
class TaskFacts:
    """One task: its name, its spec without paths, and its share of the prompts."""

    title: str
    spec: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Contributor:
    """A rollout peer: its name and the end of its id as in reports, and how much of its work was trained on."""

    name: str
    records: int
    share: float


@dataclass(frozen=True, kw_only=True)
class TeacherFacts:
    """A teacher node: its name as in reports, and how much it scored."""

    name: str
    groups: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What the ledger tells about a run up to a version.

    `before` is the first evaluation, `after` that of the version or of the newest evaluated one before it.
    """

    steps: int = 0
    restarts: int = 0
    rollouts: int = 0
    tokens: int = 0
    versions: int = 0
    before: Evaluation | None = None
    after: Evaluation | None = None
    contributors: tuple[Contributor, ...] = ()
    others: Contributor | None = None
    teachers: tuple[TeacherFacts, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """Everything that a card tells.

    Args:
        manifest: hash of the version's signed manifest, "" if it was never published.
        form: "model", "merged" or "adapter".
        remade: whether the weights were made from a checkpoint.
        untold: why the ledger tells nothing; "" if it does.
    """

    swarm: str
    swarm_id: str
    operator: str
    version: str
    manifest: str
    form: str
    software: str
    licence: str = ""
    base_hub: str = ""
    base_called: str = ""
    remade: bool = False
    tasks: tuple[TaskFacts, ...] = ()
    held_out: int = 0
    logs: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    run: RunFacts | None = None
    untold: str = ""
    gguf: str = ""
    tags: Sequence[str] = field(default=("reinforcement-learning", "volery"))


def run_facts(report: SwarmReport, step: int) -> RunFacts:
    """Return what the ledger tells about the steps up to `step`. The contributors are those of the whole run so far."""
    steps = [one for one in report.steps if one.step <= step]
    scores = [one for one in report.surviving_evaluations if one.version.version <= step]
    peers = [peer for peer in report.rollout_peers if peer.trained]
    peers.sort(key=lambda peer: (-(peer.trained or 0), peer.peer))
    rows = [Contributor(name=known_as(peer), records=peer.trained or 0, share=peer.share or 0.0) for peer in peers]
    shown, rest = rows[:MAX_CONTRIBUTORS], rows[MAX_CONTRIBUTORS:]
    teachers = [
        TeacherFacts(name=known_as(peer), groups=peer.scored.groups, tokens=peer.scored.tokens)
        for peer in report.rollout_peers
        if peer.scored is not None and peer.scored.groups and peer not in report.banned
    ]
    teachers.sort(key=lambda one: -one.tokens)
    return RunFacts(
        steps=len(steps),
        restarts=max(0, len(report.incarnations) - 1),
        rollouts=sum(one.rollouts for one in steps),
        tokens=sum(one.tokens for one in steps),
        versions=sum(one.version.version <= step for one in report.versions),
        before=scores[0] if scores else None,
        after=scores[-1] if len(scores) > 1 else None,
        contributors=tuple(shown),
        others=Contributor(
            name=f"{len(rest):,} others", records=sum(row.records for row in rest), share=sum(row.share for row in rest)
        )
        if rest
        else None,
        teachers=tuple(teachers[:MAX_CONTRIBUTORS]),
    )


def task_facts(config: SwarmConfig) -> tuple[TaskFacts, ...]:
    """Return the tasks of `config` without private parts."""
    tasks = config.task.tasks
    whole = sum(one.weight for one in tasks)
    return tuple(TaskFacts(title=one.title, spec=without_paths(one.spec), share=one.weight / whole) for one in tasks)


def without_paths(spec: str) -> str:
    """Return a task's spec with file names in place of paths, and without addresses."""
    return ":".join(map(_shown, spec.split(":")))


def _shown(piece: str) -> str:
    if "@" in piece:  # a password may stand before it
        return HIDDEN
    if piece.startswith("//"):  # part of an address: a host, perhaps a path, perhaps a query with a token
        path = re.split(r"[?#]", piece[2:])[0]
        return _name_only(path) if "/" in path.rstrip("/") else HIDDEN
    return "=".join(_name_only(part) for part in piece.split("=", 1))


def _name_only(text: str) -> str:
    if not ("/" in text or "\\" in text) or _FRACTION.fullmatch(text):
        return text
    last = re.split(r"[/\\]", text.rstrip("/\\"))[-1]
    return re.split(r"[?#]", last)[0] or HIDDEN


def settings_of(config: SwarmConfig) -> tuple[tuple[str, str], ...]:
    """Return the objective and its settings, as rows of a table."""
    return tuple(_settings(config))


def _settings(config: SwarmConfig) -> Iterator[tuple[str, str]]:
    trainer, learn = config.trainer, config.learn
    recipe = recipe_in(config)
    yield "objective", trainer.objective
    yield "advantage, correction, aggregation", f"{recipe.advantage}, {recipe.correction}, {recipe.aggregation}"
    yield "ratio bounds", f"{figure(1 - recipe.bounds.clip_low)} to {figure(1 + recipe.bounds.clip_high)}"
    if trainer.kl_coefficient:
        yield "KL to the base model", figure(trainer.kl_coefficient)
    if recipe.needs_teacher:
        yield "teacher coefficient", figure(recipe.teacher)
    yield "learning rate", f"{trainer.learning_rate:g} (AdamW, betas {trainer.beta1:g} and {trainer.beta2:g})"
    if trainer.lora_rank:
        yield "LoRA", f"rank {trainer.lora_rank}, alpha {trainer.lora_alpha or 2 * trainer.lora_rank}"
    yield "batch", f"{learn.prompts_per_step:,} prompts with {learn.group_size:,} completions each"
    yield "completions", f"at most {learn.max_new_tokens:,} tokens, temperature {learn.temperature:g}"
    yield "mode", regime(learn.staleness)
    if learn.overlong != "task":
        yield "overlong completions", learn.overlong


def logs_of(config: SwarmConfig) -> str:
    """Return the name of the file of logged completions, with its share of each batch; "" if there is none."""
    path = config.offline.path
    return "" if path is None else f"{Path(path).name} ({100 * config.offline.share_in_force:.0f} % of each batch)"


def scores_by_task(evaluation: Evaluation) -> Mapping[str, tuple[float, float]]:
    """Return the greedy and sampled scores by task; "" stands for all tasks together."""
    by_task = {
        task: (figures["greedy"], figures["sampled"])
        for task, figures in evaluation.tasks.items()
        if {"greedy", "sampled"} <= figures.keys()
    }
    return {"": (evaluation.greedy, evaluation.sampled), **by_task}
