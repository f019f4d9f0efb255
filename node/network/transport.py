"""Open this machine's transport (libp2p), and describe the machine in a few words."""

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
    """Open libp2p as the configuration asks: addresses, bandwidth limits, and whether to ask the router for a port.

    A node asks once it has reached the internet. A learner only waits to be reached, so it asks at once. `tell_port`
    gets the result; by default it goes to `events`.
    """
    when = MapPorts.AT_ONCE if isinstance(network, NetworkSection) else MapPorts.ONCE_OUT
    relay_mbit = network.relay_mbit if isinstance(network, NetworkSection) else None
    upload, download, relay = map(bits_per_s, (network.upload_mbit, network.download_mbit, relay_mbit))
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


def bits_per_s(mbit: float | None) -> float | None:
    """Return a cap in bits per second; None for no cap."""
    return None if mbit is None else mbit * BITS_PER_MBIT


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
    """Return a short description of this machine for the report."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"[:128]
