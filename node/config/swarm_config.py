"""The operator's file, swarm.toml, as values.

One class for each section. Below each key stands its one description, from which `node.config.reference` writes what
`volery init` and `--dry-run` print, and the tables of the guides; a file has room for its first sentence.
`node.config.loader` reads the files, and asks what must fit together.

Invariants:
- A key has a type, a range and, unless it is required, a default; an unknown one is an error.
- Values are frozen; components get the section they need, never the whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
    MAX_STOP_IDS,
    MAX_TASKS_TOLD,
    MAX_TEMPERATURE,
    MAX_TOKEN_ID,
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


KEEP_DAYS = 7.0
"""Unless the operator says otherwise."""


class SwarmSection(Section, frozen=True, kw_only=True):
    """Who the swarm is, and where this learner keeps its state."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]
    """What people call the swarm. Read when the swarm is founded; it is in the signed genesis."""
    state: str = "state"
    """Directory of keys, ledger, weights and checkpoints; back up its operator.key."""
    certificate_days: Annotated[float, Meta(gt=0, le=36_500)] = 90.0
    """Days that a new certificate for the learner's key lasts; it is renewed in time."""
    keep_days: Annotated[float, Meta(ge=0, le=36_500)] = KEEP_DAYS
    """Days after the end of a lease until its receipt is packed to an eighth. See [ledger](#the-ledger)."""


class NetworkSection(Section, frozen=True, kw_only=True):
    """Where the learner listens, what it tells others, and how much it sends and receives."""

    listen: AddressList = msgspec.field(default_factory=lambda: ["/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001"])
    """Addresses to listen on. `volery init` writes a port that was free. Port 0 takes any, another at each start."""
    announce: AddressList = []
    """Addresses to tell volunteers, behind a router: ["/ip4/203.0.113.7/tcp/4001"]."""
    upload_mbit: Mbit | None = None
    """Maximum million bits per second that the learner sends; unset: no cap. At least 0.1. See [caps](#caps)."""
    download_mbit: Mbit | None = None
    """The same for what it receives."""
    relay_mbit: Mbit | None = None
    """Maximum million bits per second carried between nodes that cannot meet; unset: nothing."""
    map_port: bool = False
    """Whether a home router is asked to pass the port on (PCP, NAT-PMP, UPnP)."""
    join_token: Annotated[str, Meta(max_length=128)] = ""
    """A password that the invite carries; empty admits everybody who has the invite."""
    heartbeat_s: Annotated[float, Meta(ge=0.1, le=600)] = 5.0
    """Seconds between a node's signs of life; after four without one its leases go to others."""


class ModelSection(Section, frozen=True, kw_only=True):
    """The policy to train. How it is spoken to is told under [the model's ways](#the-models-ways)."""

    directory: Annotated[str, Meta(examples=["model"])]
    """A Hugging Face causal LM directory: config.json, *.safetensors, tokenizer.json. Fixed for the run."""
    weights_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """What is published to the peers: "bfloat16" or "float32"."""
    chat_template: Annotated[str, Meta(min_length=1, examples=["template.jinja"])] | None = None
    """A Jinja file, instead of the model's own chat template or for a base model. Fixed for the run."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template, as { enable_thinking = false }. Fixed for the run."""
    system_prompt: str = ""
    """Begins every conversation that has no system message; empty: none. Fixed for the run."""
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=MAX_STOP_IDS)] = []
    """Tokens, as text, that end a completion, beside the model's own. Fixed for the run."""
    stop_ids: Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(max_length=MAX_STOP_IDS)] = []
    """The same as token ids. Fixed for the run."""
    tool_format: Literal["auto", "hermes", "llama3", "mistral", "json"] = "auto"
    """How tools are called: "auto" goes by the chat template. Fixed for the run."""


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
    """What to train on: one task, or several with weights."""

    spec: Annotated[str, Meta(min_length=1, examples=["reverse:letters=6"])] | None = None
    """See `volery tasks`, for example "jsonl:data/train.jsonl:match=numeric". Fixed for the run."""
    mixture: Annotated[list[MixtureTask], Meta(max_length=MAX_TASKS)] = []
    """Several tasks in place of `spec`: [{ spec = "sort", weight = 3.0 }, { spec = "reverse" }]."""
    held_out: Annotated[int, Meta(ge=0, le=100_000)] = 128
    """Prompts of each task kept for evaluation, never trained on; 0 evaluates nothing."""

    @property
    def tasks(self) -> list[MixtureTask]:
        """All of them, also when it is one."""
        return self.mixture if self.spec is None else [MixtureTask(spec=self.spec)]


