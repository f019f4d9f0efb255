"""Make a tiny random model of any architecture, from the library's own default configuration.

Configurations have no common shape, so fields are shrunk by rules on their names (`RULES`). If the result is no model,
some rules are varied, one more at a time (`VARIATIONS`), until one can be built and runs. `FAMILIES` has the facts
about a family that no rule can know.

Invariants:
- nothing here lists architectures: a new one in the library is shrunk as well, or says why not;
- equal architectures give equal weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 128
"""A power of two, as codebooks want it."""
POSITIONS = 96
HIDDEN, HEADS = 32, 4
WINDOW = 16
"""Positions of windows, chunks and blocks: fewer than the model has, so that a long completion leaves them."""

MAX_LAYERS = 4
MAX_PARAMETERS = 2_000_000
"""Beyond this a configuration was not shrunk where it matters."""

STIRRED = 0.6
"""Deviation of random weights, as a fraction of the one that keeps a layer's outputs as large as its inputs. With more,
gated layers and sums that nearly cancel make 1e-3 nats of a rounding error, at single tokens."""

VARIATIONS = ("wide", "as many keys", "derived", "filled", "plain layers", "wide state", "deep")
"""Variations of the rules:

- twice the width;
- as many heads for keys as for queries;
- sizes that the class derives are left to it;
- sizes that it leaves open are filled in;
- no lists of kinds of layers;
- twice the heads of a state space model, whose width is expanded;
- eight layers, for models that have attention in one of many."""

MOST_VARIED = 3

FAMILIES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "reformer": {"axial_pos_embds": False},
    "xlstm": {"qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
}
"""By model type what its class neither has a default for nor derives: all checkpoints of it set these."""
FAMILIES["qwen4_exp"] = {"text_config": FAMILIES["qwen4_exp_text"]}

KEEP, SMALL_ID = -1, -2

FILLED = re.compile(
    r"^head_dim$|key_value_heads$|experts$|n_group$|topk_group$|experts_per_tok|moe_topk|^moe_intermediate_size$"
    "|hidden_size$"
)
"""Sizes that some classes leave open, though they are needed."""

DEPTHS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "decoder_layers",
    "num_decoder_layers",
    "num_blocks",
)


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """A model, how its configuration was varied, and whether the library runs it with and without a cache."""

    model: Any
    varied: Sequence[str]
    runs: int


@dataclass(frozen=True, kw_only=True)
class NotMade:
    """Why no tiny model could be made."""

    reason: str


def architectures() -> list[str]:
    """The model types that the library lists as causal language models."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_model(model_type: str) -> Tiny | NotMade:
    """Make a model of this type: one that the library runs if there is one, else one that can be built."""
    failed: list[str] = []
    best: Tiny | None = None
    for number, varied in enumerate(_variations()):
        try:
            model = _built(tiny_config(model_type, varied))
        except Exception as error:  # the library raises anything
            failed.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
            continue
        runs = sum(_runs(model, use_cache) for use_cache in (False, True))
        if best is None or runs > best.runs:
            best = Tiny(model=model, varied=varied, runs=runs)
        if runs == 2 or (best.runs and number > len(VARIATIONS)):  # it may be that the library has no cache for it
            break
    return best or NotMade(reason=failed[0])


def tiny_config(model_type: str, varied: Sequence[str] = ()) -> Any:
    """The library's default configuration of this type, shrunk. Raises whatever the library raises."""
    kind = CONFIG_MAPPING[model_type]
    return kind(**_changed(_Shrinking(kind, varied).shrunk(kind().to_dict()), FAMILIES.get(model_type, {})))


def _built(config: Any) -> Any:
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size} parameters are not tiny")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        _stir(model)
    return model


@torch.no_grad()
def _stir(model: Any) -> None:
    """Make every weight count: as the library initialises them most models hardly tell positions or tokens apart."""
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            parameter.normal_(0, STIRRED * parameter.shape[-1] ** -0.5)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.05)


@torch.no_grad()
def _runs(model: Any, use_cache: bool) -> bool:
    try:
        shape = model(input_ids=torch.arange(3, 13)[None], use_cache=use_cache).logits.shape
    except Exception:  # the library raises anything
        return False
    return bool(shape[:2] == (1, 10))


def _variations() -> Iterator[tuple[str, ...]]:
    for count in range(MOST_VARIED + 1):
        yield from combinations(VARIATIONS, count)


