"""Run a program that listens on a port and has it mapped: `python mapped_node.py NAME PORT`.

It writes a line of JSON for each event and change, and obeys lines on stdin: "look" looks again, the end of stdin ends
it. To each connection it says its name.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Sequence
from functools import partial

import trio

from swarm.libp2p.port_mapping.keeper import MappedPort
from swarm.libp2p.port_mapping.port_mapper import PortMapped, PortMapper, PortMappingFailed
from swarm.libp2p.sockets.addresses import Address


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def changed(mapped: Sequence[MappedPort]) -> None:
    say(event="changed", addresses=[str(one.address) for one in mapped])


def happened(event: PortMapped | PortMappingFailed) -> None:
    match event:
        case PortMapped(protocol=protocol, address=address, is_behind_another_nat=is_behind):
            say(event="port_mapped", protocol=protocol.value, host=address.host, port=address.port, double=is_behind)
        case PortMappingFailed(reason=reason, gateway=gateway):
            say(event="port_mapping_failed", reason=reason, gateway=gateway)


async def main(name: str, port: int) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.send_all(name.encode())

    listening = [Address(kind="ip4", host="0.0.0.0", port=port), Address(kind="ip6", host="::", port=port)]
    mapper = PortMapper(listening=listening, on_change=changed, on_event=happened)
    both = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    both.setblocking(False)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(both))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, answer, [listener]))
        nursery.start_soon(mapper.run)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            if line.strip() == "look":
                mapper.look_again()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]))