class VerifierMachine(Section, frozen=True, kw_only=True):
    """Verifiers on another machine: a command whose standard input and output reach `volery verifier` there."""

    command: Annotated[list[Annotated[str, Meta(min_length=1, max_length=4096)]], Meta(min_length=1, max_length=64)]
    workers: Annotated[int, Meta(ge=1, le=256)] = 1


class VerifiersSection(Section, frozen=True, kw_only=True):
    """Who computes rewards that take time. Tasks that are always cheap (the built-in ones, and data files unless
    `match` is `math`, `judge` or `service`) are asked in the node, and need none of this. See
    [who computes rewards](tasks.md#who-computes-rewards)."""

    workers: Annotated[int, Meta(ge=0, le=256, examples=[4])] | None = None
    """Verifier processes here; unset: half as many as cores, at most 8; 0: none."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 30.0
    """Seconds for one completion, or one turn of an environment; then its process is ended."""
    memory_gb: Gigabytes = 4.0
    """Address space of each process in GB (10^9 bytes), on Linux."""
    on_failure: Literal["zero", "drop"] = "zero"
    """What counts for a completion that cannot be judged; "drop" leaves its whole group out."""
    environments: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Live environments in each process at most; the one not used longest is closed first."""
    environment_idle_s: Annotated[float, Meta(ge=1.0, le=86_400)] = 600.0
    """Seconds after which an environment that nobody asked anything is closed."""
    episodes_at_once: Annotated[int, Meta(ge=1, le=256)] = 16
    """Environments, or async rewards, at work at a time in each process: so many may wait."""
    machine: Annotated[list[VerifierMachine], Meta(max_length=64)] = []
    """Verifiers elsewhere: [{ command = ["ssh", "HOST", "volery", "verifier"], workers = 8 }]."""


Address = Annotated[str, Meta(max_length=4096)]


