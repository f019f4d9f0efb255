"""Declare the operator's file, swarm.toml, as values.

Each section is a class. Below each key stands its only description. `node.config.reference` makes from it what
`volery init` and `--dry-run` print; the tables of the guides are made from it, too. A TOML file shows only the first
sentence. `node.config.loader` reads the files, and checks which keys work together.

Invariants:

- A key has a type, a range and, unless it is required, a default. An unknown key is an error.
- Values are frozen. A component gets the section that it needs, never the whole configuration.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from learner.rollouts.environment import MAX_EPISODE_TOKENS, MAX_TURNS
from learner.rollouts.overlong import BUFFER_SHARE, Overlong, OverlongMode
from learner.rollouts.reward_parts import MAX_NAME_CHARACTERS
from learner.trainer_api.presets import (
    PRESETS,
    AdvantageName,
    AggregationName,
    CorrectionName,
    PresetName,
    SequenceRatioName,
)
from node.config.common import (
    AddressList,
    EnergySection,
    EngineDevice,
    Gigabytes,
    LearnerWebSection,
    Mbit,
    NotifySection,
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
    MAX_STOP_IDS,
    MAX_TASKS_TOLD,
    MAX_TEMPERATURE,
    MAX_TOKEN_ID,
    MIN_TEMPERATURE,
)

GIVE_UP_S = 600.0
"""Seconds that a rollout node goes on while nothing works. That is long enough for another program to leave the GPU, or
for the operator to publish something else, and so short that the person who started the node is still there."""

OFFLINE_SHARE = 0.5
"""Fraction of each batch that comes from logs, if `path` is set and `share` is not."""

MAX_TASKS = MAX_TASKS_TOLD
"""Most tasks of a mixture. Each has held-out prompts of its own to evaluate, and a line of its own in a report."""

MAX_SAMPLES = 1024
"""Most samples of a held-out prompt in one evaluation: nobody reports more than pass@1024."""

MAX_WINDOW = 1000
"""Largest staleness window, in training steps: a run has rarely as many steps."""

KEEP_DAYS = 7.0
"""Default of `keep_days`, in days."""


class SwarmSection(Section, frozen=True, kw_only=True):
    """Name of the swarm, and the directory in which this learner keeps its state."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    """Display name of the swarm, up to 128 characters. Read when the swarm is founded; the signed genesis holds it."""
    state: str = "state"
    """Directory of keys, ledger, weights and checkpoints; back up its operator.key."""
    certificate_days: Annotated[float, Meta(gt=0, le=36_500)] = 90.0
    """Days that a new certificate of the learner's key is valid (up to 36,500); renewed in time."""
    keep_days: Annotated[float, Meta(ge=0, le=36_500)] = KEEP_DAYS
    """Days from the end of a lease until its receipt is packed to an eighth of its size. See
    [ledger](../operate/keys-and-backup.md#the-ledger-and-its-size)."""


class NetworkSection(Section, frozen=True, kw_only=True):
    """Addresses on which the learner listens and which it announces, and limits of its bandwidth."""

    listen: AddressList = msgspec.field(default_factory=lambda: ["/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001"])
    """Addresses to listen on. `volery init` writes a free port. Port 0: any free port, another at each start."""
    announce: AddressList = []
    """Addresses to announce to volunteers, if behind a router: ["/ip4/203.0.113.7/tcp/4001"]."""
    upload_mbit: Mbit | None = None
    """Maximum upload in million bits per second, at least 0.1; unset: no limit. See
    [caps](../operate/network-and-invites.md#bandwidth-limits)."""
    download_mbit: Mbit | None = None
    """Maximum download in million bits per second, at least 0.1; unset: no limit."""
    relay_mbit: Mbit | None = None
    """Maximum Mbit/s to carry between nodes that cannot connect directly; unset: nothing."""
    map_port: bool = False
    """Whether to ask a home router to forward the port (PCP, NAT-PMP, UPnP)."""
    join_token: Annotated[str, Meta(max_length=128)] = ""
    """Password in the invite, up to 128 characters; empty: everybody with the invite may join."""
    heartbeat_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    """Seconds between heartbeats of a node (0.1 to 600); after four missed, others get its leases."""


