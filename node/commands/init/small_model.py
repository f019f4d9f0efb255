"""Make the small model of the example `reverse`, as the demo makes its own: from random weights, on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from node.installation.extras import require_extra
from node.learner_role.training.tiny_model import MODEL, StartingModel
from node.learner_role.training.warm_start import TINY_QWEN3
from node.runtime.errors import RunError
from node.runtime.events import EventLog

TASK = "reverse:letters=6"
HELD_OUT = 512
MAX_NEW_TOKENS = 8
"""As in the example's swarm.toml: six letters, the end of sequence, and one spare token."""


async def make_small_model(directory: Path) -> str:
    """Make the model in `directory`/model unless there is one. Return a sentence about it.

    It takes half a minute to a minute. Raises UsageError if the trainer is not installed, RunError.
    """
    if (directory / MODEL / "config.json").is_file():
        return f"The model in {directory / MODEL} was kept."
    for extra in ("learner", "transformers"):
        require_extra(extra, "volery init --example reverse")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".model-") as scratch:
            start = StartingModel(
                task=TASK,
                held_out=HELD_OUT,
                max_new_tokens=MAX_NEW_TOKENS,
                seed=0,
                config=TINY_QWEN3,
                option="volery init",
            )
            scores = await start.make(Path(scratch), EventLog())
            (Path(scratch) / MODEL).rename(directory / MODEL)
    except OSError as error:
        raise RunError(f"{directory / MODEL} cannot be written: {error.strerror}. Choose another directory.") from None
    return f"The model in {directory / MODEL} reverses {scores.greedy:.0%} of {HELD_OUT} words that it never saw."