class JudgeSection(Section, frozen=True, kw_only=True):
    """A language model that says what completions are worth, for tasks with `match=judge`. See
    [judges](tasks.md#judges)."""

    url: Address = ""
    """Where it is, as OpenAI's clients take it: "http://127.0.0.1:8000/v1"; empty: no judge."""
    model: Annotated[str, Meta(max_length=4096)] = ""
    """The name by which the server knows it."""
    prompt: Annotated[str, Meta(max_length=65_536)] = ""
    """What it reads, a file or a text with {question}, {answer}, {response}; empty: a plain one."""
    scale: Annotated[list[float], Meta(min_length=2, max_length=2)] = msgspec.field(default_factory=lambda: [0.0, 10.0])
    """The worst score and the best: rewards 0 and 1."""
    fields: dict[str, Any] = msgspec.field(default_factory=lambda: {"temperature": 0.0, "max_tokens": 1024})
    """More fields of each request."""
    api_key_env: Annotated[str, Meta(max_length=256)] = ""
    """The environment variable with its key, where rewards are computed; empty: no key."""
    proxy: Address = ""
    """An HTTP proxy on the way; those of the environment are not used."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 25.0
    """Seconds for a verdict, retries included; less than [verifiers] timeout_s."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 4
    """How often a question is asked again that failed."""
    at_once: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Requests at a time from each verifier process."""
    cache_entries: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    """Verdicts that each verifier process remembers."""


class RewardServiceSection(Section, frozen=True, kw_only=True):
    """A service of yours that says what completions are worth, for tasks with `match=service`. See
    [reward services](tasks.md#reward-services)."""

    url: Address = ""
    """Where items are posted: "http://127.0.0.1:9000/rewards"; empty: no service."""
    batch: Annotated[int, Meta(ge=1, le=256)] = 16
    """Completions in a request at most; no more than `episodes_at_once` come together."""
    batch_wait_s: Annotated[float, Meta(ge=0, le=60)] = 0.02
    """Seconds that the first of a request waits for others."""
    weights: dict[Annotated[str, Meta(min_length=1, max_length=64)], float] = {}
    """Weights of rewards with names, as { correct = 1.0, format = 0.2 }; one that is missing is 1."""
    api_key_env: Annotated[str, Meta(max_length=256)] = ""
    """The environment variable with its key, where rewards are computed; empty: no key."""
    proxy: Address = ""
    """An HTTP proxy on the way; those of the environment are not used."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=86_400)] = 25.0
    """Seconds for a reward, retries included; less than [verifiers] timeout_s."""
    retries: Annotated[int, Meta(ge=0, le=100)] = 4
    """How often a request is sent again that failed."""
    at_once: Annotated[int, Meta(ge=1, le=1024)] = 16
    """Requests at a time from each verifier process."""
    cache_entries: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    """Answers that each verifier process remembers."""


class CurriculumSection(Section, frozen=True, kw_only=True):
    """Which problem comes next, and which groups are trained on. See
    [which problem next](tasks.md#which-problem-next)."""

    order: Literal["shuffled", "easy_first"] = "shuffled"
    """Order of a finite task's problems in each pass; "easy_first": by descending pass rate."""
    min_pass_rate: Share = 0.0
    """Problems with a pass rate at or below this sit out 1 pass, then 3 at a time."""
    max_pass_rate: Share = 1.0
    """Problems with a pass rate at or above this sit out 1, 3, 7, then 15 passes."""
    dynamic_sampling: bool = False
    """Whether batches leave out groups whose rewards are all equal (DAPO). They are credited all the same."""
    decided_by: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] = ""
    """The named reward that pass rates, scores and dynamic sampling go by; empty: the sum of all."""


Mode = Literal["async", "sequential"]


def mode_of(staleness: int) -> Mode:
    """The mode whose window is S = `staleness`: what is resolved at the door can be read off S again."""
    return "async" if staleness else "sequential"


EngineFormats = Annotated[list[Literal["stored", "int8", "int4", "fp8"]], Meta(min_length=1, max_length=16)]


class LearnSection(Section, frozen=True, kw_only=True):
    """How long to train, on how much, and on rollouts how old."""

    steps: Annotated[Positive, Meta(examples=[1000])]
    """Training steps; the run ends after the last. Raise it and start again to train on."""
    mode: Mode = "async"
    """Generate while training; or "sequential": by turns, exactly on-policy, S = 0, kappa = 1."""
    staleness: Annotated[int, Meta(ge=0, le=1000)] = 3
    """S: maximum steps that a rollout may be older than the policy it trains; 1 or more if async."""
    publish_every: Annotated[int, Meta(ge=0, le=1000)] = 1
    """kappa: steps between published versions, at most S; 0: chosen by what is measured."""
    prompts_per_step: Annotated[int, Meta(ge=1, le=65_536)] = 16
    """Groups that a training step consumes."""
    group_size: Annotated[int, Meta(ge=2, le=MAX_GROUP_SIZE)] = 16
    """Completions of one prompt; a step consumes prompts_per_step * group_size rollouts."""
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS)] = 512
    """Token budget of one completion."""
    max_turns: Annotated[int, Meta(ge=1, le=MAX_TURNS)] = 16
    """Maximum turns of an episode; max_new_tokens is the budget of each."""
    max_episode_tokens: Annotated[int, Meta(ge=2, le=MAX_EPISODE_TOKENS, examples=[4096])] | None = None
    """Maximum tokens of prompt, answers and all turns; unset: as many as the model takes."""
    overlong: OverlongMode = "task"
    """Training on completions that were cut off: as the "task" says, "zero", "mask" or "soft". See
    [overlong completions](#overlong-completions)."""
    overlong_buffer: Annotated[int, Meta(ge=1, le=MAX_COMPLETION_TOKENS, examples=[4096])] | None = None
    """Last tokens of max_new_tokens that "soft" punishes, the more the later; unset: a fifth."""
    overlong_penalty: PositiveFloat = 1.0
    """What "soft" takes off the reward of a completion that was cut off."""
    temperature: Annotated[float, Meta(ge=MIN_TEMPERATURE, le=MAX_TEMPERATURE)] = 1.0
    """Sampling temperature. Top-p and top-k do not exist: the sampler draws from the whole distribution."""
    max_batches_ahead: Annotated[float, Meta(ge=1, le=64, examples=[2.0])] | None = None
    """Maximum batches leased or waiting; unset: as many as keep the peers at work."""
    longest_first: Annotated[bool, Meta(examples=[True])] | None = None
    """Whether to lease prompts with long completions first; unset: where staleness is 0."""
    lease_timeout_s: PositiveFloat = 600.0
    """Seconds that a volunteer has to deliver what it leased."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """Orders the training problems and seeds the trainer. Fixed for the run: a start with another is refused."""
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Threads of the trainer; 0: half the cores. Training is bit-identical only at the same number."""
    keep_checkpoints: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Number of newest checkpoints that are kept, to go on from after a crash."""
    keep_every: Annotated[int, Meta(ge=0, le=10**9)] = 0
    """Steps between milestones, checkpoints kept to go back to; 0: none."""
    keep_milestones: Annotated[int, Meta(ge=0, le=1000)] = 4
    """Maximum number of milestones, the best by evaluation first. Then the newest of those of `keep_every`."""
    engine_formats: EngineFormats = msgspec.field(default_factory=lambda: ["stored"])
    """How engines may hold the weights: "stored", "int8", "int4"; "fp8" without audits alone."""

    @property
    def leases_longest_first(self) -> bool:
        """Whether prompts with long completions are leased first. With a window the learner seldom waits for the last
        completion, and a step takes longer (`benchmarks/skew.py`)."""
        return self.staleness == 0 if self.longest_first is None else self.longest_first

    @property
    def overlong_in_force(self) -> Overlong:
        """What is trained on of completions that were cut off."""
        buffer = self.overlong_buffer or max(1, round(BUFFER_SHARE * self.max_new_tokens))
        return Overlong(mode=self.overlong, budget=self.max_new_tokens, buffer=buffer, penalty=self.overlong_penalty)


class OfflineSection(Section, frozen=True, kw_only=True):
    """Logged completions and preference pairs beside the swarm's rollouts. See [logs](tasks.md#logs)."""

    path: Annotated[str, Meta(min_length=1, examples=["logs.jsonl"])] | None = None
    """A file of logged completions with rewards, or of preference pairs; unset: none."""
    share: Annotated[float, Meta(gt=0, le=1, examples=[OFFLINE_SHARE])] | None = None
    """Share of each batch that is from the file; unset: half; 1.0: all, so that nothing is leased."""
    chat: Literal["auto", "always", "never"] = "auto"
    """The model's chat template for prompts: "auto" (if it has one), "always", "never"."""

    @property
    def share_in_force(self) -> float:
        """Of each batch, 0 where there are no logs."""
        if self.path is None:
            return 0.0
        return OFFLINE_SHARE if self.share is None else self.share


