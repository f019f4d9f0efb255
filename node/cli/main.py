"""The command line: parse, call, print.

Every command ends with exit code 0 (done), 1 (trouble at run time), 2 (usage) or 130 (stopped by Ctrl-C), and says
trouble in one paragraph that names what is concerned and the next step. Nothing here decides anything.
"""

from __future__ import annotations

from node.runtime.early_signals import STOPPED_EXIT_CODE, loaded, remember

remember()

# ruff: noqa: E402  (what follows takes its time)
import shlex
from enum import Enum
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from node.cli.arguments import whole_text
from node.cli.operator_commands import ban, pardon
from node.cli.owner_commands import drain, pause, resume
from node.cli.receipt_commands import prove, receipts
from node.cli.reputation_commands import reputation
from node.commands.drill.attacks import Attack
from node.runtime.errors import NodeError, UsageError, of_file
from node.runtime.stdout import complain, keep_outlet, say, say_drawn, tame_tracebacks

loaded()

app = typer.Typer(
    name="volery",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help=(
        "Reinforcement learning of language models over a swarm of unequal machines.\n\n"
        "**To see it work:** `volery demo`.\n\n"
        "**To lend a machine:** `volery join INVITE`, with the invite an operator gave you.\n\n"
        "**To start a swarm:** `volery init my-swarm`, edit `my-swarm/swarm.toml`, then "
        "`volery learn my-swarm/swarm.toml`; it prints the invite to hand out."
    ),
)

State = Annotated[Path | None, typer.Option("--state", help="Directory with the node's or learner's state.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


MAX_EXPIRES_H = 24 * 366 * 100
"""A hundred years: beyond that an invite may as well never expire."""


class DemoEngine(Enum):
    """Engines that can teach the demo's model something."""

    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    MIXED = "mixed"


class EngineAction(Enum):
    """What can be done about engines."""

    INSTALL = "install"


class InstallableEngine(Enum):
    """Engines that live in an environment of their own."""

    VLLM = "vllm"


class EngineBuild(Enum):
    """What vLLM is built for."""

    CPU = "cpu"
    CUDA = "cuda"


class AccountKind(Enum):
    """What a row of a run's costs is of."""

    RUN = "run"
    DAY = "day"
    VERSION = "version"


class SimulatedMode(Enum):
    """How learner and machines work together in a simulation."""

    ASYNC = "async"
    SEQUENTIAL = "sequential"
    SYNCHRONOUS = "synchronous"


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"volery {distribution_version('volery')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Where to put swarm.toml; made if it is not there.")] = Path(
        "swarm"
    ),
    name: Annotated[str, typer.Option(help="The swarm's name; the directory's by default.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port to listen on; a free one by default.")] = 0,
    model: Annotated[
        Path | None,
        typer.Option(help="The model to begin with; by default the one in DIRECTORY/model, if it is there."),
    ] = None,
) -> None:
    """Write a commented swarm.toml to start a swarm with, with figures that its model can work with."""
    from node.config.template import model_beside, write_swarm_config

    model = model or model_beside(directory)
    path = write_swarm_config(directory, name=name, port=port, model=model)
    start = f"volery learn {shlex.quote(str(path))}"
    if model is None:
        say(f"Wrote {path}.\nSet [model] directory and [task] spec in it, then: {start}")
    else:
        say(f"Wrote {path}, for the model in {model}.\nSet [task] spec and [learn] steps in it, then: {start}")


@app.command()
def learn(
    config: Annotated[Path, typer.Argument(help="The swarm.toml that `volery init` wrote.")],
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Refuse to begin anew where there is no checkpoint to go on from.")
    ] = False,
    fork_from: Annotated[
        str, typer.Option(help="RUN or RUN@STEP: begin a new swarm with that run's checkpoint (swarm.toml or state).")
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Try the run out, print the configuration in force and what it takes; start nothing."
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --dry-run: leave the trial out, which loads the model twice.")
    ] = False,
) -> None:
    """Be the learner: judge what peers generate, train, publish. Prints the invite for them.

    Starting it again after a crash or Ctrl-C goes on from the last durable checkpoint.
    """
    if quick and not dry_run:
        raise UsageError("--quick leaves the trial out of --dry-run, and a start always makes it. Add --dry-run.")
    if dry_run:
        from node.learner_role.dry_run import dry_run as look

        _run(look, config, resume=resume, fork_from=fork_from, quick=quick)
    from node.learner_role.command import learn as program

    _run(program, config, plain=plain, resume=resume, fork_from=fork_from)


