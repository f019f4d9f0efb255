"""Find combinations of keys that cannot work, and explain each in a sentence with the keys and the ways out.

Each function yields the sentences about one subject, for a configuration in force. `node.config.loader` raises the
first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from learner.rollouts.open_leases import delivery_bytes
from node.config.node_config import EngineSection, NodeConfig
from node.config.swarm_config import CostSection, LearnSection, ModelSection, SwarmConfig, TaskSection, TrainerSection
from node.config.unused_keys import idle_key, idle_key_of_node
from node.runtime.user_paths import real_path
from protocol.core.limits import MAX_WORK_BYTES
from protocol.versions.formats import FP8, INT4, INT8

MAX_PORT = 65_535


def conflicts(config: SwarmConfig) -> Iterator[str]:
    """Yield the conflicts of a swarm.toml."""
    yield from _of_window(config.learn)
    yield from _of_steps(config.learn, config.trainer)
    yield from _of_batches(config)
    if config.swarm_rollouts or config.task.tasks:
        yield from _of_tasks(config.task)
    low, high = config.curriculum.min_pass_rate, config.curriculum.max_pass_rate
    if low >= high:
        yield (
            f"[curriculum] min_pass_rate = {low} leaves nothing below max_pass_rate = {high}. Problems with pass rates "
            "between the two are asked in every pass: 0.0 and 1.0 leave out only all wrong and all right."
        )
    yield from _of_teacher(config)
    yield from _of_dynamic_sampling(config)
    yield from _of_template(config.model)
    yield from _of_services(config)
    yield from _of_overlong(config)
    yield from filter(None, [idle_key(config)])
    most, samples = max(config.evaluate.pass_at_k, default=1), config.evaluate.samples
    if most > samples:
        yield (
            f"[evaluate] pass_at_k = {most} is more than samples = {samples}, and pass@k needs at least k samples of a "
            "prompt. Raise samples; twice k or more makes the estimate steadier."
        )
    if not config.network.listen and config.swarm_rollouts:
        yield (
            "[network] listen = [] lets no volunteer reach this learner, which trains on their rollouts. Name an "
            'address, such as "/ip4/0.0.0.0/tcp/4001", or let [offline] bring every batch with share = 1.'
        )
    if config.trust.audits and FP8 in config.learn.engine_formats:
        yield (
            '[learn] engine_formats with "fp8" cannot be used with [trust] audits = true: only vLLM can repeat how it '
            "rounds to fp8, so audits cannot tell it from a peer that cheats. Remove it (int8 and int4 can be "
            "audited), or set audits = false if every peer is your own."
        )
    yield from _of_reference(config.cost)
    state, model = real_path(Path(config.swarm.state)), real_path(Path(config.model.directory))
    if state == model or model in state.parents:  # the model's directory is read and never written
        yield (
            f"[swarm] state: {config.swarm.state} lies in [model] directory, where nothing may be written. Choose "
            "another directory."
        )


def _of_window(learn: LearnSection) -> Iterator[str]:
    if learn.mode == "async" and learn.staleness == 0:
        yield (
            '[learn] staleness = 0 leaves mode = "async" nothing to do at the same time. Set mode = "sequential" to '
            "train on rollouts of exactly the policy that they update, or staleness to 1 or more."
        )
    if learn.publish_every > max(1, learn.staleness):
        yield (
            f"[learn] publish_every = {learn.publish_every} is more than staleness = {learn.staleness} allows: "
            f"rollouts of one version would be too old before the next appears. Set it to {learn.staleness} or less."
        )


def _of_steps(learn: LearnSection, trainer: TrainerSection) -> Iterator[str]:
    if trainer.updates_per_step > learn.prompts_per_step:
        yield (
            f"[trainer] updates_per_step = {trainer.updates_per_step} is more than the groups of a training step, "
            f"[learn] prompts_per_step = {learn.prompts_per_step}, and each update takes at least one. Lower the one "
            "or raise the other."
        )
    found = re.fullmatch(r".+:(\d{1,5})", trainer.rendezvous)
    if trainer.machines > 1 and (found is None or not 1 <= int(found[1]) <= MAX_PORT):
        yield (
            f"[trainer] machines = {trainer.machines} need rendezvous, where the others reach this one. Set it to "
            '"HOST:PORT", with a free port of this machine, 1 to 65535.'
        )
    if (size := delivery_bytes(learn.group_size, learn.max_new_tokens)) > MAX_WORK_BYTES:
        yield (
            f"[learn] group_size = {learn.group_size} completions of max_new_tokens = {learn.max_new_tokens} take up "
            f"to {size} bytes, and a delivery has at most {MAX_WORK_BYTES}. Lower one of the two."
        )


def _of_batches(config: SwarmConfig) -> Iterator[str]:
    offline, learn = config.offline, config.learn
    if offline.path is not None and (config.offline_rollouts < 2 or config.swarm_rollouts == 1):
        yield (
            f"[offline] share = {offline.share_in_force} of the {learn.prompts_per_step * learn.group_size} "
            "completions of a batch leaves less than a group of two for one side. Choose another share."
        )
    if (chosen := config.trainer.pairs_by) and config.swarm_rollouts and learn.group_size != 2:
        yield (
            f"[trainer] {chosen} learns from pairs, and [learn] group_size = {learn.group_size}. Set it to 2, or let "
            "[offline] bring every batch with share = 1."
        )


def _of_teacher(config: SwarmConfig) -> Iterator[str]:
    trainer, teacher = config.trainer, config.distill.teacher
    weight = trainer.teacher_in_force
    if weight and teacher is None:
        yield (
            f'[trainer] objective = "{trainer.objective}" with teacher_coefficient = {weight:g} learns from a teacher, '
            "and [distill] teacher names none. Name its directory, or choose another objective or 0."
        )
    if teacher is not None and not weight:
        yield (
            "[distill] teacher is set, and nothing is learned from it: [trainer] teacher_coefficient is 0. Set "
            '[trainer] objective = "distill", or a teacher_coefficient above 0 besides rewards.'
        )
    if config.distill.nodes and teacher is None:
        yield (
            "[distill] nodes = true lets nodes score with a teacher, and [distill] teacher names none for the learner, "
            "which audits them with its own copy. Name its directory."
        )
    if trainer.advantage_in_force == "none" and not weight:
        yield (
            '[trainer] advantage = "none" ignores rewards, and teacher_coefficient is 0, so nothing is left to learn '
            'from. Choose another advantage, or objective = "distill" with a [distill] teacher.'
        )
    if weight and trainer.pairs_by:
        yield f"[trainer] {trainer.pairs_by} learns from pairs alone, without a teacher. Remove teacher_coefficient."
    if weight and config.offline.path is not None:
        yield (
            "[offline] path and [distill] teacher cannot be used together: the teacher scores what the swarm "
            "generates, and no logs. Remove one of them."
        )


def _of_dynamic_sampling(config: SwarmConfig) -> Iterator[str]:
    """Yield the conflict of dynamic sampling: it drops groups with equal rewards, although some settings learn from
    them."""
    trainer = config.trainer
    if not config.curriculum.dynamic_sampling:
        return
    if trainer.kl_coefficient > 0:
        why = f"kl_coefficient = {trainer.kl_coefficient}"
    elif trainer.teacher_in_force > 0:
        why = f"a teacher (teacher_coefficient = {trainer.teacher_in_force:g})"
    elif trainer.advantage_in_force in ("gae", "batch_mean"):
        why = f'the advantage "{trainer.advantage_in_force}" (objective = "{trainer.objective}")'
    else:
        return
    yield (
        f"[curriculum] dynamic_sampling drops groups whose rewards are all equal, and [trainer] {why} learns from "
        "those, too: dropping them would bias the training. Set dynamic_sampling to false, or choose an advantage "
        "that compares within the group, with kl_coefficient = 0 and no teacher."
    )


def _of_overlong(config: SwarmConfig) -> Iterator[str]:
    learn, chosen = config.learn, config.trainer.pairs_by
    if learn.overlong == "mask" and chosen:
        yield (
            f'[learn] overlong = "mask" leaves out completions, and [trainer] {chosen} learns from both of a pair. Set '
            'overlong to "task" or "soft".'
        )
    if learn.overlong_buffer is not None and learn.overlong_buffer > learn.max_new_tokens:
        yield (
            f"[learn] overlong_buffer = {learn.overlong_buffer} is more than max_new_tokens = {learn.max_new_tokens}, "
            "and is the last part of them. Lower it, or remove it for a fifth of them."
        )


def _of_tasks(task: TaskSection) -> Iterator[str]:
    if (task.spec is None) == (not task.mixture):
        yield "[task] needs either spec, for one task, or a [[task.mixture]] table for each of several."
    titles = [one.title for one in task.tasks]
    for title in titles:
        if titles.count(title) > 1:
            yield (
                f"[[task.mixture]] has {titles.count(title)} tasks called {title!r}. Give each a name = of its own: "
                "reports tell them apart by it."
            )


TEMPLATE_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt")
"""Variables that every conversation gives its chat template. A value of the operator would hide them."""


def _of_template(model: ModelSection) -> Iterator[str]:
    given = model.chat_template_kwargs
    for key in TEMPLATE_VARIABLES:
        if key in given:
            yield f"[model] chat_template_kwargs: the conversation gives the template its {key}. Remove this key."
    try:
        json.dumps(given, allow_nan=False)
    except (TypeError, ValueError):  # TOML also has dates, infinities and NaN
        yield (
            "[model] chat_template_kwargs holds a value that is no text, number, true, false, list or table of these. "
            "Write a date as text."
        )


def _of_services(config: SwarmConfig) -> Iterator[str]:
    """Yield the services that may take longer than a verifier waits: their answers would be lost."""
    for name, section in (("judge", config.judge), ("reward_service", config.reward_service)):
        if section.url and section.timeout_s >= config.verifiers.timeout_s:
            yield (
                f"[{name}] timeout_s = {section.timeout_s:g} is not less than [verifiers] timeout_s = "
                f"{config.verifiers.timeout_s:g}, after which a reward has failed. Lower the one or raise the other."
            )


def _of_reference(cost: CostSection) -> Iterator[str]:
    """Yield what the reference machine lacks: only a machine with price and speed can be compared with."""
    given = (cost.reference_per_hour is not None, cost.reference_tokens_per_s is not None)
    if any(given) and not all(given):
        lacking = "reference_tokens_per_s" if given[0] else "reference_per_hour"
        yield (
            f"[cost] {lacking} is missing: a machine to compare with needs a price per hour and the tokens per second "
            "that it generates. Add it, or remove both."
        )
    if cost.reference and not any(given):
        yield (
            f"[cost] reference = {cost.reference!r} has neither price nor speed. Add reference_per_hour and "
            "reference_tokens_per_s, or remove reference."
        )


def conflicts_of_node(config: NodeConfig) -> Iterator[str]:
    """Yield the conflicts of a node.toml."""
    engine = config.engine
    if engine.tensor_parallel_size > 1 and engine.device.startswith("cuda:"):
        yield (
            f'[engine] device = "{engine.device}" is one GPU, and tensor_parallel_size = {engine.tensor_parallel_size} '
            'shares the model among several. Set device = "cuda", or remove tensor_parallel_size.'
        )
    yield from _of_quantization(engine)
    yield from filter(None, [idle_key_of_node(config)])


def _of_quantization(engine: EngineSection) -> Iterator[str]:
    asked, kind = engine.quantization, engine.kind
    if asked == "fp8" and kind == "transformers":
        yield '[engine] quantization = "fp8" needs vLLM. Set kind = "vllm", or quantization to "int8" or "int4".'
    if asked in (INT8, INT4) and kind == "vllm":
        yield (
            f'[engine] quantization = "{asked}" needs the transformers engine: vLLM would round in its own way, and '
            'fail audits. Set kind = "transformers", or quantization to "fp8" if the swarm accepts it.'
        )
