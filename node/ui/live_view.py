"""Show what a node does while it runs: one screen in a terminal, plain lines elsewhere.

`ViewState` holds everything that is shown. The loops write into it, or `node.ui.view_updates` does so for them.
`render` is pure: the same state gives the same picture.

Invariants:

- Nothing here waits.
- The state stays bounded however long the run is (notices, rewards, rate samples).
- Names from strangers cannot move the cursor.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.config.swarm_config import regime
from node.reports.model.report import Role
from node.reports.text.report_text import objective_line
from node.runtime import formatting as words
from protocol.core.ids import PeerId, short

RATE_WINDOW_S = 30.0
"""Seconds over which rates are measured: several batches of a slow peer, and still short enough to show a stall."""

MAX_REWARDS = 56
"""Training steps in the sparkline: what fits beside the numbers at 80 columns."""

MAX_NOTICES = 200
"""Notices that are kept for plain lines that were not printed yet. The screen shows only the last few."""

BY_LAG_CHARS = 120
"""Most characters of KL by lag: more than the event of a step ever has."""

UNABLE_CHARS = 320
"""Most characters about nodes that cannot work: the longest reason, and the words before it."""

REACH_CHARS = 320
"""Most characters about how nodes are reached: every verdict and every way, with numbers."""

NOTICE_CHARS = 1024
"""Most characters of a notice: the longest alarm and its advice, which stands at its end."""

NOTICES_SHOWN = 6
PEERS_SHOWN = 16
"""Peers in the table. With the other lines this fills a terminal of 40 lines; `volery report` shows larger swarms."""

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(kw_only=True)
class Rate:
    """Measures how fast a count grows, over the last RATE_WINDOW_S seconds."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def sample(self, now_s: float, count: int) -> None:
        self.samples.append((now_s, count))
        while len(self.samples) > 2 and now_s - self.samples[1][0] >= RATE_WINDOW_S:
            self.samples.popleft()

    @property
    def per_s(self) -> float:
        if len(self.samples) < 2:
            return 0.0
        (began_s, before), (ended_s, after) = self.samples[0], self.samples[-1]
        return (after - before) / (ended_s - began_s) if ended_s > began_s else 0.0


