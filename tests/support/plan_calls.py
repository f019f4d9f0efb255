"""Call `volery plan` as a person does: through the console script's entry point, in this interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.programs import Machine, Outcome
from tests.support.paths import ROOT

EXAMPLES = ROOT / "docs" / "examples"

TIMES = ("--train-s", 60, "--rollouts", 256, "--broadcast-s", 30, "--generation-s", 20)


def plan(*arguments: object) -> Outcome:
    """Call it, and return how it ended."""
    return Machine(root=Path()).call("plan", *arguments)


def planned(*arguments: object, code: int = 0) -> dict[str, Any]:
    """Call it, and return its JSON."""
    outcome = plan(*arguments, "--json")
    assert (outcome.code, outcome.err) == (code, ""), outcome
    return dict(json.loads(outcome.out))


def refusal(*arguments: object) -> str:
    """Return the text of its refusal: one paragraph, exit code 2, nothing on stdout."""
    outcome = plan(*arguments)
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.startswith("volery: usage: ")
    assert outcome.err.endswith(".\n")
    assert "\n\n" not in outcome.err
    return outcome.err
