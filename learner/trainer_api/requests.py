"""Define what a node may ask of the trainer: one frozen struct for each operation, tagged by `op`.

No torch: the node builds these, the child process reads them.

Invariants:

- Unknown fields and values out of range are refused when a header is converted (msgspec.convert), so a misspelt
  hyperparameter is an error and never a default.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.core.limits import MIB

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
ExportDtype = Literal["bfloat16", "float32"]
Device = Literal["auto", "cpu", "cuda"]
ComputeDtype = Literal["auto", "bfloat16", "float32"]
Architecture = Literal["qwen3", "qwen3_moe"]

DEFAULT_SHARD_BYTES = 1024 * MIB
"""Files of 1 GiB: few enough to list, and small enough to copy one again."""


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to train.

    The learning rate rises linearly over `warmup_steps` training steps, and falls linearly over `decay_steps` to
    `decay_floor` times itself, where it stays; 0 steps disable either. AdamW's first steps are as long as the rate
    allows, in directions that one batch chose: without a warm-up they undo some of what the policy knew. One training
    step is `updates_per_step` optimizer updates, each on a part of the batch (ECHO-2 takes 2, arXiv 2602.02192,
    section 3.1). Rates and versions count training steps.

    `objective` is a preset of `learner.trainer_api.presets`; `advantage`, `correction`, `aggregation` and the bounds
    replace the preset's where they are given (`recipe_of`). `kl` is the weight of the KL to the weights that the run
    began with. `teacher` is the weight of a teacher's log ratio to the policy, which is added to the advantage of each
    token; each batch must then hold the teacher's log probabilities.
    `clip_low` and `clip_high` are distances from 1. `sequence_mask` leaves out sequences whose ratio is not between
    `mask_low` and `mask_high`, which are ratios. `gae_gamma`, `gae_lambda`, `value_coefficient`, `value_clip` and
    `value_learning_rate` are for a critic, if there is one; `dpo_beta` is for preferences.

    `max_new_tokens` is the constant that "per_constant" divides by: the token budget of a completion, or of one turn of
    several. `temperature` is the one at which behaviour log probabilities were taken. `max_tokens_per_microbatch`
    counts positions, padding included; it bounds activations and does not change results.
    """

    learning_rate: Positive = 1e-6
    warmup_steps: Annotated[int, Meta(ge=0)] = 0
    decay_steps: Annotated[int, Meta(ge=0)] = 0
    decay_floor: Annotated[float, Meta(ge=0, le=1)] = 0.1
    betas: tuple[Share, Share] = (0.5, 0.95)
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    grad_clip: Positive = 1.0
    updates_per_step: Count = 1
    objective: str = "topr"
    advantage: str | None = None
    correction: str | None = None
    aggregation: str | None = None
    clip_low: Annotated[float, Meta(gt=0, le=1)] | None = None
    clip_high: Positive | None = None
    weight_cap: Positive | None = None
    sequence_mask: str | None = None
    mask_low: Annotated[float, Meta(ge=0)] | None = None
    mask_high: Positive | None = None
    kl: Annotated[float, Meta(ge=0)] = 0.0
    teacher: Annotated[float, Meta(ge=0)] | None = None
    gae_gamma: Annotated[float, Meta(gt=0, le=1)] = 1.0
    gae_lambda: Annotated[float, Meta(ge=0, le=1)] = 0.95
    value_coefficient: Positive = 0.1
    value_clip: Positive = 0.2
    value_learning_rate: Positive = 1e-4
    dpo_beta: Positive = 0.1
    temperature: Positive = 1.0
    max_new_tokens: Count
    max_tokens_per_microbatch: Count = 16_384
    gradient_checkpointing: bool = False


