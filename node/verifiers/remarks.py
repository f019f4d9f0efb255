"""Carry what a verifier reports about services to the operator: as JSON, and each piece of news once.

Invariants:

- Remarks that were written can be read.
- If several verifiers report the same, the operator is told once.
- No remark of a verifier raises an error here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from node.tasks.services.remarks import MAX_REMARKS, How, Remark
from node.tasks.services.terms import shortened

MAX_SERVICES = 256
"""Most services that are remembered as down, or as having given unclear answers. A task has only a few."""


def write_remarks(remarks: Sequence[Remark]) -> list[list[str]]:
    """Return the remarks as JSON."""
    return [[one.service, one.how, one.detail] for one in remarks]


def read_remarks(told: Any) -> list[Remark]:
    """Return the remarks that can be read."""
    found = []
    for one in told[:MAX_REMARKS] if isinstance(told, list) else ():
        match one:
            case [str(service), str(how), str(detail)] if how in get_args(How):
                remark = Remark(service=shortened(service, 80), how=cast(How, how), detail=shortened(detail, 800))
                found.append(remark)
    return found


@dataclass(kw_only=True)
class ServiceNews:
    """Decides which remarks are news. A pure core."""

    _down: set[str] = field(default_factory=set)
    _unclear: dict[str, int] = field(default_factory=dict)

    def trouble(self, heard: Remark) -> str:
        """Return the message for the operator; "" if the operator knows already."""
        service = heard.service
        if max(len(self._down), len(self._unclear)) >= MAX_SERVICES:
            return ""
        match heard.how:
            case "down" if service not in self._down:
                self._down.add(service)
                return (
                    f"{service} does not answer: {heard.detail}. The node keeps trying. Until it answers, completions "
                    "that need it get no reward, and their groups are dropped."
                )
            case "back":
                self._down.discard(service)
            case "unclear":
                count = self._unclear[service] = self._unclear.get(service, 0) + 1
                if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
                    times = "1 answer gives" if count == 1 else f"{count} answers give"
                    return (
                        f"{service}: {times} no reward for a completion. The newest: {heard.detail}. Such groups are "
                        "dropped."
                    )
        return ""
