"""Commands that make or run a role, or say whether one could run: init, learn, join, doctor, engines, verifier."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, State, run_program, whole_text
from node.runtime.errors import UsageError
from node.runtime.stdout import say


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
    from node.commands.init.command import model_beside, write_swarm_config

    model = model or model_beside(directory)
    path = write_swarm_config(directory, name=name, port=port, model=model)
    start = f"volery learn {shlex.quote(str(path))}"
    if model is None:
        say(f"Wrote {path}.\nSet [model] directory and [task] spec in it, then: {start}")
    else:
        say(f"Wrote {path}, for the model in {model}.\nSet [task] spec and [learn] steps in it, then: {start}")


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

        run_program(look, config, resume=resume, fork_from=fork_from, quick=quick)
    from node.learner_role.command import learn as program

    run_program(program, config, plain=plain, resume=resume, fork_from=fork_from)


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
    teacher: Annotated[
        Path | None, typer.Option(help="Score with the model in this directory instead of generating.")
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say who the operator is, what would run and be sent; join nothing.")
    ] = False,
) -> None:
    """Lend this machine to a swarm: generate rollouts with its newest policy until you stop (Ctrl-C)."""
    from node.rollout_role.command import Overrides
    from node.rollout_role.command import join as program

    overrides = Overrides(
        name=name,
        price=price,
        upload_mbit=upload_mbit,
        download_mbit=download_mbit,
        quota_gb=quota_gb,
        hours=hours,
        no_listen=no_listen,
        teacher=teacher,
    )
    typed = " ".join(invite)  # of a line that was pasted whole, or was broken by who sent it
    run_program(program, typed, overrides, config=config, state=state, wait_s=wait, plain=plain, dry_run=dry_run)


def doctor(
    invite: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INVITE]", help="An invite, or a file that holds one; without it only this machine."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="The node.toml that the node is to have.")] = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Say how this machine is connected, how fast it is, what is missing, and whether it can take part (30 s at most).

    Nobody joins by it. Exit code 0: it can take part.
    """
    from node.commands.doctor.command import doctor as program

    run_program(program, " ".join(invite or []), config=config, state=state, as_json=as_json)


def engines(
    action: Annotated[
        Literal["install"] | None, typer.Argument(help="install, to build an engine's environment.")
    ] = None,
    engine: Annotated[Literal["vllm"] | None, typer.Argument(help="The engine to install: vllm.")] = None,
    at: Annotated[Path | None, typer.Option("--at", help="Directory of the environment to build.")] = None,
    build: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="cpu or cuda; by default what this machine has.")
    ] = None,
) -> None:
    """Say which engines can be used here and why others cannot; `engines install vllm` builds one's environment."""
    from node.config.node_config import EngineSection
    from node.engine import selection as engine_choice
    from node.engine import vllm_install as vllm_environment

    if action is None:
        say(engine_choice.table(engine_choice.look(EngineSection())))
        return
    if engine is None:
        raise typer.BadParameter("name the engine: volery engines install vllm")
    found = vllm_environment.install(at, build or ("cuda" if vllm_environment.has_gpu() else "cpu"), say)
    say(f"vLLM is installed: {found.python}. `volery engines` says whether a node takes it by itself.")


def verifier() -> None:
    """Compute rewards for a learner: frames on standard input and output. For `[[verifiers.machine]] command`."""
    import os
    import sys

    os.dup2(sys.stdout.fileno(), 1)  # `keep_outlet` has moved it
    # A process of its own kind: the same hashes in all verifiers, whatever shell has started this one.
    os.execve(sys.executable, [sys.executable, "-m", "node.verifiers.worker"], {**os.environ, "PYTHONHASHSEED": "0"})
