"""Run wandb in a process of its own. The first line of stdin has the terms, and each further line a row.

`node.learner_role.metrics.wandb` starts it, and reads notices for people from its stdout, one a line.

Invariants:

- It ends when its stdin does, at most UPLOAD_S later, even if wandb waits. It never reads from a terminal.
- No row is lost because the server does not answer. Rows of a run that could not be opened there are written to disk,
  where `wandb sync` finds them.
- A notice says once that the server does not answer, as soon as that is known, and once that it answers again.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread, Timer
from typing import Any, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from learner.trainer_api.last_resort_exit import tell_deaths

UPLOAD_S = 120.0
"""Most seconds of uploading after the learner ended. The rest stays in the directory for `wandb sync`."""

INIT_S = 30.0
"""Seconds that a reachable server may take to open a run. wandb itself waits for 90 s."""

ANSWER_S = 5.0
"""Seconds that a server may take to accept a connection. Over a bad network it takes two seconds."""

LOOK_S = 60.0
"""Seconds between two checks whether the server is reachable. wandb retries by itself, without a message."""

MISSED = 2
"""Failed checks in a row before a notice. One may be a short pause of a router."""


SERVICE = "WANDB_SERVICE"
"""Environment variable with wandb's service, for the processes that it starts."""


def main() -> None:
    """Send the rows of one run."""
    tell_deaths()
    teller = Teller.of_stdout()
    terms = json.loads(sys.argv[1] if len(sys.argv) > 1 else _first_line())
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the operator asked for metrics to be sent, nothing else
    run = _opened(terms, teller)
    for line in sys.stdin.buffer:
        run.log(json.loads(line))
    watchdog = Timer(UPLOAD_S, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    run.finish()


@dataclass(frozen=True)
class Teller:
    """Sends notices for people to the node, on the descriptor that was our stdout."""

    descriptor: int

    @classmethod
    def of_stdout(cls) -> Teller:
        """Keep stdout for our notices. The output of wandb goes to the log, as stderr does."""
        teller = cls(os.dup(1))
        os.dup2(2, 1)
        return teller

    def say(self, text: str) -> None:
        """Send a notice in one line. If the node is gone, the notice is lost."""
        with suppress(OSError):
            os.write(self.descriptor, " ".join(text.split()).encode() + b"\n")


def _first_line() -> bytes:
    """Return the first line of stdin, without reading a byte more: another process may read the rest."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"\n", b""):
        line += byte
    return line


def _opened(terms: dict[str, Any], teller: Teller) -> Any:
    """Return the run: at the server, or on disk if the operator wants that or the server cannot be reached."""
    why = terms.get("why", "")
    if not terms["offline"]:
        import wandb

        base_url = wandb.setup().settings.base_url
        why = unreachable(base_url)
        if not why:
            try:
                run = _open(terms)
            except Exception as error:  # a third-party library may raise anything
                lines = str(error).splitlines() or [type(error).__name__]
                _start_again({**terms, "offline": True, "why": lines[0]}, teller)
            if url := run.url:
                shown = url.partition("?")[0]  # what follows may be the key of an anonymous account
                teller.say(f"Weights & Biases shows this run at {shown}")
            Thread(target=_watch, args=(base_url, teller), daemon=True).start()
            return run
        terms = {**terms, "offline": True}
    run = _open(terms)
    if why:
        kept = os.path.dirname(run.dir)
        teller.say(
            f"Weights & Biases gets no metrics of this run: {why}. They are kept on disk, and `wandb sync {kept}` "
            "sends them. The learner's next start tries the server again."
        )
    return run


def _start_again(terms: dict[str, Any], teller: Teller) -> NoReturn:
    """Become a new program on the same stdin, with a new service, because the present one holds the run's id."""
    os.dup2(teller.descriptor, 1)
    os.environ.pop(SERVICE, None)
    os.execv(sys.executable, [sys.executable, "-m", "node.learner_role.metrics.wandb_child", json.dumps(terms)])


def _open(terms: dict[str, Any]) -> Any:
    import wandb

    run = wandb.init(
        project=terms["project"],
        group=terms["group"],
        id=terms["id"],
        name=terms["id"],
        resume="allow",
        dir=terms["directory"],
        mode="offline" if terms["offline"] else None,
        settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False, init_timeout=INIT_S),
    )
    run.define_metric("*", step_metric="step")
    return run


def unreachable(base_url: str) -> str:
    """Return why the server, or the proxy before it, cannot be reached; empty if it can."""
    url = urlsplit(base_url)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    proxy = "" if proxy_bypass(host) else getproxies().get(url.scheme, "")
    if proxy:
        through = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host, port = through.hostname or "", through.port or 80
    try:
        socket.create_connection((host, port), timeout=ANSWER_S).close()
    except (OSError, UnicodeError) as error:
        return f"{'the proxy ' if proxy else ''}{host}:{port} cannot be reached ({error})"
    return ""


def _watch(base_url: str, teller: Teller) -> None:
    """Send a notice when the server cannot be reached any more, and when it can be again."""
    missed = 0
    while True:
        time.sleep(LOOK_S)
        why = unreachable(base_url)
        if missed >= MISSED and not why:
            teller.say("Weights & Biases can be reached again: the metrics kept meanwhile are being sent.")
        missed = missed + 1 if why else 0
        if missed == MISSED:
            teller.say(
                f"Weights & Biases gets no metrics now: {why}. They are kept on disk, and sent when it can be reached."
            )


if __name__ == "__main__":
    main()
