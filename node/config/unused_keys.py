"""Keys of the configuration that would do nothing, since another that they need is not set.

What always holds: a key counts as set when it is not what it would be anyway, so files that spell every default out, as
`volery init` and `--dry-run` write them, pass; whoever is refused reads which key it needs, and both ways out. What a
switch that the file itself turns off leaves without work (`held_out = 0`, `decay_steps = 0`, `mode = "sequential"`) is
not refused: who turns it needs no telling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from learner.trainer_api.presets import CAPPING, CLIPPING, PRESETS
from node.config.common import Section
from node.config.node_config import NodeConfig
from node.config.swarm_config import OfflineSection, SwarmConfig, TrainerSection


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`keys` of a section do nothing because of `why`, a clause that ends with what to set."""

    section: str
    keys: tuple[str, ...]
    why: str


def idle_key(config: SwarmConfig) -> str:
    """What to say of the first key of a swarm.toml that would do nothing; "" when there is none."""
    return _first(config, [*_trainer(config.trainer), *_offline(config.offline), *_around(config)])


def idle_key_of_tasks(config: SwarmConfig, *, any_finite: bool, any_turns: bool, any_dear: bool) -> str:
    """The same, by what the tasks are: some are finite, some have turns, some are not cheap to ask."""
    rules = []
    if not any_dear:
        why = "all tasks here are cheap, and asked in the node. Name one that is not"
        keys = ("workers", "timeout_s", "memory_gb", "on_failure", "machine")
        rules.append(Rule(section="verifiers", keys=keys, why=why))
    elif config.verifiers.workers == 0 and not config.verifiers.machine:
        why = "workers = 0 without a machine has the node ask tasks itself, without limits. Set workers, or a machine"
        rules.append(Rule(section="verifiers", keys=("timeout_s", "memory_gb", "on_failure"), why=why))
    if config.task.tasks and not any_finite:
        why = "no task here is finite, and tasks without end choose by levels. Name a task of a file"
        rules.append(Rule(section="curriculum", keys=("order", "low", "high"), why=why))
    if config.task.tasks and not any_turns:
        why = "no task here has several turns. Name one that has"
        rules.append(Rule(section="learn", keys=("max_turns",), why=why))
    return _first(config, rules)


def idle_key_of_node(config: NodeConfig) -> str:
    """What to say of the first key of a node.toml that would do nothing; "" when there is none."""
    rules = []
    if config.engine.kind != "fake":
        why = f'kind = "{config.engine.kind}" takes the time it takes. Set kind = "fake"'
        rules.append(Rule(section="engine", keys=("fake_token_s",), why=why))
    else:
        why = 'kind = "fake" has no model, and keeps nothing. Set kind = "transformers"'
        rules.append(Rule(section="engine", keys=("kv_cache_gb",), why=why))
    if config.engine.kind not in ("vllm", "auto"):
        why = f'kind = "{config.engine.kind}" ends what it began, and then installs. Set kind = "vllm"'
        rules.append(Rule(section="engine", keys=("on_new_version",), why=why))
        keys = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len", "quantization")
        why = f'kind = "{config.engine.kind}" knows nothing of it. Set kind = "vllm"'
        rules.append(Rule(section="engine", keys=keys, why=why))
    if config.engine.kind == "fake":
        why = 'kind = "fake" has no process whose memory could be bounded. Set another kind'
        rules.append(Rule(section="limits", keys=("ram_gb", "ram_share", "vram_share"), why=why))
    elif config.engine.device == "cpu":
        why = '[engine] device = "cpu" takes nothing of a GPU. Set another device'
        rules.append(Rule(section="limits", keys=("vram_share",), why=why))
    if not config.network.listen:
        why = "listen = [] only dials out, and nobody can dial this node. Set listen"
        rules.append(Rule(section="network", keys=("announce",), why=why))
    return _first(config, rules)


