"""Explain every event: its fields, and when it is written.

An event is one line of JSON in `events.jsonl`: `at` (seconds since 1970), `event` (its name), and flat fields. These
texts are Markdown, and make `docs/reference/events.md`.

Invariants:

- Every event that the program emits stands here with every field, and no other; tests compare the two.
- A text names the fields first, then, after a colon, what they mean or when the event is written.
"""

from __future__ import annotations

from collections.abc import Mapping

LEARNER_EVENTS: Mapping[str, str] = {
    "batch_dropped": (
        "`step`, `rollouts`, `reason`: the trainer met an infinite loss and left the weights as they were; "
        "the batch was dropped, and the step is taken with the next one"
    ),
    "step": (
        "`step`, `reward` (mean), `rollouts`, `train_s`, `waited_s`, `utilisation` and `blocked` (of [the "
        "learner's time](../operate/report.md#the-learners-time) so far), `max_lag`, `dropped` (groups too "
        "old when the batch formed, uninformative, or void), `uninformative` (rollouts that were dropped "
        "since the step before because their group has one reward), `buffered`, and, where known, `entropy`, "
        "`mismatch_kl`, `ess`, `clip_share`, `grad_norm` (see [metrics.md](metrics.md)) and `kl_by_lag` in "
        "words"
    ),
    "alarm_raised": (
        "`alarm`, `step`, `measured`, `usual`, `text`: see [alarms](../operate/watching.md#alarms). Those "
        "that stand are said again when an incarnation begins"
    ),
    "alarm_cleared": "the same: it is over",
    "standing_still": (
        "`step` (the last one taken), `seconds`, `text`: no training step for five minutes, and for ten times "
        "what the last eight usually took; what it waits for. Said again each time that it has lasted twice "
        "as long"
    ),
    "metrics_noticed": "`sink`, `text`: where metrics are to go, nobody answers (once), or somebody does again",
    "metrics_failed": "`sink`, `reason`, `retry_s`: metrics do not get there; it is tried again",
    "loop_held": (
        "`task` (of the program), `where` (file, line, function), `seconds`, `processor_s`: see [the event "
        "loop](../operate/watching.md#the-event-loop); of one task once a minute, or when it was held for "
        "twice as long"
    ),
    "loop_measured": (
        "at the end: `p99_s` of the last minute, `worst_s` and `worst_processor_s` since the start, `held` "
        "(steps), `culprit`"
    ),
    "version_published": (
        "`version`, `total_bytes`, `new_bytes` (not in the version before), `patch_bytes` (of the patches "
        "that lead to it), `patches` (how many), `patch_seconds` (what making them took), `export_seconds` "
        "(from its snapshot until its files were written), `seconds` (from its snapshot to its announcement, "
        "beside training)"
    ),
    "versions_skipped": (
        "`first`, `last` (training steps), `reason`: their states were due, and not published, since the "
        "versions before them were still on their way"
    ),
    "evaluated": (
        "`version`, `completions` (sampled ones, of all prompts), `greedy`, `sampled`, and `pass_1` or "
        "whatever k is wanted"
    ),
    "evaluated_task": "`version`, `task` and the same of each task of a mixture",
    "evaluated_reward": (
        "`version`, `name`, `greedy` and `sampled` of each [reward with a "
        "name](../operate/rewards.md#rewards-with-names)"
    ),
    "evaluation_skipped": "`version`, `reason`",
    "evaluation_failed": "`version`, `reason`",
    "curriculum": (
        "with each version, of each task: `task`, `given` (groups); of a finite one `passes`, `known` "
        "(problems), of these `all_right` and `all_wrong`, `rate` (their mean pass rate); of others `level` "
        "and `rate_0` and so on for each level"
    ),
    "task_opened": (
        "`task`, `note`: at the start, how many problems of a file are trained on and held out, and how many "
        "lines were left out for which reason"
    ),
    "delivery_judged": (
        "`peer`, `lease`, `admitted`, `refused`, `reason`, `detail` (of the first refusal), `lag`, `reward`, "
        "`tokens`, `dropped` (why no batch will take what was admitted: `uninformative`, `void` where nobody "
        'can say what a completion is worth, or where one failed and `on_failure = "drop"`, or `audit`)'
    ),
    "reward_failed": (
        "`task`, `index` (of its problem), `held_out`, `how` (`timed_out`, `died`, `raised`; `otherwise`: an "
        "environment that was made anew answered otherwise than the one before it), `detail`: no verifier "
        "could say what a completion is worth"
    ),
    "reward_service": (
        "`service` (its section, or the name that an author gave it), `how` (`down`, `back`; `unclear`: an "
        "answer that says nothing of what a completion is worth), `detail`: what a verifier has heard of a "
        "judge or a service"
    ),
    "audited": (
        "`peer`, `lease`, `tokens`, `above` (in how many contexts one fell short of what the seeded sampler "
        "draws by more than the margin of its lead, which honest rounding does now and then), `worst` (the "
        "largest gap, nats), `evidence` (logarithm of all of it against the peer), `passed`, `standing`"
    ),
    "audits_made": (
        "`groups`, `seconds` (of the engine), `waiting` (groups that wait for theirs): what was asked of it at once"
    ),
    "scores_made": (
        "`groups`, `tokens` (generated ones), `seconds` (of its engine): what the teacher of `[distill]` was "
        "asked at once"
    ),
    "teacher_joined": (
        "`peer`, `name`, `engine`, `machine`: a [teacher node](../operate/distillation.md#teacher-nodes) is here"
    ),
    "teacher_left": "`peer`, `reason`",
    "scores_delivered": (
        "`peer`, `lease`, `tokens`, `waits` (whether they are audited before they are used): a teacher node "
        "scored a group"
    ),
    "scores_audited": (
        "`peer`, `lease`, `tokens`, `worst` (the largest difference, nats), `evidence`, `passed`, `standing`: "
        "the learner's teacher scored the same tokens"
    ),
    "audit_failed": "`peer`, `lease`, `reason`: the group is refused, and its peer is a newcomer again",
    "group_doubted": (
        "`peer`, `lease`, `evidence`: a newcomer's or suspect's group passed its audit, while all audits of "
        "its peer together speak against it: it counts, and neither it nor what else of the peer waits in the "
        "buffer for no audit is trained on"
    ),
    "peer_unusual": (
        "`peer`, `reason`: its rewards, lengths or log probabilities of late are far from the swarm's of the "
        "same time (rewards and lengths from those of the same task, log probabilities from those of the same "
        "lag, as the trainer sees them); all it brings is audited meanwhile, and nobody is blamed"
    ),
    "near_copy": (
        "`peer`, `lease`, `of`: a completion repeats nearly what another lease brought, and is unlikely to by "
        "chance; both could be the copy, so it is audited and nobody is blamed"
    ),
    "choice_drawn": (
        "`peer`, `lease`, `choice` (`withheld` or `delivered`), `worth` (by how much what its seeds gave is "
        "better for it than what ours did, on average), `gain` (the same of what that is more than with "
        "another version), `heard` groups of it so far, `evidence` against its honesty"
    ),
    "choice_impossible": "`version`, `reason`: what was to be drawn with it was not",
    "audit_impossible": (
        "`version`, `reason`: what it made is not audited; newcomers' groups of it are dropped, which is nobody's fault"
    ),
    "peer_banned": (
        "`peer`, `lease` (of the audit, if one did it), `reason`: its work is out of the buffer, its leases "
        "are others', its key may not come back"
    ),
    "peer_pardoned": "`peer`: the operator took a ban back",
    "peer_quarantined": (
        "`peer`, `reason`: soft strikes stand against it; see [appeals](../operate/trust-and-bans.md#appeals)"
    ),
    "quarantine_over": "`peer`: none does any more",
    "peer_fault": (
        "`peer`, `fault`, `detail`: what a peer did that no working node does; `unsaid`: faults since the "
        "last such row that came too often to be written"
    ),
    "over_budget": (
        "`budget`, `times`, `who`, `who_times`: what strangers, or peers that do too much, were refused in "
        "the last 30 s, and which address or peer that concerned most "
        "([threats.md](../explain/threats.md#budgets))"
    ),
    "peer_joined": "`peer`, `name`, `engine`, `machine`",
    "peer_reach": (
        "`peer`, `name`, `kind` (how others reach it: `directly`, `mapped`, `by_punching`, `not`, `unknown`), "
        "`why`, as it says itself"
    ),
    "nodes_reached": (
        "`text`: how many nodes are reached how, and how many pairs of them met how; when that changes, every "
        "10 s at most"
    ),
    "key_copied": (
        "`peer`, `name`, `machine`: a second process with this peer's key came, and was turned away; the first works on"
    ),
    "peer_left": "`peer`, `reason`, `leases_released`",
    "peer_activated": "`peer`, `name`, `reason`: from now on it is leased to",
    "peer_released": "`peer`, `name`, `reason`: from now on it stands by",
    "period_changed": "`kappa`, `reason`: a version is published every so many steps from now on",
    "heartbeat": "`peer`, `name`, `installed`, `pending`, `bytes_up`, `bytes_down`",
    "traffic": (
        "`bytes_up`, `bytes_down`: of chunks, by the learner itself since its start; `bytes_carried`: between "
        "nodes, over circuits through it"
    ),
    "energy_read": "`how`: from where the joules of the learner's machine are known, or what to do; once",
    "energy": "`joules` since the start, `watts` on average since this was last said; at most once a minute",
    "leases_returned": "`peer`, `leases`, `recalled` (of these), `reason`",
    "node_trouble": (
        "`peer`, `name`, `kind` (`fetch`, `install`, `lease`, `engine`), `version`, `times` in a row, "
        "`reason`: a node says that it cannot do this. Said again when it has failed twice as often, at most "
        "every 30 s of one node and kind"
    ),
    "nodes_unable": (
        "`text`, `nodes`, `of`, `everyone`: so many of the nodes cannot work with the newest version, and "
        "why. See [nodes that cannot work](../operate/watching.md#nodes-that-cannot-work)"
    ),
    "nodes_able": "`of`: all nodes can work again",
    "leases_granted_again": "`peer`, `leases`: it had lost them, and they were open still",
    "lease_handed_back": (
        "`peer`, `lease`, `finished` completions of it, `begun` ones, `tokens` of both, `left`: completions "
        "that others finish, with the seeds of this lease, `reason`"
    ),
    "parts_given_up": (
        "`groups` with completions that others began: for a minute nobody was here who goes on with them"
    ),
    "leases_recalled": (
        "`peer`, `leases`, `rollouts`, `minimum`: no batch can hold what these would bring, which would be "
        "older than `minimum`; the peer is told, unless its volery is too old to understand, and others are "
        "leased as much at once"
    ),
    "relays_credited": "`peer` (the receiver), `version`, `relays` (how many), `bytes` (of all of them)",
    "checkpoint_saved": (
        "`directory`, `step`, `bytes`, `seconds` (from the request until it was durable; training went on)"
    ),
    "checkpoint_failed": "`directory`, `reason`: the next version's is tried",
    "stopping": (
        "`step`, `durable`: somebody stops the learner after so many steps, and the newest checkpoint is of "
        "step `durable`; what is missing is saved first"
    ),
    "trial_passed": "`seconds`, `tokens` (that were generated), `text`",
    "milestone_given_up": (
        "`directory`, `step`: the disk had no room for the next checkpoint, so this "
        "[milestone](../explain/checkpoints.md#milestones) was removed"
    ),
    "incarnation_began": "`incarnation`, `step`",
    "certificate_renewed": "`until`: the certificate of the learner's key was renewed, and holds until then",
    "certificate_ends": (
        "`until`, `left_s`, `text`: it ends soon, and `operator.key` is not here to renew it; said every hour"
    ),
    "ledger_restored": (
        "`version`, `incarnation`, `text`: this learner signed that version, a member or the state directory "
        "holds it, and the ledger does not know it; the learner goes on above that incarnation. See "
        "[restoring](../operate/keys-and-backup.md#the-state-directory)"
    ),
    "buffer_recovered": "`rollouts`, `episodes`",
    "checkpoint_unusable": "`directory`, `reason`: an older one is tried, if there is one",
    "trainer_restarted": "`reason`",
    "trainer_waits": "`text`: for which machines or ranks the trainer waits before it begins",
    "child_started": "`child`, `pid`, `seconds`",
    "child_said": "`child`, `line`: its stderr, of a trainer on several GPUs behind the rank's number",
    "child_died": (
        "`child`, `reason`: its exit code or signal, and the exception or fault that it told of; `said`: its "
        "last words where it told of none, or where the fault was. Of a trainer on several GPUs both are "
        "about the rank that ended first, or the machine that has gone"
    ),
    "child_restarting": "`child`",
    "child_abandoned": "`child`: it died too often",
    "finished": "`steps`",
}
"""Events of a learner, and of the child processes of both roles."""

