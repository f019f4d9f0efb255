"""Run `volery drill`: an operator's own cheats against the own swarm, and the report on them."""

from __future__ import annotations

import json

import pytest

from tests.e2e.programs import Machine, Program, Swarm


def drill(swarm: Swarm, *options: object, token_s: float | None = None) -> Program:
    """Start a drill. With `token_s` no model computes: a token takes so many seconds, and torch, which starts more
    slowly, is not needed.
    """
    words: tuple[object, ...] = ("drill", swarm.config, "--out", swarm.machine.root / "drilled", *options)
    if token_s is None:
        program = swarm.machine.start("drill", *words)
    else:
        program = swarm.machine.start("drill", token_s, *words, module="tests.e2e.hashed_drill")
    assert program.wait() == 0, program.story()
    return program


TOKEN_S = 0.05
"""Seconds, as long as a model takes: relays need some seconds to get versions, and cheats to return with a new key."""


def test_who_makes_things_up_is_found_and_the_swarm_learns_on(swarm: Swarm) -> None:
    swarm.configure(steps=1000, audits=True)
    attacks = [word for name in ("fabricated", "forged", "impersonated", "replayed") for word in ("--attack", name)]
    said = drill(swarm, "--peers", 6, "--cheats", 0.5, "--steps", 12, "--plain", *attacks).out.read_text("utf-8")
    found = json.loads((swarm.machine.root / "drilled" / "drill.json").read_text(encoding="utf-8"))
    assert found["trained"] >= 12 * 16
    assert (found["honest_banned"], found["honest_failed"]) == (0, 0)
    made_up, forged = found["attacks"]["fabricated"], found["attacks"]["forged"]
    assert made_up["banned"] == made_up["keys"] > 0
    assert made_up["trained"] == 0
    assert set(forged["refused_by"]) == {"bad_signature"}
    assert forged["found"] == forged["keys"]
    assert set(found["attacks"]["impersonated"]["refused_by"]) == {"wrong_peer"}
    assert found["cheater_share"] == 0.0
    assert not (swarm.directory / "state" / "ledger.sqlite").exists(), "the drill wrote into the swarm's own state"
    assert "Cheats made 0.00%" in said
    assert "invents tokens" in said


@pytest.mark.slow
def test_none_of_what_nobody_drew_is_trained_on(machine: Machine) -> None:
    """Use the swarm that a drill makes for itself, whose answers have 24 letters. Two letters may be right by chance,
    and an audit of so short an answer shows little. So the cheat that cuts answers is not among these.
    """
    names = ("poisoned", "greedy", "endless", "copied", "nearly-copied")
    attacks = [word for name in names for word in ("--attack", name)]
    out = machine.root / "drilled"
    options = ("--out", out, "--peers", 10, "--cheats", 0.5, "--steps", 8, "--plain", *attacks)
    program = machine.start("drill", "drill", *options)
    assert program.wait() == 0, program.story()
    found = json.loads((out / "drill.json").read_text(encoding="utf-8"))
    assert (found["honest_banned"], found["cheater_share"]) == (0, 0.0)
    for name in names:
        assert found["attacks"][name]["banned"] > 0, name


@pytest.mark.slow
def test_what_they_come_to_who_are_after_credit_is_said(swarm: Swarm) -> None:
    swarm.configure(steps=1000, audits=True)
    attacks = [word for name in ("minted", "overcharging") for word in ("--attack", name)]
    program = drill(swarm, "--peers", 4, "--cheats", 0.5, "--steps", 40, "--plain", *attacks)
    found = json.loads((swarm.machine.root / "drilled" / "drill.json").read_text(encoding="utf-8"))
    minted, dear = found["attacks"]["minted"], found["attacks"]["overcharging"]
    assert minted["keys"] > 1
    assert minted["signed_bytes"] > 0
    assert dear["signed_bytes"] == 0
    assert dear["cents_per_1000_tokens"] > 10 * found["honest_cents_per_1000_tokens"] > 0
    said = program.out.read_text("utf-8")
    assert "were credited to keys that sent nothing" in said
    assert "overcharging: 1000 tokens cost" in said


def test_who_comes_with_one_key_after_the_other_has_its_first_rollouts_once(swarm: Swarm) -> None:
    """Without audits all of it is trained on, and no key has made more than four groups of four."""
    swarm.configure(steps=1000, audits=False)
    drill(swarm, "--peers", 2, "--cheats", 0.5, "--steps", 40, "--plain", "--attack", "sybil", token_s=TOKEN_S)
    found = json.loads((swarm.machine.root / "drilled" / "drill.json").read_text(encoding="utf-8"))["attacks"]["sybil"]
    assert found["keys"] > 100 / 16
    assert found["trained_late"] > 0


@pytest.mark.parametrize("lie", ["corrupt-chunks", pytest.param("withheld-chunks", marks=pytest.mark.slow)])
def test_relays_that_lie_keep_nobody_from_a_version_and_corrupt_ones_are_named(swarm: Swarm, lie: str) -> None:
    """One lie at a time: a receiver that waits for withheld chunks is slow to ask another liar."""
    swarm.configure(steps=1000, audits=True)
    options = ("--peers", 3, "--cheats", 0.34, "--steps", 30, "--plain", "--attack", lie)
    program = drill(swarm, *options, token_s=TOKEN_S)
    found = json.loads((swarm.machine.root / "drilled" / "drill.json").read_text(encoding="utf-8"))["relays"]
    assert min(found["versions"]) >= 1
    assert found["slandered"] == 0
    assert found["liars"][lie]["asked"] > 0
    said = program.out.read_text("utf-8")
    assert "with every chunk correct. They reported each other 0 times." in said
    if lie == "corrupt-chunks":
        assert found["liars"][lie]["named_by"] == 2
        assert "corrupt-chunks: flips a bit in every chunk that it relays." in said


def test_json_stands_alone_on_stdout(swarm: Swarm) -> None:
    swarm.configure(steps=1000, audits=True)
    program = drill(swarm, "--peers", 3, "--cheats", 0, "--steps", 1, "--json", token_s=0.0)
    told = json.loads(program.out.read_text("utf-8"))
    assert told == json.loads((swarm.machine.root / "drilled" / "drill.json").read_text(encoding="utf-8"))
    assert (told["attacks"], told["honest_banned"]) == ({}, 0)
    assert "3 honest peers and 0 cheats" in program.err.read_text("utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--cheats", "1"], "would leave no honest one"),
        (["--peers", "4"], "0.1 of --peers 4 comes to no cheat at all. Use --cheats 0.25 or more, or more --peers"),
        (["--attack", "nothing"], "nothing"),
    ],
)
def test_a_mistake_is_told_before_anything_is_made(swarm: Swarm, options: list[str], said: str) -> None:
    swarm.configure(steps=4)
    outcome = swarm.machine.call("drill", swarm.config, "--out", swarm.machine.root / "drilled", *options)
    assert outcome.code == 2
    assert said in outcome.err
    assert not (swarm.machine.root / "drilled").exists()


def test_what_is_not_a_drills_stays(machine: Machine) -> None:
    mine = machine.root / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    outcome = machine.call("drill", "--out", mine)
    assert outcome.code == 2
    assert "was not made by a drill" in outcome.err
    assert (mine / "thesis.txt").read_text() == "years of work"
