"""Make `summary.json`: a run as one flat value that acceptance checks and benchmarks read.

The keys are a promise, like those of the report (`node.reports.machine_formats`).
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from node.config.swarm_config import mode_of
from node.reports.machine_formats import named, plain
from node.reports.model.report import PeerReport, SwarmReport
from node.reports.model.time_words import as_values

FORMAT = "volery-summary/2"
"""Format 1 had no `format`, and divided training time by training and waiting alone."""

SOFTWARE = ("volery", "torch", "transformers", "libp2p", "trio", "safetensors", "numpy")
"""Packages that a result may depend on."""


def summary(
    report: SwarmReport,
    *,
    staleness_bound: int,
    peak_pss_mib: float | None,
    seeds: Mapping[str, int],
    wall_s: float | None = None,
    software: Mapping[str, str] | None = None,
    routes: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, Any]:
    """Return the content of `summary.json`.

    Args:
        peak_pss_mib: highest summed PSS of all processes in MiB; None if it was not measured.
        seeds: the first seed of each source of randomness.
        wall_s: seconds from the command to its end, if the caller measured more than the ledger saw.
        software: versions of the packages that ran; by default those that are installed here.
        routes: versions and bytes by way of fetching (`node.reports.readers.fetch_routes`); None if the nodes' logs
        cannot be read.
    """
    scores = report.surviving_evaluations
    first, last = (scores[0], scores[-1]) if scores else (None, None)
    told = {
        "format": FORMAT,
        "wall_s": report.wall_s if wall_s is None else wall_s,
        "swarm_wall_s": report.wall_s,
        "versions_published": len(report.versions),
        "steps": len(report.steps),
        "incarnations": len(report.incarnations),
        "mode": mode_of(staleness_bound),
        "staleness_bound": staleness_bound,
        "lag_histogram": {str(lag): number for lag, number in report.lags.items()},
        **named(report, "admitted rejected trained dropped verdicts"),
        "greedy_start": None if first is None else first.greedy,
        "greedy_end": None if last is None else last.greedy,
        "sampled_start": None if first is None else first.sampled,
        "sampled_end": None if last is None else last.sampled,
        "learner_utilisation": report.utilisation,
        "learner_time": as_values(report.learner_time),
        **named(report, "bubble mean_train_s mean_waited_s mean_step_s"),
        "peers": [_peer(peer) for peer in report.peers],
        **named(report, "weight_bytes bytes_relayed"),
        "roads": routes,
        "peak_pss_mib": peak_pss_mib,
        "seeds": dict(seeds),
        "software": dict(installed_software() if software is None else software),
    }
    return dict(plain(told))


def installed_software() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result may depend on, without importing them."""
    found = {"python": platform.python_version()}
    for package in SOFTWARE:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _peer(peer: PeerReport) -> dict[str, Any]:
    return {
        "id": peer.peer,
        **named(peer, "name role admitted rejected tokens share bytes_up bytes_down bytes_relayed hours_active cost"),
        "currency": peer.price.currency,
    }
