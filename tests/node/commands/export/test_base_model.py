"""Find the facts about the model that a run began with, and reject what a directory claims without proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.export.base_model import BaseModel, describe_base, licence_in, licence_of, read_licence
from node.learner_role.training.base_model import digests_of
from node.runtime.errors import UsageError
from tests.support.store_fixture import small_model, write_model

CARD = "---\ntags:\n- x\nlicense: {}\n---\n\nlicense: mit\n"


@pytest.mark.parametrize(
    ("card", "found"),
    [
        (CARD.format("apache-2.0"), "apache-2.0"),
        (CARD.format('"Apache-2.0"  # ours'), "apache-2.0"),
        (CARD.format("'cc-by-4.0'").replace("\n", "\r\n"), "cc-by-4.0"),
        (CARD.format("[mit, other]"), ""),
        (CARD.format("x y"), ""),
        ("license: mit\n", ""),
        ("---\nlicense: mit\n", ""),
        ("", ""),
    ],
    ids=["plain", "quoted", "windows", "list", "words", "no front matter", "no end", "empty"],
)
def test_a_card_names_a_licence_in_its_front_matter(card: str, found: str) -> None:
    assert licence_in(card) == found


def test_texts_of_licences_that_are_copied_whole_are_known(tmp_path: Path) -> None:
    assert licence_of(tmp_path) == ""
    (tmp_path / "LICENSE").write_text("   Apache License\n   Version 2.0, January 2004\n")
    assert licence_of(tmp_path) == "apache-2.0"
    (tmp_path / "README.md").write_text(CARD.format("gemma"))
    assert licence_of(tmp_path) == "gemma", "the licence in a card must come first"


@pytest.mark.parametrize("given", ["", "a b", "../x", "-x", "é", "x" * 65])
def test_what_is_no_licence_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="--license"):
        read_licence(given)
    assert read_licence(" MIT ") == "mit"


def test_a_directory_is_believed_while_it_holds_the_weights(tmp_path: Path) -> None:
    model = write_model(tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc", small_model(1))
    (model / "README.md").write_text(CARD.format("apache-2.0"))
    recorded = digests_of(model)
    known = BaseModel(hub="Qwen/Qwen3-0.6B", called="Qwen/Qwen3-0.6B", licence="apache-2.0")
    assert describe_base(model, recorded, "") == describe_base(model, {}, "") == known
    (model / "tokenizer.json").write_text("another, which changes no weight")
    assert describe_base(model, recorded, "") == known
    (model / "model.safetensors").write_bytes(small_model(2)["model.safetensors"])
    assert describe_base(model, recorded, "") == BaseModel(other=True)
    (model / "model.safetensors").unlink()
    assert describe_base(model, recorded, "a/b") == BaseModel(hub="a/b", called="a/b", other=True)


def test_a_directory_of_ones_own_has_a_name_and_nothing_on_the_hub(tmp_path: Path) -> None:
    model = write_model(tmp_path / "my model", small_model(1))
    assert describe_base(model, {}, "") == BaseModel(called="my model")
    assert describe_base(tmp_path / "gone", {}, "") == BaseModel()
    assert describe_base(None, {}, "Qwen/Qwen3-0.6B").hub == "Qwen/Qwen3-0.6B"
    with pytest.raises(UsageError, match="--base-model 'model': write the hub's name ORG/NAME"):
        describe_base(model, {}, "model")
