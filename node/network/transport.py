"""This machine among others: its presence in libp2p, and a few words on what it is."""

from __future__ import annotations

import os
import platform
from contextlib import AbstractAsyncContextManager

from node.config.common import BITS_PER_MBIT
from node.config.node_config import NodeNetworkSection
from node.config.swarm_config import NetworkSection
from swarm.libp2p import open_libp2p
from swarm.transport.interface import Transport


def open_transport(seed: bytes, network: NetworkSection | NodeNetworkSection) -> AbstractAsyncContextManager[Transport]:
    """A presence in libp2p as the configuration has it: addresses and caps."""
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
    )


def machine_name() -> str:
    """A few words on this machine for the report."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"[:128]
