"""List, show and check tasks, and write a new one to start from."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.help.parser import group
from node.cli.options import Json, as_json_text, run_program, whole_text
from node.runtime.stdout import say

tasks = group("tasks", about="List the tasks that a swarm.toml can name, with their options.", alone=True)
new = group("new", about="Write a task or an environment of your own to start from.")

Spec = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        callback=whole_text,
        help='A task as [task] spec names it: "reverse:letters=6". Default: the tasks of the swarm.toml.',
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="SWARM",
        help="The swarm.toml with model, seed and limits, or its directory. Default: ./swarm.toml, if there is one.",
    ),
]
Model = Annotated[
    Path | None, typer.Option("--model", metavar="DIR", help="Directory of another model than the swarm.toml names.")
]


At = Annotated[Path | None, typer.Option("--at", metavar="DIR", help="Directory to write. Default: ./NAME.")]
NoModel = Annotated[
    bool, typer.Option("--no-model", help="Leave out the small model, which takes some seconds to make.")
]


@tasks.callback()
def list_(context: typer.Context, as_json: Json = False) -> None:
    """List the tasks that a swarm.toml can name, with their options; show or check one of them."""
    if context.invoked_subcommand is None:
        from node.tasks.registry import list_tasks, tasks_as_values

        say(as_json_text(tasks_as_values()) if as_json else list_tasks())


@tasks.command()
def show(
    spec: Spec = "",
    config: Config = None,
    model: Model = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Number of training problems to show.")] = 3,
    as_json: Json = False,
) -> None:
    """Print the first prompts of a task as the model gets them, token by token, and the rewards of its answers."""
    from node.commands.tasks.command import show as shown

    printed = shown(spec, config=config, model=model, count=count, as_json_text=as_json)
    say(printed.text)
    raise typer.Exit(printed.code)


@tasks.command()
def check(
    spec: Spec = "",
    config: Config = None,
    model: Model = None,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Number of training problems to try.")] = 32,
    max_problem_s: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Fail if making a problem takes longer.")
    ] = None,
    max_reward_s: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Fail if computing a reward takes longer.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check whether a task keeps its promises, by the same rules as `volery.testing`."""
    from node.commands.tasks.command import check as checked

    answer = checked(
        spec,
        config=config,
        model=model,
        count=count,
        max_problem_s=max_problem_s,
        max_reward_s=max_reward_s,
        as_json_text=as_json,
    )
    say(answer.text)
    raise typer.Exit(answer.code)


@new.command("task")
def new_task(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=whole_text, help="Name of the task: my-task.")],
    at: At = None,
    no_model: NoModel = False,
    as_json: Json = False,
) -> None:
    """Write a task of your own to start from: a package with a test, and a run with a small model."""
    _new("task", name, at, no_model=no_model, as_json=as_json)


@new.command("environment")
def new_environment(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=whole_text, help="Name of the environment: my-game.")],
    at: At = None,
    no_model: NoModel = False,
    as_json: Json = False,
) -> None:
    """Write an environment of your own to start from: a task of several turns whose episodes have a state."""
    _new("environment", name, at, no_model=no_model, as_json=as_json)


def _new(what: Literal["task", "environment"], name: str, at: Path | None, *, no_model: bool, as_json: bool) -> None:
    from node.commands.new.command import make_small_model, next_steps, write_task

    directory = at if at is not None else Path(name)
    files = write_task(name, directory, what)
    steps = next_steps(shlex.quote(str(directory)))
    if as_json:
        say(as_json_text({"directory": directory, "files": files, "model": not no_model, "next": steps.splitlines()}))
    else:
        say(f"Wrote {', '.join(one.name for one in files)} to {directory}.")
    if no_model:
        if not as_json:
            say(f"Set [model] directory in {directory / 'swarm.toml'}, then:\n{steps}")
        return
    if not as_json:
        say("Making a small model to try it with (some seconds)...")
    run_program(make_small_model, directory, "" if as_json else steps)