class ModelSection(Section, frozen=True, kw_only=True):
    """The policy to train. Its prompt format and tokens are explained under [the model's
    ways](../operate/models.md#how-prompts-are-written)."""

    directory: Annotated[str, Meta(examples=["model"])]
    """Hugging Face directory of a causal LM: config.json, *.safetensors, tokenizer.json. Fixed for the run."""
    weights_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the published weights: "bfloat16" or "float32"."""
    chat_template: Annotated[str, Meta(min_length=1, examples=["template.jinja"])] | None = None
    """Jinja file in place of the model's chat template, or for a base model. Fixed for the run."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template, such as { enable_thinking = false }. Fixed for the run."""
    system_prompt: str = ""
    """System message of every conversation that has none; empty: none is added. Fixed for the run."""
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_STOP_IDS)] = []
    """Texts of single tokens that end a completion, besides the model's own; up to 64. Fixed for the run."""
    stop_ids: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(max_length=MAX_STOP_IDS)] = []
    """Ids of tokens that end a completion, besides `stop` and the model's own; up to 64. Fixed for the run."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "json"] = "auto"
    """Format of tool calls; "auto": chosen by the chat template. Fixed for the run."""


class MixtureTask(Section, frozen=True, kw_only=True):
    """One task of a mixture. Its share of the prompts is its weight divided by the sum of all weights. Leases and
    reports use `name`; by default it is the beginning of the spec, up to the first colon."""

    spec: Annotated[str, Meta(min_length=1)]
    weight: PositiveFloat = 1.0
    name: Text = ""

    @property
    def title(self) -> str:
        return self.name or self.spec.partition(":")[0][:MAX_NAME_CHARS]


class TaskSection(Section, frozen=True, kw_only=True):
    """The task to train on, or several tasks with weights."""

    spec: Annotated[str, Meta(min_length=1, examples=["reverse:letters=6"])] | None = None
    """Task with its options, such as "jsonl:data/train.jsonl:match=numeric"; see `volery tasks`. Fixed for the run."""
    mixture: Annotated[list[MixtureTask], Meta(max_length=MAX_TASKS)] = []
    """Up to 64 tasks in place of `spec`: [{ spec = "sort", weight = 3.0 }, { spec = "reverse" }]."""
    held_out: Annotated[int, Meta(ge=0, le=100_000)] = 128
    """Prompts of each task that are kept for evaluation and never trained on; 0: no evaluation."""

    @property
    def tasks(self) -> list[MixtureTask]:
        """Return all tasks of the mixture, or the single task in a list."""
        return self.mixture if self.spec is None else [MixtureTask(spec=self.spec)]


class VerifierMachine(Section, frozen=True, kw_only=True):
    """Verifiers on another machine: a command whose standard input and output reach `volery verifier` there."""

    command: Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1, max_length=64)]
    workers: Annotated[int, Meta(ge=1, le=256)] = 1


class VerifiersSection(Section, frozen=True, kw_only=True):
    """Processes that compute rewards. Only rewards that take time need them. The node itself computes rewards that are
    always cheap: those of generated tasks, and of data files unless `match` is `math`, `judge` or `service`. See
    [who computes rewards](../operate/rewards.md#verifiers)."""

    workers: Annotated[int, Meta(ge=0, le=256, examples=[4])] | None = None
    """Verifier processes on this machine (0 to 256); unset: half the cores, at most 8; 0: none."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    """Seconds for a completion or an environment's turn (at least 0.1); then its process is ended."""
    memory_gb: Gigabytes = 4.0
    """Maximum address space of each process in GB (10^9 bytes); Linux only."""
    on_failure: Literal["zero", "drop"] = "zero"
    """Result if no verifier can judge a completion: reward "zero", or "drop" its whole group."""
    environments: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Maximum live environments per process (1 to 4096); the least recently used is closed first."""
    environment_idle_s: Annotated[float, Meta(ge=1.0, le=86_400)] = 600.0
    """Seconds without a request after which an environment is closed (1 to 86,400)."""
    episodes_at_once: Annotated[int, Meta(ge=1, le=256)] = 16
    """Maximum environments, or async rewards, at work at a time in each process (1 to 256)."""
    machine: Annotated[list[VerifierMachine], Meta(max_length=64)] = []
    """Remote verifiers: [{ command = ["ssh", "HOST", "volery", "verifier"], workers = 8 }]."""


Address = Annotated[str, Meta(max_length=4096)]


class JudgeSection(Section, frozen=True, kw_only=True):
    """A language model that scores completions, for tasks with `match=judge`. See
    [judges](../operate/rewards.md#judges)."""

    url: Address = ""
    """Base URL of an OpenAI-compatible server: "http://127.0.0.1:8000/v1"; empty: no judge."""
    model: Annotated[str, Meta(max_length=4096)] = ""
    """Name of the model on that server."""
    prompt: Annotated[str, Meta(max_length=65_536)] = ""
    """Prompt, or a file with it, with {question}, {answer}, {response}; empty: a plain prompt."""
    scale: Annotated[list[float], Meta(min_length=2, max_length=2)] = msgspec.field(default_factory=lambda: [0.0, 10.0])
    """Worst and best score, which become the rewards 0 and 1."""
    fields: dict[str, Any] = msgspec.field(default_factory=lambda: {"temperature": 0.0, "max_tokens": 1024})
    """Further fields of each request."""
    api_key_env: Annotated[str, Meta(max_length=256)] = ""
    """Environment variable with the API key, where rewards are computed; empty: no key."""
    proxy: Address = ""
    """URL of an HTTP proxy; empty: none. Proxies named by the environment are not used."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 25.0
    """Seconds for a score, retries included; at least 0.1 and less than [verifiers] timeout_s."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 4
    """Maximum retries of a failed request (0 to 100)."""
    at_once: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Maximum simultaneous requests of each verifier process (1 to 1024)."""
    cache_entries: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    """Number of scores that each verifier process remembers (0 to 10,000,000)."""


class RewardServiceSection(Section, frozen=True, kw_only=True):
    """A service of yours that rewards completions, for tasks with `match=service`. See
    [reward services](../operate/rewards.md#reward-services)."""

    url: Address = ""
    """URL to which completions are posted: "http://127.0.0.1:9000/rewards"; empty: no service."""
    batch: Annotated[int, Meta(ge=1, le=256)] = 16
    """Maximum completions in a request (1 to 256); `episodes_at_once` also limits it."""
    batch_wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.02
    """Seconds that the first completion of a request waits for others (0 to 60)."""
    weights: dict[Annotated[str, Meta(min_length=1, max_length=64)], float] = {}
    """Weights of named rewards, such as { correct = 1.0, format = 0.2 }; a missing weight is 1."""
    api_key_env: Annotated[str, Meta(max_length=256)] = ""
    """Environment variable with the API key, where rewards are computed; empty: no key."""
    proxy: Address = ""
    """URL of an HTTP proxy; empty: none. Proxies named by the environment are not used."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 25.0
    """Seconds for a reward, retries included; at least 0.1 and less than [verifiers] timeout_s."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 4
    """Maximum retries of a failed request (0 to 100)."""
    at_once: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Maximum simultaneous requests of each verifier process (1 to 1024)."""
    cache_entries: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    """Number of answers that each verifier process remembers (0 to 10,000,000)."""


class CurriculumSection(Section, frozen=True, kw_only=True):
    """Order of the problems, and groups that are left out of training. See
    [which problem next](../operate/tasks.md#which-problem-comes-next)."""

    order: Literal["shuffled", "easy_first"] = "shuffled"
    """Order of a finite task's problems in each pass; "easy_first": by descending pass rate."""
    min_pass_rate: Share = 0.0
    """Pass rate (0 to 1) at or below which a problem sits out 1 pass, then 3 at a time."""
    max_pass_rate: Share = 1.0
    """Pass rate (0 to 1) at or above which a problem sits out 1, 3, 7, then 15 passes."""
    dynamic_sampling: bool = False
    """Whether batches leave out groups whose rewards are all equal (DAPO). Peers get credit for them all the same."""
    decided_by: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] = ""
    """Named reward that decides pass rates, scores and dynamic sampling; empty: the sum of all."""


Mode = Literal["async", "sequential"]


def mode_of(staleness: int) -> Mode:
    """Return the mode whose window is S = `staleness`. The loader sets S to 0 for "sequential", so S tells the mode."""
    return "async" if staleness else "sequential"


EngineFormats = Annotated[list[Literal["stored", "int8", "int4", "fp8"]], Meta(min_length=1, max_length=16)]


class LearnSection(Section, frozen=True, kw_only=True):
    """Length of the run, size of the batches, and age of the rollouts."""

    steps: Annotated[Positive, Meta(examples=[1000])]
    """Training steps until the run ends. Raise it and start again to train on."""
    mode: Mode = "async"
    """Mode: "async" trains while peers generate; "sequential" takes turns: S = 0, kappa = 1."""
    staleness: Annotated[int, Meta(ge=0, le=MAX_WINDOW)] = 3
    """S: maximum training steps that a rollout may lag behind the policy; async: 1 to 1000."""
    publish_every: Annotated[int, Meta(ge=0, le=1000)] = 1
    """kappa: training steps between published versions, at most S; 0: chosen by measurements."""
    prompts_per_step: Annotated[int, Meta(ge=1, le=65_536)] = 16
    """Groups that a training step consumes (1 to 65,536)."""
    group_size: Annotated[int, Meta(ge=2, le=MAX_GROUP_SIZE)] = 16
    """Completions of one prompt (2 to 1024); a step has prompts_per_step * group_size rollouts."""
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS)] = 512
    """Maximum tokens of one completion (1 to 131,072)."""
    max_turns: Annotated[int, Meta(ge=1, le=MAX_TURNS)] = 16
    """Maximum turns of an episode (1 to 64); max_new_tokens is the limit of each."""
    max_episode_tokens: Annotated[int, Meta(ge=2, le=MAX_EPISODE_TOKENS, examples=[4096])] | None = None
    """Maximum tokens of an episode: prompt, answers and turns; unset: as many as the model takes."""
    overlong: OverlongMode = "task"
    """Treatment of completions that were cut off: the "task" decides, or "zero", "mask", "soft". See
    [overlong completions](../operate/training-settings.md#completions-that-were-cut-off)."""
    overlong_buffer: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS, examples=[4096])] | None = None
    """Last tokens of max_new_tokens, in which the penalty of "soft" grows; unset: a fifth."""
    overlong_penalty: PositiveFloat = 1.0
    """Penalty that "soft" subtracts from the reward of a completion that was cut off."""
    temperature: Annotated[float, Meta(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)] = 1.0
    """Sampling temperature, up to 100. There is no top-p or top-k: engines sample from the whole distribution."""
    max_batches_ahead: Annotated[float, Meta(ge=1, le=64, examples=[2.0])] | None = None
    """Maximum batches leased or waiting (1 to 64); unset: as many as keep the peers busy."""
    longest_first: Annotated[bool, Meta(examples=[True])] | None = None
    """Whether to lease prompts with long completions first; unset: only if staleness is 0."""
    lease_timeout_s: PositiveFloat = 600.0
    """Seconds from the grant of a lease until its records must be delivered."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """Seed of the trainer and of the order of problems. Fixed for the run: a start with another is refused."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads of the trainer; 0: half the cores. Training is bit-identical only with the same number."""
    keep_checkpoints: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Number of newest checkpoints that are kept, to resume after a crash (1 to 1000)."""
    keep_every: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Training steps between milestones, checkpoints that are kept to go back to; 0: none."""
    keep_milestones: Annotated[int, Meta(ge=0, le=1000)] = 4
    """Maximum number of milestones. The best by evaluation are kept first, then the newest of `keep_every`."""
    engine_formats: EngineFormats = msgspec.field(default_factory=lambda: ["stored"])
    """Formats in which engines may hold weights: "stored", "int8", "int4"; without audits "fp8"."""

    @property
    def leases_longest_first(self) -> bool:
        """Return whether prompts with long completions are leased first. With a staleness window the learner seldom
        waits for the last completion, and the order would only make a step longer (`benchmarks/skew.py`)."""
        return self.staleness == 0 if self.longest_first is None else self.longest_first

    @property
    def overlong_in_force(self) -> Overlong:
        """Return how training treats completions that were cut off."""
        buffer = self.overlong_buffer or max(1, round(BUFFER_SHARE * self.max_new_tokens))
        return Overlong(mode=self.overlong, budget=self.max_new_tokens, buffer=buffer, penalty=self.overlong_penalty)


