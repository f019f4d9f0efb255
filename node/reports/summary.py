"""`summary.json`: a run in one flat value that acceptance checks and benchmarks read.

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
"""1 did not say so, and divided training by training and waiting alone."""

SOFTWARE = ("volery", "torch", "transformers", "libp2p", "trio", "safetensors", "numpy")
"""What a figure may depend on."""


def summary(
    report: SwarmReport,
    *,
    staleness_bound: int,
    peak_pss_mib: float | None,
    seeds: Mapping[str, int],
    wall_s: float | None = None,
    software: Mapping[str, str] | None = None,
    roads: Mapping[str, Mapping[str, int]] | None = None,
) -> dict[str, Any]:
    """Return what `summary.json` holds.

    Args:
        peak_pss_mib: highest summed PSS of all processes in MiB, None when it was not measured.
        seeds: what each source of randomness began with.
        wall_s: seconds from the command to its end, where the caller timed more than the ledger saw.
        software: versions of what ran, by default of what is installed here.
        roads: versions and bytes by road (`node.reports.readers.fetch_routes`), None where the nodes' logs cannot be
        read.
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
        "roads": roads,
        "peak_pss_mib": peak_pss_mib,
        "seeds": dict(seeds),
        "software": dict(installed_software() if software is None else software),
    }
    return dict(plain(told))


def installed_software() -> dict[str, str]:
    """Versions of Python and of the packages that a figure may depend on, read without importing them."""
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
