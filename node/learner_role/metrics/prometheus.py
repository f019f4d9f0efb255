"""Serve the board's present values to Prometheus, over HTTP.

A counter begins at 0 with each start of the learner, as Prometheus expects.

    curl http://127.0.0.1:9464/metrics

Invariants:

- It listens only at the configured address: by default nowhere, and on this machine unless a host is named.
- A scrape runs on a thread of its own, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, groupby

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from node.learner_role.metrics.board import Board, Series
from node.learner_role.metrics.catalogue import METRICS, Kind
from node.runtime.errors import RunError

PREFIX = "volery_"


class BoardCollector(Collector):
    """The values for a scrape. Names are `volery_` and the name in `node.learner_role.metrics.catalogue`.

    Names of counters end in `_total`.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]:
        """Yield one family for each metric that has a value."""
        values = sorted(self._board.values().items())
        for name, group in groupby(values, key=lambda entry: entry[0].metric):
            yield _family(name, list(group))
        for series, counts, total in self._board.tallies():
            declared = METRICS[series.metric]
            family = HistogramMetricFamily(PREFIX + series.metric, declared.words, labels=declared.labels)
            ends = [*map(str, declared.buckets), "+Inf"]
            family.add_metric(series.labels, list(zip(ends, accumulate(counts), strict=True)), sum_value=total)
            yield family


def _family(name: str, values: list[tuple[Series, float]]) -> GaugeMetricFamily | CounterMetricFamily:
    declared = METRICS[name]
    kind = GaugeMetricFamily if declared.kind is Kind.GAUGE else CounterMetricFamily
    family = kind(PREFIX + name, declared.words, labels=declared.labels)
    for series, value in values:
        family.add_metric(series.labels, value)
    return family


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT" or "[::1]:PORT", or of "PORT", which means this machine only.

    Raises ValueError for anything else.
    """
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65_535 or (":" in host and "[" not in host):
        raise ValueError(f"{address!r} is not HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def serve(address: str, board: Board) -> Iterator[int]:
    """Answer scrapes at `address` while inside, and yield the port. Raises RunError if it cannot listen there."""
    host, port = split_address(address)
    registry = CollectorRegistry()
    registry.register(BoardCollector(board))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise RunError(
            f"[metrics] prometheus: cannot listen on {address}: {error.strerror or error}. End what listens there, or "
            "choose another port."
        ) from None
    try:
        yield int(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