class OfflineSection(Section, frozen=True, kw_only=True):
    """Logged completions and preference pairs, besides the swarm's rollouts. See
    [logs](../operate/tasks.md#logs-of-completions-and-preference-pairs)."""

    path: Annotated[str, Meta(min_length=1, examples=["logs.jsonl"])] | None = None
    """File of logged completions with rewards, or of preference pairs; unset: none."""
    share: Annotated[float, Meta(gt=0, le=1, examples=[OFFLINE_SHARE])] | None = None
    """Fraction of each batch from the file (up to 1); unset: 0.5; 1.0: all, and nothing is leased."""
    chat: Literal["auto", "always", "never"] = "auto"
    """Use of the model's chat template for prompts: "auto" (if it has one), "always", "never"."""

    @property
    def share_in_force(self) -> float:
        """Return the fraction of each batch that comes from logs; 0 without logs."""
        if self.path is None:
            return 0.0
        return OFFLINE_SHARE if self.share is None else self.share


class TrainerSection(Section, frozen=True, kw_only=True):
    """The objective, the optimizer, and the machines that train."""

    objective: PresetName = "topr"
    """Loss that a step minimises, such as "grpo", "dapo", "ppo": docs/explain/objectives.md."""
    advantage: Annotated[AdvantageName, Meta(examples=["group_mean_std"])] | None = None
    """Advantage; unset: the objective's."""
    correction: Annotated[CorrectionName, Meta(examples=["masked_weight"])] | None = None
    """Importance correction; unset: the objective's."""
    aggregation: Annotated[AggregationName, Meta(examples=["per_token"])] | None = None
    """Aggregation of the losses of tokens; unset: the objective's."""
    clip_low: Annotated[float, Meta(gt=0, le=1, examples=[0.2])] | None = None
    """Lower clip bound: importance ratios are held above 1 - clip_low; unset: the objective's."""
    clip_high: Annotated[float, Meta(gt=0, le=100, examples=[0.28])] | None = None
    """Upper clip bound: importance ratios are held below 1 + clip_high; unset: the objective's."""
    weight_cap: Annotated[float, Meta(gt=0, le=1e6, examples=[2.0])] | None = None
    """Maximum weight of a token; unset: the objective's. Set 3 if peers are strangers."""
    sequence_mask: Annotated[SequenceRatioName, Meta(examples=["geometric"])] | None = None
    """Mask over sequences, by the "product" or "geometric" mean of their ratios; unset: none."""
    mask_low: Annotated[float, Meta(ge=0, le=1, examples=[0.9])] | None = None
    """Smallest ratio of a sequence that is trained on; unset: 0 ("product"), 0.9 ("geometric")."""
    mask_high: Annotated[float, Meta(gt=1, le=1e6, examples=[1.1])] | None = None
    """Largest ratio of a sequence that is trained on; unset: 3 ("product"), 1.1 ("geometric")."""
    kl_coefficient: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Weight of the KL to the model that the run began with (0 or more)."""
    teacher_coefficient: Annotated[float, Meta(ge=0, le=1e6, examples=[1.0])] | None = None
    """Weight of the teacher's score of each token, with `[distill]`; unset: the objective's."""
    gae_gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Discount of later rewards (0 < x <= 1), for the advantage "gae" (objective "ppo")."""
    gae_lambda: Share = 0.95
    """Trade-off between variance and the critic's bias (0 to 1), for "gae"."""
    value_coefficient: PositiveFloat = 0.1
    """Weight of the critic's error in the loss."""
    value_clip: PositiveFloat = 0.2
    """Largest change of a value in one update that still lowers the critic's error."""
    value_learning_rate: PositiveFloat = 1e-4
    """Learning rate of the critic's head."""
    dpo_beta: PositiveFloat = 0.1
    """Strength with which "dpo" keeps to the model that the run began with."""
    learning_rate: PositiveFloat = 1e-6
    """Learning rate of AdamW."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    """Training steps over which the learning rate rises linearly; 0: none."""
    decay_steps: Annotated[int, Meta(ge=0, examples=[1000])] | None = None
    """Steps over which the learning rate falls linearly; unset: the whole run; 0: it does not fall."""
    decay_floor: Share = 0.1
    """Fraction of the learning rate to which it falls, and at which it stays (0 to 1)."""
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    """Momentum of AdamW (0 <= x < 1); below the usual 0.9, as stale gradients come late already."""
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.95
    """Decay of AdamW's second moment (0 <= x < 1)."""
    weight_decay: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Weight decay of AdamW (0 or more)."""
    grad_clip: PositiveFloat = 1.0
    """Norm at which an update's gradient is clipped."""
    updates_per_step: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Optimizer updates in one step, each on a part of the batch; 1 to `prompts_per_step`."""
    max_tokens_per_microbatch: Positive = 16_384
    """Positions, padding included, in one forward pass of one rank. They limit memory, and do not change results."""
    activation_checkpointing: bool = False
    """Whether to compute activations twice, which saves memory and costs a third more work."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device for training: "cpu", "cuda"; "auto": a GPU if there is one."""
    compute_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Number format of the layers: "bfloat16", "float32"; "auto": bfloat16 on a GPU, else float32."""
    compile: bool = False
    """Whether torch compiles the layers: a minute at the start, then faster steps on a GPU."""
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Processes on each machine that share the model (FSDP2), one per GPU. See [several
    GPUs](../operate/scaling.md#several-gpus)."""
    machines: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Machines that share the model (1 to 4096). See [several machines](../operate/scaling.md#several-machines)."""
    rendezvous: Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)] = ""
    """Address of this machine for the others, as "HOST:PORT", if machines > 1. The port must be free."""
    router_replay: bool = False
    """Whether a mixture of experts trains with its engines' experts: docs/explain/objectives.md."""
    lora_rank: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Rank of a low-rank adapter, the only part that is then trained; 0: no adapter. See
    [adapters](../operate/models.md#adapters)."""
    lora_alpha: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """Numerator of the adapter's scale, lora_alpha / lora_rank; 0: twice the rank."""
    lora_targets: Annotated[list[Text], Meta(max_length=64)] = []
    """Linear layers with an adapter, by module: ["q_proj", "v_proj"]; empty: all but the head."""

    @property
    def advantage_in_force(self) -> AdvantageName:
        """Return the advantage that was chosen, else the objective's."""
        return self.advantage or PRESETS[self.objective].advantage

    @property
    def teacher_in_force(self) -> float:
        """Return the weight of the teacher's scores: the one in the file, else the objective's."""
        own = PRESETS[self.objective].teacher
        return own if self.teacher_coefficient is None else self.teacher_coefficient

    @property
    def pairs_by(self) -> str:
        """Return the key and value that make the trainer learn from pairs only; "" if it does not."""
        if self.advantage_in_force != "preference":
            return ""
        return 'advantage = "preference"' if self.advantage else f'objective = "{self.objective}"'


class DistillSection(Section, frozen=True, kw_only=True):
    """A larger model that scores the policy's completions, token by token. See
    [distillation.md](../operate/distillation.md)."""

    teacher: Annotated[str, Meta(min_length=1, examples=["teacher"])] | None = None
    """Hugging Face directory of the teacher, with the policy's vocabulary; unset: no teacher."""
    device: EngineDevice = "auto"
    """Device of the teacher: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA, then MPS, then the CPU."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the teacher's layers; "auto": float32 on a CPU, as stored elsewhere."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Threads of the teacher's process on a CPU (1 to 1024)."""
    nodes: bool = False
    """Whether nodes with the same teacher score; the learner's copy then audits them."""


class ProvisioningSection(Section, frozen=True, kw_only=True):
    """Choice of the active peers. See [planning again](../explain/provisioning.md#planning-again)."""

    select_peers: bool = True
    """Whether to activate only the cheapest peers that keep the learner busy; else all."""
    review_interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    """Seconds between reviews (0.1 to 3600), besides one whenever a peer joins or leaves."""


class TrustSection(Section, frozen=True, kw_only=True):
    """Audits of what peers deliver. The evaluation engine makes them, one request at a time; its device and memory are
    those of `[evaluate]`. A newcomer's groups wait for their audits, so a long evaluation delays new peers."""

    audits: bool = True
    """Whether to regenerate a share of all completions and ban peers that fabricate tokens."""
    required_compute_dtype: Literal["any", "float32"] = "any"
    """Number format of all engines; "float32" makes audits eight times as strict."""
    min_audit_share: PositiveShare = 0.03
    """Minimum fraction of a peer's groups to audit (up to 1); all of a newcomer's first 8 are."""
    max_audit_compute_share: PositiveShare = 0.25
    """Maximum fraction of time for audits and selection checks that do not block training."""
    max_peer_share: PositiveShare = 1.0
    """Maximum fraction of the rollouts leased or waiting that one peer may have; 1.0: no limit."""


class EvaluateSection(Section, frozen=True, kw_only=True):
    """Evaluations on held-out prompts, and the engine for them and for audits."""

    every_versions: Annotated[int, Meta(ge=0)] = 10
    """Published versions between two evaluations; 0: only the first and the last."""
    samples: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = 1
    """Sampled completions of each held-out prompt (1 to 1024), besides the greedy one."""
    pass_at_k: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]], Meta(max_length=16)] = msgspec.field(
        default_factory=lambda: [1]
    )
    """Values of k for which pass@k is estimated, up to `samples`. Twice as many samples make it steadier."""
    device: EngineDevice = "auto"
    """Device of the engine: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA, then MPS, then the CPU."""
    kv_cache_gb: Gigabytes | None = None
    """Maximum GB (10^9 bytes) for a batch's keys and values; unset: half of a GPU's free memory."""
    keep_best: Annotated[int, Meta(ge=0, le=1000)] = 1
    """Number of best versions whose checkpoints are kept to go back to; 0: none."""


