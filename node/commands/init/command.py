"""Write the swarm.toml that an operator begins with, with every key explained where it stands (`volery init`).

Invariants:

- An existing file is never overwritten.
- The file is written completely or not at all.
- The file can be read by `node.config.swarm_config`. Its values are the defaults of the code, except for those that a
  model needs.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from node.config.reference import to_toml
from node.config.renamed_keys import Key
from node.config.swarm_config import LearnSection, SwarmConfig
from node.runtime.errors import RunError, UsageError
from node.runtime.user_paths import real_path
from protocol.core.digest import digest_of
from protocol.core.limits import MAX_NAME_CHARS

PORTS = range(4001, 5001)
"""Ports to look for a free one: libp2p programs usually take 4001, and a thousand ports make a clash unlikely."""

HEADER = """\
# A Volery swarm. Start it:   volery learn {path}
# It prints an invite. Everybody who runs   volery join INVITE   lends a machine to it.
# Every value below is the default, except for the port and for lines marked (set this) or (of the model).

"""

MODEL = "model"
"""Directory in which a model is looked for, beside swarm.toml, and which the template names."""

MAX_NEW_TOKENS = LearnSection(steps=1).max_new_tokens
"""The default. It suits models with twice as many positions, because a prompt needs room, too."""


def write_swarm_config(directory: Path, *, name: str, port: int, model: Path | None = None) -> Path:
    """Write `directory`/swarm.toml and return its path. With `model`, the file has the values that suit that model.

    Raises UsageError if the file exists or there is no model, RunError if the file cannot be written.
    """
    path = directory / "swarm.toml"
    name = name or real_path(directory).name
    if '"' in name or "\\" in name or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        raise UsageError(
            f"--name {name!r}: use 1 to {MAX_NAME_CHARS} printable characters without quotes or backslashes."
        )
    shown = shlex.quote(str(path)) if str(path).isprintable() else path.name
    text = HEADER.format(path=shown) + template(name, port or free_port(directory), model, directory)
    draft = directory / f".swarm.toml.{secrets.token_hex(8)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory} cannot be made: {error.strerror}. Choose another directory.") from None
    try:
        draft.write_text(text, encoding="utf-8")
        os.link(draft, path)  # fails if the file exists
    except FileExistsError:
        raise UsageError(f"{path} already exists, and was not changed. Edit it, or choose another directory.") from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}. Choose a directory you may write to.") from None
    finally:
        draft.unlink(missing_ok=True)
    return path


def model_beside(directory: Path) -> Path | None:
    """Return the model in the directory that the template names; None if there is none (yet)."""
    model = directory / MODEL
    return model if (model / "config.json").is_file() else None


def template(name: str, port: int, model: Path | None = None, directory: Path = Path()) -> str:
    """Return the file below its header. Raises UsageError, which names what is wrong with the model."""
    values: dict[Key, Any] = {
        ("swarm", "name"): name,
        ("network", "listen"): [f"/ip4/0.0.0.0/tcp/{port}", f"/ip6/::/tcp/{port}"],
        ("model", "directory"): MODEL,
        ("task", "spec"): "reverse:letters=6",
        ("learn", "steps"): 1000,
    }
    notes = {key: "(set this)" for key in values if key != ("network", "listen")}
    if model is not None:
        for key, value, note in _fitting(model, directory):
            values[key], notes[key] = value, note
    raw: dict[str, dict[str, Any]] = {}
    for (section, name), value in values.items():
        raw.setdefault(section, {})[name] = value
    return to_toml(msgspec.convert(raw, SwarmConfig), notes)


def _fitting(model: Path, directory: Path) -> Iterator[tuple[Key, Any, str]]:
    """Yield the values that suit the model, each with a note. Raises UsageError, which names what is wrong with it."""
    from node.config.preflight import require_model
    from node.learner_role.training.footprint import read_facts
    from node.learner_role.training.learning_rates import USUAL, rates_of
    from node.tasks.tokenizer import positions_of

    require_model(model, "--model")
    tokens, parameters = fitting_tokens(model), read_facts(model).parameters
    path = str(model) if model.is_absolute() else os.path.relpath(real_path(model), real_path(directory))
    yield ("model", "directory"), path, ""
    if tokens != MAX_NEW_TOKENS:
        note = f"(of the model: half of its {positions_of(model)} positions)"
        yield ("learn", "max_new_tokens"), tokens, note
    if (rates := rates_of(parameters)) is not USUAL:
        yield ("trainer", "learning_rate"), rates.reinforcement, f"(of the model: it has {parameters:,} parameters)"


def fitting_tokens(model: Path) -> int:
    """Return the token budget of a completion that leaves a prompt room in the model. Raises TaskError."""
    from node.tasks.tokenizer import positions_of

    positions = positions_of(model)
    return MAX_NEW_TOKENS if positions is None else max(1, min(MAX_NEW_TOKENS, positions // 2))


def free_port(directory: Path = Path()) -> int:
    """Return a port on which no program listens now.

    The search begins at a port that depends on the directory, so that two swarms which are set up before either is
    started should not be given the same port.
    """
    first = int.from_bytes(digest_of(str(real_path(directory)).encode())[:8], "big") % len(PORTS)
    for port in chain(PORTS[first:], PORTS[:first]):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    return PORTS[first]
