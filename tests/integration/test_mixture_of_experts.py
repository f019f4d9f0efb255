"""A mixture of experts trains, travels and generates under the tensor names of its directory.

The transformers library fuses them on loading.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from learner.artifacts.version_builder import Base, VersionBuilder
from learner.training.server import Trainer
from node.engine.common_worker.generate_call import Call, Row
from node.engine.transformers_worker.generation import Generator
from node.engine.transformers_worker.policy import Policy, Settings
from protocol.core.pipe import Arrays, Header
from swarm.store import ChunkStore
from tests.support.store_fixture import fill, model_files, put_patch
from tests.support.trainer_fixture import NOW_MS, SWARM, version

CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
PROMPTS = [(1, 2, 3), (4, 5), (30, 31, 32, 33)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "moe"
    ok(Trainer(), "make_model", directory=str(directory), config=CONFIG, architecture="qwen3_moe")
    return directory


@pytest.fixture
def trainer(model: Path) -> Trainer:
    trainer = Trainer()
    hyperparameters = {"learning_rate": 1e-2, "max_new_tokens": 6}
    ok(trainer, "load", directory=str(model), hyperparameters=hyperparameters)
    return trainer


def ok(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 7, "op": op, **fields}, arrays or {})
    assert reply["ok"], reply
    return reply


def rollouts(seed: int) -> Arrays:
    """Return two groups of four completions of six tokens."""
    generator = np.random.default_rng(seed)
    prompts = [generator.integers(0, 40, 4)] * 4 + [generator.integers(0, 40, 3)] * 4
    tokens = [np.concatenate([prompt, generator.integers(0, 40, 6)]) for prompt in prompts]
    return {
        "tokens": np.concatenate(tokens).astype(np.int32),
        "lengths": np.array([len(one) for one in tokens], np.int32),
        "mask": np.concatenate([np.arange(len(one)) >= len(one) - 6 for one in tokens]).astype(np.uint8),
        "behaviour_logprobs": np.full(48, np.log(1 / 40), np.float32),
        "lags": np.zeros(48, np.int32),
        "rewards": generator.normal(size=8).astype(np.float32),
        "group_sizes": np.array([4, 4], np.int32),
        "origins": np.zeros(8, np.uint8),
    }


def test_experts_are_stored_one_by_one_and_come_back_as_they_were(
    tmp_path: Path, model: Path, trainer: Trainer
) -> None:
    ok(trainer, "export", directory=str(tmp_path / "export"), dtype="float32", max_shard_bytes=20_000)
    before = load_file(model / "model.safetensors")
    after = {name: t for file in (tmp_path / "export").glob("*.safetensors") for name, t in load_file(file).items()}
    assert "model.layers.1.mlp.experts.5.gate_proj.weight" in before
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_training_moves_experts_as_the_library_would(tmp_path: Path, model: Path, trainer: Trainer) -> None:
    arrays = rollouts(0)
    library = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    _, found = trainer.answer(
        {"id": 1, "op": "logprobs"}, {name: arrays[name] for name in ("tokens", "lengths", "mask")}
    )
    expected: list[float] = []
    for tokens in np.split(arrays["tokens"].astype(np.int64), np.cumsum(arrays["lengths"])[:-1]):
        rows = library(torch.from_numpy(tokens)[None]).logits[0].log_softmax(-1)
        expected += [float(rows[place - 1, tokens[place]]) for place in range(len(tokens) - 6, len(tokens))]
    assert found["logprobs"] == pytest.approx(expected, abs=2e-5)
    ok(trainer, "step", arrays)
    ok(trainer, "export", directory=str(tmp_path / "export"), dtype="float32")
    before, after = (load_file(place / "model.safetensors") for place in (model, tmp_path / "export"))
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any(".experts." in name for name in moved)
    assert any(name.endswith("mlp.gate.weight") for name in moved), "the router did not learn"


def test_it_travels_by_patch_and_generates_what_the_trainer_expects(tmp_path: Path, model: Path) -> None:
    trainer, exports = Trainer(), [tmp_path / "0", tmp_path / "1"]
    slow = {"learning_rate": 1e-4, "max_new_tokens": 6}
    ok(trainer, "load", directory=str(model), hyperparameters=slow)
    ok(trainer, "export", directory=str(exports[0]), dtype="bfloat16")
    ok(trainer, "step", rollouts(0))
    ok(trainer, "export", directory=str(exports[1]), dtype="bfloat16")

    received = travelled(tmp_path, exports)
    assert model_files(received) == model_files(exports[1])
    policy = Policy(Settings(device="cpu"))
    policy.install(received, {"version": 1})
    call = Call(0)
    rows = [
        Row(call=call, prompt=prompt, seed=seed, temperature=1.0, greedy=False, budget=8, stop_ids=())
        for seed, prompt in enumerate(PROMPTS)
    ]
    Generator(policy, lambda: False).run(rows)

    ok(trainer, "load", directory=str(received), hyperparameters=slow)
    sequences = [np.array([*row.prompt, *row.tokens]) for row in rows]
    _, found = trainer.answer(
        {"id": 1, "op": "logprobs"},
        {
            "tokens": np.concatenate(sequences).astype(np.int32),
            "lengths": np.array([len(one) for one in sequences], np.int32),
            "mask": np.concatenate([np.arange(len(one)) >= len(one) - 8 for one in sequences]).astype(np.uint8),
        },
    )
    assert found["logprobs"] == pytest.approx(np.concatenate([row.logprobs for row in rows]), abs=1e-4)


def travelled(tmp_path: Path, exports: list[Path]) -> Path:
    """Publish both versions and fetch them, the second by its patch; return its directory in another store."""
    publisher = VersionBuilder(learner=SWARM.learner, authority=SWARM.authority, certificate=SWARM.certificate)
    first = publisher.publish(exports[0], version("1.0"), None, NOW_MS).signed
    base = Base(manifest=first, directory=exports[0])
    published = publisher.publish(exports[1], version("1.1"), first.hash, NOW_MS + 1, [base])
    assert published.signed.manifest.patches[0].size < 0.75 * published.signed.manifest.total_bytes
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        fill(store, first, model_files(exports[0]))
        store.begin(published.signed)
        put_patch(store, published.signed, 0, published.patches[0].read_bytes())
        store.rebuild(published.signed.hash, 0)
        return store.finish(published.signed.hash)
