"""The swarm.toml that `volery init` writes can be read back, and its notes on defaults are true."""

from __future__ import annotations

import json
import re
import socket
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.commands.init.command import PORTS, free_port, minimal_template, name_aside, template, write_swarm_config
from node.commands.init.data_spec import DataSpec
from node.commands.init.named_model import NamedModel
from node.config.common import Section
from node.config.loader import read_swarm_config
from node.config.swarm_config import NetworkSection, SwarmConfig
from node.runtime.errors import RunError, UsageError
from tests.support.disks import file_limit

TEMPLATE = template("n", 4001)
EVERYTHING = re.sub(r"^# (\w+ = )", r"\1", TEMPLATE, flags=re.M)
"""The template with the keys that are only shown put in force."""

SET_THIS = {
    (section, key)
    for section, text in re.findall(r"^\[(\w+)\](.*?)(?=^\[|\Z)", EVERYTHING, flags=re.M | re.S)
    for key in re.findall(r"^(\w+) = .*\(set this\)", text, flags=re.M)
}
"""(section, key) of what is marked as having no default."""

UNSET = {
    ("model", "chat_template"),
    ("network", "upload_mbit"),
    ("network", "download_mbit"),
    ("network", "relay_mbit"),
    ("store", "quota_gb"),
    ("energy", "watts"),
    ("cost", "per_kwh"),
    ("cost", "reference_per_hour"),
    ("cost", "reference_tokens_per_s"),
    ("evaluate", "kv_cache_gb"),
    ("verifiers", "workers"),
    ("offline", "path"),
    ("offline", "share"),
    ("learn", "longest_first"),
    ("learn", "max_batches_ahead"),
    ("learn", "max_episode_tokens"),
    ("trainer", "decay_steps"),
    *{("trainer", key) for key in ("advantage", "correction", "aggregation", "clip_low", "clip_high", "weight_cap")},
    ("learn", "overlong_buffer"),
    ("trainer", "teacher_coefficient"),
    ("distill", "teacher"),
    *{("trainer", key) for key in ("sequence_mask", "mask_low", "mask_high")},
}


def test_it_reads_back(tmp_path: Path) -> None:
    path = write_swarm_config(tmp_path / "my swarm", name="Zoë's", port=4242)
    config = read_swarm_config(path)
    assert config.swarm.name == "Zoë's"
    assert config.network.listen == ["/ip4/0.0.0.0/tcp/4242", "/ip6/::/tcp/4242"]
    assert [one.name for one in path.parent.iterdir()] == ["swarm.toml"]
    assert f"volery learn '{path}'" in path.read_text(encoding="utf-8"), "a line that can be pasted"


def test_every_key_there_is_is_explained(tmp_path: Path) -> None:
    shown = tomllib.loads(EVERYTHING)
    for field in msgspec.structs.fields(SwarmConfig):
        assert isinstance(field.type, type)
        assert issubclass(field.type, Section)
        assert set(shown[field.name]) == {inner.name for inner in msgspec.structs.fields(field.type)}, field.name


def test_what_is_shown_as_a_default_is_one(tmp_path: Path) -> None:
    shown = tomllib.loads(EVERYTHING)
    for field in msgspec.structs.fields(SwarmConfig):
        for inner in msgspec.structs.fields(field.type):
            said, actual = shown[field.name][inner.name], default_of(inner)
            if (field.name, inner.name) in SET_THIS:
                assert actual in (msgspec.NODEFAULT, None)
            elif (field.name, inner.name) in UNSET:
                assert actual is None, "shown as a comment, since without it there is no limit or another's choice"
                assert f"\n# {inner.name} = " in TEMPLATE
            else:
                assert said == actual, f"[{field.name}] {inner.name}"
    required = {("swarm", "name"), ("model", "directory"), ("task", "spec"), ("learn", "steps")}
    assert required == SET_THIS


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def a_model(directory: Path, *, positions: int | None = 64, width: int = 4) -> Path:
    """A directory with a model of `width` parameters."""
    directory.mkdir(parents=True)
    config = {"model_type": "qwen3"} | ({} if positions is None else {"max_position_embeddings": positions})
    (directory / "config.json").write_text(json.dumps(config))
    header = json.dumps({"model.norm.weight": {"dtype": "BF16", "shape": [width], "data_offsets": [0, 2 * width]}})
    weights = len(header).to_bytes(8, "little") + header.encode() + bytes(2 * width)
    (directory / "model.safetensors").write_bytes(weights)
    return directory


@pytest.mark.parametrize(
    ("positions", "tokens"), [(64, 32), (1023, 511), (1024, 512), (40_960, 512), (1, 1), (None, 512)]
)
def test_answers_are_as_long_as_the_model_takes_with_a_prompt(
    tmp_path: Path, positions: int | None, tokens: int
) -> None:
    model = a_model(tmp_path / "model", positions=positions)
    config = read_swarm_config(write_swarm_config(tmp_path, name="n", port=1, model=NamedModel(directory=model)))
    assert config.learn.max_new_tokens == tokens
    assert config.trainer.learning_rate == 3e-4, "so small a model moves little at the default"


def test_a_models_own_figures_are_marked_and_all_else_is_as_without_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    model = a_model(tmp_path / "models" / 'my "Qwen"')
    with_model = write_swarm_config(tmp_path / "a", name="n", port=1, model=NamedModel(directory=model)).read_text()
    without = write_swarm_config(tmp_path / "b", name="n", port=1).read_text()
    changed = [(old, new) for old, new in zip(without.splitlines(), with_model.splitlines(), strict=True) if old != new]
    assert [new.partition(" = ")[0] for _, new in changed[1:]] == ["directory", "max_new_tokens", "learning_rate"]
    assert all("(of the model: " in new for _, new in changed[2:])
    assert read_swarm_config(tmp_path / "a" / "swarm.toml").model.directory == str(model)


