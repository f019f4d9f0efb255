"""The live view: bounded, readable at any width, the same facts as plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from learner.monitoring.thresholds import ADVICE, Alarm
from node.reports.model.report import Role
from node.runtime.events import EventLog
from node.ui.live_view import (
    BLOCKS,
    MAX_NOTICES,
    PEERS_SHOWN,
    RATE_WINDOW_S,
    PlainLines,
    Rate,
    ViewState,
    bar,
    clock,
    lag_line,
    render,
    show_live,
    sparkline,
    status_line,
)
from node.ui.view_updates import apply, follow
from protocol.core.ids import PeerId
from tests.support.ledgers import ALPHA, BETA, LEARNER


def learner_state() -> ViewState:
    return ViewState(role=Role.LEARNER, title="demo", me=LEARNER, batch=256, steps=60, staleness=2)


def text_of(state: ViewState, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=True, legacy_windows=False).print(render(state))
    return out.getvalue()


def busy_state() -> ViewState:
    state = learner_state()
    apply(state, "peer_joined", {"peer": ALPHA, "name": "atlas"})
    apply(state, "peer_joined", {"peer": BETA, "name": "borealis"})
    for second in range(10):
        state.tick(float(second))
        apply(state, "delivery_judged", {"peer": ALPHA, "admitted": 16, "refused": 0, "lag": 1, "tokens": 112})
    apply(state, "heartbeat", {"peer": ALPHA, "installed": "1.7", "pending": 32, "bytes_up": 2048, "bytes_down": 4096})
    apply(state, "traffic", {"bytes_up": 3 << 20, "bytes_down": 0})
    apply(state, "step", {"step": 8, "buffered": 64, "reward": 0.625})
    apply(state, "version_published", {"version": "1.8"})
    apply(state, "evaluated", {"version": "1.8", "greedy": 0.75, "sampled": 0.5, "pass_1": 0.5, "pass_8": 0.875})
    apply(state, "peer_left", {"peer": BETA, "reason": "silent for 20 s", "leases_released": 2})
    state.tick(10.0)
    return state


@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(cell_len(line) for line in text_of(busy_state(), width).splitlines()) <= width


def test_energy_is_shown_once_any_was_told() -> None:
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "energy_read", {"how": "meters of a GPU (NVML)"})
    assert "kWh" not in text_of(state)
    apply(state, "energy", {"joules": 1_800_000, "watts": 250})
    text = text_of(state)
    assert "0.5 kWh, 250 W recently" in text
    assert "energy: meters of a GPU (NVML)" in text


def test_a_learner_shows_what_happened() -> None:
    text = text_of(busy_state(), 100)
    for part in (
        "step 8 of 60, version 1.8 published, async, staleness window S = 2",
        "0.625",
        "greedy 0.750, sampled 0.500, pass@8 0.875",
        "16 per s, 160 admitted",
        "1 █ 100%",
        "64 rollouts (a step takes 256)",
        "atlas",
        "1.7",
        "2 KiB",
        "3 MiB up, 0 B down",
        "silent for 20 s; 2 leases released",
    ):
        assert part in text


def test_a_rollout_node_shows_its_own_work() -> None:
    state = ViewState(role=Role.ROLLOUT, me=ALPHA)
    apply(state, "joined", {"learner": LEARNER, "staleness": 2, "newest": "1.4"})
    apply(state, "version_installed", {"version": "1.3", "seconds": 0.2})
    refused = {"lease": "8d13709a", "admitted": 0, "refused": 16, "reason": "stale", "detail": "lag 3", "tokens": 0}
    apply(state, "receipt", refused)
    state.fetching = (512, 1024)
    text = text_of(state, 120)
    for part in (
        "1.3 installed, 1.4 is newest",
        "512 B of 1 KiB",
        "16 rejected",
        "rollouts rejected (volery why 8d13709a), stale: lag 3",
    ):
        assert part in text


def test_a_learner_shows_whose_group_is_doubted_and_where_to_ask() -> None:
    state = ViewState(role="learner")
    apply(state, "peer_joined", {"peer": ALPHA, "name": "atlas"})
    apply(state, "group_doubted", {"peer": ALPHA, "lease": "f00f", "evidence": 3.1})
    assert state.notices[-1].text.endswith("is not trained on (volery why f00f)")
    assert "lease f00f of atlas" in state.notices[-1].text


def test_outside_its_owners_hours_a_node_shows_when_it_goes_on() -> None:
    state = ViewState(role=Role.ROLLOUT, me=ALPHA)
    apply(state, "hours_ended", {"again_at": "19:00"})
    assert "resting until 19:00" in text_of(state, 120)
    assert "only relays versions, and generates again from 19:00" in text_of(state, 120)
    apply(state, "learner_unreachable", {"reason": "gone", "retry_s": 1})
    assert state.activity == "learner unreachable"
    apply(state, "joined", {"learner": LEARNER})
    assert state.activity == "resting until 19:00", "a new line wakes nobody"
    apply(state, "hours_began", {"until": "07:30"})
    assert (state.activity, state.resting) == ("at work", "")
    assert "at work until 07:30" in text_of(state, 120)


def test_a_pause_is_shown_until_it_ends() -> None:
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "paused", {"why": "paused by SIGUSR1"})
    assert "paused by SIGUSR1" in text_of(state, 120)
    apply(state, "joined", {})
    assert state.activity == "paused by SIGUSR1"
    apply(state, "resumed", {})
    assert (state.activity, state.resting) == ("at work", "")
    apply(state, "drain_began", {"leases": 2, "within_s": None})
    assert state.activity == "draining"
    for event, fields in (("paused", {"why": "paused by SIGUSR1"}), ("resumed", {}), ("joined", {"newest": "1.2"})):
        apply(state, event, fields)
        assert state.activity == "draining", "a draining node must stay so, whatever else its owner does"
    assert "ends when 2 leases are delivered" in text_of(state, 120)


def test_rendering_changes_nothing() -> None:
    state = busy_state()
    assert text_of(state) == text_of(state)


def test_a_large_swarm_does_not_fill_the_screen() -> None:
    state = learner_state()
    for number in range(200):
        state.peer(PeerId(f"peer-{number:03}")).admitted = number
    text = text_of(state)
    assert f"and {200 - PEERS_SHOWN} more" in text
    assert "er-199" in text  # the peers that give most are shown
    assert len(text.splitlines()) < 40


def test_names_cannot_move_the_cursor() -> None:
    state = learner_state()
    apply(state, "peer_joined", {"peer": ALPHA, "name": "x\x1b[2J\u202e[bold]y"})
    assert "\x1b[2J" not in text_of(state)
    assert "\u202e" not in text_of(state)
    assert "[bold]" in text_of(state, 120)  # shown as it is, not understood as markup


def test_memory_is_bounded() -> None:
    state = learner_state()
    for second in range(1000):
        state.tick(float(second))
        state.note("something")
        state.rewards.append(0.5)
    assert (len(state.notices), state.noted) == (MAX_NOTICES, 1000)
    assert len(state.rate.samples) <= RATE_WINDOW_S + 2


@given(st.lists(st.integers(0, 50), min_size=2, max_size=100))
def test_a_rate_is_that_of_the_window(growth: list[int]) -> None:
    rate, count, counts = Rate(), 0, []
    for second, more in enumerate(growth):
        count += more
        counts.append(count)
        rate.sample(float(second), count)
    window = counts[-(int(RATE_WINDOW_S) + 1) :]
    assert rate.per_s == pytest.approx((window[-1] - window[0]) / (len(window) - 1))


def test_events_that_the_view_does_not_know_change_nothing() -> None:
    state = learner_state()
    apply(state, "child_said", {"child": "trainer", "line": "hello"})
    assert state == learner_state()


def test_an_event_without_its_fields_is_no_error() -> None:
    state = learner_state()
    for event in (
        "peer_left",
        "delivery_judged",
        "step",
        "evaluated",
        "receipt",
        "child_died",
        "heartbeat",
        "joined",
        "hours_ended",
    ):
        apply(state, event, {})
    assert (state.admitted, state.greedy) == (0, None)


def test_following_an_event_log() -> None:
    state, events = learner_state(), EventLog()
    follow(state, events)
    events.emit("child_died", child="engine", reason="was killed by SIGSEGV", said="one\ntwo")
    told = [notice.text for notice in state.notices]
    assert told[-3:] == ["the engine process was killed by SIGSEGV", "engine: one", "engine: two"]


# Plain lines


def test_each_notice_is_printed_once_and_the_status_every_few_seconds() -> None:
    state, written = learner_state(), list[str]()
    lines = PlainLines(write=written.append, every_s=5.0)
    for second in range(11):
        state.tick(float(second))
        if second == 3:
            state.note("a peer joined")
        lines.update(state)
    assert [line for line in written if "a peer joined" in line] == ["00:03 a peer joined\n"]
    assert [line[:5] for line in written if "starting, peers 0" in line] == ["00:00", "00:05", "00:10"]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in written)


def test_more_notices_than_are_kept_lose_the_oldest_only() -> None:
    state, written = learner_state(), list[str]()
    for number in range(MAX_NOTICES + 50):
        state.note(f"notice {number}")
    PlainLines(write=written.append).update(state)
    assert written[0] == "00:00 notice 50\n"
    assert f"00:00 notice {MAX_NOTICES + 49}\n" in written


@pytest.mark.parametrize("alarm", list(ADVICE))
def test_the_advice_of_an_alarm_is_printed_to_its_end(alarm: Alarm) -> None:
    state, written = learner_state(), list[str]()
    text = f"{'What was measured, with its figures. ' * 10}{ADVICE[alarm]}"
    apply(state, "alarm_raised", {"alarm": alarm.value, "step": 177, "text": text})
    PlainLines(write=written.append).update(state)
    assert written[0] == f"00:00 ALARM at step 177: {text}\n"


def test_what_is_no_terminal_gets_plain_lines_to_the_end() -> None:
    out = io.StringIO()
    state = busy_state()
    with show_live(Console(file=out), state) as refresh:
        refresh()
        state.note("the last word")
    text = out.getvalue()
    assert "\x1b" not in text
    assert "step 8, version 1.8, reward 0.625, greedy 0.750" in text
    assert "rollouts per s 16, buffer 64 rollouts (a step takes 256), peers 1" in text
    assert "the last word" in text


def test_a_terminal_gets_the_screen() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(
        file=out, force_terminal=True, width=100, height=50, color_system=None, _environ={"TERM": "xterm"}
    )
    with show_live(console, busy_state()) as refresh:
        refresh()
    out.flush()
    written = out.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "Volery learner" in written
    assert "█" in written


# Small pictures


@pytest.mark.parametrize(("seconds", "shown_as"), [(0, "00:00"), (75.9, "01:15"), (3661, "1:01:01")])
def test_clock(seconds: float, shown_as: str) -> None:
    assert clock(seconds) == shown_as


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
@example([0.0, 5e-324])
def test_a_sparkline_rises_with_its_values(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == len(values)
    heights = [BLOCKS.index(block) for block in line]
    ordered = sorted(zip(values, heights, strict=True))
    assert [height for _, height in ordered] == sorted(heights)


@given(st.floats(-1, 2), st.integers(1, 40))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    assert len(bar(share, width)) == width


def test_lags_beyond_the_shown_are_added_up() -> None:
    assert lag_line({0: 1, 7: 2, 9: 1}, shown=2) == "0 ▃ 25%  1 ▁ 0%  2+ ▆ 75%"
    assert lag_line({}) == "no rollout yet"


def test_a_learner_shows_its_objective_and_the_alarms_that_stand() -> None:
    state = busy_state()
    figures = {"entropy": 0.5, "mismatch_kl": 0.004, "ess": 0.93, "clip_share": 0.02, "kl_by_lag": "0: 0.0001, 2: 0.01"}
    for step, entropy in ((9, 0.5), (10, 0.75)):
        apply(state, "step", {"step": step, "buffered": 0, "reward": 0.5, **figures, "entropy": entropy})
    apply(state, "alarm_raised", {"alarm": "entropy_rises", "step": 10, "text": "The policy's entropy rises."})
    text = text_of(state, 100)
    for part in (
        "0.750 ▁█",
        "KL to the rollouts 0.004 nats, effective sample 93.0%, clipped 2.0%",
        "KL at lag 0: 0.0001, 2: 0.01",
        "not cleared: entropy rises (since step 10)",
        "ALARM at step 10: The policy's entropy rises.",
    ):
        assert part in text
    assert "entropy 0.750" in status_line(state)
    assert "ALARM entropy_rises" in status_line(state)
    apply(state, "incarnation_began", {"incarnation": 2, "step": 9})
    assert "since step" not in text_of(state, 100)
    apply(state, "alarm_raised", {"alarm": "entropy_rises", "step": 9, "text": "The policy's entropy rises."})
    assert "not cleared: entropy rises (since step 9)" in text_of(state, 100)
    apply(state, "alarm_cleared", {"alarm": "entropy_rises", "step": 30, "text": "over"})
    assert "since step" not in text_of(state, 100)
    assert "ALARM" not in status_line(state)


def test_a_learner_whose_nodes_cannot_work_does_not_look_as_if_it_waited() -> None:
    state, text = busy_state(), "2 of 2 nodes cannot install 1.0: attention 'x' is not supported"
    apply(state, "nodes_unable", {"text": text, "nodes": 2, "of": 2, "everyone": True})
    assert [line for line in text_of(state, 100).splitlines() if line.startswith(" nodes") and text in line]
    assert status_line(state).endswith(f"NODES {text}, chunks up 3 MiB, chunks down 0 B")
    assert state.nobody_works
    assert state.notices[-1].text == text
    apply(state, "nodes_unable", {"text": "1 of 2 nodes cannot work: \x1b[2J" + "y" * 999, "everyone": False})
    assert not state.nobody_works
    assert "\x1b" not in status_line(state)
    assert len(status_line(state)) < 600
    assert max(cell_len(line) for line in text_of(state).splitlines()) <= 80
    apply(state, "nodes_able", {"of": 2})
    assert (state.unable, state.nobody_works) == ("", False)
    assert not [line for line in text_of(state).splitlines() if line.startswith(" nodes")]
    assert "NODES" not in status_line(state)


def test_a_node_shows_when_it_tries_again() -> None:
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "install_failed", {"version": "1.0", "reason": "no such attention", "again": "again in 5 s"})
    assert state.notices[-1].text == "version 1.0 could not be installed (again in 5 s): no such attention"


# How nodes are reached.


def test_a_learner_shows_how_nodes_are_reached_and_what_it_carried() -> None:
    state, text = busy_state(), "nodes: 2 punchable; pairs of nodes: 1 punched"
    assert "reach " not in text_of(state)
    apply(state, "nodes_reached", {"text": text})
    apply(state, "traffic", {"bytes_up": 1, "bytes_down": 0, "bytes_carried": 2048})
    shown = text_of(state, 120)
    assert f"reach     {text}" in shown
    assert "model chunks 1 B up, 0 B down, 2 KiB over circuits between other nodes" in shown
    assert text in [notice.text for notice in state.notices], "the plain output must have the notice too"


def test_a_node_shows_how_it_is_reached_and_says_it_when_that_changes() -> None:
    state = ViewState(role=Role.ROLLOUT)
    for kind, text in (("unknown", "not known"), ("unknown", "not known; 1"), ("by_punching", "punchable; 2")):
        apply(state, "reach_told", {"kind": kind, "why": "", "text": text})
    assert "punchable; 2" in text_of(state)
    said = [notice.text for notice in state.notices]
    assert said == [f"how others reach this node: {text}" for text in ("not known", "punchable; 2")]


def test_a_node_shows_all_its_traffic_and_how_much_of_it_are_chunks() -> None:
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "traffic", {"bytes_up": 0, "bytes_down": 1 << 20, "sent_bytes": 3 << 20, "received_bytes": 2 << 20})
    assert "3 MiB sent, 2 MiB received, of which model chunks 0 B up, 1 MiB down" in text_of(state, 120)


def test_a_node_that_comes_again_counts_this_start_and_all_starts() -> None:
    state = ViewState(role=Role.ROLLOUT)
    receipt = {"admitted": 12, "refused": 0, "tokens": 3000, "lease": "x"}
    apply(state, "receipt", receipt)
    assert "12 admitted, 0 rejected, 3,000 tokens" in text_of(state, 120)
    assert "since the start" not in text_of(state, 120)
    assert status_line(state) == "starting"
    apply(state, "receipts_opened", {"admitted": 25_030, "rejected": 1})
    assert "12 admitted, 0 rejected, 3,000 tokens since the start; 25,042 admitted in all" in text_of(state, 120)
    apply(state, "version_installed", {"version": "1.2"})
    assert "admitted 12, rejected 0" in status_line(state)
    assert "admitted in all 25042" in status_line(state)


def test_an_older_learner_tells_nothing_of_circuits() -> None:
    state = learner_state()
    apply(state, "traffic", {"bytes_up": 1, "bytes_down": 0})
    assert "circuits" not in text_of(state)


def test_an_owner_who_stops_a_node_reads_that_the_tokens_count() -> None:
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "handed_back", {"tokens": 168, "reason": "the node was stopped"})
    assert state.notices[-1].text == (
        "returned a lease with 168 tokens already generated, which count for you: the node was stopped"
    )
