"""`volery simulate` through the command line: pools, what-ifs, forms, and how it ends."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from learner.provisioning.estimation.recording import Planned
from learner.simulation.trace import LEARNER
from node.commands.plan.recordings import read_events
from node.commands.simulate.command import answer
from node.commands.simulate.scenario import USUAL, WhatIf
from node.commands.simulate.text import _reason
from node.commands.simulate.timeline_plot import MOST_MACHINES, STEPS_SHOWN, chosen_rows, colour_of, stretch
from tests.support.plan_calls import EXAMPLES
from tests.support.simulate_calls import pool, refusal, simulate, simulated

STEPS = ("--steps", 12)


def test_figures_add_up(tmp_path: Path) -> None:
    found = simulated(pool(tmp_path), "--hours", 1)
    (story,) = found["stories"]
    assert (found["format"], found["currency"], found["measured"]) == ("volery-simulate/2", "USD", None)
    assert story["seconds"] == 3600
    assert story["utilisation"] == pytest.approx(1 - story["bubble"]), "a pool knows of nothing else"
    assert story["cost"] == pytest.approx(sum(kind["paid"] for kind in story["kinds"]))
    assert story["cost_per_step"] == pytest.approx(story["cost"] / story["steps"])
    assert {kind["name"]: kind["count"] for kind in story["kinds"]} == {"cheap": 6, "dear": 4}
    assert max(map(int, story["lags"])) <= 3
    assert story["plans"][0]["on"] == 10
    assert story["on"] < 10, "the dear ones were released"


def test_the_same_seed_says_the_same(tmp_path: Path) -> None:
    path = pool(tmp_path)
    assert simulate(path, *STEPS).out == simulate(path, *STEPS).out
    assert simulate(path, *STEPS).out != simulate(path, *STEPS, "--seed", 1).out


def test_what_if_alone_and_beside_the_swarm_as_it_is(tmp_path: Path) -> None:
    path = pool(tmp_path)
    found = simulated(path, *STEPS, "-S", 6, "--no-p2p", "--machines", 0.5, "--compare")
    told = {story["name"]: story for story in found["stories"]}
    assert list(told) == [
        "as it is",
        "S = 6",
        "without P2P",
        "0.5 x the machines",
        "S = 6, without P2P, 0.5 x the machines",
    ]
    assert [told[name]["staleness"] for name in ("as it is", "S = 6")] == [3, 6]
    assert sum(kind["count"] for kind in told["0.5 x the machines"]["kinds"]) == 5
    alone = simulated(path, *STEPS, "-S", 6)["stories"]
    assert alone == [told["S = 6"]]


def test_the_usual_what_ifs_and_their_directions(tmp_path: Path) -> None:
    found = simulated(pool(tmp_path), "--hours", 1, "--compare")
    told = {story["name"]: story for story in found["stories"]}
    assert list(told) == [*(what.name for what in USUAL), "as it is"]
    base = told["as it is"]
    assert told["sequential"]["mode"] == "sequential"
    assert set(told["sequential"]["lags"]) == set(told["synchronous"]["lags"]) == {"0"}
    assert told["synchronous"]["utilisation"] <= told["sequential"]["utilisation"] < base["utilisation"]
    assert told["without P2P"]["cost_per_step"] > base["cost_per_step"]
    assert told["all active"]["price"] > base["price"]
    assert told["0.5 x the machines"]["utilisation"] <= base["utilisation"]


def test_whatever_machines_are_called_they_are_themselves(tmp_path: Path) -> None:
    """Not the learner, not its source, and not the copies of others."""
    path = tmp_path / "pool.csv"
    names = ("train", "broadcast", "learner", "source", "learner (2)")
    path.write_text("\n".join(["name,price,rate", *(f"{name},1,0.5" for name in names)]))
    times = ("--train-s", 30, "--rollouts", 32, "--broadcast-s", 2, "--generation-s", 8)
    (story,) = simulated(path, *times, "--machines", 2, "--hours", 0.2, "--no-plan")["stories"]
    kinds = {kind["name"]: kind for kind in story["kinds"]}
    assert {name: kind["count"] for name, kind in kinds.items()} == dict.fromkeys(names, 2)
    assert story["on"] == 10
    assert story["cost"] == pytest.approx(2.0)
    found = answer(path, None, options={"train_s": 30.0, "rollouts": 32, "broadcast_s": 2.0, "steps": 3}, picture=True)
    spans = [span for span in found.asked.outcome.spans if span.row == LEARNER]
    assert len(spans) == 3


def test_traces_happen(tmp_path: Path) -> None:
    more = """
