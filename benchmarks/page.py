"""Claim "page": the live page is small, quick to open, quick to change, and costs the learner next to nothing.

Bars:

- first_kb, at most 200: kilobytes that Chromium receives until the page of an operator is whole.
- first_paint_s, at most 1: from the address to the first paint, the page's server running; median of the repetitions.
- lag_s, at most 2: from an event in the log to the changed element in Chromium; the longest of all.
- watchers_10_core_pct, at most 5: the share of a core that the page's server uses with ten watchers.
- growth_24h_mib, at most 2: how much the memory of the page's feed grows in 24 hours of events, of which the first two
  are left out. `growth_24h_blocks` is that of the blocks of memory that Python holds, without the allocator's gaps.
- browser_growth_24h_mib, at most 1, and browser_growth_24h_nodes, at most 500: how much the objects and the nodes of
  the page grow in a Chromium that shows these 24 hours, a change every 30 s of them, and in which somebody opens a
  peer, a plot's numbers and a search each hour. `noise_mib` and
  `noise_nodes` are the error of their slopes.
- scroll_task_ms, at most 100: the longest task while 1000 peers are scrolled and the run goes on. People notice what
  takes longer (Google's RAIL model). Tasks below 50 ms are not counted (W3C, Long Tasks), so 0 is none.

`cold_s` is told beside them: the first paint if no server runs yet, so that the browser's connection starts one.

The run: a step and a version a second for an hour, 20 peers, and it goes on meanwhile. The page's server is the program
that operators run; its door, the browser and the run's writer share this machine's cores with it. The day's events are
replayed at once, through a log that is rotated, and for the browser as fast as it shows them.
"""

from __future__ import annotations

import gc
import http.client
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import msgspec
import psutil
import trio
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.harness import ROOT, Bar, BenchmarkError, arguments, conclude, main, number, say, scratch, table
from benchmarks.live import page_day
from benchmarks.live.browser import Held, Scrolled, chromium
from benchmarks.live.hour_of_run import LedgerWriter, LogWriter, events_at, peer_of
from node.commands.page.feed import Feed
from node.runtime.events import EventLog
from node.state.locate import StateLocation
from node.web.address import Listen, open_listener
from node.web.door import PageDoor
from node.web.terms import PageTerms

FIRST_KB, FIRST_PAINT_S, LAG_S, CORE_PCT, GROWTH_MIB = 200.0, 1.0, 2.0, 5.0, 2.0
BROWSER_MIB, BROWSER_NODES, TASK_MS = 1.0, 500.0, 100.0
REPS = 5
HOUR_S, DAY_S = 3600, 86_400
PEERS, WATCHERS = 20, 10

SPAN_S = 180.0
"""Seconds over which the processor is measured: several readings of the ledger."""

RENDER_S = 10
"""Seconds of the day between two renderings. Each is one that a watcher would be sent."""

CROWD, CROWD_S = 1000, 60
"""Peers of the run whose table is scrolled, and the seconds that it has gone on for."""

SCROLL_S = 10.0
"""Seconds for the way down to the last of 1000 peers and up again."""

SETTLED_H = 2
"""Hours of the day that are left out of the slope: rates, notices and the pace fill up meanwhile."""

TOKEN = "benchmark-token-0123456789"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT_MS = 60_000