def test_the_model_is_found_from_where_the_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    a_model(Path("runs/demo/model"))
    model = NamedModel(directory=Path("runs/demo/model"))
    config = read_swarm_config(write_swarm_config(Path("deep/swarm"), name="n", port=1, model=model))
    assert Path(config.model.directory).resolve() == (tmp_path / "runs/demo/model").resolve()


@pytest.mark.parametrize("broken", ["nowhere", "no config", "no weights"])
def test_a_model_that_is_none_is_refused_and_nothing_is_written(tmp_path: Path, broken: str) -> None:
    model = tmp_path / "model"
    if broken != "nowhere":
        a_model(model)
        (model / ("config.json" if broken == "no config" else "model.safetensors")).unlink()
    with pytest.raises(UsageError, match=r"^--model: "):
        write_swarm_config(tmp_path / "swarm", name="n", port=1, model=NamedModel(directory=model))
    assert not (tmp_path / "swarm").exists()


def test_the_swarm_is_called_like_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_swarm_config(write_swarm_config(tmp_path / "lark", name="", port=1)).swarm.name == "lark"
    (tmp_path / "wren").mkdir()
    monkeypatch.chdir(tmp_path / "wren")
    assert read_swarm_config(write_swarm_config(Path(), name="", port=1)).swarm.name == "wren"


@pytest.mark.parametrize("name", ['a "b"', "a\\b", "a\nb", "\x1b[31m", "x" * 129])
def test_a_name_that_toml_or_people_could_not_bear(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        write_swarm_config(tmp_path / "new", name=name, port=1)
    assert not (tmp_path / "new").exists()


def test_a_directory_with_a_strange_name_does_not_spoil_the_file(tmp_path: Path) -> None:
    read_swarm_config(write_swarm_config(tmp_path / 'a"b\nsteps = 1', name="n", port=1))


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "swarm.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"swarm\.toml already exists, and was not changed"):
        write_swarm_config(tmp_path, name="n", port=1)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("swarm.toml", "mine")]


def test_a_file_that_makes_room_is_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    assert name_aside(path) is None
    for text, kept in (("mine", "swarm.toml.old"), ("mine too", "swarm.toml.old1")):
        path.write_text(text)
        aside = name_aside(path)
        assert aside == tmp_path / kept
        write_swarm_config(tmp_path, name="n", port=1, aside=aside)
        assert aside.read_text() == text
        assert read_swarm_config(path).swarm.name == "n"


def test_a_file_stays_in_its_place_if_no_new_one_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text("mine")
    model = NamedModel(directory=tmp_path / "nowhere")
    with pytest.raises(UsageError, match="--model"):
        write_swarm_config(tmp_path, name="n", port=1, model=model, aside=name_aside(path))
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("swarm.toml", "mine")]


def test_the_path_of_a_model_that_is_not_here_is_written(tmp_path: Path) -> None:
    model = NamedModel(directory=tmp_path / "swarm" / "Qwen3-0.6B", fetched_from="Qwen/Qwen3-0.6B")
    config = read_swarm_config(write_swarm_config(tmp_path / "swarm", name="n", port=1, model=model))
    assert config.model.directory == str(tmp_path / "swarm" / "Qwen3-0.6B")
    assert config.learn.max_new_tokens == 512


def test_the_task_of_a_data_file_is_marked(tmp_path: Path) -> None:
    data = DataSpec(spec='jsonl:a "b".jsonl:match=numeric', why="all 3 answers in `answer` are numbers")
    path = write_swarm_config(tmp_path, name="n", port=1, data=data)
    assert read_swarm_config(path).task.spec == data.spec
    assert f"(of the data: {data.why})" in path.read_text()


def test_a_minimal_file_has_ten_lines_and_says_where_the_other_keys_are(tmp_path: Path) -> None:
    data = DataSpec(spec="jsonl:a.jsonl:match=numeric", why="all 3 answers in `answer` are numbers")
    model = NamedModel(directory=a_model(tmp_path / "model"))
    small, whole = (
        write_swarm_config(tmp_path / name, name="n", port=1, model=model, data=data, minimal=name == "small")
        for name in ("small", "whole")
    )
    assert read_swarm_config(small).learn == read_swarm_config(whole).learn
    assert read_swarm_config(small).trainer == read_swarm_config(whole).trainer
    head, *lines = minimal_template("n", 1).splitlines()
    assert (head, len(lines)) == ("[swarm]", 9)
    assert "All keys" in small.read_text()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    with file_limit(100), pytest.raises(RunError, match=r"swarm\.toml cannot be written: File too large"):
        write_swarm_config(tmp_path, name="n", port=1)
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(RunError, match=r"file.* cannot be made: .*Choose another directory"):
            write_swarm_config(directory, name="n", port=1)


def test_a_port_that_is_taken_is_not_suggested(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("0.0.0.0", free_port(tmp_path)))
        taken = one.getsockname()[1]
        assert taken in PORTS
        assert free_port(tmp_path) != taken


def test_two_swarms_founded_before_either_is_started_are_not_given_the_same_port(tmp_path: Path) -> None:
    assert len({free_port(tmp_path / str(number)) for number in range(20)}) > 15


def test_the_default_port_is_where_the_search_begins() -> None:
    assert NetworkSection().listen[0].endswith(f"/tcp/{PORTS.start}")