class TrainerSection(Section, frozen=True, kw_only=True):
    """The objective, the optimizer, and the machines that train."""

    objective: PresetName = "topr"
    """What a step minimises, as "grpo", "dapo", "gspo", "ppo", "dpo": docs/objectives.md."""
    advantage: Annotated[AdvantageName, Meta(examples=["group_mean_std"])] | None = None
    """Another advantage than the objective's."""
    correction: Annotated[CorrectionName, Meta(examples=["masked_weight"])] | None = None
    """Another correction than the objective's."""
    aggregation: Annotated[AggregationName, Meta(examples=["per_token"])] | None = None
    """Another aggregation than the objective's."""
    clip_low: Annotated[float, Meta(gt=0, le=1, examples=[0.2])] | None = None
    """The ratio to the behaviour policy is held above 1 - clip_low; unset: as the objective asks."""
    clip_high: Annotated[float, Meta(gt=0, le=100, examples=[0.28])] | None = None
    """The ratio is held below 1 + clip_high; unset: as the objective asks."""
    weight_cap: Annotated[float, Meta(gt=0, le=1e6, examples=[2.0])] | None = None
    """The largest weight of a token; unset: as the objective asks. Set 3 where peers are strangers."""
    sequence_mask: Annotated[SequenceRatioName, Meta(examples=["geometric"])] | None = None
    """Mask over sequences, by the "product" or the "geometric" mean of their ratios; unset: none."""
    mask_low: Annotated[float, Meta(ge=0, le=1, examples=[0.9])] | None = None
    """The least such ratio that is trained on; unset: 0 for "product", 0.9 for "geometric"."""
    mask_high: Annotated[float, Meta(gt=1, le=1e6, examples=[1.1])] | None = None
    """The largest; unset: 3 for "product", 1.1 for "geometric"."""
    kl_coefficient: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Weight of the KL to the model that the run began with."""
    teacher_coefficient: Annotated[float, Meta(ge=0, le=1e6, examples=[1.0])] | None = None
    """Weight of what a teacher says of each token, with `[distill]`; unset: as the objective asks."""
    gae_gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Discount of later rewards, for "gae" (objective "ppo")."""
    gae_lambda: Share = 0.95
    """Trade of variance against the critic's bias, for "gae"."""
    value_coefficient: PositiveFloat = 0.1
    """Weight of the critic's error in the loss."""
    value_clip: PositiveFloat = 0.2
    """How far an update may move a value with profit."""
    value_learning_rate: PositiveFloat = 1e-4
    """Learning rate of the critic's head."""
    dpo_beta: PositiveFloat = 0.1
    """How firmly "dpo" keeps to the model that the run began with."""
    learning_rate: PositiveFloat = 1e-6
    """Learning rate of AdamW."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    """Steps over which the rate rises linearly; 0: none."""
    decay_steps: Annotated[int, Meta(ge=0, examples=[1000])] | None = None
    """Steps over which the rate then falls linearly; unset: the whole run; 0: it does not fall."""
    decay_floor: Share = 0.1
    """Share of the rate to which it falls, and where it stays."""
    beta1: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    """Momentum of AdamW; less than the usual 0.9, as stale gradients come late already."""
    beta2: Annotated[float, Meta(ge=0, lt=1)] = 0.95
    """AdamW's decay of the second moment."""
    weight_decay: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """AdamW's weight decay."""
    grad_clip: PositiveFloat = 1.0
    """Norm at which an update's gradient is clipped."""
    updates_per_step: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Optimizer updates in one step, each on a part of the batch; at most `prompts_per_step`."""
    max_tokens_per_microbatch: Positive = 16_384
    """Positions, padding included, in one forward pass of one rank. It bounds memory, not results."""
    activation_checkpointing: bool = False
    """Whether to compute activations twice: less memory for a third more work."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train: "cpu", "cuda"; "auto": a GPU if there is one."""
    compute_dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """What layers compute in: "bfloat16", "float32"; "auto": bfloat16 on a GPU, else float32."""
    compile: bool = False
    """Whether torch compiles the layers: a minute at the start, and faster steps on a GPU."""
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Processes that share the model on each machine (FSDP2), one for each GPU. See [several GPUs](#several-gpus)."""
    machines: Annotated[int, Meta(ge=1, le=4096)] = 1
    """Machines that share the model. See [several machines](#several-machines)."""
    rendezvous: Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)] = ""
    """Where the others reach this machine: "HOST:PORT", with machines above 1. The port must be free."""
    router_replay: bool = False
    """Whether a mixture of experts trains with the experts its engines chose: docs/objectives.md."""
    lora_rank: Annotated[int, Meta(ge=0, le=4096)] = 0
    """Rank of a low-rank adapter, which alone is trained; 0: all weights. See [adapters](#adapters)."""
    lora_alpha: Annotated[int, Meta(ge=0, le=65_536)] = 0
    """The adapter's scale is lora_alpha / lora_rank; 0: twice the rank."""
    lora_targets: Annotated[list[Text], Meta(max_length=64)] = []
    """Linear layers that get one, by their modules: ["q_proj", "v_proj"]; none: all but the head."""

    @property
    def advantage_in_force(self) -> AdvantageName:
        """The objective's, unless another was chosen."""
        return self.advantage or PRESETS[self.objective].advantage

    @property
    def teacher_in_force(self) -> float:
        """Weight of a teacher's word: what is given, else the objective's."""
        own = PRESETS[self.objective].teacher
        return own if self.teacher_coefficient is None else self.teacher_coefficient

    @property
    def pairs_by(self) -> str:
        """The key and value by which the trainer learns from pairs alone; "" when it does not."""
        if self.advantage_in_force != "preference":
            return ""
        return 'advantage = "preference"' if self.advantage else f'objective = "{self.objective}"'


