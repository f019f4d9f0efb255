"""Find how much memory there is, by the cgroups of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine.common_worker.memory_bound import memory_bound, whole_memory


def test_version_1_counts_the_least_of_all_above(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("4:cpu,cpuacct:/other\n3:memory:/outer/inner\n1:name=systemd:/\n")
    inner = root / "memory" / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_bound(own, root) is None
    (inner.parent / "memory.limit_in_bytes").write_text("600000000\n")
    assert memory_bound(own, root) == 600_000_000


def test_version_2(tmp_path: Path) -> None:
    own, root = tmp_path / "own", tmp_path / "cgroup"
    own.write_text("0::/user/volery\n")
    (root / "user" / "volery").mkdir(parents=True)
    (root / "user" / "volery" / "memory.max").write_text("max\n")
    assert memory_bound(own, root) is None
    (root / "user" / "memory.max").write_text("123456789\n")
    assert memory_bound(own, root) == 123_456_789


@pytest.mark.parametrize("text", ["", "3:memory", "a:b:c\n", "3:memory:/../../../etc\n"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, text: str) -> None:
    (tmp_path / "own").write_text(text)
    assert memory_bound(tmp_path / "own", tmp_path / "none") is None
    assert memory_bound(tmp_path / "absent", tmp_path / "none") is None


def test_this_machine_has_some() -> None:
    found = whole_memory()
    assert found is None or found > 0