@app.command()
def join(
    invite: Annotated[
        list[str],
        typer.Argument(metavar="INVITE", help="The string that begins with volery1, or a file that holds it."),
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="A node.toml: name, addresses, limits, engine, price.")
    ] = None,
    state: State = None,
    name: Annotated[str, typer.Option(callback=whole_text, help="What to call this node in reports.")] = "",
    price: Annotated[float | None, typer.Option(min=0, help="Price per hour to ask, in the swarm's currency.")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to try to reach the learner before giving up.")] = 20.0,
    upload_mbit: Annotated[float | None, typer.Option(help="Send at most so many million bits a second.")] = None,
    download_mbit: Annotated[float | None, typer.Option(help="Receive at most so many million bits a second.")] = None,
    quota_gb: Annotated[float | None, typer.Option(help="Let the model's versions take so much of the disk.")] = None,
    hours: Annotated[
        str | None, typer.Option(help='Work only then, by the local clock: "19:00-07:30,12:00-13:00".')
    ] = None,
    no_listen: Annotated[bool, typer.Option("--no-listen", help="Only dial out; nobody can dial this node.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say who the operator is, what would run and be sent; join nothing.")
    ] = False,
) -> None:
    """Lend this machine to a swarm: generate rollouts with its newest policy until you stop (Ctrl-C)."""
    from node.learner_role.command import join as program

    _run(
        program,
        " ".join(invite),  # of a line that was pasted whole, or was broken by who sent it
        config=config,
        state=state,
        name=name,
        price=price,
        wait_s=wait,
        upload_mbit=upload_mbit,
        download_mbit=download_mbit,
        quota_gb=quota_gb,
        hours=hours,
        no_listen=no_listen,
        plain=plain,
        dry_run=dry_run,
    )


for _told in (pause, resume, drain, ban, pardon):
    app.command()(_told)


app.add_typer(receipts)
app.add_typer(reputation)
app.command()(prove)


@app.command()
def engines(
    action: Annotated[EngineAction | None, typer.Argument(help="install, to build an engine's environment.")] = None,
    engine: Annotated[InstallableEngine | None, typer.Argument(help="The engine to install: vllm.")] = None,
    at: Annotated[Path | None, typer.Option("--at", help="Directory of the environment to build.")] = None,
    build: Annotated[EngineBuild | None, typer.Option(help="cpu or cuda; by default what this machine has.")] = None,
) -> None:
    """Say which engines can be used here and why others cannot; `engines install vllm` builds one's environment."""
    from node.config.swarm_config import EngineSection
    from node.engine import selection as engine_choice
    from node.engine import vllm_install as vllm_environment

    if action is None:
        say(engine_choice.table(engine_choice.look(EngineSection())))
        return
    if engine is None:
        raise typer.BadParameter("name the engine: volery engines install vllm")
    wanted: Any = build.value if build is not None else "cuda" if vllm_environment.has_gpu() else "cpu"
    found = vllm_environment.install(at, wanted, say)
    say(f"vLLM is installed: {found.python}. `volery engines` says whether a node takes it by itself.")


@app.command()
def invite(
    config: Annotated[Path, typer.Argument(help="The swarm.toml of a swarm that was started before.")],
    announce: Annotated[
        list[str] | None, typer.Option(help="Address to put into the invite instead of the learner's own; repeatable.")
    ] = None,
    expires: Annotated[
        float, typer.Option(min=0, max=MAX_EXPIRES_H, help="Hours after which it is refused; 0 is never.")
    ] = 0.0,
) -> None:
    """Print an invite to a swarm that `volery learn` has founded."""
    from node.cli.status import show_invite

    say(show_invite(config, announce=announce or [], expires_h=expires))


@app.command()
def identity(state: State = None) -> None:
    """Print the peer ids whose keys lie on this machine, and where."""
    from node.cli.status import identities

    for line in identities(state):
        say(line)


@app.command()
def status(
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a node's state directory.")] = None,
    as_json: Json = False,
) -> None:
    """Say in a few lines how a learner or a node on this machine is doing."""
    from node.cli.status import show_status

    say(show_status(target, as_json=as_json))


@app.command()
def report(
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a node's state directory.")] = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row per peer.")] = False,
    by: Annotated[AccountKind | None, typer.Option("--by", help="With --csv: costs, a row for each of these.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw a learner's run to this PNG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write it as a page for a browser, to this HTML file.")] = None,
    everyone: Annotated[
        bool, typer.Option("--all", help="A row for every peer, and every ban, of however many.")
    ] = False,
) -> None:
    """Who did what, at what cost: the whole swarm on the learner, one's own work on a volunteer's node."""
    from node.cli.status import show_report

    if as_json and as_csv:
        raise typer.BadParameter("choose --json or --csv, not both")
    if by is not None and not as_csv:
        raise typer.BadParameter("--by chooses the rows of --csv; the other forms have all of them")
    told = show_report(
        target,
        as_json=as_json,
        as_csv=as_csv,
        by=None if by is None else by.value,
        picture=picture,
        html=html,
        everyone=everyone,
    )
    say_drawn(told)


