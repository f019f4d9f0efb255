"""Run the demo, and the drill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, Plain, config_file, run_program
from node.commands.drill.attacks import Attack

Out = Annotated[Path, typer.Option(metavar="DIR", help="Directory for results; an earlier demo there is replaced.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of model, data and sampling.")]
Staleness = Annotated[
    int, typer.Option(min=0, max=16, help="Staleness window S, in training steps; 0: sequential mode.")
]
Engines = Annotated[
    Literal["transformers", "vllm", "mixed"],
    typer.Option(help="Engine of the rollout nodes; mixed: vLLM on the first, then transformers."),
]
Objective = Annotated[
    str, typer.Option(metavar="NAME", help="Objective to train with; docs/explain/objectives.md lists them.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Training steps. Fewer make a shorter demo.")]
Lesson = Annotated[
    Literal["reverse", "tools"], typer.Option("--task", help="Task to learn: reverse words, or call a tool.")
]

OUT = Path("runs/demo")


def demo(
    out: Out = OUT,
    task: Lesson = "reverse",
    seed: Seed = 0,
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Number of rollout nodes.")] = 3,
    staleness: Staleness = 3,
    engine: Engines = "transformers",
    objective: Objective = "topr",
    steps: Steps = None,
    cheater: Annotated[bool, typer.Option("--cheater", help="Add a node that cheats, and is banned.")] = False,
    plain: Plain = False,
) -> None:
    """Run a whole swarm on this machine: a learner and three rollout nodes teach a small model to reverse words.

    With `--task tools` the model learns to call a tool, a sandboxed Python that multiplies numbers.
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
        Path | None,
        typer.Argument(
            metavar="SWARM",
            callback=config_file,
            help="The swarm.toml to drill, or the directory that holds it. Default: a small swarm made for the drill.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for results; an earlier drill there is replaced.")
    ] = Path("runs/drill"),
    peers: Annotated[int, typer.Option(min=1, max=256, help="Number of simulated peers, cheats included.")] = 40,
    cheats: Annotated[float, typer.Option(min=0, max=1, help="Fraction of the peers that cheat.")] = 0.1,
    attack: Annotated[
        list[Attack] | None,
        typer.Option(
            metavar="NAME",  # or the help would list all of them as the placeholder
            help=f"Make only this attack; repeatable. Default: all in turn: {', '.join(one.value for one in Attack)}.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of model, data and peers.")] = 0,
    as_json: Json = False,
    plain: Plain = False,
) -> None:
    """Attack a copy of your swarm on this machine, where nobody else can reach it, and show which cheats are found."""
    from node.commands.drill.command import Terms, run_drill

    terms = Terms(
        config=config, out=out, peers=peers, cheats=cheats, attacks=attack or tuple(Attack), steps=steps, seed=seed
    )
    run_program(run_drill, terms, as_json_text=as_json, plain=plain)
