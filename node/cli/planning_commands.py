"""Commands that plan: plan, simulate."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import Json
from node.runtime.stdout import say_drawn


class SimulatedMode(Enum):
    """How learner and machines work together in a simulation."""

    ASYNC = "async"
    SEQUENTIAL = "sequential"
    SYNCHRONOUS = "synchronous"


def plan(
    pool: Annotated[Path | None, typer.Argument(help="A .toml or .csv of machines: name, price, rate, ...")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A run: its recording, state directory, swarm.toml, or a demo's.")
    ] = None,
    train_s: Annotated[float | None, typer.Option(help="T_train: seconds of one training step.")] = None,
    rollouts: Annotated[int | None, typer.Option(help="R: rollouts that a training step takes.")] = None,
    staleness: Annotated[int | None, typer.Option(help="S: the window to plan for, in training steps; 3.")] = None,
    max_staleness: Annotated[int | None, typer.Option(help="The last window of the table; 11.")] = None,
    broadcast_s: Annotated[float | None, typer.Option(help="T_bcast: seconds until most use a version.")] = None,
    weights_mb: Annotated[float | None, typer.Option(help="Or 10^6 bytes of what travels, to compute it.")] = None,
    learner_up_mbit: Annotated[float | None, typer.Option(help="The learner's uplink, to compute it.")] = None,
    install_s: Annotated[float | None, typer.Option(help="Seconds from its arrival until a version is in use.")] = None,
    generation_s: Annotated[float | None, typer.Option(help="T_gen: seconds of a slow rollout, admission too.")] = None,
    kappa: Annotated[int | None, typer.Option(help="Publish every so many steps, not as the rules say.")] = None,
    ahead: Annotated[float | None, typer.Option(help="Batches leased or waiting at most; else as measured.")] = None,
    margin: Annotated[float | None, typer.Option(help="Ask for so many times what suffices; 1.05.")] = None,
    hours: Annotated[float | None, typer.Option(help="Hours over which a machine's start is charged; 24.")] = None,
    learner_price: Annotated[float | None, typer.Option(help="Price per hour of the learner's machine.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Write a PNG of cost and waits over S there.")] = None,
    as_json: Json = False,
) -> None:
    """Say which machines keep the learner busy and what they cost, for every staleness window."""
    from node.commands.plan.command import answer, show
    from node.commands.plan.plot import draw_plan
    from node.runtime.atomic_files import PICTURE, require_place

    given = {
        "train_s": train_s,
        "rollouts": rollouts,
        "staleness": staleness,
        "max_staleness": max_staleness,
        "broadcast_s": broadcast_s,
        "weights_mb": weights_mb,
        "learner_up_mbit": learner_up_mbit,
        "install_s": install_s,
        "generation_s": generation_s,
        "kappa": kappa,
        "ahead": ahead,
        "margin": margin,
        "hours": hours,
        "learner_price": learner_price,
    }
    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    planned = answer(pool, source, given)
    try:
        if picture is not None:
            draw_plan(planned, picture)
    finally:  # what was worked out is not lost with the picture, nor the picture with who reads this
        say_drawn(show(planned, as_json_text=as_json))
    raise typer.Exit(0 if planned.is_feasible else 1)


def simulate(
    pool: Annotated[Path | None, typer.Argument(help="A .toml or .csv of machines, as `volery plan` reads.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Replay a run: its recording, state directory, or swarm.toml.")
    ] = None,
    hours: Annotated[float | None, typer.Option(help="Simulate so long; 1, or as long as the run.")] = None,
    steps: Annotated[int | None, typer.Option(help="Or so many training steps.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everybody's luck.")] = 0,
    staleness: Annotated[int | None, typer.Option("--staleness", "-S", help="What if S were this?")] = None,
    kappa: Annotated[int | None, typer.Option(help="What if versions were published every so many steps?")] = None,
    mode: Annotated[SimulatedMode | None, typer.Option(help="What if learner and machines took turns?")] = None,
    p2p: Annotated[bool, typer.Option("--p2p/--no-p2p", help="What if machines passed nothing on?")] = True,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="What if prices were not looked at?")] = True,
    machines: Annotated[float | None, typer.Option(help="What if there were so many times the machines?")] = None,
    planned: Annotated[bool | None, typer.Option("--plan/--no-plan", help="Does a plan say who is on?")] = None,
    train_s: Annotated[float | None, typer.Option(help="T_train: seconds of one training step.")] = None,
    rollouts: Annotated[int | None, typer.Option(help="R: rollouts that a training step takes.")] = None,
    broadcast_s: Annotated[float | None, typer.Option(help="T_bcast: seconds until most use a version.")] = None,
    weights_mb: Annotated[float | None, typer.Option(help="Or 10^6 bytes of what travels, to compute it.")] = None,
    learner_up_mbit: Annotated[float | None, typer.Option(help="The learner's uplink, to compute it.")] = None,
    install_s: Annotated[float | None, typer.Option(help="Seconds from its arrival until a version is in use.")] = None,
    generation_s: Annotated[float | None, typer.Option(help="T_gen: seconds of a slow rollout, admission too.")] = None,
    learner_price: Annotated[float | None, typer.Option(help="Price per hour of the learner's machine.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Beside it, the swarm as it is, and each what-if.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Write a PNG of who did what when there.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write a recording of it there, as a learner does.")] = None,
    as_json: Json = False,
) -> None:
    """Ask "what if" of a pool or a recorded run, in virtual time: waits, lags, losses, costs, changes of plan."""
    from node.commands.simulate.command import answer, require_recording, show, write_recording
    from node.commands.simulate.scenario import Mode
    from node.commands.simulate.timeline_plot import draw_timeline
    from node.runtime.atomic_files import PICTURE, require_place

    given = {
        "hours": hours,
        "steps": steps,
        "staleness": staleness,
        "kappa": kappa,
        "machines": machines,
        "train_s": train_s,
        "rollouts": rollouts,
        "broadcast_s": broadcast_s,
        "weights_mb": weights_mb,
        "learner_up_mbit": learner_up_mbit,
        "install_s": install_s,
        "generation_s": generation_s,
        "learner_price": learner_price,
    }
    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    if record is not None:
        require_recording(record)
    found = answer(
        pool,
        source,
        options=given,
        mode=None if mode is None else Mode(mode.value),
        p2p=p2p,
        cost=cost,
        plan=planned,
        compare=compare,
        record=record is not None,
        picture=picture is not None,
        seed=seed,
    )
    try:
        if record is not None:
            write_recording(found.recorded, record)
        if picture is not None:
            draw_timeline(found.asked, found.swarm.currency, picture)
    finally:  # as in `plan`
        say_drawn(show(found, as_json_text=as_json))
