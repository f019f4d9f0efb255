"""What a node shows while it runs: one screen in a terminal, plain lines elsewhere.

`ViewState` is what there is to show; the loops, or `node.ui.view_updates` on their behalf, write into it. `render` is
pure: the same state gives the same picture. What always holds: nothing here waits, the state stays bounded however long
the run is (notices, rewards, rate samples), and names from strangers cannot move the cursor.
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
"""Rates are over the last so many seconds: several batches of a slow peer, and still short enough to show a stall."""

MAX_REWARDS = 56
"""Steps in the sparkline: what fits beside the figures at 80 columns."""

MAX_NOTICES = 200
"""Kept for plain lines that were not printed yet; the screen shows the last few."""

BY_LAG_CHARS = 120
"""More than a step's event tells of it."""

UNABLE_CHARS = 320
"""Of what nodes cannot do: one reason as long as it may be, and what is said before it."""

REACH_CHARS = 320
"""Of how nodes are reached: every verdict and every way, with numbers."""

NOTICES_SHOWN = 6
PEERS_SHOWN = 16
"""With the other lines this fills a terminal of 40 lines; swarms larger than that read `volery report`."""

BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(kw_only=True)
class Rate:
    """How fast a count grows, over the last RATE_WINDOW_S seconds."""

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
    """One peer's line. `gone` says why it is no longer here, empty while it is; who stands by is not leased to."""

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
    """Something a person may want to know, and when it happened (seconds since the start)."""

    at_s: float
    text: str


@dataclass(kw_only=True)
class ViewState:
    """See the module's paragraph. Versions are in their text form ("1.14"); None or 0 is not known, or not this role's.
    `utilisation` is training over the time that the learner ran, `blocked` what publication and checkpoints cost of it.

    `is_open`: a learner has published a version since its trainer was last loaded. `resting` says why nothing is made,
    outside the owner's hours or paused; `draining`: the node takes no more, and ends; `lags` counts rollouts by lag;
    `buffered` of `batch` rollouts wait for the next step; `joules` were taken of the mains, `watts` of late; `figures`
    are the objective's of the last step; `alarms` those that stand, with the step that raised each; `unable` says which
    nodes cannot work and why, "" if all can, and `nobody_works` that none can; `reach` how nodes are reached and how
    they met, or how this one is; `bytes_carried` went over circuits through us, between others; `fetching` is (bytes
    here, bytes in all) of a version under way. Call `tick` about once a second: it moves the clock and the rates.
    """

    role: Role
    title: str = ""
    me: PeerId | None = None
    activity: str = "starting"
    is_open: bool = False
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
    unable: str = ""
    nobody_works: bool = False
    reach: str = ""
    reach_kind: str = ""
    greedy: float | None = None
    sampled: float | None = None
    pass_at: dict[str, float] = field(default_factory=dict)
    """By k, where it is not what one sample says."""
    admitted: int = 0
    rejected: int = 0
    tokens: int = 0
    pending: int = 0
    lags: Counter[int] = field(default_factory=Counter)
    buffered: int = 0
    batch: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bytes_carried: int = 0
    joules: float | None = None
    watts: float = 0.0
    now_s: float = 0.0
    peers: dict[PeerId, PeerView] = field(default_factory=dict)
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    noted: int = 0
    rate: Rate = field(default_factory=Rate)

    def peer(self, peer: PeerId) -> PeerView:
        """The line of `peer`, made when there is none."""
        return self.peers.setdefault(peer, PeerView(peer=peer))

    def note(self, text: str) -> None:
        """Show `text` among the notices, at the time of the last tick."""
        self.notices.append(Notice(at_s=self.now_s, text=words.plain_name(text, 240)))
        self.noted += 1

    def tick(self, now_s: float) -> None:
        """It is `now_s` seconds after the start."""
        self.now_s = now_s
        self.rate.sample(now_s, self.admitted)
        for peer in self.peers.values():
            peer.rate.sample(now_s, peer.admitted)

    @property
    def sum(self) -> str:
        """What was judged since the program started, as a part of a sentence."""
        return f"{words.count(self.admitted)} rollouts admitted, {words.count(self.rejected)} refused"

    @property
    def has_peers(self) -> bool:
        """Whether anybody is present. Asked with every event, so it looks no further than the first."""
        return any(not peer.gone for peer in self.peers.values())

    @property
    def present(self) -> list[PeerView]:
        return [peer for peer in self.peers.values() if not peer.gone]


# The screen


def render(state: ViewState) -> RenderableType:
    """The whole screen, for a terminal that shows Unicode."""
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
        yield "by lag", Text(f"KL {words.plain_name(state.kl_by_lag, BY_LAG_CHARS)}")
    if state.alarms:
        said = ", ".join(f"{name.replace('_', ' ')} ({step})" for name, step in state.alarms.items())
        yield "alarm", Text(f"since step: {said}", style="bold red")
    if state.unable:
        said = words.plain_name(state.unable, UNABLE_CHARS)
        yield "nodes", Text(said, style="bold red" if state.nobody_works else "yellow")
    yield "rollouts", _rollouts(state)
    yield "lag", Text(lag_line(state.lags))
    if state.batch:
        full = min(1.0, state.buffered / state.batch)
        yield "buffer", Text(f"{bar(full, 16)} {state.buffered} of {state.batch} for the next step")
    yield "traffic", _traffic(state)
    yield from _reach(state)
    yield from _energy(state)


def _busy(state: ViewState) -> str:
    blocked = f", {words.share(state.blocked)} blocked by publication and checkpoints" if state.blocked else ""
    return f"trained {words.share(state.utilisation)} of its time{blocked}"


