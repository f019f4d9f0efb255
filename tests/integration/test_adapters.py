"""An adapter trains, travels alone beside its base model, and is merged by the engine to what the trainer has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.artifacts.chunk_names import ChunkNames
from learner.artifacts.version_builder import Base, VersionBuilder, new_bytes
from learner.training.server import Trainer
from node.engine.common_worker.errors import Refused
from node.engine.common_worker.generate_call import Call, Row
from node.engine.transformers_worker.generation import Generator
from node.engine.transformers_worker.policy import Policy, Settings
from protocol.core.pipe import Arrays, Header
from protocol.versions.chunking import Source
from tests.support.trainer_fixture import NOW_MS, SWARM, version

CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": True,
}
LORA = {"rank": 4, "alpha": 8}
PROMPTS = [(1, 2, 3), (4, 5), (30, 31, 32, 33)]


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory on the disk of the model, so that files can be linked."""
    return tmp_path_factory.mktemp("test")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "base"
    ok(Trainer(), "make_model", directory=str(directory), config=CONFIG)
    return directory


@pytest.fixture
def trainer(model: Path) -> Trainer:
    return loaded(model)


def loaded(model: Path, lora: dict[str, Any] = LORA, **changes: Any) -> Trainer:
    trainer = Trainer()
    hyperparameters = {"learning_rate": 1e-2, "max_new_tokens": 6, **changes}
    ok(trainer, "load", directory=str(model), hyperparameters=hyperparameters, lora=lora)
    return trainer


def ok(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 7, "op": op, **fields}, arrays or {})
    assert reply["ok"], reply
    return reply


def rollouts(seed: int) -> Arrays:
    """Return a group of four completions of six tokens."""
    generator = np.random.default_rng(seed)
    tokens = [np.concatenate([[1, 2, 3], generator.integers(0, 40, 6)]) for _ in range(4)]
    return scored(tokens) | {
        "behaviour_logprobs": np.full(24, np.log(1 / 40), np.float32),
        "lags": np.zeros(24, np.int32),
        "rewards": generator.normal(size=4).astype(np.float32),
        "group_sizes": np.array([4], np.int32),
        "origins": np.zeros(4, np.uint8),
    }


def scored(sequences: list[np.ndarray[Any, Any]]) -> Arrays:
    """Return sequences whose last six tokens count."""
    return {
        "tokens": np.concatenate(sequences).astype(np.int32),
        "lengths": np.array([len(one) for one in sequences], np.int32),
        "mask": np.concatenate([np.arange(len(one)) >= len(one) - 6 for one in sequences]).astype(np.uint8),
    }


def trained(trainer: Trainer, place: Path, seed: int) -> Path:
    ok(trainer, "step", rollouts(seed))
    ok(trainer, "export", directory=str(place), dtype="float32")
    return place


def greedy(policy: Policy) -> list[Row]:
    call = Call(0)
    rows = [
        Row(call=call, prompt=prompt, seed=0, temperature=1.0, greedy=True, budget=6, stop_ids=()) for prompt in PROMPTS
    ]
    Generator(policy, lambda: False).run(rows)
    return rows


def require_equal(rows: list[Row], trainer: Trainer) -> None:
    """Check that the rows are greedy under the trainer's weights, with the trainer's log probabilities."""
    sequences = [np.array([*row.prompt, *row.tokens]) for row in rows]
    _, found = trainer.answer({"id": 1, "op": "logprobs"}, scored(sequences))
    assert found["logprobs"] == pytest.approx(np.concatenate([row.logprobs for row in rows]), abs=1e-5)


def test_only_the_adapter_trains_and_the_base_model_is_the_very_files(
    tmp_path: Path, model: Path, trainer: Trainer
) -> None:
    export = trained(trainer, tmp_path / "export", 0)
    assert (export / "model.safetensors").stat().st_ino == (model / "model.safetensors").stat().st_ino
    assert (export / "config.json").read_bytes() == (model / "config.json").read_bytes()
    adapter = load_file(export / "adapter_model.safetensors")
    assert len(adapter) == 2 * 2 * 7, "there must be A and B of seven projections in two layers"
    assert all(tensor.abs().max() > 0 for tensor in adapter.values()), "a part of B is still zero"
    ok(trainer, "save", directory=str(tmp_path / "checkpoint"))
    head = json.loads((tmp_path / "checkpoint" / "trainer.json").read_text())
    assert all("lora_" in name or name.startswith("rng/") for name in head["index"])


