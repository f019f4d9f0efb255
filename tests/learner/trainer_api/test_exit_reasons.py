"""Report how a process ended, and its last output."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trainer_api.exit_reasons import (
    LAST_WORDS,
    LINE_CHARS,
    LastWords,
    explained,
    how_ended,
    is_of_lost_connection,
    last_words,
)


@pytest.mark.parametrize(
    ("returncode", "told"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL; if nobody killed it, the machine ran out of memory"),
        (-40, "was killed by signal 40"),
        (137, "ended with exit code 137 (SIGKILL)"),
        (255, "ended with exit code 255"),
    ],
)
def test_a_signal_has_its_name(returncode: int, told: str) -> None:
    assert how_ended(returncode) == told


def test_the_last_that_are_not_blank_are_quoted_oldest_first() -> None:
    assert last_words([]) == last_words(["", "  "]) == ()
    assert last_words(["before"] * 9 + ["one", "  two", "", "three ", " "]) == ("one", "two", "three")


SEGFAULT = """\
Fatal Python error: Segmentation fault

Thread 0x00007f0a (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread 0x00007f0b (most recent call first):
  File "/lib/torch/cuda.py", line 7 in launch
  File "/node/scoring.py", line 42 in run

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""
TIMEOUT = """\
Timeout (0:00:30)!
Thread 0x00007f0b (most recent call first):
  File "/lib/re.py", line 166 in match
"""
THROWN = """\
terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: device-side assert triggered
Exception raised from launch at /pytorch/c10/cuda/CUDAException.cpp:44 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x96
"""


@pytest.mark.parametrize(
    ("code", "said", "cause", "quoted"),
    [
        (1, "warm\nfatal: KeyError: 'x' (at a.py, line 1, in f)", "KeyError: 'x' (at a.py, line 1, in f)", ()),
        (-11, f"before\n{SEGFAULT}", "Segmentation fault", ("at /lib/torch/cuda.py, line 7, in launch",)),
        (1, TIMEOUT, "Timeout (0:00:30)!", ("at /lib/re.py, line 166, in match",)),
        (-6, THROWN, "CUDA error: device-side assert triggered", ()),
        (-6, THROWN + SEGFAULT.replace("Segmentation fault", "Aborted"), "CUDA error: device-side assert triggered",
         ("at /lib/torch/cuda.py, line 7, in launch",)),
        # The process survived what it printed before, or that is not of this end.
        (1, "fatal: no such branch\nand on it went", "", ("fatal: no such branch", "and on it went")),
        (-9, SEGFAULT.splitlines()[0], "", ("Fatal Python error: Segmentation fault",)),
        (0, TIMEOUT, "", ("Timeout (0:00:30)!", "Thread 0x00007f0b (most recent call first):",
                          'File "/lib/re.py", line 166 in match')),
        (None, "", "", ()),
    ],
)  # fmt: skip
def test_a_cause_is_what_a_dying_process_says_last(
    code: int | None, said: str, cause: str, quoted: tuple[str, ...]
) -> None:
    assert explained(code, said.splitlines()) == LastWords(cause=cause, quoted=quoted)


def test_what_torch_says_aside_is_no_last_word() -> None:
    aside = "[W1126 22:40:30.528448952 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved."
    assert last_words(["one", aside, "[rank1]: two", aside]) == ("one", "[rank1]: two")


@pytest.mark.parametrize(
    ("line", "lost"),
    [
        ("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:1234", True),
        ("torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error", True),
        ("RuntimeError: the tensor is sad", False),
    ],
)
def test_a_rank_that_lost_another_one_is_known_by_its_words(line: str, lost: bool) -> None:
    assert is_of_lost_connection(LastWords(cause=line)) is is_of_lost_connection(LastWords(quoted=("x", line))) is lost


@given(st.lists(st.text()))
def test_however_much_was_said_it_is_bounded(lines: list[str]) -> None:
    said = last_words(lines)
    assert len(said) <= LAST_WORDS
    assert all(line.strip() and len(line) <= LINE_CHARS for line in said)
    assert bool(said) == any(line.strip() for line in lines)