class MetricsSection(Section, frozen=True, kw_only=True):
    """Destinations of the metrics. See [watching a run](../operate/watching.md#which-figures-to-watch) and
    [metrics.md](../reference/metrics.md)."""

    sqlite: bool = True
    """Whether to write every step's metrics to metrics.sqlite in the state directory."""
    prometheus: Annotated[str, Meta(max_length=256)] = ""
    """Address that Prometheus scrapes, as "127.0.0.1:9464"; empty: none. A port alone is on 127.0.0.1."""
    tensorboard: bool = False
    """Whether to write event files below state/tensorboard/. Needs `pip install 'volery[tensorboard]'`."""
    wandb: Annotated[str, Meta(max_length=128)] = ""
    """Weights & Biases project for the metrics; empty: none. Needs `pip install 'volery[wandb]'`."""
    wandb_offline: bool = False
    """Whether to write below state/wandb/, for `wandb sync`, instead of sending."""
    samples: Annotated[int, Meta(ge=0, le=1024)] = 2
    """Groups of each training step that are kept for `volery samples` (0 to 1024)."""


LearnerNotice = Literal["alarm", "ban", "standstill", "nodes", "certificate", "trouble", "end"]
"""Kinds of notices of a learner; `node.notices.learner_notices` names the events of each."""