def test_peft_loads_what_was_exported(tmp_path: Path, model: Path, trainer: Trainer) -> None:
    export = trained(trainer, tmp_path / "export", 0)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, export)
    arrays = scored([np.arange(9), np.arange(20, 30)])
    _, found = trainer.answer({"id": 1, "op": "logprobs"}, arrays)
    expected: list[float] = []
    for tokens in (torch.arange(9), torch.arange(20, 30)):
        rows = theirs(tokens[None]).logits[0].log_softmax(-1)
        expected += [float(rows[place - 1, tokens[place]]) for place in range(len(tokens) - 6, len(tokens))]
    assert found["logprobs"] == pytest.approx(expected, abs=1e-5)


def test_an_engine_merges_each_version_into_the_base_model(tmp_path: Path, model: Path, trainer: Trainer) -> None:
    policy = Policy(Settings(device="cpu"))
    said = []
    for seed in range(3):
        in_place = policy.install(trained(trainer, tmp_path / str(seed), seed), {"version": seed})
        assert in_place == (seed > 0)
        rows = greedy(policy)
        require_equal(rows, trainer)
        said.append([row.tokens.tolist() for row in rows])
    assert len({json.dumps(one) for one in said}) > 1, "the versions differ"
    policy.install(model, {})
    require_equal(greedy(policy), loaded(model))


def test_a_bad_adapter_is_refused_and_what_was_in_service_stays(tmp_path: Path, trainer: Trainer) -> None:
    policy = Policy(Settings(device="cpu"))
    policy.install(trained(trainer, tmp_path / "good", 0), {"version": 1})
    before = [row.tokens.tolist() for row in greedy(policy)]
    config = json.loads((tmp_path / "good" / "adapter_config.json").read_text())
    adapter = (tmp_path / "good" / "adapter_model.safetensors").read_bytes()
    for number, (changes, weights, said) in enumerate(
        [
            ({"peft_type": "IA3"}, adapter, "does not describe a LoRA adapter"),
            ({"use_dora": True}, adapter, "use_dora"),
            ({"bias": "all"}, adapter, "bias"),
            ({}, adapter.replace(b"q_proj.lora_A", b"z_proj.lora_A"), "not pairs of A and B"),
            ({}, adapter.replace(b"q_proj.lora_", b"z_proj.lora_"), "does not fit"),
        ]
    ):
        bad = tmp_path / str(number)
        ok(trainer, "export", directory=str(bad), dtype="float32")
        (bad / "adapter_config.json").write_text(json.dumps(config | changes))
        (bad / "adapter_model.safetensors").write_bytes(weights)
        with pytest.raises(Refused, match=said):
            policy.install(bad, {"version": 2})
        assert policy.version == {"version": 1}
        assert [row.tokens.tolist() for row in greedy(policy)] == before


def test_a_version_costs_its_adapter_and_no_more(tmp_path: Path, trainer: Trainer) -> None:
    publisher = VersionBuilder(learner=SWARM.learner, authority=SWARM.authority, certificate=SWARM.certificate)
    first, second = (trained(trainer, tmp_path / str(seed), seed) for seed in range(2))
    one = publisher.publish(first, version("1.0"), None, NOW_MS).signed
    base = Base(manifest=one, directory=first)
    two = publisher.publish(second, version("1.1"), one.hash, NOW_MS + 1, [base]).signed
    adapter = (second / "adapter_model.safetensors").stat().st_size
    assert 0 < new_bytes(two.manifest, one.manifest) <= adapter
    assert [entry.chunks for entry in one.manifest.files if entry.name == "model.safetensors"] != []


def test_files_that_stay_are_hashed_once(tmp_path: Path, trainer: Trainer) -> None:
    names, read = ChunkNames(), []

    def sources(directory: Path) -> list[Source]:
        def source(path: Path) -> Source:
            def read_some(offset: int, size: int) -> bytes:
                read.append((path.name, size))
                return path.read_bytes()[offset : offset + size]

            return Source(name=path.name, size=path.stat().st_size, read=read_some)

        return [source(path) for path in sorted(directory.iterdir())]

    first, second = (trained(trainer, tmp_path / str(seed), seed) for seed in range(2))
    size = (first / "model.safetensors").stat().st_size
    tables = []
    for directory in (first, second):
        read.clear()
        tables.append(names.describe(sources(directory), directory))
        base = sum(size for name, size in read if name == "model.safetensors")
        assert (base >= size) == (directory == first), "only the first file holds the whole base"
    assert tables[1] == ChunkNames().describe(sources(second), second)


