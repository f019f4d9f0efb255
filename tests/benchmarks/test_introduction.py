"""Report the outcome for real nodes behind the laboratory's routers, introduced by a relay."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.network.emulation import Node
from benchmarks.network.home import Home
from benchmarks.network.homes import open_homes
from benchmarks.network.introduction import IntroductionFailed, Way, open_programs
from benchmarks.network.node_reach import Report
from benchmarks.network.requirements import LINKS, missing_tools, obstacle
from benchmarks.network.routers import KINDS

MISSING = missing_tools([*LINKS, "nft"])
WHY_NOT = obstacle() or (f"{', '.join(MISSING)} not installed" if MISSING else "")

pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]

RELAY = Node(name="learner", delay_ms=5)


@pytest.mark.slow
def test_two_behind_routers_meet_again_and_again(tmp_path: Path) -> None:
    homes = [Home(name="a", kind=KINDS["port"], delay_ms=5), Home(name="b", kind=KINDS["port"], delay_ms=5)]
    with open_homes(homes, [RELAY]) as lab, open_programs(lab, "learner", log=tmp_path) as programs:
        found = [programs.introduce("a", "b"), programs.introduce("b", "a")]
        gates = {name: lab.network.address(lab.gate(name)) for name in ("a", "b")}
    for introduction in found:
        assert introduction.way is not Way.NOTHING
        assert not introduction.is_false
        one, other = introduction.reports
        assert f"/ip4/{gates[introduction.other]}/" in one.remote
        assert f"/ip4/{gates[introduction.one]}/" in other.remote
    assert (tmp_path / "a.log").exists()


@pytest.mark.slow
def test_two_that_cannot_meet_do_not_and_say_why() -> None:
    homes = [Home(name="a", kind=KINDS["port"]), Home(name="b", kind=KINDS["ipv6only"])]
    with open_homes(homes, [RELAY]) as lab, open_programs(lab, "learner") as programs:
        introduction = programs.introduce("a", "b")
    assert introduction.way is Way.NOTHING
    assert not introduction.is_false
    one, other = introduction.reports
    assert one.error
    assert other == Report(verdict=other.verdict, tries=other.tries, error="no connection")


def test_a_program_that_ended_is_named() -> None:
    with open_homes([Home(name="a", kind=KINDS["port"])], [RELAY]) as lab, open_programs(lab, "learner") as programs:
        programs._start("learner").kill()
        with pytest.raises(IntroductionFailed, match="the program of learner ended with code -9"):
            programs.introduce("a", "a")
