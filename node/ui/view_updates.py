"""Turn events into what is shown: each event of `node.runtime.events` changes a `ViewState`.

Events that are not named here change nothing, so that a new event can be emitted before it has a line here. Events that
people should notice become sentences.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from node.reports.model.report import Role
from node.runtime.events import EventLog, Fields
from node.runtime.formatting import counted
from node.state.operator_orders import setting_words
from node.ui.live_view import ViewState
from protocol.accounting.rank import Rank
from protocol.core.ids import short

SENTENCES: Mapping[str, str] = {
    "engine_chosen": "the engine is {engine}: {why}",
    "format_waits": "there is no version yet; the size of the first one will decide in which number format it is held",
    "weights_format": "weights are held as {format}: {why}",
    "swarm_found": "found the swarm {name}",
    "trial_passed": "{text}",
    "checkpoint_unusable": "checkpoint {directory} cannot be used: {reason}",
    "checkpoint_failed": "checkpoint {directory} could not be written, and the next one will be tried: {reason}",
    "stopping": "stopping: what was trained is saved first, within a minute; press Ctrl-C again to stop at once",
    "trainer_restarted": "the trainer restarts from the newest checkpoint",
    "trainer_waits": "{text}",
    "child_died": "the {child} process {reason}",
    "child_restarting": "the {child} process is being restarted",
    "child_abandoned": "the {child} process died too often, and is not started again",
    "engine_crashed": "the engine crashed; what it was generating is generated again",
    "install_failed": "version {version} could not be installed ({again}): {reason}",
    "energy_read": "energy: {how}",
    "hours_ended": "outside the owner's hours: this node only relays versions, and generates again from {again_at}",
    "hours_began": "the owner's hours have begun: at work until {until}",
    "paused": "{why}: this node generates nothing, and still relays versions",
    "resumed": "at work again",
    "learner_unreachable": "the learner cannot be reached: {reason}; next try in {retry_s} s",
    "turned_away": "the learner refused this node for now: {reason}; next try in {retry_s} s",
    "task_opened": "{task}: {note}",
    "evaluation_failed": "version {version} could not be evaluated: {reason}",
    "evaluation_skipped": "version {version} is not evaluated: {reason}",
    "evaluated_task": "version {version}, {task}: greedy {greedy}, sampled {sampled}",
    "evaluated": "version {version}: greedy {greedy}, sampled {sampled}",
    "period_changed": "{reason}",
    "setting_changed": "from now on {now}, by order through {by}",
    "limit_changed": "{key} is {value} until this node ends, by order through {by}",
    "stop_ordered": "the operator ordered a stop, through {by}",
    "window_changed": "the operator changed the staleness window: S = {staleness}",
    "clock_differs": "this machine's clock is {text}: set it, if it is wrong; your hours follow it",
    "no_lease": "no lease: {reason}",
    "audit_failed": "an audit of lease {lease} failed: {reason}",
    "peer_pardoned": "{peer} is pardoned: it may come back, as a newcomer",
    "audit_impossible": "records of version {version} cannot be audited: {reason}",
    "receipt_revised": "lease {lease} no longer counts as admitted (volery why {lease}): {detail}",
    "alarm_raised": "ALARM at step {step}: {text}",
    "alarm_cleared": "{text}",
    "metrics_failed": "metrics could not be sent to {sink}: {reason}; next try in {retry_s} s",
    "metrics_noticed": "{text}",
    "notices_failed": "notices cannot be posted to {to}: {reason}",
    "standing_still": "{text}",
    "nodes_unable": "{text}",
    "nodes_reached": "{text}",
    "nodes_able": "all nodes can work again",
    "ledger_restored": "ALARM: {text}",
    "certificate_ends": "ALARM: {text}",
    "certificate_renewed": "the certificate of this learner's key was renewed: it holds until {until}",
    "trouble": "{text}",
    "incarnation_began": "incarnation {incarnation} continues from step {step}",
    "buffer_recovered": "{rollouts:rollout} from before the restart {rollouts:is|are} in the rollout buffer again",
    "delivery_judged": "{refused:rollout} of {called} rejected, {reason}: {detail}",
    "drain_began": "takes no more leases, and ends when {leases:lease} {leases:is|are} delivered",
    "finished": "finished after {steps:step}",
    "group_doubted": "lease {lease} of {called} is not trained on (volery why {lease})",
    "handed_back": "returned {leases:lease} with {tokens:token} already generated, which count for you: {reason}",
    "joined": "joined the swarm",
    "key_copied": "refused a second node that uses the key of {called}: its node.key was copied or stolen",
    "lease_handed_back": "{called} returned {leases:lease} with {tokens:token} already generated: {reason}",
    "leases_given_back": "returned {leases:lease}: {reason}",
    "leases_recalled": "recalled {leases:lease} of {called}: {rollouts:rollout} would come too late",
    "leases_returned": "{called} returned {leases:lease}: {reason}",
    "milestone_given_up": "the disk had no room for the next checkpoint: the milestone of step {step} was removed",
    "parts_given_up": "{groups:group} given up: no node here can continue what another node began",
    "peer_activated": "{called} {reason}",
    "peer_banned": "{called} BANNED: {reason}",
    "peer_fault": "{called}: {fault}, {detail}",
    "peer_joined": "{called} joined",
    "peer_left": "{called} left: {gone}; {leases_released:lease} released",
    "peer_released": "{called} {reason}",
    "receipt": "{refused:rollout} rejected (volery why {lease}), {reason}: {detail}",
}
"""The sentence for each event, with the event's fields. A number may stand as `{leases:lease}` or `{leases:is|are}`;
`{called}` is the event's peer, and `{gone}` why that peer left.
"""

AT_ZERO: Mapping[str, tuple[str, str]] = {
    "buffer_recovered": ("rollouts", ""),
    "delivery_judged": ("refused", ""),
    "drain_began": ("leases", "takes no more leases, and ends now"),
    "receipt": ("refused", ""),
}
"""Events that have another sentence, or none, where the named field is 0."""

SUMMED: Mapping[str, tuple[str, ...]] = {
    "handed_back": ("leases", "tokens"),
    "lease_handed_back": ("leases", "tokens"),
    "leases_given_back": ("leases",),
    "leases_returned": ("leases",),
}
"""Events that come many at a time, when a node pauses or leaves. One notice sums up the named fields of those that have
the same peer and reason, as long as it was not shown. `leases` is 1 in an event without it.
"""

NEWS_OF_WORK = ("joined", "hours_ended", "hours_began", "paused", "resumed", "drain_began")
"""Events after which a rollout node shows the activity that its state implies."""

FIGURES = ("entropy", "mismatch_kl", "ess", "clip_share")
"""Metrics of the objective that are shown, out of those in the event of a step."""


class _Words(Formatter):
    """Fills in a sentence. A missing field becomes a question mark, not an error."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key), "?")

    def format_field(self, value: Any, format_spec: str) -> str:
        if not (format_spec and isinstance(value, int)):
            return str(value)
        one, _, more = format_spec.partition("|")
        return (one if value == 1 else more) if more else counted(value, one)


