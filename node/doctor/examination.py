"""Examine this machine and its connection to a swarm: all parts at once, in half a minute.

The local parts come first: interfaces, engine, disk. Then the learner is asked what any holder of the invite may ask,
and a few members are contacted, which see this machine from other places. The clock and the rates are measured one
after the other, because they share a connection. Meanwhile the first routers on the way, the router's port and the
dial-backs are examined. The engine is tried only when the connection is free, because both would slow each other down.

Invariants:

- The learner treats this machine as a stranger: nothing joins, takes a lease, or gets a line in its ledger.
- Everything ends within WHOLE_S, and some more seconds in which the router's port is given back and the engine ends.
- A part that is not finished in time is reported as such, and does not harm the others.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import trio

from node.config.common import GB
from node.config.node_config import NodeConfig, NodeNetworkSection
from node.doctor.clock import compare_clocks
from node.doctor.engine_trial import try_engine
from node.doctor.findings import (
    ClockOffset,
    Contact,
    Disk,
    EngineFinding,
    EngineSpeed,
    Findings,
    Listening,
    LocalNetwork,
    MappedPort,
    NotKnown,
    PortMapping,
    Rate,
    Where,
)
from node.doctor.first_hops import find_first_hops
from node.doctor.local_network import read_local_network
from node.doctor.rates import measure_download, measure_upload
from node.doctor.settling import is_settled
from node.doctor.stand_in import StandIn, fetch_stand_in
from node.engine import selection
from node.engine.weight_format import FormatChoice, in_force_with
from node.installation.name_clashes import find_clashes
from node.network.first_contact import FIRST_TRY_S
from node.network.newcomer import look_around
from node.network.transport import open_transport
from node.runtime.errors import NodeError, UsageError
from node.state.keys import KEY_BYTES
from node.state.rollout_state import data_directory, swarm_directory
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.core.invite import Invite
from protocol.versions import exchange
from swarm.libp2p import (
    BadAddress,
    PortMapped,
    PortMappingFailed,
    is_circuit,
    is_loopback,
    is_private,
    is_public,
    parse_address,
)
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import (
    DialFailed,
    ListenFailed,
    PeerConnected,
    StreamBroken,
    StreamRefused,
    Transport,
)
from swarm.transport.reach_evidence import ReachEvidence
from swarm.versions.manifest_search import ask

WHOLE_S = 24.0
"""Seconds for all parts. Then 2 s remain for giving the router's port back, and up to 4 s for the engine to end."""

CONTACT_S = 8.0
"""Seconds to reach the learner, unless the caller waits longer."""

ANSWERS_S = 4.0
"""Seconds for the learner's answers to a newcomer: four questions."""

MEMBERS_S = 6.0
MOST_MEMBERS = 3
"""Members that are contacted besides the learner: two observers are enough, and one may be away."""

LOOK_S = 0.1
"""Seconds between two looks at the evidence of how this machine is reached."""

IS_LATE = NotKnown(why=f"no result within {WHOLE_S:.0f} s")
ENGINE_IS_LATE = NotKnown(why=f"no result within {WHOLE_S:.0f} s; an engine's first start takes longest, so try again")
NO_MODEL = "no version of this swarm's model is on this machine, and the learner was not reached"
NOT_ASKED = NotKnown(why="that needs an invite")


async def examine(
    invite: Invite | None,
    config: NodeConfig,
    *,
    state: Path | None,
    wait_s: float = CONTACT_S,
    is_thorough: bool = True,
) -> Findings:
    """Return what could be found out.

    Args:
        wait_s: seconds to dial the learner; 0 means one try. Seconds beyond CONTACT_S are added to WHOLE_S.
        is_thorough: whether to measure the rates and the engine's speed; otherwise nothing is fetched.
    """
    examination = _Examination(
        invite=invite,
        config=config,
        state=state,
        wait_s=wait_s,
        is_thorough=is_thorough,
        network=await read_local_network(),
    )
    with trio.move_on_after(WHOLE_S + max(0.0, wait_s - CONTACT_S)), first_cause():
        await examination.run()
    return examination.findings()


