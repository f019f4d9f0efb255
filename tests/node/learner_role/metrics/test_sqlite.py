"""Metrics in SQLite: read while they are written, one value for a step, bounded."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from node.learner_role.metrics.board import Row, Series
from node.learner_role.metrics.sqlite import SqliteSink
from tests.support.metrics_file import read_metric


def row(step: int, incarnation: int = 1, **values: float) -> Row:
    told = {Series("reward"): step / 100, Series("kl_at_lag", ("3",)): 0.5}
    return Row(
        incarnation=incarnation, step=step, at_ms=1000 * step, values=told | {Series(k): values[k] for k in values}
    )


@pytest.fixture
def sink(tmp_path: Path) -> SqliteSink:
    return SqliteSink(path=tmp_path / "metrics.sqlite")


def rewards(sink: SqliteSink) -> dict[int, float]:
    return {step: value for step, _, value in read_metric(sink.path, "reward")}


def test_what_is_written_is_read_while_the_file_is_open(sink: SqliteSink) -> None:
    sink.begin(1, 0)
    for step in (1, 2, 3):
        sink.write(row(step))
    assert rewards(sink) == {1: 0.01, 2: 0.02, 3: 0.03}
    assert list(read_metric(sink.path, "kl_at_lag")) == [(step, {"lag": "3"}, 0.5) for step in (1, 2, 3)]
    sink.close()


def test_a_later_start_goes_on_and_lost_steps_are_superseded(sink: SqliteSink, tmp_path: Path) -> None:
    sink.begin(1, 0)
    for step in (1, 2, 3, 4):
        sink.write(row(step))
    sink.close()
    again = SqliteSink(path=tmp_path / "metrics.sqlite")
    again.begin(2, 2)
    assert rewards(again) == {1: 0.01, 2: 0.02}
    again.write(row(3, 2, entropy=0.7))
    assert rewards(again) == {1: 0.01, 2: 0.02, 3: 0.03}
    with sqlite3.connect(again.path) as db:
        assert db.execute("SELECT step, incarnation FROM steps").fetchall() == [(1, 1), (2, 1), (3, 2)]
        assert db.execute("SELECT count(*) FROM series").fetchone() == (3,)
    again.close()


def test_an_evaluation_completes_its_step(sink: SqliteSink) -> None:
    sink.begin(1, 0)
    sink.write(row(1))
    sink.write(row(2))
    sink.write(Row(incarnation=1, step=1, at_ms=9000, values={Series("greedy"): 0.5}))
    assert list(read_metric(sink.path, "greedy")) == [(1, {}, 0.5)]
    with sqlite3.connect(sink.path) as db:
        assert db.execute("SELECT at_ms FROM steps WHERE step = 1").fetchone() == (1000,)
    sink.close()


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path) -> None:
    sink = SqliteSink(path=tmp_path / "metrics.sqlite", most=100)
    sink.begin(1, 0)
    for step in range(1, 201):
        sink.write(row(step))
    kept = rewards(sink)
    assert max(kept) == 200
    assert list(kept) == list(range(min(kept), 201))
    assert 40 <= len(kept) <= 50
    sink.close()


def test_a_file_of_a_newer_format_is_left_alone(sink: SqliteSink) -> None:
    with sqlite3.connect(sink.path) as db:
        db.execute("PRAGMA user_version = 9")
    with pytest.raises(sqlite3.DatabaseError, match="has format 9"):
        sink.begin(1, 0)
