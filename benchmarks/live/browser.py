"""Measure a page in Chromium: what it holds after garbage collection, and how long it is busy while it is scrolled.

The browser is asked over a pipe, and for what is measured alone. Playwright follows the network as well, for which
Chromium keeps something of each request.

Sources: Chrome DevTools Protocol, domains Runtime, HeapProfiler and Memory; W3C Long Tasks.

Invariants:

- The garbage is collected before a measurement.
- The browser and its profile do not outlive the scope.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import BenchmarkError

COLLECTIONS = 3
"""Collections of garbage before a measurement. Elements free what they hold one collection later."""

SETTLE_S = 0.3
"""Seconds before each collection, for what the browser does when it has nothing else to do."""

PIECE_BYTES = 1 << 16
OPEN_S = 60.0

ARGUMENTS = (
    "--headless", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-extensions", "--window-size=1280,900",
)  # fmt: skip

PIPED = """
import fcntl, os, sys
ear, mouth = (fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3])
os.dup2(ear, 3), os.dup2(mouth, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes a browser that is told over a pipe: it reads file descriptor 3, and writes 4."""

SHOW = """async (updates) => {
  const head = () => document.querySelector("#head p")?.textContent;
  for (let number = 0; number < updates; number += 1) {
    const before = head(), ends = performance.now() + 60_000;
    await fetch("next", { cache: "no-store" });
    while (head() === before) {
      if (performance.now() > ends) throw new Error("the page does not change");
      await new Promise((shown) => requestAnimationFrame(shown));
    }
  }
}"""

USE = """async (hour) => {
  const until = async (found) => {
    for (let tries = 0; !found(); tries += 1) {
      if (tries > 600) throw new Error(`the page never had ${found}`);
      await new Promise((shown) => setTimeout(shown, 100));
    }
  };
  document.querySelector("#live-peers tbody a").click();
  await until(() => document.querySelector("#opened section"));
  document.querySelector("#opened > button").click();
  const numbers = document.querySelector("#learned details");
  numbers.open = true;
  await until(() => numbers.querySelector("table"));
  numbers.open = false;
  const find = document.getElementById("find");
  const rows = () => document.querySelectorAll("#live-peers tbody tr[data-peer]").length;
  for (const sought of [`node ${2 + hour % 8}`, ""]) {
    find.value = sought;
    find.dispatchEvent(new Event("input"));
    await until(() => (sought ? rows() === 1 : rows() > 1));
  }
}"""

SCROLL = """async (seconds) => {
  const rows = document.querySelector(".window > .scroll"), tasks = [], frames = [];
  const watch = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((one) => one.duration)));
  watch.observe({ type: "longtask" });
  const began = performance.now();
  let before = began;
  while (before - began < 1000 * seconds) {
    const share = (before - began) / (1000 * seconds), way = 1 - Math.abs(2 * share - 1);
    rows.scrollTop = way * (rows.scrollHeight - rows.clientHeight);
    const now = await new Promise((shown) => requestAnimationFrame(shown));
    frames.push(now - before);
    before = now;
  }
  await new Promise((later) => setTimeout(later, 200));
  watch.disconnect();
  return { tasks, frames };
}"""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a page holds: MiB of the script's and the document's objects, and the number of nodes and listeners."""

    heap_mib: float
    nodes: int
    listeners: int


@dataclass(frozen=True, kw_only=True)
class Scrolled:
    """The longest task while a page's peers were scrolled, 0 if none took 50 ms, and the frames' milliseconds."""

    longest_task_ms: float
    frames_ms: list[float]


@dataclass(kw_only=True, eq=False)
class Chromium:
    """A browser with one page. `told`, `heard`: file descriptors of the pipe."""

    told: int
    heard: int
    _session: str = ""
    _asked: int = 0
    _rest: bytes = field(default=b"", repr=False)

    def open(self, url: str, ready: str) -> None:
        """Open a page, and wait until the expression `ready` is true."""
        if not self._session:
            pages = [one for one in self._ask("Target.getTargets")["targetInfos"] if one["type"] == "page"]
            attached = self._ask("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
            self._session = attached["sessionId"]
        self._ask("Page.navigate", url=url)
        ends = time.monotonic() + OPEN_S
        while not self.run(f"Boolean({ready})"):
            if time.monotonic() > ends:
                raise BenchmarkError(f"the page never had {ready}")
            time.sleep(0.1)

    def run(self, expression: str) -> Any:
        """Return the value of an expression in the page, or of its promise."""
        told = self._ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in told:
            raise BenchmarkError(f"the page failed: {json.dumps(told['exceptionDetails'])[:500]}")
        return told["result"].get("value")

    def show(self, updates: int) -> None:
        """Let the page show this many updates (`benchmarks.live.page_day`)."""
        self.run(f"({SHOW})({updates})")

    def use(self, hour: int) -> None:
        """Open and close a peer and a plot's numbers, and search the peers."""
        self.run(f"({USE})({hour})")

    def scroll(self, span_s: float) -> Scrolled:
        """Scroll the page's peers down to the last and up again within `span_s` seconds."""
        told = self.run(f"({SCROLL})({span_s})")
        return Scrolled(longest_task_ms=max(told["tasks"], default=0.0), frames_ms=told["frames"])

    def held(self) -> Held:
        """Collect the garbage, and return what the page still holds."""
        for _ in range(COLLECTIONS):
            time.sleep(SETTLE_S)
            self._ask("HeapProfiler.collectGarbage")
        heap, counted = self._ask("Runtime.getHeapUsage"), self._ask("Memory.getDOMCounters")
        used = sum(heap.get(kind, 0) for kind in ("usedSize", "embedderHeapUsedSize", "backingStorageSize"))
        return Held(heap_mib=used / 2**20, nodes=counted["nodes"], listeners=counted["jsEventListeners"])

    def _ask(self, method: str, **params: Any) -> Any:
        self._asked += 1
        session = {"sessionId": self._session} if self._session else {}
        os.write(
            self.told, json.dumps({"id": self._asked, "method": method, "params": params, **session}).encode() + b"\0"
        )
        while True:
            answer = self._next()
            if answer.get("id") == self._asked:
                if "error" in answer:
                    raise BenchmarkError(f"Chromium refused {method}: {answer['error']}")
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._rest:
            if not (piece := os.read(self.heard, PIECE_BYTES)):
                raise BenchmarkError("Chromium has ended.")
            self._rest += piece
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)


@contextmanager
def chromium(program: str) -> Iterator[Chromium]:
    """Start the browser `program`, with a profile of its own."""
    with ExitStack() as stack:
        profile = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="volery-chromium-", ignore_cleanup_errors=True)
        )
        (its_ear, told), (heard, its_mouth) = os.pipe(), os.pipe()
        for end in (told, heard):
            stack.callback(os.close, end)
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                PIPED,
                str(its_ear),
                str(its_mouth),
                program,
                *ARGUMENTS,
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(its_ear, its_mouth),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        for end in (its_ear, its_mouth):
            os.close(end)
        yield Chromium(told=told, heard=heard)
