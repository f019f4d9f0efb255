"""Push an export: to Hugging Face's hub, or to a directory that stands for a repository.

The typed name decides which: `ORG/NAME` is on the hub, and `./NAME`, `/PATH`, `~/NAME` and `file:///PATH` are
directories. So a typing error never publishes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from learner.artifacts.atomic_directory import replace_file
from learner.artifacts.regular_file import read_file
from node.commands.export.base_model import FRONT_MATTER, MAX_CARD_BYTES, licence_in
from node.commands.export.card import quoted
from node.commands.export.push_directory import push_to_directory
from node.commands.export.push_hub import push_to_hub, require_hub
from node.commands.export.record import CARD, RECORD, read_record, require_whole
from node.commands.export.version_choice import Chosen
from node.runtime.errors import RunError, UsageError

Ask = Callable[[], str]
"""Asks the person at the terminal for a licence; returns "" if there is no terminal."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to push: to `directory`, or to the hub's repository `named`."""

    named: str
    directory: Path | None = None
    private: bool = False


def target_of(named: str, *, private: bool) -> Target:
    """Return the target of `--push`, if a push to it can be tried. Raises UsageError."""
    directory = _directory_of(named)
    if directory is None:
        require_hub(named)
    elif private:
        raise UsageError(f"--private is for the hub, and {named} is a directory: set its permissions instead.")
    return Target(named=named, directory=directory, private=private)


def _directory_of(named: str) -> Path | None:
    if named.startswith("file:"):
        found = urlsplit(named)
        if found.netloc not in ("", "localhost") or not found.path.startswith("/"):
            raise UsageError(f"--push {named}: write file:///PATH, the absolute path of a directory on this machine.")
        return Path(unquote(found.path))
    return Path(named).expanduser() if named.startswith((".", "/", "~")) else None


def require_licence(licence: str, target: Target) -> None:
    """Raise UsageError if it is not known under which licence the model is to be published."""
    if not licence:
        raise UsageError(
            f"--push {target.named}: a published model needs a licence, and none is known. Add one by its name on "
            "the hub, such as --license apache-2.0. The base model's licence says which ones you may choose."
        )


def require_same(directory: Path, chosen: Chosen, form: str, target: Target) -> None:
    """Check that the export in `directory` is the one to be pushed. Raises UsageError, RunError."""
    record = read_record(directory / RECORD)
    if record is None:
        raise UsageError(f"{directory} already exists, and its {RECORD} is not an export's. Name another directory.")
    if record.version != str(chosen.version):
        raise UsageError(
            f"{directory} holds version {record.version}, but version {chosen.version} was asked for. To push the one "
            f"there, add --version {record.version}; to push {chosen.version}, name a directory that does not exist."
        )
    if (record.form == "adapter") != (form == "adapter"):
        raise UsageError(
            f"{directory} holds the version as {'an adapter' if record.form == 'adapter' else 'a whole model'}. "
            f"{'Add' if record.form == 'adapter' else 'Omit'} --adapter to push that, or name a directory that "
            "does not exist."
        )
    require_whole(directory, record)
    if target.directory is not None and target.directory.resolve() == directory.resolve():
        raise UsageError(f"--push {target.named}: the export is already in that directory.")


def license_card(directory: Path, given: str, target: Target, ask: Ask) -> str:
    """Make sure that the card of an existing export names a licence, and return it.

    It is the card's own licence, or else `given`, or else the answer to `ask`. Raises UsageError, RunError.
    """
    path = directory / CARD
    try:
        text = read_file(path, MAX_CARD_BYTES).decode(errors="replace")
        said = licence_in(text)
        if said and given and said != given:
            raise UsageError(
                f"--license {given}: {path} names {said}. Change the card, or export to another directory."
            )
        licence = said or given or ask()
        require_licence(licence, target)
        if not said:
            replace_file(path, _with_licence(text, licence).encode())
        return licence
    except OSError as error:
        raise RunError(f"{path} cannot be used: {error.strerror}. Export to another directory.") from None


def _with_licence(card: str, licence: str) -> str:
    line = f"license: {quoted(licence)}\n"
    if FRONT_MATTER.match(card):
        opening, rest = card.split("\n", 1)
        return f"{opening}\n{line}{rest}"
    return f"---\n{line}---\n\n{card}"


def push(directory: Path, target: Target) -> str:
    """Push the export in `directory`; return what was done. Raises UsageError, RunError."""
    record = read_record(directory / RECORD)
    if record is None:
        raise RunError(f"{directory / RECORD} is missing. Export the version again, to another directory.")
    if target.directory is None:
        address = push_to_hub(directory, record, target.named, private=target.private)
        return f"Pushed version {record.version} to {address}"
    push_to_directory(directory, record, target.directory, named=target.named)
    return f"Pushed version {record.version} to {target.directory}"
