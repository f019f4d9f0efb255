"""What a verifier has heard of services, on its way to the operator: as JSON, and each kind of news once.

What always holds: what was written can be read; of several verifiers that say the same, the first is told; nothing that
a verifier says raises an error here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_args

from node.tasks.services.remarks import MAX_REMARKS, How, Remark
from node.tasks.services.terms import shortened

MAX_SERVICES = 256
"""Names of services that are known to be down, or to have been unclear: tasks have some few."""


def write_remarks(remarks: Sequence[Remark]) -> list[list[str]]:
    """As JSON."""
    return [[one.service, one.how, one.detail] for one in remarks]


def read_remarks(told: Any) -> list[Remark]:
    """Those that can be read."""
    found = []
    for one in told[:MAX_REMARKS] if isinstance(told, list) else ():
        match one:
            case [str(service), str(how), str(detail)] if how in get_args(How):
                remark = Remark(service=shortened(service, 80), how=cast(How, how), detail=shortened(detail, 800))
                found.append(remark)
    return found


@dataclass(kw_only=True)
class ServiceNews:
    """What of that is news. A pure core."""

    _down: set[str] = field(default_factory=set)
    _unclear: dict[str, int] = field(default_factory=dict)

    def trouble(self, heard: Remark) -> str:
        """What to tell the operator in words; "" where that was told."""
        service = heard.service
        if max(len(self._down), len(self._unclear)) >= MAX_SERVICES:
            return ""
        match heard.how:
            case "down" if service not in self._down:
                self._down.add(service)
                return (
                    f"{service} does not answer: {heard.detail}. It is tried again and again; meanwhile nobody can say "
                    "what completions are worth that need it, and their groups are dropped."
                )
            case "back":
                self._down.discard(service)
            case "unclear":
                count = self._unclear[service] = self._unclear.get(service, 0) + 1
                if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
                    times = "1 answer says" if count == 1 else f"{count} answers say"
                    return (
                        f"{service}: {times} nothing of what a completion is worth, the newest: {heard.detail}. Such "
                        "groups are dropped."
                    )
        return ""
