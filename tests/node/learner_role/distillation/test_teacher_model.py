"""Decide which model may be the teacher of a policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.learner_role.distillation.teacher_model import require_positions, require_vocabulary, texts_of
from node.runtime.errors import UsageError


def model(root: Path, name: str, vocabulary: Any, *, size: int = 8, added: Any = (), **config: Any) -> Path:
    directory = root / name
    directory.mkdir()
    tokenizer = {"model": {"vocab": vocabulary}, "added_tokens": list(added)}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "config.json").write_text(json.dumps({"vocab_size": size, **config}))
    return directory


def test_one_whose_ids_are_the_same_texts_may_know_more(tmp_path: Path) -> None:
    policy = model(tmp_path, "policy", {"a": 0, "b": 1})
    teacher = model(tmp_path, "teacher", {"a": 0, "b": 1, "c": 2}, size=128)
    require_vocabulary(teacher, policy)


@pytest.mark.parametrize(
    ("vocabulary", "size", "says"),
    [
        ({"a": 0, "c": 1}, 8, "the id 1 is 'b' in the policy and 'c' in the teacher"),
        ({"a": 0}, 8, "the id 1 is 'b' in the policy and no token in the teacher"),
        ({"a": 0, "b": 1}, 1, "has 1 token ids"),
        ({}, 8, "has no tokens"),
    ],
)
def test_another_vocabulary_is_refused(tmp_path: Path, vocabulary: dict[str, int], size: int, says: str) -> None:
    policy = model(tmp_path, "policy", {"a": 0, "b": 1})
    with pytest.raises(UsageError, match=says) as refused:
        require_vocabulary(model(tmp_path, "teacher", vocabulary, size=size), policy)
    assert str(refused.value).startswith("[distill] teacher: ")


def test_added_tokens_and_unigram_vocabularies_count(tmp_path: Path) -> None:
    directory = model(tmp_path, "one", [["a", -1.0], ["b", -2.0]], added=[{"id": 2, "content": "<eos>"}])
    assert texts_of(directory) == {0: "a", 1: "b", 2: "<eos>"}


@pytest.mark.parametrize("damage", ["", "[1]", "{", "\xff"])
def test_files_that_cannot_be_read_are_told_by_name(tmp_path: Path, damage: str) -> None:
    directory = model(tmp_path, "one", {"a": 0})
    (directory / "tokenizer.json").write_text(damage, encoding="latin-1")
    with pytest.raises(UsageError, match=r"\[distill\] teacher: .*tokenizer.json"):
        texts_of(directory)


def test_one_that_takes_no_sequence_as_long_is_refused(tmp_path: Path) -> None:
    teacher = model(tmp_path, "teacher", {"a": 0}, max_position_embeddings=64)
    require_positions(teacher, 64)
    with pytest.raises(UsageError, match="reads sequences of at most 64 tokens, but those of this run may have 65"):
        require_positions(teacher, 65)