@dataclass(kw_only=True)
class PeerView:
    """The line of one peer. `gone`: why the peer left, "" while it is here. `standing_by`: it is leased nothing."""

    peer: PeerId
    name: str = ""
    installed: str = ""
    admitted: int = 0
    rejected: int = 0
    pending: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    gone: str = ""
    standing_by: bool = False
    rate: Rate = field(default_factory=Rate)


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A message that a person may want to read, and when it was made (seconds since the start)."""

    at_s: float
    text: str


@dataclass(kw_only=True)
class ViewState:
    """Everything that the view shows. Call `tick` about once a second: it moves the clock and the rates.

    Versions are in their text form ("1.14"). None or 0 means: not known, or only the other role has it.

    Args:
        is_open: whether the learner has published a version since its trainer was last loaded.
        start_phase: what the learner does while it is not open.
        utilisation: fraction of the learner's time that was spent in training steps.
        blocked: fraction of the learner's time that publication and checkpoints took.
        resting: why the node generates nothing (outside the owner's hours, or paused); "" while it works.
        draining: whether the node takes no more leases, and ends when it has delivered those that it has.
        figures: the objective's metrics of the last step.
        alarms: the alarms that are not cleared, each with the step that raised it.
        unable: which nodes cannot work, and why; "" if all can.
        nobody_works: whether no node can work.
        reach: how nodes are reached and how they connected to each other; on a rollout node, how others reach it.
        admitted, rejected, tokens: what was judged since the start. `admitted_before`: what was admitted before it.
        lags: admitted rollouts by lag.
        buffered: rollouts that wait for the next step, which takes `batch` of them.
        bytes_up, bytes_down: bytes of chunks of versions. `sent_bytes`, `received_bytes`: all data.
        bytes_carried: bytes that went between other nodes over circuits through this node.
        fetching: bytes that are here, and bytes in all, of the version that is being fetched.
        joules: energy that was taken from the mains; `watts` is the power lately.
    """

    role: Role
    title: str = ""
    me: PeerId | None = None
    activity: str = "starting"
    is_open: bool = False
    start_phase: str = "starting"
    utilisation: float | None = None
    blocked: float | None = None
    resting: str = ""
    draining: bool = False
    newest: str | None = None
    installed: str | None = None
    fetching: tuple[int, int] | None = None
    step: int = 0
    steps: int = 0
    staleness: int | None = None
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_REWARDS))
    entropies: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_REWARDS))
    figures: dict[str, float] = field(default_factory=dict)
    kl_by_lag: str = ""
    alarms: dict[str, int] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)
    """Settings that were changed since the start, by their keys."""
    unable: str = ""
    nobody_works: bool = False
    reach: str = ""
    reach_kind: str = ""
    greedy: float | None = None
    sampled: float | None = None
    pass_at: dict[str, float] = field(default_factory=dict)
    """pass@k by k, for each k above 1; k = 1 is the sampled accuracy."""
    admitted: int = 0
    admitted_before: int = 0
    rejected: int = 0
    tokens: int = 0
    pending: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    buffered: int = 0
    batch: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_carried: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    joules: float | None = None
    watts: float = 0.0
    now_s: float = 0.0
    peers: dict[PeerId, PeerView] = field(default_factory=dict)
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    noted: int = 0
    rate: Rate = field(default_factory=Rate)

    def peer(self, peer: PeerId) -> PeerView:
        """Return the line of `peer`; make one if there is none."""
        return self.peers.setdefault(peer, PeerView(peer=peer))

    def note(self, text: str) -> None:
        """Show `text` among the notices, at the time of the last tick."""
        self.notices.append(Notice(at_s=self.now_s, text=words.plain_name(text, NOTICE_CHARS)))
        self.noted += 1

    def tick(self, now_s: float) -> None:
        """Set the clock to `now_s` seconds after the start."""
        self.now_s = now_s
        self.rate.sample(now_s, self.admitted)
        for peer in self.peers.values():
            peer.rate.sample(now_s, peer.admitted)

    @property
    def sum(self) -> str:
        """How many rollouts were judged since the program started, as a part of a sentence."""
        return f"{words.count(self.admitted)} rollouts admitted, {words.count(self.rejected)} rejected"

    @property
    def admitted_in_all(self) -> int:
        """What was admitted since this node first worked."""
        return self.admitted_before + self.admitted

    @property
    def has_peers(self) -> bool:
        """Whether any peer is present. It is asked with every event, so it looks no further than the first."""
        return any(not peer.gone for peer in self.peers.values())

    @property
    def present(self) -> list[PeerView]:
        return [peer for peer in self.peers.values() if not peer.gone]


# The screen


def render(state: ViewState) -> RenderableType:
    """Return the whole screen, for a terminal that shows Unicode."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True, min_width=8)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for name, value in _learner_lines(state) if state.role is Role.LEARNER else _rollout_lines(state):
        grid.add_row(name, value)
    parts: list[RenderableType] = [_header(state), Padding(grid, (0, 0, 1, 1))]
    if state.peers:
        parts.append(Padding(_peers(list(state.peers.values())), (0, 0, 1, 1)))
    latest = list(state.notices)[-NOTICES_SHOWN:]
    parts += [Text(f" {clock(n.at_s)}  {n.text}", no_wrap=True, overflow="ellipsis") for n in latest]
    return Group(*parts)


def _header(state: ViewState) -> Text:
    who = f" {short(state.me)}" if state.me else ""
    text = Text(" Volery ", style="bold").append(f"{state.role.value}{who}", style="bold")
    if state.title:
        text.append(f" in swarm {words.plain_name(state.title, 32)}")
    return text.append(f"  {clock(state.now_s)}  {state.activity}", style="dim")


def _learner_lines(state: ViewState) -> Iterator[tuple[str, Text]]:
    of = f" of {state.steps}" if state.steps else ""
    window = "" if state.staleness is None else f", {regime(state.staleness)}"
    yield "policy", Text(f"step {state.step}{of}, version {state.newest or words.NOTHING} published{window}")
    yield "reward", _reward(state)
    if state.utilisation is not None:
        yield "learner", Text(_busy(state))
    if state.greedy is not None and state.sampled is not None:
        passes = "".join(f", pass@{k} {value:.3f}" for k, value in state.pass_at.items())
        yield "held-out", Text(f"greedy {state.greedy:.3f}, sampled {state.sampled:.3f}{passes}")
    if state.entropies:
        yield "entropy", Text(f"{state.entropies[-1]:.3f} ").append(sparkline(state.entropies), style="cyan")
    if told := objective_line({name: value for name, value in state.figures.items() if name != "entropy"}):
        yield "mismatch", Text(told)
    if state.kl_by_lag:
        yield "by lag", Text(f"KL at lag {words.plain_name(state.kl_by_lag, BY_LAG_CHARS)}")
    if state.alarms:
        said = ", ".join(f"{name.replace('_', ' ')} (since step {step})" for name, step in state.alarms.items())
        yield "alarm", Text(f"not cleared: {said}", style="bold red")
    if state.unable:
        said = words.plain_name(state.unable, UNABLE_CHARS)
        yield "nodes", Text(said, style="bold red" if state.nobody_works else "yellow")
    yield "rollouts", _rollouts(state)
    yield "lag", Text(lag_line(state.lags))
    if state.batch:
        full = min(1.0, state.buffered / state.batch)
        yield "buffer", Text(f"{bar(full, 16)} {_buffer(state)}")
    yield "traffic", _traffic(state)
    yield from _reach(state)
    yield from _energy(state)


def _buffer(state: ViewState) -> str:
    """Return the rollouts that wait for a training step, and how many one takes: more than one batch may wait."""
    return f"{words.counted(state.buffered, 'rollout')} (a step takes {state.batch})"


def _busy(state: ViewState) -> str:
    blocked = f", blocked by publication and checkpoints {words.share(state.blocked)}" if state.blocked else ""
    return f"training {words.share(state.utilisation)} of its time{blocked}"


def _rollout_lines(state: ViewState) -> Iterator[tuple[str, Text]]:
    policy = f"version {state.installed or words.NOTHING} installed"
    if state.newest and state.newest != state.installed:
        policy += f", {state.newest} is newest"
    if state.fetching:
        here, whole = state.fetching
        policy += f", fetching {bar(here / max(1, whole), 12)} {words.size(here)} of {words.size(whole)}"
    yield "policy", Text(policy)
    yield "rollouts", _rollouts(state)
    yield "leased", Text(f"{words.counted(state.pending, 'rollout')}, not yet judged")
    yield "traffic", _traffic(state)
    yield from _reach(state)
    yield from _energy(state)


def _reach(state: ViewState) -> Iterator[tuple[str, Text]]:
    if state.reach:
        yield "reach", Text(words.plain_name(state.reach, REACH_CHARS))


def _energy(state: ViewState) -> Iterator[tuple[str, Text]]:
    if state.joules is not None:
        yield "energy", Text(f"{words.kwh(state.joules)} kWh, {state.watts:.0f} W recently")


def _rollouts(state: ViewState) -> Text:
    text = Text(f"{words.rate(state.rate.per_s)} per s, {state.admitted:,} admitted, ")
    text.append(f"{state.rejected:,} rejected", style="yellow" if state.rejected else "")
    text.append(f", {words.counted(state.tokens, 'token')}")
    return (
        text.append(f" since the start; {state.admitted_in_all:,} admitted in all") if state.admitted_before else text
    )


def _traffic(state: ViewState) -> Text:
    carried = f", {words.size(state.bytes_carried)} over circuits between other nodes" if state.bytes_carried else ""
    chunks = f"{words.size(state.bytes_up)} up, {words.size(state.bytes_down)} down"
    if state.sent_bytes is None or state.received_bytes is None:
        return Text(f"model chunks {chunks}{carried}")
    whole = f"{words.size(state.sent_bytes)} sent, {words.size(state.received_bytes)} received"
    return Text(f"{whole}, of which model chunks {chunks}{carried}")


def _reward(state: ViewState) -> Text:
    if not state.rewards:
        return Text("no step yet")
    return Text(f"{state.rewards[-1]:.3f} ").append(sparkline(state.rewards), style="cyan")


def _peers(peers: Sequence[PeerView]) -> RenderableType:
    """Return the table of peers: those that are here first, by rollouts admitted; then those that left, dimmed."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("peer", no_wrap=True)
    for heading in ("version", "admitted", "rejected", "per s", "leased", "up", "down"):
        table.add_column(heading, justify="right", no_wrap=True)
    ordered = sorted(peers, key=lambda peer: (bool(peer.gone), -peer.admitted, peer.peer))
    for peer in ordered[:PEERS_SHOWN]:
        name = Text(f"{words.plain_name(peer.name, 10)} {short(peer.peer)}".strip())
        away = "gone" if peer.gone else "standby" if peer.standing_by else ""
        figures = (
            peer.installed or words.NOTHING, f"{peer.admitted:,}", f"{peer.rejected:,}",
            away or words.rate(peer.rate.per_s), str(peer.pending), words.size(peer.bytes_up),
            words.size(peer.bytes_down),
        )  # fmt: skip
        table.add_row(name, *figures, style="dim" if peer.gone else "")
    hidden = len(ordered) - PEERS_SHOWN
    return Group(table, Text(f"and {hidden} more", style="dim")) if hidden > 0 else table


def clock(seconds: float) -> str:
    """Return seconds since the start as mm:ss, or h:mm:ss."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """Return one block for each value, scaled from the lowest value to the highest."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    # Divide first: the reciprocal of the smallest floating-point numbers is infinite.
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in values)


