"""The screen: it fits, it is full, and nothing that matters is left out of a small one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.energy.machine_load import GpuLoad, Load
from node.reports.model.report import Role
from node.ui.live_view import ViewState
from node.ui.look import Look, Page
from node.ui.picture import Footing, picture
from node.ui.view_updates import apply
from protocol.core.ids import PeerId
from tests.support.views import ADVICE, busy_learner, busy_node

SIZES = [(20, 10), (80, 24), (120, 40), (200, 60), (300, 100)]
LEARNER, NODE, EMPTY = busy_learner(), busy_node(), ViewState(role=Role.ROLLOUT)
H200 = GpuLoad(name="NVIDIA H200", busy=0.87, used_bytes=91 << 30, celsius=64)
FOOTING = Footing(has_keys=True, report="volery report my-swarm/swarm.toml")


def lines_of(state: ViewState, width: int, height: int, **look: object) -> list[str]:
    made = picture(state, Look(**look), width, height, FOOTING)  # type: ignore[arg-type]
    return [line.plain for line in made.lines]


def all_of(state: ViewState, width: int, height: int, page: Page) -> str:
    """Return what scrolling through a page shows, line after line, with single spaces."""
    made = picture(state, Look(page=page), width, height, FOOTING)
    seen = lines_of(state, width, height, page=page)[:-1]
    for scrolled in range(1, made.most + 1):
        seen.append(lines_of(state, width, height, page=page, scrolled=scrolled)[-2])
    return " ".join(" ".join(seen).split())


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("page", list(Page))
@pytest.mark.parametrize("state", [LEARNER, NODE, EMPTY], ids=["learner", "node", "empty"])
def test_nothing_is_wider_or_higher_than_the_screen(state: ViewState, page: Page, width: int, height: int) -> None:
    made = picture(state, Look(page=page), width, height, FOOTING)
    assert len(made.lines) == height
    assert max(line.cell_len for line in made.lines) <= width
    assert "h help" in made.lines[-1].plain or width < 80


@given(st.integers(1, 90), st.integers(1, 50), st.sampled_from(list(Page)), st.integers(0, 300))
def test_any_size_and_any_scrolling_fit(width: int, height: int, page: Page, scrolled: int) -> None:
    for state in (LEARNER, NODE):
        made = picture(state, Look(page=page, scrolled=scrolled), width, height, FOOTING)
        assert len(made.lines) == height
        assert max(line.cell_len for line in made.lines) <= width


def test_the_newest_notice_is_whole() -> None:
    shown = " ".join(" ".join(lines_of(LEARNER, 80, 24)).split())
    assert f"ALARM at step 75: The entropy falls. {ADVICE}" in shown


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_a_learner_shows_time_left_pace_time_by_kind_and_peers(width: int, height: int) -> None:
    text = "\n".join(lines_of(LEARNER, width, height))
    for part in (
        "75 of 600, about 17 min 30 s left, 2 s a step",
        "training 52.0%",
        "waiting for rollouts 30.0%",
        "publishing and checkpoints 10.0%",
        "other 8.0%",
        "greedy 0.750, sampled 0.500, pass@8 0.900",
        "75 published",
        "not cleared: entropy falls (since step 75)",
        "peer ",
    ):
        assert part in " ".join(text.split()) or part in text, part


def test_a_large_screen_has_a_curve_of_rewards_with_its_scale() -> None:
    lines = lines_of(LEARNER, 120, 40)
    top = next(place for place, line in enumerate(lines) if "0.205 to 0.575, 75 steps" in line)
    assert lines[top].startswith(" reward   0.575")
    assert lines[top + 1].split()[0] == "0.575"
    bottom = next(place for place in range(top + 2, 40) if lines[place].split()[:1] == ["0.205"])
    assert lines[bottom].count("█") > lines[top + 1].count("█"), "the curve rises to the right"
    assert sum(line.startswith(" reward") for line in lines) == 1, "the small curve gives way"


def test_the_smallest_screen_shows_how_far_the_run_is_and_what_is_wrong() -> None:
    text = " ".join(" ".join(lines_of(LEARNER, 20, 10)).split())
    assert "75 of 600" in text
    assert "ALARM at work" in text
    assert "last versions." in text


def test_peers_scroll_and_the_rest_of_the_screen_stays() -> None:
    before = picture(LEARNER, Look(), 120, 40, FOOTING)
    after = picture(LEARNER, Look(scrolled=before.most), 120, 40, FOOTING)

    assert before.most > 0
    first = {number for number in range(30) for line in before.lines if f" {number:06} " in line.plain}
    last = {number for number in range(30) for line in after.lines if f" {number:06} " in line.plain}
    assert first
    assert last
    assert first != last
    assert before.lines[0] == after.lines[0]


def test_every_peer_is_reached_by_scrolling() -> None:
    made, found = picture(LEARNER, Look(page=Page.PEERS), 100, 20, FOOTING), set()
    for scrolled in range(made.most + 1):
        text = "\n".join(lines_of(LEARNER, 100, 20, page=Page.PEERS, scrolled=scrolled))
        found |= {number for number in range(30) if f" {number:06} " in text}
    assert found == set(range(30))


def test_notices_scroll_back_to_the_first() -> None:
    made = picture(LEARNER, Look(page=Page.NOTICES), 80, 24, FOOTING)
    assert "last versions." in made.lines[-2].plain
    oldest = lines_of(LEARNER, 80, 24, page=Page.NOTICES, scrolled=made.most)
    kept = LEARNER.notices[0].text
    assert kept in oldest[1], "the first line after the header"


def test_a_node_shows_its_part() -> None:
    text = " ".join(" ".join(lines_of(NODE, 100, 30)).split())
    for part in (
        "1.35 installed, 1.36 is newest",
        "10 per s, 1,010 admitted, 12 rejected, 90,900 tokens since the start; 26,010 admitted in all",
        "900 tokens per s admitted; the engine alone made 51.3 at the start",
        "19,500 of 26,010 admitted (75.0%), with proofs",
        "reputation good, 0.93 of 1",
        "3 of 12 nodes, with 8.1% of admitted rollouts",
        "0.2400 EUR for 3 h 0 min at 0.0800 EUR an hour",
        "trained up to step 36, version 1.36; async, staleness window S = 2",
        "transformers: there is no NVIDIA GPU here",
        "p pause d drain",
    ):
        assert part in text, part


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 16), (20, 40)])
def test_a_node_shows_how_busy_its_machine_is(width: int, height: int) -> None:
    """On a small screen the page of all facts has it."""
    page = Page.MAIN if width == 80 else Page.PEERS
    assert "processor 93.0% of 2 cores, memory 3 GiB of 8 GiB" in all_of(NODE, width, height, page)
    state = busy_node()
    state.load = replace(state.load or Load(), gpus=[H200])
    text = all_of(state, width, height, page)
    assert "GPU NVIDIA H200 87.0% busy, 91 GiB used, 64 °C" in text
    assert text.index("GPU") < text.index("processor"), "the GPU does the work"
    state.load = replace(state.load, gpus=[H200] * 8)
    text = all_of(state, width, height, page)
    assert "GPU 0 NVIDIA H200" in text
    assert "processor 93.0%" in text, "eight GPUs leave room for the rest"


def test_nothing_is_said_of_a_machine_that_was_not_measured() -> None:
    assert "machine" not in "\n".join(lines_of(EMPTY, 100, 30))
    state = ViewState(role=Role.ROLLOUT, load=Load(cpu=None, cores=2))
    assert "machine" not in "\n".join(lines_of(state, 100, 30)), "its first measurement has no time to measure over"


def test_a_node_without_a_price_earns_nothing_and_says_nothing_of_it() -> None:
    assert "earned" not in "\n".join(lines_of(EMPTY, 100, 30))


def test_a_paused_node_is_offered_to_go_on() -> None:
    state = busy_node()
    apply(state, "paused", {"why": "paused by the key p"})
    assert "p resume" in lines_of(state, 80, 24)[-1]


def test_a_node_that_makes_room_for_a_program_can_be_paused() -> None:
    state = busy_node()
    apply(state, "paused", {"why": "paused while blender runs"})
    assert "p pause" in lines_of(state, 80, 24)[-1]


def test_the_page_of_a_node_has_the_line_of_its_report() -> None:
    assert FOOTING.report in "\n".join(lines_of(NODE, 80, 24, page=Page.PEERS))


def test_without_keys_none_are_offered() -> None:
    assert "q stop" not in "\n".join(line.plain for line in picture(NODE, Look(), 80, 24).lines)


def test_a_thousand_peers_and_endless_names_fit() -> None:
    state = ViewState(role=Role.LEARNER)
    for number in range(1000):
        apply(state, "peer_joined", {"peer": PeerId(f"12D3KooW{number:06}"), "name": "x\x1b[2J\u202e" + "長" * 500})
    for width, height in SIZES:
        made = picture(state, Look(), width, height, FOOTING)
        assert max(line.cell_len for line in made.lines) <= width
        assert "\x1b" not in "".join(line.plain for line in made.lines)
