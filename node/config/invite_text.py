"""Take an invite out of what somebody typed, pasted or keeps in a file.

Invariants:
- Every command that takes an invite reads it here, so all accept the same: quotes, words around it, line breaks.
- What was typed is tried as the name of a file only if no invite stands in it; nothing that the system says of such a
  name leaves this module but as a UsageError.
"""

from __future__ import annotations

import os
from pathlib import Path

from learner.artifacts.regular_file import open_file
from node.runtime.errors import UsageError, shortened
from protocol.core.invite import PREFIX, Invite, InviteError, holds_invite, read_invite

MAX_INVITE_FILE_BYTES = 1 << 20
"""A mail with an invite in it, and pictures; whoever names more has named another file."""

UTF_16 = (b"\xff\xfe", b"\xfe\xff")
"""How a file begins that Windows' PowerShell wrote with `>`."""

COPY = "Copy the whole line that `volery learn` printed."


def open_invite(text: str, *, now_ms: int) -> Invite:
    """Read an invite from what somebody typed or pasted: a text around it, or the name of a file that holds one.

    At `now_ms` 0 none has expired. Raises UsageError.
    """
    if not text.strip():
        raise UsageError(f"An empty text is no invite, which begins with {PREFIX}. {COPY}")
    typed = text
    if not is_invite(text):
        text = _invite_file(text)
    try:
        return read_invite(text, now_ms=now_ms)
    except InviteError as error:
        raise UsageError(str(error) if text == typed else f"{typed.strip()}: {error}") from None


def _invite_file(name: str) -> str:
    """The text of the file `name`; of what is neither an invite nor the name of a file, the text itself.

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
                f"{shortened(name)}: there is no such file (yet), and an invite begins with {PREFIX}. A learner writes "
                f"{INVITE_FILE} into its state directory once peers can join. {COPY}"
            ) from None
    except PermissionError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}. {COPY}") from None
    except OSError as error:
        if os.path.lexists(path):
            raise UsageError(f"{path} cannot be read: {error.strerror}. {COPY}") from None
        # else it is longer than any name of a file
    except ValueError:  # with what no name may have
        pass
    return name


def is_invite(text: str) -> bool:
    """Whether an invite stands in `text`, and that is not the name of a file as well."""
    return holds_invite(text) and not _exists(Path(text))


def refuse_invite(named: Path, wanted: str) -> None:
    """Raise UsageError where `named` is an invite that was taken for the name of a file; `wanted` says what is."""
    if is_invite(str(named)):
        raise UsageError(f"{shortened(str(named))} is an invite, which `volery join` takes. Name {wanted} here.")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


INVITE_FILE = "invite"
"""In a state directory: the string for volunteers, written when peers can join."""
