"""Serve a trained model to programs, and chat with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import run_program, whole_text
from node.runtime.errors import UsageError

Target = Annotated[
    Path | None,
    typer.Argument(
        metavar="SWARM",
        help="A model directory, a swarm's directory, its swarm.toml, or a state directory. Default: ./swarm.toml, or "
        "the only node on this machine.",
    ),
]
Version = Annotated[
    str,
    typer.Option(
        metavar="VERSION",
        callback=whole_text,
        help="INCARNATION.VERSION, or VERSION alone. Default: the newest, and each newer one when it comes.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A node.toml; its [engine] and [limits] apply to the model."),
]
Device = Annotated[
    str, typer.Option(metavar="DEVICE", callback=whole_text, help='Device: "auto", "cpu", "cuda", "cuda:1", "mps".')
]


def serve(
    target: Target = None,
    version: Version = "",
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            callback=whole_text,
            help="Address to listen on. One that other machines can reach needs a key.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port to listen on; 0: any free one.")] = 8000,
    key: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            callback=whole_text,
            envvar="VOLERY_SERVE_KEY",
            help="Key that requests must carry; also read from VOLERY_SERVE_KEY.",
        ),
    ] = "",
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", metavar="FILE", help="Read the key from a file, since `ps` shows what is typed."),
    ] = None,
    name: Annotated[
        str, typer.Option(callback=whole_text, help="Name of the model in requests. Default: the swarm's name.")
    ] = "",
    config: Config = None,
    device: Device = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be served; start nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON, for programs.")] = False,
) -> None:
    """Serve a version to programs that speak OpenAI's API: chat completions, streaming, tools."""
    from node.commands.serve.command import Where
    from node.commands.serve.command import serve as program

    if as_json and not dry_run:
        raise UsageError("--json is the form of --dry-run. Add that.")
    where = Where(host=host, port=port, key=key, key_file=key_file)
    look = {"dry_run": dry_run, "as_json": as_json}
    run_program(program, target, version=version, config=config, device=device, name=name, where=where, **look)


def chat(
    target: Target = None,
    version: Version = "",
    system: Annotated[str, typer.Option(callback=whole_text, help="System message of the conversation.")] = "",
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="Sampling temperature; 0: always the likeliest token.")
    ] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=0, max=32_768, help="Maximum tokens of one answer; 0: 2,048, if the context has room.")
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Seed that makes answers repeatable. Default: a new one for each answer.")
    ] = None,
    config: Config = None,
    device: Device = "",
) -> None:
    """Talk to a version in the terminal, or through a pipe, where each line gets an answer."""
    from node.commands.chat.command import Manner
    from node.commands.chat.command import chat as program

    manner = Manner(system=system, temperature=temperature, max_tokens=max_tokens, seed=seed)
    run_program(program, target, version=version, config=config, device=device, manner=manner)
