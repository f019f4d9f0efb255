"""What a node may ask of the trainer: one frozen struct per operation, tagged by `op`.

What always holds: unknown fields and values out of range are refused when a header is converted (msgspec.convert), so a
misspelt hyperparameter is an error and never a default. No torch: the node builds these, the child reads them.
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
"""Files of 1 GiB: few enough to list, small enough that copying one again is no matter."""


class Hyperparameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to train.

    The learning rate rises linearly over `warmup_steps` training steps, and falls linearly over `decay_steps` to
    `decay_floor` times itself, where it stays; 0 steps switch either off. AdamW's first steps are as long as the
    rate allows in directions that one batch chose: without a warm-up they undo some of what a policy knew.
    `updates_per_step` optimizer updates make one training step, each on a part of the batch (ECHO-2 takes 2, arXiv
    2602.02192, section 3.1); rates and versions count training steps.

    `objective` is a preset of `learner.trainer_api.presets`; `advantage`, `correction`, `aggregation` and the bounds
    replace its own where they are given (`recipe_of`). `kl` weighs the KL to the weights that the run began with.
    `teacher` weighs the log ratio of a teacher to the policy, which is added to the advantage of each token; each batch
    then holds the teacher's log probabilities.
    `clip_low` and `clip_high` are distances from 1. `sequence_mask` leaves out sequences whose ratio is not within
    `mask_low` and `mask_high`, which are ratios. `gae_gamma`, `gae_lambda`, `value_coefficient`, `value_clip` and
    `value_learning_rate` are of a critic, where there is one; `dpo_beta` of preferences.

    `max_new_tokens` is the constant that "per_constant" divides by: the budget of a completion, or of one turn of many;
    `temperature` is the one that behaviour logprobs were taken at; `max_tokens_per_microbatch` counts positions,
    padding included, and bounds activations, not results.
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
    """Train W + (alpha / rank) B A with W as it is. `targets`: names of linear layers as their modules are called
    ("q_proj"); none means all but the head.
    """

    rank: Count
    alpha: Count
    targets: list[str] = []


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="op"):
    """Base of the requests; the header without its id."""


class MakeModel(Request, tag="make_model", frozen=True, kw_only=True):
    """Write a new model of `architecture`, `config` being fields of transformers' config of it. Reply: `parameters`."""

    directory: str
    config: dict[str, Any]
    architecture: Architecture = "qwen3"
    seed: Seed = 0


