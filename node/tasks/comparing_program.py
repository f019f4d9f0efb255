"""math-verify as a program: it compares what it is told, one pair of texts a line, on standard input and output.

    python -m node.tasks.comparing_program LIMIT_S MEMORY_BYTES

    {"reference": text, "said": text}    -> {"equal": true | false}

It says {"equal": false} once before the first question, when math-verify is imported. For whoever starts it see
`node.tasks.comparing`.

Invariants:
- The kernel ends the process when a question has taken LIMIT_S of processor time, in the middle of one multiplication,
  too.
- It takes at most MEMORY_BYTES of address space (on Linux), and ends when its standard input does.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
from functools import lru_cache
from typing import Any


def main() -> None:
    """Serve until standard input ends."""
    limit_s, memory_bytes = int(sys.argv[1]), int(sys.argv[2])
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    import math_verify  # noqa: F401  (it takes seconds, which are no question's)

    logging.disable(logging.CRITICAL)  # it warns that its own limits are off
    _set_limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":  # others do not keep to it, or refuse it
        _set_limit(resource.RLIMIT_AS, memory_bytes)
    equal = False
    while True:
        replies.write(json.dumps({"equal": equal}).encode() + b"\n")
        replies.flush()
        if not (line := requests.readline()):
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _set_limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + 1 + limit_s)
        asked = json.loads(line)
        equal = _are_equal(asked["reference"], asked["said"])


def _set_limit(kind: int, soft: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _are_equal(reference: str, said: str) -> bool:
    from math_verify import verify

    try:
        found = _parsed(said)
        return bool(found) and bool(verify(_reference(reference), found, timeout_seconds=None))
    except Exception:  # of libraries that read what strangers wrote: what they cannot read is no answer
        return False


@lru_cache(maxsize=4096)
def _reference(text: str) -> Any:
    return _parsed(text)


def _parsed(text: str) -> Any:
    from math_verify import parse

    return parse(text, parsing_timeout=None)


if __name__ == "__main__":
    main()
