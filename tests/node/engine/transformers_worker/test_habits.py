"""The transformers worker tests an architecture's properties before it generates with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from node.engine.common_worker.errors import Refused
from node.engine.common_worker.generate_call import Call, Row
from node.engine.transformers_worker.habits import _share, habits_of
from node.engine.transformers_worker.kv_cache import Memory, ways_of_keeping
from node.engine.transformers_worker.policy import Policy, Settings
from tests.architectures.readings import Engine
from tests.architectures.shrinking import NotMade, tiny_model


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def tiny(model_type: str) -> Any:
    made = tiny_model(model_type)
    assert not isinstance(made, NotMade)
    return made.model


@pytest.mark.parametrize(
    ("model_type", "name", "makes_own", "pads", "first", "positions"),
    [
        ("llama", "past_key_values", False, True, 0, 96),
        ("bart", "past_key_values", False, False, 0, 96),  # takes columns for positions
        ("llama4_text", "past_key_values", False, False, 0, 96),  # its chunks begin at columns
        ("roberta", "past_key_values", False, True, 2, 94),
        ("minimax", "past_key_values", True, True, 0, 96),
        ("mamba", "cache_params", True, False, 0, None),
        ("rwkv", "state", True, False, 0, 96),
        ("gpt2", "past_key_values", False, True, 0, 96),
        ("mpt", "past_key_values", False, True, 0, 96),
        ("whisper", "past_key_values", False, True, 0, 96),
        ("bloom", "past_key_values", False, True, 0, None),
    ],
)
def test_an_architecture_is_used_as_it_wants_to_be(
    model_type: str, name: str, makes_own: bool, pads: bool, first: int, positions: int | None
) -> None:
    habits = habits_of(tiny(model_type))
    assert (habits.keeping.name, habits.keeping.makes_own) == (name, makes_own)
    assert (habits.pads, habits.first_position, habits.positions) == (pads, first, positions)


@pytest.mark.parametrize(("model_type", "batches"), [("llama", [4]), ("bart", [3, 1])])
def test_prompts_share_a_batch_only_where_padding_is_heeded(
    tmp_path: Path, model_type: str, batches: list[int]
) -> None:
    tiny(model_type).save_pretrained(tmp_path / "model")
    engine = Engine()
    engine.install(tmp_path / "model", 1)
    server = engine._server
    call = Call(1)
    server._queue.extend(
        Row(call=call, prompt=prompt, seed=0, temperature=1.0, greedy=False, budget=3, stop_ids=())
        for prompt in [(5, 6), (7, 8), (9,), (5, 6)]
    )
    assert [len(batch) for batch in iter(server._form_batch, [])] == batches


def test_a_model_that_keeps_nothing_is_refused_when_it_is_installed(tmp_path: Path) -> None:
    """And not at its first lease, which would end the process, again and again."""
    tiny("llama").save_pretrained(tmp_path / "good")
    tiny("openai-gpt").save_pretrained(tmp_path / "bad")
    policy = Policy(Settings(device="cpu"))
    policy.install(tmp_path / "good", {"version": 1})
    with pytest.raises(
        Refused, match="OpenAIGPTLMHeadModel cannot generate token by token in this engine: it keeps"
    ) as no:
        policy.install(tmp_path / "bad", {"version": 2})
    assert no.value.kind == "bad_model"
    assert policy.version == {"version": 1}
    assert type(policy.model).__name__ == "LlamaForCausalLM"


def test_a_model_that_fails_in_an_odd_way_is_refused_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama")

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by\n zero")

    monkeypatch.setattr(type(model.model), "forward", fail)
    with pytest.raises(Refused, match="LlamaForCausalLM cannot generate token by token in this engine: by zero"):
        habits_of(model)


def test_a_model_is_given_its_memory_under_a_name_that_it_knows() -> None:
    """Under any other it would take it, say nothing, and begin anew at every step."""
    assert [way.name for way in ways_of_keeping(tiny("mamba"))] == ["cache_params"]
    assert ways_of_keeping(tiny("openai-gpt")) == []


def test_a_head_of_zeros_says_the_same_of_every_sequence() -> None:
    """As a model has that begins from nothing: 0 of 0 is no difference."""
    nothing, something = torch.zeros(2, 3), torch.tensor([[0.0, 1.0, 0.0]])
    assert _share(nothing, nothing) == 0.0
    assert _share(something, torch.zeros(1, 3)) > 1.0


def test_rows_that_cannot_be_told_apart_are_said_to_be() -> None:
    memory = Memory("cache_params", object())
    with pytest.raises(TypeError, match="rows cannot be dropped from a object"):
        memory.select(torch.tensor([0]))
    with pytest.raises(TypeError, match="rows cannot be dropped from a NoneType"):
        Memory("state", None).select(torch.tensor([0]))


def test_states_of_layers_are_dropped_and_doubled_by_row() -> None:
    memory = Memory("state", [torch.arange(6).reshape(3, 2), torch.arange(3)])
    memory.select(torch.tensor([2, 0, 2]))
    first, second = memory.arguments()["state"]
    assert first.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert second.tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("model_type", "size"), [("llama", 2 * 2 * 2 * 8 * 4), ("mamba", 0), ("gpt2", 2 * 2 * 4 * 8 * 4)]
)
def test_memory_is_counted_by_token_where_it_grows(tmp_path: Path, model_type: str, size: int) -> None:
    tiny(model_type).save_pretrained(tmp_path / "model")
    policy = Policy(Settings(device="cpu"))
    policy.install(tmp_path / "model", {})
    assert policy.kv_token_bytes == size


def test_an_id_beyond_the_embedding_is_refused_with_id_and_rows(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path / "model")
    policy = Policy(Settings(device="cpu"))
    policy.install(tmp_path / "model", {})
    with pytest.raises(Refused, match="token id 329 is outside the model's vocabulary: its embedding has 128 rows"):
        policy.require_generable((3, 329), 4)
    with pytest.raises(Refused, match="token id -1 is outside"):
        policy.require_generable((3, -1), 4)


def test_a_model_is_computed_by_the_attention_that_it_has(tmp_path: Path) -> None:
    for model_type, attention in (("mamba", "eager"), ("gpt_oss", "eager"), ("llama", "sdpa")):
        directory = tmp_path / model_type
        tiny(model_type).save_pretrained(directory)
        policy = Policy(Settings(device="cpu"))
        policy.install(directory, {})
        own = AutoModelForCausalLM.from_pretrained(directory).config._attn_implementation
        assert policy.model.config._attn_implementation == own == attention
