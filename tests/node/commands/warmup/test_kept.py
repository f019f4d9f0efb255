"""The directory from which a warm-up that was stopped goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.warmup.kept import Kept, open_kept, place_of
from node.learner_role.training.supervised import Pace
from node.runtime.errors import RunError, UsageError

FIXED = {"model": {"model.safetensors": "a"}, "ways": {}, "examples": "b", "seed": 0, "batch": [1, 2], "lora": None}


def begin(kept: Kept, steps: int) -> None:
    kept.checkpoint(steps).mkdir()
    kept.note(steps, Pace(block=5, rate=0.5, best=0.2), undone=1, score=0.1)


def test_what_was_noted_is_gone_on_with_and_all_else_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with open_kept(out, FIXED, anew=False) as kept:
        assert kept.reached is None
        begin(kept, 5)
        begin(kept, 10)
        kept.look(3).mkdir()
    with open_kept(out, FIXED, anew=False) as kept:
        assert kept.reached is not None
        assert (kept.reached.steps, kept.reached.pace) == (10, Pace(block=5, rate=0.5, best=0.2))
        assert (kept.reached.undone, kept.reached.score) == (1, 0.1)
        assert sorted(path.name for path in kept.place.iterdir()) == ["lock", "state.json", "step-10"]
        kept.remove()
    assert not place_of(out).exists()


def test_nothing_is_left_where_nothing_was_noted(tmp_path: Path) -> None:
    with open_kept(tmp_path / "out", FIXED, anew=False) as kept:
        kept.checkpoint(0).mkdir()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [("model", "[model] directory"), ("examples", "what is learnt from"), ("seed", "[learn] seed"), ("lora", "--lora")],
)
def test_another_warm_up_is_refused_unless_it_is_to_begin_anew(tmp_path: Path, name: str, said: str) -> None:
    with open_kept(tmp_path / "out", FIXED, anew=False) as kept:
        begin(kept, 5)
    other = FIXED | {name: "other"}
    with pytest.raises(UsageError) as raised, open_kept(tmp_path / "out", other, anew=False):
        pass
    assert said in str(raised.value)
    assert "--anew" in str(raised.value)
    assert (place_of(tmp_path / "out") / "step-5").is_dir(), "nothing was changed"
    with open_kept(tmp_path / "out", other, anew=True) as kept:
        assert kept.reached is None
    assert not place_of(tmp_path / "out").exists()


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        open_kept(tmp_path / "out", FIXED, anew=False),
        pytest.raises(RunError, match="is in use by a running warm-up"),
        open_kept(tmp_path / "out", FIXED, anew=False),
    ):
        pass


def test_what_somebody_else_has_there_is_not_touched(tmp_path: Path) -> None:
    place = place_of(tmp_path / "out")
    place.mkdir()
    (place / "mine").write_text("all of it")
    with pytest.raises(UsageError, match="is not from a warm-up"), open_kept(tmp_path / "out", FIXED, anew=True):
        pass
    assert (place / "mine").read_text() == "all of it"


@pytest.mark.parametrize("text", ["", "{", '{"steps": 1}', '{"fixed": 1}'])
def test_a_state_that_is_damaged_says_what_to_do(tmp_path: Path, text: str) -> None:
    with open_kept(tmp_path / "out", FIXED, anew=False) as kept:
        begin(kept, 5)
        (kept.place / "state.json").write_text(text)
    with pytest.raises(RunError, match="Add --anew"), open_kept(tmp_path / "out", FIXED, anew=False):
        pass


def test_a_checkpoint_that_is_gone_says_what_to_do(tmp_path: Path) -> None:
    with open_kept(tmp_path / "out", FIXED, anew=False) as kept:
        begin(kept, 5)
        kept.checkpoint(5).rmdir()
    with pytest.raises(RunError, match="step-5 is missing"), open_kept(tmp_path / "out", FIXED, anew=False):
        pass
