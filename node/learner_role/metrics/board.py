"""Keep the newest value of every series, for code that measures and code that shows.

A `Row` is the result of one training step: the series that were measured since the row before, each with one value.

Invariants:

- A series has a declared name (`node.learner_role.metrics.catalogue`) with exactly its declared labels. Otherwise
  LocalProtocolError is raised.
- Each metric has at most MAX_SERIES series, so that names of strangers cannot fill the memory. One metric takes no room
  from another.
- A reader on another thread, such as a scrape, sees consistent values.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

from node.learner_role.metrics.catalogue import METRICS, Kind, Metric
from protocol.core.errors import LocalProtocolError

MAX_SERIES = 2048
"""Most series of one metric: more than a learner has connections, or a window has lags. Five of the two dozen metrics
with labels have a series for each peer: 2 MiB."""


@dataclass(frozen=True, order=True)
class Series:
    """A metric with the values of its labels, in the declared order."""

    metric: str
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the series as Prometheus writes it: `kl_at_lag{lag="3"}`."""
        names = METRICS[self.metric].labels
        told = ",".join(f'{name}="{value}"' for name, value in zip(names, self.labels, strict=True))
        return f"{self.metric}{{{told}}}" if told else self.metric


@dataclass(frozen=True, kw_only=True)
class Row:
    """The values of step `step` of `incarnation`, at `at_ms` since 1970. They are finite."""

    incarnation: int
    step: int
    at_ms: int
    values: Mapping[Series, float]


@dataclass(kw_only=True)
class Tally:
    """A histogram's state: counts by bucket (the last one is above all limits), and the sum of the values."""

    counts: list[int]
    total: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(kw_only=True)
class Board:
    """The newest values of all series."""

    _values: dict[Series, float] = field(default_factory=dict)
    _tallies: dict[Series, Tally] = field(default_factory=dict)
    _fresh: dict[Series, list[float]] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def set(self, metric: str, value: float, **labels: object) -> None:
        """Set a gauge to `value`."""
        with self._lock:
            if (series := self._series(metric, Kind.GAUGE, labels)) is not None:
                self._values[series] = float(value)
                self._fresh[series] = [float(value)]

    def add(self, metric: str, amount: float = 1, **labels: object) -> None:
        """Increase a counter by `amount`, at least 0."""
        with self._lock:
            if (series := self._series(metric, Kind.COUNTER, labels)) is not None:
                self._values[series] = self._values.get(series, 0.0) + amount
                self._fresh[series] = [self._values[series]]

    def observe(self, metric: str, *values: float, **labels: object) -> None:
        """Add values to a histogram. A row has the mean of those since the row before."""
        with self._lock:
            if (series := self._series(metric, Kind.HISTOGRAM, labels)) is not None:
                buckets = METRICS[metric].buckets
                tally = self._tallies.setdefault(series, Tally(counts=[0] * (len(buckets) + 1)))
                for value in values:
                    tally.counts[bisect_left(buckets, value)] += 1
                tally.total += sum(values)
                self._fresh.setdefault(series, []).extend(map(float, values))

    def row(self, *, incarnation: int, step: int, at_ms: int, only: Collection[str] = ()) -> Row:
        """Return what was measured since the row before, as the row of `step`. `only`: just these metrics, if any."""
        with self._lock:
            fresh = {series: values for series, values in self._fresh.items() if not only or series.metric in only}
            self._fresh = {series: values for series, values in self._fresh.items() if series not in fresh}
        means = {series: sum(values) / len(values) for series, values in fresh.items() if values}
        values = {series: value for series, value in means.items() if math.isfinite(value)}
        return Row(incarnation=incarnation, step=step, at_ms=at_ms, values=values)

    def values(self) -> dict[Series, float]:
        """Return all gauges and counters."""
        with self._lock:
            return dict(self._values)

    def tallies(self) -> Iterator[tuple[Series, list[int], float]]:
        """Yield all histograms: counts by bucket, and the sum of the values."""
        with self._lock:
            found = [(series, list(tally.counts), tally.total) for series, tally in self._tallies.items()]
        yield from found

    def _series(self, metric: str, kind: Kind, labels: Mapping[str, object]) -> Series | None:
        declared: Metric | None = METRICS.get(metric)
        if declared is None or declared.kind is not kind or set(declared.labels) != set(labels):
            raise LocalProtocolError(f"no {kind.value} {metric!r} with labels {sorted(labels)} is declared")
        series = Series(metric, tuple(str(labels[name]) for name in declared.labels))
        if series in self._values or series in self._tallies:
            return series
        if self._numbers[metric] >= MAX_SERIES:
            refused = Series("series_refused")
            self._values[refused] = self._values.get(refused, 0.0) + 1
            self._fresh[refused] = [self._values[refused]]
            return None
        self._numbers[metric] += 1
        return series
