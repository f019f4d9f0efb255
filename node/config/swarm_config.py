"""What may be written in the configuration files: `swarm.toml` of an operator, `node.toml` of a volunteer.

One class for each section, and one for each file. What always holds: a key has a type, a range and, unless it is
required, a default; an unknown one is an error. Values are frozen; components get the section they need, never the
whole. `node.config.loader` reads them, and asks what must fit together.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from learner.rollouts.environment import MAX_EPISODE_TOKENS, MAX_TURNS
from learner.trainer_api.presets import PRESETS, AdvantageName, AggregationName, CorrectionName, PresetName
from node.config.common import (
    AddressList,
    EnergySection,
    EngineDevice,
    Gigabytes,
    Mbit,
    Positive,
    PositiveFloat,
    PositiveShare,
    PriceSection,
    Section,
    Share,
    Text,
)
from node.config.engine_requirements import EngineTerms
from protocol.core.limits import (
    MAX_ADDRESS_CHARS,
    MAX_COMPLETION_TOKENS,
    MAX_GROUP_SIZE,
    MAX_NAME_CHARS,
    MAX_TASKS_TOLD,
    MAX_TEMPERATURE,
    MIN_TEMPERATURE,
)

PATIENCE_S = 600.0
"""So long a rollout node goes on while nothing works: long enough for another program to leave the GPU, or for an
operator who looks to publish something else; short enough that whoever has just started the node is still there."""

OFFLINE_SHARE = 0.5
"""Of each batch, where logs are named and no share."""

MAX_TASKS = MAX_TASKS_TOLD
"""Tasks of a mixture: each is evaluated on held-out prompts of its own, and a report has a line for each."""

MAX_SAMPLES = 1024
"""Of a held-out prompt in one evaluation: pass@1024 is the furthest that anybody reports."""


class SwarmSection(Section, frozen=True, kw_only=True):
    """Who the swarm is, and where this learner keeps its state."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    state: str = "state"
    certificate_days: Annotated[float, Meta(gt=0, le=36_500)] = 90.0


class NetworkSection(Section, frozen=True, kw_only=True):
    """Where to listen, what to tell others, and how much to send and receive at most."""

    listen: AddressList = msgspec.field(default_factory=lambda: ["/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001"])
    announce: AddressList = []
    upload_mbit: Mbit | None = None
    download_mbit: Mbit | None = None
    join_token: Annotated[str, Meta(max_length=128)] = ""
    heartbeat_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0


class ModelSection(Section, frozen=True, kw_only=True):
    """The policy to train: a Hugging Face causal LM directory with safetensors and a tokenizer."""

    directory: str
    weights_dtype: Literal["bfloat16", "float32"] = "bfloat16"


class MixtureTask(Section, frozen=True, kw_only=True):
    """One task of several: its share of the prompts is its weight over the sum of all. `name` is what leases and
    reports call it; by default what its spec begins with."""

    spec: Annotated[str, Meta(min_length=1)]
    weight: PositiveFloat = 1.0
    name: Text = ""

    @property
    def title(self) -> str:
        return self.name or self.spec.partition(":")[0][:MAX_NAME_CHARS]


class TaskSection(Section, frozen=True, kw_only=True):
    """What to train on: either one task, NAME[:key=value,...], see `volery tasks`, or several with weights.

    `held_out` prompts of each are kept for evaluation.
    """

    spec: Annotated[str, Meta(min_length=1)] | None = None
    mixture: Annotated[list[MixtureTask], Meta(max_length=MAX_TASKS)] = []
    held_out: Annotated[int, Meta(ge=0, le=100_000)] = 128

    @property
    def tasks(self) -> list[MixtureTask]:
        """All of them, also when it is one."""
        return self.mixture if self.spec is None else [MixtureTask(spec=self.spec)]


class VerifierMachine(Section, frozen=True, kw_only=True):
    """Verifiers on another machine: a command whose standard input and output reach `volery verifier` there."""

    command: Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1, max_length=64)]
    workers: Annotated[int, Meta(ge=1, le=256)] = 1


class VerifiersSection(Section, frozen=True, kw_only=True):
    """Who computes rewards that are not cheap: processes here, half as many as cores by default, and elsewhere.

    With `workers` 0 and no `machine` the node does it itself, without a time limit.
    """

    workers: Annotated[int, Meta(ge=0, le=256)] | None = None
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    memory_gb: Gigabytes = 4.0
    on_failure: Literal["zero", "drop"] = "zero"
    machine: Annotated[list[VerifierMachine], Meta(max_length=64)] = []


class CurriculumSection(Section, frozen=True, kw_only=True):
    """Which problem of a task comes next, and which groups are trained on, by pass rates; see `learner.curriculum`."""

    order: Literal["shuffled", "easy_first"] = "shuffled"
    low: Share = 0.0
    high: Share = 1.0
    dynamic_sampling: bool = False