NODE_EVENTS: Mapping[str, str] = {
    "engine_chosen": "`engine`, `why`",
    "teacher_loaded": "`seconds`: with `--teacher`, the model is in its engine",
    "format_waits": '`seconds`: there is no version yet, whose size says what `quantization = "auto"` comes to',
    "weights_format": '`format`, `why`: what `quantization = "auto"` came to',
    "swarm_found": "`name`, `swarm`",
    "joined": "`learner`, `staleness`, `newest`",
    "learner_unreachable": "`reason`, `retry_s`",
    "clock_differs": "`offset_s` (the learner's clock minus this machine's), `text`: once, beyond five minutes",
    "turned_away": "`reason`, `retry_s`: the learner answered, and wants this node later",
    "no_lease": "`reason`: the learner has no work for us now, and why; once for each reason",
    "version_fetched": (
        "`version`, `seconds`, `fetched_bytes`, `patch_bytes` (of these in patches), `patches`, "
        "`apply_seconds` (of these patches, once they were here), `sources` (peers that the bytes came from)"
    ),
    "version_installed": "`version`, `seconds`; the same version again after the engine was started again",
    "speed_measured": "`tokens_per_s`: once, before the first lease; 0 if it could not be measured",
    "install_failed": (
        "`version`, `reason`, `again`: when it is tried again, if it is. The version in service stays, or "
        "comes back; also when the engine gives the version's probe other log probabilities than the learner "
        "did, that is, has loaded something else"
    ),
    "work_pending": "`rollouts` leased and not yet judged; said whenever that changes",
    "receipt": "`lease`, `admitted`, `refused`, `reason`, `detail`, `tokens`",
    "proofs_kept": "`records`, `credit_notes`",
    "reputation_told": "`band`, `score`: how the learner says that this node stands",
    "hours_ended": "`again_at`: the time of day at which it works again",
    "hours_began": "`until`: the time of day at which they end",
    "paused": "`why`: nothing is made since",
    "resumed": "none: at work again",
    "engine_rests": "none: the engine's process has ended, since the rest lasts",
    "engine_wakes": "none: it is being started again",
    "drain_began": "`leases` to deliver, `within_s` if there is an end",
    "drained": "`undelivered`: leases that were not delivered in time",
    "traffic": (
        "`bytes_up`, `bytes_down`: of chunks, since the start; `bytes_carried`: between others, over circuits "
        "through this node"
    ),
    "reach_told": (
        "`kind`, `why`, `text`: how others reach this node, and how it met those that it is connected to, as "
        "the learner is told"
    ),
    "energy_read": "`how`: from where the joules of the machine are known, or what to do; once",
    "loop_held": (
        "`task`, `where`, `seconds`, `processor_s`: one step held the node's event loop, see "
        "[operator.md](../operate/watching.md#the-event-loop)"
    ),
    "loop_measured": "at the end: `p99_s`, `worst_s`, `worst_processor_s`, `held`, `culprit`",
    "energy": "`joules` since the start, `watts` on average since this was last said; at most once a minute",
    "leases_given_back": (
        "`leases`, `reason`: the engine failed, time ran out, or the learner recalled them, as what they "
        "would bring is too old for any batch. A recalled lease does not count against you"
    ),
    "handed_back": (
        "`lease`, `finished` completions, `begun` ones and `tokens` of both, which count for you, `reason`: "
        "others go on with the rest"
    ),
    "engine_crashed": "`reason`",
    "gave_up": "`reason`: nothing has worked for too long, and the node ends",
    "receipt_revised": (
        "`lease`, `refused`, `reason`, `detail`, `tokens`: a later receipt says that these records are not "
        "counted after all"
    ),
    "revision_dropped": "`lease`: more later receipts came than could be written; the learner has them",
    "peer_fault": (
        "`peer`, `fault`, `detail`: what another peer did wrong; `unsaid`: faults since the last row that "
        "came too often to be written"
    ),
    "over_budget": (
        "`budget`, `times`, `who`, `who_times`: what strangers, or peers that do too much, were refused in "
        "the last 30 s, and whom that concerned most ([threats.md](../explain/threats.md#budgets))"
    ),
    "neighbour_not_met": (
        "`peer`, `reason`: no connection to a node that the learner introduced came about; it is tried again "
        "when its addresses or yours change, and ever more seldom if there was one before"
    ),
    "port_mapped": (
        "`protocol`, `address`, `until` (seconds since 1970), `gateway`, `behind_another_router`: your router "
        "passes a port on to this node"
    ),
    "port_mapping_failed": "`reason`, `gateway`: your router passes none on; it is asked again",
    "trouble": "`text`: for you to read",
}
"""Events of a rollout node. Those of its child processes are in LEARNER_EVENTS."""
