"""Samples on disk: the surviving steps, within a bound, with any reader meanwhile."""

from __future__ import annotations

import sqlite3
from itertools import pairwise
from pathlib import Path

import pytest

from node.learner_role.metrics.sample_selection import kept_of
from node.learner_role.metrics.sample_store import FILE, Sample, SampleSink, kept_versions, read_sample
from node.runtime.errors import RunError
from protocol.core.ids import PolicyVersion
from tests.node.learner_role.metrics.test_sample_selection import AS_IT_IS, batch_of


def sample(step: int, incarnation: int = 1) -> Sample:
    groups = kept_of(batch_of((0.0, 1.0), (0.5, step / 1000)), 2, "group_mean", str, AS_IT_IS)
    return Sample(incarnation=incarnation, step=step, at_ms=step, groups=groups)


@pytest.fixture
def sink(tmp_path: Path) -> SampleSink:
    return SampleSink(path=tmp_path / FILE)


def test_what_is_written_is_read_while_the_file_is_open(sink: SampleSink) -> None:
    sink.begin(1, 0)
    sink.write(sample(1))
    sink.write(sample(2))
    assert kept_versions(sink.path) == [PolicyVersion(1, 1), PolicyVersion(1, 2)]
    assert read_sample(sink.path, PolicyVersion(1, 2)) == sample(2)
    sink.close()


def test_steps_that_a_restart_lost_are_superseded(sink: SampleSink) -> None:
    sink.begin(1, 0)
    for step in (1, 2, 3, 4):
        sink.write(sample(step))
    sink.begin(2, 2)
    sink.write(sample(3, 2))
    assert list(map(str, kept_versions(sink.path))) == ["1.1", "1.2", "2.3"]
    sink.close()


def test_a_full_file_keeps_the_new_and_some_of_everything(tmp_path: Path) -> None:
    sink = SampleSink(path=tmp_path / FILE, most=16_000)
    sink.begin(1, 0)
    for step in range(1, 401):
        sink.write(sample(step))
    kept = [version.version for version in kept_versions(sink.path)]
    with sqlite3.connect(sink.path) as db:
        (size,) = db.execute("SELECT sum(length(payload)) FROM groups").fetchone()
    assert size <= 16_000
    assert kept[0] == 1
    assert kept[-10:] == list(range(391, 401))
    older = kept[: len(kept) // 2]
    assert max(after - before for before, after in pairwise(older)) < 4 * 400 / len(older)
    sink.close()


def test_what_was_thinned_out_while_one_looked_is_told(sink: SampleSink) -> None:
    sink.begin(1, 0)
    sink.write(sample(1))
    with pytest.raises(RunError, match=r"version 1\.7 have just been removed"):
        read_sample(sink.path, PolicyVersion(1, 7))
    sink.close()


def test_one_step_that_is_larger_than_the_bound_ends_nothing(tmp_path: Path) -> None:
    sink = SampleSink(path=tmp_path / FILE, most=10)
    sink.begin(1, 0)
    for step in (1, 2, 3):
        sink.write(sample(step))
    assert list(map(str, kept_versions(sink.path))) == ["1.3"]
    sink.close()


def test_a_file_that_is_none_of_ours_is_named(tmp_path: Path) -> None:
    path = tmp_path / FILE
    assert kept_versions(path) == []
    path.write_text("no database at all, but a text that somebody put here by mistake" * 20)
    with pytest.raises(RunError, match=r"samples\.sqlite cannot be read"):
        kept_versions(path)


def test_damaged_groups_are_told(sink: SampleSink) -> None:
    sink.begin(1, 0)
    sink.write(sample(1))
    with sqlite3.connect(sink.path) as db:
        db.execute("UPDATE groups SET payload = x'00'")
    with pytest.raises(RunError, match=r"samples of version 1\.1 are damaged"):
        read_sample(sink.path, PolicyVersion(1, 1))
    sink.close()
