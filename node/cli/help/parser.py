"""Lay out the help of commands and groups, which typer parses.

A page shows each option with a placeholder for its value, with bounds in words and its default, and the exit codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from node.cli.help.catalogue import EXITS, command_named
from node.cli.help.page import Page, Panel, has_colours, lay_out, terminal_width

PLACEHOLDERS = {int: "N", float: "X", str: "TEXT"}
"""What stands for a value in the help, where the option names nothing better."""

PATH = "PATH"

_EXITS_OF: Mapping[str, Mapping[int, str]] = {
    "receipts verify": {0: "Everything in the file holds.", 1: "Something in the file is wrong; the lines say what."},
    "reputation verify": {0: "Everything in the file holds.", 1: "Something in the file is wrong; the lines say what."},
    "service status": {0: "All services run.", 1: "One does not run, none is installed, or something failed."},
    "tasks check": {0: "The task keeps its promises.", 1: "It breaks one, or something failed."},
}
"""Exit codes of commands in groups that differ from EXITS."""


_NUMBERS: Mapping[str, str] = {
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "finite_number": "a finite number",
}
"""What was expected, by pydantic's kind of error."""


def reason_of(error: typer.BadParameter) -> str:
    """Return in our words why an argument or an option cannot be used, and what it means."""
    meaning = getattr(error.param, "help", None) or ""
    if not error.message:  # it is missing
        return str(meaning)
    problems_of = getattr(error.__cause__, "errors", list)
    problems: list[Any] = problems_of()
    if not problems or (expected := _NUMBERS.get(problems[0]["type"])) is None:
        return error.message
    said = f"{problems[0]['input']!r} is not {expected}. Write digits alone, without a unit."
    return f"{said} {meaning}".rstrip()


class HelpedCommand(TyperCommand):
    """A command whose help page is ours, and which explains in our words what was typed wrong."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = reason_of(error)
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _usage_pieces(self.get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        parameters = self.get_params(ctx)
        panels = [
            Panel("Arguments", [row_of(one) for one in parameters if isinstance(one, TyperArgument)]),
            Panel("Options", [row_of(one) for one in parameters if isinstance(one, TyperOption) and not one.hidden]),
        ]
        formatter.write(_page_of(self, ctx, panels))


class HelpedGroup(TyperGroup):
    """Commands under one name, whose help page is ours."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", "[COMMAND]..." if self.invoke_without_command else "COMMAND [ARGS]..."]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        commands = [self.commands[name] for name in self.list_commands(ctx)]
        rows = [(str(one.name), one.get_short_help_str(1000)) for one in commands if not one.hidden]
        options = [row_of(one) for one in self.get_params(ctx) if isinstance(one, TyperOption)]
        panels = [Panel("Commands", rows), Panel("Options", options)]
        formatter.write(_page_of(self, ctx, panels))


def group(name: str, *, about: str, alone: bool = False) -> typer.Typer:
    """Return a group of commands. `alone`: it does something without one of them as well."""
    return App(
        name=name,
        cls=HelpedGroup,
        help=about,
        invoke_without_command=alone,
        no_args_is_help=not alone,
        add_completion=False,
    )


class App(typer.Typer):
    """Commands whose help pages are ours."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, rich_markup_mode=None, pretty_exceptions_enable=False)

    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, **{"cls": HelpedCommand, **settings})


def _page_of(command: Any, ctx: Any, panels: Sequence[Panel]) -> str:
    """Return the page of a command or a group: its panels, and then its exit codes."""
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    filled = [panel for panel in [*panels, Panel("Exit codes", _exits(ctx))] if panel.rows]
    return lay_out(Page(usage, _paragraphs(command.help), filled), terminal_width(), colours=has_colours())


def _usage_pieces(parameters: Iterable[Any]) -> list[str]:
    arguments = [one for one in parameters if isinstance(one, TyperArgument)]
    return ["[OPTIONS]", *(_in_usage(one) for one in arguments)]


def _in_usage(argument: TyperArgument) -> str:
    name = _placeholder(argument)
    return (name if argument.required else f"[{name}]") + ("..." if argument.nargs != 1 else "")


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(part.split()) for part in (text or "").split("\n\n")]


def exits_of(words: Sequence[str]) -> dict[int, str]:
    """Return what the exit codes of a command mean; those of a group are the group's."""
    command = command_named(words[0]) if words else None
    return {**EXITS, **(command.exits if command else {}), **_EXITS_OF.get(" ".join(words), {})}


def usage_of(words: Sequence[str], command: Any) -> str:
    """Return how a command is typed, without the program's name."""
    return " ".join([*words, *_usage_pieces(command.params)])


def _exits(ctx: Any) -> list[tuple[str, str]]:
    return [(str(code), meaning) for code, meaning in sorted(exits_of(ctx.command_path.split()[1:]).items())]


def row_of(parameter: Any) -> tuple[str, str]:
    """Return what is typed for an argument or an option, and what it does with its bounds and its default."""
    does = parameter.help or ""
    if isinstance(parameter, TyperArgument):
        typed = _placeholder(parameter)
        notes = [_bounds(parameter)]
    else:
        names = sorted([*parameter.opts, *parameter.secondary_opts], key=lambda name: name.startswith("--"))
        typed = ", ".join(names) + ("" if parameter.is_flag else f" {_placeholder(parameter)}")
        notes = [_bounds(parameter), _default(parameter), "required" if parameter.required else ""]
        if "--help" in names:
            does = "Show this page."
    if told := "; ".join(note for note in notes if note):
        does = f"{does.removesuffix('.')} ({told})."
    return typed, does


def _placeholder(parameter: Any) -> str:
    if parameter.metavar is not None:
        return str(parameter.metavar).strip("[]")
    kind = parameter.type_descriptor
    if kind.is_choice:
        return "|".join(str(getattr(one, "value", one)) for one in kind.choices or ())
    if isinstance(parameter, TyperArgument):
        return str(parameter.name).upper().replace("_", "-")
    return PLACEHOLDERS.get(kind.annotation, PATH)


def _bounds(parameter: Any) -> str:
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if low is not None and high is not None:
        return f"from {low:,} to {high:,}"
    if low is not None:
        return f"at least {low:,}"
    return "" if high is None else f"at most {high:,}"


def _default(parameter: Any) -> str:
    value = parameter.default
    if parameter.is_flag or value in (None, "", (), []) or callable(value):
        return ""
    return f"default: {value:g}" if isinstance(value, float) else f"default: {getattr(value, 'value', value)}"
