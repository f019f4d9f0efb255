"""Test the demo behind routers: missing programs are named first, and nothing is left, however it ends.

The report says which node reached which.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Exit

from benchmarks.network.namespaces import ip
from benchmarks.network.requirements import LINKS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from node.runtime.errors import UsageError
from tests.support.paths import ROOT
from tools import nat_demo

MISSING = missing_tools([*LINKS, "nft"])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")


def test_what_the_machine_lacks_is_said_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nat_demo, "obstacle", lambda: "Network namespaces need root.")
    with pytest.raises(Exit) as ended:
        nat_demo.demo(out=tmp_path / "out")
    said = capsys.readouterr().err
    assert ended.value.exit_code == 1
    assert "Network namespaces need root.\n    sudo make demo NAT=1\n" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("routers", ["castle", "port,,cone", ""])
def test_a_router_that_there_is_not_is_told_with_all_that_there_are(tmp_path: Path, routers: str) -> None:
    with pytest.raises(UsageError) as raised:
        nat_demo.demo(out=tmp_path, routers=routers)
    assert all(kind in str(raised.value) for kind in KINDS)


def test_each_node_has_a_home_of_its_own() -> None:
    homes = nat_demo.homes_behind("port,cone,port")
    assert [(home.name, home.kind.name) for home in homes] == [("home1", "port"), ("home2", "cone"), ("home3", "port")]


def start(out: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.nat_demo", "--plain", "--out", str(out), *arguments],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def namespaces_of(pid: int) -> list[str]:
    return [line for line in ip("netns", "list").splitlines() if line.startswith(f"volery-{pid}-")]


@pytest.mark.rest
@pytest.mark.root
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
class TestRunning:
    def test_the_report_tells_who_reached_whom(self, tmp_path: Path) -> None:
        demo = start(tmp_path / "demo", "--steps", "30")
        said, _ = demo.communicate()
        assert demo.returncode == 0, said
        report = (tmp_path / "demo" / "report.txt").read_text(encoding="utf-8")
        table = report.partition("Connections between nodes")[2]
        assert report in said
        assert "demo" in table
        assert all(f"node-{number} " in table for number in (1, 2, 3))
        assert table.count("dials it") == 3
        assert not namespaces_of(demo.pid)

    def test_ctrl_c_leaves_nothing(self, tmp_path: Path) -> None:
        demo = start(tmp_path / "demo")
        assert demo.stdout is not None
        seen = next((line for line in demo.stdout if "joined" in line), "")
        assert seen, "a node never joined"
        assert namespaces_of(demo.pid)
        os.kill(demo.pid, signal.SIGINT)
        said, _ = demo.communicate()
        assert "Stopped." in said
        assert not namespaces_of(demo.pid)
