"""Kill a process of a test at a chosen call: a file names the call, and each process reads it on the way.

    CALL MOMENT NUMBER VICTIM       "TrainingLedger.step_trained after 7 learner", "trainer.save half 2 trainer"

The learner is always the victim of its own calls. The victim of a trainer's call may be either of the two.

Invariants:

- The process dies at that very point, by SIGKILL.
- A doom kills once only, since the file is deleted first.
- Each process counts its own calls from the moment when the file appeared.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = "VOLERY_TEST_DOOM"


@dataclass
class Doom:
    """The content of the file that VARIABLE names, if there is one."""

    counts: Counter[str] = field(default_factory=Counter)

    def pass_by(self, call: str, moment: str) -> None:
        """Kill this process, or let another one be killed, if the file says so."""
        path = Path(os.environ.get(VARIABLE) or os.devnull)
        try:
            doom = path.read_text(encoding="ascii")
            where, when, number, victim = doom.split()
        except (OSError, ValueError):
            return
        if (call, moment) != (where, when):
            return
        self.counts[doom] += 1
        if self.counts[doom] == int(number):
            path.unlink()
            here = victim == "trainer" or not call.startswith("trainer.")
            os.kill(os.getpid() if here else os.getppid(), signal.SIGKILL)

    def surround(self, owner: type[Any], name: str) -> None:
        """Have calls of this method pass by, before and after."""
        method, call = getattr(owner, name), f"{owner.__name__}.{name}"

        def surrounded(*args: Any, **options: Any) -> Any:
            self.pass_by(call, "before")
            result = method(*args, **options)
            self.pass_by(call, "after")
            return result

        setattr(owner, name, surrounded)
