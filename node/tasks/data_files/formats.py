"""Recognise a file by its first bytes, for messages about a file that was given to the wrong kind of task."""

from __future__ import annotations

from pathlib import Path

from learner.artifacts.regular_file import open_file

_BEGINNINGS = (
    (b"PAR1", "It is a Parquet file: write parquet: before its name."),
    (b"ARROW1", "It is an Arrow file: write it as Parquet, or with save_to_disk of Hugging Face datasets."),
    (
        b"\xff\xff\xff\xff",
        "It is an Arrow stream: name the directory that save_to_disk wrote, with dataset:.",
    ),
    (b"\x1f\x8b", "It is compressed with gzip: unpack it first, with gunzip."),
    (b"\x28\xb5\x2f\xfd", "It is compressed with zstd: unpack it first, with unzstd."),
    (b"PK\x03\x04", "It is a ZIP archive, like a spreadsheet: save it as CSV, or unpack it."),
)

_TEXT = {
    ".csv": "If it is CSV, write csv: before its name.",
    ".tsv": "If it is TSV, write csv: before its name.",
    ".jsonl": "If it is JSON Lines, write jsonl: before its name.",
    ".json": "If it holds one JSON object per line, write jsonl: before its name.",
}
"""Text has no typical first bytes, so the name of the file decides."""

SAVED = ("state.json", "dataset_dict.json")
"""The files that show that `save_to_disk` wrote a directory: of one data set, of several splits."""


def advice(path: Path, otherwise: str) -> str:
    """Return advice about the file or directory at `path`, or `otherwise` if its format is not recognised."""
    try:
        if path.is_dir():
            return _advice_of_directory(path, otherwise)
        with open_file(path) as file:
            first = file.read(8)
    except OSError:
        return otherwise
    return next((advice for beginning, advice in _BEGINNINGS if first.startswith(beginning)), otherwise)


def advice_of_name(path: Path) -> str:
    """Return advice about a file whose name says that it is text, or "" for other names."""
    return _TEXT.get(path.suffix.lower(), "")


def _advice_of_directory(path: Path, otherwise: str) -> str:
    if any((path / name).is_file() for name in SAVED):
        return "It is a data set that save_to_disk wrote: write dataset: before its name."
    if any(path.glob("*.parquet")):
        return "It holds Parquet files: write parquet: before its name."
    return otherwise
