"""Whether `[model] directory` still holds what a run began with, and what follows when it does not."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import CheckpointRow
from node.config.swarm_config import (
    LearnSection,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    TrainerSection,
)
from node.learner_role.training.base_model import base_note, compare_base, digests_of, hold_to_base
from node.runtime.errors import RunError, UsageError

SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for number, name in enumerate(SHARDS):
        (directory / name).write_bytes(bytes([number]) * 1_000_000)
    weight_map = {f"tensor{number}": name for number, name in enumerate(SHARDS)}
    (directory / INDEX).write_bytes(msgspec.json.encode({"weight_map": weight_map}))
    (directory / "config.json").write_text("{}")
    (directory / "tokenizer.json").write_text("one")
    (directory / "README.md").write_text("never read")
    return directory


def config(model: Path, **trainer: object) -> SwarmConfig:
    return SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(model)),
        task=TaskSection(spec="reverse"),
        learn=LearnSection(steps=1),
        trainer=msgspec.convert(trainer, TrainerSection),
    )


def test_every_file_that_makes_the_model_counts_wherever_it_lies(model: Path) -> None:
    before = digests_of(model)
    assert set(before) == {*SHARDS, "config.json", "tokenizer.json"}
    (model / "README.md").write_text("edited")
    moved = model.rename(model.with_name("moved"))
    assert digests_of(moved) == before
    for name in before:
        raw = (moved / name).read_bytes()
        (moved / name).write_bytes(raw[:-1] + b"\n")
        assert {other for other, digest in digests_of(moved).items() if digest != before[other]} == {name}
        (moved / name).write_bytes(raw)
    (moved / SHARDS[1]).unlink()
    with pytest.raises(
        RunError, match=rf"^\[model\] directory: {moved / SHARDS[1]}: No such file or directory\. Check"
    ):
        digests_of(moved)


@pytest.mark.parametrize(
    ("trainer", "rests"),
    [
        ({"kl_coefficient": 0.25}, "kl_coefficient = 0.25 compares the policy with it"),
        ({"objective": "dpo"}, 'objective = "dpo" compares the policy with it'),
        ({"advantage": "preference"}, 'advantage = "preference" compares the policy with it'),
        ({"lora_rank": 8}, "lora_rank = 8 trains an adapter on it"),
    ],
)
def test_other_weights_are_refused_where_something_rests_on_them(
    model: Path, trainer: dict[str, object], rests: str
) -> None:
    found = digests_of(model)
    with pytest.raises(UsageError) as caught:
        compare_base(found | {SHARDS[1]: "other"}, found, config(model, **trainer))
    assert str(caught.value) == (
        f"[model] directory: {model} does not hold the model that this run began with ({SHARDS[1]}), but [trainer] "
        f"{rests}. Put that model back, or begin another run with this one in another [swarm] state."
    )
    assert compare_base(found, found, config(model, **trainer)) == ""
    assert "tokenizer and settings" in compare_base(
        found | {"tokenizer.json": "other"}, found, config(model, **trainer)
    )


def test_other_changes_are_told(model: Path) -> None:
    found = digests_of(model)
    begun = {name: "other" for name in found if name != "config.json"} | {"config.json": found["config.json"]}
    assert compare_base(begun, found, config(model)) == (
        f"[model] directory: {model} has changed since this run began ({SHARDS[0]}, {SHARDS[1]}, "
        "tokenizer.json): the run continues with its own weights; tokenizer and settings are used as they are now. Put "
        "the files back if this was not intended."
    )
    alone = compare_base(found | {SHARDS[0]: "other"}, found, config(model))
    assert "the run continues with its own weights. Put the files back" in alone
    assert compare_base({}, found, config(model, kl_coefficient=1.0)) == "", "a ledger of before this was written down"


def test_a_run_is_held_to_its_model_once_there_is_a_checkpoint(model: Path, tmp_path: Path) -> None:
    path, settings = tmp_path / "ledger.sqlite", config(model, kl_coefficient=0.5)
    assert base_note(settings, path) == ""
    with Ledger(path, swarm=b"swarm") as ledger:
        assert ledger.training.base_model() == {}
        ledger.training.begun_with({"model.safetensors": "of before"})
        assert ledger.training.base_model() == {"model.safetensors": "of before"}
        ledger.training.begin_incarnation(0, 0)
        assert not ledger.training.checkpoints_made()
        assert base_note(settings, path) == ""
        ledger.training.checkpointed(CheckpointRow(step=2, incarnation=1, directory="1.2", state={}), 0)
        with read_ledger(path) as reader:
            assert reader.training.base_model() == {"model.safetensors": "of before"}
        with pytest.raises(UsageError, match="does not hold the model that this run began with"):
            base_note(settings, path)
        with pytest.raises(UsageError, match="does not hold the model that this run began with"):
            hold_to_base(ledger, settings, base=2)
        assert hold_to_base(ledger, settings, base=0) == "", "it begins anew"
        assert ledger.training.base_model() == digests_of(model)
        assert base_note(settings, path) == hold_to_base(ledger, settings, base=2) == ""
        (model / "tokenizer.json").write_text("two")
        assert "(tokenizer.json)" in hold_to_base(ledger, settings, base=2)
        assert ledger.training.base_model() != digests_of(model), (
            "the ledger must keep the model that the run began with"
        )


def test_a_run_of_before_this_was_written_down_is_held_to_what_it_goes_on_with(model: Path, tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite", swarm=b"swarm") as ledger:
        assert hold_to_base(ledger, config(model, kl_coefficient=0.5), base=7) == ""
        assert ledger.training.base_model() == digests_of(model)
