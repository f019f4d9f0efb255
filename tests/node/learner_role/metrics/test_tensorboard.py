"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from node.learner_role.metrics.board import Row, Series
from node.learner_role.metrics.tensorboard import TensorBoardSink


def row(step: int, incarnation: int = 1) -> Row:
    values = {Series("entropy"): step / 10, Series("kl_at_lag", ("3",)): 0.5}
    return Row(incarnation=incarnation, step=step, at_ms=1000 * step, values=values)


def read(directory: Path) -> EventAccumulator:
    found = EventAccumulator(str(directory))
    found.Reload()
    return found


def test_tensorboard_reads_rows_by_topic_and_labels(tmp_path: Path) -> None:
    sink = TensorBoardSink(directory=tmp_path)
    sink.begin(1, 0)
    for step in (1, 2, 3):
        sink.write(row(step))
    found = read(tmp_path)  # the file is open still
    assert sorted(found.Tags()["scalars"]) == ["objective/entropy", "objective/kl_at_lag/3"]
    told = [(event.step, event.wall_time, event.value) for event in found.Scalars("objective/entropy")]
    assert told == [(step, float(step), pytest.approx(step / 10)) for step in (1, 2, 3)]
    sink.close()


def test_a_restart_leaves_one_value_for_a_step(tmp_path: Path) -> None:
    sink = TensorBoardSink(directory=tmp_path)
    sink.begin(1, 0)
    for step in (1, 2, 3, 4):
        sink.write(row(step))
    sink.begin(2, 2)
    sink.write(row(3, 2))
    sink.close()
    assert [event.step for event in read(tmp_path).Scalars("objective/entropy")] == [1, 2, 3]


def test_a_disk_that_fails_is_an_error_of_the_sinks(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the directory is to be")
    with pytest.raises(OSError, match="taken"):
        TensorBoardSink(directory=tmp_path / "taken").begin(1, 0)
