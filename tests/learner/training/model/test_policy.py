"""A model directory comes in, is scored as a literal forward pass would, and goes out as the same kind of directory."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GenerationConfig,
    LlamaConfig,
    OPTConfig,
    PhimoeConfig,
    Qwen2Config,
    Qwen3Config,
)

import learner.training.model.policy
from learner.artifacts.atomic_directory import TensorEntry
from learner.artifacts.model_directory import BadModel
from learner.trainer_api.requests import ComputeDtype, Lora
from learner.training.batches.packing import Layout, dealt_microbatches, microbatches
from learner.training.batches.sequences import Ragged
from learner.training.distributed.ranks import Ranks
from learner.training.distributed.sharding import layers_of, whole
from learner.training.model.export import Unit, cut_shards, export
from learner.training.model.loading import make_model
from learner.training.model.policy import Policy, load_policy
from learner.training.model.tensor_mapping import Part
from tests.support.disks import file_limit

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
QWEN3: dict[str, Any] = {**SIZES, "head_dim": 8, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
DTYPES: tuple[ComputeDtype, ...] = ("float32", "bfloat16")
CONFIGS = {
    "qwen3-tied": Qwen3Config(**QWEN3),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
}


def write_model(directory: Path, kind: str, **options: Any) -> Path:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(CONFIGS[kind]).save_pretrained(directory, **options)
    return directory


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tied Qwen3 directory; tests copy it before they spoil it."""
    return write_model(tmp_path_factory.mktemp("models") / "qwen3", "qwen3-tied")


def copy_of(directory: Path, target: Path) -> Path:
    target.mkdir()
    for file in directory.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def change_config(directory: Path, **changes: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))


def groups(vocab_size: int = 40) -> Ragged:
    """Three sequences with one prompt, and one with another, of different lengths."""
    generator = np.random.default_rng(0)
    prompt, other = generator.integers(0, vocab_size, 5), generator.integers(0, vocab_size, 3)
    answers = [generator.integers(0, vocab_size, length) for length in (2, 4, 1, 6)]
    parts = [(prompt, answers[0]), (prompt, answers[1]), (prompt, answers[2]), (other, answers[3])]
    return Ragged(
        tokens=np.concatenate([np.concatenate(pair) for pair in parts]),
        lengths=np.array([len(p) + len(a) for p, a in parts]),
        targets=np.concatenate([[False] * len(p) + [True] * len(a) for p, a in parts]),
    )