@dataclass(kw_only=True)
class _Examination:
    """One examination: what is known so far about each part."""

    invite: Invite | None
    config: NodeConfig
    state: Path | None
    wait_s: float
    is_thorough: bool
    network: LocalNetwork
    listening: Listening | NotKnown = NOT_ASKED
    contact: Contact | NotKnown = NOT_ASKED
    failure: str = ""
    is_usage: bool = False
    evidence: ReachEvidence | NotKnown = NOT_ASKED
    mapping: PortMapping | NotKnown = NOT_ASKED
    hops: tuple[str, ...] | NotKnown = NOT_ASKED
    clock: ClockOffset | NotKnown = NOT_ASKED
    down: Rate | NotKnown = NOT_ASKED
    up: Rate | NotKnown = NOT_ASKED
    speed: EngineSpeed | NotKnown = ENGINE_IS_LATE
    stand_in: StandIn | NotKnown = NOT_ASKED
    engine: EngineFinding | NotKnown = field(init=False)
    _link_is_free: trio.Event = field(default_factory=trio.Event)
    _asks_for_port: bool = False

    def __post_init__(self) -> None:
        self.engine = choose(self.config)

    async def run(self) -> None:
        """Find everything out. It may be cancelled, and then leaves what is known by then."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._try_engine)
            if self.invite is not None:
                try:
                    await self._examine_link(self.invite)
                except NodeError as error:
                    self._fail(str(error), is_usage=isinstance(error, UsageError))
            self._link_is_free.set()

    def findings(self) -> Findings:
        """Return what is known now."""
        return Findings(
            network=self.network,
            listening=self.listening,
            map_port=self.config.network.map_port,
            contact=self.contact,
            failure=self.failure,
            is_usage=self.is_usage,
            evidence=self.evidence,
            mapping=self.mapping,
            hops=self.hops,
            clock=self.clock,
            down=self.down,
            up=self.up,
            engine=self._engine_in_force(),
            speed=self.speed,
            disk=self._disk(),
            is_with_invite=self.invite is not None,
            clashes=find_clashes(),
        )

    def _fail(self, why: str, *, is_usage: bool) -> None:
        """Note that the learner was not reached, or refused us: what it would have told is then not known."""
        self.failure, self.is_usage = why, is_usage
        not_reached = NotKnown(why="the learner was not reached")
        self.stand_in = NotKnown(why=NO_MODEL)
        self.contact = self.clock = self.down = self.up = not_reached
        self.evidence = self.mapping = self.hops = not_reached

    # This machine.

    def _section(self, engine: EngineFinding) -> FormatChoice:
        """Return the engine's section with the swarm's terms applied, as far as they are known."""
        section = msgspec.structs.replace(self.config.engine, kind=engine.kind)
        if not isinstance(self.contact, Contact):
            return FormatChoice(section=section, why="")
        found = self.contact.found
        return in_force_with(msgspec.structs.replace(self.config, engine=section), found.terms, found.newest)

    def _engine_in_force(self) -> EngineFinding | NotKnown:
        if isinstance(self.engine, NotKnown):
            return self.engine
        held = self._section(self.engine)
        return replace(self.engine, scheme=held.section.scheme_in_force, scheme_why=held.why)

    def _disk(self) -> Disk:
        home = self.state or (data_directory() if self.invite is None else swarm_directory(self.invite.authority.swarm))
        free = shutil.disk_usage(next(parent for parent in (home, *home.absolute().parents) if parent.exists())).free
        return Disk(place=str(home), free_bytes=free, quota_bytes=round(self.config.store.quota_gb * GB))

    def _homes(self) -> list[Path]:
        """Return the directories in which nodes of the swarm keep their state on this machine."""
        if self.state is not None:
            return [self.state]
        if self.invite is None:
            return []
        return sorted(key.parent for key in swarm_directory(self.invite.authority.swarm).glob("*/node.key"))

    async def _try_engine(self) -> None:
        if isinstance(self.engine, NotKnown):
            self.speed = NotKnown(why="there is no engine")
        elif not self.is_thorough:
            self.speed = NotKnown(why="`volery doctor INVITE` measures it")
        else:
            await self._link_is_free.wait()
            engine = self._section(self.engine).section
            self.speed = await try_engine(
                msgspec.structs.replace(self.config, engine=engine), self._homes(), self.stand_in
            )

    # The connection to the swarm.

    async def _examine_link(self, invite: Invite) -> None:
        """Examine the connection. Raises UsageError, RunError."""
        self.contact = self.evidence = self.mapping = self.hops = self.clock = self.down = self.up = IS_LATE
        try:
            await self._examine_from(self.config.network, invite)
        except ListenFailed as error:
            taken = self.config.network.listen
            free = msgspec.structs.replace(self.config.network, listen=[_any_port(one) for one in taken])
            if free.listen == taken:
                raise UsageError(f"[network] listen: {error}.") from None
            await self._examine_from(free, invite, instead_of=str(error).removeprefix("cannot listen on "))

    async def _examine_from(self, network: NodeNetworkSection, invite: Invite, *, instead_of: str = "") -> None:
        """Examine the connection while listening as `network` says. Raises ListenFailed as well."""
        seed = secrets.token_bytes(KEY_BYTES)  # a key of its own, forgotten afterwards, so that this is no node's key
        async with open_transport(seed, network, tell_port=self._hear_of_port) as transport:
            ports = sorted({parse_address(text).port for text in transport.addresses()})
            is_fixed = not instead_of and any(parse_address(text).port for text in network.listen)
            self.listening = Listening(ports=tuple(ports), is_fixed=is_fixed, instead_of=instead_of)
            changes = transport.events()
            with trio.move_on_after((self.wait_s or FIRST_TRY_S) + ANSWERS_S):
                found = await look_around(transport, _ip4_first(invite), self.wait_s)
                event = changes.receive_nowait()
                remote = event.remote_address if isinstance(event, PeerConnected) else ""
                self.contact = Contact(found=found, where=where_is(remote))
            if not isinstance(self.contact, Contact):
                self._fail(
                    "The learner was reached, but did not answer a newcomer's questions in time. Try again in a while.",
                    is_usage=False,
                )
                return
            self._expect_port(network, self.contact.where)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._measure_link, transport, self.contact, invite.token)
                nursery.start_soon(self._find_hops, remote)
                nursery.start_soon(self._find_out, transport)

    async def _measure_link(self, transport: Transport, contact: Contact, token: str) -> None:
        learner = contact.found.learner
        self.clock = await compare_clocks(transport, learner, token)
        if not self.is_thorough:
            self.down = self.up = NotKnown(why="`volery doctor INVITE` measures it")
            return
        self.down = await measure_download(transport, learner, contact.found.newest)
        round_trip_s = self.clock.round_trip_s if isinstance(self.clock, ClockOffset) else 0.0
        self.up = await measure_upload(transport, learner, round_trip_s)
        newest = contact.found.newest
        self.stand_in = (
            NotKnown(why="there is no version yet")
            if newest is None
            else await fetch_stand_in(transport, learner, newest.manifest)
        )
        self._link_is_free.set()

    async def _find_hops(self, remote: str) -> None:
        address = parse_address(remote)
        if address.kind != "ip4" or not is_public(address):
            self.hops = NotKnown(why="the learner has no public IPv4 address, so no router on the way was asked")
            return
        found = await find_first_hops(address.host)
        self.hops = NotKnown(why="no router on the way answered") if found is None else found

    # How others reach this machine.

    async def _find_out(self, transport: Transport) -> None:
        """Contact some members, and look until no more evidence is to be expected."""
        contact = self.contact
        assert isinstance(contact, Contact)
        met = 1
        if contact.where is Where.INTERNET:
            num_members = await self._meet_members(transport, contact.found.learner)
            self.contact = replace(contact, num_members=num_members)
            met += num_members
        began_s = trio.current_time()
        while True:
            evidence = self.evidence = transport.reach_evidence()
            if is_settled(
                evidence,
                self.mapping if self._asks_for_port else None,
                routers=self.network.gateways,
                num_met=met,
                is_outside=contact.where is Where.INTERNET,
                elapsed_s=trio.current_time() - began_s,
            ):
                return
            await trio.sleep(LOOK_S)

    async def _meet_members(self, transport: Transport, learner: PeerId) -> int:
        """Connect to some of the members that can be dialled; return how many were reached."""
        met: list[PeerId] = []
        with trio.move_on_after(MEMBERS_S), suppress(StreamRefused, StreamBroken, PeerError, trio.TooSlowError):
            answer = await ask(transport, learner, exchange.AskPeers(), timeout_s=MEMBERS_S)
            told = answer.peers if isinstance(answer, exchange.TellPeers) else []
            async with trio.open_nursery() as nursery:
                for addresses in dialable(told, transport):
                    nursery.start_soon(_meet, transport, addresses, met)
        return len(met)

    def _expect_port(self, network: NodeNetworkSection, where: Where) -> None:
        """Note whether a router was asked for a port, by the same rules by which a node asks."""
        private = [host for host in self.network.ip4 if not is_public(parse_address(f"/ip4/{host}/tcp/1"))]
        if not network.map_port:
            self.mapping = NotKnown(why="[network] map_port = false")
        elif not network.listen:
            self.mapping = NotKnown(why="the node does not listen")
        elif where is not Where.INTERNET:
            self.mapping = NotKnown(why=f"the learner is {where.value}")
        elif not private:
            self.mapping = NotKnown(why="this machine's addresses are public, so no home router is in front of it")
        else:
            self._asks_for_port = True
            if isinstance(self.mapping, NotKnown):
                self.mapping = PortMapping()

    def _hear_of_port(self, event: PortMapped | PortMappingFailed) -> None:
        before = self.mapping if isinstance(self.mapping, PortMapping) else PortMapping()
        match event:
            case PortMapped():
                one = MappedPort(
                    address=str(event.address),
                    protocol=event.protocol.value,
                    gateway=event.gateway,
                    is_behind_another_nat=event.is_behind_another_nat,
                )
                self.mapping = PortMapping(mapped=(*before.mapped, one), refusals=before.refusals)
            case PortMappingFailed():
                refusal = (event.gateway, event.reason)
                self.mapping = PortMapping(mapped=before.mapped, refusals=(*before.refusals, refusal))


def choose(config: NodeConfig) -> EngineFinding | NotKnown:
    """Return the engine that `volery join` would use, or why there is none, as a sentence."""
    try:
        choice = selection.choose_engine(config.engine, selection.look(config.engine))
    except UsageError as error:
        return NotKnown(why=str(error))
    section = choice.section
    return EngineFinding(
        kind=section.kind,
        device=section.device,
        why=choice.why,
        scheme=section.scheme_in_force,
        compute_dtype=section.compute_dtype_in_force,
    )


def where_is(remote: str) -> Where:
    """Return where the peer is that was dialled at this address."""
    try:
        address = parse_address(remote)
    except BadAddress:
        return Where.INTERNET
    if is_loopback(address):
        return Where.THIS_MACHINE
    return Where.THIS_NETWORK if is_private(address) else Where.INTERNET


def dialable(told: Sequence[exchange.PeerAddresses], transport: Transport) -> list[list[str]]:
    """Return the addresses of at most MOST_MEMBERS named members in the internet that can be dialled, IPv4 first."""
    found = []
    for one in told:
        public = [
            text for text in one.addresses if not is_circuit(text) and _is_outside(text) and transport.may_dial(text)
        ]
        if public and PeerId(one.peer) not in transport.connected_peers():
            found.append(sorted(public, key=_is_ip6))
    return found[:MOST_MEMBERS]


async def _meet(transport: Transport, addresses: Sequence[str], met: list[PeerId]) -> None:
    with suppress(DialFailed):
        met.append(await transport.dial(addresses, named_by_others=True))


def _is_outside(text: str) -> bool:
    try:
        return is_public(parse_address(text))
    except BadAddress:
        return False


def _is_ip6(text: str) -> bool:
    return text.startswith("/ip6/")


def _ip4_first(invite: Invite) -> Invite:
    """Return the invite with its IPv4 addresses first: routers translate those, and the examination finds out how."""
    return msgspec.structs.replace(invite, addresses=sorted(invite.addresses, key=_is_ip6))


def _any_port(text: str) -> str:
    """Return the same address with any free port."""
    return f"{text.rpartition('/')[0]}/0"