class LearnerNotifySection(NotifySection, frozen=True, kw_only=True):
    """Where to post notices, so that you hear of what happens without watching. See
    [notices](../operate/watching.md#notices)."""

    events: Annotated[list[LearnerNotice], Meta(max_length=64)] = msgspec.field(
        default_factory=lambda: list(get_args(LearnerNotice))
    )
    """Kinds of notices to post. See [notices](../operate/watching.md#notices)."""


class CostSection(Section, frozen=True, kw_only=True):
    """Prices with which the report compares, in the currency of `[price]`. See
    [costs](../operate/costs-and-planning.md#what-things-cost)."""

    per_kwh: Annotated[float, Meta(ge=0, le=1e6, examples=[0.3])] | None = None
    """Price of a kWh; with it the report shows what the energy of all machines costs."""
    reference: Text = ""
    """Name of a rented machine to compare peers with."""
    reference_per_hour: Annotated[float, Meta(gt=0, le=1e6, examples=[0.4])] | None = None
    """Price of that machine for an hour; unset: no comparison."""
    reference_tokens_per_s: Annotated[PositiveFloat, Meta(examples=[900.0])] | None = None
    """Tokens of your model that the machine generates in a second."""


class StoreSection(Section, frozen=True, kw_only=True):
    """Disk space for published versions. See [the state
    directory](../operate/keys-and-backup.md#the-state-directory)."""

    quota_gb: Annotated[Gigabytes, Meta(examples=[100.0])] | None = None
    """Maximum GB (10^9 bytes) of versions and their patches; unset: as much as the disk holds."""


