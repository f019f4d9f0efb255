"""The real worker refuses a config.json that asks for more than its weights can hold, and names the field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.artifacts.config_bounds import FEWEST, find_excess, whole_numbers
from learner.artifacts.model_directory import BadModel, read_directory
from learner.training.model.loading import outline
from node.engine.common_worker.errors import Refused
from node.engine.common_worker.sizes import Stored, read_stored, require_counts
from node.engine.interface import InstalledVersion, InstallFailed
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import open_worker_engine
from protocol.core.ids import ManifestHash, PolicyVersion
from tests.support.node_fixtures import Models

GOOD = InstalledVersion(name=PolicyVersion(1, 1), manifest=ManifestHash(bytes(32)))
BAD = InstalledVersion(name=PolicyVersion(1, 2), manifest=ManifestHash(bytes([1]) * 32))

ASKED = [
    ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000"),
    ({"num_hidden_layers": 5000, "layer_types": None}, "num_hidden_layers = 5000"),
    ({"text_config": {"num_hidden_layers": 10**9}}, "text_config.num_hidden_layers = 1000000000"),
    ({"num_labels": 10**9}, "num_labels = 1000000000"),
    ({"hidden_size": 10**9}, "parameters"),
    ({"vocab_size": 10**10}, "parameters"),
    ({"intermediate_size": 10**9}, "parameters"),
    ({"num_attention_heads": 10**7, "num_key_value_heads": 10**7}, "parameters"),
    ({"head_dim": 10**7}, "parameters"),
    (
        {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 10**9},
        "parameters",
    ),
    (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 10**6, "n_embd": 96, "n_head": 4},
        "",
    ),
]


@contextmanager
def asking(models: Models, root: Path, fields: dict[str, Any]) -> Iterator[Path]:
    """Yield a copy of a sound version with these fields in its config.json."""
    directory = root / "asking"
    shutil.copytree(models.first, directory)
    config = directory / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    yield directory
    shutil.rmtree(directory)


async def test_a_version_that_asks_for_more_than_its_weights_hold_is_refused(models: Models, tmp_path: Path) -> None:
    async with open_worker_engine(TransformersConfig()) as engine:
        await engine.install(GOOD, models.first)
        for fields, said in ASKED:
            with asking(models, tmp_path, fields) as directory:
                with pytest.raises(InstallFailed) as caught:
                    await engine.install(BAD, directory)
                assert said in str(caught.value), fields
            assert engine.installed == GOOD


@pytest.mark.parametrize("fields", [{"num_hidden_layers": 10**9}, {"num_labels": 10**9}])
def test_an_operators_directory_is_refused_in_the_same_words(
    models: Models, tmp_path: Path, fields: dict[str, Any]
) -> None:
    with asking(models, tmp_path, fields) as directory:
        [(name, value)] = fields.items()
        with pytest.raises(BadModel, match=f"{name} = {value}"):
            outline(read_directory(directory))


@pytest.mark.parametrize("layers", [1, FEWEST, FEWEST + 1, 10**9])
@pytest.mark.parametrize("tensors", [1, FEWEST, FEWEST + 1, 5000])
def test_layers_end_at_the_number_of_tensors(tmp_path: Path, layers: int, tensors: int) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"decoder": {"n_layers": layers}, "vocab_size": 10**6, "rope_theta": 10**9}))
    stored = Stored(num_tensors=tensors, num_bytes=1)
    if layers <= max(FEWEST, tensors):
        require_counts(config, stored)
        return
    with pytest.raises(Refused, match=f"decoder.n_layers = {layers}"):
        require_counts(config, stored)


def test_numbers_are_found_wherever_they_stand() -> None:
    fields = {"a": [1, {"b": 2.0}], "c": {"d": "3"}, "e": True, "f": 0.5, "g": float("inf"), "label2id": {"x": 9}}
    assert list(whole_numbers(fields)) == [("a", 1), ("a.b", 2), ("c.d", 3)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.from_regex("[0-9]{1,6}"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


@given(JSON)
def test_a_node_and_an_operator_are_told_the_same(value: Any) -> None:
    fields = {"num_layers": value}
    with TemporaryDirectory() as directory:
        config = Path(directory) / "config.json"
        config.write_text(json.dumps(fields))
        try:
            require_counts(config, Stored(num_tensors=1, num_bytes=1))
            said = ""
        except Refused as refusal:
            said = str(refusal).removeprefix(f"{config} ")
    assert said == find_excess(fields, 1)
    assert bool(said) == any(number > FEWEST for name, number in whole_numbers(fields) if name.endswith("layers"))


def test_what_is_stored_is_counted(models: Models) -> None:
    stored = read_stored([models.first / "model.safetensors"])
    assert stored.num_tensors > 20
    assert stored.num_bytes < (models.first / "model.safetensors").stat().st_size