def follow(state: ViewState, events: EventLog) -> None:
    """Change `state` with every event from now on, at the time since the program began."""

    def take(event: str, fields: Fields) -> None:
        state.now_s = max(state.now_s, time.monotonic() - state.began_s)
        apply(state, event, fields)

    events.listen(take)


def apply(state: ViewState, event: str, fields: Fields) -> None:
    """Change `state` as `event` asks. Fields that are missing change nothing."""
    _follow_peers(state, event, fields)
    _follow_training(state, event, fields)
    _follow_node(state, event, fields)
    if event in ("learner_unreachable", "turned_away", "finished"):
        state.activity = event.replace("_", " ")
    elif event == "starting" and state.role is not Role.LEARNER:
        state.activity = state.start_phase
    elif event in NEWS_OF_WORK or (state.role is Role.LEARNER and state.activity != "finished"):
        state.activity = _activity(state)
    if event in SUMMED:
        fields = _summed(state, event, {"leases": 1, **fields})
    if sentence := sentence_of(state, event, fields):
        state.note(sentence, event, fields)
    if event == "child_died":
        for line in fields.get("said", "").splitlines():
            state.note(f"{fields.get('child')}: {line}")


def _summed(state: ViewState, event: str, fields: Fields) -> Fields:
    """Return `fields` with what a notice counts that was not shown yet, and take that notice back."""
    same = {name: fields[name] for name in ("peer", "reason") if name in fields}
    if (notice := state.take_back(event, same)) is None:
        return fields
    return {**fields, **{name: fields.get(name, 0) + notice.fields.get(name, 0) for name in SUMMED[event]}}


