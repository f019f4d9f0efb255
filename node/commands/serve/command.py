"""Run `volery serve`: open an endpoint as the command line says, and serve until stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from node.commands.serve.answers import model_names
from node.commands.serve.api import Api
from node.commands.serve.connection import Timeouts
from node.commands.serve.keys import read_key
from node.commands.serve.server import Server, listen
from node.runtime.shutdown import Stopped, stop_when_told
from node.runtime.stdout import complain, say
from node.serving.opening import Opening, open_model, prepare
from node.serving.served_model import ServedModel, read_served
from swarm.transport.error_groups import first_cause


@dataclass(frozen=True, kw_only=True)
class Where:
    """The address to listen on, and the key that requests must give."""

    host: str
    port: int
    key: str
    key_file: Path | None


async def serve(
    target: Path | None,
    *,
    version: str,
    config: Path | None,
    device: str,
    name: str,
    where: Where,
    dry_run: bool,
    as_json: bool = False,
) -> int:
    """Serve until stopped, or with `dry_run` only print what would be served. Return the exit code."""
    key = read_key(where.key, where.key_file, where.host)
    opening = prepare(target, version=version, config=config, device=device, name=name, tell=complain)
    if dry_run:
        told = await trio.to_thread.run_sync(_describe, opening)
        say(json.dumps(told, indent=2) if as_json else "\n".join(f"{label:13}  {text}" for label, text in told.items()))
        return 0
    with suppress(Stopped), first_cause():
        async with trio.open_nursery() as nursery:
            await nursery.start(stop_when_told)
            listeners = await listen(where.host, where.port)  # first, because loading the model takes time
            try:
                say(await trio.to_thread.run_sync(opening.announce))
                async with open_model(opening, tell=complain) as model:
                    await _answer(model, listeners, key)
            finally:
                for listener in listeners:
                    await trio.aclose_forcefully(listener)
    say("Stopped.")
    return 0


async def _answer(model: ServedModel, listeners: Sequence[trio.SocketListener], key: str | None) -> None:
    server = Server(api=Api(model=model, key=key), timeouts=Timeouts())
    served = model.served
    names = " and ".join(model_names(model.source.name, served))
    for listener in listeners:
        host, port = listener.socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        say(f"Serving {names} at http://{shown}:{port}/v1")
    say(f"Context: {served.context} tokens. {'Requests need the key.' if key else 'No key is needed.'} Ctrl-C ends.")
    await server.serve(listeners)


def _describe(opening: Opening) -> dict[str, str]:
    """Return what would be served, by label. Raises NodeError."""
    first = opening.first()
    served = read_served(first, first.directory, opening.source)
    codec = served.codec
    template = codec.template.where if codec.template is not None else "none: only /v1/completions can be used"
    follows = "stays" if opening.version or not first.label else "newer versions replace it"
    return {
        "model": " and ".join(model_names(opening.source.name, served)),
        "version": f"{first.label or 'a directory without versions'}; {follows}",
        "files": str(first.directory),
        "engine": f"{opening.section.kind}: {opening.why}",
        "context": f"{served.context} tokens",
        "chat template": template,
        "tool format": codec.tool_format or "unknown: calls of tools are not read",
        "stop tokens": ", ".join(map(str, sorted(codec.stop_ids))),
    }
