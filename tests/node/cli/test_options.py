"""Shell arguments that are not text are refused in a sentence; help keeps the names of attacks whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.commands.drill.attacks import Attack

NOT_UTF8 = b"\xff\xfe"


def volery(*arguments: str | bytes, columns: int = 80) -> subprocess.CompletedProcess[bytes]:
    program = "from node.cli.main import main; main()"
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=False, timeout=60, capture_output=True, env=environment)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("why", NOT_UTF8), "NAME"),
        (("ban", NOT_UTF8), "PEER"),
        (("pardon", NOT_UTF8), "PEER"),
        (("ban", "atlas", "--reason", NOT_UTF8), "--reason"),
        (("reputation", "export", "--out", "all", "--peer", NOT_UTF8), "--peer"),
        (("receipts", "list", "--peer", NOT_UTF8), "--peer"),
        (("join", "volery1", "--name", NOT_UTF8), "--name"),
    ],
)
def test_what_is_not_utf8_is_said(arguments: tuple[str | bytes, ...], named: str) -> None:
    done = volery(*arguments)
    assert done.returncode == 2
    assert done.stderr.decode().startswith(f"volery: usage: {named} is not UTF-8: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("join", "x", "--upload-mbit", "1MB"),
            "Invalid value for '--upload-mbit': '1MB' is not a number. Write digits alone, without a unit. Maximum "
            "million bits per second to send; 8 are 1 MB/s.",
        ),
        (
            ("receipts", "list", "--last", "1.5"),
            "Invalid value for '--last': '1.5' is not a whole number. Write digits alone, without a unit. Number of "
            "receipts, the newest first.",
        ),
        (
            ("join",),
            "Missing argument 'INVITE'. The text that begins with volery1, from the swarm's operator, or a file that "
            "holds it.",
        ),
    ],
)
def test_what_was_typed_wrong_is_said_with_its_meaning(arguments: tuple[str, ...], said: str) -> None:
    done = volery(*arguments)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1] == f"Error: {said}"


def test_a_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    program = f"import os, node.cli.main; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); node.cli.main.main()"
    done = subprocess.run([sys.executable, "-c", program, "init", "x"], check=False, timeout=60, capture_output=True)
    assert done.returncode == 2
    assert done.stderr.decode().startswith("volery: usage: The directory that this was started in no longer exists.")


@pytest.mark.parametrize("columns", [80, 120])
def test_help_keeps_the_names_of_attacks_whole(columns: int) -> None:
    shown = volery("drill", "--help", columns=columns).stdout.decode()
    words = {word.strip(".,") for word in shown.split()}
    assert {one.value for one in Attack} <= words