def sentence_of(state: ViewState, event: str, fields: Fields) -> str:
    """Return what people read of an event, which `state` has taken; "" if they do not hear of it."""
    if not (sentence := _sentence(event, fields)):
        return ""
    known: dict[str, Any] = {}
    if "{now}" in sentence:
        known["now"] = setting_words(fields.get("key"), fields.get("value"))
    if "{called}" in sentence and "peer" in fields:
        peer = state.peer(fields["peer"])
        known |= {"called": f"{peer.name or 'peer'} {short(peer.peer)}", "gone": peer.gone}
    return _Words().vformat(sentence, (), {**fields, **known})


def _follow_peers(state: ViewState, event: str, fields: Fields) -> None:
    """Update the peers and what each of them delivers; only a learner has them."""
    match event, fields:
        case "peer_joined", {"peer": key, "name": name}:
            peer = state.peer(key)
            peer.name, peer.gone = name, ""
        case "peer_left", {"peer": key}:
            peer = state.peer(key)
            peer.gone, peer.pending = fields.get("reason") or "left", 0
        case "peer_activated" | "peer_released", {"peer": key}:
            state.peer(key).standing_by = event == "peer_released"
        case "heartbeat", {"peer": key, "installed": installed, "pending": pending, "bytes_up": up, "bytes_down": down}:
            peer = state.peer(key)
            peer.installed, peer.pending = installed or "", pending
            peer.bytes_up, peer.bytes_down = up, down
        case "delivery_judged", {"peer": key, "admitted": admitted, "refused": refused, "lag": lag}:
            peer = state.peer(key)
            peer.admitted += admitted
            peer.rejected += refused
            state.buffered += admitted
            if admitted:
                state.lags[lag] += admitted


def _follow_training(state: ViewState, event: str, fields: Fields) -> None:
    match event, fields:
        case "step", {"step": step, "buffered": buffered, "reward": reward}:
            state.step, state.buffered = step, buffered
            state.pace.take(state.now_s, step)
            state.utilisation, state.blocked = fields.get("utilisation"), fields.get("blocked")
            state.waiting = fields.get("waiting")
            state.rewards.append(reward)
            state.figures = {name: fields[name] for name in FIGURES if name in fields}
            if (entropy := state.figures.get("entropy")) is not None:
                state.entropies.append(entropy)
            state.kl_by_lag = fields.get("kl_by_lag", "")
        case "evaluated", {"greedy": greedy, "sampled": sampled}:
            state.greedy, state.sampled = greedy, sampled
            passes = {name.removeprefix("pass_"): value for name, value in fields.items() if name.startswith("pass_")}
            state.pass_at = {k: value for k, value in passes.items() if k != "1"}
        case ("setting_changed", {"key": "staleness", "value": window}) | ("window_changed", {"staleness": window}):
            state.staleness = round(window)
        case "setting_changed", {"key": key, "value": value}:
            state.settings[key] = value
        case "starting", {"doing": doing}:
            state.start_phase = doing if doing.startswith("starting") else f"starting: {doing}"
        case "incarnation_began", {"step": step}:
            state.step = step
            state.first_step = step if state.first_step is None else state.first_step
            state.pace.begin_again()
            state.alarms.clear()  # the learner repeats those that are not cleared
        case "alarm_raised", {"alarm": alarm, "step": step}:
            state.alarms[alarm] = step
        case "alarm_cleared", {"alarm": alarm}:
            state.alarms.pop(alarm, None)
        case "nodes_unable", {"text": text, "everyone": everyone}:
            state.unable, state.nobody_works = text, everyone
        case "nodes_able", _:
            state.unable, state.nobody_works = "", False
        case "version_published" | "version_fetched", {"version": version}:
            state.newest, state.fetching = version, None
            state.is_open = event == "version_published"
        case "trainer_restarted", _:
            state.pace.begin_again()
            state.is_open, state.start_phase = False, "loading the model again"


