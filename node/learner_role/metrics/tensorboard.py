"""Write metrics as TensorBoard event files, to `tensorboard/` in the learner's state directory.

It uses TensorBoard's own writer, which needs neither torch nor TensorFlow. The smaller tensorboardX imports torch if it
is installed.

    tensorboard --logdir my-swarm/state/tensorboard

Invariants:

- There is one file for each start of the learner.
- A file begins by telling TensorBoard to discard what earlier files have of the steps that follow, so no step has two
  values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.learner_role.metrics.board import Row, Series
from node.learner_role.metrics.catalogue import TOPIC_OF

DIRECTORY = "tensorboard"


@dataclass(kw_only=True)
class TensorBoardSink:
    """Writes metrics as event files below `directory`."""

    directory: Path
    name: str = "tensorboard"
    _writer: Any = None

    def begin(self, incarnation: int, base: int) -> None:
        """Open a file in which the series continue after step `base`."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.close()
        self._writer = EventFileWriter(str(self.directory))
        start = Event(wall_time=time.time(), step=base + 1, session_log=SessionLog(status=SessionLog.START))
        self._writer.add_event(start)
        self._writer.flush()

    def write(self, row: Row) -> None:
        """Store a row, which is on disk when this returns."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag(series), simple_value=value) for series, value in row.values.items()]
        self._writer.add_event(Event(wall_time=row.at_ms / 1000, step=row.step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def tag(series: Series) -> str:
    """Return a series as `objective/kl_at_lag/3`. TensorBoard groups charts by the part before the first slash."""
    return "/".join((TOPIC_OF[series.metric], series.metric, *(label.replace("/", "_") for label in series.labels)))
