"""Run ledgers whose process dies before it runs a SQL statement of a certain number."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from learner.ledger.ledger import Ledger


def killed_at(path: Path, swarm: bytes, statement: int, work: Callable[[Ledger], object]) -> bool:
    """Open the ledger and do `work` in a child that dies before its statement of that number. Return
    whether it died.
    """
    if (child := os.fork()) == 0:
        code = 1
        try:
            ledger = Ledger(path, swarm=swarm)
            left = iter(range(statement))
            ledger._db.set_trace_callback(lambda sql: None if next(left, None) is not None else os._exit(9))
            work(ledger)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9)
    return code == 9