class DistillSection(Section, frozen=True, kw_only=True):
    """A larger model that scores what the policy says, token by token. See [distillation.md](distillation.md)."""

    teacher: Annotated[str, Meta(min_length=1, examples=["teacher"])] | None = None
    """The teacher's Hugging Face directory, of the policy's vocabulary; unset: no teacher."""
    device: EngineDevice = "auto"
    """Where it runs: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA, then MPS, then the CPU."""
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """What its layers compute in; "auto": float32 on a CPU, as stored elsewhere."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Threads of its process on a CPU."""
    nodes: bool = False
    """Whether nodes with the same teacher score; the learner's copy then audits them."""


class ProvisioningSection(Section, frozen=True, kw_only=True):
    """Which peers are active. See [planning again](provisioning.md#planning-again)."""

    select_peers: bool = True
    """Whether to activate only the cheapest peers that keep the learner busy; else all."""
    review_interval_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0
    """Seconds between two looks at that, beside one whenever somebody comes or goes."""


class TrustSection(Section, frozen=True, kw_only=True):
    """Whether what peers deliver is audited. Audits are made on the engine that evaluates, one thing at a time; its
    device and memory are those of `[evaluate]`. A newcomer's groups wait for theirs, so a long evaluation delays the
    beginning of new peers."""

    audits: bool = True
    """Whether to regenerate a share of all completions and ban peers that fabricate tokens."""
    required_compute_dtype: Literal["any", "float32"] = "any"
    """Or "float32": all engines must compute in it, and audits are eight times as strict."""
    min_audit_share: PositiveShare = 0.03
    """Minimum fraction of each peer's groups to audit; all of a newcomer's first 8 are."""
    max_audit_compute_share: PositiveShare = 0.25
    """Maximum fraction of time for audits and selection checks that do not block training."""
    max_peer_share: PositiveShare = 1.0
    """Maximum fraction of the rollouts leased or waiting that is one peer's; 1.0: no bound."""