def _trainer(trainer: TrainerSection) -> Iterable[Rule]:
    def rule(why: str, *keys: str) -> Rule:
        return Rule(section="trainer", keys=keys, why=why)

    correction = trainer.correction or PRESETS[trainer.objective].correction
    advantage = trainer.advantage_in_force
    if not trainer.lora_rank:
        yield rule("lora_rank = 0 trains all weights and no adapter. Set lora_rank", "lora_alpha", "lora_targets")
    if trainer.machines == 1:
        yield rule("machines = 1 has no others to meet. Set machines", "rendezvous")
    if correction not in CLIPPING:
        yield rule(f'the correction "{correction}" clips nothing. Set correction', "clip_low", "clip_high")
    if correction not in CAPPING:
        yield rule(f'the correction "{correction}" caps no weight. Set correction', "weight_cap")
    if advantage != "gae":
        why = f'the advantage "{advantage}" has no critic. Set objective = "ppo" or advantage = "gae"'
        critic = ("value_coefficient", "value_clip", "value_learning_rate")
        yield rule(why, "gae_gamma", "gae_lambda", *critic)
    if advantage != "preference":
        yield rule(f'the advantage "{advantage}" is not of preferences. Set objective = "dpo"', "dpo_beta")


def _offline(offline: OfflineSection) -> Iterable[Rule]:
    if offline.path is None:
        why = "without path there are no logs. Set path"
        yield Rule(section="offline", keys=("share", "chat"), why=why)


def _around(config: SwarmConfig) -> Iterable[Rule]:
    if not config.network.listen:
        why = "listen = [] lets nobody dial this learner. Set listen"
        yield Rule(section="network", keys=("announce", "join_token"), why=why)
    if not config.metrics.wandb:
        why = "without wandb nothing goes to Weights & Biases. Set wandb to a project"
        yield Rule(section="metrics", keys=("wandb_offline",), why=why)
    if not config.swarm_rollouts:
        keys = ("order", "low", "high", "dynamic_sampling")
        why = "with [offline] share = 1.0 nothing is leased, so nothing is asked. Lower share"
        yield Rule(section="curriculum", keys=keys, why=why)
        if config.metrics.samples:
            why = "with [offline] share = 1.0 all is from logs, and samples are of what the swarm makes. Lower share"
            yield Rule(section="metrics", keys=("samples",), why=why)
    if config.learn.keep_milestones and not config.learn.keep_every and not config.evaluate.keep_best:
        why = "no checkpoint is a milestone. Set keep_every, or [evaluate] keep_best"
        yield Rule(section="learn", keys=("keep_milestones",), why=why)
    if not config.learn.keep_milestones:
        why = "[learn] keep_milestones = 0 keeps none. Raise it"
        yield Rule(section="learn", keys=("keep_every",), why=why)
        if config.evaluate.keep_best:
            yield Rule(section="evaluate", keys=("keep_best",), why=why)
    if not config.task.tasks:
        if config.task.held_out:
            yield Rule(section="task", keys=("held_out",), why="without spec there are no prompts. Set spec")
        every = ("every_versions",) if config.evaluate.every_versions else ()
        best = ("keep_best",) if config.evaluate.keep_best else ()
        why = "without [task] spec there are no prompts to evaluate on. Set it"
        yield Rule(section="evaluate", keys=(*every, *best, "samples", "k", "device", "kv_cache_gb"), why=why)


def _first(config: SwarmConfig | NodeConfig, rules: Iterable[Rule]) -> str:
    for rule in rules:
        section = getattr(config, rule.section)
        for key in rule.keys:
            if (value := getattr(section, key)) != _default(type(section), key):
                said = msgspec.json.encode(value).decode()
                return f"[{rule.section}] {key} = {said} would do nothing: {rule.why}, or leave {key} out."
    return ""


def _default(section: type[Section], key: str) -> Any:
    field = next(field for field in msgspec.structs.fields(section) if field.name == key)
    return field.default_factory() if field.default is msgspec.NODEFAULT else field.default
