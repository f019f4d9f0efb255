"""Name the limits of a node.toml that a running node can obey at once, and check new values of them.

The other limits are taken by the engine's process at its start, so they change with a restart.

Invariants:

- A value passes the checks of node.toml, and a bad one is refused with the same words.
- The keys, as options, are options of `volery join` too.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from node.config.daily_hours import HoursError, parse_hours
from node.config.error_messages import explain_validation
from node.config.loader import replaced, require_hours
from node.config.node_config import EngineSection, NodeConfig
from node.runtime.errors import UsageError

Value = str | float | None
"""A limit: hours as text, else a number; None for no limit."""

ALWAYS = ""
"""Hours without a limit, as node.toml has them."""

HOURS, UPLOAD, DOWNLOAD, QUOTA = "hours", "upload_mbit", "download_mbit", "quota_gb"

NONE = "none"
"""The word for no limit on the command line."""

SECTIONS: Mapping[str, str] = {HOURS: "engine", UPLOAD: "network", DOWNLOAD: "network", QUOTA: "store"}
"""The section of each key that can change while a node runs."""


CHANGED = "until the node ends; at its start:"
"""What stands behind a limit that is not as at the node's start."""


def with_limit(config: NodeConfig, key: str, value: Value) -> NodeConfig:
    """Return the configuration with another limit. Raises UsageError, which names the key as node.toml does."""
    if key not in SECTIONS:
        raise UsageError(f"{key!r} cannot be changed while the node runs. These can: {', '.join(SECTIONS)}.")
    name, given = named(key), {SECTIONS[key]: {key: value}}
    if value is None and key == QUOTA:
        raise UsageError(f"{name}: a store always has a quota. Write a number of GB, such as 64.")
    if value is None and key == HOURS:
        given = {SECTIONS[key]: {key: ALWAYS}}
    try:
        checked = msgspec.convert(given, NodeConfig)
        if key == HOURS:
            parse_hours(checked.engine.hours)
    except msgspec.ValidationError as error:
        raise UsageError(explain_validation(str(error), NodeConfig, given)) from None
    except HoursError as error:
        raise UsageError(f"{name}: {error}") from None
    section = msgspec.structs.replace(getattr(config, SECTIONS[key]), **{key: value_of(checked, key)})
    return msgspec.structs.replace(config, **{SECTIONS[key]: section})


def value_of(config: NodeConfig, key: str) -> Value:
    """Return a limit."""
    value: Value = getattr(getattr(config, SECTIONS[key]), key)
    return value


def named(key: str) -> str:
    """Return the key with its section, as reports name it."""
    return f"[{SECTIONS[key]}] {key}"


def as_toml(key: str, value: Value) -> str:
    """Return the line of a node.toml that sets a limit, with its section; the words for it if there is no such line."""
    if value is None:
        return f"no {named(key)}"
    return f'{named(key)} = "{value}"' if isinstance(value, str) else f"{named(key)} = {value:.10g}"


def kept(key: str, value: Value) -> str:
    """Return how an owner keeps a changed limit over the next start of the node."""
    if value is None:
        return f"To keep that, remove {key} from node.toml."
    return f"To keep that, write {as_toml(key, value)} in node.toml."


def read_option(key: str, text: str) -> Value:
    """Return the limit in an option of the command line; `none` lifts it. Raises UsageError, which names the option."""
    option = f"--{key.replace('_', '-')}"
    if key == HOURS:
        require_hours(replaced(EngineSection(), hours=text), option)
        return text
    if text == NONE and key != QUOTA:
        return None
    try:
        value = float(text)
    except ValueError:
        lifted = "" if key == QUOTA else f", or {NONE} for no limit"
        raise UsageError(f"{option} {text}: this is not a number. Write a number, such as 10{lifted}.") from None
    replaced(getattr(NodeConfig(), SECTIONS[key]), **{key: value})
    return value
