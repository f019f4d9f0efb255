"""A peer of go-libp2p 0.29.2 that punches holes: kubo 0.22 as a C library, in a process and a network of its own.

    python -m tests.support.partners.kubo LIBRARY REPOSITORY SETTINGS

The process is given an address to connect to on each line of standard input, and says on standard error, behind MARK,
that it runs and what came of each. It has no bootstrap peers, no DHT and no mDNS, and nobody is in its network but the
tests. It believes that it cannot be dialled, reserves with the relays that it is given, and punches once four peers
at different addresses have told it where they see it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

MARK = "kubo: "


def settle(path: Path, settings: dict[str, object]) -> None:
    """Write into a fresh repository's configuration what the tests need of it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {
        "Identity": settings["identity"],
        "Bootstrap": [],
        "Discovery": {"MDNS": {"Enabled": False}},
        "Routing": {"Type": "none"},
        "AutoNAT": {"ServiceMode": "disabled"},
        "Internal": {"Libp2pForceReachability": "private"},
    }
    config["Addresses"] |= {"Swarm": [settings["listen"]], "API": [], "Gateway": []}
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
