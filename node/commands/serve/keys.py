"""Read the key that requests must give, from the command line, the environment, or a file.

Invariants:

- An endpoint that other machines can reach has a key that cannot be guessed.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path

from learner.artifacts.regular_file import read_file
from node.commands.serve.limits import MAX_KEY_CHARS, MIN_KEY_CHARS
from node.runtime.errors import UsageError, of_file

MAKE_ONE = "openssl rand -hex 24"


def read_key(key: str, file: Path | None, host: str) -> str | None:
    """Return the key, None if there is none. Raises UsageError if a key is needed and missing, or is invalid."""
    if key and file is not None:
        raise UsageError("--key and --key-file: give only one of them.")
    where = "--key" if file is None else str(file)
    if file is not None:
        try:
            key = read_file(file, MAX_KEY_CHARS * 4).decode("utf-8", errors="replace").strip()
        except OSError as error:
            raise (of_file(error) or UsageError(f"--key-file {file}: cannot be read: {error}.")) from error
        if not key:
            raise UsageError(f"--key-file {file}: the file is empty. Write a key into it: {MAKE_ONE} > {file}")
    local = is_local(host)
    if not key:
        if local:
            return None
        raise UsageError(
            f"--host {host}: other machines can reach that address, so requests must give a key. Add --key-file FILE "
            f"with a key in it ({MAKE_ONE} > FILE), or omit --host."
        )
    if not (key.isascii() and key.isprintable()) or " " in key or len(key) > MAX_KEY_CHARS:
        raise UsageError(f"{where}: a key must be ASCII without spaces, at most {MAX_KEY_CHARS} characters: {MAKE_ONE}")
    if not local and len(key) < MIN_KEY_CHARS:
        raise UsageError(f"{where}: a key of {len(key)} characters can be guessed. Use {MIN_KEY_CHARS}: {MAKE_ONE}")
    return key


def is_local(host: str) -> bool:
    """Return whether only programs on this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
