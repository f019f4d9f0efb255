"""Commands that look and print: invite, identity, status, report, why, samples, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, State, whole_text
from node.runtime.stdout import say, say_drawn

MAX_EXPIRES_H = 24 * 366 * 100
"""A hundred years: beyond that an invite may as well never expire."""


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
    from node.network.invites import show_invite

    say(show_invite(config, announce=announce or [], expires_h=expires))


def identity(state: State = None) -> None:
    """Print the peer ids whose keys lie on this machine, and where."""
    from node.cli.status import identities

    for line in identities(state):
        say(line)


def status(
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a node's state directory.")] = None,
    as_json: Json = False,
) -> None:
    """Say in a few lines how a learner or a node on this machine is doing."""
    from node.cli.status import show_status

    say(show_status(target, as_json=as_json))


def report(
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a node's state directory.")] = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, a row per peer.")] = False,
    by: Annotated[
        Literal["run", "day", "version"] | None,
        typer.Option("--by", help="With --csv: costs, a row for each of these."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw a learner's run to this PNG file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Also write it as a page for a browser, to this HTML file.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="List every peer and every ban.")] = False,
) -> None:
    """Who did what, at what cost: the whole swarm on the learner, one's own work on a volunteer's node."""
    from node.cli.report import show_report

    if as_json and as_csv:
        raise typer.BadParameter("choose --json or --csv, not both")
    if by is not None and not as_csv:
        raise typer.BadParameter("--by chooses the rows of --csv; the other forms have all of them")
    told = show_report(target, as_json=as_json, as_csv=as_csv, by=by, picture=picture, html=html, everyone=everyone)
    say_drawn(told)


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
            help="Repeat a peer's audit test, or regenerate the tokens of a lease that failed. Exit code 1: the result "
            "differs. 2: the version is no longer stored.",
        ),
    ] = False,
) -> None:
    """Why something was not counted: what was decided, by which rule, what was measured, and what to do about it."""
    from node.cli.report import show_why

    answer = show_why(name, target, replay=replay)
    say(answer.text)
    raise typer.Exit(0 if answer.agrees else 1)


def samples(
    target: Annotated[Path | None, typer.Argument(help="A swarm.toml, or a learner's state directory.")] = None,
    version: Annotated[str, typer.Option(help="INCARNATION.VERSION or VERSION; the newest by default.")] = "",
    group: Annotated[int, typer.Option(min=0, help="Only this group of those kept, from 1.")] = 0,
    best: Annotated[int, typer.Option(min=0, help="Only so many completions of the highest reward ...")] = 0,
    worst: Annotated[int, typer.Option(min=0, help="... and so many of the lowest.")] = 0,
    as_json: Json = False,
) -> None:
    """Print samples of what a policy version was trained on: prompts, completions, rewards and advantages."""
    from node.commands.samples.command import show

    say_drawn(show(target, version=version, group=group, best=best, worst=worst, json=as_json))


def export(
    source: Annotated[Path, typer.Argument(help="A swarm.toml, or a node's state directory.")],
    directory: Annotated[Path, typer.Argument(help="Where to write the model; must not exist.")],
    version: Annotated[
        str,
        typer.Option(
            help="INCARNATION.VERSION or VERSION, or `best`: the best by evaluation that is kept. Default: the newest."
        ),
    ] = "",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write a LoRA adapter alone, for peft, instead of merging it.")
    ] = False,
    push: Annotated[
        str, typer.Option(help="Also push it to ORG/NAME on the hub, or to a directory: ./NAME, file:///PATH.")
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="With --push: the new repository is private.")] = False,
    licence: Annotated[
        str, typer.Option("--license", help="The hub's name of its licence, as apache-2.0. Default: the base model's.")
    ] = "",
    base_model: Annotated[
        str, typer.Option(help="What the hub calls the model that the run began with, as Qwen/Qwen3-0.6B.")
    ] = "",
    gguf: Annotated[Path | None, typer.Option(help="Also write one file for llama.cpp: NAME.gguf.")] = None,
    gguf_type: Annotated[
        Literal["f32", "f16", "bf16", "q8_0"] | None,
        typer.Option(help="How --gguf stores matrices. Default: as the model has them."),
    ] = None,
) -> None:
    """Write one policy version as a model directory that transformers loads, with a model card, and push it."""
    from node.commands.export.command import Wishes, export_version

    if private and not push:
        raise typer.BadParameter("--private says how --push publishes; name a repository after --push")
    if gguf_type and gguf is None:
        raise typer.BadParameter("--gguf-type says how --gguf stores matrices; name a file after --gguf")
    wishes = Wishes(
        adapter=adapter, licence=licence, base_model=base_model, push=push, private=private, gguf=gguf,
        gguf_type=gguf_type,
    )  # fmt: skip
    say(export_version(source, directory, version, wishes, ask=_ask_licence))


def _ask_licence() -> str:
    """The licence that somebody at the terminal names; "" where nobody is there."""
    from node.commands.export.base_model import read_licence

    if not sys.stdin.isatty():
        return ""
    return read_licence(typer.prompt("License of the published model, as the hub calls it (apache-2.0)", err=True))
