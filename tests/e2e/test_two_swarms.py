"""Two swarms by hand on one machine, from `volery init` on, with all state in the default places."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.ledger_rules import Run, check_ledger
from tests.e2e.programs import NODE_TOML, TRAINERS, Machine, Program, Swarm, rows_of, stopped, wait_done, wait_event

STEPS = 40
"""Enough steps that no node takes them all before the other has begun."""
CHANGES = {
    r"directory = .*": 'directory = "{model}"',
    r"spec = .*": 'spec = "reverse:letters=2"',
    r"held_out = .*": "held_out = 0",
    r"steps = .*": f"steps = {STEPS}",
    r"prompts_per_step = .*": "prompts_per_step = 4",
    r"group_size = .*": "group_size = 4",
    r"max_new_tokens = .*": "max_new_tokens = 4",
    r"audits = .*": "audits = false",
    r"select_peers = .*": "select_peers = false",
    r"0\.0\.0\.0": "127.0.0.1",
    r", \"/ip6/::/tcp/\d+\"": "",
}
"""Changes that the operator of a small swarm makes in the file that `volery init` wrote. Audits are off, since the fake
engine's tokens would fail them. No node is on standby, although one would be enough. The last two keep the swarm on
loopback."""


def found(machine: Machine, name: str, model: Path) -> Swarm:
    """Found a swarm with `volery init` and an editor."""
    done = machine.call("init", name)
    assert done.code == 0, done.err
    swarm = Swarm(machine=machine, directory=machine.root / name, model=model)
    text = swarm.config.read_text()
    for pattern, replacement in CHANGES.items():
        text, count = re.subn(rf"(?m)^(#? ?)?{pattern}$" if "=" in pattern else pattern,
                              replacement.format(model=model), text)  # fmt: skip
        assert count, pattern
    swarm.config.write_text(text)
    return swarm


def join(swarm: Swarm) -> Program:
    """Run `volery join INVITE`, with the fake engine so as not to import torch four times."""
    config = swarm.machine.root / "node.toml"
    config.write_text(NODE_TOML.format(engine="fake", token_s=0.0))
    return swarm.machine.start(f"{swarm.directory.name}-node", "join", swarm.invite, "--config", config)


@pytest.mark.rest
def test_two_swarms_do_not_disturb_each_other(machine: Machine, model: Path) -> None:
    swarms = [found(machine, "first", model), found(machine, "second", model)]
    learners = [swarm.learn() for swarm in swarms]
    with ExitStack() as standing:  # otherwise one node could end its run before the other is there
        for learner in learners:
            standing.enter_context(stopped(learner.child(*TRAINERS)))
        nodes = [join(swarm) for swarm in swarms for _ in range(2)]
        for learner in learners:
            wait_event(learner, "peer_joined", *nodes, after=1)
    wait_done(*learners, *nodes)

    keys = [{peer for (peer,) in swarm.rows("SELECT peer FROM peers")} for swarm in swarms]
    assert [len(peers) for peers in keys] == [3, 3]
    assert not keys[0] & keys[1]
    for swarm in swarms:
        check_ledger(swarm, Run(steps=STEPS))
        ((swarm_id,),) = swarm.rows("SELECT value FROM meta WHERE key = 'swarm'")
        homes = sorted((machine.root / "home" / swarm_id.hex()[:16]).iterdir())
        assert [home.name for home in homes] == ["node-1", "node-2"]
        for home in homes:
            told = rows_of(home / "receipts.sqlite", "SELECT DISTINCT lease FROM receipts")
            assert told
            assert set(told) <= set(swarm.rows("SELECT lease FROM leases"))
    identities = machine.call("identity").out.splitlines()
    assert {line.split()[0] for line in identities} == {
        peer for swarm in swarms for (peer,) in swarm.rows("SELECT peer FROM peers WHERE role = 'rollout'")
    }
    assert "4 nodes" in machine.call("status").err
