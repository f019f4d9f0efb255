"""What the demo learns, and the configuration that it writes."""

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
# Three nodes for two minutes, all of them wanted, also one that comes late: an engine may take half a minute to load.
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
    """What the demo trains with. The figures behind the choice are in docs/demo.md."""

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
"""What the demo minimises unless another was asked for; its ratios are clipped as DAPO does, a little further up."""

OBJECTIVES = tuple(name for name in PRESETS if name != "distill")
"""Those that the demo can show: it has no teacher."""


def recipe_for(objective: str, recipe: Recipe | None = None, steps: int | None = None) -> Recipe:
    """A lesson's recipe, as that objective wants it. Raises UsageError when there is none of that name."""
    if objective not in OBJECTIVES:
        raise UsageError(f"--objective: {objective!r} is none of {', '.join(OBJECTIVES)}.")
    recipe = recipe or Recipe()
    recipe = replace(recipe, steps=steps or recipe.steps)
    # Preferences are learnt from pairs; as many completions a step.
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
    """The learner's configuration, which listens there; with S = 0 in sequential mode."""
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
