"""Hold how much the demo trains, and write its configuration."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from learner.trainer_api.presets import PRESETS
from node.config.swarm_config import mode_of
from node.runtime.errors import UsageError

CONFIG = """\
# Written by `volery demo`.
[swarm]
name = "demo"
state = "learner"

[network]
listen = ["/ip4/{host}/tcp/{port}"]
heartbeat_s = 1.0

[model]
directory = "model"
weights_dtype = "float32"

[task]
spec = "{task}"
held_out = {held_out}

[learn]
steps = {steps}
mode = "{mode}"
staleness = {staleness}
publish_every = {publish_every}
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {max_new_tokens}
max_batches_ahead = {ahead}
lease_timeout_s = 60.0
seed = {seed}
threads = 1

[trainer]
objective = "{objective}"
learning_rate = {learning_rate}
warmup_steps = {warmup_steps}
decay_steps = {decay_steps}

[provisioning]
# Three nodes for two minutes, and all are wanted, also a late one: an engine may take half a minute to load.
select_peers = false

[evaluate]
every_versions = {every_versions}

[trust]
required_compute_dtype = "float32"

[price]
per_hour = 0.40
"""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How much the demo trains. docs/start/demo.md gives the measurements behind these values."""

    steps: int = 340
    prompts: int = 64
    group: int = 4
    learning_rate: float = 8e-4
    warmup_steps: int = 20
    decay_steps: int = 400
    publish_every: int = 1
    every_versions: int = 10
    ahead: float = 1.5


OBJECTIVE = "topr"
"""The demo's default objective. It clips its ratios as DAPO does, with a slightly higher upper bound."""

OBJECTIVES = tuple(name for name in PRESETS if name != "distill")
"""Objectives that the demo can show: all but distillation, because the demo has no teacher."""


def recipe_for(objective: str, recipe: Recipe | None = None, steps: int | None = None) -> Recipe:
    """Return a lesson's recipe, adapted to the objective. Raises UsageError if there is no such objective."""
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective {objective!r} is not one of {', '.join(OBJECTIVES)}.")
    recipe = recipe or Recipe()
    recipe = replace(recipe, steps=steps or recipe.steps)
    # Preferences are learnt from pairs; a step keeps as many completions.
    return replace(recipe, prompts=recipe.prompts * recipe.group // 2, group=2) if objective == "dpo" else recipe


def swarm_toml(
    recipe: Recipe,
    *,
    task: str = "reverse:letters=6",
    held_out: int = 512,
    max_new_tokens: int = 8,
    host: str = "127.0.0.1",
    port: int,
    staleness: int,
    seed: int,
    objective: str = OBJECTIVE,
) -> str:
    """Return the learner's configuration: it listens at `host`, and is in sequential mode if the staleness is 0."""
    return CONFIG.format(
        **asdict(recipe) | {"publish_every": min(recipe.publish_every, max(1, staleness))},
        objective=objective,
        host=host,
        port=port,
        task=task,
        held_out=held_out,
        mode=mode_of(staleness),
        staleness=staleness,
        max_new_tokens=max_new_tokens,
        seed=seed,
    )
