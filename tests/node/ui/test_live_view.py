"""The live view: what events change in it, and how the screen and plain lines show that."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.reports.model.report import Role
from node.runtime.events import EventLog
from node.ui.live_view import MAX_NOTICES, RATE_WINDOW_S, Rate, ViewState
from node.ui.look import Look
from node.ui.picture import picture
from node.ui.plain_lines import PlainLines, status_line
from node.ui.view_updates import apply, follow
from tests.support.ledgers import ALPHA, BETA, LEARNER


def learner_state() -> ViewState:
    return ViewState(role=Role.LEARNER, title="demo", me=LEARNER, batch=256, steps=60, staleness=2)


def text_of(state: ViewState, width: int = 80, height: int = 60) -> str:
    return "\n".join(line.plain for line in picture(state, Look(), width, height).lines)


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
        "step     8 of 60",
        "1.8 published, async, staleness window S = 2",
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


def test_a_learner_shows_its_objective_and_the_alarms_that_stand() -> None:
    state = busy_state()
    figures = {"entropy": 0.5, "mismatch_kl": 0.004, "ess": 0.93, "clip_share": 0.02, "kl_by_lag": "0: 0.0001, 2: 0.01"}
    for step, entropy in ((9, 0.5), (10, 0.75)):
        apply(state, "step", {"step": step, "buffered": 0, "reward": 0.5, **figures, "entropy": entropy})
    apply(state, "alarm_raised", {"alarm": "entropy_rises", "step": 10, "text": "The policy's entropy rises."})
    text = text_of(state, 100)
    for part in (
        "entropy  0.750 ▁█",
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
    state, text = busy_state(), "how nodes are reached: 2 punchable; how pairs met: 1 punched"
    assert "reach " not in text_of(state)
    apply(state, "nodes_reached", {"text": text})
    apply(state, "traffic", {"bytes_up": 1, "bytes_down": 0, "bytes_carried": 2048})
    shown = text_of(state, 120)
    assert f"reach    {text}" in shown
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


def test_a_node_says_what_it_does_before_it_has_joined() -> None:
    state = ViewState(role=Role.ROLLOUT)
    apply(state, "starting", {"doing": "loading the engine"})
    assert status_line(state) == "starting: loading the engine"
    assert "starting: loading the engine" in text_of(state, 120)
    apply(state, "joined", {})
    assert state.activity == "at work"


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
        "returned 1 lease with 168 tokens already generated, which count for you: the node was stopped"
    )


def test_leases_that_are_returned_together_are_one_notice() -> None:
    state, printed = ViewState(role=Role.ROLLOUT), []
    lines = PlainLines(write=printed.extend, every_s=1e9)
    for tokens in (100, 60, 8):
        apply(state, "leases_given_back", {"leases": 1, "reason": "paused"})
        apply(state, "handed_back", {"lease": "a", "tokens": tokens, "reason": "paused"})
    apply(state, "handed_back", {"lease": "b", "tokens": 1, "reason": "another reason"})
    lines.update(state)
    told = [notice.text for notice in state.notices]
    assert told == [
        "returned 3 leases: paused",
        "returned 3 leases with 168 tokens already generated, which count for you: paused",
        "returned 1 lease with 1 token already generated, which count for you: another reason",
    ]
    assert [line.partition(" ")[2] for line in printed[:3]] == told
    apply(state, "handed_back", {"lease": "c", "tokens": 1, "reason": "another reason"})
    printed.clear()
    lines.update(state)
    assert len(printed) == 1, "what was printed stays, and what comes later has a line of its own"
    assert len(state.notices) == 4


def test_returned_leases_of_two_peers_stay_two_notices() -> None:
    state = learner_state()
    for peer in ("12D3a", "12D3b", "12D3a"):
        apply(state, "lease_handed_back", {"peer": peer, "tokens": 5, "reason": "paused"})
    assert [("2 leases with 10 tokens" in one.text, "1 lease with 5 tokens" in one.text) for one in state.notices] == [
        (False, True),
        (True, False),
    ]