class EvaluateSection(Section, frozen=True, kw_only=True):
    """How often the held-out prompts are asked, and on which engine."""

    every_versions: Annotated[int, Meta(ge=0)] = 10
    """Published versions between two evaluations; 0: only the first and the last."""
    samples: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] = 1
    """Sampled completions of each held-out prompt, beside the greedy one."""
    pass_at_k: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_SAMPLES)]], Meta(max_length=16)] = msgspec.field(
        default_factory=lambda: [1]
    )
    """Values of k for which pass@k is estimated; `samples` or fewer. Twice as many samples make it steadier."""
    device: EngineDevice = "auto"
    """The engine's device: "cpu", "cuda", "cuda:1", "mps"; "auto": CUDA, then MPS, then the CPU."""
    kv_cache_gb: Gigabytes | None = None
    """Maximum GB (10^9 bytes) for a batch's keys and values; unset: half of a GPU's free memory."""
    keep_best: Annotated[int, Meta(ge=0, le=1000)] = 1
    """Number of best versions whose checkpoints are kept, to go back to; 0: none."""


class MetricsSection(Section, frozen=True, kw_only=True):
    """Where metrics go. See [watching a run](#watching-a-run) and [metrics.md](metrics.md)."""

    sqlite: bool = True
    """Whether every step's metrics go to metrics.sqlite in the state directory."""
    prometheus: Annotated[str, Meta(max_length=256)] = ""
    """Where to be scraped: "HOST:PORT", as "127.0.0.1:9464"; empty: nowhere. A port alone is this machine."""
    tensorboard: bool = False
    """Whether event files are written below state/tensorboard/. Needs `pip install 'volery[tensorboard]'`."""
    wandb: Annotated[str, Meta(max_length=128)] = ""
    """A Weights & Biases project to send metrics to; empty: none. Needs `pip install 'volery[wandb]'`."""
    wandb_offline: bool = False
    """Whether to write below state/wandb/ instead of sending, for `wandb sync`."""
    samples: Annotated[int, Meta(ge=0, le=1024)] = 2
    """Groups of every training step that are kept for `volery samples`."""


