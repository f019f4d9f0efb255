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
        "`step`, `rollouts` (of the batch), `reason`: the trainer met an infinite loss and left the weights "
        "unchanged. The batch was dropped, and the next batch is used for this step."
    ),
    "step": (
        "`step`, `reward` (mean), `rollouts`, `train_s` (seconds of training), `waited_s` (seconds of waiting for "
        "the batch), `utilisation`, `waiting` and `blocked` (fractions of [the learner's "
        "time](../operate/report.md#the-learners-time) so far), `max_lag`, `dropped` (groups that were stale when "
        "the batch formed, uninformative or void), `uninformative` (rollouts dropped since the step before, because "
        "all rewards of their group are equal), `buffered` (rollouts that wait in the buffer), `entropy`, "
        "`mismatch_kl`, `ess`, `clip_share`, `grad_norm`, `kl_by_lag` (text: lag and KL): a training step has ended. "
        "Fractions and [metrics](metrics.md) that are not known are left out."
    ),
    "alarm_raised": (
        "`alarm` (its name), `step`, `measured`, `usual` (values), `text`: an [alarm](../operate/watching.md#alarms) "
        "was raised. Alarms that last are written again when an incarnation begins."
    ),
    "alarm_cleared": "`alarm` (its name), `step`, `measured`, `usual`, `text`: the alarm is over.",
    "standing_still": (
        "`step` (the last one taken), `seconds`, `text` (what the learner waits for): there was no training step for "
        "five minutes, and for ten times as long as the last eight steps usually took. The event is written again "
        "each time that the pause has doubled."
    ),
    "metrics_noticed": (
        "`sink`, `text`: the service that receives the metrics shows them at an address, does not answer, or answers "
        "again."
    ),
    "metrics_failed": (
        "`sink`, `reason`, `retry_s` (seconds): metrics could not be written. The learner tries again after that time."
    ),
    "notices_failed": (
        "`to` (without the secret), `reason`, `retry_s` (seconds; null: this notice is lost), `lost` (notices before "
        "that were lost): a [notice](../operate/watching.md#notices) could not be posted. The event is written again "
        "only after one was."
    ),
    "loop_held": (
        "`task` (of the program), `where` (file, line, function), `seconds`, `processor_s`: a task held [the event "
        "loop](../operate/watching.md#the-event-loop). The event is written at most once a minute for a task, unless "
        "it held the loop twice as long as before."
    ),
    "loop_measured": (
        "`p99_s` (in the last minute), `worst_s`, `worst_processor_s` (since the start), `held` (number of task "
        "steps), `culprit`: at the end, how long [the event loop](../operate/watching.md#the-event-loop) made others "
        "wait, and which task held it longest."
    ),
    "version_published": (
        "`version`, `total_bytes`, `new_bytes` (not in the version before), `patch_bytes` (of all patches that lead "
        "to it), `patches` (number), `patch_seconds` (to make them), `export_seconds` (from the snapshot until the "
        "files were written), `seconds` (from the snapshot to the announcement): nodes can fetch this version. "
        "Training went on meanwhile."
    ),
    "versions_skipped": (
        "`first`, `last` (training steps), `reason`: these steps were due to be published and were skipped, because "
        "the versions before them were still being published."
    ),
    "evaluated": (
        "`version`, `completions` (sampled ones, of all prompts), `greedy`, `sampled`, `pass_1` (and so on for each "
        "k that is asked for): the scores of a version on the held-out problems."
    ),
    "evaluated_task": (
        "`version`, `task`, `greedy`, `sampled`, `pass_1` (and so on): the scores of a version on one task of a "
        "mixture."
    ),
    "evaluated_reward": (
        "`version`, `name`, `greedy`, `sampled`: the scores of a version by one [reward with a "
        "name](../operate/rewards.md#several-named-rewards)."
    ),
    "evaluation_skipped": "`version`, `reason`: this version was due for an evaluation and was not evaluated.",
    "evaluation_failed": "`version`, `reason`: the evaluation of this version failed. Training goes on.",
    "curriculum": (
        "`task`, `given` (groups), `passes`, `known` (problems with a pass rate), `all_right`, `all_wrong` (problems "
        "whose last group was so), `rate` (mean pass rate), `level`, `rate_0` (and so on): the state of the "
        "curriculum, with each version for each task. A finite task has the fields from `passes` to `rate`; other "
        "tasks have `level`, and the pass rate of each level."
    ),
    "task_opened": (
        "`task`, `note`: at the start, how many problems of a file are trained on and held out, and how many lines "
        "were left out for which reason."
    ),
    "delivery_judged": (
        "`peer`, `lease`, `admitted`, `refused` (records), `reason`, `detail` (of the first rejected record), `lag`, "
        "`reward` (mean), `tokens` (credited), `dropped` (reason): the learner judged a delivery. `dropped` says why "
        "no batch uses the admitted records: `uninformative` (equal rewards), `void` (no reward is known, or one "
        'failed with `on_failure = "drop"`) or `audit` (an audit dropped the group).'
    ),
    "reward_failed": (
        "`task`, `index` (of the problem), `held_out`, `how` (`timed_out`, `died`, `raised`, `otherwise`), `detail`: "
        "no verifier could compute a reward. `otherwise` means that a new environment answered differently from the "
        "one that was lost."
    ),
    "reward_service": (
        "`service` (its section, or the name that a task's author gave it), `how` (`down`, `back`, `unclear`), "
        "`detail`: a verifier reports about a judge or reward service. `unclear` means that its answer gives no "
        "reward."
    ),
    "audited": (
        "`peer`, `lease`, `tokens`, `above` (contexts with a gap above the margin), `worst` (largest gap, in nats), "
        "`evidence` (logarithm of the odds of all audits against the peer), `passed`, `standing`: an audit of a "
        "group is over. A gap is by how much a token fell short of the one that the seeded sampler draws; honest "
        "rounding exceeds the margin now and then."
    ),
    "audits_made": (
        "`groups`, `seconds` (of the evaluation engine), `waiting` (groups that wait for an audit): a portion of "
        "audits is over."
    ),
    "scores_made": (
        "`groups`, `tokens` (generated ones), `seconds` (of the teacher's engine): the learner's teacher, named in "
        "`[distill]`, scored a portion of groups."
    ),
    "teacher_joined": (
        "`peer`, `name`, `engine`, `machine`: a [teacher node](../operate/distillation.md#teacher-nodes) has joined."
    ),
    "teacher_left": "`peer`, `reason`: a teacher node has left.",
    "scores_delivered": (
        "`peer`, `lease`, `tokens`, `waits` (whether the scores are audited before they are used): a teacher node "
        "scored a group."
    ),
    "scores_audited": (
        "`peer`, `lease`, `tokens`, `worst` (largest difference, in nats), `evidence`, `passed`, `standing`: the "
        "learner's teacher scored the same tokens as a teacher node, and compared."
    ),
    "audit_failed": (
        "`peer`, `lease`, `reason`: the audit of a group failed. The group is rejected, and its peer is a newcomer "
        "again."
    ),
    "group_doubted": (
        "`peer`, `lease`, `evidence`: a group of a newcomer or suspect passed its audit, but all audits of the peer "
        "together speak against it. The group is credited. It is not trained on, nor are the peer's other groups in "
        "the buffer that wait for no audit."
    ),
    "peer_unusual": (
        "`peer`, `reason`: the peer's recent rewards, lengths or log probabilities are far from those of the swarm "
        "at the same time. Rewards and lengths are compared within a task, log probabilities at the same lag, as the "
        "trainer computes them. Everything from the peer is audited meanwhile; this alone counts against nobody."
    ),
    "near_copy": (
        "`peer`, `lease`, `of` (the other lease): a completion nearly repeats one of another lease, which is "
        "unlikely by chance. Either may be the copy, so the group is audited, and this alone counts against nobody."
    ),
    "choice_drawn": (
        "`peer`, `lease`, `choice` (`withheld` or `delivered`), `worth` (by how much the peer's completions are "
        "better for it than ours, on average), `gain` (by how much more they gain by their version than ours), "
        "`heard` (groups of the peer so far), `evidence` (against its honesty): a check for selective delivery is "
        "over. The learner regenerated a group and compared it with what the peer delivered or withheld."
    ),
    "choice_impossible": (
        "`version`, `reason`: a check for selective delivery failed, because completions of this version could not "
        "be regenerated."
    ),
    "audit_impossible": (
        "`version`, `reason`: rollouts of this version could not be audited. Newcomers' groups of this version may "
        "be dropped, which counts against nobody."
    ),
    "peer_banned": (
        "`peer`, `lease` (of the audit that led to the ban, if one did), `reason`: the peer is banned. Its work is "
        "removed from the buffer, its leases go to other peers, and its key may not come back."
    ),
    "peer_pardoned": "`peer`: the operator lifted the ban.",
    "peer_quarantined": (
        "`peer`, `reason`: soft strikes stand against the peer; see [appeals](../operate/trust-and-bans.md#appeals)."
    ),
    "quarantine_over": "`peer`: no soft strike stands against the peer any more.",
    "peer_fault": (
        "`peer`, `fault`, `detail`, `unsaid` (faults since the last such event that came too often to be written): a "
        "peer did what no working node does."
    ),
    "over_budget": (
        "`budget`, `times`, `who` (the address or peer most concerned), `who_times`: in the last 30 s a "
        "[budget](../explain/threats.md#budgets) refused requests of strangers, or of peers that ask too much."
    ),
    "peer_joined": "`peer`, `name`, `engine`, `machine`: a rollout node has joined.",
    "peer_reach": (
        "`peer`, `name`, `kind` (`directly`, `mapped`, `by_punching`, `not`, `unknown`), `why`: how others reach "
        "this node, as the node itself says."
    ),
    "nodes_reached": (
        "`text`: how many nodes are reached in which way, and how many pairs of them met in which way. The event is "
        "written when that changes, at most every 10 s."
    ),
    "key_copied": (
        "`peer`, `name`, `machine` (of the second process): a second process came with this peer's key and was "
        "refused. The first one goes on."
    ),
    "peer_left": (
        "`peer`, `reason`, `leases_released`: a rollout node has left or timed out. Its leases go to other peers."
    ),
    "peer_activated": "`peer`, `name`, `reason`: the peer is active, and gets leases from now on.",
    "peer_released": "`peer`, `name`, `reason`: the peer is on standby, and gets no leases from now on.",
    "setting_changed": (
        "`key`, `value`, `by`: the operator changed a setting of the running learner, through `by`. `publish` is 1 or "
        "0; the other keys are those of `swarm.toml`."
    ),
    "stop_ordered": "`by`: the operator ordered the learner to end after its present training step, through `by`.",
    "period_changed": "`kappa`, `reason`: from now on a version is published every `kappa` training steps.",
    "heartbeat": (
        "`peer`, `name`, `installed` (version), `pending` (rollouts), `bytes_up`, `bytes_down`: a rollout node "
        "reported that it is alive."
    ),
    "traffic": (
        "`bytes_up`, `bytes_down` (chunks that the learner itself sent and received), `bytes_carried` (between "
        "nodes, over circuits through the learner), `sent_bytes`, `received_bytes` (all data, in steps of 5 %): the "
        "traffic since the start."
    ),
    "energy_read": (
        "`how`: at the start, how the joules of the learner's machine are measured or estimated, or what to do."
    ),
    "energy": (
        "`joules` (since the start), `watts` (mean since the last such event): the energy of the learner's machine, "
        "at most once a minute."
    ),
    "leases_returned": (
        "`peer`, `leases`, `recalled` (number of these that the learner had recalled), `reason`: a peer returned "
        "leases."
    ),
    "node_trouble": (
        "`peer`, `name`, `kind` (`fetch`, `install`, `lease`, `engine`), `version`, `times` (failures in a row), "
        "`reason`: a node reports that it cannot do this. The event is written again when the failures have doubled, "
        "at most every 30 s for a node and kind."
    ),
    "nodes_unable": (
        "`text`, `nodes` (that cannot work), `of` (all nodes), `everyone` (whether none can work): some nodes cannot "
        "work with the newest version; `text` says why. See [nodes that cannot "
        "work](../operate/watching.md#nodes-that-cannot-work)."
    ),
    "nodes_able": "`of` (all nodes): all nodes can work again.",
    "leases_granted_again": "`peer`, `leases`: the peer had lost leases that were still open, and got them again.",
    "lease_handed_back": (
        "`peer`, `lease`, `finished`, `begun` (completions), `tokens` (of both), `left` (completions that others "
        "finish, with the seeds of this lease), `reason`: a peer handed back a lease that it had begun."
    ),
    "parts_given_up": (
        "`groups`: these groups held completions that a peer had begun, and for a minute no peer was there that "
        "could continue them. The groups were given up."
    ),
    "leases_recalled": (
        "`peer`, `leases`, `rollouts`, `minimum` (oldest version that a batch may use): the learner recalled leases, "
        "because their rollouts would be too old for any batch. The peer is told, unless its volery is too old to "
        "understand. As many rollouts are leased to others at once."
    ),
    "relays_credited": (
        "`peer` (the receiver), `version`, `relays` (number of peers that sent chunks), `bytes` (from all of them): "
        "the learner credited relays by a receiver's relay receipt."
    ),
    "checkpoint_saved": (
        "`directory`, `step`, `bytes`, `seconds` (from the request until it was durable): a checkpoint was written. "
        "Training went on meanwhile."
    ),
    "checkpoint_failed": (
        "`directory`, `reason`: a checkpoint could not be written. The learner tries again with the next version."
    ),
    "stopping": (
        "`step` (the last one taken), `durable` (step of the newest checkpoint): somebody stops the learner. It "
        "first saves what is missing."
    ),
    "starting": (
        "`doing`: what the learner does, at a start or with a new trainer, before it publishes a version; or what a "
        "node does before it joins."
    ),
    "trial_passed": "`seconds`, `tokens` (generated), `text`: the trial at the start succeeded.",
    "milestone_given_up": (
        "`directory`, `step`: the disk had no room for the next checkpoint, so this "
        "[milestone](../explain/checkpoints.md#milestones) was removed."
    ),
    "incarnation_began": "`incarnation`, `step`: the learner started, and continues after this step.",
    "certificate_renewed": "`until` (date): the certificate of the learner's key was renewed.",
    "certificate_ends": (
        "`until` (date), `left_s` (seconds), `text`: the certificate ends soon, and `operator.key` is not here to "
        "renew it. The event is written every hour."
    ),
    "ledger_restored": (
        "`version`, `incarnation`, `text`: a member or the state directory holds a version that this learner signed "
        "and that the ledger does not know. The ledger is an older copy, and the learner continues above that "
        "incarnation. See [restoring](../operate/keys-and-backup.md#the-state-directory)."
    ),
    "buffer_recovered": (
        "`rollouts`, `episodes` (unfinished ones): after a start, admitted work that no step had used is in the "
        "buffer again."
    ),
    "checkpoint_unusable": (
        "`directory`, `reason`: a checkpoint cannot be loaded. The learner tries an older one, if there is one."
    ),
    "trainer_restarted": "`reason`: the trainer ended unexpectedly and was started again.",
    "trainer_waits": "`text`: the machines or ranks that the trainer waits for before it begins.",
    "child_started": "`child`, `pid`, `seconds` (until it was ready): a child process is ready.",
    "child_said": (
        "`child`, `line`: a line of a child's standard error. A trainer on several GPUs puts the number of the rank "
        "before it."
    ),
    "child_died": (
        "`child`, `reason` (exit code or signal, and the exception or fault that it reported), `said` (its last "
        "words, if it reported none or if they show where the fault was): a child process ended unexpectedly. For a "
        "trainer on several GPUs, both are about the rank that ended first, or the machine that is gone."
    ),
    "child_restarting": "`child`: the child process is being started again.",
    "child_abandoned": "`child`: the child process died too often and is not started again.",
    "engine_crashed": "`reason`: the evaluation engine crashed during an evaluation. The evaluation begins again.",
    "finished": "`steps`: the run is over after this number of training steps.",
    "trouble": "`text`: something that the operator should attend to.",
}
"""Events of a learner, and of the child processes of both roles."""

