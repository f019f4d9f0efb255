"""What a member allows: from the command line and the file to the transport and the store."""

from __future__ import annotations

from typing import Any

import pytest

from node.config import NetworkSection, NodeConfig, NodeNetworkSection
from node.errors import UsageError
from node.presence import open_transport
from node.programs import adjusted
from swarm.libp2p.host import Host

SEED = bytes(range(32))
NOTHING_SAID: dict[str, Any] = {
    "name": "",
    "price": None,
    "upload_mbit": None,
    "download_mbit": None,
    "quota_gb": None,
    "hours": None,
    "no_listen": False,
}


@pytest.mark.parametrize("section", [NetworkSection, NodeNetworkSection])
async def test_caps_reach_the_transport(section: type[NetworkSection] | type[NodeNetworkSection]) -> None:
    async with open_transport(SEED, section(listen=[], upload_mbit=8.0)) as transport:
        assert isinstance(transport, Host)
        caps = transport._caps
        assert caps.upload is not None
        assert caps.upload._core.bytes_per_s == 1_000_000
        assert caps.download is None
    async with open_transport(SEED, section(listen=[], download_mbit=80.0)) as transport:
        assert isinstance(transport, Host)
        caps = transport._caps
        assert caps.upload is None
        assert caps.download is not None
        assert caps.download._core.bytes_per_s == 10_000_000


def test_what_the_command_line_says_goes_before_the_file() -> None:
    config = NodeConfig(network=NodeNetworkSection(listen=["/ip4/127.0.0.1/tcp/1"], upload_mbit=1.0, download_mbit=2.0))
    assert adjusted(config, **NOTHING_SAID) == config
    said = adjusted(config, **NOTHING_SAID | {"upload_mbit": 10.0, "quota_gb": 100.0})
    assert said.network == NodeNetworkSection(listen=["/ip4/127.0.0.1/tcp/1"], upload_mbit=10.0, download_mbit=2.0)
    assert said.store.quota_gb == 100.0
    deaf = adjusted(config, **NOTHING_SAID | {"download_mbit": 40.0, "no_listen": True})
    assert adjusted(config, **NOTHING_SAID | {"hours": "19:00-07:30"}).engine.hours == "19:00-07:30"
    with pytest.raises(UsageError, match=r"^--hours: '19-7' is not a range of hours"):
        adjusted(config, **NOTHING_SAID | {"hours": "19-7"})
    assert deaf.network == NodeNetworkSection(listen=[], upload_mbit=1.0, download_mbit=40.0)
