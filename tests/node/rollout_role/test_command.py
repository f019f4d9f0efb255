"""What `volery join` says when the node has joined, and when it ends."""

from __future__ import annotations

from pathlib import Path

from node.rollout_role.command import joined_text, work_of
from node.rollout_role.worker import RolloutCounts
from node.state.rollout_state import RolloutStateDir


def test_a_further_node_names_those_that_run_already(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("wb") as lock:
        first = RolloutStateDir(root=tmp_path / "node-1", lock=lock)
        third = RolloutStateDir(root=tmp_path / "node-3", lock=lock, others=("node-1", "node-2"))
    assert joined_text("", first) == f"Joined the swarm. State: {first.root}"
    assert joined_text("maths", third).splitlines() == [
        f"Joined maths. State: {third.root}",
        "node-1, node-2 run already on this machine; this is a further node, node-3.",
    ]


def test_the_last_line_counts_this_start_and_all_starts() -> None:
    counts = RolloutCounts(admitted=1200, rejected=3)
    assert work_of(counts, 25_030, Path("node-1")) == (
        "This node since its start: 1,200 rollouts admitted, 3 rejected; admitted in all: 26,230. Its report: volery "
        "report node-1"
    )
