"""Describe a home as a value: the nodes behind one router, with their names and addresses.

Homes are numbered from 1. Nodes, and routers behind others, have the addresses from 2 on, and their router has 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.network.routers import Kind


@dataclass(frozen=True, kw_only=True)
class Home:
    """Nodes behind one router; rates in Mbit/s and the one-way delay are those of its link to the internet."""

    name: str
    kind: Kind
    num_nodes: int = 1
    up: float = 0.0
    down: float = 0.0
    delay_ms: float = 0.0

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [self.name] if self.num_nodes == 1 else [f"{self.name}{i + 1}" for i in range(self.num_nodes)]

    @property
    def routers(self) -> list[str]:
        """The names of its routers, the one nearest to the internet first."""
        if self.kind.is_public:
            return []
        return [*(f"{self.name}carrier{i + 1}" for i in range(self.kind.carriers)), f"{self.name}router"]

    @property
    def gates(self) -> list[str]:
        """The members of the star that stand for this home: its outermost router, or the public hosts themselves."""
        return self.routers[:1] or self.nodes


def lan4(number: int, host: int) -> str:
    return f"192.168.{number}.{host}"


def lan6(number: int, host: int) -> str:
    return f"2600:30:77:{number:x}::{host:x}"


def between4(number: int, layer: int, host: int) -> str:
    """Return an address between two routers (RFC 6598); `layer` counts them from the internet."""
    return f"100.{64 + layer}.{number}.{host}"
