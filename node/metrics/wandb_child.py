"""The process in which wandb lives: terms in the first line of stdin, a row in each that follows, the end is the end.

Started by `node.metrics.wandb`. What always holds: it ends when its stdin does, UPLOAD_S later at the latest, whatever
wandb waits for; it never reads from a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from threading import Timer
from typing import Any

from learner.dying import tell_deaths

UPLOAD_S = 120.0
"""What is left may be uploaded for so long after the learner ended. What is not, stays in the directory for `wandb
sync`."""


def main() -> None:
    """Serve one run."""
    tell_deaths()
    lines = iter(sys.stdin.buffer)
    terms = json.loads(next(lines))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the operator asked for metrics to be sent, nothing else
    run = _open(terms)
    for line in lines:
        run.log(json.loads(line))
    watchdog = Timer(UPLOAD_S, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    run.finish()


def _open(terms: dict[str, Any]) -> Any:
    import wandb

    run = wandb.init(
        project=terms["project"],
        group=terms["group"],
        id=terms["id"],
        name=terms["id"],
        resume="allow",
        dir=terms["directory"],
        mode="offline" if terms["offline"] else None,
        settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
    )
    run.define_metric("*", step_metric="step")
    return run


if __name__ == "__main__":
    main()
