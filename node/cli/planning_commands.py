"""Commands that plan: plan, simulate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import Given, Json, with_options
from node.commands.plan.pool_keys import OPTIONS as PLAN_OPTIONS
from node.commands.simulate.options import OPTIONS as SIMULATE_OPTIONS
from node.commands.simulate.options import Mode
from node.runtime.stdout import say_drawn


@with_options(PLAN_OPTIONS)
def plan(
    pool: Annotated[Path | None, typer.Argument(help="A .toml or .csv of machines: name, price, rate, ...")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="A run: its recording, state directory, swarm.toml, or a demo's.")
    ] = None,
    *,
    given: Given,
    compare_echo2: Annotated[
        bool, typer.Option("--compare-echo2", help="Beside it, what ECHO-2's rule as printed would buy.")
    ] = False,
    picture: Annotated[Path | None, typer.Option(help="Write a PNG of cost and waits over S there.")] = None,
    as_json: Json = False,
) -> None:
    """Say which machines keep the learner busy and what they cost, for every staleness window."""
    from node.commands.plan.command import answer, show
    from node.commands.plan.plot import draw_plan
    from node.runtime.atomic_files import PICTURE, require_place

    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    planned = answer(pool, source, given, with_echo2=compare_echo2)
    try:
        if picture is not None:
            draw_plan(planned, picture)
    finally:  # what was worked out is not lost with the picture, nor the picture with who reads this
        say_drawn(show(planned, as_json_text=as_json))
    raise typer.Exit(0 if planned.is_feasible else 1)


@with_options(SIMULATE_OPTIONS)
def simulate(
    pool: Annotated[Path | None, typer.Argument(help="A .toml or .csv of machines, as `volery plan` reads.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="Replay a run: its recording, state directory, or swarm.toml.")
    ] = None,
    *,
    given: Given,
    mode: Annotated[Mode | None, typer.Option(help="What if learner and machines took turns?")] = None,
    p2p: Annotated[
        bool, typer.Option("--p2p/--no-p2p", help="Let machines relay versions; --no-p2p disables it.")
    ] = True,
    cost: Annotated[
        bool, typer.Option("--cost/--no-cost", help="Let the plan look at prices; --no-cost disables it.")
    ] = True,
    planned: Annotated[
        bool | None, typer.Option("--plan/--no-plan", help="Have a plan say who is on, or have everybody on.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Beside it, the swarm as it is, and each what-if.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Of everybody's luck.")] = 0,
    picture: Annotated[Path | None, typer.Option(help="Write a PNG of who did what when there.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write a recording of it there, as a learner does.")] = None,
    as_json: Json = False,
) -> None:
    """Ask "what if" of a pool or a recorded run, in virtual time: waits, lags, losses, costs, changes of plan."""
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
