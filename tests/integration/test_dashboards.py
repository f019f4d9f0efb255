"""The dashboard and the alert rules in `etc/` name only metrics, labels and values that a learner serves."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from learner.provisioning.estimation.learner_time import TimeKind
from node.learner_role.metrics.catalogue import METRICS, Kind
from node.learner_role.metrics.prometheus import PREFIX
from tests.support.paths import ROOT

ETC = ROOT / "etc"
DASHBOARD = ETC / "grafana" / "volery.json"
ALERTS = ETC / "prometheus" / "alerts.yaml"
SCRAPE = ETC / "prometheus" / "scrape.yaml"

ENDINGS = {Kind.GAUGE: ("",), Kind.COUNTER: ("_total",), Kind.HISTOGRAM: ("_bucket", "_sum", "_count")}
SERVED = {PREFIX + metric.name + ending: metric for metric in METRICS.values() for ending in ENDINGS[metric.kind]} | {
    "up": None
}
"""Every name that Prometheus stores, and the metric behind it. Prometheus itself makes `up`."""

OF_PROMETHEUS = {"instance", "job"}


def expressions(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each expression of a dashboard, with the legend of its series."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"], target["legendFormat"]
    for note in dashboard["annotations"]["list"]:
        yield note["expr"], ""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield re.sub(r"^label_values\((\w+), (\w+)\)$", r"sum by (\2) (\1)", variable["definition"]), ""


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def wrong_in(expression: str, shown: str = "") -> list[str]:
    """Return what an expression, or the text beside its series, names that a learner does not serve."""
    names = re.findall(rf"\b(?:{PREFIX}\w+|up)\b", expression)
    wrong = [name for name in names if name not in SERVED]
    known = OF_PROMETHEUS | {label for name in names if (metric := SERVED.get(name)) for label in metric.labels}
    known |= {"le"} if any(name.endswith("_bucket") for name in names) else set()
    used = re.findall(r"(\w+)=~?\"", expression)
    groups = re.findall(r"\b(?:by|without|on) \(([^)]*)\)", expression)
    used += [label for group in groups for label in group.split(", ")]
    used += re.findall(r"\{\{ *(\w+) *\}\}", shown) + re.findall(r"\$labels\.(\w+)", shown)
    kinds = re.findall(r"learner_seconds_total\{[^}]*kind=\"(\w+)\"", expression)
    wrong += [kind for kind in kinds if kind not in {known.value for known in TimeKind}]
    return wrong + [label for label in used if label not in known]


def test_the_dashboard_names_what_a_learner_serves() -> None:
    found = list(expressions(json.loads(DASHBOARD.read_text())))
    assert len(found) > 60
    for expression, legend in found:
        assert wrong_in(expression, legend) == [], expression
        assert re.search(rf"\b{PREFIX}\w+", expression)


def test_the_alerts_name_what_a_learner_serves() -> None:
    for rule in rules():
        texts = rule["annotations"]
        assert wrong_in(rule["expr"], texts["summary"] + texts["description"]) == [], rule["alert"]


def test_every_alert_says_what_to_do() -> None:
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert "$labels.instance" in rule["annotations"]["summary"]
        first = rule["annotations"]["description"].split()[0]
        assert first in ("Look", "Run", "Hand", "Add", "Put", "Free", "The"), first


@pytest.mark.parametrize(
    ("expression", "shown", "wrong"),
    [
        ("volery_entropie", "", ["volery_entropie"]),
        ("rate(volery_rollouts_admitted[5m])", "", ["volery_rollouts_admitted"]),
        ("volery_train_seconds", "", ["volery_train_seconds"]),
        ("volery_kl_at_lag", "lag {{lags}}", ["lags"]),
        ('volery_alarm{rules="clipped"}', "", ["rules"]),
        ("sum by (peers) (volery_peers)", "", ["peers"]),
        ('volery_learner_seconds_total{kind="waits"}', "", ["waits"]),
        ("volery_alarm == 1", "{{ $labels.peer }}", ["peer"]),
    ],
)
def test_a_renamed_metric_label_or_kind_is_noticed(expression: str, shown: str, wrong: list[str]) -> None:
    assert wrong_in(expression, shown) == wrong


def test_panels_fill_rows_of_24_columns_and_do_not_overlap() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in rows}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")
    height = max(y for _, y in taken) + 1
    assert len(taken) == 24 * height


def test_the_scrape_has_the_job_that_the_alerts_ask_for() -> None:
    config = yaml.safe_load(SCRAPE.read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    asked = {job for rule in rules() for job in re.findall(r"job=\"(\w+)\"", rule["expr"])}
    assert asked == jobs
    assert [ALERTS.parent / name for name in config["rule_files"]] == [ALERTS]


@pytest.fixture
def promtool() -> str:
    if (found := shutil.which("promtool")) is None:
        pytest.skip(
            "promtool is not installed. Debian, without its service (95 MB): apt-get download prometheus && "
            "dpkg -x prometheus_*.deb DIRECTORY, and DIRECTORY/usr/bin in PATH"
        )
    return found


def test_promtool_accepts_the_scrape_and_the_rules(promtool: str) -> None:
    for what, file in (("rules", ALERTS), ("config", SCRAPE)):
        ran = subprocess.run([promtool, "check", what, str(file)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr + ran.stdout


CASES: list[tuple[str, dict[str, str], str]] = [
    ("VoleryLearnerDown", {'up{job="volery"}': "0x200"}, "10m"),
    ("VoleryStandsStill", {"volery_still_seconds": "0+60x200", "volery_t_train": "10x200"}, "20m"),
    ("VoleryAlarm", {'volery_alarm{rule="clipped"}': "1x200"}, "1m"),
    ("VoleryNobodyCanWork", {"volery_nobody_can_work": "1x200"}, "10m"),
    ("VoleryNoPeers", {"volery_peers": "0x200"}, "20m"),
    (
        "VoleryBubbleHigh",
        {
            'volery_learner_seconds_total{kind="waiting"}': "0+45x200",
            'volery_learner_seconds_total{kind="training"}': "0+15x200",
        },
        "90m",
    ),
    ("VoleryCertificateEnds", {"volery_certificate_seconds": "86400-60x200"}, "15m"),
    (
        "VoleryDiskLow",
        {"volery_disk_free_bytes": "5e9x200", "volery_checkpoint_bytes": "3e9x200", "volery_version_bytes": "1e9x200"},
        "15m",
    ),
    ("VoleryDiskLow", {"volery_disk_free_bytes": "5e8x200"}, "15m"),
    ("VoleryCheckpointFailed", {"volery_checkpoints_failed_total": "_x5 1x200"}, "10m"),
    ("VoleryCheckpointFailed", {"volery_checkpoints_failed_total": "1x5 2x200"}, "10m"),
]
"""Alert, the series that raise it, and when it is active."""

QUIET: list[tuple[str, dict[str, str], str]] = [
    ("VoleryLearnerDown", {'up{job="volery"}': "1x200"}, "10m"),
    ("VoleryStandsStill", {"volery_still_seconds": "0+60x200", "volery_t_train": "600x200"}, "100m"),
    ("VoleryStandsStill", {"volery_still_seconds": "0+60x200"}, "100m"),
    ("VoleryAlarm", {'volery_alarm{rule="clipped"}': "0x200"}, "10m"),
    (
        "VoleryBubbleHigh",
        {
            'volery_learner_seconds_total{kind="waiting"}': "0+15x200",
            'volery_learner_seconds_total{kind="training"}': "0+45x200",
        },
        "90m",
    ),
    ("VoleryCertificateEnds", {"volery_certificate_seconds": "7776000-60x200"}, "15m"),
    ("VoleryDiskLow", {"volery_disk_free_bytes": "5e9x200"}, "15m"),
    ("VoleryCheckpointFailed", {"volery_checkpoints_failed_total": "1x200"}, "60m"),
]


def test_the_alerts_are_raised_when_they_should_be(promtool: str, tmp_path: Path) -> None:
    """One run of promtool for all cases: it takes most of a second to start."""
    cases = [(*case, True) for case in CASES] + [(*case, False) for case in QUIET]
    assert {name for name, *_ in CASES} == {rule["alert"] for rule in rules()}
    tests = []
    for number, (alert, series, at, is_raised) in enumerate(cases):
        name = f"case {number}: {alert}"
        held = [{"series": key, "values": values} for key, values in series.items()]
        # The number of active alerts of that name: texts and labels are checked above.
        count = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
        expected = [{"labels": "{}", "value": int(is_raised)}]
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": held,
                "promql_expr_test": [{"expr": count, "eval_time": at, "exp_samples": expected}],
            }
        )
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))
    ran = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
