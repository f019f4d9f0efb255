#!/usr/bin/env python3
"""List the sentences that are hardest to read, in docstrings, comments, messages and documents.

    python tools/prose.py [--most N] [--strict] [PATH ...]

Without a path it reads every .py and .md file of the repository. The last line is one JSON object with totals. With
`--strict` the exit code is 1 if the files together exceed a limit of LIMITS.

The tool counts the words and commas of each sentence, and two habits that slow readers down: a headless clause as the
subject ("Who asks is told", "What is late is dropped") and a fronted complement ("Of these, one in four ..."). It is a
guide for the eye. A sentence that passes can still be a riddle.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HEADLESS = re.compile(
    r"^(who(ever)?|what(ever)?)\s+(?!(is|are|was|were|does|do|can|must|may)\b[^.?]*\?)\w+.*"
    r"\b(is|are|has|have|does|do|can|may|must|gets?|goes|comes?|stays?|counts?)\b",
    re.IGNORECASE,
)
FRONTED = re.compile(r"^of\s", re.IGNORECASE)

FEWEST_WORDS = 4
"""A shorter text is a label, not a sentence."""

LONG, OVERLONG = 25, 35
"""Words of a sentence: plenty, and the end."""

LIMITS = {"headless_pct": 0.2, "fronted_of_pct": 0.2, "over_35_words_pct": 3.0}
"""Shares of all sentences, in percent, that a set of files may have."""


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence and its place."""

    path: Path
    line: int
    kind: str
    text: str

    @property
    def words(self) -> int:
        return len(self.text.split())

    @property
    def is_headless(self) -> bool:
        return bool(HEADLESS.match(self.text)) and not self.text.rstrip('")').endswith("?")

    @property
    def is_fronted(self) -> bool:
        return bool(FRONTED.match(self.text))

    @property
    def difficulty(self) -> int:
        """How hard it is to read: 0 for a plain sentence."""
        joints = len(re.findall(r"[,;:]", self.text))
        return max(0, self.words - 20) + 3 * max(0, joints - 2) + 10 * (self.is_headless + self.is_fronted)


def sentences_in(paths: Iterable[Path]) -> list[Sentence]:
    """Return every sentence of Python and Markdown files; of a directory, those of all such files below it."""
    found = []
    for path in paths:
        files = [path] if path.is_file() else [*sorted(path.rglob("*.py")), *sorted(path.rglob("*.md"))]
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace")
            parts = _of_python(text) if file.suffix == ".py" else [(1, "page", text)]
            for line, kind, part in parts:
                found += [Sentence(path=file, line=line, kind=kind, text=one) for one in _split(part)]
    return found


def totals_of(found: Iterable[Sentence]) -> dict[str, float]:
    """Return the number of sentences, and in percent how many are long, overlong, headless or fronted."""
    counted = list(found)

    def percent(several: Iterable[bool], digits: int = 2) -> float:
        return round(100 * sum(several) / max(1, len(counted)), digits)

    return {
        "sentences": len(counted),
        "over_25_words_pct": percent((one.words > LONG for one in counted), 1),
        "over_35_words_pct": percent((one.words > OVERLONG for one in counted), 1),
        "headless_pct": percent(one.is_headless for one in counted),
        "fronted_of_pct": percent(one.is_fronted for one in counted),
        "hard": sum(one.difficulty > 15 for one in counted),
    }


def excesses_of(totals: dict[str, float]) -> list[str]:
    """Return what is beyond LIMITS, in words."""
    return [f"{name} is {totals[name]}, at most {limit}" for name, limit in LIMITS.items() if totals[name] > limit]


def _split(text: str) -> Iterator[str]:
    """Yield the sentences of a text without its code."""
    text = re.sub(r"```.*?```", " ", text, flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "X", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*|#>]|\s*\d+\.\s)|\|", text):
        words = re.sub(r"\s+", " ", block).strip(" -*#>|")
        yield from (one for one in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])", words) if len(one.split()) >= FEWEST_WORDS)


def _of_python(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield docstrings, messages of raised exceptions, and runs of comments, with their lines."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, "doc", node.value.value
        elif isinstance(node, ast.Raise) and node.exc is not None:
            for part in ast.walk(node.exc):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, "message", part.value
    yield from _comments(source)


def _comments(source: str) -> Iterator[tuple[int, str, str]]:
    last, run = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("#!", "# noqa", "# type:")):
            continue
        if run and token.start[0] != last + 1:
            yield last, "comment", " ".join(run)
            run = []
        run.append(token.string.lstrip("# "))
        last = token.start[0]
    if run:
        yield last, "comment", " ".join(run)


def main() -> int:
    """Print the hardest sentences and the totals; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=40, metavar="N", help="sentences to list")
    parser.add_argument("--strict", action="store_true", help="end with exit code 1 where a limit is exceeded")
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH")
    options = parser.parse_args()
    listed = ["git", "ls-files", "*.py", "*.md"]
    paths = options.paths or [
        Path(name) for name in subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    ]
    found = sentences_in(paths)
    for one in sorted(found, key=lambda one: -one.difficulty)[: options.most]:
        if one.difficulty > 15:
            print(f"{one.difficulty:4d} {one.path}:{one.line} [{one.kind}] {one.text[:400]}")
    totals = totals_of(found)
    excesses = excesses_of(totals) if options.strict else []
    for excess in excesses:
        print(f"too hard to read: {excess}")
    print(json.dumps(totals))
    return 1 if excesses else 0


if __name__ == "__main__":
    raise SystemExit(main())
