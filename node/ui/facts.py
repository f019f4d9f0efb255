"""Say in short lines how a learner or a node is doing: the figures of the screen, each with a label. Pure.

Invariants:

- A figure has its unit, and a label that a person knows.
- Each fact has a rank: a small screen leaves out the facts with the highest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from node.config.swarm_config import regime
from node.reports.model.report import Role
from node.reports.model.time_words import part_names
from node.reports.text.report_text import objective_line
from node.runtime import formatting as words
from node.ui.charts import bar, divided, lag_line, sparkline
from node.ui.live_view import ViewState
from protocol.accounting.rank import Rank

BY_LAG_CHARS = 120
"""Most characters of KL by lag: more than the event of a step ever has."""

UNABLE_CHARS = 320
"""Most characters about nodes that cannot work: the longest reason, and the words before it."""

REACH_CHARS = 320
"""Most characters about how nodes are reached: every verdict and every way, with numbers."""

ENGINE_CHARS = 240
"""Most characters about an engine: its kind, and the longest reason for it."""

SHADES = ("█", "▓", "░", "·")
STYLES = ("green", "yellow", "magenta", "dim")
"""How the kinds of the learner's time look in the bar: training, waiting, publishing, other."""


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One fact. `rank`: 0 stays on the smallest screen."""

    label: str
    value: Text
    rank: int


def facts_of(state: ViewState, width: int) -> list[Fact]:
    """Return the facts of a learner or a node, in order. `width`: the columns for their values."""
    return list(_of_learner(state, width) if state.role is Role.LEARNER else _of_node(state))


def _of_learner(state: ViewState, width: int) -> Iterator[Fact]:
    yield Fact(label="step", value=Text(progress(state)), rank=0)
    if state.alarms:
        said = ", ".join(f"{name.replace('_', ' ')} (since step {step})" for name, step in state.alarms.items())
        yield Fact(label="alarm", value=Text(f"not cleared: {said}", style="bold red"), rank=0)
    if state.unable:
        style = "bold red" if state.nobody_works else "yellow"
        yield Fact(label="nodes", value=Text(words.plain_name(state.unable, UNABLE_CHARS), style=style), rank=0)
    yield Fact(label="reward", value=reward(state, width), rank=1)
    if state.greedy is not None and state.sampled is not None:
        passes = "".join(f", pass@{k} {value:.3f}" for k, value in state.pass_at.items())
        held_out = Text(f"greedy {state.greedy:.3f}, sampled {state.sampled:.3f}{passes}")
        yield Fact(label="held-out", value=held_out, rank=1)
    window = "" if state.staleness is None else f", {regime(state.staleness)}"
    yield Fact(label="version", value=Text(f"{state.newest or words.NOTHING} published{window}"), rank=2)
    if state.utilisation is not None:
        yield Fact(label="learner", value=learner_time(state, width), rank=2)
    yield Fact(label="rollouts", value=_rollouts(state), rank=1)
    if state.batch:
        filled = bar(min(1.0, state.buffered / state.batch), 12)
        yield Fact(label="buffer", value=Text(f"{filled} {buffer(state)}"), rank=3)
    yield Fact(label="lag", value=Text(lag_line(state.lags)), rank=5)
    if state.entropies:
        recent = list(state.entropies)[-max(1, min(60, width - 6)) :]
        line = Text(f"{state.entropies[-1]:.3f} ").append(sparkline(recent), style="cyan")
        yield Fact(label="entropy", value=line, rank=5)
    if told := objective_line({name: value for name, value in state.figures.items() if name != "entropy"}):
        yield Fact(label="mismatch", value=Text(told), rank=6)
    if state.kl_by_lag:
        told = f"KL at lag {words.plain_name(state.kl_by_lag, BY_LAG_CHARS)}"
        yield Fact(label="by lag", value=Text(told), rank=8)
    yield from _of_both(state)


def _of_node(state: ViewState) -> Iterator[Fact]:
    yield Fact(label="version", value=Text(_versions(state)), rank=0)
    yield Fact(label="rollouts", value=_rollouts(state), rank=1)
    yield Fact(label="speed", value=Text(speed(state)), rank=1)
    yield Fact(label="leased", value=Text(f"{words.counted(state.pending, 'rollout')}, not yet judged"), rank=3)
    if state.trained is not None and state.admitted_in_all:
        yield Fact(label="trained", value=Text(trained(state)), rank=2)
    if state.band:
        score = "" if state.score is None else f", {state.score:.2f} of 1"
        yield Fact(label="standing", value=Text(f"reputation {state.band}{score}"), rank=3)
    if state.rank is not None:
        yield Fact(label="rank", value=Text(" ".join(rank_words(state.rank))), rank=3)
    if state.per_hour:
        yield Fact(label="earned", value=Text(earned(state)), rank=2)
    if (step := state.newest_step) is not None:
        window = "" if state.staleness is None else f"; {regime(state.staleness)}"
        yield Fact(label="swarm", value=Text(f"trained up to step {step:,}, version {state.newest}{window}"), rank=1)
    yield from _machine(state)
    if state.engine:
        yield Fact(label="engine", value=Text(words.plain_name(state.engine, ENGINE_CHARS)), rank=4)
    yield from _of_both(state)


def _machine(state: ViewState) -> Iterator[Fact]:
    """Yield how busy the machine is: first its GPUs, which do the work where there are any."""
    if state.load is None or state.load.cpu is None:
        return
    processor, memory, *gpus = state.load.figures
    for number, gpu in enumerate(gpus):
        label = f"GPU {number}" if len(gpus) > 1 else "GPU"
        yield Fact(label=label, value=Text(gpu.text), rank=5 if number else 2)
    yield Fact(label="machine", value=Text(f"{processor.text}, {memory.text}"), rank=3 if gpus else 2)


def _of_both(state: ViewState) -> Iterator[Fact]:
    yield Fact(label="traffic", value=_traffic(state), rank=6)
    if state.reach:
        yield Fact(label="reach", value=Text(words.plain_name(state.reach, REACH_CHARS)), rank=7)
    if state.joules is not None:
        told = f"{words.kwh(state.joules)} kWh, {state.watts:.0f} W recently"
        yield Fact(label="energy", value=Text(told), rank=7)


# One by one


def progress(state: ViewState) -> str:
    """Return how far a run is, and how long it still takes."""
    said = [f"{state.step:,} of {state.steps:,}" if state.steps else f"{state.step:,}"]
    if (left := state.left_s) is not None and state.step < state.steps:
        said.append(f"about {words.duration(left)} left")
    if (step_s := state.pace.step_s) is not None:
        said.append(f"{words.seconds(step_s)} a step")
    return ", ".join(said)


def reward(state: ViewState, width: int) -> Text:
    """Return the last reward, the rewards before it as a line, and their scale."""
    if not state.rewards:
        return Text("no step yet")
    values = list(state.rewards)
    said = f"{values[-1]:.3f} "
    scale = f" {scale_of(values)}"
    if (room := min(60, width - len(said) - len(scale))) < 10:
        return Text(said).append(sparkline(values[-max(1, width - len(said)) :]), style="cyan")
    return (
        Text(said).append(sparkline(values[-room:]), style="cyan").append(f" {scale_of(values[-room:])}", style="dim")
    )


def scale_of(values: Sequence[float]) -> str:
    """Return the range of a curve."""
    return f"{min(values):.3f} to {max(values):.3f}, {words.counted(len(values), 'step')}"


def learner_time(state: ViewState, width: int) -> Text:
    """Return the learner's time by kind, which adds up to all of it."""
    known = (state.utilisation or 0.0, state.waiting or 0.0, state.blocked or 0.0)
    shares = (*known, max(0.0, 1.0 - sum(known)))
    text = Text()
    if (room := min(24, width // 4)) >= 12:
        for cells, shade, style in zip(divided(shares, room), SHADES, STYLES, strict=True):
            text.append(shade * cells, style=style)
        text.append(" ")
    marks = [f"{shade} " if text.plain else "" for shade in SHADES]
    told = zip(marks, part_names(), shares, strict=True)
    return text.append(", ".join(f"{mark}{name} {words.share(share)}" for mark, name, share in told))


def buffer(state: ViewState) -> str:
    """Return the rollouts that wait for a training step, and how many one takes: more than one batch may wait."""
    return f"{words.counted(state.buffered, 'rollout')} (a step takes {state.batch})"


def speed(state: ViewState) -> str:
    """Return how fast a node's tokens are admitted, and how fast its engine was when it was measured."""
    alone = state.engine_tokens_per_s
    measured = f"; the engine alone made {words.rate(alone)} at the start" if alone else ""
    return f"{words.rate(state.token_rate.per_s)} tokens per s admitted{measured}"


def trained(state: ViewState) -> str:
    """Return how much of a node's admitted work was trained on."""
    number, of = state.trained or 0, state.admitted_in_all
    return f"{number:,} of {of:,} admitted ({words.share(min(1.0, number / max(1, of)))}), with proofs"


def rank_words(rank: Rank) -> tuple[str, str]:
    """Return a node's place, and its share of the work."""
    nodes = "node" if rank.peers == 1 else "nodes"
    return f"{rank.place:,} of {rank.peers:,}", f"{nodes}, with {words.share(rank.share)} of admitted rollouts"


def earned(state: ViewState) -> str:
    """Return what a node asks for its work."""
    price = words.per_hour(state.per_hour, state.currency)
    return f"{words.money(state.earned, state.currency)} for {words.duration(state.worked_s)} at {price}"


def _versions(state: ViewState) -> str:
    said = f"{state.installed or words.NOTHING} installed"
    if state.newest and state.newest != state.installed:
        said += f", {state.newest} is newest"
    if state.fetching:
        here, whole = state.fetching
        said += f", fetching {bar(here / max(1, whole), 12)} {words.size(here)} of {words.size(whole)}"
    return said


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
