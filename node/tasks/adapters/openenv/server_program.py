"""The program that an OpenEnv server is which was started here. It needs uvicorn, and nothing of Volery: it may run in
an environment of its own, with the packages of its environment.

    python server_program.py DIRECTORY MODULE APP SOCKET READY

It serves `APP` of `MODULE`, looked for among what is installed and in DIRECTORY, on the listening socket with file
descriptor SOCKET, and writes a byte to file descriptor READY once it does. It ends when its standard input does, so it
cannot outlive the process that started it, however that ends.
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
    sys.path[0] = directory  # in place of this program's own directory, whose modules are no business of the server's
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
