"""The picture: the right size, the right points, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from node.commands.plan.command import answer
from node.commands.plan.plan import Plan
from node.commands.plan.plot import _draw, draw_plan
from node.runtime.errors import RunError
from tests.support.plan_calls import EXAMPLES, plan


def made(**options: object) -> Plan:
    return answer(EXAMPLES / "pool.toml", None, options, with_echo2=True)


def drawn(of: Plan) -> Figure:
    figure = Figure()
    _draw(figure, of)
    return figure


def points(figure: Figure, panel: int) -> dict[str, list[tuple[float, float]]]:
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata()]  # type: ignore[union-attr]
        for line in figure.axes[panel].lines
    }


def test_a_png_of_1200_by_700(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    draw_plan(made(), path)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (1200, 700)
    draw_plan(made(), tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == data
    assert sorted(one.name for one in tmp_path.iterdir()) == ["again.png", "plan.png"]


def test_every_window_is_a_point_of_one_kind() -> None:
    of = made(max_staleness=6)
    figure = drawn(of)
    for panel in range(3):
        by_label = points(figure, panel)
        ours = by_label["our rule, the cheapest set"]
        assert [x for x, _ in ours] == [2, 3, 4, 5, 6]
        assert [x for x, _ in by_label["the paper's rule and choice"]] == [3, 4, 5, 6]
        assert [x for x, _ in by_label["taking turns (S = 0)"]] == [0]
        assert [x for x, _ in by_label["all machines, which are too few"]] == [1]
    assert points(figure, 1)["our rule, the cheapest set"][1] == (3, 22)


def test_small_costs_are_drawn_of_a_thousand_steps() -> None:
    few = made(train_s=1.0, rollouts=4, broadcast_s=0.5, generation_s=0.1)
    cost = drawn(few).axes[0]
    assert cost.get_title(loc="left") == "cost of 1,000 training steps (USD)"
    assert drawn(made()).axes[0].get_title(loc="left") == "cost of a training step (USD)"
    assert all(float(tick).is_integer() for tick in drawn(few).axes[1].get_yticks())


def test_a_pool_that_is_never_enough_is_drawn_as_such() -> None:
    by_label = points(drawn(made(rollouts=100_000, max_staleness=4)), 0)
    assert [x for x, _ in by_label["all machines, which are too few"]] == [1, 2, 3, 4]
    assert "our rule, the cheapest set" not in by_label


def test_a_picture_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be written"):
        draw_plan(made(), tmp_path / "none" / "plan.png")
    old = tmp_path / "plan.png"
    old.mkdir()
    outcome = plan(EXAMPLES / "pool.toml", "--picture", old)
    assert outcome.code == 1
    assert "volery: error: " in outcome.err
    assert outcome.out == "", "it is found out before anything is worked out"
    assert list(tmp_path.iterdir()) == [old]
