"""The newest value of every series: where measured figures meet those who show them.

What always holds: a series has a declared name (`node.learner_role.metrics.catalogue`) with exactly its declared
labels, or a mistake of ours is raised; of each metric there are at most MAX_SERIES, so that strangers' names fill no
memory, and those of one metric take no room from another; reading from another thread, as a scrape does, sees whole
values. A `Row` is what one training step leaves: the series that were measured since the row before, each as one
figure.
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
"""Of one metric: more peers than a learner has connections, windows of hundreds of lags. Of the two dozen metrics with
labels five go by peer: 2 MiB."""


@dataclass(frozen=True, order=True)
class Series:
    """A metric with its labels' values, in the order in which they are declared."""

    metric: str
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`kl_at_lag{lag="3"}`, as Prometheus writes it."""
        names = METRICS[self.metric].labels
        told = ",".join(f'{name}="{value}"' for name, value in zip(names, self.labels, strict=True))
        return f"{self.metric}{{{told}}}" if told else self.metric


@dataclass(frozen=True, kw_only=True)
class Row:
    """What step `step` of `incarnation` left, at `at_ms` since 1970. Values are finite."""

    incarnation: int
    step: int
    at_ms: int
    values: Mapping[Series, float]


@dataclass(kw_only=True)
class Tally:
    """A histogram's state: counts by bucket (the last one is beyond all), and their sum."""

    counts: list[int]
    total: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(kw_only=True)
class Board:
    """See the module's paragraph."""

    _values: dict[Series, float] = field(default_factory=dict)
    _tallies: dict[Series, Tally] = field(default_factory=dict)
    _fresh: dict[Series, list[float]] = field(default_factory=dict)
    _numbers: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock)

    def set(self, metric: str, value: float, **labels: object) -> None:
        """A gauge is `value` now."""
        with self._lock:
            if (series := self._series(metric, Kind.GAUGE, labels)) is not None:
                self._values[series] = float(value)
                self._fresh[series] = [float(value)]

    def add(self, metric: str, amount: float = 1, **labels: object) -> None:
        """A counter grows by `amount`, at least 0."""
        with self._lock:
            if (series := self._series(metric, Kind.COUNTER, labels)) is not None:
                self._values[series] = self._values.get(series, 0.0) + amount
                self._fresh[series] = [self._values[series]]

    def observe(self, metric: str, *values: float, **labels: object) -> None:
        """A histogram has these values more. In a row it is the mean of those since the row before."""
        with self._lock:
            if (series := self._series(metric, Kind.HISTOGRAM, labels)) is not None:
                buckets = METRICS[metric].buckets
                tally = self._tallies.setdefault(series, Tally(counts=[0] * (len(buckets) + 1)))
                for value in values:
                    tally.counts[bisect_left(buckets, value)] += 1
                tally.total += sum(values)
                self._fresh.setdefault(series, []).extend(map(float, values))

    def row(self, *, incarnation: int, step: int, at_ms: int, only: Collection[str] = ()) -> Row:
        """What was measured since the row before, as that of `step`; of these metrics only, if any are named."""
        with self._lock:
            fresh = {series: values for series, values in self._fresh.items() if not only or series.metric in only}
            self._fresh = {series: values for series, values in self._fresh.items() if series not in fresh}
        means = {series: sum(values) / len(values) for series, values in fresh.items() if values}
        values = {series: value for series, value in means.items() if math.isfinite(value)}
        return Row(incarnation=incarnation, step=step, at_ms=at_ms, values=values)

    def values(self) -> dict[Series, float]:
        """All gauges and counters."""
        with self._lock:
            return dict(self._values)

    def tallies(self) -> Iterator[tuple[Series, list[int], float]]:
        """All histograms: counts by bucket, and the sum of the values."""
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
