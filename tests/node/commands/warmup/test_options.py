"""Read the options of a warm-up from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.commands.warmup.options import FORM_RANGE, SCORE_RANGE, ScoreRange, Wanted, read_range
from node.learner_role.training.learning_rates import SMALL, USUAL
from node.runtime.errors import UsageError

CONFIG, OUT = Path("swarm.toml"), Path("out")


def wanted(**given: Any) -> Wanted:
    return Wanted(config=CONFIG, out=OUT, **given)


@pytest.mark.parametrize(
    ("text", "low", "high"), [("0.3..0.6", 0.3, 0.6), (" .25 .. 1 ", 0.25, 1.0), ("0.5..0.95", 0.5, 0.95)]
)
def test_a_range(text: str, low: float, high: float) -> None:
    assert read_range(text) == ScoreRange(low=low, high=high)


@pytest.mark.parametrize(
    "text", ["", "0.3", "0.3-0.6", "0.6..0.3", "0.3..0.3", "0..0.5", "0.5..1.5", "a..b", "0.3..nan"]
)
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(UsageError, match=r"--until 0.3\.\.0.6"):
        read_range(text)


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ({}, FORM_RANGE),
        ({"by": "accuracy"}, SCORE_RANGE),
        ({"by": "brevity", "epochs": 2}, SCORE_RANGE),
        ({"until": "0.2..0.4", "steps": 9}, ScoreRange(low=0.2, high=0.4)),
        ({"epochs": 2}, None),
        ({"steps": 9}, None),
    ],
)
def test_prompts_are_asked_unless_a_length_alone_was_given(given: dict[str, Any], target: ScoreRange | None) -> None:
    one = wanted(**given)
    one.require()
    assert one.target == target
    assert one.scored == (target is not None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 1, "steps": 1}, "--epochs and --steps both set how long"),
        ({"until": "2..3"}, "--until 2..3"),
        ({"fields": ["prompt=question"]}, "--field prompt=question needs a file"),
        ({"split": "train"}, "--split train needs a file"),
        ({"data": OUT, "fields": ["question"]}, "--field question: write KEY=NAME"),
        ({"data": OUT, "fields": ["text=a"]}, "--field text=a: write KEY=NAME"),
        ({"learning_rate": -1.0}, "--learning-rate -1.0 is not a rate"),
        ({"learning_rate": 0.0}, "--learning-rate 0.0 is not a rate"),
        ({"learning_rate": float("nan")}, "--learning-rate nan is not a rate"),
        ({"weight_decay": float("inf")}, "--weight-decay inf is not a decay"),
        ({"grad_clip": 0.0}, "--grad-clip 0.0 is not a norm"),
    ],
)
def test_what_cannot_be_meant(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        wanted(**given).require()
    assert said in str(raised.value)


def test_rates_and_looks_that_nobody_named() -> None:
    assert wanted().schedule(200, USUAL).rate == 2e-5
    assert wanted(lora=8).schedule(200, USUAL).rate == 2e-4
    assert wanted(learning_rate=5e-4).schedule(200, USUAL).rate == 5e-4
    assert wanted().schedule(200, SMALL).rate == wanted(lora=8).schedule(200, SMALL).rate == 1e-3
    assert (wanted().schedule(200, USUAL).rise, wanted(rise=0).schedule(200, USUAL).rise) == (6, 0)
    assert [wanted().block(total) for total in (1, 9, 12, 200, 5000)] == [1, 1, 2, 20, 50]
    assert wanted(check_every=7).block(5000) == 7


def test_names_of_fields() -> None:
    names = wanted(data=OUT, fields=["prompt=question", "answer=extra.final"]).names
    assert (names["prompt"], names["answer"], names["messages"]) == ("question", "extra.final", "messages")
