"""Loading refuses models that a swarm could not train, or whose training would compute other numbers than its nodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    CTRLConfig,
    FalconConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    XLNetConfig,
    XLNetLMHeadModel,
)
from transformers.models.llama import modeling_llama

import learner.training.model.policy
from learner.artifacts.model_directory import BadModel
from learner.trainer_api.requests import Lora
from learner.training.batches.packing import Microbatch
from learner.training.distributed.ranks import Ranks
from learner.training.model.causality_check import measure_shift, share
from learner.training.model.export import export
from learner.training.model.policy import Policy, load_policy

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
BART: dict[str, Any] = {"vocab_size": 40, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1}
FEET: dict[str, Any] = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}


def saved(model: PreTrainedModel, directory: Path) -> Path:
    """Save `model` in `directory`, with weights as large as make its logits differ."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(directory)
    return directory


def causal(config: Any, directory: Path) -> Path:
    return saved(AutoModelForCausalLM.from_config(config), directory)


def in_bfloat16() -> Ranks:
    ranks = Ranks()
    ranks.place("cpu", "bfloat16")
    return ranks


# --- models that are no causal language model -------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [Ranks, in_bfloat16])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: BertForMaskedLM(BertConfig(**SIZES)),
            "names BertForMaskedLM, and is_decoder = false: set that to true",
        ),
        (lambda: RobertaForMaskedLM(RobertaConfig(**SIZES)), "names RobertaForMaskedLM, and is_decoder = false"),
        (lambda: XLNetLMHeadModel(XLNetConfig(vocab_size=40, d_model=32, n_layer=2, n_head=4)), "XLNetLMHeadModel"),
    ],
)
def test_a_model_that_looks_at_later_tokens_is_no_causal_one(
    tmp_path: Path, make: Callable[[], PreTrainedModel], said: str, ranks: Callable[[], Ranks]
) -> None:
    directory = saved(make(), tmp_path / "model")
    with pytest.raises(BadModel, match="no causal language model: a later token changes its logits") as caught:
        load_policy(directory, ranks=ranks())
    assert said in str(caught.value)
    assert str(directory) in str(caught.value)


def test_a_masked_model_that_was_trained_to_generate_is_taken(tmp_path: Path) -> None:
    load_policy(causal(BertConfig(**SIZES, is_decoder=True), tmp_path / "model"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: T5ForConditionalGeneration(T5Config(vocab_size=40, d_model=32, d_kv=8, d_ff=48, num_layers=1)), "T5"),
        (lambda: BartForConditionalGeneration(BartConfig(**BART, **FEET)), "BartForConditionalGeneration"),
    ],
)
def test_half_of_an_encoder_decoder_is_not_trained(
    tmp_path: Path, make: Callable[[], PreTrainedModel], said: str
) -> None:
    with pytest.raises(BadModel, match="is an encoder-decoder") as caught:
        load_policy(saved(make(), tmp_path / "model"))
    assert said in str(caught.value)


def test_a_model_that_generates_no_text_is_told_by_its_type(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48, image_size=32)
    directory = saved(ViTModel(config), tmp_path / "model")
    with pytest.raises(BadModel, match=r"is no causal language model: transformers .* knows none of type 'vit'"):
        load_policy(directory)


# --- models whose tokens depend on others -----------------------------------------------------------------------------

Spoilt = Callable[[Tensor], Tensor]


@pytest.mark.parametrize("ranks", [Ranks, in_bfloat16])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda hidden: hidden - 0.1 * hidden.mean(0, keepdim=True), "depend on the other sequences in its batch"),
        (lambda hidden: hidden + 0.1 * hidden.mean(1, keepdim=True), "a later token changes its logits"),
        (lambda hidden: hidden * hidden.shape[1] ** 2, "depend on how many tokens follow"),
    ],
)
def test_a_sequence_is_computed_from_its_own_tokens_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoilt, said: str, ranks: Callable[[], Ranks]
) -> None:
    directory = causal(LlamaConfig(**SIZES), tmp_path / "model")
    load_policy(directory)
    sound = modeling_llama.LlamaMLP.forward
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", lambda self, hidden: spoil(sound(self, hidden)))
    with pytest.raises(BadModel, match=said):
        load_policy(directory, ranks=ranks())


@pytest.mark.parametrize("ranks", [Ranks, in_bfloat16])
def test_a_model_that_fails_on_a_few_tokens_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Callable[[], Ranks]
) -> None:
    def fail(self: object, hidden: Tensor) -> Tensor:
        raise ValueError("no such\nshape")

    directory = causal(LlamaConfig(**SIZES), tmp_path / "model")
    monkeypatch.setattr(modeling_llama.LlamaMLP, "forward", fail)
    with pytest.raises(BadModel, match=r"\(.*LlamaForCausalLM\): transformers fails on .* tokens: no such shape"):
        load_policy(directory, ranks=ranks())


