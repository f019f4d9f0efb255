"""The configuration that a demo writes is one that a learner takes, whatever S was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import read_swarm_config
from node.demo import Recipe, swarm_toml


@pytest.mark.parametrize(
    ("staleness", "publish_every", "in_force"),
    [
        (0, 1, ("sequential", 0, 1, 1.0)),
        (0, 3, ("sequential", 0, 1, 1.0)),
        (1, 3, ("async", 1, 1, 1.5)),
        (16, 3, ("async", 16, 3, 1.5)),
    ],
)
def test_every_window_that_may_be_asked_for(
    tmp_path: Path, staleness: int, publish_every: int, in_force: tuple[str, int, int, float]
) -> None:
    path = tmp_path / "swarm.toml"
    recipe = Recipe(publish_every=publish_every)
    path.write_text(swarm_toml(recipe, port=4001, staleness=staleness, seed=1), encoding="utf-8")
    learn = read_swarm_config(path).learn
    assert (learn.mode, learn.staleness, learn.publish_every, learn.ahead) == in_force
    assert (learn.steps, learn.seed) == (recipe.steps, 1)
