"""What swarm.toml says of services that are asked for rewards, as a task reads it, in whatever process.

What always holds: it is JSON; a prompt that stands in a file is its text, so a verifier elsewhere needs no file; keys
are named and never read here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, text_of
from node.config.swarm_config import SwarmConfig
from node.runtime.errors import UsageError, shortened
from node.runtime.user_paths import as_path

RESPONSE = "{response}"

MAX_PROMPT_BYTES = 65_536
"""Of a judge's prompt: it is read anew with each completion, and paid for."""


def services_of(config: SwarmConfig, base: Path) -> dict[str, dict[str, Any]]:
    """The sections that name a service, by their names; paths are relative to `base`. Raises UsageError."""
    found: dict[str, dict[str, Any]] = {}
    if config.judge.url:
        judge = {key: value for key, value in msgspec.to_builtins(config.judge).items() if key != "prompt"}
        if config.judge.prompt:
            judge["prompt"] = _prompt(config.judge.prompt, base)
        found["judge"] = judge
    if config.reward_service.url:
        found["reward_service"] = msgspec.to_builtins(config.reward_service)
    return found


def _prompt(given: str, base: Path) -> str:
    """The text itself, or that of the file that it names. Raises UsageError."""
    if RESPONSE in given:
        return given
    about = f"[judge] prompt: {shortened(given)} is a text without {RESPONSE}, so it is taken for a file, and"
    try:
        text = text_of(read_file(base / as_path(given)))
    except OSError as error:
        raise UsageError(f"{about} that cannot be read: {error.strerror}. Name one, or write the text.") from None
    except NotText as error:
        raise UsageError(f"{about} it {error}.") from None
    if RESPONSE not in text or len(text.encode()) > MAX_PROMPT_BYTES:
        raise UsageError(
            f"{about} it must hold {RESPONSE}, where the completion goes, and {MAX_PROMPT_BYTES:,} bytes at most."
        )
    return text
