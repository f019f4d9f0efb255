"""`--model` names a directory, or a model to fetch from Hugging Face."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.init.named_model import NamedModel, model_path, named_model


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_directory_is_a_directory(tmp_path: Path) -> None:
    Path("models/qwen").mkdir(parents=True)
    assert named_model("models/qwen", Path("swarm")) == NamedModel(directory=Path("models/qwen"))
    assert named_model(str(tmp_path), Path("swarm")) == NamedModel(directory=tmp_path)


@pytest.mark.parametrize("text", ["nowhere", "./a/b", "a/b/c", "/a/b", "a b/c", "-a/b", "a/.."])
def test_a_path_that_is_not_here_is_no_name_on_the_hub(text: str) -> None:
    """The caller refuses it, with the name of the directory that is missing."""
    model = named_model(text, Path("swarm"))
    assert model == NamedModel(directory=Path(text))
    assert model.is_here
    assert model.fetch == ""


def test_a_name_on_the_hub_gets_a_place_beside_the_file() -> None:
    model = named_model("Qwen/Qwen3-0.6B", Path("my swarm"))
    assert model == NamedModel(directory=Path("my swarm/Qwen3-0.6B"), fetched_from="Qwen/Qwen3-0.6B")
    assert model.fetch == "hf download Qwen/Qwen3-0.6B --local-dir 'my swarm/Qwen3-0.6B'"
    assert model_path(model, Path("my swarm")) == "Qwen3-0.6B"


def test_once_it_was_fetched_it_is_there() -> None:
    Path("swarm/Qwen3-0.6B").mkdir(parents=True)
    assert not named_model("Qwen/Qwen3-0.6B", Path("swarm")).is_here, "the download has not finished"  # type: ignore[union-attr]
    Path("swarm/Qwen3-0.6B/config.json").write_text("{}")
    assert named_model("Qwen/Qwen3-0.6B", Path("swarm")) == NamedModel(directory=Path("swarm/Qwen3-0.6B"))


def test_without_a_name_the_model_beside_the_file_counts() -> None:
    assert named_model("", Path("swarm")) is None
    Path("swarm/model").mkdir(parents=True)
    assert named_model("", Path("swarm")) is None
    Path("swarm/model/config.json").write_text("{}")
    assert named_model("", Path("swarm")) == NamedModel(directory=Path("swarm/model"))


@pytest.mark.parametrize(("model", "path"), [("models/a", "../models/a"), ("swarm/a", "a"), ("/opt/a", "/opt/a")])
def test_a_path_begins_where_the_file_lies(model: str, path: str) -> None:
    assert model_path(NamedModel(directory=Path(model)), Path("swarm")) == path
