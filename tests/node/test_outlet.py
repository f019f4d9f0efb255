"""What C libraries print does not reach who reads the output."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, os, sys
from node.outlet import keep_outlet
print("before")
keep_outlet()
libc = ctypes.CDLL(None)
libc.puts(b"from C")
libc.fflush(None)
os.write(1, b"to the descriptor")
print("after, ümläut")
"""


def test_only_python_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, encoding="utf-8", env={"PYTHONUTF8": "1"}
    )
    assert done.stdout == "before\nafter, ümläut\n"
    assert done.stderr == ""


def test_where_output_is_captured_nothing_is_changed() -> None:
    before = sys.stdout
    from node.outlet import keep_outlet

    keep_outlet()
    assert sys.stdout is before
