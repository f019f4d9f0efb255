"""Report the outcome for peers of go-libp2p behind the laboratory's routers, introduced by a relay of ours."""

from __future__ import annotations

import pytest

from benchmarks.network.emulation import Node
from benchmarks.network.go_introduction import GoPrograms, open_observers
from benchmarks.network.home import Home
from benchmarks.network.homes import open_homes
from benchmarks.network.introduction import open_programs
from benchmarks.network.requirements import LINKS, missing_tools, obstacle
from benchmarks.network.routers import KINDS
from tests.support.partners.programs import needs_kubo

MISSING = missing_tools([*LINKS, "nft"])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

pytestmark = [needs_kubo, pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]


@pytest.mark.slow
def test_two_of_go_meet_again_and_ours_in_between() -> None:
    homes = [Home(name="a", kind=KINDS["port"], delay_ms=5), Home(name="b", kind=KINDS["port"], delay_ms=5)]
    hosts = [Node(name="learner", delay_ms=5), Node(name="observers")]
    with (
        open_homes(homes, hosts) as lab,
        open_observers(lab, "observers") as observers,
        open_programs(lab, "learner") as programs,
    ):
        go = GoPrograms(programs, observers)
        found = [go.introduce("a", "b"), programs.introduce("a", "b"), go.introduce("b", "a")]
    assert [one.met for one in found] == [True, True, True]
