"""Call `volery simulate` as a person does: through the console script's entry point, in this interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.programs import Machine, Outcome

POOL = """\
[swarm]
train_s = 30.0
rollouts = 64
staleness = 3
broadcast_s = 6.0
generation_s = 16.0

[[machine]]
name = "cheap"
price = 0.1
rate = 0.5
count = 6

[[machine]]
name = "dear"
price = 1.0
rate = 0.5
count = 4
"""


def pool(directory: Path, more: str = "") -> Path:
    path = directory / "pool.toml"
    path.write_text(POOL + more)
    return path


def simulate(*arguments: object) -> Outcome:
    """Call it, and return how it ended."""
    return Machine(root=Path()).call("simulate", *arguments)


def simulated(*arguments: object) -> dict[str, Any]:
    """Call it, and return its JSON."""
    outcome = simulate(*arguments, "--json")
    assert (outcome.code, outcome.err) == (0, ""), outcome
    return dict(json.loads(outcome.out))


def refusal(*arguments: object) -> str:
    """Return the text of its refusal: one paragraph, exit code 2, nothing on stdout."""
    outcome = simulate(*arguments)
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith("volery: usage: ")
    assert outcome.err.endswith(".\n")
    return outcome.err
