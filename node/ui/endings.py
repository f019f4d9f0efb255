"""Sum up what a program did from its start to its end, for the last lines that it prints. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from node.runtime import formatting as words
from node.ui.facts import earned, trained
from node.ui.live_view import ViewState


def done_of_learner(state: ViewState) -> str:
    """Return what a learner did since its start, in a sentence; "" if it never trained."""
    return f"In {words.duration(state.now_s)}: {', '.join(_of_learner(state))}." if state.first_step is not None else ""


def done_of_node(state: ViewState) -> str:
    """Return what a node did since its start, and what it has earned in all, in a sentence."""
    return f"In {words.duration(state.now_s)}: {', '.join(_of_node(state))}."


def _of_learner(state: ViewState) -> Iterator[str]:
    taken = max(0, state.step - (state.first_step or 0))
    pace = f" ({words.seconds(step_s)} each)" if (step_s := state.pace.step_s) is not None else ""
    yield f"{words.counted(taken, 'training step')}{pace}"
    if state.rewards:
        yield f"reward {words.risen(state.rewards[0], state.rewards[-1], once=len(state.rewards) == 1)}"
    if state.greedy is not None:
        yield f"held-out score {state.greedy:.3f}"
    if state.newest:
        yield f"version {state.newest} published"
    if state.utilisation is not None:
        yield f"training {words.share(state.utilisation)} of the time"
    yield words.counted(state.tokens, "token") + " admitted"
    yield f"{words.counted(len(state.peers), 'node')} came"
    yield from _of_both(state)
    if state.alarms:
        yield f"alarms that stand: {', '.join(name.replace('_', ' ') for name in state.alarms)}"


def _of_node(state: ViewState) -> Iterator[str]:
    yield f"{words.counted(state.tokens, 'token')} admitted"
    if state.trained is not None and state.admitted_in_all:
        yield f"trained on {trained(state)}"
    if state.band:
        yield f"reputation {state.band}"
    if state.per_hour:
        yield f"earned in all {earned(state)}"
    yield from _of_both(state)


def _of_both(state: ViewState) -> Iterator[str]:
    if state.sent_bytes is not None and state.received_bytes is not None:
        yield f"{words.size(state.sent_bytes)} sent and {words.size(state.received_bytes)} received"
    if state.joules is not None:
        yield f"{words.kwh(state.joules)} kWh"
