"""Ctrl-C, or a closed terminal, at any moment: nothing is left running, and starting again goes on.

One line says what to do.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.ledger_rules import AFTER_A_CRASH, Run, check_ledger, check_receipts, peer_of
from tests.e2e.programs import Machine, Program, Swarm, free_port, wait_done, wait_event, wait_for, wait_gone

STEPS = 60


def interrupt(program: Program) -> None:
    """Press Ctrl-C; check that nothing is left running, and that the output says what to do."""
    family = program.family()
    program.interrupt()
    assert program.wait() == 130, program.story()
    wait_gone(family[1:])
    said = program.out.read_text() + program.err.read_text()
    assert "Traceback" not in said, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("Stopped. "), said
    assert "again" in last


def kept_all(swarm: Swarm) -> int:
    """Check that a learner that was stopped has made every training step durable; return the last one."""
    ((durable,),) = swarm.rows("SELECT max(step) FROM checkpoints")
    assert durable == swarm.steps_taken > 0
    return int(durable)


@pytest.mark.rest
def test_a_swarm_is_stopped_and_goes_on(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS, port=free_port(), held_out=8)
    learner = swarm.learn()
    node = swarm.join("node", engine="transformers")
    swarm.wait_steps(3, learner, node)
    interrupt(learner)
    wait_event(node, "learner_unreachable", node)
    interrupt(node)
    durable = kept_all(swarm)
    peer = peer_of(swarm, node)

    learner, node = swarm.learn(), swarm.join("node", engine="transformers")
    wait_event(learner, "incarnation_began", incarnation=2, step=durable)
    wait_done(learner, node)
    assert peer_of(swarm, node) == peer
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=AFTER_A_CRASH))
    # It was stopped while the learner was away, so the last verdicts could not reach it.
    check_receipts(swarm, node, cut_off=True)


CTRL_C = b"\x03"
LEFT = "left in good order"
DONE = (
    r"This node since its start: ([\d,]+) rollouts admitted, [\d,]+ rejected; admitted in all: [\d,]+\. "
    r"Its report: volery report (\S+)"
)


def shown_last(text: str) -> str:
    """Return the last lines of a screen, with any line endings."""
    return "\n".join(line.rstrip() for line in text.replace("\r", "").splitlines()[-6:])


def test_ctrl_c_in_a_terminal_ends_with_the_sum_and_no_trouble(swarm: Swarm) -> None:
    """The person who stops a node sees its summary, as at the end of a run, and no message that the learner is
    unreachable.
    """
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    node, terminal = swarm.join_in_terminal("node")
    wait_event(node, "receipt", learner)
    terminal.press(CTRL_C)
    assert node.wait() == 130, node.story()
    terminal.wait_read()
    left = wait_event(learner, "peer_left", learner)
    assert left["reason"] == LEFT
    assert node.events("learner_unreachable") == []
    text = terminal.text()
    assert "Traceback" not in text
    assert "cannot be reached" not in text
    assert "learner unreachable" not in text
    done = re.search(DONE, shown_last(text))
    assert done is not None, shown_last(text)
    assert int(done[1].replace(",", "")) == sum(event["admitted"] for event in node.events("receipt")) > 0
    assert done[2] == str(node.state)
    assert shown_last(text).endswith("start the same command again.")
    learner.interrupt()
    assert learner.wait() == 130, learner.story()
    said = learner.out.read_text()
    stopped = re.search(
        r"Stopped after step (\d+) of 4000\. Since this start: [1-9][\d,]* rollouts admitted, [\d,]+ rejected\.", said
    )
    assert stopped is not None, said
    assert int(stopped[1]) == kept_all(swarm)
    assert f"Who did what: volery report {swarm.config}" in said


def test_a_closed_terminal_stops_a_node_in_order(swarm: Swarm) -> None:
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    node, terminal = swarm.join_in_terminal("node")
    wait_event(node, "receipt", learner)
    family = node.family()
    terminal.close()
    assert node.wait() == 130, node.story()
    wait_gone(family[1:])
    assert wait_event(learner, "peer_left", learner)["reason"] == LEFT


def test_a_node_that_ignores_hang_ups_outlives_its_terminal(swarm: Swarm) -> None:
    """As under `nohup`, or after `disown`, although none of its output can be written any more."""
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    node, terminal = swarm.join_in_terminal("node", hangup_ignored=True)
    wait_event(node, "receipt", learner)
    terminal.close()
    seen = len(node.events("receipt"))
    wait_event(node, "receipt", learner, after=seen + 3)
    os.kill(node.pid, signal.SIGTERM)
    assert node.wait() == 130, node.story()
    assert wait_event(learner, "peer_left", learner)["reason"] == LEFT


def test_a_closed_terminal_stops_a_learner_which_goes_on_when_started_again(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS // 3, port=free_port())
    doomed = {"module": "tests.e2e.doomed", "state": swarm.state}
    learner, terminal = swarm.machine.start_in_terminal("learner", swarm.config, **doomed)
    wait_for("an invite", (swarm.state / "invite").exists, learner)
    node = swarm.join("node", token_s=0.03)  # otherwise the run would be over before the terminal is closed
    swarm.wait_steps(2, learner, node)
    family = learner.family()
    terminal.close()
    assert learner.wait() == 130, learner.story()
    wait_gone(family[1:])
    durable = kept_all(swarm)
    learner = swarm.learn_doomed()
    wait_event(learner, "incarnation_began", incarnation=2, step=durable)
    wait_done(learner, node)


def test_a_reader_who_goes_away_ends_a_node_which_says_goodbye(swarm: Swarm) -> None:
    """`volery join INVITE | head`: the pipe is closed while the node works."""
    swarm.configure(steps=4000, port=free_port())
    learner = swarm.learn_doomed()
    reading, writing = os.pipe()
    node = swarm.join("node", out_to=writing)
    os.close(writing)
    wait_event(node, "receipt", learner)
    os.close(reading)
    assert node.wait() == 1, node.story()
    assert node.err.read_text() == ""
    assert wait_event(learner, "peer_left", learner)["reason"] == LEFT


def test_a_node_is_stopped_while_it_looks_for_the_learner(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    learner.kill()
    node = swarm.join("node", "--wait", "600")
    assert node.state is not None
    wait_for("its receipts file", (node.state / "receipts.sqlite").exists, node)
    interrupt(node)


@pytest.mark.slow
def test_a_learner_is_stopped_while_it_starts(swarm: Swarm) -> None:
    swarm.configure(steps=3, held_out=8, port=free_port())
    learner = swarm.learn()
    learner.child("learner.training.server")  # which still imports
    interrupt(learner)
    learner = swarm.learn()
    learner.child("transformers_worker")  # the trainer is there, and the other engine is starting
    interrupt(learner)
    learner, node = swarm.learn(), swarm.join("node")
    wait_done(learner, node)


@pytest.mark.slow
def test_a_node_is_stopped_while_its_engine_starts(swarm: Swarm) -> None:
    swarm.configure(steps=3)
    learner = swarm.learn()
    node = swarm.join("node", engine="transformers")
    node.child("transformers_worker")
    interrupt(node)
    node = swarm.join("node", engine="transformers")
    wait_done(learner, node)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "drill"])
def test_a_closed_terminal_stops_what_has_a_swarm_of_its_own(machine: Machine, tmp_path: Path, command: str) -> None:
    program, terminal = machine.start_in_terminal(command, command, "--out", tmp_path / "out", state=tmp_path / "out")
    program.child("learner.training.server")
    family = program.family()
    terminal.close()
    assert program.wait() == 130, program.story()
    wait_gone(family[1:])


@pytest.mark.slow
def test_the_demo_is_stopped(machine: Machine, tmp_path: Path) -> None:
    demo = machine.start("demo", "demo", "--out", tmp_path / "demo", "--plain", state=tmp_path / "demo")
    demo.child("learner.training.server")
    interrupt(demo)
    demo = machine.start("demo", "demo", "--out", tmp_path / "demo", "--plain", state=tmp_path / "demo")
    wait_for("a learner of its own", (tmp_path / "demo" / "learner" / "invite").exists, demo)
    interrupt(demo)
