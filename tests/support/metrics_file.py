"""Read `metrics.sqlite` as another program would."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path


def read_metric(path: Path, metric: str) -> Iterator[tuple[int, dict[str, str], float]]:
    """Yield (step, labels, value) of every stored value of a metric, by step."""
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT step, labels, value FROM metrics WHERE metric = ? ORDER BY step, labels", (metric,))
        yield from ((step, json.loads(labels), value) for step, labels, value in rows)
