"""Find keys of the configuration that would have no effect, because another key that they need is not set.

Invariants:

- A key counts as set only if it differs from its default. So files that spell out every default, as `volery init` and
  `--dry-run` write them, pass.
- The message names the key that is needed, and both ways out.
- A switch that the file itself turns off (`held_out = 0`, `decay_steps = 0`, `mode = "sequential"`) may leave other
  keys without work: the author of the file knows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import msgspec
from msgspec.structs import fields

from learner.trainer_api.presets import CAPPING, CLIPPING, PRESETS
from node.config.common import default_of
from node.config.node_config import NodeConfig
from node.config.swarm_config import SwarmConfig, TrainerSection

Rule = tuple[str, str, list[str]]
"""Section; why some of its keys do nothing, as a clause that ends with what to set; these keys."""


WITHOUT_URL = "without url nothing is posted. Set url or url_env"


def idle_key(config: SwarmConfig) -> str:
    """Return the message about the first key of a swarm.toml that would do nothing; "" if there is none."""
    return _first(config, [*_of_trainer(config.trainer), *_of_swarm(config)])


def idle_key_of_tasks(
    config: SwarmConfig,
    *,
    any_finite: bool,
    any_turns: bool,
    any_dear: bool,
    any_environments: bool = False,
    any_awaited: bool = False,
) -> str:
    """Return the same for what depends on the tasks: whether any is finite, has turns or environments, has rewards
    that are waited for, or is not cheap to ask."""
    rules = _of_tasks(config, any_finite=any_finite, any_turns=any_turns, any_dear=any_dear)
    return _first(
        config, chain(rules, () if any_environments else _without_environments(config, any_awaited=any_awaited))
    )


def idle_key_of_node(config: NodeConfig) -> str:
    """Return the message about the first key of a node.toml that would do nothing; "" if there is none."""
    return _first(config, _of_node(config))


def _of_tasks(config: SwarmConfig, *, any_finite: bool, any_turns: bool, any_dear: bool) -> Iterator[Rule]:
    if not any_dear:
        why = "all tasks here are cheap, and asked in the node. Name one that is not"
        yield "verifiers", why, ["workers", "timeout_s", "memory_gb", "on_failure", "machine"]
    elif config.verifiers.workers == 0 and not config.verifiers.machine:
        why = "workers = 0 without a machine lets the node ask tasks itself, without limits. Set workers, or a machine"
        yield "verifiers", why, ["timeout_s", "memory_gb", "on_failure"]
    if config.task.tasks and not any_finite:
        why = "no task here is finite, and tasks without end choose by levels. Name a task with a file"
        yield "curriculum", why, ["order", "min_pass_rate", "max_pass_rate"]
    if config.task.tasks and not any_turns:
        yield "learn", "no task here has several turns. Name one that has", ["max_turns"]


def _without_environments(config: SwarmConfig, *, any_awaited: bool) -> Iterator[Rule]:
    if config.task.tasks:
        why = "no task here has environments. Name one that has"
        yield "verifiers", why, ["environments", "environment_idle_s"]
    if config.task.tasks and not any_awaited:
        why = "no task here has environments, or an async reward. Name one that has"
        yield "verifiers", why, ["episodes_at_once"]


def _of_node(config: NodeConfig) -> Iterator[Rule]:
    kind = f'kind = "{config.engine.kind}"'
    if config.engine.kind == "fake":
        why = f'{kind} has no model, and keeps no keys and values. Set kind = "transformers"'
        yield "engine", why, ["kv_cache_gb", "quantization"]
        why = f"{kind} has no process whose memory could be limited. Set another kind"
        yield "limits", why, ["ram_gb", "ram_share", "vram_share"]
    else:
        why = f'[engine] {kind} generates at its own speed. Set kind = "fake"'
        yield "testing", why, ["fake_token_s"]
    if config.engine.kind not in ("vllm", "auto"):
        why = f'{kind} always finishes its completions before it installs a version. Set kind = "vllm"'
        yield "engine", why, ["on_new_version"]
        keys = ["tensor_parallel_size", "gpu_memory_utilization", "max_model_len"]
        yield "engine", f'{kind} does not support it. Set kind = "vllm"', keys
    if config.engine.kind != "fake" and config.engine.device == "cpu":
        yield "limits", '[engine] device = "cpu" uses no GPU. Set another device', ["vram_share"]
    if not (config.notify.url or config.notify.url_env):
        yield "notify", WITHOUT_URL, ["shape", "events"]
    if not config.network.listen:
        yield "network", "listen = [] only dials out, so no peer can dial this node. Set listen", ["announce"]


def _of_trainer(trainer: TrainerSection) -> Iterator[Rule]:
    correction = trainer.correction or PRESETS[trainer.objective].correction
    advantage = trainer.advantage_in_force
    if not trainer.lora_rank:
        why = "lora_rank = 0 trains all weights and no adapter. Set lora_rank"
        yield "trainer", why, ["lora_alpha", "lora_targets"]
    if trainer.machines == 1:
        yield "trainer", "machines = 1 has no others to meet. Set machines", ["rendezvous"]
    if correction not in CLIPPING:
        yield "trainer", f'the correction "{correction}" clips nothing. Set correction', ["clip_low", "clip_high"]
    if correction not in CAPPING:
        yield "trainer", f'the correction "{correction}" caps no weight. Set correction', ["weight_cap"]
    if trainer.sequence_mask is None:
        why = 'no sequence is masked. Set sequence_mask = "geometric" or "product"'
        yield "trainer", why, ["mask_low", "mask_high"]
    if advantage != "gae":
        why = f'the advantage "{advantage}" has no critic. Set objective = "ppo" or advantage = "gae"'
        critic = ["value_coefficient", "value_clip", "value_learning_rate"]
        yield "trainer", why, ["gae_gamma", "gae_lambda", *critic]
    if advantage != "preference":
        why = f'the advantage "{advantage}" does not use preferences. Set objective = "dpo"'
        yield "trainer", why, ["dpo_beta"]


def _of_swarm(config: SwarmConfig) -> Iterator[Rule]:
    if not config.judge.url:
        keys = [key.name for key in fields(type(config.judge)) if key.name != "url"]
        yield "judge", "without url no judge is asked. Set url", keys
    if not config.reward_service.url:
        keys = [key.name for key in fields(type(config.reward_service)) if key.name != "url"]
        yield "reward_service", "without url no service is asked. Set url", keys
    if config.offline.path is None:
        yield "offline", "without path there are no logs. Set path", ["share", "chat"]
    if not config.network.listen:
        why = "listen = [] lets no peer dial this learner. Set listen"
        yield "network", why, ["announce", "join_token"]
    if not (config.notify.url or config.notify.url_env):
        yield "notify", WITHOUT_URL, ["shape", "events"]
    if not config.metrics.wandb:
        why = "without wandb nothing goes to Weights & Biases. Set wandb to a project"
        yield "metrics", why, ["wandb_offline"]
    if not config.swarm_rollouts:
        why = "with [offline] share = 1.0 nothing is leased, so no problem is asked. Lower share"
        yield "curriculum", why, ["order", "min_pass_rate", "max_pass_rate", "dynamic_sampling"]
        if config.metrics.samples:
            why = "with [offline] share = 1.0 all is from logs, and samples show rollouts of the swarm. Lower share"
            yield "metrics", why, ["samples"]
        why = "with [offline] share = 1.0 all is from logs, whose rewards are used as they are. Lower share"
        yield "learn", why, ["overlong"]
    if config.learn.overlong != "soft":
        why = f'overlong = "{config.learn.overlong}" subtracts no penalty. Set overlong = "soft"'
        yield "learn", why, ["overlong_buffer", "overlong_penalty"]
    if config.learn.keep_milestones and not config.learn.keep_every and not config.evaluate.keep_best:
        why = "no checkpoint is a milestone. Set keep_every, or [evaluate] keep_best"
        yield "learn", why, ["keep_milestones"]
    if not config.learn.keep_milestones:
        why = "[learn] keep_milestones = 0 keeps none. Raise it"
        yield "learn", why, ["keep_every"]
        if config.evaluate.keep_best:
            yield "evaluate", why, ["keep_best"]
    if not config.task.tasks:
        if config.task.held_out:
            yield "task", "without spec there are no prompts. Set spec", ["held_out"]
        set_above_0 = [key for key in ("every_versions", "keep_best") if getattr(config.evaluate, key)]
        why = "without [task] spec there are no prompts to evaluate on. Set it"
        yield "evaluate", why, [*set_above_0, "samples", "pass_at_k", "device", "kv_cache_gb"]


def _first(config: SwarmConfig | NodeConfig, rules: Iterable[Rule]) -> str:
    for name, why, keys in rules:
        section = getattr(config, name)
        defaults = {key.name: default_of(key) for key in fields(type(section))}
        for key in keys:
            if (value := getattr(section, key)) != defaults[key]:
                said = msgspec.json.encode(value).decode()
                return f"[{name}] {key} = {said} would do nothing: {why}, or leave {key} out."
    return ""
