"""Run `volery doctor [INVITE]`: examine this machine, print the findings, and say whether it can take part."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path

from node.config.invite_text import open_invite
from node.config.loader import read_node_config
from node.config.preflight import require_addresses, require_clock
from node.doctor.examination import WHOLE_S, examine
from node.doctor.telling import to_json, to_text
from node.doctor.verdict import conclude
from node.runtime.errors import NodeError, RunError, UsageError, about_keys_of
from node.runtime.events import Clock
from node.runtime.stdout import complain, say, say_folded


async def doctor(invite: str, *, config: Path | None, state: Path | None, as_json: bool) -> int:
    """Print the findings. Return 0 if this machine can take part, 1 or 2 if it cannot.

    Raises NodeError if an argument or the configuration is wrong; then nothing was examined.
    """
    try:
        return await _examine(invite, config, state, as_json=as_json)
    except NodeError as error:
        if as_json:
            say(json.dumps({"error": str(error), "verdict": {"can_take_part": False}}, indent=2))
        raise


async def _examine(invite: str, config: Path | None, state: Path | None, *, as_json: bool) -> int:
    require_clock(Clock.now_ms())
    word = open_invite(invite, now_ms=Clock.now_ms()) if invite else None
    settings = read_node_config(config)
    with nullcontext() if config is None else about_keys_of(config):
        require_addresses(settings.network.listen, settings.network.announce)
    if sys.stderr.isatty() and word is not None:
        complain(f"Checking this machine and its connection to the swarm ({WHOLE_S:.0f} s at most)...")
    findings = await examine(word, settings, state=state)
    conclusion = conclude(findings)
    say_folded((to_json if as_json else to_text)(findings, conclusion), as_json=as_json)
    if conclusion.can_take_part:
        return 0
    return (UsageError if findings.is_usage else RunError).exit_code
