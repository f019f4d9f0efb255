"""Plan the machines of a swarm, and simulate it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import SWARM, Given, Json, with_options
from node.commands.plan.pool_keys import OPTIONS as PLAN_OPTIONS
from node.commands.simulate.options import OPTIONS as SIMULATE_OPTIONS
from node.commands.simulate.options import Mode
from node.runtime.stdout import say_drawn


@with_options(PLAN_OPTIONS)
def plan(
    pool: Annotated[
        Path | None, typer.Argument(metavar="POOL", help="A .toml or .csv file of machines: name, price, rate, ...")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="SWARM", help=f"Plan from a recorded run: its recording, or {SWARM}."),
    ] = None,
    *,
    given: Given,
    compare_echo2: Annotated[
        bool, typer.Option("--compare-echo2", help="Also show what the rule in the ECHO-2 paper would choose.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw cost and waiting time over S to this file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which machines keep the learner busy and what they cost, for every staleness window S."""
    from node.commands.plan.command import answer, show
    from node.commands.plan.plot import draw_plan
    from node.runtime.atomic_files import PICTURE, require_place

    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    planned = answer(pool, source, given, with_echo2=compare_echo2)
    try:
        if picture is not None:
            draw_plan(planned, picture)
    finally:  # a picture that cannot be written does not lose the plan, nor a closed pipe the picture
        say_drawn(show(planned, as_json_text=as_json))
    raise typer.Exit(0 if planned.is_feasible else 1)


@with_options(SIMULATE_OPTIONS)
def simulate(
    pool: Annotated[
        Path | None,
        typer.Argument(metavar="POOL", help="A .toml or .csv file of machines, in the form that `volery plan` reads."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="SWARM", help=f"Start from a recorded run: its recording, or {SWARM}."),
    ] = None,
    *,
    given: Given,
    mode: Annotated[Mode | None, typer.Option(help="Simulate this mode instead.")] = None,
    p2p: Annotated[
        bool, typer.Option("--p2p/--no-p2p", help="Let machines relay versions, or fetch all from the learner.")
    ] = True,
    cost: Annotated[bool, typer.Option("--cost/--no-cost", help="Let the plan compare prices, or ignore them.")] = True,
    planned: Annotated[
        bool | None, typer.Option("--plan/--no-plan", help="Let a plan choose the active machines, or use all.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show the swarm without changes beside each change.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the simulated chance.")] = 0,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw what each machine did over time to this file.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a recording of the simulation, in a learner's format.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Simulate a pool or a recorded run in virtual time, and ask what-if: waits, lags, losses, costs, plans."""
    from node.commands.simulate.command import answer, require_recording, show, write_recording
    from node.commands.simulate.scenario import WhatIf
    from node.commands.simulate.timeline_plot import draw_timeline
    from node.runtime.atomic_files import PICTURE, require_place

    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    if record is not None:
        require_recording(record)
    asked = WhatIf(mode=mode, p2p=p2p, cost=cost, plan=planned)
    wanted = {"compare": compare, "record": record is not None, "picture": picture is not None}
    found = answer(pool, source, options=given, asked=asked, seed=seed, **wanted)
    try:
        if record is not None:
            write_recording(found.recorded, record)
        if picture is not None:
            draw_timeline(found.asked, found.swarm.currency, picture)
    finally:  # as in `plan`
        say_drawn(show(found, as_json_text=as_json))
