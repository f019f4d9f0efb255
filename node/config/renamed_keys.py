"""Keys that had another name in the release before: that name still works, and is warned of.

Remove a row, and with the last one this module, when the release that warns of it is out.
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
            'Write engine_formats = ["stored", "fp8"] where it was true, or with "int8" and "int4", which are audited; '
            "where it was false, leave it out"
        ),
    },
    NodeConfig: {},
}
"""Keys that nothing stands for as they were, and what to write instead."""

CALIBRATED = ("awq", "gptq")
"""Formats of `[engine] quantization` that others know, and no node can make."""

_warned: set[str] = set()


def move_renamed(raw: dict[str, Any], kind: type[Section], path: Path) -> None:
    """Put what `raw` has under an old name under the new one, with a warning, one for each in the life of a process.

    Raises UsageError where a key is given by both names, or is no more.
    """
    for (section, old), advice in GONE[kind].items():
        if isinstance(values := raw.get(section), dict) and old in values:
            raise UsageError(f"{path}: [{section}] {old} is no more. {advice}.")
    engine = raw.get("engine") if kind is NodeConfig else None
    if isinstance(engine, dict) and (asked := engine.get("quantization")) in CALIBRATED:
        raise UsageError(
            f'{path}: [engine] quantization = "{asked}" needs a calibration of every version, on data that a node '
            'does not have, and there is a new one every few minutes. Set "int8" or "int4", which need none.'
        )
    for (section, old), (to, new) in RENAMED[kind].items():
        if not isinstance(values := raw.get(section), dict) or old not in values:
            continue
        if not isinstance(target := raw.setdefault(to, {}), dict):
            return  # which is refused for what it is
        if new in target:
            raise UsageError(
                f"{path}: [{section}] {old} and [{to}] {new} are one key, by its old and its new name. Remove {old}."
            )
        target[new] = values.pop(old)
        if not values:
            del raw[section]
        warning = f"{path}: [{section}] {old} is called [{to}] {new} now. Rename it: the next release refuses {old}."
        if warning not in _warned:
            _warned.add(warning)
            complain(f"volery: warning: {warning}")
