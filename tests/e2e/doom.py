"""Where a process of a test is to be killed: written into a file, found there by whoever comes by.

    CALL MOMENT NUMBER VICTIM       "TrainingLedger.step_trained after 7 learner", "trainer.save half 2 trainer"

Of the learner's own calls the learner is the victim in any case; of the trainer's it may be either.

What always holds: the process dies at that very point, by SIGKILL, and nobody dies of the same doom twice, since the
file is gone before. Each process counts its own calls from when the file appeared.
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
    """What is in the file that VARIABLE names, if there is one."""

    counts: Counter[str] = field(default_factory=Counter)

    def pass_by(self, call: str, moment: str) -> None:
        """Die here, or let another die, if that is what the file says."""
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
