"""Start a role or prepare for one: init, learn, join, doctor, engines, verifier."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from node.cli.options import ConfigFile, Json, LogForm, LogPath, Plain, State, as_json_text, run_program, whole_text
from node.runtime.errors import UsageError
from node.runtime.stdout import say

if TYPE_CHECKING:
    from node.commands.init.named_model import NamedModel

NodeConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A node.toml with limits, engine, addresses and price.")
]


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory for swarm.toml; it is made if it does not exist.")
    ] = Path("swarm"),
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            callback=whole_text,
            help="A model's directory, or its name on Hugging Face: Qwen/Qwen3-0.6B. Default: DIR/model, if it exists.",
        ),
    ] = "",
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Problems to train on (.jsonl, .csv, .tsv, .parquet): finds the columns, and how to compare answers.",
        ),
    ] = None,
    example: Annotated[
        Literal["reverse", "gsm8k", "math", "code", "lora"] | None,
        typer.Option(help="Write a whole example: configuration, page, and what makes its data."),
    ] = None,
    minimal: Annotated[bool, typer.Option("--minimal", help="Write only the keys that must be set.")] = False,
    name: Annotated[str, typer.Option(help="Name of the swarm. Default: the name of the directory.")] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="TCP port for the learner to listen on. Default: a free one.")
    ] = 0,
    force: Annotated[
        bool, typer.Option("--force", help="If there is a swarm.toml, keep it as swarm.toml.old and write a new one.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a commented swarm.toml for a new swarm, with values that suit its model and its data."""
    from node.commands.init.named_model import named_model

    named = named_model(model, directory)
    if example is not None:
        if data is not None or minimal or force:
            raise UsageError("--example writes a whole directory. Leave out --data, --minimal and --force.")
        _write_example(example, directory, name, port, named if model else None, as_json=as_json)
        return
    from node.commands.init.command import name_aside, write_swarm_config
    from node.commands.init.summary import Summary

    proposal = None
    if data is not None:
        from node.commands.init.data_spec import propose_spec

        proposal = propose_spec(data, directory)
    aside = name_aside(directory / "swarm.toml") if force else None
    config = write_swarm_config(
        directory, name=name, port=port, model=named, data=proposal, minimal=minimal, aside=aside
    )
    options = {"--model": model, "--data": data, "--name": name, "--port": port or ""}
    typed = [part for option, value in options.items() if value for part in (option, str(value))]
    again = shlex.join(["volery", "init", str(directory), *typed, *(["--minimal"] if minimal else []), "--force"])
    done = Summary(config=config, model=named, data=proposal, aside=aside, again=again)
    say(as_json_text(done.values) if as_json else done.text)


def _write_example(
    example: Literal["reverse", "gsm8k", "math", "code", "lora"],
    directory: Path,
    name: str,
    port: int,
    model: NamedModel | None,
    *,
    as_json: bool,
) -> None:
    from node.commands.init.command import free_port, swarm_name
    from node.commands.init.example_files import ADVICE, WITH_SMALL_MODEL, commands_of, files_of
    from node.runtime.atomic_files import require_absent, write_new

    files = files_of(
        example,
        directory,
        swarm=swarm_name(name, directory),
        port=port or free_port(directory),
        model=model,
    )
    require_absent(files, ADVICE)
    steps = commands_of(files[directory / "README.md"])

    def finish(about_model: str = "") -> None:
        write_new(files, ADVICE)
        if as_json:
            say(as_json_text({"files": list(files), "next": steps}))
            return
        wrote = f"Wrote {', '.join(path.name for path in files)} to {directory}. README.md says what it takes."
        say("\n".join([*([about_model] if about_model else []), wrote, "Next:", *(f"  {step}" for step in steps)]))

    if example != WITH_SMALL_MODEL or model is not None:
        finish()
        return
    from node.commands.init.small_model import make_small_model

    async def program() -> int:
        if not as_json:
            say("Making a small model, and teaching it a little (under a minute)...")
        finish(await make_small_model(directory))
        return 0

    run_program(program)


