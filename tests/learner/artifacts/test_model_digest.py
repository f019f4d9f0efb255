"""Name a model by its contents: the weights and the configuration, to the byte, and nothing else."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from learner.artifacts.model_digest import model_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_bytes(b"{}")
    (tmp_path / "b.safetensors").write_bytes(b"bb")
    (tmp_path / "a.safetensors").write_bytes(b"a" * 2_000_000)
    (tmp_path / "tokenizer.json").write_bytes(b"words")
    return tmp_path


def test_it_is_what_the_protocol_says(model: Path) -> None:
    whole = sha256()
    for name in ("config.json", "a.safetensors", "b.safetensors"):
        whole.update(name.encode() + b"\n" + sha256((model / name).read_bytes()).digest())
    assert model_digest(model) == whole.digest()


@pytest.mark.parametrize(
    ("name", "content", "is_same"),
    [
        ("tokenizer.json", b"other words", True),
        ("config.json", b"{} ", False),
        ("a.safetensors", b"a", False),
        ("c.safetensors", b"", False),
    ],
)
def test_what_changes_it(model: Path, name: str, content: bytes, is_same: bool) -> None:
    before = model_digest(model)
    (model / name).write_bytes(content)
    assert (model_digest(model) == before) is is_same


def test_a_directory_without_a_configuration_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"config\.json"):
        model_digest(tmp_path)
