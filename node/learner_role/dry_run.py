"""Show what a learner would do with a configuration, and what it needs, without starting it (`volery learn --dry-run`).

If the swarm has members, the dry run listens for some seconds at the learner's addresses, so that members can say
whether they reach it.

Invariants:

- No swarm is started, and nothing is left behind.
- The output is TOML: the configuration in force with every default, and the findings as comments. It can be saved and
  used.
- A start makes the same checks (`node.learner_role.preflight.look_at`) and the same trial, so both give the same
  messages.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from learner.ledger.sqlite.database import is_blank
from learner.trainer_api.presets import PRESETS
from learner.trust.audit_history import NEWCOMER_GROUPS
from node.config.reference import to_toml
from node.config.swarm_config import LearnerNotifySection, SwarmConfig
from node.doctor.announced import WAIT_S, Asked, ask_members, describe_addresses
from node.engine.vllm_install import has_gpu
from node.learner_role.preflight import Start, look_at
from node.learner_role.training.footprint import (
    DTYPE_BYTES,
    MASTER,
    Footprint,
    ModelFacts,
    compute_dtype,
    footprint_of,
    read_facts,
)
from node.learner_role.training.resume import LEDGER
from node.learner_role.training.trainer_process import TRAINER, child_spec, recipe_in
from node.learner_role.trial.isolated_trial import Tried, try_aside
from node.network.known_members import recalled
from node.notices.destination import destination_of
from node.runtime import formatting as words
from node.runtime.errors import about_keys_of
from node.runtime.formatting import decimal_size
from node.runtime.shutdown import STOPPED_EXIT_CODE, Stopped, stop_when_told
from node.runtime.stdout import complain, say
from node.state.keys import load_key
from node.state.learner_state import LEARNER_KEY
from node.tasks.task_suite import TaskSuite
from swarm.transport.error_groups import first_cause

QUICK = "No trial was made (--quick). Only the start will show whether nodes can work with the model."

LINES_MBIT = (100, 1000, 10_000)
"""Uplinks in Mbit/s for which the upload time of a version is shown."""

PATCH_SHARE = 0.02
"""Usual size of a patch from one step to the next, as a fraction of a version in bfloat16, at a learning rate of 1e-6.
0.9 to 2.2 % were measured."""

T = TypeVar("T")


async def dry_run(
    path: Path,
    *,
    resume: bool = False,
    fork_from: str = "",
    quick: bool = False,
    as_json: bool = False,
    trainer: Sequence[str] = TRAINER,
) -> int:
    """Run `volery learn --dry-run`: print what a start would do, and return the exit code.

    It makes a trial first, unless it is `quick`. `trainer` is the command of the trainer's process. Raises UsageError
    and RunError.
    """
    start = look_at(path, resume=resume, fork_from=fork_from)
    try:
        tried = None if quick else await _try(start, trainer)
        asked = None if quick else await _stoppable(partial(_ask_members, start))
        outside = await describe_addresses(start.config.network, asked)
    except Stopped:
        print("Stopped. Nothing was started, and nothing is left of the trial.", file=sys.stderr)
        return STOPPED_EXIT_CODE
    told = describe_start(start, fork_from, tried, outside)
    say(told.json if as_json else told.text)
    return 0


async def _ask_members(start: Start) -> Asked | None:
    """Ask known members to dial our addresses; None if the swarm has none yet."""
    root = Path(start.config.swarm.state)
    if not start.config.network.listen or not (root / LEARNER_KEY).exists() or not recalled(root):
        return None
    if sys.stderr.isatty():
        complain(f"Asking members whether they reach this machine ({WAIT_S:.0f} s at most)...")
    return await ask_members(load_key(root / LEARNER_KEY).seed, start.config.network)


async def _try(start: Start, trainer: Sequence[str]) -> Tried:
    if sys.stderr.isatty():
        print("Making a trial of the run (--quick skips it)...", file=sys.stderr)
    spec = child_spec(trainer, start.config)
    with about_keys_of(start.path):
        return await _stoppable(partial(try_aside, start.config, start.suite, start.rows, start.checkpoints, spec))


async def _stoppable(look: Callable[[], Awaitable[T]]) -> T:
    """Return what `look` returns. Raises Stopped if the program gets a signal to end meanwhile."""
    with first_cause():
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_when_told)
            found = await look()
            nursery.cancel_scope.cancel()
    return found


@dataclass(frozen=True, kw_only=True)
class StartDescription:
    """The configuration in force, and the findings about a start as lines."""

    path: Path
    config: SwarmConfig
    findings: Sequence[str]

    @property
    def text(self) -> str:
        """Return the configuration as TOML, with the findings as comments."""
        head = f"# The configuration in force of {self.path}, with every default. Nothing was started."
        findings = (f"# {line}".rstrip() for line in self.findings)
        return "\n".join([head, "", to_toml(with_hidden_url(self.config)), *findings])

    @property
    def json(self) -> str:
        """Return the same as a JSON object."""
        config = msgspec.to_builtins(with_hidden_url(self.config))
        return json.dumps({"path": str(self.path), "configuration": config, "findings": list(self.findings)}, indent=2)


def describe_start(start: Start, fork_from: str, tried: Tried | None, outside: Sequence[str] = ()) -> StartDescription:
    """Describe what a start would do. `tried` is None if no trial was made.

    `outside`: lines about how others reach the learner. Raises UsageError.
    """
    config, suite, state = start.config, start.suite, Path(start.config.swarm.state)
    with about_keys_of(start.path):
        facts = read_facts(Path(config.model.directory))
    recipe = recipe_in(config)
    computed = compute_dtype(config.trainer, gpu=has_gpu()) if tried is None else tried.compute_dtype
    footprint = footprint_of(facts, config.trainer, recipe, config.model.weights_dtype, computed=computed)
    told = [
        *_story(config, suite, _beginning(start, fork_from), start.rows[0].step if start.rows else 0),
        *([start.note] if start.note else []),
        QUICK if tried is None else tried.sentence,
        "",
        *_model(facts, _where(config, computed, tried)),
        "",
        *_memory(footprint, config),
        "",
        *_disk(footprint, config, state, evaluates=bool(suite.held_out)),
        "",
        *_line(footprint, config),
        "",
        *describe_notices(config.notify, start.path),
        *(["", *outside] if outside else []),
    ]
    parts = f"{recipe.advantage}, {recipe.correction}, {recipe.aggregation}"
    findings = [f"objective {config.trainer.objective}: {parts}", *told]
    return StartDescription(path=start.path, config=config, findings=findings)


def _beginning(start: Start, fork_from: str) -> str:
    state = Path(start.config.swarm.state)
    if start.origin is not None:
        return f"begins with step {start.origin.row.step} of {fork_from}"
    if start.rows:
        return f"continues from step {start.rows[0].step}, the newest checkpoint"
    return f"begins at step 0 ({state} is empty)" if is_blank(state / LEDGER) else "begins at step 0 (no checkpoint)"


def _where(config: SwarmConfig, computed: str, tried: Tried | None) -> str:
    """Return the format in which layers compute on this machine, and how that is known."""
    if tried is not None:
        return f"{computed} on {tried.device}"
    if config.trainer.compute_dtype != "auto":
        return computed
    return f"{computed} here, where there is {'a GPU' if has_gpu() else 'no GPU'}"


def _story(config: SwarmConfig, suite: TaskSuite, beginning: str, begun: int) -> Iterator[str]:
    learn, batch = config.learn, config.swarm_rollouts
    yield f"The run {beginning}, and ends after step {learn.steps}."
    if begun >= learn.steps:
        yield (
            f"That step is already taken: the learner publishes its version, and ends. Raise [learn] steps above "
            f"{begun} to train on."
        )
    if batch:
        leases = "1 lease" if batch == learn.group_size else f"{batch / learn.group_size:g} leases"
        yield (
            f"A training step uses R = {batch} rollouts: {leases} of {learn.group_size} "
            f"completions, up to {words.counted(learn.max_new_tokens, 'token')} each."
        )
    if logged := config.offline_rollouts:
        alone = "" if batch else ", and nothing is leased"
        yield f"A training step uses {words.counted(logged, 'completion')} from logs{alone}."
    yield from _rates(config)
    kappa = f"every {learn.publish_every} steps" if learn.publish_every else "as often as costs next to no time"
    kappa = "every step" if learn.publish_every == 1 else kappa
    yield (
        f"Staleness window: S = {words.counted(learn.staleness, 'step')} ({learn.mode}). A version is published "
        f"{kappa}."
    )
    most = learn.max_batches_ahead or learn.staleness + 1
    said = "" if learn.max_batches_ahead else ", depending on measurements"
    if batch:
        lasts = f"A lease lasts {learn.lease_timeout_s:g} s"
        yield f"At most {round(most * batch)} rollouts are leased or wait{said}. {lasts}."
    yield from _data(config, suite)


def _rates(config: SwarmConfig) -> Iterator[str]:
    """Yield warnings about settings that are allowed, but seldom intended."""
    trainer, learn = config.trainer, config.learn
    if trainer.warmup_steps > learn.steps:
        yield (
            f"The learning rate rises over {trainer.warmup_steps} steps, but the run ends after {learn.steps}: "
            f"it reaches no more than {learn.steps / trainer.warmup_steps:.0%} of its full value."
        )
    correction = trainer.correction or PRESETS[trainer.objective].correction
    is_off_policy = bool(config.swarm_rollouts and learn.staleness)
    if is_off_policy and correction == "uncorrected" and trainer.advantage_in_force != "preference":
        old = words.counted(learn.staleness, "step")
        yield (
            f"Nothing corrects for rollouts with a lag of up to {old}: the correction is "
            '"uncorrected", which is meant for mode = "sequential".'
        )


def _data(config: SwarmConfig, suite: TaskSuite) -> Iterator[str]:
    """Yield what the run trains and evaluates on, and what was left out."""
    total = sum(one.weight for one in config.task.tasks)
    for one in config.task.tasks:
        share = f", {one.weight / total:.1%} of the prompts" if len(config.task.tasks) > 1 else ""
        tokens = words.counted(len(suite.tasks[one.title].prompt(0)), "token")
        yield f"Task {suite.known_as(one.title)}: its first prompt has {tokens}{share}."
    for name, note in suite.notes:
        yield f"{suite.known_as(name)}: {note}."
    if config.curriculum.dynamic_sampling:
        yield "Groups whose rewards are all equal are credited, but not trained on: others are leased in their place."
    evaluate = config.evaluate
    asked = f", each sampled {evaluate.samples} times and once greedily" if evaluate.samples > 1 else ""
    if not suite.held_out:
        yield "Evaluation: none; there are no held-out prompts."
    else:
        prompts = words.counted(len(suite.held_out), "held-out prompt")
        yield f"Evaluation: {prompts}{asked}, by an engine process of its own."
    if suite.held_out:
        most = "half of a GPU's free memory" if evaluate.kv_cache_gb is None else f"{evaluate.kv_cache_gb:g} GB"
        where = "a GPU if there is one" if evaluate.device == "auto" else evaluate.device
        yield f"That engine runs on {where}. Beside the weights, a batch uses at most {most} for keys and values."
    if config.distill.teacher is not None:
        where = "a GPU if there is one" if config.distill.device == "auto" else config.distill.device
        yield (
            f"Teacher: {config.distill.teacher} scores every group before it is trained on, in an engine process of "
            f"its own on {where}. The weight of its scores is {config.trainer.teacher_in_force:g}."
        )
    if config.trust.audits and config.swarm_rollouts:
        yield (
            f"Audits: on the same engine, all of a newcomer's first {NEWCOMER_GROUPS} groups, and at least "
            f"{config.trust.min_audit_share:.0%} of each peer's groups."
        )
    else:
        yield "Audits: none. The records of peers are trusted."


def describe_notices(notify: LearnerNotifySection, path: Path) -> Iterator[str]:
    """Yield where notices of the run with the configuration at `path` go."""
    to = destination_of(notify)
    if to is None:
        yield "Notices: none, because [notify] names no url."
        return
    kinds = ", ".join(notify.events) or "none, since events is empty"
    yield f"Notices ({kinds}) are posted to {to.description}. Try it: volery notify {shlex.quote(str(path))}"
    if notify.url:
        yield "That URL is a secret, and is not shown whole: if you save this, write it in again."


def with_hidden_url(config: SwarmConfig) -> SwarmConfig:
    """Return the configuration with the secret of `[notify] url` hidden."""
    if not config.notify.url or (to := destination_of(config.notify)) is None:
        return config
    return msgspec.structs.replace(config, notify=msgspec.structs.replace(config.notify, url=to.shown))


def _model(facts: ModelFacts, where: str) -> Iterator[str]:
    dtypes = ", ".join(f"{decimal_size(size)} {name}" for name, size in sorted(facts.dtypes.items()))
    yield f"Model: {facts.architecture}, {_count(facts.parameters)} parameters. Its files hold {dtypes}."
    yield (
        f"{words.counted(facts.layers, 'layer')} of width {facts.hidden}, feed-forward {facts.feed_forward}, "
        f"vocabulary {facts.vocabulary}. Layers compute in {where}."
    )


def _memory(footprint: Footprint, config: SwarmConfig) -> Iterator[str]:
    parts = ", ".join(f"{name} {size:g}" for name, size in footprint.per_parameter.items())
    total = sum(footprint.per_parameter.values())
    frozen = f", 4 for each of {footprint.frozen:,} frozen ones" if footprint.frozen else ""
    yield (
        f"Memory of the trainer: {total:g} bytes a parameter ({parts}) for {footprint.trained:,}{frozen}: "
        f"{decimal_size(footprint.state)} in all."
    )
    yield (
        f"Each rank of {footprint.ranks}: {decimal_size(footprint.state / footprint.ranks)} of it, about "
        f"{decimal_size(footprint.gathered)} of layers in use, about {decimal_size(footprint.activations)} of "
        f"activations for {config.trainer.max_tokens_per_microbatch} positions: "
        f"about {decimal_size(footprint.per_rank)}."
    )
    if config.trainer.device != "cpu":
        exported = footprint.trained * DTYPE_BYTES[config.model.weights_dtype]
        host = decimal_size((footprint.checkpoint + exported) / config.trainer.machines)
        yield f"Copies of GPU memory, for checkpoints and versions, use {host} of the machine's own memory."
    else:
        state = footprint.checkpoint + footprint.trained * MASTER["weights"]
        copied = decimal_size(state / config.trainer.machines)
        yield f"While a checkpoint and a version are written, a step may copy up to {copied} of the state."
    if not config.trainer.activation_checkpointing:
        yield "activation_checkpointing = true or a smaller max_tokens_per_microbatch needs less for activations."


def _disk(footprint: Footprint, config: SwarmConfig, state: Path, *, evaluates: bool) -> Iterator[str]:
    newest, milestones = config.learn.keep_checkpoints, config.most_milestones(evaluates=evaluates)
    # One that is being written, and another whose version is being evaluated and may be the best.
    passing = 2 if milestones and evaluates and config.evaluate.keep_best else 1
    kept = newest + milestones + passing
    beyond = f", {words.counted(milestones, 'milestone')} at most" if milestones else ""
    judged = " and one while its version is evaluated" if passing > 1 else ""
    yield (
        f"Disk: {kept} checkpoints of {decimal_size(footprint.checkpoint)} (the newest {newest}{beyond}, one while it "
        f"is written{judged}), and up to "
        f"{config.learn.staleness + 3} versions of {decimal_size(footprint.version)} with their patches"
        + (
            f", and the model's files once, {decimal_size(footprint.first - footprint.version)}."
            if footprint.frozen
            else "."
        )
    )
    place = next(parent for parent in (state, *state.parents) if parent.exists())
    needed = kept * footprint.checkpoint + (config.learn.staleness + 3) * footprint.version
    needed += footprint.first - footprint.version
    free = shutil.disk_usage(place).free
    enough = "enough" if free > needed else "NOT ENOUGH"
    yield f"Together {decimal_size(needed)}. Free at {place}: {decimal_size(free)}, {enough}."


def _line(footprint: Footprint, config: SwarmConfig) -> Iterator[str]:
    cap = config.network.upload_mbit
    for mbit in dict.fromkeys([cap] if cap is not None else LINES_MBIT):
        first, version = (8 * size / (mbit * 1e6) for size in (footprint.first, footprint.version))
        then = (
            f"the next adapter in {_briefly(version)}"
            if footprint.frozen
            else f"a patch in about {_briefly(version * PATCH_SHARE)}"
        )
        yield f"At {mbit:g} Mbit/s, the learner sends a version in {_briefly(first)}, {then}."


def _briefly(seconds: float) -> str:
    return words.seconds(seconds) if seconds >= 0.001 else "less than a millisecond"


def _count(parameters: int) -> str:
    """Return a number of parameters as text."""
    return f"{parameters / 1e9:.3f} billion" if parameters >= 10_000_000 else f"{parameters:,}"
