"""Run `volery plan`: read the inputs, plan, and format the answer. The command line prints it.

Invariants:

- Nothing is written here, and nothing is requested over the network.

A pool of 200 machines takes a second or two, and a hard one of a thousand about ten seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from node.commands.plan.inputs import terms_of
from node.commands.plan.json_export import as_json
from node.commands.plan.measured_run import read_run
from node.commands.plan.plan import Plan, make_plan
from node.commands.plan.pool import read_pool
from node.commands.plan.pool_keys import OPTIONS, judged_options
from node.commands.plan.text import as_terminal, as_text
from node.runtime.errors import UsageError
from node.runtime.stdout import is_screen, screen_width

NARROWEST = 40
"""Fewest columns of a terminal that the text is fitted to: narrower ones break words."""


def answer(path: Path | None, source: Path | None, options: Mapping[str, Any], *, with_echo2: bool = False) -> Plan:
    """Return the plan for the pool in `path`, or for the pool of the run at `source`. Raises UsageError.

    Args:
        options: settings from the command line; None means not given.
        with_echo2: also apply ECHO-2's rule.
    """
    command = judged_options(OPTIONS, options)
    fitted = read_run(source) if source is not None else None
    pool = read_pool(path) if path is not None else fitted.pool_under(command) if fitted is not None else None
    if pool is None:
        if fitted is not None:
            raise UsageError(
                f"{fitted.measured.source}: no peer that was present at a training step has shown its rate. Name a "
                "pool in addition to --from."
            )
        raise UsageError("There is no pool. Name a .toml or .csv of machines, or --from with a recorded run.")
    plan = make_plan(terms_of(pool, command, fitted.settings if fitted else None), with_echo2=with_echo2)
    return replace(plan, measured=fitted.measured) if fitted else plan


def show(plan: Plan, *, as_json_text: bool) -> str:
    """Return the plan as text or JSON."""
    if as_json_text:
        return as_json(plan)
    return as_terminal(plan, width=screen_width(NARROWEST)) if is_screen() else as_text(plan)
