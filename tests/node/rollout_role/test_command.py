"""What `volery join` says when the node has joined."""

from __future__ import annotations

from pathlib import Path

from node.rollout_role.command import joined_text
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