def literal_scores(directory: Path, batch: Ragged, temperature: float) -> tuple[list[float], list[float]]:
    """Logprobs and entropies of all targets: one sequence at a time, all logits, plain log_softmax."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
    logprobs: list[float] = []
    entropies: list[float] = []
    for tokens, targets in zip(
        np.split(batch.tokens, np.cumsum(batch.lengths)[:-1]),
        np.split(batch.targets, np.cumsum(batch.lengths)[:-1]),
        strict=True,
    ):
        with torch.no_grad():
            rows = torch.log_softmax(model(torch.from_numpy(tokens)[None]).logits[0] / temperature, dim=-1)
        for place in np.flatnonzero(targets):
            logprobs.append(rows[place - 1, tokens[place]].item())
            entropies.append(-sum(p * math.log(p) for p in rows[place - 1].double().exp().tolist()))
    return logprobs, entropies


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_equal_a_literal_forward_pass(tmp_path: Path, kind: str, temperature: float) -> None:
    directory = write_model(tmp_path / "model", kind, max_shard_size="20KB")
    assert (directory / "model.safetensors.index.json").exists()
    policy = load_policy(directory)
    batch = groups()
    logprobs, entropies = literal_scores(directory, batch, temperature)
    assert policy.layout is Layout.GROUPS
    for share in (True, False):
        found = np.empty((2, len(logprobs)))
        for part in microbatches(batch, np.ones(4, np.bool_), 24, share_prompts=share):
            scores = policy.score(part, temperature)
            found[:, part.numbers] = np.stack([scores.logprobs.detach().numpy(), scores.entropy.numpy()])
        assert found[0] == pytest.approx(logprobs, abs=2e-5)
        assert found[1] == pytest.approx(entropies, abs=2e-5)


def test_the_head_runs_on_everything_where_logits_are_scaled_after_it(tmp_path: Path) -> None:
    # Granite divides its logits after the head, so the head alone would give other logprobs.
    from transformers import GraniteConfig

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(GraniteConfig(**SIZES, logits_scaling=3.0))
    model.save_pretrained(tmp_path / "model")
    policy = load_policy(tmp_path / "model")
    batch = groups()
    (part,) = microbatches(batch, np.ones(4, np.bool_), 1000, share_prompts=policy.layout is Layout.GROUPS)
    expected, _ = literal_scores(tmp_path / "model", batch, 1.0)
    found = np.empty(len(expected))
    found[part.numbers] = policy.score(part, 1.0).logprobs.detach().numpy()
    assert found == pytest.approx(expected, abs=2e-5)


def test_a_model_that_windows_its_attention_keeps_its_window(tmp_path: Path) -> None:
    # A window of 3 would hide the prompt from late siblings, or show too much, were it lost in the mask.
    torch.manual_seed(0)
    config = Qwen3Config(**QWEN3, use_sliding_window=True, sliding_window=3, max_window_layers=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    policy = load_policy(tmp_path / "model")
    batch = groups()
    (part,) = microbatches(batch, np.ones(4, np.bool_), 1000, share_prompts=policy.layout is Layout.GROUPS)
    expected, _ = literal_scores(tmp_path / "model", batch, 1.0)
    found = np.empty(len(expected))
    found[part.numbers] = policy.score(part, 1.0).logprobs.detach().numpy()
    assert policy.layout is Layout.ROWS
    assert found == pytest.approx(expected, abs=2e-5)


def pair(prompt: int, answer: int) -> Ragged:
    """Two siblings of random tokens, whose prompt and answers have so many."""
    generator = np.random.default_rng(1)
    shared = generator.integers(0, 40, prompt)
    parts = [np.concatenate([shared, generator.integers(0, 40, answer)]) for _ in range(2)]
    targets = np.tile(np.arange(prompt + answer) >= prompt, 2)
    return Ragged(tokens=np.concatenate(parts), lengths=np.full(2, prompt + answer), targets=targets)


def scored(policy: Policy, batch: Ragged) -> list[float]:
    """Logprobs of all targets, laid out as the policy likes it."""
    found = np.full(int(batch.targets.sum()), np.nan)
    keep = np.ones(len(batch), np.bool_)
    for part in microbatches(batch, keep, 1000, share_prompts=policy.layout is Layout.GROUPS):
        found[part.numbers] = policy.score(part, 1.0).logprobs.detach().numpy()
    return list(found)


@pytest.mark.parametrize("window", [16, 40])
def test_a_window_that_is_narrower_than_a_row_is_kept(tmp_path: Path, window: int) -> None:
    """Wider than the few tokens that a model is tried on."""
    torch.manual_seed(0)
    sizes = {**QWEN3, "max_position_embeddings": 128}
    config = Qwen3Config(**sizes, use_sliding_window=True, sliding_window=window, max_window_layers=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    batch = pair(50, 30)
    expected, _ = literal_scores(tmp_path / "model", batch, 1.0)
    assert scored(load_policy(tmp_path / "model"), batch) == pytest.approx(expected, abs=2e-5)


def test_logits_that_are_capped_softly_are_capped_in_bfloat16_as_well(tmp_path: Path) -> None:
    """A cap at 30 bends logits of 10 by 0.4, which is within what bfloat16 rounds of the largest of many."""
    torch.manual_seed(0)
    config = Gemma2Config(**{**SIZES, "initializer_range": 0.4}, head_dim=8, sliding_window=512)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    ranks = Ranks()
    ranks.place("cpu", "bfloat16")
    assert not load_policy(tmp_path / "model", ranks=ranks)._forward.head_applies_alone


SMALL: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "num_attention_heads": 4}
BY_CHANCE = {
    "phimoe": PhimoeConfig(
        **SMALL,
        num_hidden_layers=2,
        intermediate_size=48,
        num_key_value_heads=2,
        num_local_experts=4,
        router_jitter_noise=0.3,
        input_jitter_noise=0.3,
        initializer_range=0.3,
    ),
    "opt": OPTConfig(**SMALL, num_hidden_layers=2, ffn_dim=48, word_embed_proj_dim=32, dropout=0.3, layerdrop=0.3),
    "bloom": BloomConfig(**SMALL, n_layer=2, hidden_dropout=0.3, attention_dropout=0.3),
}
"""Models that leave something to chance in training; what BLOOM makes of masks is its own besides, and what the routers
of Phi-3.5-MoE make of their jitter where they draw nothing."""


@pytest.mark.parametrize("kind", BY_CHANCE)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_is_left_to_chance(tmp_path: Path, kind: str, checkpointing: bool) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(BY_CHANCE[kind]).save_pretrained(tmp_path / "model")
    expected, _ = literal_scores(tmp_path / "model", groups(), 1.0)
    policy = load_policy(tmp_path / "model", gradient_checkpointing=checkpointing)
    assert scored(policy, groups()) == pytest.approx(expected, abs=2e-5)


def end_to_end(policy: Policy, batch: Ragged) -> list[float]:
    """Logprobs of all targets, scored with two sequences or so in each microbatch."""
    found = np.full(int(batch.targets.sum()), np.nan)
    keep = np.ones(len(batch), np.bool_)
    for part in dealt_microbatches(batch, keep, 14, layout=Layout.END_TO_END, rank=0, ranks=1):
        assert part is not None
        assert part.inputs.shape == (1, int(part.inputs.numel()))
        found[part.numbers] = policy.score(part, 1.0).logprobs.detach().numpy()
    return list(found)


@pytest.mark.parametrize("kind", [*CONFIGS, "window"])
def test_sequences_end_to_end_are_scored_as_each_alone(tmp_path: Path, kind: str) -> None:
    if kind == "window":
        torch.manual_seed(0)
        config = Qwen3Config(**QWEN3, use_sliding_window=True, sliding_window=3, max_window_layers=1)
        AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    else:
        write_model(tmp_path / "model", kind)
    policy = load_policy(tmp_path / "model")
    assert policy.lay_end_to_end()
    assert policy.layout is Layout.END_TO_END
    expected, _ = literal_scores(tmp_path / "model", groups(), 1.0)
    assert end_to_end(policy, groups()) == pytest.approx(expected, abs=2e-5)


def test_a_model_that_reads_all_of_a_row_keeps_a_row_for_each_sequence(tmp_path: Path) -> None:
    from transformers import RecurrentGemmaConfig

    torch.manual_seed(0)
    sizes = {name: value for name, value in SIZES.items() if name not in ("max_position_embeddings",)}
    config = RecurrentGemmaConfig(**sizes, lru_width=32, head_dim=8, attention_window_size=8, num_layers=3)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    policy = load_policy(tmp_path / "model")
    before = policy.layout
    assert not policy.lay_end_to_end()
    assert policy.layout is before
    (part,) = microbatches(groups(), np.ones(4, np.bool_), 1000, share_prompts=False)
    assert torch.isfinite(policy.score(part, 1.0).logprobs).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_are_known_whether_they_are_cut_or_not(qwen3: Path, dtype: ComputeDtype) -> None:
    """In bfloat16 a policy is cut by FSDP, on one rank as well, as it always is on a GPU."""
    ranks = Ranks()
    ranks.place("cpu", dtype)
    policy = load_policy(qwen3, ranks=ranks)
    assert layers_of(policy.model) == list(policy.model.model.layers)
    assert (ranks.mesh is not None) == (dtype == "bfloat16")


@pytest.mark.slow
def test_compiled_layers_compute_the_same(qwen3: Path) -> None:
    """In bfloat16 not the very same, since what is fused is not rounded in between, but nothing further from the
    truth."""
    batch = groups()
    (part,) = microbatches(batch, np.ones(4, np.bool_), 1000, share_prompts=True)
    found = dict[tuple[ComputeDtype, bool], torch.Tensor]()
    for dtype, compile in product(DTYPES, (False, True)):
        ranks = Ranks()
        ranks.place("cpu", dtype)
        policy = load_policy(qwen3, ranks=ranks, compile=compile)
        assert all(("forward" in vars(layer)) == compile for layer in policy.model.model.layers)
        scores = policy.score(part, 1.0)
        scores.logprobs.sum().backward()
        gradients = [whole(tensor.grad).flatten() for _, tensor in policy.parameters if tensor.grad is not None]
        assert len(gradients) == len(policy.parameters)
        found[dtype, compile] = torch.cat([scores.logprobs.detach(), scores.entropy, *gradients])
    truth = found["float32", False]
    apart = {key: float((values - truth).norm() / truth.norm()) for key, values in found.items()}
    assert apart["float32", True] < 1e-5
    assert apart["bfloat16", True] < 1.2 * apart["bfloat16", False] < 0.1


def test_gradient_checkpointing_computes_the_same(qwen3: Path) -> None:
    batch = groups()
    (part,) = microbatches(batch, np.ones(4, np.bool_), 1000, share_prompts=True)
    gradients, passes = [], []
    for checkpointing in (False, True):
        policy = load_policy(qwen3, gradient_checkpointing=checkpointing)
        counted: list[None] = []
        norm = policy.model.model.layers[0].input_layernorm
        norm.register_forward_hook(lambda *_, counted=counted: counted.append(None))
        policy.score(part, 1.0).logprobs.sum().backward()
        passes.append(len(counted))
        gradients.append(
            torch.cat([tensor.grad.flatten() for _, tensor in policy.parameters if tensor.grad is not None])
        )
    torch.testing.assert_close(*gradients)
    assert passes == [1, 2], "the backward pass must recompute what was not kept"


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_in_several_goes_are_those_of_one(
    qwen3: Path, monkeypatch: pytest.MonkeyPatch, dtype: ComputeDtype
) -> None:
    """Blocks of three targets, the last one smaller, and entropies of two at a time; in bfloat16 under FSDP."""
    (part,) = microbatches(groups(), np.ones(4, np.bool_), 1000, share_prompts=True)
    found = []
    for logits, entropies in (
        (learner.training.model.policy.LOGITS_BLOCK, learner.training.model.policy.ENTROPY_BLOCK),
        (3 * 40, 2 * 40),
    ):
        monkeypatch.setattr("learner.training.model.policy.LOGITS_BLOCK", logits)
        monkeypatch.setattr("learner.training.model.policy.ENTROPY_BLOCK", entropies)
        ranks = Ranks()
        ranks.place("cpu", dtype)
        policy = load_policy(qwen3, ranks=ranks)
        scores = policy.score(part, 0.7)
        scores.logprobs.sum().backward()
        gradients = [whole(tensor.grad).flatten() for _, tensor in policy.parameters if tensor.grad is not None]
        assert len(gradients) == len(policy.parameters)
        found.append(torch.cat([scores.logprobs.detach(), scores.entropy, *gradients]))
    assert len(part.tokens) % 3 == 1
    apart = (found[0] - found[1]).norm() / found[0].norm()
    assert apart < {"float32": 1e-6, "bfloat16": 1e-2}[dtype]


def stored(directory: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in directory.glob("*.safetensors"):
        with safe_open(file, "pt") as tensors:
            found |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
    return found


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_export_holds_the_same_tensors_as_its_source(tmp_path: Path, kind: str) -> None:
    source = write_model(tmp_path / "model", kind)
    files = export(load_policy(source), tmp_path / "export", "float32", 1 << 30).files
    before, after = stored(source), stored(tmp_path / "export")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert sorted(file.name for file in (tmp_path / "export").iterdir()) == files


def test_a_sharded_bfloat16_export_loads_in_transformers(tmp_path: Path, qwen3: Path) -> None:
    policy = load_policy(qwen3)
    files = export(policy, tmp_path / "export", "bfloat16", 8_000).files
    assert "model.safetensors.index.json" in files
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert loaded.dtype == torch.bfloat16
    for name, parameter in policy.parameters:
        assert torch.equal(loaded.state_dict()[name], parameter.detach().bfloat16())
    assert load_policy(tmp_path / "export").fingerprint == policy.fingerprint


def test_equal_weights_give_equal_bytes(tmp_path: Path, qwen3: Path) -> None:
    for name in ("one", "two"):
        export(load_policy(qwen3), tmp_path / name, "bfloat16", 8_000)
    contents = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two")]
    assert contents[0] == contents[1]


def test_only_known_companions_travel_and_the_config_stays_as_it_was(tmp_path: Path, qwen3: Path) -> None:
    source = copy_of(qwen3, tmp_path / "model")
    change_config(source, a_note_of_its_author="kept")
    for name in ("tokenizer.json", "chat_template.jinja", "modeling_evil.py", "pytorch_model.bin", "notes.txt"):
        (source / name).write_text("{}")
    files = export(load_policy(source), tmp_path / "export", "bfloat16", 1 << 30).files
    assert files == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    before, after = (json.loads((place / "config.json").read_text()) for place in (source, tmp_path / "export"))
    assert after == {**before, "dtype": "bfloat16"}


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)], ids=["whole", "adapter"])
def test_an_export_is_spoken_to_as_it_was_trained(tmp_path: Path, qwen3: Path, lora: Lora | None) -> None:
    source = copy_of(qwen3, tmp_path / "model")
    (source / "chat_template.json").write_text("{}")
    before = json.loads((source / "generation_config.json").read_text())
    policy = load_policy(source, lora=lora, chat_template="{{ messages }}", stop_ids=(3, 7))
    export(policy, tmp_path / "export", "bfloat16", 1 << 30)
    assert (tmp_path / "export/chat_template.jinja").read_text() == "{{ messages }}"
    assert not (tmp_path / "export/chat_template.json").exists(), "some loaders would take it first"
    assert json.loads((tmp_path / "export/generation_config.json").read_text()) == {**before, "eos_token_id": [3, 7]}
    assert GenerationConfig.from_pretrained(tmp_path / "export").eos_token_id == [3, 7]


def test_stop_ids_need_no_generation_config_before(tmp_path: Path, qwen3: Path) -> None:
    source = copy_of(qwen3, tmp_path / "model")
    (source / "generation_config.json").unlink()
    export(load_policy(source, stop_ids=(3,)), tmp_path / "export", "bfloat16", 1 << 30)
    assert GenerationConfig.from_pretrained(tmp_path / "export").eos_token_id == [3]
    (source / "generation_config.json").write_text("{")
    with pytest.raises(BadModel, match=r"generation_config\.json cannot be read as JSON"):
        load_policy(source, stop_ids=(3,))


def test_an_export_never_replaces_a_directory(tmp_path: Path, qwen3: Path) -> None:
    (tmp_path / "export").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        export(load_policy(qwen3), tmp_path / "export", "bfloat16", 1 << 30)


def test_what_a_kill_left_of_an_export_is_removed(tmp_path: Path, qwen3: Path) -> None:
    left = tmp_path / ".export.partial"
    left.mkdir()
    (left / "model-00001-of-00002.safetensors").write_bytes(b"half")
    files = export(load_policy(qwen3), tmp_path / "export", "bfloat16", 1 << 30).files
    assert "model-00001-of-00002.safetensors" not in files
    assert not left.exists()


def test_a_disk_that_refuses_leaves_nothing_behind(tmp_path: Path, qwen3: Path) -> None:
    policy = load_policy(qwen3)
    with file_limit(10_000), pytest.raises(OSError, match="File too large"):
        export(policy, tmp_path / "export", "float32", 1 << 30)
    with file_limit(10_000), pytest.raises(OSError, match=r"large|write"):
        make_model(tmp_path / "made", QWEN3, 0)
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []


def test_shards_are_cut_in_order_and_within_the_limit() -> None:
    def unit(name: str, size: int) -> Unit:
        entry = TensorEntry(name=name, dtype="U8", shape=(size,), size_bytes=size)
        return Unit(part=Part(sources=[(name, name)], targets=[name]), dtype=torch.uint8, entries=(entry,))

    units = [unit("a", 4), unit("b", 6), unit("c", 30), unit("d", 1)]
    names = [[entry.name for one in shard for entry in one.entries] for shard in cut_shards(units, 10)]
    assert names == [["a", "b"], ["c"], ["d"]]


def spoil_nothing_there(directory: Path) -> None:
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def spoil_no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def spoil_config(directory: Path) -> None:
    (directory / "config.json").write_text("{")


def spoil_no_weights(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def spoil_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def spoil_code(directory: Path) -> None:
    change_config(directory, auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})


def spoil_type(directory: Path) -> None:
    change_config(directory, model_type="no-such-model")


def spoil_quantised(directory: Path) -> None:
    change_config(directory, quantization_config={"quant_method": "fp8"})


def spoil_layers(directory: Path) -> None:
    change_config(directory, num_hidden_layers=3, layer_types=["full_attention"] * 3)


def spoil_shape(directory: Path) -> None:
    change_config(directory, vocab_size=50)


def spoil_index(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": "../elsewhere.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def spoil_shard(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (spoil_nothing_there, "is not a directory"),
        (spoil_no_config, "has no config.json"),
        (spoil_config, r"config.json cannot be read as JSON"),
        (spoil_no_weights, "neither model.safetensors nor"),
        (spoil_weights, "model.safetensors is not a valid safetensors file"),
        (spoil_code, "auto_map"),
        (spoil_type, "no-such-model"),
        (spoil_quantised, "quantised"),
        (spoil_layers, "lacks .* tensors"),
        (spoil_shape, "could not be loaded"),
        (spoil_index, "outside the directory"),
        (spoil_shard, "model-00001-of-00001.safetensors is missing"),
    ],
)
def test_what_is_no_trainable_model_is_refused_with_its_name(
    tmp_path: Path, qwen3: Path, spoil: Any, said: str
) -> None:
    directory = copy_of(qwen3, tmp_path / "model")
    spoil(directory)
    with pytest.raises(BadModel, match=said) as caught:
        load_policy(directory)
    assert str(directory) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_equal_seeds_make_equal_models(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    for name, seed in (("one", 5), ("two", 5), ("three", 6)):
        make_model(tmp_path / name, QWEN3, seed)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two", "three")]
    assert weights[0] == weights[1] != weights[2]
    assert torch.equal(state, torch.get_rng_state())


def test_a_made_model_obeys_its_config(tmp_path: Path) -> None:
    count = make_model(tmp_path, QWEN3, 0)
    policy: Policy = load_policy(tmp_path)
    assert policy.num_parameters == count
    assert policy.vocab_size == 40
    assert dict(policy.parameters)["model.embed_tokens.weight"].std().item() == pytest.approx(0.2, rel=0.1)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 2


@pytest.mark.parametrize(
    ("config", "said"), [({"hiden_size": 96}, "hiden_size: no such field"), ({"hidden_size": "wide"}, "do not make")]
)
def test_a_config_that_makes_no_model_is_refused(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(BadModel, match=said):
        make_model(tmp_path / "model", config, 0)
    assert not (tmp_path / "model").exists()


def test_a_model_is_never_overwritten(tmp_path: Path, qwen3: Path) -> None:
    with pytest.raises(BadModel, match="holds a model already"):
        make_model(copy_of(qwen3, tmp_path / "model"), QWEN3, 0)
