"""Choose the version of an export: the newest, the best that is kept, or one by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from learner.ledger.rows import CheckpointRow
from node.commands.export.version_choice import Chosen, choose
from node.reports.model.report import Evaluation
from node.runtime.errors import UsageError
from protocol.core.ids import PolicyVersion


def held(*steps: int, incarnation: int = 1) -> list[Any]:
    return [SimpleNamespace(version=PolicyVersion(incarnation, step)) for step in steps]


def rows(*steps: int) -> list[CheckpointRow]:
    return [CheckpointRow(step=s, incarnation=1, directory=f"1.{s}", state={}) for s in sorted(steps, reverse=True)]


def scores(**sampled: float) -> list[Evaluation]:
    return [
        Evaluation(
            version=PolicyVersion(1, int(name[1:])), at_s=0.0, prompts=64, greedy=0.0, sampled=value, survives=True
        )
        for name, value in sampled.items()
    ]


def chosen(*arguments: Any) -> Chosen:
    found = choose(*arguments)
    assert found is not None
    return found


def test_the_newest_is_taken_and_a_better_one_is_told_of() -> None:
    found = chosen("", held(10, 20, 30), rows(30), scores(v10=0.2, v20=0.9, v30=0.5))
    assert (str(found.version), found.why) == ("1.30", "the newest")
    assert found.note == (
        "Version 1.20 scored higher on the held-out prompts (0.900 against 0.500 sampled). --version best exports "
        "that one."
    )
    assert chosen("", held(10, 20), rows(), scores(v10=0.2, v20=0.9)).note == ""
    assert chosen("", held(10, 20), rows(), []).note == ""
    assert choose("", [], rows(3), []) is None


def test_a_version_that_was_not_evaluated_is_told_of() -> None:
    said = "Version 1.30 was not evaluated; version 1.20 before it had 0.500 sampled on 64 held-out prompts."
    assert chosen("", held(20, 30), rows(), scores(v20=0.5, v40=0.9)).note == said
    assert chosen("30", held(20, 30), rows(), scores(v20=0.5)).note == said
    assert chosen("20", held(20, 30), rows(), scores(v20=0.5)).note == ""
    assert chosen("20", held(20, 30), rows(), scores(v30=0.5)).note == ""
    better = chosen("", held(10, 20, 30), rows(), scores(v10=0.9, v20=0.5)).note
    assert better.startswith(f"{said} Version 1.10 scored higher on the held-out prompts (0.900 against 0.500")


def test_the_best_is_of_the_store_or_of_the_nearest_checkpoint() -> None:
    of_store = chosen("best", held(10, 20), rows(20), scores(v10=0.9, v20=0.9))
    assert (str(of_store.version), of_store.row) == ("1.10", None), "the earliest of equals"
    assert of_store.why == "the best by evaluation, 0.900 sampled on 64 held-out prompts"
    made = chosen("best", held(30), rows(12, 30), scores(v10=0.9, v30=0.5))
    assert made.row is not None
    assert (made.row.step, "of version 1.10; this is the first checkpoint after it" in made.why) == (12, True)


def test_where_the_best_is_gone_the_next_is_taken_and_said() -> None:
    found = chosen("best", held(30), rows(30), scores(v10=0.9, v20=0.7, v30=0.5))
    assert str(found.version) == "1.30"
    assert found.why.startswith("the best by evaluation that is kept, 0.500")
    assert "Version 1.10 had 0.900 sampled" in found.note


@pytest.mark.parametrize(
    ("kept", "seen", "words"),
    [(held(1), scores(), "was evaluated"), (held(9), scores(v3=0.5), "neither the store nor a checkpoint")],
    ids=["nothing evaluated", "nothing kept"],
)
def test_no_best_is_refused(kept: list[Any], seen: list[Evaluation], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose("best", kept, [], seen)


def test_a_name_means_the_store_before_a_checkpoint() -> None:
    assert chosen("1.10", held(10), rows(10), []).held is not None
    assert chosen("12", held(10), rows(12), []).row is not None
    assert chosen("10", [*held(10), *held(10, incarnation=2)], [], []).version == PolicyVersion(2, 10)
    assert choose("11", held(10), rows(12), []) is None