Mode = Literal["async", "sequential"]


def mode_of(staleness: int) -> Mode:
    """The mode whose window is S = `staleness`: what is resolved at the door can be read off S again."""
    return "async" if staleness else "sequential"


class LearnSection(Section, frozen=True, kw_only=True):
    """How to train. S = `staleness` and kappa = `publish_every` are counted in training steps.

    `publish_every` 0: chosen, and chosen anew when times change. `max_new_tokens` are those of one turn, of which an
    episode has `max_turns` at most; `max_episode_tokens` count its prompt and answers, too, and unset are as many as
    the model takes.
    `ahead`: batches leased or waiting at most; unset, as many as measurements ask for. In mode "sequential" the file's
    `staleness`, `publish_every` and `ahead` do not count: what `read_swarm_config` returns has 0, 1 and 1.
    `quantized_engines`: whether a node may join whose engine computes with fewer bits than the versions have.
    Beyond the newest `keep_checkpoints`, which restarts go on from, `keep_milestones` stay at most: the first of every
    `keep_every` steps, and the best by evaluation, see `EvaluateSection`.
    """

    steps: Positive
    mode: Mode = "async"
    staleness: Annotated[int, Meta(ge=0, le=1000)] = 3
    publish_every: Annotated[int, Meta(ge=0, le=1000)] = 1
    prompts_per_step: Annotated[int, Meta(ge=1, le=65_536)] = 16
    group_size: Annotated[int, Meta(ge=2, le=MAX_GROUP_SIZE)] = 16
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS)] = 512
    max_turns: Annotated[int, Meta(ge=1, le=MAX_TURNS)] = 16
    max_episode_tokens: Annotated[int, Meta(ge=2, le=MAX_EPISODE_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)] = 1.0
    ahead: Annotated[float, Meta(ge=1, le=64)] | None = None
    lease_s: PositiveFloat = 600.0
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    keep_checkpoints: Annotated[int, Meta(ge=1, le=1000)] = 2
    keep_every: Annotated[int, Meta(ge=0, le=10**9)] = 0
    keep_milestones: Annotated[int, Meta(ge=0, le=1000)] = 4
    quantized_engines: bool = False


class OfflineSection(Section, frozen=True, kw_only=True):
    """Logged completions and preference pairs beside the swarm's rollouts: `share` of each batch is of the file `path`.

    1: all of it, so that nothing is leased; unset: half, where there is a path, and what `read_swarm_config` returns
    says so.
    """

    path: Annotated[str, Meta(min_length=1)] | None = None
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    chat: Literal["auto", "always", "never"] = "auto"

    @property
    def share_in_force(self) -> float:
        """Of each batch, 0 where there are no logs."""
        if self.path is None:
            return 0.0
        return OFFLINE_SHARE if self.share is None else self.share


class TrainerSection(Section, frozen=True, kw_only=True):
    """Hyperparameters of the objective and the optimizer: `learner.trainer_api.requests.Hyperparameters`, as people
    write them.

    `decay_steps` unset: as many as the run has; what `read_swarm_config` returns says how many.
    """

    objective: PresetName = "topr"
    advantage: AdvantageName | None = None
    correction: CorrectionName | None = None
    aggregation: AggregationName | None = None
    clip_low: Annotated[float, Meta(gt=0, le=1)] | None = None
    clip_high: Annotated[float, Meta(gt=0, le=100)] | None = None
    weight_cap: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    kl: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    gae_gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    gae_lambda: Share = 0.95
    value_coefficient: PositiveFloat = 0.1
    value_clip: PositiveFloat = 0.2
    value_learning_rate: PositiveFloat = 1e-4
    dpo_beta: PositiveFloat = 0.1
    learning_rate: PositiveFloat = 1e-6
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    decay_steps: Annotated[int, Meta(ge=0)] | None = None
    decay_floor: Share = 0.1
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.95
    weight_decay: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    grad_clip: PositiveFloat = 1.0
    updates_per_step: Annotated[int, Meta(ge=1, le=1024)] = 1
    max_tokens_per_microbatch: Positive = 16_384
    activation_checkpointing: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    compute_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    compile: bool = False
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    machines: Annotated[int, Meta(ge=1, le=4096)] = 1
    rendezvous: Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)] = ""
    lora_rank: Annotated[int, Meta(ge=0, le=4096)] = 0
    lora_alpha: Annotated[int, Meta(ge=0, le=65_536)] = 0
    lora_targets: Annotated[list[Text], Meta(max_length=64)] = []

    @property
    def advantage_in_force(self) -> AdvantageName:
        """The objective's, unless another was chosen."""
        return self.advantage or PRESETS[self.objective].advantage

    @property
    def pairs_by(self) -> str:
        """The key and value by which the trainer learns from pairs alone; "" when it does not."""
        if self.advantage_in_force != "preference":
            return ""
        return 'advantage = "preference"' if self.advantage else f'objective = "{self.objective}"'


