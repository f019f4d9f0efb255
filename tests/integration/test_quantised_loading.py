"""Load a version in few bits: each way gives the same numbers, and never holds the full version in memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from node.engine.common_worker.errors import Broken, Refused
from node.engine.common_worker.generate_call import Call, Row
from node.engine.transformers_worker import quantised_loading
from node.engine.transformers_worker.generation import Generator
from node.engine.transformers_worker.policy import Policy, Settings
from node.engine.transformers_worker.quantised_loading import held_bytes, quantise
from node.engine.transformers_worker.quantised_weights import SCHEMES, QuantisedWeight
from tests.support.node_fixtures import Models

FORMS = sorted(SCHEMES)


def loaded(directory: Path, form: str) -> Policy:
    policy = Policy(Settings(device="cpu", quantization=form))
    policy.install(directory, {"version": 1})
    return policy


def numbers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return every weight and buffer; for weights in few bits, the tensors that hold them."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]:
        if isinstance(tensor, QuantisedWeight):
            found |= {f"{name}.{part}": held for part, held in tensor.parts.items()}
        else:
            found[name] = tensor.detach()
    return found


def same(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = numbers(one), numbers(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["first", "untied", "llama"])
def test_reading_in_blocks_is_loading_and_then_quantising(models: Models, name: str, form: str) -> None:
    directory = getattr(models, name)
    whole = Policy(Settings(device="cpu"))
    whole.install(directory, {})
    quantise(whole.model, SCHEMES[form])
    assert same(loaded(directory, form).model, whole.model)


@pytest.mark.parametrize("form", FORMS)
def test_shards_make_no_difference(models: Models, form: str) -> None:
    assert same(loaded(models.first, form).model, loaded(models.sharded, form).model)


@pytest.mark.parametrize("form", FORMS)
def test_a_new_version_goes_where_the_old_one_is(models: Models, form: str) -> None:
    policy = loaded(models.first, form)
    places = {name: tensor.data_ptr() for name, tensor in numbers(policy.model).items()}
    assert policy.install(models.second, {"version": 2})
    assert {name: tensor.data_ptr() for name, tensor in numbers(policy.model).items()} == places
    assert same(policy.model, loaded(models.second, form).model)


def test_another_format_is_another_load(models: Models) -> None:
    policy = loaded(models.first, "int8")
    assert policy.describe()["quantization"] == "int8"
    assert not policy.install(models.first, {"version": 2, "weights": "int4"})
    assert policy.describe()["quantization"] == "int4"
    assert not policy.install(models.first, {"version": 3, "weights": "stored"})
    assert policy.describe()["quantization"] == ""
    with pytest.raises(Refused, match="holds weights as stored, int8, int4, not as 'int2'"):
        policy.install(models.first, {"version": 4, "weights": "int2"})
    assert policy.version == {"version": 3, "weights": "stored"}


def test_tied_weights_are_held_once(models: Models) -> None:
    tied, untied = (loaded(directory, "int8").model for directory in (models.first, models.untied))
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight
    assert held_bytes(untied) > held_bytes(tied)
    assert loaded(models.first, "int8").describe()["parameters"] == loaded(models.first, "").describe()["parameters"]


@pytest.mark.parametrize("form", FORMS)
def test_what_a_directory_lacks_is_named(models: Models, form: str) -> None:
    policy = loaded(models.first, form)
    for directory in (models.without_tensor, models.misshapen):
        with pytest.raises(Refused, match=r"model\.norm\.weight"):
            policy.install(directory, {"version": 2})
    with pytest.raises(Refused):
        policy.install(models.truncated, {"version": 2})
    assert policy.version == {"version": 1}


def test_a_swap_that_fails_halfway_ends_the_process(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = loaded(models.first, "int8")

    def fail(*_: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(QuantisedWeight, "write_rows", fail)
    with pytest.raises(Broken, match="the disk is gone"):
        policy.install(models.second, {"version": 2})


def test_an_adapter_is_added_before_weights_are_rounded(models: Models, tmp_path: Path) -> None:
    directory = tmp_path / "adapted"
    shutil.copytree(models.first, directory)
    weights = load_file(models.first / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    out, columns = weights[f"{name}.weight"].shape
    down, up = torch.randn(4, columns), torch.randn(out, 4)
    prefix = f"base_model.model.{name}"
    save_file({f"{prefix}.lora_A.weight": down, f"{prefix}.lora_B.weight": up}, directory / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "lora_alpha": 8, "r": 4}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    merged = tmp_path / "merged"
    shutil.copytree(models.first, merged)
    weights[f"{name}.weight"] = weights[f"{name}.weight"].float() + 2.0 * (up @ down)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    expected = loaded(merged, "int4").model
    policy = loaded(directory, "int4")
    assert same(policy.model, expected)
    policy.install(models.second, {"version": 2})
    assert policy.install(directory, {"version": 3}), "in place"
    assert same(policy.model, expected)


def test_a_model_that_does_something_else_with_its_weights_is_refused(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: nn.Linear, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.weight.t()

    monkeypatch.setattr(nn.Linear, "forward", forward)
    with pytest.raises(Refused, match="a quantised weight, which only supports linear layers and embeddings"):
        loaded(models.first, "int8")


def test_where_names_are_not_the_models_own_it_is_loaded_in_full_first(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = loaded(models.first, "int8").model
    monkeypatch.setattr("node.engine.transformers_worker.policy._sources", lambda model, files: None)
    assert same(loaded(models.first, "int8").model, expected)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_made_says_how_likely_it_was(models: Models, form: str) -> None:
    policy = loaded(models.first, form)
    rows = [
        Row(call=Call(0), prompt=(1, 2, 3), seed=seed, temperature=1.0, greedy=False, budget=12, stop_ids=(0,))
        for seed in range(20)
    ]
    Generator(policy, lambda: False).run(rows)
    for row in rows:
        ids = torch.tensor([[*row.prompt, *row.tokens.tolist()]])
        with torch.inference_mode():
            logprobs = policy.model(ids).logits[0].log_softmax(-1)[2:-1]
        told = [float(logprobs[place, token]) for place, token in enumerate(row.tokens.tolist())]
        assert row.logprobs.tolist() == pytest.approx(told, abs=1e-4)


def test_no_more_than_a_block_is_made_full(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    write = QuantisedWeight.write_rows

    def watched(self: QuantisedWeight, first: int, rows: torch.Tensor) -> None:
        nonlocal largest
        largest = max(largest, rows.numel())
        write(self, first, rows)

    monkeypatch.setattr(QuantisedWeight, "write_rows", watched)
    monkeypatch.setattr("node.engine.transformers_worker.quantised_weights.CPU_BLOCK", 1 << 12)
    loaded(models.first, "int4")
    assert 0 < largest <= 1 << 12


@pytest.mark.parametrize("form", FORMS)
def test_where_memory_is_short_weights_lie_in_files(models: Models, form: str, tmp_path: Path) -> None:
    roomy = loaded(models.first, form)
    tight = Policy(Settings(device="cpu", quantization=form, ram_bytes=quantised_loading.PROCESS_BYTES))
    tight.install(models.first, {"version": 1})
    held = [one for one in tight.model.parameters() if isinstance(one, QuantisedWeight)]
    assert held
    assert all(one._file is not None for one in held)
    assert all(one._file is None for one in roomy.model.parameters() if isinstance(one, QuantisedWeight))
    assert same(tight.model, roomy.model)
    assert tight.install(models.second, {"version": 2})
    roomy.install(models.second, {"version": 2})
    assert same(tight.model, roomy.model)


def test_a_disk_without_room_is_told(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    policy = Policy(Settings(device="cpu", quantization="int8", ram_bytes=quantised_loading.PROCESS_BYTES))
    with pytest.raises(Refused, match="No space left on device"):
        policy.install(models.first, {"version": 1})
    assert policy.version is None