def claim() -> int:
    """Measure, print, and return the exit code."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--span", type=float, default=SPAN_S, help="seconds with ten watchers (default 180)")
    parser.add_argument("--replay", type=Path, help="replay a day in this directory, and print the memory by the hour")
    given = parser.parse_args()
    if given.replay:
        say(json.dumps(replay(given.replay)))
        return 0
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        raise BenchmarkError("there is no Chromium here; run: sudo apt-get install -y chromium")
    with scratch(given.keep) as root, sync_playwright() as playwright:
        say("writing an hour of a run")
        with running(root / "state") as state, playwright.chromium.launch(executable_path=found) as browser:
            cold = [measured_cold(browser, state) for _ in range(given.reps)]
            with served(state) as url:
                kilobytes = measured_size(browser, url)
                warm = [first_paint(browser, url) for _ in range(given.reps)]
                lags = measured_lag(browser, url, state)
                share = measured_share(url, given.span)
        hours = replayed(root)
        with running(root / "crowd", peers=CROWD, seconds=CROWD_S) as state:
            rolled = measured_scroll(found, state)
        held = measured_day(found, root / "browser")[SETTLED_H:]
    blocks, growth = (slope([one[kind] for one in hours[SETTLED_H:]]) * 24 for kind in (0, 1))
    heaps, nodes = [one.heap_mib for one in held], [float(one.nodes) for one in held]
    say(
        table(
            ["", "measured"],
            [
                ["kilobytes of the whole page, gzipped", number(kilobytes, 1)],
                ["first paint, the server running [s]", f"{number(statistics.median(warm))} (to {number(max(warm))})"],
                ["first paint, no server running [s]", f"{number(statistics.median(cold))} (to {number(max(cold))})"],
                ["from event to screen [s]", f"{number(statistics.median(lags))} (to {number(max(lags))})"],
                ["share of a core with ten watchers [%]", number(share)],
                ["memory of the feed's process after 24 hours [MiB]", number(hours[-1][1], 1)],
                ["its growth in 24 hours [MiB]", number(growth)],
                ["growth of the blocks that Python holds there in 24 hours", f"{blocks:.0f} of {hours[-1][0]:.0f}"],
                ["memory of the page in a browser [MiB]", number(heaps[-1], 1)],
                [
                    "its growth in 24 hours [MiB]",
                    f"{number(slope(heaps) * 24)} (error {number(slope_error(heaps) * 24)})",
                ],
                ["growth of its nodes in 24 hours", f"{slope(nodes) * 24:.0f} (error {slope_error(nodes) * 24:.0f})"],
                ["longest task while 1000 peers are scrolled [ms]", number(rolled.longest_task_ms, 0)],
                ["99 of 100 frames meanwhile [ms]", number(frame_ms(rolled), 0)],
            ],
        )
    )
    bars = [
        Bar(name="first_kb", value=kilobytes, at_most=FIRST_KB),
        Bar(name="first_paint_s", value=statistics.median(warm), at_most=FIRST_PAINT_S),
        Bar(name="lag_s", value=max(lags), at_most=LAG_S),
        Bar(name="watchers_10_core_pct", value=share, at_most=CORE_PCT),
        Bar(name="growth_24h_mib", value=growth, at_most=GROWTH_MIB),
        Bar(name="browser_growth_24h_mib", value=slope(heaps) * 24, at_most=BROWSER_MIB),
        Bar(name="browser_growth_24h_nodes", value=slope(nodes) * 24, at_most=BROWSER_NODES),
        Bar(name="scroll_task_ms", value=rolled.longest_task_ms, at_most=TASK_MS),
    ]
    figures = {
        "cold_s": statistics.median(cold),
        "lag_median_s": statistics.median(lags),
        "feed_mib": hours[-1][1],
        "growth_24h_blocks": blocks,
        "browser_mib": heaps[-1],
        "noise_mib": slope_error(heaps) * 24,
        "noise_nodes": slope_error(nodes) * 24,
        "frame_p99_ms": frame_ms(rolled),
    }
    return conclude("page", bars, figures)


# The run


@contextmanager
def running(state: Path, *, peers: int = PEERS, seconds: int = HOUR_S) -> Iterator[Path]:
    """Write the first seconds of a run, an hour of them, and let it go on until the block ends."""
    state.mkdir(parents=True)
    keys = [peer_of(place) for place in range(peers)]
    began = time.time() - seconds
    log, ledger = LogWriter(state / "events.jsonl"), LedgerWriter(state / "ledger.sqlite", round(1000 * began), keys)
    ended = Event()

    def write(second: int) -> None:
        ledger.write(second)
        log.write(began + second, events_at(second, keys))

    def go_on() -> None:
        second = seconds
        ledger.open()
        while not ended.wait(max(0.0, began + second - time.time())):
            write(second)
            second += 1
        ledger.ledger.close()

    for second in range(seconds):
        write(second)
    ledger.ledger.close()
    (state / "invite").write_text("volery1" + "A" * 300, encoding="ascii")
    writer = Thread(target=go_on, daemon=True)
    writer.start()
    try:
        yield state
    finally:
        ended.set()
        writer.join()


@contextmanager
def served(state: Path) -> Iterator[str]:
    """Open the page's door on a thread, and yield the page's address. No server runs yet."""
    listener = open_listener(Listen(host="127.0.0.1", port=0))
    terms = PageTerms(socket=listener.fileno(), kind="learner", title="a swarm", state=str(state), token=TOKEN)
    door, scope = PageDoor(listener=listener, terms=terms, events=EventLog()), trio.CancelScope()
    tokens: list[trio.lowlevel.TrioToken] = []
    opened = Event()

    async def run() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        opened.set()
        with scope:
            await door.run()

    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    thread = Thread(target=trio.run, args=(run,), daemon=True)
    thread.start()
    opened.wait()
    try:
        yield url
    finally:
        tokens[0].run_sync_soon(scope.cancel)
        thread.join()


# What a browser sees

PAINT = "performance.getEntriesByName('first-contentful-paint').map((one) => one.startTime)"


@contextmanager
def opened_page(browser: Browser, url: str) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(f"{url}#token={TOKEN}", timeout=TIMEOUT_MS)
        yield page
    finally:
        context.close()


def first_paint(browser: Browser, url: str) -> float:
    """Return the seconds until something is seen."""
    with opened_page(browser, url) as page:
        return waited(page, f"{PAINT}[0]") / 1000


def waited(page: Page, expression: str) -> float:
    """Return the number that `expression` has, as soon as it has one. The page's policy forbids the browser to wait."""
    ends = time.monotonic() + TIMEOUT_MS / 1000
    while (found := page.evaluate(expression)) is None:
        if time.monotonic() > ends:
            raise BenchmarkError(f"the page never had {expression}")
        page.wait_for_timeout(50)
    return float(found)


