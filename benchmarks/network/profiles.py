"""Add up the samples of all nodes (`sampler`), to show where a run spends processor time."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

SUFFIX = ".samples"

FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*)\)")
"""One frame of a stack; a frame without a file is C."""

Stacks = Counter[tuple[str, ...]]
"""Microseconds by stack of frames, the outermost first."""


def read_samples(directory: Path) -> Stacks:
    """Return the samples that all nodes left in `directory`."""
    stacks: Stacks = Counter()
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        for line in path.read_text(encoding="utf-8").splitlines():
            stack, _, used = line.rpartition(" ")
            stacks[tuple(stack.split(";"))] += int(used)
    return stacks


def own_by_function(stacks: Stacks) -> Counter[str]:
    """Return the time in each function itself and in the C that it calls, as "module: function"."""
    own: Counter[str] = Counter()
    for stack, used in stacks.items():
        function, module = _parse(stack[-1])
        own[f"{module}: {function}"] += used
    return own


def own_by_module(stacks: Stacks) -> Counter[str]:
    """Return the same, by module."""
    own: Counter[str] = Counter()
    for stack, used in stacks.items():
        own[_parse(stack[-1])[1]] += used
    return own


def within_module(stacks: Stacks) -> Counter[str]:
    """Return the time in which each module is anywhere on the stack: its own, and that of all its callees."""
    within: Counter[str] = Counter()
    for stack, used in stacks.items():
        for module in {_parse(frame)[1] for frame in stack}:
            within[module] += used
    return within


def _parse(frame: str) -> tuple[str, str]:
    found = FRAME.fullmatch(frame)
    return (found["function"], _short(found["file"])) if found else (frame, "C")


def _short(file: str) -> str:
    """Return a path as one would import it: the part after site-packages, the standard library's folder or our root."""
    root = str(Path(__file__).parent.parent.parent)
    return re.sub(rf"^(.*/site-packages/|.*/lib/python[\d.]+/|{re.escape(root)}/)", "", file)