class PlanSection(Section, frozen=True, kw_only=True):
    """Who is on: with `activate` the cheapest peers that keep the learner busy, reviewed every `review_s`; else all."""

    activate: bool = True
    review_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0


class TrustSection(Section, frozen=True, kw_only=True):
    """Whether what peers deliver is audited: their tokens drawn again with the weights they name.

    `floor`: the least share of a peer's groups, however many have passed. `compute_share`: of the time, what audits
    take at most that training does not wait for. They are made on the engine that evaluates, see `EvaluateSection`.
    `arithmetic` "float32": every engine must compute in it, so that audits may be stricter.
    `peer_share`: of what is leased or waits to be trained on, the most that is one peer's, see
    `learner.scheduling.lease_scheduler`.
    """

    audits: bool = True
    arithmetic: Literal["any", "float32"] = "any"
    floor: PositiveShare = 0.03
    compute_share: PositiveShare = 0.25
    peer_share: PositiveShare = 1.0


class EvaluateSection(Section, frozen=True, kw_only=True):
    """How often the held-out prompts are asked, in published versions; 0 is only at the beginning and the end.

    `samples` completions of each beside the greedy one, of which pass@k is estimated for every one of `k`. `device`
    and `kv_cache_gb` are those of the engine that is asked, as in `EngineSection`. `keep_best`: checkpoints of the best
    so many versions by their samples stay, within `[learn] keep_milestones`.
    """

    every_versions: Annotated[int, Meta(ge=0)] = 10
    samples: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = 1
    k: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]], Meta(max_length=16)] = msgspec.field(
        default_factory=lambda: [1]
    )
    device: EngineDevice = "auto"
    kv_cache_gb: Gigabytes | None = None
    keep_best: Annotated[int, Meta(ge=0, le=1000)] = 1


class MetricsSection(Section, frozen=True, kw_only=True):
    """Where metrics go, and how many groups of every training step are kept for `volery show`."""

    sqlite: bool = True
    prometheus: Annotated[str, Meta(max_length=256)] = ""
    tensorboard: bool = False
    wandb: Annotated[str, Meta(max_length=128)] = ""
    wandb_offline: bool = False
    samples: Annotated[int, Meta(ge=0, le=1024)] = 2


class CostSection(Section, frozen=True, kw_only=True):
    """What the report holds costs against, in the currency of `[price]`: a kWh, and a rented machine with its price and
    with the tokens that it generates."""

    per_kwh: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    reference: Text = ""
    reference_per_hour: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    reference_tokens_per_s: PositiveFloat | None = None


class StoreSection(Section, frozen=True, kw_only=True):
    """How much of the disk the learner's published versions may take; by default what the disk holds."""

    quota_gb: Gigabytes | None = None


class SwarmConfig(Section, frozen=True, kw_only=True):
    """`swarm.toml`: everything an operator decides."""

    swarm: SwarmSection
    model: ModelSection
    learn: LearnSection
    task: TaskSection = TaskSection()
    network: NetworkSection = NetworkSection()
    trainer: TrainerSection = TrainerSection()
    verifiers: VerifiersSection = VerifiersSection()
    curriculum: CurriculumSection = CurriculumSection()
    offline: OfflineSection = OfflineSection()
    plan: PlanSection = PlanSection()
    evaluate: EvaluateSection = EvaluateSection()
    trust: TrustSection = TrustSection()
    store: StoreSection = StoreSection()
    metrics: MetricsSection = MetricsSection()
    price: PriceSection = PriceSection()
    cost: CostSection = CostSection()
    energy: EnergySection = EnergySection()

    @property
    def engines(self) -> EngineTerms:
        """Which engines rollouts are taken of."""
        strict = self.trust.arithmetic == "float32"
        return EngineTerms(
            quantized=self.learn.quantized_engines,
            compute_dtype="float32" if strict else None,
            auto_is_it=self.model.weights_dtype == "float32",
        )

    @property
    def offline_rollouts(self) -> int:
        """Completions of each batch that come from logs."""
        whole = self.learn.prompts_per_step * self.learn.group_size
        return round(self.offline.share_in_force * whole)

    def most_milestones(self, *, evaluates: bool) -> int:
        """Checkpoints that may stay beyond the newest, at most; `evaluates`: whether there are held-out prompts."""
        learn = self.learn
        firsts = learn.steps // learn.keep_every if learn.keep_every else 0
        best = self.evaluate.keep_best if evaluates else 0
        return min(learn.keep_milestones, firsts + best)

    @property
    def swarm_rollouts(self) -> int:
        """Rollouts of each batch that the swarm makes: R."""
        return self.learn.prompts_per_step * self.learn.group_size - self.offline_rollouts


def regime(staleness: int) -> str:
    """The mode of a run with its window S."""
    return f"{mode_of(staleness)}, staleness window S = {staleness}" if staleness else "sequential, S = 0"
