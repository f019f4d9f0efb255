"""An operator's addresses, dialled by members that come back, in the laboratory's internet."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

from benchmarks.network.emulation import Node
from benchmarks.network.home import Home
from benchmarks.network.homes import open_homes
from benchmarks.network.requirements import LINKS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from node.doctor.announced import WAIT_S

MISSING = missing_tools([*LINKS, "nft"])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

PROGRAM = [sys.executable, "-m", "tests.support.doctor_swarm"]
CLOSED = 4999


def test_members_that_come_back_dial_what_is_announced() -> None:
    with open_homes([Home(name="a", kind=KINDS["port"])], [Node(name="learner")]) as lab, ExitStack() as stack:
        outside, gate = (f"/ip4/{lab.network.address(name)}/tcp" for name in ("learner", lab.gate("a")))
        seeking = lab.inside("a", [*PROGRAM, "seeker", f"{outside}/4001"])
        seeker = subprocess.Popen(seeking, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        stack.callback(seeker.communicate)
        stack.callback(seeker.kill)
        addresses = ["/ip4/0.0.0.0/tcp/4001", f"{outside}/4001", f"{outside}/{CLOSED}"]
        open_one = subprocess.check_output(lab.inside("learner", [*PROGRAM, "operator", *addresses]), text=True)
        behind = ["/ip4/0.0.0.0/tcp/4001", f"{gate}/4001"]
        closed_one = subprocess.check_output(lab.inside("a", [*PROGRAM, "operator", *behind]), text=True)
    assert f"{outside}/4001 can be dialled from outside: a member has done so." in open_one
    assert f"{outside}/{CLOSED} was dialled by 1 member without success" in open_one
    assert f"no member came within {WAIT_S:.0f} s" in closed_one
