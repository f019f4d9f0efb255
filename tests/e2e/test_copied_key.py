"""A state directory is copied to a second machine: one of the two nodes works, and the other one is told the reason."""

from __future__ import annotations

import shutil

from tests.e2e.programs import Swarm, wait_event

TOKEN_S = 0.05
"""Seconds a token. The swarm works while the second node is turned away, and need not work hard."""


def test_of_two_nodes_with_one_key_the_second_is_told_and_the_first_works_on(swarm: Swarm) -> None:
    swarm.configure(steps=4000)
    learner = swarm.learn_doomed()
    first = swarm.join("first", token_s=TOKEN_S)
    wait_event(first, "receipt", learner)
    (swarm.directory / "second").mkdir()
    shutil.copy(swarm.directory / "first" / "node.key", swarm.directory / "second" / "node.key")
    second = swarm.join("second")
    assert second.wait() == 2, second.story()
    said = second.err.read_text()
    assert said.startswith("volery: usage: Another node that runs now has the key of this one, "), said
    assert str(swarm.directory / "second" / "node.key") in said
    assert "remove node.key, receipts.sqlite and about.json from the copy" in said
    assert all(event["reason"].startswith("the key of this node is in use") for event in second.events("turned_away"))
    told = wait_event(learner, "key_copied", first, name="second")
    assert told["peer"] == learner.events("peer_joined")[0]["peer"]
    seen = len(first.events("receipt"))
    wait_event(first, "receipt", learner, after=seen + 2)
    assert first.events("learner_unreachable") == []
    assert len(learner.events("peer_joined")) == 1
    learner.interrupt()
    assert learner.wait() == 130
    assert "refused a second node that uses the key of" in learner.out.read_text()

    # The same machine is welcome with a key of its own.
    learner = swarm.learn_doomed()
    (swarm.directory / "second" / "node.key").unlink()
    second = swarm.join("second")
    wait_event(second, "receipt", learner)


def test_a_node_that_was_killed_is_welcome_again_at_once(swarm: Swarm) -> None:
    """The system closes the sockets of a killed process, so the learner need not wait to be sure that it is gone."""
    swarm.configure(steps=4000)
    learner = swarm.learn_doomed()
    node = swarm.join("node")
    wait_event(node, "receipt", learner)
    node.kill()
    node = swarm.join("node")
    wait_event(node, "joined", learner, after=1)
    assert node.events("turned_away") == []
    assert learner.events("key_copied") == []
