"""Which command wrote a statement file, as its first lines tell.

What always holds: what no command wrote has no shape; of a file of any size four lines are read, and whether these are
true is not asked. Two exports look like another command's: of one receipt with one proof, which is what proves a
record, and a node's that has a reputation and nothing before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path

from learner.artifacts.regular_file import open_file
from node.commands.statements.format import (
    MAX_LINE_BYTES,
    AnyLine,
    EndLine,
    FormError,
    ProofLine,
    ReceiptLine,
    ReputationLine,
    read_head,
    read_line,
)
from node.runtime.atomic_files import require_own, require_place

LOOKED_AT = 4
"""Lines, the first among them: a proof is told from an export by what stands after the receipt and the proof."""


class Shape(Enum):
    """What a statement is. The value is what people call it."""

    RECEIPTS = "export of receipts"
    PROOF = "proof of a record"
    REPUTATIONS = "export of reputations"


def require_out(out: Path, shape: Shape) -> None:
    """Find out, before any work is done for it, that a statement may be written to `out`: what is there is of the same
    shape, or states nothing. Raises UsageError, RunError."""
    require_place(out, "--out")
    require_own(out, "--out", f"no {shape.value} that volery wrote", lambda path: shape in shapes_of(path))


def shapes_of(path: Path) -> frozenset[Shape]:
    """The shapes that a file may have: none if it is no statement, all if it states nothing. Raises OSError."""
    with open_file(path) as file:
        lines = list(islice(_lines(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")), LOOKED_AT))
    match lines:
        case []:
            return frozenset()
        case [EndLine(), *_]:
            return frozenset(Shape)
        case [ReputationLine(), *_]:
            return frozenset({Shape.REPUTATIONS})
        case [ProofLine(), EndLine(), *_] | [ReceiptLine(), ProofLine(), EndLine(), *_]:
            return frozenset({Shape.PROOF})
        case [ReceiptLine(), ProofLine(), ProofLine(), *_] | [ProofLine(), *_]:
            return frozenset({Shape.PROOF, Shape.RECEIPTS})  # of many records, or of one that was trained on twice
        case _:
            return frozenset({Shape.RECEIPTS})


def _lines(raw: Iterator[bytes]) -> Iterator[AnyLine]:
    """The lines after the first, up to what is none; nothing of a file that does not begin as statements do."""
    try:
        read_head(next(raw, b""))
        for one in raw:
            yield read_line(one)
    except FormError:
        return
