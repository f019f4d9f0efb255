"""Limits that change while a node runs: the words of node.toml for bad values, and lines that node.toml understands."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from node.config.live_limits import (
    DOWNLOAD,
    HOURS,
    QUOTA,
    SECTIONS,
    UPLOAD,
    Value,
    as_toml,
    kept,
    read_option,
    value_of,
    with_limit,
)
from node.config.loader import read_node_config
from node.config.node_config import NodeConfig
from node.rollout_role.command import Overrides, adjust
from node.runtime.errors import UsageError

GOOD: list[tuple[str, Value]] = [
    (HOURS, "19:00-07:30,12:00-13:00"),
    (HOURS, ""),
    (UPLOAD, 0.1),
    (UPLOAD, 12.5),
    (DOWNLOAD, 100_000.0),
    (QUOTA, 123456.789),
]
BAD: list[tuple[str, Value]] = [
    (HOURS, "19:00"),
    (HOURS, "25:00-26:00"),
    (HOURS, "12:00-12:00"),
    (HOURS, 7.0),
    (UPLOAD, 0.0),
    (UPLOAD, -3.0),
    (DOWNLOAD, 1e9),
    (DOWNLOAD, "fast"),
    (QUOTA, 0.0),
    (QUOTA, "all"),
]


def file_of(key: str, value: Value, place: Path) -> Path:
    """Return a node.toml with this limit alone."""
    path = place / "node.toml"
    written = f'"{value}"' if isinstance(value, str) else str(value)
    path.write_text(f"[{SECTIONS[key]}]\n{key} = {written}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_a_limit_is_what_node_toml_would_make_it(tmp_path: Path, key: str, value: Value) -> None:
    changed = with_limit(NodeConfig(name="kitchen-pc"), key, value)
    assert changed == msgspec.structs.replace(read_node_config(file_of(key, value, tmp_path)), name="kitchen-pc")
    assert value_of(changed, key) == value


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_bad_value_is_refused_with_the_words_of_node_toml(tmp_path: Path, key: str, value: Value) -> None:
    path = file_of(key, value, tmp_path)
    with pytest.raises(UsageError) as from_file:
        read_node_config(path)
    with pytest.raises(UsageError) as at_once:
        with_limit(NodeConfig(), key, value)
    assert f"{path}: {at_once.value}" == str(from_file.value)


def test_no_value_lifts_a_limit_but_not_the_quota() -> None:
    config = NodeConfig()
    for key in (HOURS, UPLOAD, DOWNLOAD):
        assert with_limit(with_limit(config, key, "19:00-20:00" if key == HOURS else 5.0), key, None) == config
    with pytest.raises(UsageError, match=r"^\[store\] quota_gb: a store always has a quota\. Write a number of GB"):
        with_limit(config, QUOTA, None)


@pytest.mark.parametrize("key", ["threads", "ram_gb", "", "[engine] hours", "__class__"])
def test_other_keys_are_not_changed(key: str) -> None:
    with pytest.raises(UsageError, match=r"cannot be changed while the node runs\. These can: hours, upload_mbit"):
        with_limit(NodeConfig(), key, 1.0)


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_a_line_for_node_toml_is_one(key: str, value: Value) -> None:
    section, line = as_toml(key, value).split("] ")
    assert tomllib.loads(f"{section}]\n{line}") == {SECTIONS[key]: {key: value}}
    assert as_toml(key, value) in kept(key, value)


def test_what_is_lifted_is_removed_from_node_toml() -> None:
    assert as_toml(UPLOAD, None) == "no [network] upload_mbit"
    assert kept(UPLOAD, None) == "To keep that, remove upload_mbit from node.toml."


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [(HOURS, "", ""), (HOURS, "1:00-2:00", "1:00-2:00"), (UPLOAD, "10", 10.0), (DOWNLOAD, "none", None),
     (QUOTA, "1.5", 1.5)],
)  # fmt: skip
def test_an_option_is_read(key: str, text: str, value: Value) -> None:
    assert read_option(key, text) == value


@pytest.mark.parametrize(
    ("key", "text"), [(HOURS, "19:00"), (UPLOAD, "0"), (UPLOAD, "nan"), (DOWNLOAD, "-inf"), (QUOTA, "0")]
)
def test_a_bad_option_is_refused_with_the_words_of_join(key: str, text: str) -> None:
    given = {key: text if key == HOURS else float(text)}
    with pytest.raises(UsageError) as of_join:
        adjust(NodeConfig(), Overrides(**given))  # type: ignore[arg-type]
    with pytest.raises(UsageError) as here:
        read_option(key, text)
    assert str(here.value) == str(of_join.value)


@pytest.mark.parametrize(("key", "text"), [(UPLOAD, "much"), (QUOTA, "none"), (QUOTA, ""), (DOWNLOAD, "10x")])
def test_an_option_that_is_no_number_says_what_to_write(key: str, text: str) -> None:
    option = f"--{key.replace('_', '-')}"
    with pytest.raises(UsageError, match=rf"^{option} .*this is not a number\. Write a number, such as 10") as told:
        read_option(key, text)
    assert ("or none" in str(told.value)) == (key != QUOTA)
