"""Hold the findings about this machine: each part is a value, or the reason why it is not known.

Invariants:

- A part that was not found out is a `NotKnown` with a clause that says why. No number stands for a missing value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from node.network.newcomer import Found
from swarm.transport.reach_evidence import ReachEvidence

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class NotKnown:
    """The part is not known. `why` is a clause."""

    why: str


@dataclass(frozen=True, kw_only=True)
class EngineFailed(NotKnown):
    """The engine could not load the swarm's model, or one of its shapes, so a node here could not work."""


class Where(Enum):
    """The learner's place, as seen from this machine."""

    THIS_MACHINE = "on this machine"
    THIS_NETWORK = "in a private network that this machine is in"
    INTERNET = "in the internet"


@dataclass(frozen=True, kw_only=True)
class LocalNetwork:
    """This machine's addresses, except loopback and link-local ones, and its routers. Nothing is sent to read them."""

    ip4: tuple[str, ...] = ()
    ip6: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Listening:
    """How the examination listened.

    Args:
        ports: TCP ports.
        is_fixed: whether the configuration names a port, which the node will then have as well.
        instead_of: the configured address that was already in use, "" if none was.
    """

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
    """The result of asking the routers for a port. `refusals`: pairs of a router and its reason."""

    mapped: tuple[MappedPort, ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()

    @property
    def is_answered(self) -> bool:
        """Whether a router has answered, or will not answer."""
        return bool(self.mapped or self.refusals)


@dataclass(frozen=True, kw_only=True)
class Contact:
    """The learner was reached: what it says, where it is, and how many members were reached besides it."""

    found: Found
    where: Where
    num_members: int = 0


@dataclass(frozen=True, kw_only=True)
class ClockOffset:
    """How many seconds this machine's clock is ahead of the learner's, within `error_s`, half of the round trip."""

    ahead_s: float
    error_s: float
    round_trip_s: float


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Bytes that were moved, and the seconds it took. `is_coarse`: too few bytes for TCP to reach its full speed."""

    size_bytes: int
    seconds: float
    is_coarse: bool

    @property
    def bytes_per_s(self) -> float:
        return self.size_bytes / self.seconds


@dataclass(frozen=True, kw_only=True)
class EngineFinding:
    """The engine that a node would use here, and why."""

    kind: str
    device: str
    why: str
    scheme: str = ""
    compute_dtype: str = "auto"
    scheme_why: str = ""


@dataclass(frozen=True, kw_only=True)
class EngineSpeed:
    """Tokens per second of the engine. `is_of_stand_in`: measured with random weights of the same shapes."""

    tokens_per_s: float
    is_of_stand_in: bool = False


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The disk that holds the node's state, and how much of it the configuration allows for versions."""

    place: str
    free_bytes: int
    quota_bytes: int


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All findings.

    Args:
        failure: why the learner was not reached.
        is_usage: whether another invite would help.
        clashes: our package names that another distribution here owns as well, with its name.
    """

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
    clashes: dict[str, str] = field(default_factory=dict)
