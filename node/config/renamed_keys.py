"""Accept keys by the name that they had in the release before, with a warning.

Remove a row of RENAMED when the release that warns of it is out, and this module with the last row.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.config.common import Section
from node.config.node_config import NodeConfig
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError
from node.runtime.stdout import complain

Key = tuple[str, str]
"""Section and key."""

RENAMED: Mapping[type[Section], Mapping[Key, Key]] = {
    SwarmConfig: {
        ("trust", "floor"): ("trust", "min_audit_share"),
        ("trust", "compute_share"): ("trust", "max_audit_compute_share"),
        ("trust", "peer_share"): ("trust", "max_peer_share"),
        ("trust", "arithmetic"): ("trust", "required_compute_dtype"),
        ("learn", "ahead"): ("learn", "max_batches_ahead"),
        ("learn", "lease_s"): ("learn", "lease_timeout_s"),
        ("plan", "activate"): ("provisioning", "select_peers"),
        ("plan", "review_s"): ("provisioning", "review_interval_s"),
        ("evaluate", "k"): ("evaluate", "pass_at_k"),
        ("curriculum", "low"): ("curriculum", "min_pass_rate"),
        ("curriculum", "high"): ("curriculum", "max_pass_rate"),
        ("trainer", "kl"): ("trainer", "kl_coefficient"),
    },
    NodeConfig: {
        ("engine", "cheat"): ("testing", "cheat"),
        ("engine", "fake_token_s"): ("testing", "fake_token_s"),
    },
}

GONE: Mapping[type[Section], Mapping[Key, str]] = {
    SwarmConfig: {
        ("learn", "quantized_engines"): (
            'If it was true, write engine_formats = ["stored", "fp8"], or name "int8" and "int4", which can be '
            "audited. If it was false, remove it"
        ),
    },
    NodeConfig: {},
}
"""Keys without a successor, and what to write instead."""

CALIBRATED = ("awq", "gptq")
"""Formats of `[engine] quantization` that other programs know and that no node can make."""

_warned: set[str] = set()


def move_renamed(raw: dict[str, Any], kind: type[Section], path: Path) -> None:
    """Move each value in `raw` that has an old name to its new name, and warn once per process for each key.

    Raises UsageError if a key is given by both names, or no longer exists.
    """
    for (section, old), advice in GONE[kind].items():
        if isinstance(values := raw.get(section), dict) and old in values:
            raise UsageError(f"{path}: [{section}] {old} no longer exists. {advice}.")
    engine = raw.get("engine") if kind is NodeConfig else None
    if isinstance(engine, dict) and (asked := engine.get("quantization")) in CALIBRATED:
        raise UsageError(
            f'{path}: [engine] quantization = "{asked}" needs a calibration of every version, every few minutes, on '
            'data that a node does not have. Set "int8" or "int4", which need none.'
        )
    for (section, old), (to, new) in RENAMED[kind].items():
        if not isinstance(values := raw.get(section), dict) or old not in values:
            continue
        if not isinstance(target := raw.setdefault(to, {}), dict):
            return  # the loader rejects it by its type
        if new in target:
            raise UsageError(
                f"{path}: [{section}] {old} is the old name of [{to}] {new}, and both are given. Remove {old}."
            )
        target[new] = values.pop(old)
        if not values:
            del raw[section]
        warning = f"{path}: [{section}] {old} is now called [{to}] {new}. Rename it: the next release rejects {old}."
        if warning not in _warned:
            _warned.add(warning)
            complain(f"volery: warning: {warning}")
