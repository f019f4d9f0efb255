"""Commands that show that it works: demo, drill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, run_program
from node.commands.drill.attacks import Attack

Out = Annotated[Path, typer.Option(help="Where results go; an earlier demo there is replaced.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of model, data and sampling.")]
Staleness = Annotated[int, typer.Option(min=0, max=16, help="S, in training steps; 0: sequential mode.")]
Engines = Annotated[Literal["transformers", "vllm", "mixed"], typer.Option(help="What generates on the rollout nodes.")]
Objective = Annotated[str, typer.Option(help="What is minimised: a preset, see docs/objectives.md.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Training steps; fewer for a shorter look.")]
Lesson = Annotated[
    Literal["reverse", "tools"], typer.Option("--task", help="What it learns: to reverse words, or to call a tool.")
]
Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")]

OUT = Path("runs/demo")


def demo(
    out: Out = OUT,
    task: Lesson = "reverse",
    seed: Seed = 0,
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Rollout nodes to start.")] = 3,
    staleness: Staleness = 3,
    engine: Engines = "transformers",
    objective: Objective = "topr",
    steps: Steps = None,
    cheater: Annotated[bool, typer.Option("--cheater", help="Add a node that cheats, and see it found.")] = False,
    plain: Plain = False,
) -> None:
    """Run a whole swarm on this machine: a learner and three rollout nodes teach a small model to reverse words.

    With `--task tools` it learns to call a tool: a sandboxed Python, which multiplies for it.
    """
    from node.commands.demo.command import run_demo

    run_program(
        run_demo,
        out,
        task=task,
        seed=seed,
        num_nodes=nodes,
        staleness=staleness,
        engine=engine,
        objective=objective,
        steps=steps,
        cheater=cheater,
        plain=plain,
    )


def drill(
    config: Annotated[
        Path | None, typer.Argument(help="The swarm.toml of the swarm to drill; by default a small one is made.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results go; an earlier drill there is replaced.")] = Path(
        "runs/drill"
    ),
    peers: Annotated[int, typer.Option(min=1, max=256, help="Peers that play, the cheats among them.")] = 40,
    cheats: Annotated[float, typer.Option(min=0, max=1, help="The share of them that cheat.")] = 0.1,
    attack: Annotated[
        list[Attack] | None,
        typer.Option(
            metavar="NAME",  # else all of them stand in a narrow column, which breaks them
            help=f"Only this attack; repeatable. By default all, in turn: {', '.join(one.value for one in Attack)}.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of model, data and players.")] = 0,
    as_json: Json = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")] = False,
) -> None:
    """Attack your own swarm, on this machine and out of reach of others, and see which cheats are found."""
    from node.commands.drill.command import Terms, run_drill

    terms = Terms(
        config=config, out=out, peers=peers, cheats=cheats, attacks=attack or tuple(Attack), steps=steps, seed=seed
    )
    run_program(run_drill, terms, as_json_text=as_json, plain=plain)