class Load(Request, tag="load", frozen=True, kw_only=True):
    """Load a Hugging Face directory and forget what was loaded. Reply: `parameters`, `vocab_size`, `positions` (tokens
    of the longest sequence, null when nothing says so), `fingerprint`, `ranks`, and what "auto" came to: `device`,
    `compute_dtype`.

    With `compile` layers and the head's last steps are compiled by torch on first use, which takes a minute or so. With
    `lora` only an adapter is trained and saved, and an export is the directory's own weight files beside it.
    Weights, moments and sums of gradients are float32 whatever `compute_dtype` layers compute in. "auto" is a GPU if
    there is one, bfloat16 there and float32 on a CPU.

    `chat_template` takes the place of the directory's own in exports, and `stop_ids` that of the `eos_token_id` of its
    generation config: whoever serves an export speaks to it as it was trained. A trainer may leave both out.

    With `router_replay`, of mixtures of experts alone, Step and Logprobs take the experts that engines chose, in the
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
    """One step of cross entropy: arrays of `sequences.supervised_batch`. Reply: `loss`, `grad_norm`, `tokens`."""

    learning_rate: Positive


class Step(Request, tag="step", frozen=True, kw_only=True):
    """One training step: arrays of `sequences.rollout_batch`. Reply: `steps`, `learning_rate`, `loss`, `grad_norm`,
    `tokens`, and more, all numbers but `by_lag`. Reply arrays: `apart` float32 [B], the mean over the generated tokens
    of each sequence of |log pi - log mu|, in nats; NaN of sequences that had no gradient. A trainer may leave it out.

    The learning rate is the one of this step. `trained_tokens` belong to sequences that have a gradient; over those are
    `clip_share`, `mean_ratio`, `max_ratio`, `max_log_ratio` (of either sign), `mismatch_kl` (k3), `ess` (effective
    sample size of the ratios as weights, a share of 1), `weight_ess` (that of what bounds made of them), `entropy`
    (nats per token), `reference_kl` and `teacher_kl` (mean of log pi - log pi_T; 0 without a teacher), each token under
    the weights that its own update began with; `by_lag` has the means among them, `teacher_kl` aside,
    for each lag ({"0": {"tokens": n, "ratio": ..., "kl": ..., "clip_share": ..., "entropy": ..., "ess": ...,
    "weight_ess": ...}, "offline": ...}). `mean_lag` is over all tokens of the swarm.
    `updates` counts the updates taken: parts of the batch without such sequences take none. `loss` is the mean over the
    parts that were trained on, weighted by their sequences; `grad_norm` the largest of the updates'. `masked_share` is
    the share of the sequences trained on whose tokens all lost their weight to a bound. Where experts were replayed,
    `replayed` is the share of the choices that came with the batch, one for each layer and token, that the trainer's
    own routers find likely enough to follow (`model.router_replay`).

    When the first update diverges the step fails, and everything is as it was. When a later one does, the step ends
    there: the updates before it stand, and `diverged` is 1. `borne_kl` and `borne_ess` are what the objective's
    correction bears (`presets.Borne`). `with_advantage` is the share of the sequences whose rewards say anything: at 0
    the step could teach nothing, whatever its gradient (`preparation.with_advantage`).
    """


class Logprobs(Request, tag="logprobs", frozen=True, kw_only=True):
    """Score tokens, laid out as in training: arrays of `sequences.supervised_batch`. Reply arrays: `logprobs`,
    `entropy` float32 [C].

    With `weights` the policy is for this one request what an export in that dtype holds, so that an engine can be
    compared with the trainer by what both compute, and not by what was rounded on the way.
    """

    temperature: Positive | None = None
    weights: ExportDtype | None = None


class Export(Request, tag="export", frozen=True, kw_only=True):
    """Write the weights as a model directory, which must not exist yet. Reply: `files`, sorted names, `probe` as
    `probe.describe` has it, and in arrays the names of chunks that were computed on the way, for
    `chunk_names.ChunkNames.learn`.

    Without `wait` the reply has neither files nor arrays, and comes when training may go on. What is written are the
    weights at that moment. An event tells of its end: {"event": "exported", "directory", "files", "probe"} with these
    arrays, when the directory is there, or {"event": "export_failed", "directory", "kind", "error"}. There is one
    export at a time: another one, `load`, `restore` and the end of the process wait for it. A trainer that does nothing
    beside training may reply as it does with `wait`.

    With `merge` an adapter is added into the weights, and the directory stands alone; without an adapter it changes
    nothing.
    """

    directory: str
    dtype: ExportDtype = "bfloat16"
    max_shard_bytes: Count = DEFAULT_SHARD_BYTES
    wait: bool = True
    merge: bool = False


class Save(Request, tag="save", frozen=True, kw_only=True):
    """Write a checkpoint into a directory that does not exist yet. Reply: `steps`, `bytes`.

    Without `wait` the reply comes when training may go on, and an event when it is durable, or never will be:
    {"event": "saved", "directory", "bytes"} or {"event": "save_failed", "directory", "error"}.
    """

    directory: str
    wait: bool = True


class Restore(Request, tag="restore", frozen=True, kw_only=True):
    """Go on from a checkpoint of the loaded model. Reply: `steps`, `supervised_steps`, `threads`, `hyperparameters`.

    The checkpoint's hyperparameters come into force, unless `keep_hyperparameters` keeps those of `load`.
    """

    directory: str
    keep_hyperparameters: bool = False


AnyRequest = MakeModel | Load | Supervised | Step | Logprobs | Export | Save | Restore
