"""The configuration that a demo writes is accepted by a learner, for any S."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.demo.command import Demo, Site, Sites
from node.commands.demo.recipe import OBJECTIVES, Recipe, recipe_for, swarm_toml
from node.config.loader import read_node_config, read_swarm_config
from node.reports.model.report import Role
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog
from node.ui.live_view import ViewState
from node.ui.terminal import open_terminal


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
    assert (learn.mode, learn.staleness, learn.publish_every, learn.max_batches_ahead) == in_force
    assert (learn.steps, learn.seed) == (recipe.steps, 1)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_that_may_be_asked_for(tmp_path: Path, objective: str) -> None:
    path, recipe = tmp_path / "swarm.toml", recipe_for(objective)
    path.write_text(swarm_toml(recipe, port=4001, staleness=3, seed=1, objective=objective), encoding="utf-8")
    config = read_swarm_config(path)
    assert config.trainer.objective == objective
    assert config.trainer.clip_low is None, "as the objective asks for"
    assert config.learn.prompts_per_step * config.learn.group_size == 256
    assert (config.learn.group_size == 2) == (objective == "dpo")


def test_an_objective_that_there_is_not_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"--objective 'magic' is not one of topr, grpo, dr_grpo, .*dpo\."):
        recipe_for("magic")


async def test_a_directory_that_cannot_be_written_any_more_is_told_with_what_to_do(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    recipe = Recipe()
    demo = Demo(
        out=gone,
        seed=0,
        num_nodes=1,
        with_cheat=False,
        staleness=1,
        engine="transformers",
        objective="topr",
        recipe=recipe,
        events=EventLog(),
        began=0.0,
    )
    view = ViewState(role=Role.LEARNER, title="demo", batch=0, steps=0, staleness=0)
    with open_terminal(view, plain=True) as terminal, pytest.raises(RunError) as raised:
        await demo.run_swarm(terminal)
    said = str(raised.value)
    assert said.startswith(str(gone))
    assert said.endswith("cannot be written: No such file or directory. Name another directory after --out.")


async def test_each_process_runs_where_it_belongs(tmp_path: Path) -> None:
    home = Site(host="0.0.0.0", wrap=lambda argv: ["at", "home", *argv])
    learner = Site(host="30.77.0.3", wrap=lambda argv: ["outside", *argv])
    demo = Demo(
        out=tmp_path, seed=0, num_nodes=2, with_cheat=False, staleness=1, engine="transformers", objective="topr",
        recipe=Recipe(), events=EventLog(), began=0.0, sites=Sites(learner=learner, nodes=[home]),
    )  # fmt: skip
    processes = [demo._learner(), demo._node(1), demo._node(2)]
    assert [process.wrap(["python"]) for process in processes] == [
        ["outside", "python"], ["at", "home", "python"], ["python"],
    ]  # fmt: skip
    assert read_swarm_config(tmp_path / "swarm.toml").network.listen[0].startswith("/ip4/30.77.0.3/tcp/")
    listens = [read_node_config(tmp_path / f"node-{number}.toml").network.listen for number in (1, 2)]
    assert listens == [["/ip4/0.0.0.0/tcp/0"], ["/ip4/127.0.0.1/tcp/0"]]
