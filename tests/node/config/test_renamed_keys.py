"""Renamed keys: the old name still works, warns once, and is in no document any more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.config.common import Section, default_of
from node.config.loader import read_node_config, read_swarm_config
from node.config.node_config import NodeConfig
from node.config.reference import toml_value
from node.config.renamed_keys import RENAMED, Key
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from tests.support.paths import ROOT

SWARM = {"swarm": 'name = "n"\n', "model": 'directory = "m"\n', "task": 'spec = "reverse"\n', "learn": "steps = 1\n"}

VALUES = {
    "min_audit_share": 0.5,
    "max_audit_compute_share": 0.5,
    "max_peer_share": 0.5,
    "required_compute_dtype": "float32",
    "max_batches_ahead": 3.0,
    "lease_timeout_s": 60.0,
    "select_peers": False,
    "review_interval_s": 5.0,
    "pass_at_k": [],
    "min_pass_rate": 0.25,
    "max_pass_rate": 0.75,
    "kl_coefficient": 0.5,
    "cheat": "greedy",
    "fake_token_s": 0.5,
}
"""For each key a value that is not its default."""

ROWS = [(kind, old, new) for kind, names in RENAMED.items() for old, new in names.items()]
each = pytest.mark.parametrize(("kind", "old", "new"), ROWS, ids=[f"{old[0]}-{old[1]}" for _, old, _ in ROWS])


def written(directory: Path, kind: type[Section], *keys: Key, value: object) -> Path:
    """A file that is all right, with the value at these keys as well."""
    text = dict(SWARM) if kind is SwarmConfig else {"engine": 'kind = "fake"\n'}
    for section, key in keys:
        text[section] = f"{text.get(section, '')}{key} = {toml_value(value)}\n"
    path = directory / f"{'-'.join(name for key in keys for name in key)}.toml"
    path.write_text("".join(f"[{section}]\n{lines}" for section, lines in text.items()))
    return path


def read(path: Path, kind: type[Section]) -> Section:
    return read_swarm_config(path) if kind is SwarmConfig else read_node_config(path)


@each
def test_an_old_name_means_what_the_new_one_does_and_is_warned_of_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: type[Section], old: Key, new: Key
) -> None:
    before, now = (written(tmp_path, kind, key, value=VALUES[new[1]]) for key in (old, new))
    after = read(now, kind)
    assert capsys.readouterr().err == "", "nothing is said of the new name"
    assert read(before, kind) == after
    assert read(before, kind) == after
    (said,) = capsys.readouterr().err.splitlines()
    assert said == (
        f"volery: warning: {before}: [{old[0]}] {old[1]} is now called [{new[0]}] {new[1]}. Rename it: the next "
        f"release rejects {old[1]}."
    )
    (section,) = [one for one in msgspec.structs.fields(kind) if one.name == new[0]]
    (field,) = [one for one in msgspec.structs.fields(section.type) if one.name == new[1]]
    assert getattr(getattr(after, new[0]), new[1]) == VALUES[new[1]] != default_of(field)


@each
def test_both_names_at_once_are_refused(tmp_path: Path, kind: type[Section], old: Key, new: Key) -> None:
    path = written(tmp_path, kind, old, new, value=VALUES[new[1]])
    with pytest.raises(UsageError) as caught:
        read(path, kind)
    assert str(caught.value) == (
        f"{path}: [{old[0]}] {old[1]} is the old name of [{new[0]}] {new[1]}, and both are given. Remove {old[1]}."
    )


def test_a_mistake_under_an_old_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\[trust\] min_audit_share: expected `float`, got `str`"):
        read_swarm_config(written(tmp_path, SwarmConfig, ("trust", "floor"), value="much"))
    with pytest.raises(UsageError, match=r"there is no section \[plan\]"):
        read_swarm_config(written(tmp_path, SwarmConfig, ("plan", "activated"), value=True))


@pytest.mark.parametrize("section", ["trust = 3\n", "plan = 3\n", "provisioning = 3\n[plan]\nactivate = true\n"])
def test_what_is_no_section_is_refused_as_ever(tmp_path: Path, section: str) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text(section + "".join(f"[{name}]\n{lines}" for name, lines in SWARM.items()))
    with pytest.raises(UsageError, match=r"expected a table|there is no key 'plan'"):
        read_swarm_config(path)


PAGES = sorted(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".toml"))

UNIQUE = {"compute_share", "peer_share", "lease_s", "review_s", "activate", "kl", "floor"}
"""Old names that stand for nothing else in the guides."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_uses_an_old_name_but_the_tables_of_them(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"(?s)##+ Renamed keys\n.*?(?=<!-- end of the keys|\Z)", "", text)
    olds = [old for names in RENAMED.values() for old in names]
    for section, key in olds:
        assert not re.search(rf"\[{section}\] {key}\b", text)
        if key in UNIQUE and page.name != "metrics.md":
            assert f"`{key}`" not in text
            assert not re.search(rf"(?m)^ *{key} = ", text)
    assert "[plan]" not in text


def test_every_row_is_of_a_key_that_is_there_and_of_one_that_is_not() -> None:
    for kind, names in RENAMED.items():
        known = {(one.name, key.name) for one in msgspec.structs.fields(kind) for key in keys_of(one.type)}
        assert set(names.values()) <= known
        assert not set(names) & known
    assert set(RENAMED) == {SwarmConfig, NodeConfig}


def keys_of(declared: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(declared) if isinstance(declared, type) and issubclass(declared, Section) else ()
