"""The command that teaches a model by example before reinforcement learning begins."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, run_program, whole_text


def warmup(
    config: Annotated[Path, typer.Argument(metavar="SWARM.TOML", help="The swarm.toml of the run that is to begin.")],
    out: Annotated[Path, typer.Argument(help="Where to write the model; must not exist.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="A file of examples (.jsonl, .parquet, .csv) or a saved data set, instead of the task's own answers."
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(
            callback=whole_text, metavar="LOW..HIGH", help="Stop when the score on held-out prompts is in this band."
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            callback=whole_text, help="The score: format (the default), accuracy, or the name of a reward of the task."
        ),
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the examples, at most where there is a band.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps instead of passes, at most where there is a band.")
    ] = None,
    lora: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Teach an adapter of this rank, merged at the end.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="The highest rate of AdamW; 2e-5 by default, 2e-4 for an adapter.")
    ] = None,
    decay: Annotated[
        Literal["linear", "cosine", "none"], typer.Option(help="How the rate falls over all of the steps.")
    ] = "linear",
    warmup_steps: Annotated[
        int | None, typer.Option(min=0, help="Steps over which the rate rises; 3 % of them by default.")
    ] = None,
    weight_decay: Annotated[float, typer.Option(help="The weight decay of AdamW, on all weights alike.")] = 0.0,
    grad_clip: Annotated[float, typer.Option(help="The norm at which a step's gradient is clipped.")] = 1.0,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens that one step learns from, at most.")] = 8192,
    batch_examples: Annotated[int, typer.Option(min=1, help="Examples that one step learns from, at most.")] = 64,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Leave longer examples out; by default those beyond the model's context.")
    ] = None,
    check_every: Annotated[
        int | None, typer.Option(min=1, help="Steps between two looks at the score; by default a tenth, at most 50.")
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=NAME", help="Where a field of --data stands, as in prompt=question."),
    ] = None,
    split: Annotated[str, typer.Option(callback=whole_text, help="The split of a saved data set to read.")] = "",
    chat: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(help="The chat template for prompts of --data that are text: auto takes it if there is one."),
    ] = "auto",
    anew: Annotated[bool, typer.Option("--anew", help="Begin again where an earlier call was stopped.")] = False,
    as_json: Json = False,
) -> None:
    """Teach a model by example until it answers in the right form, before reinforcement learning begins.

    Starting it again after a crash or Ctrl-C goes on from its last checkpoint.
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