def measured_cold(browser: Browser, state: Path) -> float:
    with served(state) as url:
        return first_paint(browser, url)


def measured_size(browser: Browser, url: str) -> float:
    """Return the kilobytes that the browser receives, headers included, until the page is whole and follows the run."""
    with opened_page(browser, url) as page:  # the report is read by now, or waited for
        page.wait_for_selector("#live-peers", timeout=TIMEOUT_MS)
    sizes: dict[str, float] = {}
    context = browser.new_context()
    page = context.new_page()
    network = context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.loadingFinished", lambda told: sizes.update({told["requestId"]: told["encodedDataLength"]}))
    page.goto(f"{url}#token={TOKEN}", timeout=TIMEOUT_MS)
    page.wait_for_selector("html.may-change #live-peers[aria-rowcount]", timeout=TIMEOUT_MS)
    context.close()
    return sum(sizes.values()) / 1000


OBSERVE = """() => {
  window.seen = {};
  const look = () => {
    for (const one of document.querySelectorAll("#notices li span")) {
      if (!(one.textContent in window.seen)) window.seen[one.textContent] = Date.now() / 1000;
    }
  };
  const all = { childList: true, characterData: true, subtree: true };
  new MutationObserver(look).observe(document.getElementById("main"), all);
}"""


def measured_lag(browser: Browser, url: str, state: Path) -> list[float]:
    """Return the seconds from each of some events to the screen, at various moments of the server's round."""
    lags, log = [], LogWriter(state / "events.jsonl")
    with opened_page(browser, url) as page:
        page.wait_for_selector("html.may-change #live-peers[aria-rowcount]", timeout=TIMEOUT_MS)
        page.evaluate(OBSERVE)
        for place in range(20):
            page.wait_for_timeout(170 + 37 * place)
            text, at = f"event {place} of the lag", time.time()
            log.write(at, iter([("trouble", {"text": text})]))
            lags.append(waited(page, f"window.seen[{json.dumps(text)}]") - at)
    return lags


# What it costs


