"""Read and write a recorded run: the problem of each group, its version, and the tokens of its completions.

The first line of the file is a JSON object that says how the run was made. Then each group has a line, in the order of
the leases: version, problem, tokens of the prompt, tokens of each completion.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RecordedGroup:
    """A group of completions of one prompt."""

    version: int
    problem: int
    prompt_tokens: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A run: `made` says how, `groups` are in the order of their leases."""

    made: Mapping[str, Any]
    groups: tuple[RecordedGroup, ...]

    @property
    def lengths(self) -> list[int]:
        """Tokens of all completions, the shortest first."""
        return sorted(length for group in self.groups for length in group.lengths)

    @property
    def mean(self) -> float:
        """Mean tokens of a completion."""
        return sum(self.lengths) / len(self.lengths)

    def percentile(self, share: float) -> int:
        """Return the tokens that a share of all completions does not exceed."""
        lengths = self.lengths
        return lengths[min(len(lengths) - 1, int(share * len(lengths)))]


def write_recording(path: Path, recording: Recording) -> None:
    """Write the recording; an existing file is replaced."""
    lines = [json.dumps(recording.made)]
    for one in recording.groups:
        row = [one.version, one.problem, one.prompt_tokens, one.lengths]
        lines.append(json.dumps(row, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n", encoding="ascii")


def read_recording(path: Path) -> Recording:
    """Read what `write_recording` wrote."""
    header, *rows = path.read_text(encoding="ascii").splitlines()
    groups = []
    for version, problem, prompt_tokens, lengths in map(json.loads, rows):
        group = RecordedGroup(version=version, problem=problem, prompt_tokens=prompt_tokens, lengths=tuple(lengths))
        groups.append(group)
    return Recording(made=json.loads(header), groups=tuple(groups))
