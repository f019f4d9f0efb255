"""Lay out the help of the program itself: what to type first, and every command in its panel."""

from __future__ import annotations

from node.cli.help.catalogue import COMMANDS, PANELS
from node.cli.help.page import Page, Panel, has_colours, lay_out, terminal_width

ABOUT = "Reinforcement learning of language models over a peer-to-peer swarm."

OPTIONS = (
    ("-h, --help", "Show this page; after a command, the page of that command."),
    ("-V, --version", "Print the version."),
    ("--install-completion", "Install completion of commands for the current shell."),
    ("--show-completion", "Show that completion, to copy or change it."),
)
"""Of the program itself, as its help has them."""

MOST_LEFT = 14
"""Columns of what is typed: those of the longest of FIRST_STEPS, so that most summaries fit one line."""

FIRST_STEPS = (
    ("See it work", "volery demo"),
    ("Lend a machine", "volery doctor INVITE, then volery join INVITE"),
    ("Start a swarm", "volery init my-swarm --model MODEL, then volery learn my-swarm"),
    ("Add a task", "volery new task my-task"),
)


def root_help() -> str:
    """Return the help of the program itself."""
    panels = [Panel(panel, [(one.name, one.summary) for one in COMMANDS if one.panel == panel]) for panel in PANELS]
    page = Page(
        "volery [OPTIONS] COMMAND [ARGS]...",
        [ABOUT],
        [Panel("First steps", FIRST_STEPS), *panels, Panel("Options", OPTIONS)],
    )
    return lay_out(page, terminal_width(), colours=has_colours(), most_left=MOST_LEFT)