def measured_share(url: str, span_s: float) -> float:
    """Return the share of a core, in percent, that the server uses while ten watchers follow the page."""
    (server,) = (one for one in psutil.Process().children() if "node.commands.page" in " ".join(one.cmdline()))
    host = url.removeprefix("http://").rstrip("/")
    connections = [http.client.HTTPConnection(host) for _ in range(WATCHERS)]
    received = [0] * WATCHERS

    def watch(place: int) -> None:
        connections[place].request("GET", "/events?after=0", headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connections[place].getresponse()
        try:
            while line := answer.readline():
                received[place] += len(line)
        except (OSError, ValueError, AttributeError):  # closed below
            return

    threads = [Thread(target=watch, args=(place,), daemon=True) for place in range(WATCHERS)]
    for thread in threads:
        thread.start()
    time.sleep(10)  # what they are sent first is no part of following
    before, began = server.cpu_times(), time.monotonic()
    time.sleep(span_s)
    after, took = server.cpu_times(), time.monotonic() - began
    say(f"{sum(received) / WATCHERS / took / 1000:.1f} kB a second to each watcher")
    return 100 * (after.user + after.system - before.user - before.system) / took


def replayed(root: Path) -> list[tuple[float, float]]:
    """Return the blocks that a feed's process holds, and its memory in MiB, after each hour of a day's events.

    It runs as a process of its own.
    """
    directory = root / "day"
    directory.mkdir()
    say("replaying a day")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.page", "--replay", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchmarkError(f"the day could not be replayed:\n{done.stderr[-2000:]}")
    return [(held, process) for held, process in json.loads(done.stdout.splitlines()[-1])]


def replay(directory: Path) -> list[tuple[float, float]]:
    """Replay a day here."""
    return trio.run(_replay, directory)


async def _replay(directory: Path) -> list[tuple[float, float]]:
    peers = [peer_of(place) for place in range(PEERS)]
    terms = PageTerms(socket=0, kind="learner", title="a swarm", state=str(directory), token=TOKEN, public=True)
    began, log = time.time() - DAY_S, LogWriter(directory / "events.jsonl")
    second = 0
    place = StateLocation(state=directory, is_learner=True)
    feed = Feed(terms=terms, place=place, clock=lambda: began + second)
    memory = []
    for second in range(DAY_S):
        log.write(began + second, events_at(second, peers))
        if second % RENDER_S == 0:
            feed.catch_up()
        if second % HOUR_S == HOUR_S - 1:
            gc.collect()
            memory.append((float(sys.getallocatedblocks()), psutil.Process().memory_info().rss / 2**20))
    return memory


# What a browser holds, and how busy it is


def measured_scroll(program: str, state: Path) -> Scrolled:
    """Return what scrolling the run's peers takes."""
    say(f"scrolling {CROWD} peers")
    with served(state) as url, chromium(program) as browser:
        browser.open(f"{url}#token={TOKEN}", f"document.querySelector('#live-peers[aria-rowcount=\"{CROWD + 1}\"]')")
        return browser.scroll(SCROLL_S)


def measured_day(program: str, state: Path) -> list[Held]:
    """Return what the page holds after each hour of the day."""
    say("showing a day to a browser")
    state.mkdir()
    held = []
    with showing_day(state) as url, chromium(program) as browser:
        browser.open(f"{url}#token={TOKEN}", "document.querySelector('html.may-change #head')")
        browser.show(FIRST_CHANGES)
        for hour in range(DAY_S // HOUR_S):
            browser.use(hour)
            browser.show(HOUR_S // page_day.RENDER_S)
            held.append(browser.held())
    return held


FIRST_CHANGES = 2
"""Changes before the day's first hour: what somebody opens is there by then."""


@contextmanager
def showing_day(state: Path) -> Iterator[str]:
    """Serve the page of a day's events, and yield its address."""
    with open_listener(Listen(host="127.0.0.1", port=0)) as listener:
        terms = PageTerms(socket=listener.fileno(), kind="learner", title="a swarm", state=str(state), token=TOKEN)
        argv = [sys.executable, "-m", "benchmarks.live.page_day"]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=(listener.fileno(),), cwd=ROOT) as server:
            try:
                assert server.stdin is not None
                server.stdin.write(msgspec.json.encode(terms) + b"\n")
                server.stdin.flush()
                yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
            finally:
                server.kill()


def frame_ms(rolled: Scrolled) -> float:
    """Return the milliseconds that 99 of 100 frames took at most."""
    return statistics.quantiles(rolled.frames_ms, n=100)[-1]


def slope(hourly: list[float]) -> float:
    """Return how much the values grow from one to the next, by least squares."""
    return statistics.linear_regression(range(len(hourly)), hourly).slope


def slope_error(hourly: list[float]) -> float:
    """Return the standard error of that slope, from how far the values are from the line."""
    places = range(len(hourly))
    line = statistics.linear_regression(places, hourly)
    squares = sum(
        (value - line.intercept - line.slope * place) ** 2 for place, value in zip(places, hourly, strict=True)
    )
    spread = sum((place - statistics.fmean(places)) ** 2 for place in places)
    return math.sqrt(squares / (len(hourly) - 2) / spread)


if __name__ == "__main__":
    main(claim)
