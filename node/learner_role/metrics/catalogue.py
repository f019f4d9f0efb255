"""Declare every metric: its name, kind, unit, labels, and a sentence.

A gauge is the newest value. A counter only grows within one start of the learner. A histogram counts values by size.

Invariants:

- Only metrics that are declared here are measured (`node.learner_role.metrics.board` rejects others).
- A running learner measures each metric that is declared here.
- `docs/reference/metrics.md` has the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Buckets of durations in seconds: two for each factor of ten, from a toy model's step to a large model's."""

TOKENS = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)


class Kind(Enum):
    """How the values of one metric are combined."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. `labels` names the labels that distinguish its series, `buckets` has a histogram's upper limits."""

    name: str
    kind: Kind
    unit: str
    words: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _gauge(name: str, unit: str, words: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.GAUGE, unit=unit, words=words, labels=labels)


def _counter(name: str, unit: str, words: str, *labels: str) -> Metric:
    return Metric(name=name, kind=Kind.COUNTER, unit=unit, words=words, labels=labels)


def _histogram(name: str, words: str, unit: str = "seconds", buckets: tuple[float, ...] = SECONDS) -> Metric:
    return Metric(name=name, kind=Kind.HISTOGRAM, unit=unit, words=words, buckets=buckets)


TOPICS: Mapping[str, tuple[Metric, ...]] = {
    "training": (
        _gauge("step", "steps", "The newest training step."),
        _gauge("incarnation", "starts", "How often the learner was started; versions have it in their name."),
        _gauge("reward", "reward", "Mean reward of the rollouts that the step was trained on."),
        _gauge("reward_error", "reward", "Standard error of `reward`, from the spread of the group means."),
        _gauge("reward_of_task", "reward", "As `reward`, by task.", "task"),
        _gauge("reward_of_name", "reward", "As `reward`, by named reward.", "name"),
        _gauge("difficulty", "share", "1 minus the expected reward of the step's problems, mean over rollouts."),
        _gauge("loss", "loss", "Value of the objective, mean over the step's updates, weighted by their sequences."),
        _gauge("grad_norm", "norm", "Largest norm of the gradient before clipping, over the step's updates."),
        _gauge("learning_rate", "rate", "Learning rate of the step."),
        _gauge("updates", "updates", "Optimizer updates of the step; parts of a batch without an advantage have none."),
        _gauge("tokens", "tokens", "Tokens of the step's completions that the policy generated."),
        _gauge("trained_tokens", "tokens", "Tokens of the step in sequences that had a gradient."),
        _gauge(
            "with_advantage",
            "share",
            "Fraction of the step's completions with an advantage; at 0 the policy learns nothing.",
        ),
        _gauge("cut_off", "share", "Fraction of the step's rollouts that were cut off."),
        _gauge(
            "overlong_penalty", "reward", "Mean amount that `[learn] overlong` subtracted from rewards for training."
        ),
        _gauge("offline_sequences", "sequences", "Completions of the step from logs, which are no rollouts."),
        _gauge("pass_rate", "share", "Mean of the known pass rates of a finite task's problems.", "task"),
        _gauge("pass_rate_of_level", "share", "Recent pass rate of a level, for a task without end.", "task", "level"),
        _gauge("problems_known", "problems", "Problems of a finite task whose pass rate is known.", "task"),
        _gauge("problems_all_right", "problems", "Problems of a finite task whose last group was all right.", "task"),
        _gauge("problems_all_wrong", "problems", "Problems of a finite task whose last group was all wrong.", "task"),
        _gauge("passes", "passes", "Completed passes over a finite task.", "task"),
        _counter("rollouts_trained", "rollouts", "Rollouts trained on, by their lag when the batch was formed.", "lag"),
        _counter("rollouts_stale", "rollouts", "Admitted rollouts that were dropped as stale when a batch was formed."),
        _counter(
            "rollouts_uninformative",
            "rollouts",
            "Rollouts that were dropped because all rewards of their group are equal.",
        ),
        _counter("groups_void", "groups", "Groups that were dropped because a completion has no reward."),
        _counter("batches_dropped", "batches", "Batches that were dropped because they made the loss infinite."),
        _counter("trainer_restarts", "restarts", "How often the trainer was lost and loaded again."),
        _gauge("turns", "turns", "Mean turns of the episodes that the step was trained on; 1 for tasks with one turn."),
        _histogram(
            "completion_tokens", "Tokens of a trained completion, including those of its environment.", "tokens", TOKENS
        ),
    ),
    "objective": (
        _gauge("entropy", "nats", "Entropy of the policy, mean over the trained tokens."),
        _gauge(
            "mismatch_kl", "nats", "KL of the policy that generated from the policy that trains (k3), mean over tokens."
        ),
        _gauge(
            "mean_ratio", "ratio", "Mean importance ratio: probability of a trained token now over that when generated."
        ),
        _gauge("max_ratio", "ratio", "Largest importance ratio."),
        _gauge("max_log_ratio", "nats", "Largest absolute logarithm of the importance ratios."),
        _gauge("ess", "share", "Effective sample size of the importance ratios as weights: (sum r)^2 / (n sum r^2)."),
        _gauge("weight_ess", "share", "As `ess`, for the weights after the objective's bounds."),
        _gauge(
            "borne_kl", "nats", "Largest `mismatch_kl` that the objective was seen to tolerate; above is `too_stale`."
        ),
        _gauge("borne_ess", "share", "Smallest `ess` that the objective tolerates; below is `few_effective_tokens`."),
        _gauge("reference_kl", "nats", "KL of the policy from the reference model, mean over tokens; 0 without one."),
        _gauge("teacher_kl", "nats", "Log ratio of the policy to the teacher, mean over tokens; 0 without one."),
        _gauge("mean_lag", "steps", "Mean lag of all tokens of the step."),
        _gauge("diverged", "flag", "1 if an update after the step's first made the loss infinite, and was left out."),
        _gauge(
            "clip_share", "share", "Fraction of trained tokens on which a bound acted: clipped, truncated or masked."
        ),
        _gauge("replayed", "share", "Fraction of the engines' choices of experts that the trainer followed."),
        _gauge("masked_share", "share", "Fraction of trained sequences in which a bound left no token any weight."),
        _gauge(
            "explained_variance",
            "share",
            "PPO: fraction of the variance of returns that the critic predicted; 1 is all.",
        ),
        _gauge("preference_loss", "nats", "DPO: the loss, mean over the pairs."),
        _gauge(
            "preference_accuracy",
            "share",
            "DPO: fraction of pairs whose better completion gained more on the reference than the worse.",
        ),
        _gauge("preference_margin", "nats", "DPO: by how much more, times beta, mean over the pairs."),
        _gauge("tokens_at_lag", "tokens", "Trained tokens by their own lag; `offline` are those of logs.", "lag"),
        _gauge("ratio_at_lag", "ratio", "As `mean_ratio`, by lag.", "lag"),
        _gauge("kl_at_lag", "nats", "As `mismatch_kl`, by lag; at lag 0 it compares engine and trainer.", "lag"),
        _gauge("clip_share_at_lag", "share", "As `clip_share`, by lag.", "lag"),
        _gauge("entropy_at_lag", "nats", "As `entropy`, by lag.", "lag"),
        _gauge("ess_at_lag", "share", "As `ess`, by lag.", "lag"),
        _gauge("weight_ess_at_lag", "share", "As `weight_ess`, by lag.", "lag"),
        _gauge("reward_at_lag", "reward", "Mean reward of trained rollouts by their lag.", "lag"),
    ),
    "evaluation": (
        _gauge("greedy", "reward", "Mean reward on the held-out prompts with greedy decoding."),
        _gauge("sampled", "reward", "Mean reward on the held-out prompts of samples at the training temperature."),
        _gauge("pass_at", "share", "Chance that at least one of k samples is all right (unbiased estimate).", "k"),
        _gauge("greedy_of_task", "reward", "As `greedy`, by task of a mixture.", "task"),
        _gauge("sampled_of_task", "reward", "As `sampled`, by task of a mixture.", "task"),
        _gauge("greedy_of_name", "reward", "As `greedy`, by named reward.", "name"),
        _gauge("sampled_of_name", "reward", "As `sampled`, by named reward.", "name"),
        _gauge("pass_at_of_task", "share", "As `pass_at`, by task of a mixture.", "task", "k"),
        _counter(
            "evaluations_skipped",
            "evaluations",
            "Versions that were skipped because the evaluation before was not over.",
        ),
        _counter("evaluations_failed", "evaluations", "Versions that could not be evaluated."),
    ),
    "alarms": (
        _gauge("alarm", "flag", "1 while this alarm is active, see watching a run.", "rule"),
        _counter("alarms_raised", "alarms", "How often this alarm was raised.", "rule"),
    ),
    "time": (
        _histogram("waited_seconds", "Time that a step waited for its batch."),
        _histogram(
            "gathered_seconds", "Time from the first lease of a step's batch until its last group was complete."
        ),
        _histogram("train_seconds", "Time that the trainer took for a step."),
        _histogram("publish_seconds", "Time to export, sign and announce a version."),
        _histogram(
            "checkpoint_seconds", "Time from the request for a checkpoint until it was on disk, beside training."
        ),
        _counter(
            "learner_seconds", "seconds", "Time of the learner by kind; all kinds add up to the wall clock.", "kind"
        ),
        _gauge("utilisation", "share", "Fraction of the learner's time that it trained, since the run's first start."),
        _gauge(
            "bubble", "share", "Fraction of the steps' time so far in which the learner waited for rollouts (ECHO-2)."
        ),
        _gauge("still_seconds", "seconds", "Time since the last training step, updated every 5 s."),
        _gauge("t_train", "seconds", "T_train in plans: recent mean time of a training step."),
        _gauge(
            "t_broadcast",
            "seconds",
            "T_bcast: time from the end of a step until 90 % of the active peers have its version.",
        ),
        _gauge(
            "t_generation", "seconds", "T_gen: time from the start of a lease until it was admitted, 95th percentile."
        ),
    ),
    "rollouts": (
        _counter("rollouts_admitted", "rollouts", "Rollouts that were admitted.", "peer"),
        _counter(
            "rollouts_refused",
            "rollouts",
            "Rollouts that were rejected, by the rule of the first rejected one in a delivery.",
            "rule",
        ),
        _counter("tokens_admitted", "tokens", "Tokens of admitted rollouts.", "peer"),
        _counter(
            "rewards_failed", "rewards", "Rewards that no verifier could compute, including held-out ones.", "how"
        ),
        _gauge("informative", "share", "Recent fraction of admitted rollouts whose group has different rewards."),
        _gauge("rollouts_buffered", "rollouts", "Admitted rollouts that wait for a batch."),
        _gauge("rollouts_leased", "rollouts", "Rollouts that are leased and not delivered."),
        _gauge("episodes_open", "rollouts", "Begun rollouts in groups with an unfinished episode."),
        _counter("leases_returned", "leases", "Leases that peers returned.", "peer"),
        _counter("tokens_handed_back", "tokens", "Tokens of leases that peers handed back unfinished.", "peer"),
        _gauge(
            "leases_fruitless", "leases", "Leases that ended without a record, since the last lease that brought one."
        ),
        _counter("leases_recalled", "leases", "Leases that were recalled because no batch could use their rollouts."),
    ),
    "peers": (
        _gauge("peers", "peers", "Peers that are here."),
        _gauge("peers_active", "peers", "Active peers, which are leased work; the others are on standby."),
        _gauge(
            "nodes_troubled", "peers", "Peers here that report that they cannot do this: `fetch`, `install`...", "kind"
        ),
        _gauge("nobody_can_work", "flag", "1 while no node can work with the newest version, by what nodes report."),
        _gauge(
            "price_per_hour", "currency", "Sum of the prices of an hour of the active peers, in the swarm's currency."
        ),
        _gauge("nodes_reached", "peers", "Nodes that ever joined, by how they report that others reach them.", "kind"),
        _gauge("pairs_met", "pairs", "Pairs of nodes that ever connected, by how they report that they did.", "way"),
        _counter("peers_joined", "peers", "How often a peer joined."),
        _counter("peers_left", "peers", "How often a peer left or timed out."),
        _counter("peer_faults", "faults", "Faults of peers, which no working node commits.", "fault"),
        _counter("peer_faults_unsaid", "faults", "Faults of peers that came too often to be logged one by one."),
        _counter(
            "over_budget",
            "refusals",
            "Refusals of requests from strangers and peers, by budget: see threats.md.",
            "budget",
        ),
        _gauge("peer_bytes_up", "bytes", "Bytes of chunks that a peer reports to have sent since its start.", "peer"),
        _gauge(
            "peer_bytes_down", "bytes", "Bytes of chunks that a peer reports to have received since its start.", "peer"
        ),
    ),
    "trust": (
        _counter("audits", "groups", "Audited groups by result.", "found"),
        _counter("audited_tokens", "tokens", "Tokens of audited groups."),
        _counter("audits_impossible", "attempts", "Audits that failed because of the engine or a missing version."),
        _counter("peers_banned", "peers", "Peers that were banned."),
        _gauge("audits_waiting", "groups", "Groups that wait for their audit."),
        _histogram(
            "audit_seconds", "Engine time for the audits of one version together; the sum is the cost of all audits."
        ),
    ),
    "weights": (
        _counter("versions_published", "versions", "Policy versions published."),
        _gauge("version_bytes", "bytes", "Size of the newest version."),
        _gauge("version_new_bytes", "bytes", "Bytes of the newest version that were not in the version before."),
        _gauge("version_patch_bytes", "bytes", "Size of the patches that lead to the newest version."),
        _gauge("learner_bytes_up", "bytes", "Bytes of chunks that the learner sent since its start."),
        _gauge(
            "learner_bytes_carried",
            "bytes",
            "Bytes that circuits through the learner carried between nodes since its start.",
        ),
        _counter("relayed_bytes", "bytes", "Bytes of versions that peers are credited for relaying."),
        _gauge("checkpoint_bytes", "bytes", "Size of the newest checkpoint."),
        _counter("checkpoints_failed", "checkpoints", "Checkpoints that could not be written."),
        _gauge("period", "steps", "kappa: training steps between published versions."),
    ),
    "processes": (
        _gauge(
            "loop_delay_p99",
            "seconds",
            "Delay that 99 of 100 events have at most in the event loop, over the last minute.",
        ),
        _gauge("loop_delay_max", "seconds", "The longest turn of the event loop in the last minute."),
        _gauge("loop_step_processor", "seconds", "CPU time of the costliest task step in the last minute."),
        _counter("loop_held", "reports", "Reports that a task blocked the event loop, at most one a minute.", "task"),
        _gauge("disk_free_bytes", "bytes", "Free disk space for versions and checkpoints, on the learner."),
        _gauge("certificate_seconds", "seconds", "Time until the certificate of the learner's key ends."),
        _counter("child_deaths", "processes", "Child processes that ended unexpectedly.", "child"),
        _counter("rows_lost", "rows", "Steps that a sink did not get because it was too slow or failed.", "sink"),
        _counter("series_refused", "series", "Series that were refused because their metric has too many."),
    ),
}
"""All metrics, by the topic under which they are shown."""

METRICS: Mapping[str, Metric] = {metric.name: metric for metrics in TOPICS.values() for metric in metrics}

TOPIC_OF: Mapping[str, str] = {metric.name: topic for topic, metrics in TOPICS.items() for metric in metrics}