def bar(share: float, width: int) -> str:
    """Return a bar of `width` characters, with the fraction `share` in [0, 1] of them filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def lag_line(lags: Mapping[int, int], shown: int = 5) -> str:
    """Return the histogram in one line: a bar and a share for each lag. Lags from `shown` on are added up."""
    total = sum(lags.values())
    if not total:
        return "no rollout yet"
    cells = [(str(lag), lags.get(lag, 0)) for lag in range(min(shown, max(lags) + 1))]
    if rest := sum(number for lag, number in lags.items() if lag >= shown):
        cells.append((f"{shown}+", rest))
    return "  ".join(f"{lag} {BLOCKS[round(7 * n / total)]} {100 * n / total:.0f}%" for lag, n in cells)


# Plain lines, and choosing between the two


@dataclass(kw_only=True)
class PlainLines:
    """Writes every notice as a line, and a status line every `every_s` seconds, with newlines, to `write`."""

    write: Callable[[str], object]
    every_s: float = 5.0
    _printed: int = 0
    _next_s: float = 0.0

    def update(self, state: ViewState) -> None:
        """Write what is new since the last call."""
        unseen = min(state.noted - self._printed, len(state.notices))
        for notice in list(state.notices)[len(state.notices) - unseen :]:
            self.write(f"{clock(notice.at_s)} {notice.text}\n")
        self._printed = state.noted
        if state.now_s >= self._next_s:
            self.write(f"{clock(state.now_s)} {status_line(state)}\n")
            self._next_s = state.now_s + self.every_s


def status_line(state: ViewState) -> str:
    """Return the state in one line of `key value` pairs."""
    if state.role is Role.LEARNER and not state.is_open:
        return f"{state.activity}, peers {len(state.present)}"
    if state.role is Role.ROLLOUT and state.installed is None and state.newest is None:
        return state.activity
    pairs: list[tuple[str, object]] = []
    if state.role is Role.LEARNER:
        pairs += [("step", state.step), ("version", state.newest or words.NOTHING)]
        pairs += [("reward", f"{state.rewards[-1]:.3f}")] if state.rewards else []
        pairs += [("entropy", f"{state.entropies[-1]:.3f}")] if state.entropies else []
        pairs += [("greedy", f"{state.greedy:.3f}")] if state.greedy is not None else []
        pairs += [("sampled", f"{state.sampled:.3f}")] if state.sampled is not None else []
    else:
        pairs += [("version", state.installed or words.NOTHING), ("newest", state.newest or words.NOTHING)]
        pairs += [("leased", state.pending)]
    pairs += [
        ("admitted", state.admitted),
        ("rejected", state.rejected),
        ("rollouts per s", words.rate(state.rate.per_s)),
    ]
    pairs += [("admitted in all", state.admitted_in_all)] if state.admitted_before else []
    if state.role is Role.LEARNER:
        pairs += [("buffer", _buffer(state))] if state.batch else []
        pairs += [("peers", len(state.present))]
        pairs += [("ALARM", " and ".join(state.alarms))] if state.alarms else []
        pairs += [("NODES", words.plain_name(state.unable, UNABLE_CHARS))] if state.unable else []
    if state.sent_bytes is not None and state.received_bytes is not None:
        pairs += [("sent", words.size(state.sent_bytes)), ("received", words.size(state.received_bytes))]
    pairs += [("chunks up", words.size(state.bytes_up)), ("chunks down", words.size(state.bytes_down))]
    return ", ".join(f"{key} {value}" for key, value in pairs)


@contextmanager
def show_live(console: Console, state: ViewState, *, every_s: float = 5.0) -> Iterator[Callable[[], None]]:
    """Show `state` on `console` while inside, and yield a function to call after each tick.

    A terminal that shows Unicode gets the screen, anything else plain lines. The last state stays on the screen.
    """
    if console.is_terminal and not console.is_dumb_terminal and console.encoding.lower().startswith("utf"):
        with Live(render(state), console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:
            yield lambda: live.update(render(state), refresh=True)
        return

    def write(line: str) -> None:
        console.file.write(line)
        console.file.flush()

    lines = PlainLines(write=write, every_s=every_s)
    try:
        yield lambda: lines.update(state)
    finally:
        lines.update(state)
