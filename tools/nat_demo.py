"""Run the demo with its learner in the internet and each node behind its own home router: `make demo NAT=1`.

    learner ---- 30.77.0.0/24 ---- router ---- node-1      open to ports that it sent to, as in most homes
                       |---------- router ---- node-2      open to hosts that it sent to
                       |---------- router ---- node-3      another port for each host, as in mobile networks

It prints the demo's output, and the report ends with which node reached which, and how. Routers and links are network
namespaces (`benchmarks/network/homes.py`), so this needs Linux and root.

Invariants:

- Nothing of it is left after its end, however it ended.
- If the machine cannot do it, a sentence says so, with what to type, before anything is created.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, NoReturn

import typer

from benchmarks.network.emulation import Node
from benchmarks.network.home import Home
from benchmarks.network.homes import Laboratory, open_homes
from benchmarks.network.requirements import NetworkUnavailable, obstacle
from benchmarks.network.routers import KINDS
from node.cli.demo_commands import OUT, Engines, Lesson, Objective, Out, Plain, Seed, Staleness, Steps
from node.cli.options import run_program
from node.commands.demo.command import Site, Sites, run_demo
from node.runtime.errors import NodeError, UsageError
from node.runtime.stdout import complain, keep_outlet

ROUTERS = ("port", "address", "symmetric")
"""The first two let each other in when both dial; the third lets its node out, and no connection in. Names of
`benchmarks/network/routers.py`."""

RATE_MBIT, DELAY_MS = 50.0, 5.0
"""Link of each home and of the learner: a good one, with 20 ms there and back between two homes."""


def demo(
    out: Out = OUT,
    task: Lesson = "reverse",
    seed: Seed = 0,
    routers: Annotated[str, typer.Option(help=f"A node behind each of these: {', '.join(KINDS)}.")] = ",".join(ROUTERS),
    staleness: Staleness = 3,
    engine: Engines = "transformers",
    objective: Objective = "topr",
    steps: Steps = None,
    cheater: Annotated[bool, typer.Option("--cheater", help="Add a node that cheats, in the internet.")] = False,
    plain: Plain = False,
) -> None:
    """Run the demo's swarm with each node behind a home router, and print which node reaches which, and how."""
    homes = homes_behind(routers)
    if reason := obstacle():
        _give_up(reason)
    names = ["learner", *(["cheat"] if cheater else [])]
    hosts = [Node(name=name, up=RATE_MBIT, down=RATE_MBIT, delay_ms=DELAY_MS) for name in names]
    try:
        with open_homes(homes, hosts) as lab:
            run_program(
                run_demo,
                out,
                task=task,
                seed=seed,
                num_nodes=len(homes),
                staleness=staleness,
                engine=engine,
                objective=objective,
                steps=steps,
                cheater=cheater,
                plain=plain,
                sites=_sites(lab, names[1:]),
            )
    except NetworkUnavailable as error:
        _give_up(str(error))


def homes_behind(routers: str) -> list[Home]:
    """Return a home for each kind of router; their numbers are those of the nodes. Raises UsageError."""
    kinds = routers.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise UsageError(f"--routers: there is no router {unknown[0]!r}. There are {', '.join(KINDS)}.")
    return [
        Home(name=f"home{number}", kind=KINDS[kind], up=RATE_MBIT, down=RATE_MBIT, delay_ms=DELAY_MS)
        for number, kind in enumerate(kinds, 1)
    ]


def _sites(lab: Laboratory, beside: list[str]) -> Sites:
    """Return where each program runs: the learner at its own address, nodes at any address of their machine."""
    nodes = [
        Site(host="0.0.0.0", wrap=partial(lab.inside, name)) for name in [*(one.name for one in lab.homes), *beside]
    ]
    return Sites(learner=Site(host=lab.address("learner"), wrap=partial(lab.inside, "learner")), nodes=nodes)


def _give_up(reason: str) -> NoReturn:
    complain(f"{reason}\n    sudo make demo NAT=1\nThe same without routers runs on any machine: make demo")
    raise typer.Exit(1)


def main() -> None:
    """Run the command, and report errors as `volery demo` does."""
    keep_outlet()
    try:
        typer.run(demo)
    except NodeError as error:
        complain(f"error: {error}")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
