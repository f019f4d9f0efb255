"""Run the daemon of a home's router that opens ports on request: miniupnpd, for UPnP IGD, or for PCP and NAT-PMP.

Invariants:

- It listens when the block begins, and has ended when the block has.
- It opens ports only for nodes of its home, and none below 1024.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from benchmarks.network.home import Home, lan4
from benchmarks.network.namespaces import inside
from benchmarks.network.requirements import NetworkUnavailable
from benchmarks.network.routers import DAEMON_CHAINS, LAN, TABLE, WAN, Kind

DAEMON_START_S = 10.0
"""Start timeout: it takes some milliseconds, and longer if many processes wait for a core."""

DAEMON_CONFIG = """
ext_ifname={wan}
listening_ip={lan}
http_port=0
enable_upnp={upnp}
enable_natpmp={pcp}
min_lifetime=1
max_lifetime=86400
lease_file={directory}/leases
upnp_table_name={table}
upnp_nat_table_name={table}
upnp_forward_chain={chains[0]}
upnp_nat_chain={chains[1]}
upnp_nat_postrouting_chain={chains[2]}
uuid={uuid}
secure_mode=yes
system_uptime=no
allow 1024-65535 {network} 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


@contextmanager
def run_daemon(home: Home, number: int, namespaces: dict[str, str]) -> Iterator[None]:
    """Run the daemon of a home's router that opens ports, if it has one."""
    if not home.kind.daemon:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="volery-router-") as directory:
        config = Path(directory) / "miniupnpd.conf"
        config.write_text(_daemon_config(home.kind, f"{lan4(number, 0)}/24", directory), encoding="utf-8")
        log = Path(directory) / "log"
        # In the foreground, so that it is our child.
        argv = ["miniupnpd", "-d", "-f", str(config), "-P", f"{directory}/pid"]
        with (
            log.open("wb") as output,
            subprocess.Popen(inside(namespaces[home.routers[-1]], argv), stdout=output, stderr=output) as daemon,
        ):
            try:
                _wait_listening(daemon, log)
                yield
            finally:
                daemon.kill()


def _wait_listening(daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a daemon says that it listens. Raises NetworkUnavailable with the end of its log."""
    ends = time.monotonic() + DAEMON_START_S
    while b"istening" not in (said := log.read_bytes()):
        if daemon.poll() is not None or time.monotonic() > ends:
            raise NetworkUnavailable(f"miniupnpd did not start: {said.decode(errors='replace').strip()[-500:]}")
        time.sleep(0.01)


def _daemon_config(kind: Kind, network: str, directory: str) -> str:
    return DAEMON_CONFIG.format(
        wan=WAN,
        lan=LAN,
        upnp="yes" if kind.daemon == "upnp" else "no",
        pcp="yes" if kind.daemon == "pcp" else "no",
        directory=directory,
        table=TABLE,
        uuid=uuid4(),
        chains=DAEMON_CHAINS,
        network=network,
    )
