"""Find an invite in a text that was typed or pasted, or in a file.

Invariants:

- Every command that needs an invite reads it here. So all accept the same texts, with quotes, words around it and line
  breaks.
- A text is tried as a file name only if no invite stands in it. Errors of the system about such a name leave this
  module only as UsageError.
"""

from __future__ import annotations

import os
from pathlib import Path

from learner.artifacts.regular_file import open_file
from node.runtime.errors import UsageError, shortened
from protocol.core.invite import COPY, PREFIX, Invite, InviteError, holds_invite, read_invite

MAX_INVITE_FILE_BYTES = 1 << 20
"""Most bytes read: a mail with an invite in it, and pictures. A larger file is the wrong one."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""First bytes of a file that Windows' PowerShell wrote with `>`."""


def open_invite(text: str, *, now_ms: int) -> Invite:
    """Return the invite in what somebody typed or pasted: a text around it, or the name of a file that holds one.

    `now_ms` = 0: no invite counts as expired. Raises UsageError.
    """
    if not text.strip():
        raise UsageError(f"The invite is empty. An invite begins with {PREFIX}. {COPY}")
    typed = text
    if not is_invite(text):
        text = _invite_file(text)
    try:
        return read_invite(text, now_ms=now_ms)
    except InviteError as error:
        raise UsageError(str(error) if text == typed else f"{typed.strip()}: {error}") from None


def _invite_file(name: str) -> str:
    """Return the text of the file `name`, or `name` itself if it is neither an invite nor the name of a file.

    Raises UsageError.
    """
    path = Path(name.strip())
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory. Name the file in it that holds the invite, or paste the invite.")
        with open_file(path) as file:
            raw = file.read(MAX_INVITE_FILE_BYTES)
        return raw.decode("utf-16" if raw.startswith(UTF_16) else "utf-8", errors="replace")
    except FileNotFoundError:
        if os.sep in name or path.suffix or path.name == INVITE_FILE:
            raise UsageError(
                f"{shortened(name)}: there is no such file, and an invite begins with {PREFIX}. Name the file that "
                "holds the invite, or paste it. The operator of the swarm has it: `volery learn` prints it once peers "
                f"can join, and writes it to the file {INVITE_FILE} in its state directory."
            ) from None
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. {COPY}") from None
    except OSError as error:
        if os.path.lexists(path):
            raise UsageError(f"{path} cannot be read: {error.strerror}. {COPY}") from None
        # else the text is longer than any file name
    except ValueError:  # the text has characters that no file name may have
        pass
    return name


def is_invite(text: str) -> bool:
    """Return whether `text` holds an invite and is not also the name of a file."""
    return holds_invite(text) and not _exists(Path(text))


def refuse_invite(named: Path, wanted: str) -> None:
    """Raise UsageError if `named` is an invite where a file was expected; `wanted` says which file."""
    if is_invite(str(named)):
        raise UsageError(f"{shortened(str(named))} is an invite, which `volery join` takes. Name {wanted} here.")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


INVITE_FILE = "invite"
"""File in a state directory with the text for volunteers, written when peers can join."""
