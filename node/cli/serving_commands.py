"""Commands that put a trained model to use: serve and chat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import run_program, whole_text

Target = Annotated[
    Path | None,
    typer.Argument(help="A model directory, a swarm.toml, or the state directory of a learner or a node."),
]
Version = Annotated[
    str,
    typer.Option(callback=whole_text, help="INCARNATION.VERSION or VERSION; by default the newest, and newer ones."),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="A node.toml whose [engine] and [limits] say what runs the model.")
]
Device = Annotated[
    str, typer.Option(callback=whole_text, help='Where it runs: "auto", "cpu", "cuda", "cuda:1", "mps".')
]


def serve(
    target: Target = None,
    version: Version = "",
    host: Annotated[
        str, typer.Option(callback=whole_text, help="Address to listen at; others than this machine need a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port to listen on; 0 takes a free one.")] = 8000,
    key: Annotated[
        str,
        typer.Option(callback=whole_text, envvar="VOLERY_SERVE_KEY", help="Key that requests must give."),
    ] = "",
    key_file: Annotated[
        Path | None, typer.Option("--key-file", help="The same, in a file: `ps` shows what is typed.")
    ] = None,
    name: Annotated[str, typer.Option(callback=whole_text, help="What requests call the model.")] = "",
    config: Config = None,
    device: Device = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be served; start nothing.")] = False,
) -> None:
    """Serve a version to programs that speak OpenAI's API: chat completions, streaming, tools."""
    from node.commands.serve.command import Where
    from node.commands.serve.command import serve as program

    where = Where(host=host, port=port, key=key, key_file=key_file)
    run_program(program, target, version=version, config=config, device=device, name=name, where=where, dry_run=dry_run)


def chat(
    target: Target = None,
    version: Version = "",
    system: Annotated[str, typer.Option(callback=whole_text, help="System message to begin with.")] = "",
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="How freely it answers; 0 takes the likeliest token each time.")
    ] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(min=0, max=32_768, help="Tokens of one answer at most; 0: 2,048, if there is room.")
    ] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Makes answers repeatable; by default each one is another.")
    ] = None,
    config: Config = None,
    device: Device = "",
) -> None:
    """Speak with a version in the terminal. A pipe works as well: each line is answered."""
    from node.commands.chat.command import Manner
    from node.commands.chat.command import chat as program

    manner = Manner(system=system, temperature=temperature, max_tokens=max_tokens, seed=seed)
    run_program(program, target, version=version, config=config, device=device, manner=manner)