def _rollout_lines(state: ViewState) -> Iterator[tuple[str, Text]]:
    policy = f"version {state.installed or words.NOTHING} installed"
    if state.newest and state.newest != state.installed:
        policy += f", {state.newest} is newest"
    if state.fetching:
        here, whole = state.fetching
        policy += f", fetching {bar(here / max(1, whole), 12)} {words.size(here)} of {words.size(whole)}"
    yield "policy", Text(policy)
    yield "rollouts", _rollouts(state)
    yield "pending", Text(f"{words.counted(state.pending, 'rollout')} leased, generating or under way")
    yield "traffic", _traffic(state)
    yield from _reach(state)
    yield from _energy(state)


def _reach(state: ViewState) -> Iterator[tuple[str, Text]]:
    if state.reach:
        yield "reach", Text(words.plain_name(state.reach, REACH_CHARS))


def _energy(state: ViewState) -> Iterator[tuple[str, Text]]:
    if state.joules is not None:
        yield "energy", Text(f"{words.kwh(state.joules)} kWh, {state.watts:.0f} W of late")


def _rollouts(state: ViewState) -> Text:
    text = Text(f"{words.rate(state.rate.per_s)} per s, {state.admitted:,} admitted, ")
    text.append(f"{state.rejected:,} rejected", style="yellow" if state.rejected else "")
    return text.append(f", {words.counted(state.tokens, 'token')}")


def _traffic(state: ViewState) -> Text:
    carried = f", {words.size(state.bytes_carried)} over circuits between others" if state.bytes_carried else ""
    return Text(f"{words.size(state.bytes_up)} up, {words.size(state.bytes_down)} down{carried}")


def _reward(state: ViewState) -> Text:
    if not state.rewards:
        return Text("no step yet")
    return Text(f"{state.rewards[-1]:.3f} ").append(sparkline(state.rewards), style="cyan")


def _peers(peers: Sequence[PeerView]) -> RenderableType:
    """Who is here first, then who gave most; those who left are dimmed, with the reason."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("peer", no_wrap=True)
    for heading in ("version", "admitted", "rejected", "per s", "pending", "up", "down"):
        table.add_column(heading, justify="right", no_wrap=True)
    ordered = sorted(peers, key=lambda peer: (bool(peer.gone), -peer.admitted, peer.peer))
    for peer in ordered[:PEERS_SHOWN]:
        name = Text(f"{words.plain_name(peer.name, 10)} {short(peer.peer)}".strip())
        away = "gone" if peer.gone else "stands by" if peer.standing_by else ""
        figures = (
            peer.installed or words.NOTHING, f"{peer.admitted:,}", f"{peer.rejected:,}",
            away or words.rate(peer.rate.per_s), str(peer.pending), words.size(peer.bytes_up),
            words.size(peer.bytes_down),
        )  # fmt: skip
        table.add_row(name, *figures, style="dim" if peer.gone else "")
    hidden = len(ordered) - PEERS_SHOWN
    return Group(table, Text(f"and {hidden} more", style="dim")) if hidden > 0 else table


def clock(seconds: float) -> str:
    """Seconds since the start as mm:ss, or h:mm:ss."""
    whole = int(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes:02}:{whole % 60:02}"


def sparkline(values: Sequence[float] | deque[float]) -> str:
    """One block per value, from the lowest of them to the highest."""
    low, high = min(values), max(values)
    span = high - low or 1.0
    # Divided first: of the least numbers that there are, the reciprocal is infinite.
    return "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in values)


def bar(share: float, width: int) -> str:
    """`share` in [0, 1] of `width` characters filled."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return "█" * filled + "░" * (width - filled)


def lag_line(lags: Mapping[int, int], shown: int = 5) -> str:
    """The histogram in one line: a bar and a share per lag, all beyond the first `shown` together."""
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
    """Every notice as a line, and a status line every `every_s` seconds, newline included, to `write`."""

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
    """The state in one line of `key value` pairs."""
    pairs: list[tuple[str, object]] = []
    if state.role is Role.LEARNER:
        pairs += [("step", state.step), ("version", state.newest or words.NOTHING)]
        pairs += [("reward", f"{state.rewards[-1]:.3f}")] if state.rewards else []
        pairs += [("entropy", f"{state.entropies[-1]:.3f}")] if state.entropies else []
        pairs += [("greedy", f"{state.greedy:.3f}")] if state.greedy is not None else []
        pairs += [("sampled", f"{state.sampled:.3f}")] if state.sampled is not None else []
    else:
        pairs += [("version", state.installed or words.NOTHING), ("newest", state.newest or words.NOTHING)]
        pairs += [("pending", state.pending)]
    pairs += [("admitted", state.admitted), ("rejected", state.rejected), ("per-s", words.rate(state.rate.per_s))]
    if state.role is Role.LEARNER:
        pairs += [("buffer", f"{state.buffered}/{state.batch}")] if state.batch else []
        pairs += [("peers", len(state.present))]
        pairs += [("ALARM", " and ".join(state.alarms))] if state.alarms else []
        pairs += [("NODES", words.plain_name(state.unable, UNABLE_CHARS))] if state.unable else []
    pairs += [("up", words.size(state.bytes_up)), ("down", words.size(state.bytes_down))]
    return ", ".join(f"{key} {value}" for key, value in pairs)


@contextmanager
def shown(console: Console, state: ViewState, *, every_s: float = 5.0) -> Iterator[Callable[[], None]]:
    """Show `state` on `console` while inside; call what is yielded after each tick. The last state stays on the screen.

    A terminal that shows Unicode gets the screen, anything else plain lines.
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