[[absence]]
machine = "cheap"
from_s = 1200

[[absence]]
machine = "dear #2"
from_s = 0
until_s = 600

[[change]]
machine = "dear"
at_s = 1800
price = 2.0
speed = 0.9
"""
    record = tmp_path / "out" / "recording.jsonl"
    path = pool(tmp_path, more)
    story = simulated(path, "--hours", 1, "--record", record)["stories"][0]
    assert {kind["name"]: kind["made"] > 0 for kind in story["kinds"]} == {"cheap": True, "dear": True}
    assert story["on"] == 4
    assert story["price"] == 8.0
    left = [event for event in read_events(record) if type(event).__name__ == "Left"]
    assert {(round(event.at_s), event.peer) for event in left} == {(1220, f"cheap #{n}") for n in range(1, 7)}


def test_text_fits_a_hundred_columns(tmp_path: Path) -> None:
    outcome = simulate(pool(tmp_path), *STEPS, "--compare")
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 100
    for words in ("Simulated: as it is", "(bubble)", "stale", "an hour on average", "Machines", "Comparison"):
        assert words in outcome.out
    assert "nan" not in re.findall("[a-z]+", outcome.out)


def test_a_swarm_that_never_trains_says_so(tmp_path: Path) -> None:
    outcome = simulate(pool(tmp_path), "--hours", 0.001)
    assert outcome.code == 0
    assert "no training step: the machines are too few" in outcome.out
    assert simulated(pool(tmp_path), "--hours", 0.001)["stories"][0]["utilisation"] is None


def test_both_examples_are_simulated() -> None:
    for name, more in (("pool.toml", ()), ("pool.csv", ("--train-s", 60, "--rollouts", 256, "--broadcast-s", 30))):
        (story,) = simulated(EXAMPLES / name, "--steps", 3, *more)["stories"]
        assert sum(kind["count"] for kind in story["kinds"]) == 44
        assert story["steps"] == 3


# The picture


def test_the_picture_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "timeline.png"
    assert simulate(pool(tmp_path), *STEPS, "--picture", path).code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["pool.toml", "timeline.png"]


def test_a_picture_that_cannot_be_written_is_trouble_at_run_time(tmp_path: Path) -> None:
    outcome = simulate(pool(tmp_path), "--steps", 2, "--picture", tmp_path / "none" / "timeline.png")
    assert outcome.code == 1
    assert "--picture" in outcome.err


def test_the_picture_shows_the_last_steps_of_some_machines(tmp_path: Path) -> None:
    many = '\n[[machine]]\nname = "slow"\nprice = 0\nrate = 0.1\ncount = 80\n'
    found = answer(pool(tmp_path, many), None, options={"steps": 20}, picture=True, asked=WhatIf(plan=False))
    from_s, until_s = stretch(found.asked)
    trained = [span for span in found.asked.outcome.spans if span.row == LEARNER]
    assert (from_s, until_s) == (trained[-STEPS_SHOWN].from_s, trained[-1].until_s)
    rows = chosen_rows(found.asked, list(found.asked.outcome.spans))
    assert len(rows) == len(set(rows)) == MOST_MACHINES


def test_a_step_has_the_colour_of_the_version_that_comes_of_it() -> None:
    published = [0, 6, 12]
    assert len({colour_of(version, published) for version in published}) == 3
    assert {colour_of(version, published) for version in range(1, 7)} == {colour_of(6, published)}


# What is refused


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hours", 0), ["--hours", "above 0"]),
        (("--hours", "nan"), ["--hours", "finite"]),
        (("--steps", 0), ["--steps", "1 or more"]),
        (("--hours", 1, "--steps", 2), ["not both"]),
        (("--machines", 0), ["--machines", "above 0"]),
        (("--machines", 0.01), ["--machines 0.01", "none of 10"]),
        (("-S", -1), ["--staleness", "0 or more"]),
        (("--kappa", 9), ["--kappa 9", "S = 3", "1 to 3"]),
        (("--mode", "sequential", "-S", 2), ["sequential", "S = 0"]),
        (("--mode", "async", "-S", 0), ["async", "1 or more"]),
        (("--train-s", -1), ["--train-s", "above 0"]),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, arguments: tuple[object, ...], words: list[str]) -> None:
    target = tmp_path / "out"
    target.mkdir()
    said = refusal(
        pool(tmp_path), *arguments, "--picture", target / "timeline.png", "--record", target / "recording.jsonl"
    )
    for word in words:
        assert word in said
    assert list(target.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[[absence]]\nmachine = "none"\nfrom_s = 1\n', ["absence 1", "'none'", "cheap #1"]),
        ("[[absence]]\nfrom_s = 1\n", ["absence 1", "machine is missing"]),
        ('[[absence]]\nmachine = "cheap"\n', ["absence 1", "from_s is missing"]),
        ('[[absence]]\nmachine = "cheap"\nfrom_s = -1\n', ["absence 1", "from_s = -1"]),
        ('[[absence]]\nmachine = "cheap"\nfrom_s = 9\nuntil_s = 9\n', ["absence 1", "until_s = 9 is not after"]),
        ('[[change]]\nmachine = "cheap"\nat_s = 5\n', ["change 1", "this changes nothing"]),
        ('[[change]]\nmachine = "cheap"\nat_s = 5\nspeed = 0\n', ["change 1", "speed = 0", "above 0"]),
        ('[[change]]\nmachine = "cheap"\nat_s = 5\nprice = -1\n', ["change 1", "price = -1"]),
        ('[[change]]\nmachine = "cheap"\nat_s = "noon"\nprice = 1\n', ["change 1", "not a number"]),
        ("[change]\nx = 1\n", ["change is not a list"]),
        ('[[machine]]\nname = "x"\nprice = 1\nrate = 1\nspread = -1\n', ["machine 3 (x)", "spread = -1"]),
        ('[[machine]]\nname = "x"\nprice = 1\nrate = 1\nfixed_share = 2\n', ["machine 3 (x)", "fixed_share = 2"]),
        ('[[machine]]\nname = "x"\nprice = 1\nrate = 1\ncurrency = "USD"\n[[absence]]\n', ["absence 1", "missing"]),
        (
            '[[machine]]\nname = "x"\nprice = 1\nrate = 1\ncurrency = "EUR"\n',
            ["machine 3 (x)", "EUR", "USD", "(cheap)"],
        ),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, more: str, words: list[str]) -> None:
    said = refusal(pool(tmp_path, more), *STEPS)
    for word in words:
        assert word in said


def test_there_must_be_something_to_simulate(tmp_path: Path) -> None:
    assert "nothing to simulate" in refusal()
    assert "not both" in refusal(pool(tmp_path), "--from", tmp_path)
    assert "no such file" in refusal("--from", tmp_path / "none")


def test_names_say_what_is_asked() -> None:
    assert WhatIf().name == "as it is"
    assert WhatIf(kappa=2, cost=False, plan=False).name == "kappa = 2, without prices, all active"


def test_a_change_of_plan_without_a_reason_says_what_it_is() -> None:
    first = Planned(at_s=0, kappa=1, active=["a", "b"], price=1, reasons=[])
    left = msgspec.structs.replace(first, at_s=9, active=["a"])
    assert "start" in _reason(first, None)
    assert "left" in _reason(left, first)
    assert "kappa = 6" in _reason(msgspec.structs.replace(left, kappa=6), left)
    assert _reason(msgspec.structs.replace(left, reasons=["b: released", "c: on"]), first) == "b: released (and 1 more)"
