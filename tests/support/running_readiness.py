"""Run the part that tells when sockets are ready, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from swarm.libp2p.sockets.readiness import Readiness, open_readiness


@asynccontextmanager
async def running_readiness() -> AsyncIterator[Readiness]:
    """Yield a running Readiness, where the system has an epoll."""
    with open_readiness() as readiness:
        assert readiness is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.run)
            yield readiness
            nursery.cancel_scope.cancel()