def test_sequences_that_see_each_other_do_not_lie_end_to_end_in_bfloat16(tmp_path: Path) -> None:
    """Falcon does not pass on where sequences begin. Here its logits are off by 1.7 % of the largest. In bfloat16 two
    correct ways to compute the logits may differ by more than that.
    """
    config = FalconConfig(vocab_size=40, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, alibi=False)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(0.3 if "self_attention" in name else 1.0)
    model.save_pretrained(tmp_path / "model")
    policy = load_policy(tmp_path / "model", ranks=in_bfloat16())
    before = policy.layout
    assert not policy.lay_end_to_end()
    assert policy.layout is before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_keeps_sequences_apart_still_lies_end_to_end(tmp_path: Path, dtype: Any) -> None:
    ranks = Ranks()
    ranks.place("cpu", dtype)
    assert load_policy(causal(LlamaConfig(**SIZES), tmp_path / "model"), ranks=ranks).lay_end_to_end()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_that_are_given_other_tokens_together_are_no_reason(tmp_path: Path, dtype: Any) -> None:
    ranks = Ranks()
    ranks.place("cpu", dtype)
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, "num_key_value_heads": 2}
    policy = load_policy(causal(MixtralConfig(**SIZES, **experts), tmp_path / "model"), ranks=ranks)
    assert policy.lay_end_to_end()


def test_siblings_that_see_each_other_get_rows_of_their_own_however_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recurrent layer ignores the mask. The other sibling must not matter, however coarse equality is in bfloat16."""
    monkeypatch.setitem(learner.training.model.policy.SAME_LOGITS, torch.bfloat16, 10.0)
    config = MambaConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, state_size=8)
    policy = load_policy(causal(config, tmp_path / "model"), ranks=in_bfloat16())
    assert not policy._heeds_masks()


def test_logits_move_where_they_depend_on_what_changes() -> None:
    """Each logit is the sum of the tokens up to its own, in the first of two rows of three."""

    def logits(batch: Microbatch) -> Tensor:
        return batch.inputs.cumsum(1).flatten()[:, None].float()

    batch = Microbatch(
        inputs=torch.tensor([[1, 2, 3], [4, 5, 6]]),
        predictors=torch.arange(6),
        tokens=torch.zeros(6),
        segments=torch.arange(6) // 3,
        numbers=np.arange(6),
        num_sequences=2,
    )
    first, second = torch.arange(3), torch.arange(3, 6)
    assert measure_shift(logits, batch, second, first, 40) == 0
    assert measure_shift(logits, batch, first[2:], first[:2], 40) == 0
    assert measure_shift(logits, batch, first[:1], first, 40) == pytest.approx(5 / 6)
    assert measure_shift(logits, batch, first[2:], first, 40) == pytest.approx(5 / 6)


def test_a_share_is_of_the_largest_logit() -> None:
    one = torch.tensor([1.0, -4.0, torch.inf, -torch.inf])
    assert share(one, one) == 0
    assert share(torch.tensor([1.0, -2.0, torch.inf, -torch.inf]), one) == 0.5
    assert np.isinf(share(torch.tensor([1.0, -4.0, 0.0, -torch.inf]), one))
    assert np.isnan(share(torch.tensor([torch.nan]), torch.tensor([1.0])))
    assert share(torch.full((2,), torch.inf), torch.full((2,), torch.inf)) == 0


# --- weights that are not numbers -------------------------------------------------------------------------------------


def spoil(directory: Path, name: str, value: float) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LlamaConfig(**SIZES), "model.layers.1.mlp.up_proj.weight"),
        (LlamaConfig(**SIZES), "model.norm.weight"),
        (MixtralConfig(**SIZES, num_local_experts=2), "model.layers.0.block_sparse_moe.experts.1.w2.weight"),
    ],
)
def test_weights_that_are_no_numbers_are_refused_with_tensor_and_file(
    tmp_path: Path, config: Any, name: str, value: float
) -> None:
    directory = causal(config, tmp_path / "model")
    spoil(directory, name, value)
    with pytest.raises(BadModel, match="values that are not finite") as caught:
        load_policy(directory)
    assert f"{directory / 'model.safetensors'}: {name!r}" in str(caught.value)


def test_a_rank_that_reads_a_slice_refuses_it_as_well(tmp_path: Path) -> None:
    directory = causal(LlamaConfig(**SIZES), tmp_path / "model")
    spoil(directory, "model.layers.1.mlp.up_proj.weight", torch.nan)
    with pytest.raises(BadModel, match="up_proj"):
        load_policy(directory, ranks=in_bfloat16())


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4.0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_version_that_is_no_number_is_never_exported(tmp_path: Path, lora: Lora | None, dtype: Any) -> None:
    policy = load_policy(causal(LlamaConfig(**SIZES), tmp_path / "model"), lora=lora)
    name, parameter = policy.parameters[1]
    with torch.no_grad():
        parameter.view(-1)[3] = torch.nan
    with pytest.raises(BadModel, match=f"values that are not finite as {dtype}") as caught:
        export(policy, tmp_path / "out", dtype, 1 << 30)
    assert name in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# --- single architectures ---------------------------------------------------------------------------------------------


def test_a_head_is_applied_alone_where_a_model_names_another_part_than_it_has(tmp_path: Path) -> None:
    """Llama 4's text model calls its body "language_model", and has it under another name."""
    sizes = {**SIZES, "intermediate_size_mlp": 48, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2}
    policy: Policy = load_policy(causal(Llama4TextConfig(**sizes), tmp_path / "model"))
    assert policy._forward.head_applies_alone


def test_a_model_that_cannot_be_checkpointed_is_refused_in_the_words_of_the_setting(tmp_path: Path) -> None:
    config = CTRLConfig(vocab_size=40, n_positions=64, n_embd=32, dff=48, n_layer=2, n_head=4)
    directory = causal(config, tmp_path / "model")
    load_policy(directory)
    with pytest.raises(BadModel, match=r"activation_checkpointing = true: .* Leave it out"):
        load_policy(directory, gradient_checkpointing=True)
