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
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from node.commands.init.named_model import MODEL, NamedModel, model_path
from node.config.reference import to_toml, toml_value
from node.config.renamed_keys import Key
from node.config.swarm_config import LearnSection, SwarmConfig
from node.runtime.errors import RunError, UsageError
from node.runtime.user_paths import real_path
from protocol.core.digest import digest_of
from protocol.core.limits import MAX_NAME_CHARS

if TYPE_CHECKING:  # it opens tasks, which an installation for volunteers may not
    from node.commands.init.data_spec import DataSpec

PORTS = range(4001, 5001)
"""Ports to look for a free one: libp2p programs usually take 4001, and a thousand ports make a clash unlikely."""

HEADER = """\
# A Volery swarm. Start it:   volery learn {path}
# It prints an invite. Everybody who runs   volery join INVITE   lends a machine to it.
# Every value below is the default, but for the port and lines marked (set this), (of the model) or (of the data).

"""

MINIMAL_HEADER = """\
# A Volery swarm. Start it:   volery learn {path}
# Only what must be set. All keys, with their meanings and defaults: volery learn {path} --dry-run
"""

Values = dict[Key, Any]
Notes = dict[Key, str]

MAX_NEW_TOKENS = LearnSection(steps=1).max_new_tokens
"""The default. It suits models with twice as many positions, because a prompt needs room, too."""


def write_swarm_config(
    directory: Path,
    *,
    name: str,
    port: int,
    model: NamedModel | None = None,
    data: DataSpec | None = None,
    minimal: bool = False,
    aside: Path | None = None,
) -> Path:
    """Write `directory`/swarm.toml and return its path.

    Args:
        name: name of the swarm; "" for that of the directory.
        port: the port to listen on; 0 for a free one.
        model: its values are filled in, as far as it is here.
        data: the task to train on.
        minimal: whether to write only what must be set.
        aside: where a file that is there is moved to; None: it is an error.

    Raises UsageError if the file exists or the model cannot be used, RunError if the file cannot be written.
    """
    path = directory / "swarm.toml"
    name = swarm_name(name, directory)
    shown = shlex.quote(str(path)) if str(path).isprintable() else path.name
    make, header = (minimal_template, MINIMAL_HEADER) if minimal else (template, HEADER)
    text = header.format(path=shown) + make(name, port or free_port(directory), model, directory, data)
    draft = directory / f".swarm.toml.{secrets.token_hex(8)}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{directory} cannot be made: {error.strerror}. Choose another directory.") from None
    try:
        draft.write_text(text, encoding="utf-8")
        if aside is not None:
            path.rename(aside)
        os.link(draft, path)  # fails if the file exists
    except FileExistsError:
        raise UsageError(
            f"{path} already exists, and was not changed. Edit it, choose another directory, or write a new one with "
            "--force, which keeps the old one under another name."
        ) from None
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}. Choose a directory you may write to.") from None
    finally:
        draft.unlink(missing_ok=True)
    return path


def swarm_name(name: str, directory: Path) -> str:
    """Return the name of the swarm, by default that of the directory. Raises UsageError if it cannot be one."""
    name = name or real_path(directory).name
    if '"' in name or "\\" in name or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARS:
        raise UsageError(
            f"--name {name!r}: use 1 to {MAX_NAME_CHARS} printable characters without quotes or backslashes."
        )
    return name


def name_aside(path: Path) -> Path | None:
    """Return a free name for a file that makes room for a new one; None if there is no file."""
    if not path.exists():
        return None
    names = (path.with_name(f"{path.name}.old{number or ''}") for number in count())
    return next(name for name in names if not name.exists())


def template(
    name: str,
    port: int,
    model: NamedModel | None = None,
    directory: Path = Path(),
    data: DataSpec | None = None,
) -> str:
    """Return the file below its header, with every key. Raises UsageError, which names what is wrong with the model."""
    values, notes = _values(name, port, model, directory, data)
    raw: dict[str, dict[str, Any]] = {}
    for (section, key), value in values.items():
        raw.setdefault(section, {})[key] = value
    return to_toml(msgspec.convert(raw, SwarmConfig), notes)


def minimal_template(
    name: str,
    port: int,
    model: NamedModel | None = None,
    directory: Path = Path(),
    data: DataSpec | None = None,
) -> str:
    """Return the same with no key that has its default. Raises UsageError like `template`."""
    values, notes = _values(name, port, model, directory, data)
    lines: list[str] = []
    for section in dict.fromkeys(section for section, _ in values):
        lines.append(f"[{section}]")
        for (_, key), value in ((place, value) for place, value in values.items() if place[0] == section):
            note = notes.get((section, key), "")
            lines.append(f"{key} = {toml_value(value)}" + (f"  # {note}" if note else ""))
    return "\n".join(lines) + "\n"


def _values(
    name: str, port: int, model: NamedModel | None, directory: Path, data: DataSpec | None
) -> tuple[Values, Notes]:
    """Return the values that are not defaults, and a note for each that a person should look at. Raises UsageError."""
    values: Values = {
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
    if data is not None:
        values["task", "spec"], notes["task", "spec"] = data.spec, f"(of the data: {data.why})"
    return values, notes


def _fitting(named: NamedModel, directory: Path) -> Iterator[tuple[Key, Any, str]]:
    """Yield the values that suit the model, each with a note. Raises UsageError, which names what is wrong with it.

    If the model is not here yet, its path is all that is known.
    """
    model = named.directory
    yield ("model", "directory"), model_path(named, directory), ""
    if not named.is_here:
        return
    from node.config.preflight import require_model
    from node.learner_role.training.footprint import read_facts
    from node.learner_role.training.learning_rates import USUAL, rates_of
    from node.tasks.tokenizer import positions_of

    require_model(model, "--model")
    tokens, parameters = fitting_tokens(model), read_facts(model).parameters
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
    first = int.from_bytes(digest_of(os.fsencode(real_path(directory)))[:8], "big") % len(PORTS)
    for port in chain(PORTS[first:], PORTS[:first]):
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port
    return PORTS[first]