NODE_EVENTS: Mapping[str, str] = {
    "engine_chosen": "`engine`, `why`: the engine that this node uses, and why.",
    "teacher_loaded": "`seconds`: the engine has loaded the teacher (`--teacher`).",
    "format_waits": (
        "`seconds` (at most): the node waits for a first version, because its size decides what `quantization = "
        '"auto"` comes to.'
    ),
    "weights_format": '`format`, `why`: what `quantization = "auto"` came to.',
    "receipts_opened": (
        "`admitted`, `rejected`: what the learner had judged before this start, rollouts or a teacher's groups."
    ),
    "session_began": (
        "`worked_s` (seconds before this start), `trained` (records with a proof that they were trained on), "
        "`per_hour` (the owner's price), `currency`: the node counts its work from now on."
    ),
    "swarm_found": "`name`, `swarm` (its id): a learner answered for the invite's swarm.",
    "joined": (
        "`learner` (peer id), `staleness` (S), `newest` (version): the node is connected to the learner, and belongs "
        "to the swarm."
    ),
    "learner_unreachable": (
        "`reason`, `retry_s` (seconds): there is no connection to the learner. The node tries again after that time."
    ),
    "clock_differs": (
        "`offset_s` (the learner's clock minus this machine's, in seconds), `text`: the clocks differ by more than "
        "five minutes. The event is written once."
    ),
    "turned_away": "`reason`, `retry_s` (seconds): the learner answered, and asks this node to come back later.",
    "window_changed": "`staleness`: the operator changed the staleness window S.",
    "no_lease": "`reason`: the learner has no work for this node now. The event is written once for each reason.",
    "version_fetched": (
        "`version`, `seconds`, `fetched_bytes`, `patch_bytes` (of these, in patches), `patches` (number), "
        "`apply_seconds` (to apply the patches, once they were here), `sources` (number of peers that sent chunks): "
        "a version was downloaded."
    ),
    "version_installed": (
        "`version`, `seconds`: the engine has loaded this version. After a restart of the engine the same version is "
        "installed again."
    ),
    "speed_measured": (
        "`tokens_per_s`: the speed of the engine, measured once before the first lease; 0 if it could not be measured."
    ),
    "install_failed": (
        "`version`, `reason`, `again` (when the node tries again, or that it does not): a version could not be "
        "installed. The version in service stays, or is installed again. That also happens if the engine's log "
        "probabilities for the version's probe differ from the learner's: the engine has then loaded something else."
    ),
    "work_pending": (
        "`rollouts`: the number of rollouts that are leased and not yet judged. The event is written whenever it "
        "changes."
    ),
    "receipt": (
        "`lease`, `admitted`, `refused` (records), `reason`, `detail` (of the first rejected record), `tokens`: the "
        "learner answered a delivery."
    ),
    "proofs_kept": (
        "`records`, `credit_notes` (numbers): the node stored proofs that its records were trained on, and notes of "
        "its relay credits."
    ),
    "rank_told": "`place` of this node among `peers` by admitted rollouts; `admitted` by it, and `admitted_by_all`.",
    "reputation_told": "`band`, `score`: the reputation of this node, as the learner states it.",
    "hours_ended": "`again_at` (time of day): the owner's hours ended. The node works again at this time.",
    "hours_began": "`until` (time of day): the owner's hours began, and end at this time.",
    "paused": "`why`: the node is paused and generates nothing.",
    "resumed": "No fields: the pause is over, and the node works again.",
    "limit_changed": (
        "`key`, `value` (as `volery status` shows them), `by`: the owner changed a limit until the node ends, through "
        "`by`."
    ),
    "engine_rests": "No fields: the engine's process was ended to free its memory, because the pause lasts.",
    "engine_wakes": "No fields: the engine's process is being started again.",
    "drain_began": (
        "`leases` (to deliver), `within_s` (seconds; null without a deadline): the node accepts no new leases, and "
        "delivers those that it has."
    ),
    "drained": "`undelivered` (leases that were not delivered in time): draining is over.",
    "traffic": (
        "`bytes_up`, `bytes_down` (chunks that this node sent and received), `bytes_carried` (between other peers, "
        "over circuits through this node), `sent_bytes`, `received_bytes` (all data, in steps of 5 %): the traffic "
        "since the start."
    ),
    "reach_told": (
        "`kind`, `why`, `text`: the node told the learner how others reach it, and how it met the peers that it is "
        "connected to."
    ),
    "energy_read": "`how`: at the start, how the joules of this machine are measured or estimated, or what to do.",
    "notices_failed": (
        "`to` (without the secret), `reason`, `retry_s` (seconds; null: this notice is lost), `lost` (notices before "
        "that were lost): a [notice](../lend/limits-and-hours.md#notices) could not be posted. The event is written "
        "again only after one was."
    ),
    "loop_held": (
        "`task`, `where`, `seconds`, `processor_s`: a task held the node's event loop; see [the event "
        "loop](../operate/watching.md#the-event-loop)."
    ),
    "loop_measured": (
        "`p99_s` (in the last minute), `worst_s`, `worst_processor_s` (since the start), `held` (number of task "
        "steps), `culprit`: at the end, how long the event loop made others wait, and which task held it longest."
    ),
    "energy": (
        "`joules` (since the start), `watts` (mean since the last such event): the energy of this machine, at most "
        "once a minute."
    ),
    "leases_given_back": (
        "`leases`, `reason`: the node returned leases, because the engine failed, time ran out, or the learner "
        "recalled them as too old for any batch. A recalled lease does not count against you."
    ),
    "handed_back": (
        "`lease`, `finished`, `begun` (completions), `tokens` (of both), `reason`: the node handed back a lease that "
        "it had begun. The tokens count for you, and other nodes continue with the rest."
    ),
    "engine_crashed": "`reason`: the engine crashed and is started again.",
    "gave_up": "`reason`: nothing has worked for too long, and the node ends.",
    "receipt_revised": (
        "`lease`, `refused`, `reason`, `detail`, `tokens`: a later receipt says that these records are not counted "
        "after all."
    ),
    "revision_dropped": "`lease`: a later receipt could not be written, because too many came. The learner has it.",
    "peer_fault": (
        "`peer`, `fault`, `detail`, `unsaid` (faults since the last such event that came too often to be written): "
        "another peer did what no working node does."
    ),
    "over_budget": (
        "`budget`, `times`, `who` (the address or peer most concerned), `who_times`: in the last 30 s a "
        "[budget](../explain/threats.md#budgets) refused requests of strangers, or of peers that ask too much."
    ),
    "neighbour_not_met": (
        "`peer`, `reason`: this node could not connect to a node that the learner introduced. It tries again when "
        "its addresses or yours change. If there was a connection before, it also tries again after pauses that grow."
    ),
    "port_mapped": (
        "`protocol`, `address`, `until` (seconds since 1970), `gateway`, `behind_another_router`: your router "
        "forwards a port to this node."
    ),
    "port_mapping_failed": "`reason`, `gateway`: your router forwards no port. The node asks it again.",
    "trouble": "`text`: something that you should attend to.",
}
"""Events of a rollout node. Those of its child processes are in LEARNER_EVENTS."""