class SwarmConfig(Section, frozen=True, kw_only=True):
    """Everything that an operator decides: `swarm.toml`."""

    swarm: SwarmSection
    network: NetworkSection = NetworkSection()
    model: ModelSection
    task: TaskSection = TaskSection()
    verifiers: VerifiersSection = VerifiersSection()
    judge: JudgeSection = JudgeSection()
    reward_service: RewardServiceSection = RewardServiceSection()
    curriculum: CurriculumSection = CurriculumSection()
    learn: LearnSection
    trainer: TrainerSection = TrainerSection()
    offline: OfflineSection = OfflineSection()
    distill: DistillSection = DistillSection()
    provisioning: ProvisioningSection = ProvisioningSection()
    evaluate: EvaluateSection = EvaluateSection()
    trust: TrustSection = TrustSection()
    metrics: MetricsSection = MetricsSection()
    web: LearnerWebSection = LearnerWebSection()
    notify: LearnerNotifySection = LearnerNotifySection()
    store: StoreSection = StoreSection()
    price: PriceSection = PriceSection()
    cost: CostSection = CostSection()
    energy: EnergySection = EnergySection()

    @property
    def engines(self) -> EngineTerms:
        """Return which engines may generate rollouts for the swarm."""
        strict = self.trust.required_compute_dtype == "float32"
        return EngineTerms(
            formats=tuple(dict.fromkeys(self.learn.engine_formats)),
            compute_dtype="float32" if strict else None,
            auto_is_it=self.model.weights_dtype == "float32",
            experts=self.trainer.router_replay,
        )

    @property
    def offline_rollouts(self) -> int:
        """Return the number of completions of each batch that come from logs."""
        whole = self.learn.prompts_per_step * self.learn.group_size
        return round(self.offline.share_in_force * whole)

    def most_milestones(self, *, evaluates: bool) -> int:
        """Return the most checkpoints that may stay besides the newest. `evaluates`: there are held-out prompts."""
        learn = self.learn
        firsts = learn.steps // learn.keep_every if learn.keep_every else 0
        best = self.evaluate.keep_best if evaluates else 0
        return min(learn.keep_milestones, firsts + best)

    @property
    def swarm_rollouts(self) -> int:
        """Return R, the number of rollouts of each batch that the swarm generates."""
        return self.learn.prompts_per_step * self.learn.group_size - self.offline_rollouts


def regime(staleness: int) -> str:
    """Return the mode of a run in words, with its window S = `staleness`."""
    return f"{mode_of(staleness)}, staleness window S = {staleness}" if staleness else "sequential, S = 0"
