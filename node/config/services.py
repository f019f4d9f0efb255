"""Prepare what swarm.toml says about judges and reward services for tasks, in whatever process they run.

Invariants:

- It is JSON.
- A prompt from a file is passed on as text, so a verifier on another machine needs no file.
- API keys are named by their environment variable and never read here.
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
"""Most bytes of a judge's prompt: it is read, and paid for, with each completion."""


def services_of(config: SwarmConfig, base: Path) -> dict[str, dict[str, Any]]:
    """Return the sections that name a service, by their names; paths are relative to `base`. Raises UsageError."""
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
    """Return the text itself, or the text of the file that it names. Raises UsageError."""
    if RESPONSE in given:
        return given
    about = f"[judge] prompt: {shortened(given)} is a text without {RESPONSE}, so it is read as a file's name, and"
    try:
        text = text_of(read_file(base / as_path(given)))
    except OSError as error:
        raise UsageError(f"{about} the file cannot be read: {error.strerror}. Name one, or write the text.") from None
    except NotText as error:
        raise UsageError(f"{about} the file {error}.") from None
    if RESPONSE not in text or len(text.encode()) > MAX_PROMPT_BYTES:
        raise UsageError(
            f"{about} the file must hold {RESPONSE}, where the completion goes, and at most {MAX_PROMPT_BYTES:,} bytes."
        )
    return text