def learn(
    config: ConfigFile,
    plain: Plain = False,
    log_format: LogForm = "text",
    log_file: LogPath = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Fail instead of starting at step 0 if there is no checkpoint.")
    ] = False,
    fork_from: Annotated[
        str,
        typer.Option(
            metavar="SWARM[@STEP]", help="Start a new swarm from a checkpoint of another run: its swarm.toml or state."
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the whole configuration and what it takes, and try the model; start nothing."
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --dry-run: do not try the model, which loads it twice.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON, for programs.")] = False,
) -> None:
    """Run the learner of a swarm: judge what peers generate, train, and publish. Prints the invite for them.

    After a crash or Ctrl-C, the same command continues from the last durable checkpoint.
    """
    if quick and not dry_run:
        raise UsageError("--quick leaves the trial out of --dry-run, and a start always makes it. Add --dry-run.")
    if as_json and not dry_run:
        raise UsageError("--json is the form of --dry-run. Add that; a run writes state/events.jsonl.")
    if dry_run:
        from node.learner_role.dry_run import dry_run as look

        run_program(look, config, resume=resume, fork_from=fork_from, quick=quick, as_json=as_json)
    from node.learner_role.command import learn as program
    from node.ui.log_lines import LogFormat
    from node.ui.terminal import LogChoice

    _warn_of_clashes()
    log = LogChoice(form=LogFormat(log_format), file=log_file)
    run_program(program, config, plain=plain, resume=resume, fork_from=fork_from, log=log)


def join(
    invite: Annotated[
        list[str],
        typer.Argument(
            metavar="INVITE",
            help="The text that begins with volery1, from the swarm's operator, or a file that holds it.",
        ),
    ],
    config: NodeConfigFile = None,
    state: State = None,
    name: Annotated[str, typer.Option(callback=whole_text, help="Display name of this node in reports.")] = "",
    price: Annotated[
        float | None, typer.Option(min=0, help="Price per hour to ask for, in the swarm's currency.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time to try to reach the learner at first.")
    ] = 20.0,
    upload_mbit: Annotated[
        float | None, typer.Option(help="Maximum million bits per second to send; 8 are 1 MB/s.")
    ] = None,
    download_mbit: Annotated[
        float | None, typer.Option(help="Maximum million bits per second to receive; 8 are 1 MB/s.")
    ] = None,
    quota_gb: Annotated[
        float | None, typer.Option(help="Maximum GB of disk for versions of the model. Default: 64.")
    ] = None,
    hours: Annotated[
        str | None,
        typer.Option(metavar="RANGES", help='Generate only in these local hours: "19:00-07:30,12:00-13:00".'),
    ] = None,
    no_listen: Annotated[
        bool, typer.Option("--no-listen", help="Only connect to others; nobody can connect to this node.")
    ] = False,
    teacher: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Score completions with the model in this directory instead of generating."),
    ] = None,
    plain: Plain = False,
    log_format: LogForm = "text",
    log_file: LogPath = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show who the operator is, and what would run and be sent; do not join."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON, for programs.")] = False,
) -> None:
    """Lend this machine to a swarm: generate rollouts with its newest policy until you stop it (Ctrl-C)."""
    from node.rollout_role.command import Overrides
    from node.rollout_role.command import join as program
    from node.ui.log_lines import LogFormat
    from node.ui.terminal import LogChoice

    if as_json and not dry_run:
        raise UsageError("--json is the form of --dry-run. Add that; a node writes events.jsonl in its state.")
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
    typed = " ".join(invite)  # the invite may be pasted with what stood around it, and with broken lines
    look = {"dry_run": dry_run, "as_json": as_json, "log": LogChoice(form=LogFormat(log_format), file=log_file)}
    _warn_of_clashes()
    run_program(program, typed, overrides, config=config, state=state, wait_s=wait, plain=plain, **look)


def _warn_of_clashes() -> None:
    from node.installation.name_clashes import clash_sentence, find_clashes
    from node.runtime.stdout import complain

    if clashes := find_clashes():
        complain(f"volery: warning: {clash_sentence(clashes)}")


def doctor(
    invite: Annotated[
        list[str] | None,
        typer.Argument(metavar="INVITE", help="An invite, or a file that holds it. Default: check the machine alone."),
    ] = None,
    config: NodeConfigFile = None,
    state: State = None,
    as_json: Json = False,
) -> None:
    """Check how this machine is connected, how fast it is, what is missing, and whether it can take part.

    This takes 30 s at most, and does not join the swarm.
    """
    from node.commands.doctor.command import doctor as program

    run_program(program, " ".join(invite or []), config=config, state=state, as_json=as_json)


def engines(
    action: Annotated[
        Literal["install"] | None, typer.Argument(metavar="install", help="Build the environment of an engine.")
    ] = None,
    engine: Annotated[Literal["vllm"] | None, typer.Argument(metavar="vllm", help="The engine to install.")] = None,
    at: Annotated[
        Path | None, typer.Option("--at", metavar="DIR", help="Directory of the environment. Default: a usual place.")
    ] = None,
    build: Annotated[
        Literal["cpu", "cuda"] | None, typer.Option(help="What to build for. Default: what this machine has.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which engines work here, and why others do not. `volery engines install vllm` builds one's environment."""
    from node.config.node_config import EngineSection
    from node.engine import selection as engine_choice
    from node.engine import vllm_install as vllm_environment

    if action is None:
        here = engine_choice.look(EngineSection())
        say(as_json_text(engine_choice.as_values(here)) if as_json else engine_choice.table(here))
        return
    if engine is None:
        raise typer.BadParameter("name the engine: volery engines install vllm")
    tell = (lambda text: None) if as_json else say
    found = vllm_environment.install(at, build or ("cuda" if vllm_environment.has_gpu() else "cpu"), tell)
    if as_json:
        say(as_json_text({"installed": engine, "python": found.python}))
    else:
        say(f"vLLM is installed: {found.python}. `volery engines` shows whether a node uses it without being told.")


def verifier() -> None:
    """Compute rewards for a learner on another machine, over standard input and output.

    A learner starts it by `[[verifiers.machine]] command`.
    """
    import os
    import sys

    os.dup2(sys.stdout.fileno(), 1)  # `keep_outlet` has moved it
    # The seed of hashes is fixed, so that all verifiers compute the same, whatever shell has started this one.
    os.execve(sys.executable, [sys.executable, "-m", "node.verifiers.worker"], {**os.environ, "PYTHONHASHSEED": "0"})