def _changed(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with `changes`, also inside of fields that are tables themselves."""
    inner = {name: _changed(fields.get(name) or {}, one) for name, one in changes.items() if isinstance(one, Mapping)}
    return {**fields, **changes, **inner}


class _Shrinking:
    """How the fields of a configuration of class `kind` are shrunk under some variations."""

    def __init__(self, kind: Any, varied: Sequence[str]) -> None:
        self._declared = getattr(kind, "__dataclass_fields__", {})
        self._parts = getattr(kind, "sub_configs", {})
        self._varied = varied
        self._least_layers = 8 if "deep" in varied else 2

    def shrunk(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        depth = next((fields[name] for name in DEPTHS if isinstance(fields.get(name), int)), 0)
        layers = self._layers(fields, depth)
        rules = self._rules(len(layers) or self._least_layers)
        found: dict[str, Any] = {}
        for name, value in fields.items():
            if name in ("transformers_version", "architectures", "_name_or_path", "id2label", "label2id"):
                continue
            if (small := self._small(name, value, rules, depth, layers)) is not _LEFT_OUT:
                found[name] = small
        return found

    def _small(self, name: str, value: Any, rules: Rules, depth: int, layers: Sequence[int]) -> Any:
        declared = self._declared.get(name)
        is_derived = declared is None or declared.default is None
        match value:
            case Mapping() if value and all(str(key).isdigit() for key in value):  # by number of layer
                return {new: value[key] for new, old in enumerate(layers) for key in (old, str(old)) if key in value}
            case Mapping():
                inner = CONFIG_MAPPING.get(value.get("model_type")) if name in self._parts else None
                return _Shrinking(inner, self._varied).shrunk(value)
            case bool():
                return True if name == "is_decoder" else value
            case int() if "derived" in self._varied and is_derived and name != "model_type":
                return _LEFT_OUT
            case int():
                return _by_rule(name, value, rules)
            case None if "filled" in self._varied and FILLED.search(name):
                return _by_rule(name, MAX_PARAMETERS, rules)
            case list() if depth and len(value) == depth:
                return self._per_layer(name, [value[layer] for layer in layers], rules)
            case list() if name.endswith("token_id"):
                return [_by_rule(name, one, rules) for one in value]
            case list() if "plain layers" in self._varied and is_derived:
                return _LEFT_OUT
            case _:
                return value

    def _per_layer(self, name: str, values: list[Any], rules: Rules) -> Any:
        if "plain layers" in self._varied:
            return _LEFT_OUT
        small = [_by_rule(name, one, rules) if type(one) is int else one for one in values]
        if set(small) == {"linear_attention"}:  # the default of a hybrid that is none
            small[-1] = "full_attention"
        return small

    def _layers(self, fields: Mapping[str, Any], depth: int) -> list[int]:
        """Numbers of layers to keep: the first of each kind, and the first ones."""
        if "plain layers" in self._varied:
            return list(range(min(depth, self._least_layers)))
        lists = [one for one in fields.values() if isinstance(one, list) and len(one) == depth]
        kinds = [one for one in lists if one and isinstance(one[0], str | bool)]
        firsts: dict[tuple[str, ...], int] = {}
        for layer in range(depth):
            firsts.setdefault(tuple(str(one[layer]) for one in kinds), layer)
        chosen = sorted(firsts.values())[:MAX_LAYERS]
        others = (layer for layer in range(depth) if layer not in chosen)
        chosen += [layer for layer, _ in zip(others, range(self._least_layers - len(chosen)), strict=False)]
        return sorted(chosen)

    def _rules(self, layers: int) -> Rules:
        """Patterns of names with the largest value that is kept; the first that matches counts."""
        hidden = 2 * HIDDEN if "wide" in self._varied else HIDDEN
        keys = HEADS if "as many keys" in self._varied else 2
        states = 2 * HEADS if "wide state" in self._varied else HEADS
        sizes = {
            r"^(.*_)?(vocab_size|codebook_size)(_per_layer_input|_base)?$": VOCABULARY,
            r"type_vocab_size|n_langs|num_labels|num_channels|in_channels|chunk_size_feed_forward": KEEP,
            r"^index(er)?_.*(heads|topk|budget)$": 16,  # with few heads scores are often exactly 0, and tie
            r"pretraining_tp|expand|conv_kernel|_conv$|kernel|hc_mult|hc_count|expansion_ratio|^seed$": KEEP,
            r"_(id|index|idx)$|^LABEL_\d$|_offset$": SMALL_ID,
            r"positions?(_embeddings)?$|max_seq_len|seq_length|context_length|n_ctx|model_max_length": POSITIONS,
            r"kv_shared|num_nextn": 0,
            r"num_kv_heads|kv_n_heads|key_value_heads|num_query_groups": keys,
            r"n_groups$|ngroups": 2,
            r"(num_|n_)(local_|routed_)?experts$|moe_num_experts|zero_expert_num": 4,
            r"experts_per_tok|topk$|top_k$|moe_k$|topk_group|n_group$|num_expert_group|topk_": 2,
            r"dt_rank|time_step_rank|_rank$|lowrank": 8,
            r"mamba.*heads$|^num_heads$": states,
            r"(head|heads|head_size)_?dim$|^d_kv$|d_head$|dim_head|head_size$|kv_channels|rotary_dim": hidden // HEADS,
            r"heads?$|heads?_per_": HEADS,
            r"(hidden_layers|n_layers?|num_layers|_layers|^depth|num_blocks|layers_per_stack)$": layers,
            r"window|chunk|block_size": WINDOW,
            "": hidden,
        }
        return [(re.compile(pattern), size) for pattern, size in sizes.items()]


Rules = list[tuple[re.Pattern[str], int]]

_LEFT_OUT = object()

SMALL = 64
"""Numbers up to this stay where no rule is about them: most are counts, not widths."""


def _by_rule(name: str, value: int, rules: Rules) -> int:
    pattern, size = next(rule for rule in rules if rule[0].search(name))
    if not pattern.pattern:
        return value if value <= SMALL and not _WIDTH.search(name) else min(value, size)
    if size == KEEP:
        return value
    if size == SMALL_ID:
        return value if value < VOCABULARY else value % 7 + 3
    return min(value, size)


_WIDTH = re.compile(r"hidden_size|d_model|n_embd|_dim|embedding_size|emb_dim|^dim|embed_size|width")
