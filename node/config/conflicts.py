"""What in a configuration file cannot both be, each told as a sentence that names the keys and the ways out.

A function gives the sentences of one subject, of a configuration in force: `node.config.loader` raises the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from learner.rollouts.open_leases import delivery_bytes
from node.config.node_config import NodeConfig
from node.config.swarm_config import CostSection, LearnSection, SwarmConfig, TaskSection, TrainerSection
from node.config.unused_keys import idle_key, idle_key_of_node
from node.runtime.user_paths import real_path
from protocol.core.limits import MAX_WORK_BYTES

MAX_PORT = 65_535


def conflicts(config: SwarmConfig) -> Iterator[str]:
    """Of a swarm.toml."""
    yield from _of_window(config.learn)
    yield from _of_steps(config.learn, config.trainer)
    yield from _of_batches(config)
    if config.swarm_rollouts or config.task.tasks:
        yield from _of_tasks(config.task)
    low, high = config.curriculum.min_pass_rate, config.curriculum.max_pass_rate
    if low >= high:
        yield (
            f"[curriculum] min_pass_rate = {low} leaves nothing below max_pass_rate = {high}. Pass rates between the "
            "two are the band that is asked in every pass: 0.0 and 1.0 leave out all wrong and all right."
        )
    yield from _of_dynamic_sampling(config)
    yield from filter(None, [idle_key(config)])
    most, samples = max(config.evaluate.pass_at_k, default=1), config.evaluate.samples
    if most > samples:
        yield (
            f"[evaluate] pass_at_k = {most} is more than samples = {samples}, and pass@k needs at least k samples of a "
            "prompt. Raise samples; twice k or more makes the estimate steadier."
        )
    if not config.network.listen and config.swarm_rollouts:
        yield (
            "[network] listen = [] lets no volunteer reach this learner, and it trains on what they make. Name an "
            'address, as "/ip4/0.0.0.0/tcp/4001", or let [offline] bring all of each batch with share = 1.'
        )
    if config.trust.audits and config.learn.quantized_engines:
        yield (
            "[learn] quantized_engines = true and [trust] audits = true cannot both be: an audit cannot tell an engine "
            "that quantises from a peer that cheats. Leave such engines out, or set audits = false where every peer is "
            "your own."
        )
    yield from _of_reference(config.cost)
    state, model = real_path(Path(config.swarm.state)), real_path(Path(config.model.directory))
    if state == model or model in state.parents:  # the model is read and never written
        yield (
            f"[swarm] state: {config.swarm.state} lies in [model] directory, where nothing may be written. Choose "
            "another directory."
        )


def _of_window(learn: LearnSection) -> Iterator[str]:
    if learn.mode == "async" and learn.staleness == 0:
        yield (
            '[learn] staleness = 0 leaves mode = "async" nothing to do at the same time. Set mode = "sequential" for '
            "rollouts made by exactly the policy that they train, or staleness to 1 or more."
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
            f"[learn] prompts_per_step = {learn.prompts_per_step}, and each update takes one at least. Lower the one "
            "or raise the other."
        )
    found = re.fullmatch(r".+:(\d{1,5})", trainer.rendezvous)
    if trainer.machines > 1 and (found is None or not 1 <= int(found[1]) <= MAX_PORT):
        yield (
            f"[trainer] machines = {trainer.machines} need rendezvous, where the others reach this one: "
            '"HOST:PORT", a free port of this machine, 1 to 65535.'
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
            "[offline] bring all of each batch with share = 1."
        )


def _of_dynamic_sampling(config: SwarmConfig) -> Iterator[str]:
    """It drops groups of one reward, which is only right where those teach nothing."""
    trainer = config.trainer
    if not config.curriculum.dynamic_sampling:
        return
    if trainer.kl_coefficient > 0:
        why = f"kl_coefficient = {trainer.kl_coefficient}"
    elif trainer.advantage_in_force in ("gae", "batch_mean"):
        why = f'the advantage "{trainer.advantage_in_force}" (objective = "{trainer.objective}")'
    else:
        return
    yield (
        f"[curriculum] dynamic_sampling drops groups whose rewards are all equal, and with [trainer] {why} those "
        "teach, too: dropping them would bias what is learnt. Set dynamic_sampling to false, or choose an advantage "
        "that compares within the group, with kl_coefficient = 0."
    )


def _of_tasks(task: TaskSection) -> Iterator[str]:
    if (task.spec is None) == (not task.mixture):
        yield "[task] wants either spec, for one task, or a [[task.mixture]] table for each of several."
    titles = [one.title for one in task.tasks]
    for title in titles:
        if titles.count(title) > 1:
            yield (
                f"[[task.mixture]] has {titles.count(title)} tasks called {title!r}. Give each a name = of its own: "
                "reports tell them apart by it."
            )


def _of_reference(cost: CostSection) -> Iterator[str]:
    """A machine has a price and a speed, or nothing can be held against it."""
    given = (cost.reference_per_hour is not None, cost.reference_tokens_per_s is not None)
    if any(given) and not all(given):
        lacking = "reference_tokens_per_s" if given[0] else "reference_per_hour"
        yield (
            f"[cost] {lacking} is missing: a machine to compare with has a price per hour and the tokens per second "
            "that it generates. Add it, or leave both out."
        )
    if cost.reference and not any(given):
        yield (
            f"[cost] reference = {cost.reference!r} has neither price nor speed. Add reference_per_hour and "
            "reference_tokens_per_s, or leave reference out."
        )


def conflicts_of_node(config: NodeConfig) -> Iterator[str]:
    """Of a node.toml."""
    engine = config.engine
    if engine.tensor_parallel_size > 1 and engine.device.startswith("cuda:"):
        yield (
            f'[engine] device = "{engine.device}" is one GPU, and tensor_parallel_size = {engine.tensor_parallel_size} '
            'shares the model among so many. Set device = "cuda", or leave tensor_parallel_size out.'
        )
    yield from filter(None, [idle_key_of_node(config)])
