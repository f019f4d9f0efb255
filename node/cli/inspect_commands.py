"""Show what a learner or a node holds: invite, identity, status, report, why, samples, export."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from node.cli.options import Json, OfLearner, State, Swarm, as_json_text, config_file, whole_text
from node.runtime.stdout import say, say_drawn

MAX_EXPIRES_H = 24 * 366 * 100
"""A hundred years. An invite that lasts longer may as well not expire."""

LEAST_EVERY_S, MOST_EVERY_S = 1, 86400
"""Seconds between two pages. Times of files, by which browsers see that a page is newer, are told in whole seconds."""

Version = Annotated[
    str, typer.Option(metavar="VERSION", help="A version: INCARNATION.VERSION, or VERSION alone. Default: the newest.")
]


def invite(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="SWARM",
            callback=config_file,
            help="The swarm.toml of a swarm that was started before, or the directory that holds it.",
        ),
    ],
    announce: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Address to name instead of the learner's own; repeatable."),
    ] = None,
    expires: Annotated[
        float, typer.Option(min=0, max=MAX_EXPIRES_H, metavar="HOURS", help="Hours until it expires; 0: never.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Print the invite to a swarm that `volery learn` has started."""
    from node.network.invites import show_invite

    text = show_invite(config, announce=announce or [], expires_h=expires)
    say(as_json_text({"invite": text}) if as_json else text)


def identity(state: State = None, as_json: Json = False) -> None:
    """Print the peer ids whose keys are on this machine, with their state directories."""
    from node.cli.status import identities, identities_text

    found = identities(state)
    say(as_json_text([one._asdict() for one in found]) if as_json else identities_text(found))


def status(
    target: Swarm = None,
    as_json: Json = False,
) -> None:
    """Show in a few lines how a learner or a node on this machine is doing."""
    from node.cli.status import show_status

    say(show_status(target, as_json=as_json))


def report(
    target: Swarm = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a row for each peer.")] = False,
    by: Annotated[
        Literal["run", "day", "version"] | None,
        typer.Option("--by", help="With --csv: print costs instead, with a row for each of these."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also draw a learner's run to this file.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Also write the report as a page for a browser.")
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            min=LEAST_EVERY_S,
            max=MOST_EVERY_S,
            metavar="SECONDS",
            help="With --html: go on, and write the page again when the run has changed, until the run ends.",
        ),
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="List every peer and every ban.")] = False,
) -> None:
    """Show who did what, and at what cost: the whole swarm on a learner, or the work of one node."""
    from node.cli.report import keep_page, show_report

    if every is not None:
        if html is None:
            raise typer.BadParameter("--every writes a page again and again. Name its file with --html FILE.html")
        if as_json or as_csv or picture is not None or everyone:
            raise typer.BadParameter("--every writes a page and prints nothing. Leave out all options but --html")
        keep_page(target, html, every)
        return
    if as_json and as_csv:
        raise typer.BadParameter("choose --json or --csv, not both")
    if by is not None and not as_csv:
        raise typer.BadParameter("--by chooses the rows of --csv. Add --csv; the other forms show all costs")
    told = show_report(target, as_json=as_json, as_csv=as_csv, by=by, picture=picture, html=html, everyone=everyone)
    say_drawn(told)


def why(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            callback=whole_text,
            help="A peer's id, the end of its id, or its name; the beginning of a lease's or record's id; LEASE/INDEX.",
        ),
    ],
    target: Swarm = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Repeat the audit test of a peer, or regenerate the tokens of a lease that failed its audit.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Explain why a record, a lease or a peer was judged as it was: the rule, what was measured, and what to do."""
    from node.cli.report import show_why

    answer = show_why(name, target, replay=replay)
    say(as_json_text({"name": name, "agrees": answer.agrees, "text": answer.text}) if as_json else answer.text)
    raise typer.Exit(0 if answer.agrees else 1)


def samples(
    target: OfLearner = None,
    version: Version = "",
    group: Annotated[int, typer.Option(min=0, help="Show only this group of those that are kept, from 1.")] = 0,
    best: Annotated[int, typer.Option(min=0, help="Show only N completions with the highest reward.")] = 0,
    worst: Annotated[int, typer.Option(min=0, help="Show only N completions with the lowest reward.")] = 0,
    as_json: Json = False,
) -> None:
    """Show completions that a policy version was trained on, with prompts, rewards and advantages."""
    from node.commands.samples.command import show

    say_drawn(show(target, version=version, group=group, best=best, worst=worst, json=as_json))


def export(
    source: Annotated[
        Path, typer.Argument(metavar="SWARM", help="A swarm's directory, its swarm.toml, or a state directory.")
    ],
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write; it must not exist yet.")],
    version: Annotated[
        str,
        typer.Option(
            metavar="VERSION",
            help="INCARNATION.VERSION, or VERSION alone, or best: the best kept version by evaluation. Default: the "
            "newest.",
        ),
    ] = "",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write a LoRA adapter alone, for peft, instead of merging it.")
    ] = False,
    push: Annotated[
        str,
        typer.Option(
            metavar="REPOSITORY", help="Also push to ORG/NAME on the hub, or to a directory: ./NAME, file:///PATH."
        ),
    ] = "",
    private: Annotated[bool, typer.Option("--private", help="With --push: make the new repository private.")] = False,
    licence: Annotated[
        str,
        typer.Option(
            "--license", metavar="NAME", help="License, by the hub's name: apache-2.0. Default: the base model's."
        ),
    ] = "",
    base_model: Annotated[
        str, typer.Option(metavar="ORG/NAME", help="Hub name of the model that the run began with: Qwen/Qwen3-0.6B.")
    ] = "",
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE.gguf", help="Also write the model as one file for llama.cpp.")
    ] = None,
    gguf_type: Annotated[
        Literal["f32", "f16", "bf16", "q8_0"] | None,
        typer.Option(help="Number format of the matrices in --gguf. Default: as in the model."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one policy version as a model directory that transformers loads, with a model card; push it to a hub."""
    from node.commands.export.command import Wishes, export_version

    if private and not push:
        raise typer.BadParameter("--private needs --push with the name of a repository")
    if gguf_type and gguf is None:
        raise typer.BadParameter("--gguf-type needs --gguf with the name of a file")
    wishes = Wishes(
        adapter=adapter, licence=licence, base_model=base_model, push=push, private=private, gguf=gguf,
        gguf_type=gguf_type,
    )  # fmt: skip
    done = export_version(source, directory, version, wishes, ask=_ask_licence)
    say(as_json_text({"directory": directory, "done": done.splitlines()}) if as_json else done)


def _ask_licence() -> str:
    """Ask for the license at the terminal; return "" where there is none."""
    from node.commands.export.base_model import read_licence

    if not sys.stdin.isatty():
        return ""
    return read_licence(typer.prompt("License of the published model, by the hub's name (apache-2.0)", err=True))
