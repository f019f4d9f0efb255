"""Serve an OpenEnv app on a given socket, until standard input ends.

    python server_program.py DIRECTORY MODULE APP SOCKET READY

It needs uvicorn and nothing of Volery, so it may run in a Python environment of its own. It serves `APP` of `MODULE`,
which is an installed module or one in DIRECTORY, on the listening socket with file descriptor SOCKET. Once it serves,
it writes a byte to file descriptor READY. It ends when its standard input ends, so it cannot outlive the process that
started it, however that process ends.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from typing import Any


def main() -> None:
    """Serve until stdin ends."""
    directory, module, name, listening, ready = sys.argv[1:]
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.path[0] = directory  # replaces this program's own directory, whose modules the server must not see
    uvicorn: Any = importlib.import_module("uvicorn")
    app: Any = importlib.import_module(module)
    for part in name.split("."):
        app = getattr(app, part)

    server: Any = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, ws_max_size=16 << 20))
    startup = server.startup

    async def tell_startup(sockets: list[socket.socket]) -> None:
        await startup(sockets=sockets)
        os.write(int(ready), b"1")
        os.close(int(ready))

    server.startup = tell_startup
    server.run(sockets=[socket.socket(fileno=int(listening))])


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
