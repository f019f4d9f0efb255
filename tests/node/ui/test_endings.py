"""The sum at the end: everything that a person asks after Ctrl-C, and nothing that is not known."""

from __future__ import annotations

from node.reports.model.report import Role
from node.ui.endings import done_of_learner, done_of_node
from node.ui.live_view import ViewState
from node.ui.view_updates import apply
from tests.support.views import busy_learner, busy_node


def test_a_learner_tells_steps_pace_scores_versions_nodes_and_alarms() -> None:
    state = busy_learner()
    apply(state, "traffic", {"bytes_up": 1, "bytes_down": 0, "sent_bytes": 3 << 20, "received_bytes": 2 << 20})
    assert done_of_learner(state) == (
        "In 2 min 30 s: 75 training steps (2 s each), reward 0.205 to 0.575, held-out score 0.750, version 1.75 "
        "published, training 52.0% of the time, 252,000 tokens admitted, 30 nodes came, 3 MiB sent and 2 MiB received, "
        "alarms that stand: entropy falls."
    )


def test_a_learner_that_goes_on_counts_the_steps_of_this_start() -> None:
    state = ViewState(role=Role.LEARNER)
    apply(state, "incarnation_began", {"incarnation": 2, "step": 40})
    apply(state, "step", {"step": 41, "buffered": 0, "reward": 0.5})
    assert "1 training step, reward 0.500, 0 tokens admitted, 0 nodes came" in done_of_learner(state)


def test_a_learner_that_never_trained_has_no_sum() -> None:
    assert done_of_learner(ViewState(role=Role.LEARNER)) == ""


def test_a_node_tells_tokens_share_reputation_and_earnings() -> None:
    assert done_of_node(busy_node()) == (
        "In 1 min 40 s: 90,900 tokens admitted, trained on 19,500 of 26,010 admitted (75.0%), with proofs, reputation "
        "good, earned in all 0.2400 EUR for 3 h 0 min at 0.0800 EUR an hour."
    )


def test_a_node_that_knows_nothing_says_only_that() -> None:
    assert done_of_node(ViewState(role=Role.ROLLOUT)) == "In 0 s: 0 tokens admitted."
