"""Teach a model by example, before reinforcement learning begins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import ConfigFile, Json, run_program, whole_text


def warmup(
    config: ConfigFile,
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write the model to; it must not exist yet.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Examples (.jsonl, .parquet, .csv, or a saved data set) instead of the task's own answers.",
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            callback=whole_text,
            metavar="LOW..HIGH",
            help="Stop when the score on held-out prompts is within these bounds.",
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            metavar="SCORE",
            callback=whole_text,
            help="Score for --until: format (default), accuracy, or the name of a reward of the task.",
        ),
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the examples; with --until the maximum.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps instead of passes; with --until the maximum.")
    ] = None,
    lora: Annotated[
        int | None,
        typer.Option(min=1, max=4096, metavar="RANK", help="Train an adapter of this rank, and merge it at the end."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate of AdamW. Default: 2e-5, or 2e-4 with --lora; 1e-3 below 100 million parameters."
        ),
    ] = None,
    decay: Annotated[
        Literal["linear", "cosine", "none"], typer.Option(help="How the learning rate falls over the steps.")
    ] = "linear",
    warmup_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps over which the learning rate rises. Default: 3 % of all steps.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of AdamW, for all weights.")] = 0.0,
    grad_clip: Annotated[float, typer.Option(help="Norm at which a step's gradient is clipped.")] = 1.0,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of one training step.")] = 8192,
    batch_examples: Annotated[int, typer.Option(min=1, help="Maximum examples of one training step.")] = 64,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Leave longer examples out. Default: the length of the model's context.")
    ] = None,
    check_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between two evaluations. Default: a tenth of all, at most 50.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=NAME", help="Name of a field in --data, for example prompt=question; repeatable."),
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="NAME", callback=whole_text, help="Split of a saved data set to read.")
    ] = "",
    chat: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(help="Chat template for text prompts in --data; auto: use it if the model has one."),
    ] = "auto",
    anew: Annotated[
        bool, typer.Option("--anew", help="Discard the checkpoint of an earlier call that was stopped.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Teach a model by example until it answers in the right form, before reinforcement learning begins.

    After a crash or Ctrl-C, the same command continues from its last checkpoint.
    """
    from node.commands.warmup.command import warmup as program
    from node.commands.warmup.options import Wanted
    from node.tasks.api.interface import Chat

    wanted = Wanted(
        config=config,
        out=out,
        data=data,
        split=split,
        fields=tuple(field or ()),
        chat=Chat(chat),
        until=until,
        by=by,
        epochs=epochs or 0,
        steps=steps or 0,
        lora=lora or 0,
        learning_rate=learning_rate,
        decay=decay,
        rise=warmup_steps,
        weight_decay=weight_decay,
        grad_clip=grad_clip,
        batch_tokens=batch_tokens,
        batch_examples=batch_examples,
        max_tokens=max_tokens or 0,
        check_every=check_every or 0,
        anew=anew,
    )
    run_program(program, wanted, as_json=as_json)