def test_the_reference_of_a_kl_is_the_base_model(tmp_path: Path, model: Path) -> None:
    trainer = loaded(model, kl=0.1)
    assert ok(trainer, "step", rollouts(0))["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert ok(trainer, "step", rollouts(1))["reference_kl"] > 1e-6


def test_a_checkpoint_goes_on_with_its_own_base_model_alone(tmp_path: Path, model: Path, trainer: Trainer) -> None:
    ok(trainer, "step", rollouts(0))
    ok(trainer, "save", directory=str(tmp_path / "checkpoint"))
    straight = ok(trainer, "step", rollouts(1))["loss"]
    again = loaded(model)
    ok(again, "restore", directory=str(tmp_path / "checkpoint"))
    assert ok(again, "step", rollouts(1))["loss"] == straight
    ok(Trainer(), "make_model", directory=str(tmp_path / "other"), config=CONFIG, seed=1)
    for other in (loaded(tmp_path / "other"), loaded(model, {"rank": 4, "alpha": 16})):
        reply, _ = other.answer({"id": 1, "op": "restore", "directory": str(tmp_path / "checkpoint")}, {})
        assert (reply["ok"], reply["kind"]) == (False, "foreign_checkpoint")
        assert "lora_rank, lora_alpha and lora_targets as they were" in reply["error"]


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (["no_such_layer"], "this model has no linear layer called 'no_such_layer'. Choose among down_proj, gate_proj"),
        (["q_proj", "vproj"], "this model has no linear layer called 'vproj'. Choose among"),
        (["embed_tokens", "q_proj"], "this model has no linear layer called 'embed_tokens'. Choose among"),
        (["self_attn.q_proj"], ""),
        (["q_proj"], ""),
    ],
)
def test_targets_name_layers(model: Path, targets: list[str], said: str) -> None:
    fields = {"directory": str(model), "hyperparameters": {"max_new_tokens": 6}, "lora": {**LORA, "targets": targets}}
    reply, _ = Trainer().answer({"id": 1, "op": "load", **fields}, {})
    assert reply["ok"] == (not said)
    assert said in reply.get("error", "")
    assert reply.get("kind", "bad_request") == "bad_request"  # reported as a mistake in [trainer], not in the model


def test_a_directory_with_an_adapter_is_no_model_to_train(tmp_path: Path, trainer: Trainer) -> None:
    export = trained(trainer, tmp_path / "export", 0)
    fields = {"directory": str(export), "hyperparameters": {"max_new_tokens": 6}}
    reply, _ = trainer.answer({"id": 1, "op": "load", **fields}, {})
    assert (reply["kind"], "holds an adapter" in reply["error"]) == ("bad_model", True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_export_is_what_peft_merges_and_stands_alone(
    tmp_path: Path, model: Path, trainer: Trainer, dtype: str
) -> None:
    adapter = trained(trainer, tmp_path / "adapter", 0)
    before = ok(trainer, "export", directory=str(tmp_path / "before"), dtype="float32")
    ok(trainer, "export", directory=str(tmp_path / "merged"), dtype=dtype, merge=True)
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    base = load_file(model / "model.safetensors")
    assert sorted(merged) == sorted(base)
    peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), adapter).merge_and_unload()
    expected = peft.state_dict()
    for name, tensor in merged.items():
        torch.testing.assert_close(tensor, expected[name].to(getattr(torch, dtype)), rtol=0, atol=1e-6, msg=name)
    moved = [name for name in base if not torch.equal(merged[name].float(), base[name].float())]
    assert len(moved) >= 2 * 7, "A or B of some projection did not move"
    after = ok(trainer, "export", directory=str(tmp_path / "after"), dtype="float32")
    assert before["probe"] == after["probe"], "the policy was changed"


def test_an_adapter_on_a_head_that_is_the_embedding_is_not_merged(tmp_path: Path, model: Path) -> None:
    trainer = loaded(model, LORA | {"targets": ["lm_head"]})
    reply, _ = trainer.answer({"id": 1, "op": "export", "directory": str(tmp_path / "m"), "merge": True}, {})
    assert (reply["ok"], reply["kind"]) == (False, "bad_request")
    assert "lm_head cannot be merged" in reply["error"]