class CostSection(Section, frozen=True, kw_only=True):
    """What the report holds costs against, in the currency of `[price]`. See [costs](#costs)."""

    per_kwh: Annotated[float, Meta(ge=0, le=1e6, examples=[0.3])] | None = None
    """What a kWh costs; then the report says what the joules of all machines cost."""
    reference: Text = ""
    """The name of a rented machine that peers are compared with."""
    reference_per_hour: Annotated[float, Meta(gt=0, le=1e6, examples=[0.4])] | None = None
    """What an hour of that machine costs; unset: nothing is compared."""
    reference_tokens_per_s: Annotated[PositiveFloat, Meta(examples=[900.0])] | None = None
    """Tokens of your model that the machine generates in a second."""


class StoreSection(Section, frozen=True, kw_only=True):
    """How much of the disk published versions may take. See [the state directory](#the-state-directory)."""

    quota_gb: Annotated[Gigabytes, Meta(examples=[100.0])] | None = None
    """Maximum GB (10^9 bytes) of versions and their patches; unset: what the disk holds."""


class SwarmConfig(Section, frozen=True, kw_only=True):
    """`swarm.toml`: everything an operator decides."""

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
    store: StoreSection = StoreSection()
    price: PriceSection = PriceSection()
    cost: CostSection = CostSection()
    energy: EnergySection = EnergySection()

    @property
    def engines(self) -> EngineTerms:
        """Which engines rollouts are taken of."""
        strict = self.trust.required_compute_dtype == "float32"
        return EngineTerms(
            formats=tuple(dict.fromkeys(self.learn.engine_formats)),
            compute_dtype="float32" if strict else None,
            auto_is_it=self.model.weights_dtype == "float32",
            experts=self.trainer.router_replay,
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