@app.command()
def why(
    name: Annotated[
        str,
        typer.Argument(
            callback=whole_text,
            help="A peer's id, its end, or its name; the beginning of a lease's or a record's id; LEASE/INDEX.",
        ),
    ],
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a node's state directory.")] = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Hear a peer's audits, or draw a failed lease's tokens, once more; 1 if that differs, 2 if nothing is "
            "there to draw again.",
        ),
    ] = False,
) -> None:
    """Why something was not counted: what was decided, by which rule, what was measured, and what to do about it."""
    from node.cli.status import show_why

    answer = show_why(name, target, replay=replay)
    say(answer.text)
    raise typer.Exit(0 if answer.agrees else 1)


@app.command()
def show(
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a learner's state directory.")] = None,
    version: Annotated[str, typer.Option(help="INCARNATION.VERSION or VERSION; the newest by default.")] = "",
    group: Annotated[int, typer.Option(min=0, help="Only this group of those kept, from 1.")] = 0,
    best: Annotated[int, typer.Option(min=0, help="Only so many completions of the highest reward ...")] = 0,
    worst: Annotated[int, typer.Option(min=0, help="... and so many of the lowest.")] = 0,
    as_json: Json = False,
) -> None:
    """Print samples of what a policy version was trained on: prompts, completions, rewards and advantages."""
    from node.commands.samples.command import show as shown

    text = shown(target, version=version, group=group, best=best, worst=worst, json=as_json)
    say_drawn(text)


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A swarm.toml, or a node's state directory.")],
    directory: Annotated[Path, typer.Argument(help="Where to write the model; must not exist.")],
    version: Annotated[str, typer.Option(help="INCARNATION.VERSION or VERSION; the newest by default.")] = "",
) -> None:
    """Write one policy version as a model directory that transformers loads."""
    from node.state.model_export import export_version

    say(export_version(source, directory, version))


@app.command()
def verifier() -> None:
    """Compute rewards for a learner: frames on standard input and output. For `[[verifiers.machine]] command`."""
    import os
    import sys

    os.dup2(sys.stdout.fileno(), 1)  # `keep_outlet` has moved it
    # A process of its own kind: the same hashes in all verifiers, whatever shell has started this one.
    os.execve(sys.executable, [sys.executable, "-m", "node.verifiers.worker"], {**os.environ, "PYTHONHASHSEED": "0"})


@app.command()
def tasks() -> None:
    """List the tasks that a swarm.toml may name, with their options."""
    from node.cli.status import list_tasks

    say(list_tasks())


@app.command()
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


@app.command()
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


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where results go; an earlier demo there is replaced.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of model, data and sampling.")] = 0,
    nodes: Annotated[int, typer.Option(min=1, max=16, help="Rollout nodes to start.")] = 3,
    staleness: Annotated[int, typer.Option(min=0, max=16, help="S, in training steps; 0: sequential mode.")] = 3,
    engine: Annotated[DemoEngine, typer.Option(help="What generates on the rollout nodes.")] = DemoEngine.TRANSFORMERS,
    objective: Annotated[str, typer.Option(help="What is minimised: a preset, see docs/objectives.md.")] = "topr",
    steps: Annotated[int, typer.Option(min=1, help="Training steps; fewer for a shorter look.")] = 340,
    cheater: Annotated[bool, typer.Option("--cheater", help="Add a node that cheats, and see it found.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")] = False,
) -> None:
    """Run a whole swarm on this machine: a learner and three rollout nodes teach a small model to reverse words."""
    from node.commands.demo.command import run_demo

    _run(
        run_demo,
        out,
        seed=seed,
        num_nodes=nodes,
        staleness=staleness,
        engine=engine.value,
        objective=objective,
        steps=steps,
        cheater=cheater,
        plain=plain,
    )


@app.command()
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
    _run(run_drill, terms, as_json_text=as_json, plain=plain)


def _run(program: Any, *args: Any, **options: Any) -> None:
    """Run an async program to its end; it returns the exit code."""
    from functools import partial

    import trio

    from node.runtime.garbage_collection import look_seldom
    from swarm.transport.error_groups import first_cause

    look_seldom()
    try:
        with first_cause():
            code = trio.run(partial(program, *args, **options))
    except KeyboardInterrupt:  # before the program was ready to be told; typer would say nothing
        complain("\nStopped. What was acknowledged is on disk; to go on, start the same command again.")
        code = STOPPED_EXIT_CODE
    raise typer.Exit(code)


def main() -> None:
    """Entry point of the console script."""
    keep_outlet()
    tame_tracebacks()
    try:
        app(standalone_mode=True, prog_name="volery")
    except KeyboardInterrupt:  # before typer listens, or when it listens no more
        raise SystemExit(STOPPED_EXIT_CODE) from None
    except NodeError as error:
        _fail(error)
    except OSError as error:
        # What a user named, or what was only to be looked at: a state directory, a ledger, a key.
        if (said := of_file(error)) is None:
            raise
        _fail(said)


def _fail(error: NodeError) -> NoReturn:
    complain(f"volery: {'usage' if isinstance(error, UsageError) else 'error'}: {error}")
    raise SystemExit(error.exit_code) from None