def _follow_node(state: ViewState, event: str, fields: Fields) -> None:
    """Update what a rollout node does, and what both roles count about themselves."""
    match event, fields:
        case "work_pending", {"rollouts": rollouts}:
            state.pending = rollouts
        case "traffic", {"bytes_up": up, "bytes_down": down}:
            state.bytes_up, state.bytes_down = up, down
            state.bytes_carried = fields.get("bytes_carried", 0)
            state.sent_bytes, state.received_bytes = fields.get("sent_bytes"), fields.get("received_bytes")
        case "reach_told", {"kind": kind, "text": text}:
            if kind != state.reach_kind:
                state.note(f"how others reach this node: {text}")
            state.reach, state.reach_kind = text, kind
        case "nodes_reached", {"text": text}:
            state.reach = text
        case "energy", {"joules": joules, "watts": watts}:
            state.joules, state.watts = joules, watts
        case "version_installed", {"version": version}:
            state.installed = version
        case "delivery_judged" | "receipt", {"admitted": admitted, "refused": refused, "tokens": tokens}:
            state.admitted += admitted
            state.rejected += refused
            state.tokens += tokens
        case "receipts_opened", {"admitted": admitted}:
            state.admitted_before = admitted
        case "session_began", {"worked_s": worked_s, "trained": trained, "per_hour": per_hour, "currency": currency}:
            state.worked_before_s, state.working_since_s, state.trained = worked_s, state.now_s, trained
            state.per_hour, state.currency = per_hour, currency
        case "proofs_kept", {"records": records} if state.trained is not None:
            state.trained += records
        case "reputation_told", {"band": band, "score": score}:
            state.band, state.score = band, score
        case "rank_told", {"place": place, "peers": peers, "admitted": admitted, "admitted_by_all": of_all}:
            state.rank = Rank(place=place, peers=peers, admitted=admitted, admitted_by_all=of_all)
        case "engine_chosen", {"engine": engine, "why": why}:
            state.engine = f"{engine}: {why}"
        case "speed_measured", {"tokens_per_s": speed}:
            state.engine_tokens_per_s = speed
        case "joined", {**told}:
            state.newest = told.get("newest") or state.newest
            state.staleness = told.get("staleness", state.staleness)
        case "hours_ended", {"again_at": again_at}:
            state.resting = f"resting until {again_at}"
        case "paused", {"why": why}:
            state.resting = why
        case "hours_began" | "resumed", _:
            state.resting = ""
        case "drain_began", _:
            state.draining = True


def _activity(state: ViewState) -> str:
    """Return what a learner does, or a node with a connection to its learner.

    A learner that trains only on logs (`batch` is 0) waits for no nodes.
    """
    if state.role is not Role.LEARNER:
        return "draining" if state.draining else state.resting or "at work"
    if not state.is_open:
        return state.start_phase
    if state.batch and not state.has_peers:
        return "waiting for nodes"
    return "at work" if state.publishes else "at work, new versions are held back"


def _sentence(event: str, fields: Fields) -> str:
    match event, fields:
        case "incarnation_began", {"incarnation": 1, "step": 0}:
            return "training begins"
    field, otherwise = AT_ZERO.get(event, ("", ""))
    return SENTENCES.get(event, "") if not field or fields.get(field) else otherwise
