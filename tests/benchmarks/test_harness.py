"""Test the benchmarks' shared parts: curves, medians, bars, and programs that are ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.harness import Bar, BenchmarkError, conclude, crossing, median, run, scratch, table


def test_a_curve_crosses_on_the_line_between_two_points() -> None:
    assert crossing([(0.0, 0.1), (10.0, 0.6), (20.0, 1.0)], 0.8) == pytest.approx(15.0)


def test_the_first_crossing_counts_though_the_curve_falls_again() -> None:
    assert crossing([(0.0, 0.0), (1.0, 0.8), (2.0, 0.5), (3.0, 0.9)], 0.8) == 1.0


@pytest.mark.parametrize(("values", "expected"), [([0.9, 0.95], 0.0), ([0.1, 0.79], None)])
def test_a_curve_that_begins_above_crosses_at_once_and_one_that_stays_below_never(
    values: list[float], expected: float | None
) -> None:
    assert crossing(list(enumerate(values)), 0.8) == expected


def test_never_is_more_than_any_number() -> None:
    assert median([3.0, None, 1.0]) == 3.0
    assert median([None, 1.0, None]) is None


@pytest.mark.parametrize(
    ("bar", "met"),
    [
        (Bar(name="ratio", value=2.5, at_most=2.5), True),
        (Bar(name="ratio", value=2.51, at_most=2.5), False),
        (Bar(name="share", value=0.9, at_least=0.95), False),
        (Bar(name="ratio", value=None, at_most=2.5), False),
    ],
)
def test_a_bar_is_met_within_its_bounds_and_never_without_a_value(bar: Bar, met: bool) -> None:
    assert bar.met is met


def test_the_last_line_is_one_json_object_and_the_exit_code_its_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    bars = [Bar(name="ratio", value=1.23456, at_most=2.5), Bar(name="missed", value=3.0, at_most=2.5)]
    assert conclude("claim", bars, {"seconds": 4.0}) == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["claim"] == "claim"
    assert last["bars"][0] == {"name": "ratio", "value": 1.2346, "at_most": 2.5, "met": True}
    assert conclude("claim", bars[:1], {}) == 0


def test_a_table_is_markdown_of_even_width() -> None:
    assert table(["name", "n"], [["a", 10]]).splitlines() == ["| name | n  |", "| ---- | -- |", "| a    | 10 |"]


def test_a_directory_to_keep_is_never_one_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(BenchmarkError, match="new directory"), scratch(tmp_path):
        pass
    with scratch(tmp_path / "new") as out:
        (out / "kept").touch()
    assert (tmp_path / "new" / "kept").exists()


def test_a_program_that_fails_is_an_error_with_the_end_of_its_output(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"(?s)code 3.*the reason"):
        run(
            ["-c", "print('the reason'); raise SystemExit(3)"],
            log=tmp_path / "log",
            caches=tmp_path,
            measure_memory=False,
        )


def test_processor_time_of_a_program_and_its_children_is_its_own(tmp_path: Path) -> None:
    busy = "import time\nwhile time.process_time() < 0.3: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    ran = run(["-c", parent], log=tmp_path / "log", caches=tmp_path, measure_memory=False)
    assert ran.cores * ran.seconds >= 0.3


PROGRAM = """
import sys
from pathlib import Path
from benchmarks.harness import main, run, scratch

def claim():
    with scratch(None) as out:
        print(out, flush=True)
        child = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
        run(["-c", child], log=Path(sys.argv[1]), caches=out, measure_memory=False)
    return 0

main(claim)
"""


def test_after_ctrl_c_no_process_and_no_file_is_left(tmp_path: Path) -> None:
    log = tmp_path / "log"
    os.mkfifo(log)  # so that reading it waits for the child to speak
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(log)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        out = Path(process.stdout.readline().strip())
        with log.open(encoding="utf-8") as lines:
            child = psutil.Process(int(lines.readline()))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
    assert not child.is_running()
    assert not out.exists()
