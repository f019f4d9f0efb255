"""What an examination found out of this machine, each part as a value, or as the reason why it is not known.

Invariants:
- A part that was not found out is a `NotKnown` with a clause that says why: there is no figure that stands for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from node.network.newcomer import Found
from swarm.transport.reach_evidence import ReachEvidence

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NotKnown:
    """The part was not found out. `why` is a clause."""

    why: str


@dataclass(frozen=True, kw_only=True)
class EngineFailed(NotKnown):
    """The engine could not load the swarm's model, or one of its shapes: a node here could not work."""


class Where(Enum):
    """Where the learner is, as seen from this machine."""

    THIS_MACHINE = "on this machine"
    THIS_NETWORK = "in a private network that this machine is in"
    INTERNET = "in the internet"


@dataclass(frozen=True, kw_only=True)
class LocalNetwork:
    """What the system says, without a packet sent: this machine's addresses beyond its own links, and its routers."""

    ip4: tuple[str, ...] = ()
    ip6: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where the examination listened. `ports` are those of TCP; `is_fixed`: the configuration names one, so the node
    has it as well; `instead_of` the configuration's address that was taken already."""

    ports: tuple[int, ...] = ()
    is_fixed: bool = False
    instead_of: str = ""


@dataclass(frozen=True, kw_only=True)
class MappedPort:
    """A port that a router opened for the examination. `protocol` is "PCP", "NAT-PMP" or "UPnP"."""

    address: str
    protocol: str
    gateway: str
    is_behind_another_nat: bool


@dataclass(frozen=True, kw_only=True)
class PortMapping:
    """What came of asking the routers for a port. `refusals`: by router, why there is none."""

    mapped: tuple[MappedPort, ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()

    @property
    def is_answered(self) -> bool:
        """Whether a router has answered, or will not."""
        return bool(self.mapped or self.refusals)


@dataclass(frozen=True, kw_only=True)
class Contact:
    """The learner was reached: what it says, where it is, and how many members were reached beside it."""

    found: Found
    where: Where
    num_members: int = 0


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """By how much this machine's clock is ahead of the learner's, give or take `error_s`, which is half of the round
    trip in which that was asked."""

    ahead_s: float
    error_s: float
    round_trip_s: float


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Bytes that were moved in so many seconds. `is_coarse`: too few for the line to get up to its speed."""

    size_bytes: int
    seconds: float
    is_coarse: bool

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds


@dataclass(frozen=True, kw_only=True)
class EngineFinding:
    """The engine that a node would take here, and why."""

    kind: str
    device: str
    why: str
    scheme: str = ""
    compute_dtype: str = "auto"
    scheme_why: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineSpeed:
    """Tokens that the engine made a second; `is_of_stand_in`: with a model of the same shapes, since none is here."""

    tokens_per_s: float
    is_of_stand_in: bool = False


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk below the node's state, and what the configuration lets versions take of it."""

    place: str
    free_bytes: int
    quota_bytes: int


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Everything. `failure`: why the learner was not reached; `is_usage` where another invite would help."""

    network: LocalNetwork
    listening: Listening | NotKnown
    map_port: bool
    contact: Contact | NotKnown
    failure: str
    is_usage: bool
    evidence: ReachEvidence | NotKnown
    mapping: PortMapping | NotKnown
    hops: tuple[str, ...] | NotKnown
    clock: ClockOffset | NotKnown
    down: Rate | NotKnown
    up: Rate | NotKnown
    engine: EngineFinding | NotKnown
    speed: EngineSpeed | NotKnown
    disk: Disk
    is_with_invite: bool
