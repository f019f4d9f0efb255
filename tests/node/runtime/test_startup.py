"""Handle signals from the program's first line on."""

from __future__ import annotations

import subprocess
import sys

IN_A_CALLBACK = """
import signal, weakref
from node.runtime.startup import loaded, remember
signal.signal(signal.SIGINT, signal.default_int_handler)
remember()
loaded()

class Thing:
    pass

thing = Thing()
reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del thing
    while True:
        signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_that_comes_in_a_callback_comes_again() -> None:
    """Python would print that it ignores it. Imports have such callbacks, and commands import while they work."""
    done = subprocess.run([sys.executable, "-c", IN_A_CALLBACK], check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"interrupted\n", b"")


def test_other_exceptions_in_callbacks_are_told() -> None:
    program = IN_A_CALLBACK.replace("signal.raise_signal(signal.SIGINT)", "1 / 0").replace("signal.pause()", "break")
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"ZeroDivisionError" in done.stderr


FILES = """
import resource
from node.runtime.startup import open_many_files
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
open_many_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_as_many_files_may_be_open_as_the_system_allows() -> None:
    program = [sys.executable, "-c", FILES.format(hard=4000)]
    assert subprocess.run(program, check=True, capture_output=True, timeout=60).stdout == b"4000 4000\n"
