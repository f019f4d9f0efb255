"""Commands for who brings a task: tasks (a group; alone it lists), new (a group)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, run_program, whole_text
from node.runtime.stdout import say

tasks = typer.Typer(
    name="tasks",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    help="List the tasks that a swarm.toml may name, with their options; or look at one, or check it.",
)
new = typer.Typer(
    name="new",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write something to start from: a task or an environment of your own.",
)

Spec = Annotated[
    str,
    typer.Argument(
        callback=whole_text,
        help='As the spec in a swarm.toml, for example "reverse:letters=6"; by default those of the swarm.toml.',
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", help="The swarm.toml of the run, for model, seed and limits; by default that here, if any."
    ),
]
Model = Annotated[
    Path | None, typer.Option("--model", help="Directory of the model, if it is another than in the swarm.toml.")
]


@tasks.callback()
def list_(context: typer.Context) -> None:
    """List the tasks that a swarm.toml may name, with their options; or look at one, or check it."""
    if context.invoked_subcommand is None:
        from node.tasks.registry import list_tasks

        say(list_tasks())


@tasks.command()
def show(
    spec: Spec = "",
    config: Config = None,
    model: Model = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Show so many training problems.")] = 3,
    as_json: Json = False,
) -> None:
    """Print a task's first prompts as the model gets them, token by token, and what its answers are worth."""
    from node.commands.tasks.command import show as shown

    say(shown(spec, config=config, model=model, count=count, as_json_text=as_json))


@tasks.command()
def check(
    spec: Spec = "",
    config: Config = None,
    model: Model = None,
    count: Annotated[int, typer.Option(min=1, max=100_000, help="Ask so many training problems.")] = 32,
    max_problem_s: Annotated[
        float | None, typer.Option(min=0, help="Fail where a problem takes longer than so many seconds.")
    ] = None,
    max_reward_s: Annotated[
        float | None, typer.Option(min=0, help="Fail where a reward takes longer than so many seconds.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Try out whether a task keeps its promises, as `volery.testing` does; exit code 1 where it breaks one."""
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
    name: Annotated[str, typer.Argument(callback=whole_text, help="The task's name, for example my-task.")],
    at: Annotated[Path | None, typer.Option("--at", help="Where to write it; by default ./NAME.")] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Leave out the small model, which takes some seconds to make.")
    ] = False,
) -> None:
    """Write a task of your own to start from: a package with a test, and a run with a small model."""
    _new("task", name, at, no_model=no_model)


@new.command("environment")
def new_environment(
    name: Annotated[str, typer.Argument(callback=whole_text, help="The environment's name, for example my-game.")],
    at: Annotated[Path | None, typer.Option("--at", help="Where to write it; by default ./NAME.")] = None,
    no_model: Annotated[
        bool, typer.Option("--no-model", help="Leave out the small model, which takes some seconds to make.")
    ] = False,
) -> None:
    """Write an environment of your own to start from: a task of several turns whose episodes have a state."""
    _new("environment", name, at, no_model=no_model)


def _new(what: Literal["task", "environment"], name: str, at: Path | None, *, no_model: bool) -> None:
    from node.commands.new.command import make_small_model, next_steps, write_task

    directory = at if at is not None else Path(name)
    files = write_task(name, directory, what)
    say(f"Wrote {', '.join(one.name for one in files)} to {directory}.")
    steps = next_steps(shlex.quote(str(directory)))
    if no_model:
        say(f"Set [model] directory in {directory / 'swarm.toml'}, then:\n{steps}")
        return
    say("Making a small model to try it with (some seconds)...")
    run_program(make_small_model, directory, steps)
