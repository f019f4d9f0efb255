"""Compute what a model needs: memory while it trains, disk for checkpoints and versions, bytes to send a version.

Pure, and without torch. It reads the headers of the model's files, its config.json, and the configuration. Weights,
gradients and moments are exact to the byte. Figures that are estimates say so.

A trained parameter takes 16 bytes with AdamW: weight, gradient and two moments in float32, split over all ranks.
`per_parameter` has what options add. With an adapter, the model's own parameters are frozen, and take 4 bytes each.
Activations are counted by the tensors that a layer keeps for its backward pass, as in Korthikanti et al., arXiv
2205.05198, section 4, for gated feed-forward layers, without dropout or stored scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.artifacts.atomic_directory import table_of
from learner.artifacts.lora_targets import names, no_targets, unmatched
from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_config
from learner.trainer_api.presets import Recipe
from node.config.preflight import shards_of
from node.config.swarm_config import TrainerSection
from node.runtime.errors import UsageError
from protocol.versions.safetensors_header import Table

MASTER = {"weights": 4, "gradients": 4, "moments": 8}
"""Bytes of a parameter in float32, for any format in which layers compute."""

CHECKPOINT_BYTES = 12
"""Bytes of a parameter in a checkpoint: its weight and two moments."""

EMBEDDINGS = ("embed", "lm_head", "wte", "wpe")
"""Words in the names of matrices that get no adapter, if no targets are given."""

HEADS = ("lm_head", "embed_out")
"""Names that architectures give to the layer that computes logits."""

DTYPE_BYTES = {"bfloat16": 2, "float32": 4}

LOGITS_BYTES = 4 << 27
"""Bytes of logits that are computed at a time: half a GiB (`learner.training.model.policy.LOGITS_BLOCK`). Their
gradient takes as much again.
"""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The facts of a model directory, from its headers and config.json.

    `dtypes`: bytes by number format. `matrices`: (module, rows, columns) of the matrices that an adapter may change.
    """

    architecture: str
    parameters: int
    dtypes: Mapping[str, int]
    layers: int
    hidden: int
    feed_forward: int
    queries: int
    keys_values: int
    vocabulary: int
    matrices: tuple[tuple[str, int, int], ...] = ()

    @property
    def layer_parameters(self) -> float:
        """Return the parameters of one layer, estimated: all but the embeddings, evenly divided."""
        return (self.parameters - self.vocabulary * self.hidden) / max(1, self.layers)


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What training needs, in bytes, except the numbers of parameters `trained` and `frozen`.

    `state` is exact, for all ranks together. The rest of a rank's memory is an estimate. `version` is the size of each
    version, `first` the size of what a new peer must fetch.
    """

    trained: int
    frozen: int
    per_parameter: Mapping[str, float]
    ranks: int
    gathered: float
    activations: float
    checkpoint: int
    version: int
    first: int

    @property
    def state(self) -> int:
        """Return the bytes of weights, gradients and moments, and of what options keep beside them."""
        return round(self.trained * sum(self.per_parameter.values())) + MASTER["weights"] * self.frozen

    @property
    def per_rank(self) -> float:
        """Return the bytes of one rank: its share of the state, the layers that it gathers, and activations."""
        return self.state / self.ranks + self.gathered + self.activations


def read_facts(directory: Path) -> ModelFacts:
    """Read the facts of a model directory. Raises UsageError that names the file."""
    path, tables = directory / "config.json", list[Table]()
    try:
        config = parse_config(read_file(path))
        for path in (directory / name for name in shards_of(directory)):
            tables.append(table_of(path))
    except NotText as error:
        raise UsageError(f"[model] directory: {path} {error}.") from None
    except (OSError, ValueError) as error:  # LayoutError is a ValueError
        raise UsageError(f"[model] directory: {path} cannot be read ({error}). Copy the model's files again.") from None
    if not isinstance(config, dict):
        raise UsageError(f"[model] directory: {directory}/config.json is no object. Copy the model's files again.")
    sizes: dict[str, int] = {}
    parameters, matrices = 0, []
    for span in (span for table in tables for span in table.spans):
        parameters += math.prod(span.shape)
        if len(span.shape) == 2 and not any(word in span.name for word in EMBEDDINGS):
            matrices.append((span.name.removesuffix(".weight"), span.shape[0], span.shape[1]))
        sizes[span.dtype] = sizes.get(span.dtype, 0) + span.end - span.start
    whole = _figures(config)
    heads = whole("num_attention_heads", 1)
    head_dim = whole("head_dim", whole("hidden_size", 0) // max(1, heads))
    return ModelFacts(
        architecture=", ".join(map(str, config.get("architectures") or [config.get("model_type", "unknown")])),
        parameters=parameters,
        dtypes=sizes,
        layers=whole("num_hidden_layers", 0),
        hidden=whole("hidden_size", 0),
        feed_forward=whole("intermediate_size", 0),
        queries=heads * head_dim,
        keys_values=whole("num_key_value_heads", heads) * head_dim,
        vocabulary=whole("vocab_size", 0),
        matrices=tuple(matrices),
    )


def require_targets(directory: Path, trainer: TrainerSection) -> None:
    """Raise UsageError if `lora_targets` name nothing in the model, with the trainer's message.

    A head that is tied to the embeddings is in no file. The trainer checks it.
    """
    if not trainer.lora_targets:
        return
    modules = [module for module, _, _ in read_facts(directory).matrices]
    if missing := unmatched(trainer.lora_targets, [*modules, *HEADS]):
        raise UsageError(f"[trainer] {no_targets(missing, modules)}.")


def footprint_of(
    facts: ModelFacts, trainer: TrainerSection, recipe: Recipe, weights_dtype: str, *, computed: str = ""
) -> Footprint:
    """Return what training this model under this configuration needs.

    `weights_dtype`: the format of published versions. `computed`: the format in which layers compute; if empty, that of
    `compute_dtype` on a machine with a GPU.
    """
    per_parameter = dict[str, float](MASTER)
    if recipe.needs_reference:
        per_parameter["weights that the run began with"] = 4
    ranks = trainer.ranks * trainer.machines
    compute = DTYPE_BYTES[computed or compute_dtype(trainer, gpu=True)]
    cut = ranks > 1 or trainer.device != "cpu"
    # Two layers (the one in use and the next), and the embedding, which stays in memory.
    gathered = compute * (2 * facts.layer_parameters + facts.vocabulary * facts.hidden) if cut else 0.0
    adapter = adapter_parameters(facts, trainer)
    trained = adapter if trainer.lora_rank else facts.parameters
    version = DTYPE_BYTES[weights_dtype] * trained
    return Footprint(
        trained=trained,
        frozen=facts.parameters if trainer.lora_rank else 0,
        per_parameter=per_parameter,
        ranks=ranks,
        gathered=gathered,
        activations=_activations(facts, trainer, compute),
        checkpoint=CHECKPOINT_BYTES * trained,
        version=version,
        first=version + (sum(facts.dtypes.values()) if trainer.lora_rank else 0),
    )


def adapter_parameters(facts: ModelFacts, trainer: TrainerSection) -> int:
    """Return the parameters of an adapter W + B A on each matrix of `lora_targets`; by default all but embeddings."""
    targets = trainer.lora_targets
    on = [one for one in facts.matrices if not targets or any(names(target, one[0]) for target in targets)]
    return sum(trainer.lora_rank * (rows + columns) for _, rows, columns in on)


def compute_dtype(trainer: TrainerSection, *, gpu: bool) -> str:
    """Return the format in which layers compute on a machine with, or without, a GPU."""
    if trainer.compute_dtype != "auto":
        return trainer.compute_dtype
    on_gpu = trainer.device == "cuda" or (trainer.device == "auto" and gpu)
    return "bfloat16" if on_gpu else "float32"


def _activations(facts: ModelFacts, trainer: TrainerSection, compute: int) -> float:
    tokens = trainer.max_tokens_per_microbatch
    kept = 6 * facts.hidden + 2 * facts.queries + 2 * facts.keys_values + 4 * facts.feed_forward
    layer = float(tokens * compute * kept)
    between = tokens * compute * facts.hidden * facts.layers
    logits = min(LOGITS_BYTES, 4 * tokens * facts.vocabulary)
    return (between + layer if trainer.activation_checkpointing else facts.layers * layer) + 2 * logits


def _figures(config: Mapping[str, Any]) -> Callable[[str, int], int]:
    """Return a function that reads whole numbers of config.json, also under `text_config` of models with parts."""
    inner = config.get("text_config")
    places = [config, inner] if isinstance(inner, dict) else [config]

    def whole(key: str, default: int) -> int:
        return next((value for one in places if isinstance(value := one.get(key), int)), default)

    return whole
