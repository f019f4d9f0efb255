"""The libp2p transport, and the only package that imports libp2p. Enter through `open_libp2p`."""

from swarm.libp2p.addresses import BadAddress, parse_address
from swarm.libp2p.host import open_libp2p

__all__ = ["BadAddress", "open_libp2p", "parse_address"]