class Lora(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train W + (alpha / rank) B A with W frozen. `targets`: names of linear layers as the modules are called
    ("q_proj"); an empty list means all linear layers except the head.
    """

    rank: Count
    alpha: Count
    targets: list[str] = []


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    """Base of the requests: the header of a frame without its id."""


class MakeModel(Request, tag="make_model", frozen=True, kw_only=True):
    """Write a new model of `architecture`; `config` has fields of its transformers config. Reply: `parameters`."""

    directory: str
    config: dict[str, Any]
    architecture: Architecture = "qwen3"
    seed: Seed = 0


class Load(Request, tag="load", frozen=True, kw_only=True):
    """Load a Hugging Face directory in place of what was loaded. Reply: `parameters`, `vocab_size`, `positions` (tokens
    of the longest sequence, null when nothing says so), `fingerprint`, `ranks`, and the values chosen for "auto":
    `device`, `compute_dtype`.

    With `compile`, torch compiles the layers and the head's last steps on first use, which takes about a minute. With
    `lora` only an adapter is trained and saved, and an export is the directory's own weight files with the adapter
    beside them. Weights, moments and sums of gradients are float32 for every `compute_dtype`. "auto" is a GPU if there
    is one, with bfloat16; else a CPU with float32.

    In exports `chat_template` replaces the directory's own, and `stop_ids` replaces the `eos_token_id` of its
    generation config, so that an export is prompted as it was trained. A trainer may ignore both.

    With `router_replay`, for mixtures of experts only, Step and Logprobs use the experts that engines chose, from the
    arrays `experts` and `routed` (`sequences.supervised_batch`).
    """

    directory: str
    hyperparameters: Hyperparameters
    seed: Seed = 0
    threads: Count = 1
    device: Device = "cpu"
    compute_dtype: ComputeDtype = "auto"
    lora: Lora | None = None
    compile: bool = False
    chat_template: str | None = None
    stop_ids: tuple[Annotated[int, Meta(ge=0)], ...] = ()
    router_replay: bool = False


class Supervised(Request, tag="supervised", frozen=True, kw_only=True):
    """Take one step of cross entropy. Arrays: `sequences.supervised_batch`. Reply: `loss`, `grad_norm`, `tokens`."""

    learning_rate: Positive


class Step(Request, tag="step", frozen=True, kw_only=True):
    """Take one training step. Arrays: `sequences.rollout_batch`. Reply: `steps`, `learning_rate` (of this step),
    `loss`, `grad_norm`, `tokens`, and those below; all are numbers except `by_lag`. Reply arrays: `apart` float32 [B],
    the mean over the generated tokens of each sequence of |log pi - log mu|, in nats; NaN for sequences that had no
    gradient. A trainer may leave it out.

    `learning_rate` replaces the peak of the schedule, from this step on.

    `trained_tokens` counts the tokens of sequences that have a gradient. These statistics are over those tokens, each
    under the weights that its own update began with:

    - `clip_share`, `mean_ratio`, `max_ratio`, and `max_log_ratio` (of either sign);
    - `mismatch_kl` (k3); `ess`, the effective sample size of the ratios as weights, a fraction of 1; `weight_ess`, the
      same of the weights after the bounds;
    - `entropy` (nats per token), `reference_kl`, and `teacher_kl` (mean of log pi - log pi_T; 0 without a teacher).

    `by_lag` has the means among them, except `teacher_kl`, for each lag ({"0": {"tokens": n, "ratio": ..., "kl": ...,
    "clip_share": ..., "entropy": ..., "ess": ..., "weight_ess": ...}, "offline": ...}). `mean_lag` is over all tokens
    of the swarm.

    `updates` counts the updates taken: a part of the batch without sequences that have a gradient takes none. `loss` is
    the mean over the parts that were trained on, weighted by their sequences; `grad_norm` is the largest of the
    updates. `masked_share` is the fraction of the trained sequences whose tokens all lost their weight to a bound. If
    experts were replayed, `replayed` is the fraction of the choices in the batch, one for each layer and token, that
    the trainer's own routers find likely enough to follow (`model.router_replay`).

    When the first update diverges, the step fails and nothing changes. When a later one diverges, the step ends there:
    the updates before it stay, and `diverged` is 1. `borne_kl` and `borne_ess` are what the objective's correction
    tolerates (`presets.Borne`). `with_advantage` is the fraction of the sequences whose rewards say anything: at 0 the
    step could teach nothing, whatever its gradient (`batch_preparation.with_advantage`).
    """

    learning_rate: Positive | None = None


class Logprobs(Request, tag="logprobs", frozen=True, kw_only=True):
    """Score tokens, laid out as in training. Arrays: `sequences.supervised_batch`. Reply arrays: `logprobs`,
    `entropy` float32 [C].

    With `weights` the policy has, for this one request, the weights of an export in that dtype. So an engine is
    compared with the trainer by their computations, not by the rounding of the export.
    """

    temperature: Positive | None = None
    weights: ExportDtype | None = None


class Export(Request, tag="export", frozen=True, kw_only=True):
    """Write the weights as a model directory, which must not exist yet. Reply: `files` (sorted names), `probe` as in
    `probe.describe`, and as arrays the names of chunks that were computed meanwhile, for
    `chunk_names.ChunkNames.learn`.

    Without `wait` the reply has neither files nor arrays, and comes when training may go on; the export holds the
    weights of that moment. An event reports its end: {"event": "exported", "directory", "files", "probe"} with these
    arrays when the directory exists, or {"event": "export_failed", "directory", "kind", "error"}. There is one export
    at a time: the next export, `load`, `restore` and the end of the process wait for it. A trainer that cannot export
    while it trains may reply as with `wait`.

    With `merge` an adapter is added into the weights, so the directory needs no adapter; without an adapter it changes
    nothing.
    """

    directory: str
    dtype: ExportDtype = "bfloat16"
    max_shard_bytes: Count = DEFAULT_SHARD_BYTES
    wait: bool = True
    merge: bool = False


class Save(Request, tag="save", frozen=True, kw_only=True):
    """Write a checkpoint into a directory that does not exist yet. Reply: `steps`, `bytes`.

    Without `wait` the reply comes when training may go on. An event follows when the checkpoint is durable or has
    failed: {"event": "saved", "directory", "bytes"} or {"event": "save_failed", "directory", "error"}.
    """

    directory: str
    wait: bool = True


class Restore(Request, tag="restore", frozen=True, kw_only=True):
    """Resume from a checkpoint of the loaded model. Reply: `steps`, `supervised_steps`, `threads`, `hyperparameters`.

    The checkpoint's hyperparameters come into force, unless `keep_hyperparameters` keeps those of `load`.
    """

    directory: str
    keep_hyperparameters: bool = False


AnyRequest = MakeModel | Load | Supervised | Step | Logprobs | Export | Save | Restore
