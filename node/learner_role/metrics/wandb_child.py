"""The process in which wandb lives: terms in the first line of stdin, a row in each that follows, the end is the end.

Started by `node.learner_role.metrics.wandb`, which reads what people should know from our stdout, a sentence a line.

Invariants:
- It ends when its stdin does, UPLOAD_S later at the latest, whatever wandb waits for; it never reads from a terminal.
- No row is lost because the server does not answer: rows of a run that could not be opened there are written to disk,
  where `wandb sync` finds them.
- That nobody answers is said once, as soon as it is known, and once more when somebody does again.
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
"""What is left may be uploaded for so long after the learner ended. What is not, stays in the directory for `wandb
sync`."""

INIT_S = 30.0
"""How long a server that takes calls may take to open a run; wandb itself waits for 90 s."""

ANSWER_S = 5.0
"""How long a server may take to take a call: a connection over a bad line takes two seconds."""

LOOK_S = 60.0
"""Between looks at whether the server still takes calls. wandb tries again by itself, and says nothing."""

MISSED = 2
"""Looks in a row that fail before it is said: one is a pause of somebody's router."""


SERVICE = "WANDB_SERVICE"
"""Where wandb notes its service for the processes that it starts."""


def main() -> None:
    """Serve one run."""
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
    """Tells the node what people should know, on the descriptor that was our stdout."""

    descriptor: int

    @classmethod
    def of_stdout(cls) -> Teller:
        """Keep stdout for our sentences; what wandb prints there goes to the log, as stderr does."""
        teller = cls(os.dup(1))
        os.dup2(2, 1)
        return teller

    def say(self, text: str) -> None:
        """Tell a sentence or two, in one line. A node that has gone hears nothing."""
        with suppress(OSError):
            os.write(self.descriptor, " ".join(text.split()).encode() + b"\n")


def _first_line() -> bytes:
    """The first line of stdin, and not a byte of what follows: perhaps another process reads that."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"\n", b""):
        line += byte
    return line


def _opened(terms: dict[str, Any], teller: Teller) -> Any:
    """The run: at the server; on disk where the operator wants that, or the server cannot be had."""
    why = terms.get("why", "")
    if not terms["offline"]:
        import wandb

        base_url = wandb.setup().settings.base_url
        why = unreachable(base_url)
        if not why:
            try:
                run = _open(terms)
            except Exception as error:  # a library of strangers
                lines = str(error).splitlines() or [type(error).__name__]
                _start_again({**terms, "offline": True, "why": lines[0]}, teller)
            Thread(target=_watch, args=(base_url, teller), daemon=True).start()
            return run
        terms = {**terms, "offline": True}
    run = _open(terms)
    if why:
        kept = os.path.dirname(run.dir)
        teller.say(
            f"Weights & Biases gets nothing of this run: {why}. Its metrics are kept, and `wandb sync {kept}` sends "
            "them. The learner's next start tries the server again."
        )
    return run


def _start_again(terms: dict[str, Any], teller: Teller) -> NoReturn:
    """Become a fresh program on the same stdin, with a service of its own: the one there is holds the run's id."""
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
    """Why no connection to the server, or to the proxy before it, can be made; empty if one can."""
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
    """Say when the server takes no calls any more, and when it does again."""
    missed = 0
    while True:
        time.sleep(LOOK_S)
        why = unreachable(base_url)
        if missed >= MISSED and not why:
            teller.say("Weights & Biases can be reached again: what was kept meanwhile is being sent.")
        missed = missed + 1 if why else 0
        if missed == MISSED:
            teller.say(
                f"Weights & Biases gets nothing for now: {why}. What is kept on disk is sent when it can be reached."
            )


if __name__ == "__main__":
    main()
