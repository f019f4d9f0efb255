"""From what happened to what is shown: the events of `node.runtime.events` become changes of a `ViewState`.

One function per role's events would hide how few there are; it is one `match`. Events that are not named here change
nothing, so a new event needs no line here before it is emitted. What people should notice becomes a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.reports.model.report import Role
from node.runtime.events import EventLog, Field
from node.runtime.formatting import counted
from node.ui.live_view import PeerView, ViewState
from protocol.core.ids import PeerId, short

SENTENCES: Mapping[str, str] = {
    "engine_chosen": "the engine is {engine}: {why}",
    "swarm_found": "found the swarm {name}",
    "trial_passed": "{text}",
    "checkpoint_unusable": "checkpoint {directory} cannot be used: {reason}",
    "checkpoint_failed": "checkpoint {directory} could not be written, the next is tried: {reason}",
    "trainer_restarted": "the trainer begins again from the newest checkpoint",
    "trainer_waits": "{text}",
    "child_died": "the {child} process {reason}",
    "child_restarting": "the {child} process is being restarted",
    "child_abandoned": "the {child} process keeps dying and was given up",
    "engine_crashed": "what the engine was making is made once more",
    "install_failed": "version {version} could not be installed ({again}): {reason}",
    "energy_read": "energy: {how}",
    "hours_ended": "outside the owner's hours: this node passes versions on, and works again from {again_at}",
    "hours_began": "the owner's hours have begun: at work until {until}",
    "paused": "{why}: this node makes nothing, and goes on passing versions on",
    "resumed": "at work again",
    "learner_unreachable": "the learner cannot be reached: {reason}; again in {retry_s} s",
    "turned_away": "the learner turned this node away for now: {reason}; again in {retry_s} s",
    "task_opened": "{task}: {note}",
    "evaluation_failed": "version {version} could not be evaluated: {reason}",
    "evaluation_skipped": "version {version} is not evaluated: {reason}",
    "evaluated_task": "version {version}, {task}: greedy {greedy}, sampled {sampled}",
    "evaluated": "version {version}: greedy {greedy}, sampled {sampled}",
    "period_changed": "{reason}",
    "clock_differs": "this machine's clock is {text}: set it, if it is wrong; your hours follow it",
    "no_lease": "no lease: {reason}",
    "audit_failed": "an audit of lease {lease} failed: {reason}",
    "peer_pardoned": "{peer} is pardoned: it may come back, as a newcomer",
    "audit_impossible": "what {version} made cannot be audited: {reason}",
    "receipt_revised": "lease {lease} is not counted after all (volery why {lease}): {detail}",
    "alarm_raised": "ALARM at step {step}: {text}",
    "alarm_cleared": "{text}",
    "metrics_failed": "metrics do not get to {sink}: {reason}; again in {retry_s} s",
    "metrics_noticed": "{text}",
    "standing_still": "{text}",
    "nodes_unable": "{text}",
    "nodes_able": "all nodes can work again",
    "ledger_restored": "ALARM: {text}",
    "certificate_ends": "ALARM: {text}",
    "certificate_renewed": "the certificate of this learner's key was renewed: it holds until {until}",
    "trouble": "{text}",
}
"""Events that are shown as they are told, with their fields."""


def told_by_number(event: str, fields: Mapping[str, Field]) -> str:
    """What people are told of events whose sentence depends on a number; "" of other events, and where the number is 0
    and says nothing."""
    match event:
        case "incarnation_began":
            incarnation, step = _number(fields, "incarnation"), _number(fields, "step")
            is_first = incarnation == 1 and not step
            return "training begins" if is_first else f"incarnation {incarnation} goes on from step {step}"
        case "buffer_recovered" if rollouts := _number(fields, "rollouts"):
            waits = "goes on waiting" if rollouts == 1 else "go on waiting"
            return f"{counted(rollouts, 'rollout')} from before the restart {waits}"
        case "leases_given_back":
            return f"gave back {counted(_number(fields, 'leases'), 'lease')}: {fields.get('reason')}"
        case "drain_began":
            leases = _number(fields, "leases")
            when = f" when {counted(leases, 'lease')} {'is' if leases == 1 else 'are'} delivered" if leases else " now"
            return f"takes no more work, and ends{when}"
        case "milestone_given_up":
            return (
                f"the disk had no room for the next checkpoint: the milestone of step {_number(fields, 'step')} was "
                "removed"
            )
        case "finished":
            return f"finished after {counted(_number(fields, 'steps'), 'step')}"
    return ""


def follow(state: ViewState, events: EventLog) -> None:
    """Let `state` change with every event from now on."""
    events.listen(lambda event, fields: apply(state, event, fields))


def apply(state: ViewState, event: str, fields: Mapping[str, Field]) -> None:
    """Change `state` as `event` asks. Fields that are missing or of another type leave what was there."""
    match event:
        case "peer_joined":
            peer = _peer(state, fields)
            peer.name, peer.gone = str(fields.get("name") or ""), ""
            state.note(f"{_called(peer)} joined")
        case "peer_left":
            peer = _peer(state, fields)
            peer.gone = str(fields.get("reason") or "left")
            peer.pending = 0
            released = counted(_number(fields, "leases_released"), "lease")
            state.note(f"{_called(peer)} left: {peer.gone}; {released} released")
        case "peer_activated" | "peer_released":
            peer = _peer(state, fields)
            peer.standing_by = event == "peer_released"
            state.note(f"{_called(peer)} {fields.get('reason')}")
        case "heartbeat":
            _heartbeat(_peer(state, fields), fields)
        case "work_pending":
            state.pending = _number(fields, "rollouts")
        case "traffic":
            state.bytes_up, state.bytes_down = _number(fields, "bytes_up"), _number(fields, "bytes_down")
        case "energy":
            state.joules, state.watts = _figure(fields, "joules"), _figure(fields, "watts") or 0.0
        case "delivery_judged":
            _judged(state, fields)
        case "leases_returned":
            peer = _peer(state, fields)
            state.note(
                f"{_called(peer)} returned {counted(_number(fields, 'leases'), 'lease')}: {fields.get('reason')}"
            )
        case "leases_recalled":
            leases, rollouts = counted(_number(fields, "leases"), "lease"), _number(fields, "rollouts")
            late = f"{counted(rollouts, 'rollout')} {'is' if rollouts == 1 else 'are'} too late"
            state.note(f"{leases} of {_called(_peer(state, fields))} recalled: {late}")
        case "peer_fault":
            state.note(f"{_called(_peer(state, fields))}: {fields.get('fault')}, {fields.get('detail')}")
        case "key_copied":
            peer = _peer(state, fields)
            state.note(
                f"{_called(peer)}: a second node uses its key, and was turned away; its node.key was copied, or stolen"
            )
        case "peer_banned":
            state.note(f"{_called(_peer(state, fields))} BANNED: {fields.get('reason')}")
        case "group_doubted":
            lease = fields.get("lease")
            state.note(f"lease {lease} of {_called(_peer(state, fields))} is not trained on (volery why {lease})")
        case "step":
            state.step, state.buffered = _number(fields, "step"), _number(fields, "buffered")
            if isinstance(reward := fields.get("reward"), int | float):
                state.rewards.append(float(reward))
            if (entropy := _figure(fields, "entropy")) is not None:
                state.entropies.append(entropy)
            known = {name: _figure(fields, name) for name in ("entropy", "mismatch_kl", "ess", "clip_share")}
            state.figures = {name: value for name, value in known.items() if value is not None}
            state.kl_by_lag = str(fields.get("kl_by_lag") or "")
        case "incarnation_began":
            state.alarms.clear()  # those that stand are said again
        case "alarm_raised":
            state.alarms[str(fields.get("alarm"))] = _number(fields, "step")
        case "alarm_cleared":
            state.alarms.pop(str(fields.get("alarm")), None)
        case "nodes_unable":
            state.unable, state.nobody_works = str(fields.get("text") or ""), bool(fields.get("everyone"))
        case "nodes_able":
            state.unable, state.nobody_works = "", False
        case "version_published" | "version_fetched":
            state.newest, state.fetching = str(fields.get("version")), None
            state.is_open = event == "version_published"
        case "trainer_restarted":
            state.is_open = False
        case "version_installed":
            state.installed = str(fields.get("version"))
        case "receipt":
            _receipt(state, fields)
        case "joined":
            state.activity = _activity(state)
            state.newest = str(fields["newest"]) if fields.get("newest") else state.newest
            state.note("joined the swarm")
        case "hours_ended" | "hours_began" | "paused" | "resumed":
            state.resting = _resting(event, fields)
            state.activity = _activity(state)
        case "drain_began":
            state.draining = True
            state.activity = _activity(state)
    if event == "evaluated":
        state.greedy, state.sampled = _figure(fields, "greedy"), _figure(fields, "sampled")
        passes = {name.removeprefix("pass_"): value for name, value in fields.items() if name.startswith("pass_")}
        state.pass_at = {k: float(value) for k, value in passes.items() if isinstance(value, int | float) and k != "1"}
    if event in ("learner_unreachable", "turned_away", "finished"):
        state.activity = event.replace("_", " ")
    elif state.role is Role.LEARNER and state.activity != "finished":
        state.activity = _activity(state)
    if (sentence := SENTENCES.get(event)) is not None:
        state.note(sentence.format_map(_Told(fields)))
    elif said := told_by_number(event, fields):
        state.note(said)
    if event == "child_died":
        for line in str(fields.get("said") or "").splitlines():
            state.note(f"{fields.get('child')}: {line}")


def _activity(state: ViewState) -> str:
    """What a learner does, or a node whose line is up. A learner of logs alone (`batch` is 0) waits for nobody."""
    if state.role is not Role.LEARNER:
        return "draining" if state.draining else state.resting or "at work"
    if not state.is_open:
        return "loading the model again" if state.newest else "starting"
    return "waiting for nodes" if state.batch and not state.present else "at work"


def _resting(event: str, fields: Mapping[str, Field]) -> str:
    """Why nothing is made since this event; empty when work goes on."""
    match event:
        case "hours_ended":
            return f"resting until {fields.get('again_at')}"
        case "paused":
            return str(fields.get("why"))
    return ""


class _Told(dict[str, Field]):
    """Fields of an event; one that is missing is a question mark rather than an error."""

    def __missing__(self, key: str) -> str:
        return "?"


def _heartbeat(peer: PeerView, fields: Mapping[str, Field]) -> None:
    peer.installed = str(fields.get("installed") or "")
    peer.pending = _number(fields, "pending")
    peer.bytes_up, peer.bytes_down = _number(fields, "bytes_up"), _number(fields, "bytes_down")


def _judged(state: ViewState, fields: Mapping[str, Field]) -> None:
    """A delivery at the learner: counted for its peer and for all."""
    peer, admitted, refused = _peer(state, fields), _number(fields, "admitted"), _number(fields, "refused")
    peer.admitted += admitted
    peer.rejected += refused
    _count(state, fields)
    state.buffered += admitted
    if admitted:
        state.lags[_number(fields, "lag")] += admitted
    if refused:
        rollouts = counted(refused, "rollout")
        state.note(f"{rollouts} of {_called(peer)} refused, {fields.get('reason')}: {fields.get('detail')}")


def _receipt(state: ViewState, fields: Mapping[str, Field]) -> None:
    """The learner's answer at a rollout node."""
    _count(state, fields)
    if refused := _number(fields, "refused"):
        more = f"volery why {fields.get('lease')}"  # which says what to do, in more words than a line has
        rollouts = counted(refused, "rollout")
        state.note(f"{rollouts} refused ({more}), {fields.get('reason')}: {fields.get('detail')}")


def _count(state: ViewState, fields: Mapping[str, Field]) -> None:
    state.admitted += _number(fields, "admitted")
    state.rejected += _number(fields, "refused")
    state.tokens += _number(fields, "tokens")


def _peer(state: ViewState, fields: Mapping[str, Field]) -> PeerView:
    return state.peer(PeerId(str(fields.get("peer"))))


def _called(peer: PeerView) -> str:
    return f"{peer.name or 'peer'} {short(peer.peer)}"


def _number(fields: Mapping[str, Field], key: str) -> int:
    value = fields.get(key)
    return int(value) if isinstance(value, int | float) else 0


def _figure(fields: Mapping[str, Field], key: str) -> float | None:
    value = fields.get(key)
    return float(value) if isinstance(value, int | float) else None
