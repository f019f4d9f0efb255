"""Find distributions that own one of our package names. The distributions here are directories of metadata alone."""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path

import pytest

from node.installation.name_clashes import clash_sentence, find_clashes


def installed(site: Path, name: str, record: str = "", top_level: str = "") -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(record)
    if top_level:
        (info / "top_level.txt").write_text(top_level)


@pytest.mark.parametrize(
    ("record", "top_level", "owned"),
    [
        ("swarm/__init__.py,sha256=x,1\nswarm/core.py,,\n", "", ["swarm"]),
        ("other/__init__.py,,\nnode.py,sha256=x,1\n", "", ["node"]),
        ("", "learner\nprotocol\n", ["learner", "protocol"]),
        ("nodes/__init__.py,,\nother/swarm/__init__.py,,\nmy_protocol.py,,\n", "nodes\n", []),
    ],
)
def test_another_owner_is_found(tmp_path: Path, record: str, top_level: str, owned: list[str]) -> None:
    installed(tmp_path, "volery", "node/__init__.py,,\nswarm/__init__.py,,\nlearner/__init__.py,,\n")
    installed(tmp_path, "other", record, top_level)
    assert find_clashes(distributions(path=[str(tmp_path)])) == dict.fromkeys(owned, "other")


def test_this_environment_has_no_clash() -> None:
    assert find_clashes() == {}


def test_the_sentence_names_package_and_owner_and_says_what_to_do() -> None:
    told = clash_sentence({"node": "node-tools", "swarm": "other-swarm"})
    assert "node (of node-tools), swarm (of other-swarm)" in told
    assert told.endswith("uv tool install volery")
