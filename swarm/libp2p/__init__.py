"""The libp2p transport, and the only package that imports libp2p. Enter through `open_libp2p`."""

from swarm.libp2p.addresses import Address, BadAddress, parse_address, why_no_host, why_undialable
from swarm.libp2p.host import open_libp2p

__all__ = ["Address", "BadAddress", "open_libp2p", "parse_address", "why_no_host", "why_undialable"]
