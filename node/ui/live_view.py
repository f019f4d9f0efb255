"""Hold what a person sees of a node while it runs: on a screen, as lines, or on a page.

The loops write into a `ViewState`, or `node.ui.view_updates` does so for them.

Invariants:

- Nothing here waits.
- The state stays bounded however long the run is (notices, rewards, rate samples).
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from node.energy.machine_load import Load
from node.reports.model.report import Role
from node.runtime import formatting as words
from node.ui.pace import Pace
from protocol.accounting.rank import Rank
from protocol.core.ids import PeerId

RATE_WINDOW_S = 30.0
"""Seconds over which rates are measured: several batches of a slow peer, and still short enough to show a stall."""

MAX_REWARDS = 200
"""Training steps whose rewards are drawn: as many as fit into the widest usual terminal."""

MAX_NOTICES = 200
"""Notices that are kept: for the screen, which shows all of them page by page, and for lines not yet printed."""

NOTICE_CHARS = 1024
"""Most characters of a notice: the longest alarm and its advice, which stands at its end."""


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
    """A message that a person may want to read, and when it was made (seconds since the start).

    `event` and `fields` are what it tells, if it tells an event.
    """

    at_s: float
    text: str
    event: str = field(default="", compare=False)
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(kw_only=True)
class ViewState:
    """Everything that the view shows. Call `tick` about once a second: it moves the clock and the rates.

    Versions are in their text form ("1.14"). None or 0 means: not known, or only the other role has it.

    Args:
        is_open: whether the learner has published a version since its trainer was last loaded.
        start_phase: what the learner does while it is not open, or a node before it has joined.
        began_s: when the program began, by the monotonic clock.
        utilisation: fraction of the learner's time that was spent in training steps.
        waiting: fraction of the learner's time that was spent waiting for rollouts.
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
        load: how busy the machine is with the node; None before it was measured.
        engine: the node's engine, and why that one; `engine_tokens_per_s` is its speed before the first lease.
        trained: records of this node that were trained on, of which it has proofs.
        worked_before_s: seconds that the node had worked before this start; `working_since_s`: since when it works now.
        band, score: the node's reputation, as the learner states it.
        rank: the node's place among all, if the operator shows it.
        noted: notices so far, of which the first `shown` were on the screen, on the page or among the lines.
    """

    role: Role
    title: str = ""
    me: PeerId | None = None
    activity: str = "starting"
    is_open: bool = False
    start_phase: str = "starting"
    utilisation: float | None = None
    waiting: float | None = None
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
    load: Load | None = None
    now_s: float = 0.0
    peers: dict[PeerId, PeerView] = field(default_factory=dict)
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=MAX_NOTICES))
    noted: int = 0
    shown: int = 0
    rate: Rate = field(default_factory=Rate)
    token_rate: Rate = field(default_factory=Rate)
    began_s: float = field(default_factory=time.monotonic, compare=False)
    pace: Pace = field(default_factory=Pace)
    first_step: int | None = None
    """The training step from which this start continued."""
    engine: str = ""
    engine_tokens_per_s: float | None = None
    trained: int | None = None
    worked_before_s: float = 0.0
    working_since_s: float | None = None
    per_hour: float = 0.0
    currency: str = ""
    band: str = ""
    score: float | None = None
    rank: Rank | None = None

    def peer(self, peer: PeerId) -> PeerView:
        """Return the line of `peer`; make one if there is none."""
        return self.peers.setdefault(peer, PeerView(peer=peer))

    def note(self, text: str, event: str = "", fields: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Show `text` among the notices, at the time of the last tick. It may tell an `event` with these `fields`."""
        text = words.plain_name(text, NOTICE_CHARS)
        self.notices.append(Notice(at_s=self.now_s, text=text, event=event, fields=fields))
        self.noted += 1

    def take_back(self, event: str, same: Mapping[str, Any]) -> Notice | None:
        """Remove the newest notice of `event` with these values, and return it; None if it was shown already."""
        for index in range(1, min(self.noted - self.shown, len(self.notices)) + 1):
            notice = self.notices[-index]
            if notice.event == event and same.items() <= notice.fields.items():
                del self.notices[-index]
                self.noted -= 1
                return notice
        return None

    def tick(self, now_s: float) -> None:
        """Set the clock to `now_s` seconds after the start."""
        self.now_s, self.shown = now_s, self.noted
        self.rate.sample(now_s, self.admitted)
        self.token_rate.sample(now_s, self.tokens)
        for peer in self.peers.values():
            peer.rate.sample(now_s, peer.admitted)

    @property
    def publishes(self) -> bool:
        """Whether new versions are published; the operator may hold them back."""
        return bool(self.settings.get("publish", 1))

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

    @property
    def left_s(self) -> float | None:
        """The seconds that the rest of the run takes at the present pace; None if that is not known."""
        return self.pace.left_s(self.step, self.steps)

    @property
    def worked_s(self) -> float:
        """The seconds that the node has worked for the swarm, in all starts."""
        return self.worked_before_s + (0.0 if self.working_since_s is None else self.now_s - self.working_since_s)

    @property
    def earned(self) -> float:
        """What the node asks for its work so far, in whole units of its currency."""
        return self.worked_s / 3600 * self.per_hour

    @property
    def newest_step(self) -> int | None:
        """The training step of the newest version that is known here."""
        known = [int(version.rpartition(".")[2]) for version in (self.newest, self.installed) if version]
        return max(known, default=None)
