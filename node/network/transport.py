"""This machine among others: its presence in libp2p, and a few words on what it is."""

from __future__ import annotations

import os
import platform
from contextlib import AbstractAsyncContextManager
from functools import partial

from node.config.common import BITS_PER_MBIT
from node.config.node_config import NodeNetworkSection
from node.config.swarm_config import NetworkSection
from node.runtime.events import EventLog
from swarm.libp2p import MapPorts, PortMapped, PortMappingFailed, TellPort, open_libp2p
from swarm.transport.interface import Transport


def open_transport(
    seed: bytes,
    network: NetworkSection | NodeNetworkSection,
    events: EventLog | None = None,
    *,
    tell_port: TellPort | None = None,
) -> AbstractAsyncContextManager[Transport]:
    """A presence in libp2p as the configuration has it: addresses, caps, and whether the router is asked for a port.

    A node asks once it has reached the internet, a learner, which only waits to be reached, at once. What comes of it
    is told to `tell_port`, or else to `events`.
    """
    when = MapPorts.AT_ONCE if isinstance(network, NetworkSection) else MapPorts.ONCE_OUT
    relay_mbit = network.relay_mbit if isinstance(network, NetworkSection) else None
    upload, download, relay = (
        None if mbit is None else mbit * BITS_PER_MBIT
        for mbit in (network.upload_mbit, network.download_mbit, relay_mbit)
    )
    return open_libp2p(
        seed,
        network.listen,
        network.announce,
        upload_bits_per_s=upload,
        download_bits_per_s=download,
        relay_bits_per_s=relay,
        map_ports=when if network.map_port else MapPorts.NEVER,
        tell_port=tell_port or partial(_tell_port, events or EventLog()),
    )


def _tell_port(events: EventLog, event: PortMapped | PortMappingFailed) -> None:
    match event:
        case PortMapped():
            events.emit(
                "port_mapped",
                protocol=event.protocol.value,
                address=str(event.address),
                until=round(event.until),
                gateway=event.gateway,
                behind_another_router=event.is_behind_another_nat,
            )
        case PortMappingFailed():
            events.emit("port_mapping_failed", reason=event.reason, gateway=event.gateway)


def machine_name() -> str:
    """A few words on this machine for the report."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"[:128]
