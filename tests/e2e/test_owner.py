"""An owner pauses, resumes, asks and drains a node on one machine, by commands and by signals, through restarts."""

from __future__ import annotations

import json
import signal
from datetime import datetime, timedelta

from tests.e2e.programs import Program, Swarm, wait_event, wait_for
from tests.e2e.test_bad_input import TROUBLE, USAGE, check_refusal
from tests.node.rollout_role.test_yield_to_programs import running

STEPS = 100_000
"""More steps than a test waits for: these swarms are ended from outside."""

TOKEN_S = 0.02
"""Seconds a token: the nodes work all the while, and need not work hard."""


def doing(swarm: Swarm, node: Program) -> str:
    """Return what `volery status` says that the node does."""
    said = swarm.machine.call("status", node.state)
    assert said.code == 0, said
    return next(line for line in said.out.splitlines() if line.startswith("doing")).split(maxsplit=1)[1]


def wait_doing(swarm: Swarm, node: Program, words: str) -> None:
    wait_for(f"status {words!r}", lambda: doing(swarm, node) == words, node)


def leased(swarm: Swarm) -> int:
    ((number,),) = swarm.rows("SELECT count(*) FROM leases")
    return int(number)


def test_a_node_is_paused_started_again_resumed_and_drained(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    node = swarm.join("node", token_s=TOKEN_S)
    assert node.state is not None
    wait_event(node, "receipt", learner)
    paused = swarm.machine.call("pause", node.state)
    assert (paused.code, "stops within 1 s" in paused.out) == (0, True), paused
    wait_event(node, "paused", learner, why="paused by `volery pause`")
    wait_doing(swarm, node, "paused by `volery pause`")
    wait_for("all to be given back", lambda: not swarm.rows("SELECT 1 FROM leases WHERE status = 'open'"), learner)
    before = leased(swarm)
    node.interrupt()
    assert node.wait() == 130
    assert doing(swarm, node) == "not running, and paused by `volery pause`"

    again = swarm.join("node", token_s=TOKEN_S)
    wait_event(again, "paused", learner, after=1)
    wait_doing(swarm, again, "paused by `volery pause`")
    assert leased(swarm) == before
    again.process.send_signal(signal.SIGUSR2)
    wait_event(again, "resumed", learner)
    again.process.send_signal(signal.SIGUSR1)
    wait_doing(swarm, again, "paused by SIGUSR1")
    assert swarm.machine.call("resume", node.state).out.startswith("Resumed: ")
    receipts = len(again.events("receipt"))
    wait_event(again, "receipt", learner, after=receipts)
    wait_doing(swarm, again, "at work")

    drained = swarm.machine.call("drain", node.state)
    assert (drained.code, "The node ends when" in drained.out) == (0, True), drained
    assert again.wait() == 0, again.story()
    assert "Drained: all leases are delivered." in again.out.read_text()
    assert swarm.rows("SELECT 1 FROM leases WHERE status = 'open'") == []
    assert swarm.machine.call("drain", node.state).code == 1, "nobody runs there"
    assert doing(swarm, node) == "not running"


def in_force(swarm: Swarm, node: Program) -> dict[str, str]:
    """Return the limits that `volery status` says are in force."""
    said = swarm.machine.call("status", node.state, "--json")
    assert said.code == 0, said
    return dict(json.loads(said.out)["limits"])


def test_the_limits_of_a_running_node_change_and_end_with_it(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    node = swarm.join("node", token_s=TOKEN_S)
    assert node.state is not None
    wait_event(node, "receipt", learner)
    at_first = in_force(swarm, node)
    shown = swarm.machine.call("limits", node.state)
    assert (shown.code, "[network] upload_mbit    none" in shown.out) == (0, True), shown
    later = shown.out.split("after a restart:")[1]
    assert "[engine] threads" in later
    assert "upload_mbit" not in later

    closed = (datetime.now() + timedelta(hours=6)).strftime("%H:%M-") + (datetime.now() + timedelta(hours=12)).strftime(
        "%H:%M"
    )
    told = swarm.machine.call("limits", node.state, "--hours", closed, "--upload-mbit", "50", "--quota-gb", "32")
    assert told.code == 0, told
    assert told.out.splitlines()[1:] == [
        f'  [engine] hours = "{closed}"',
        "  [network] upload_mbit = 50",
        "  [store] quota_gb = 32",
        "To keep a change over a restart, make it in node.toml as well.",
    ]
    assert told.out.splitlines()[0] == f"{node.state}, within 1 s and until the node ends:"
    wait_event(node, "hours_ended", learner, again_at=closed[:5])
    wait_doing(swarm, node, f"outside its hours, until {closed[:5]}")
    wait_for("all to be given back", lambda: not swarm.rows("SELECT 1 FROM leases WHERE status = 'open'"), learner)
    wait_for("a quota", lambda: in_force(swarm, node)["[store] quota_gb"].startswith("32 GB"), node)
    now = in_force(swarm, node)
    assert now["[engine] hours"] == f"{closed} (until the node ends; at its start: always)"
    assert now["[network] upload_mbit"] == "50 Mbit/s (until the node ends; at its start: none)"
    changed = [(one["key"], one["value"], one["by"]) for one in node.events("limit_changed")]
    assert changed == [
        ("[engine] hours", closed, "`volery limits`"),
        ("[network] upload_mbit", "50 Mbit/s", "`volery limits`"),
        ("[store] quota_gb", "32 GB", "`volery limits`"),
    ]

    receipts = len(node.events("receipt"))
    assert swarm.machine.call("limits", node.state, "--hours", "", "--upload-mbit", "none").code == 0
    wait_event(node, "receipt", learner, after=receipts)
    wait_doing(swarm, node, "at work")
    wait_for("no cap", lambda: in_force(swarm, node)["[network] upload_mbit"] == "none", node)
    assert not node.troubles, node.story()

    for option, value, words in (
        ("--hours", "19:00", "--hours: '19:00' is not a range of hours."),
        ("--upload-mbit", "0", "--upload-mbit 0.0: expected `float` >= 0.1."),
        ("--upload-mbit", "much", "--upload-mbit much: this is not a number."),
        ("--quota-gb", "none", "--quota-gb none: this is not a number."),
    ):
        check_refusal(swarm.machine.call("limits", node.state, option, value), USAGE, words)
    node.interrupt()
    assert node.wait() == 130
    assert swarm.machine.call("limits", node.state, "--upload-mbit", "5").code == TROUBLE
    again = swarm.join("node", token_s=TOKEN_S)
    wait_event(again, "receipt", learner, after=len(again.events("receipt")))
    assert in_force(swarm, again) == at_first


def test_a_node_whose_learner_is_away_is_not_said_to_be_at_work(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    node = swarm.join("node", token_s=TOKEN_S)
    wait_event(node, "receipt", learner)
    wait_doing(swarm, node, "at work")
    learner.kill()
    wait_doing(swarm, node, "not connected to the learner")


def test_a_node_makes_room_for_a_program_of_its_owners(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    program = "volery-e2e-blender"
    config = swarm.directory / "owned.toml"
    config.write_text(
        f'[network]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n[engine]\nkind = "fake"\n[limits]\npause_for = ["{program}"]\n'
    )
    with running(swarm.directory, program):
        node = swarm.join("node", "--config", config)
        wait_event(node, "paused", learner, why=f"paused while {program} runs")
        wait_doing(swarm, node, f"paused while {program} runs")
        said = swarm.machine.call("status", node.state).out
        assert "limits in force: [engine] hours always [engine] nice 5 [engine] threads" in " ".join(said.split()), said
        assert f"[limits] pause_for {program}" in " ".join(said.split()), said
        told = swarm.machine.call("pause", node.state)
        assert told.code == 0, told
        wait_doing(swarm, node, f"paused while {program} runs, and paused by `volery pause`")
    assert not any(program in str(row) for row in swarm.rows("SELECT * FROM leases")), (
        "the owner's order reached the learner"
    )
    node.interrupt()
    assert node.wait() == 130


def test_an_engine_that_cannot_start_within_its_memory_ends_the_node_in_a_sentence(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    swarm.learn_doomed()
    config = swarm.directory / "narrow.toml"
    config.write_text('[network]\nlisten = []\n[engine]\nkind = "transformers"\nthreads = 1\n[limits]\nram_gb = 0.06\n')
    node = swarm.join("node", "--config", config)
    assert node.wait() == 1, node.story()
    said = node.err.read_text()
    assert "more than its limit of 0.06 GB" in said, node.story()
    assert "Traceback" not in said
