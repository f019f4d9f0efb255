"""Every metric there is: its name, its kind, its unit, its labels, and a sentence.

What always holds: nothing is measured under a name that does not stand here (`node.learner_role.metrics.board` refuses
it), whatever stands here is measured by a running learner, and `docs/metrics.md` says the same; tests hold all three. A
gauge is the newest value, a counter only grows within one start of the learner, a histogram counts values by size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Buckets of durations: three a decade, from a toy's step to a large model's."""

TOKENS = (8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0)


class Kind(Enum):
    """How values of one metric go together."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric. `labels` are the names of what tells its series apart, `buckets` a histogram's upper ends."""

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
        _gauge("incarnation", "starts", "How often the learner was started; versions carry it in their name."),
        _gauge("reward", "reward", "Mean reward of the rollouts that the step was trained on."),
        _gauge("reward_error", "reward", "Its standard error, as the means of the step's groups spread."),
        _gauge("reward_of_task", "reward", "The same, by task.", "task"),
        _gauge("reward_of_name", "reward", "The same, of each reward that has a name.", "name"),
        _gauge("difficulty", "share", "Of a reward of 1, what the step's problems are known to miss at best, mean."),
        _gauge("loss", "loss", "The objective's value, mean over the step's updates, weighted by their sequences."),
        _gauge("grad_norm", "norm", "Norm of the gradient before clipping, the largest of the step's updates."),
        _gauge("learning_rate", "rate", "Learning rate of the step."),
        _gauge("updates", "updates", "Optimizer updates of the step; parts of a batch that teach nothing take none."),
        _gauge("tokens", "tokens", "Tokens of the step's completions that the policy generated."),
        _gauge("trained_tokens", "tokens", "Those of them in sequences that had a gradient."),
        _gauge(
            "with_advantage", "share", "Of the step's completions, those with an advantage; at 0 nothing is learnt."
        ),
        _gauge("cut_off", "share", "Of the step's rollouts, those that did not come to their end."),
        _gauge("overlong_penalty", "reward", "What `[learn] overlong` took off the reward for training, mean."),
        _gauge("offline_sequences", "sequences", "Completions of the step that are from logs; no rollouts."),
        _gauge("pass_rate", "share", "Mean of the known pass rates of a finite task's problems.", "task"),
        _gauge("pass_rate_of_level", "share", "Pass rate of a level of a task without end, of late.", "task", "level"),
        _gauge("problems_known", "problems", "Problems of a finite task whose pass rate is known.", "task"),
        _gauge("problems_all_right", "problems", "Those of them whose last group was all right.", "task"),
        _gauge("problems_all_wrong", "problems", "Those whose last group was all wrong.", "task"),
        _gauge("passes", "passes", "Passes over a finite task that are over.", "task"),
        _counter("rollouts_trained", "rollouts", "Rollouts trained on, by their lag when the batch formed.", "lag"),
        _counter("rollouts_stale", "rollouts", "Admitted rollouts that were too old when a batch formed, and dropped."),
        _counter("rollouts_uninformative", "rollouts", "Rollouts dropped because their group has one reward."),
        _counter("groups_void", "groups", "Groups dropped since nobody could say what one completion is worth."),
        _counter("batches_dropped", "batches", "Batches that made the loss infinite and were dropped."),
        _counter("trainer_restarts", "restarts", "How often the trainer was lost, and loaded again."),
        _gauge("turns", "turns", "Turns of an episode that the step was trained on, mean; 1 where tasks have one."),
        _histogram(
            "completion_tokens", "Tokens of a trained completion, those of its environment included.", "tokens", TOKENS
        ),
    ),
    "objective": (
        _gauge("entropy", "nats", "Entropy of the policy, mean over the trained tokens."),
        _gauge("mismatch_kl", "nats", "KL of the policy that generated from the one that trains (k3), a token's mean."),
        _gauge("mean_ratio", "ratio", "Probability of a trained token now over when it was made, mean."),
        _gauge("max_ratio", "ratio", "The largest of these ratios."),
        _gauge("max_log_ratio", "nats", "The largest logarithm of these ratios, of either sign."),
        _gauge("ess", "share", "Effective sample size of the ratios as weights: (sum r)^2 / (n sum r^2)."),
        _gauge("weight_ess", "share", "The same of the weights that the objective's bounds made of the ratios."),
        _gauge("borne_kl", "nats", "The `mismatch_kl` that the objective was seen to bear: beyond is `too_stale`."),
        _gauge("borne_ess", "share", "The `ess` that it bears: below is `few_effective_tokens`."),
        _gauge("reference_kl", "nats", "KL of the policy from the reference, a token's mean; 0 without one."),
        _gauge("teacher_kl", "nats", "Log ratio of the policy to the teacher, a token's mean; 0 without one."),
        _gauge("mean_lag", "steps", "Mean lag of all tokens of the step."),
        _gauge("diverged", "flag", "1 where an update after the step's first made the loss infinite: it was left out."),
        _gauge("clip_share", "share", "Trained tokens on which a bound acted: clipped, truncated or masked."),
        _gauge("replayed", "share", "Of the engines' choices of experts, those that the trainer followed."),
        _gauge("masked_share", "share", "Trained sequences of which a bound left no token any weight."),
        _gauge(
            "explained_variance", "share", "PPO: of the variance of returns, what the critic told before; 1 is all."
        ),
        _gauge("preference_loss", "nats", "DPO: its loss, mean over the pairs."),
        _gauge("preference_accuracy", "share", "DPO: pairs whose better completion was made likelier than the worse."),
        _gauge("preference_margin", "nats", "DPO: by how much, times beta, mean over the pairs."),
        _gauge("tokens_at_lag", "tokens", "Trained tokens, by their own lag; `offline` are those of logs.", "lag"),
        _gauge("ratio_at_lag", "ratio", "As `mean_ratio`, by lag.", "lag"),
        _gauge("kl_at_lag", "nats", "As `mismatch_kl`, by lag: at lag 0 it is engine against trainer.", "lag"),
        _gauge("clip_share_at_lag", "share", "As `clip_share`, by lag.", "lag"),
        _gauge("entropy_at_lag", "nats", "As `entropy`, by lag.", "lag"),
        _gauge("ess_at_lag", "share", "As `ess`, by lag.", "lag"),
        _gauge("weight_ess_at_lag", "share", "As `weight_ess`, by lag.", "lag"),
        _gauge("reward_at_lag", "reward", "Mean reward of trained rollouts, by their lag.", "lag"),
    ),
    "evaluation": (
        _gauge("greedy", "reward", "Mean reward on the held-out prompts, the likeliest token taken each time."),
        _gauge("sampled", "reward", "The same of samples, at the training temperature."),
        _gauge("pass_at", "share", "Chance that one of k samples is all right, estimated without bias.", "k"),
        _gauge("greedy_of_task", "reward", "As `greedy`, by task of a mixture.", "task"),
        _gauge("sampled_of_task", "reward", "As `sampled`, by task of a mixture.", "task"),
        _gauge("greedy_of_name", "reward", "As `greedy`, of each reward that has a name.", "name"),
        _gauge("sampled_of_name", "reward", "As `sampled`, of each reward that has a name.", "name"),
        _gauge("pass_at_of_task", "share", "As `pass_at`, by task of a mixture.", "task", "k"),
        _counter("evaluations_skipped", "evaluations", "Versions skipped since the evaluation before was not over."),
        _counter("evaluations_failed", "evaluations", "Versions that could not be evaluated."),
    ),
    "alarms": (
        _gauge("alarm", "flag", "1 while this alarm stands, see operator.md.", "rule"),
        _counter("alarms_raised", "alarms", "How often it was raised.", "rule"),
    ),
    "time": (
        _histogram("waited_seconds", "What a step waited for its batch."),
        _histogram("gathered_seconds", "From the first lease of a step's batch until its last group was complete."),
        _histogram("train_seconds", "What the trainer took for a step."),
        _histogram("publish_seconds", "What exporting, signing and announcing a version took."),
        _histogram("checkpoint_seconds", "From asking for a checkpoint until it was on disk, beside training."),
        _counter(
            "learner_seconds", "seconds", "What the learner's time went into; all kinds add up to the wall.", "kind"
        ),
        _gauge("utilisation", "share", "Training over the time that the learner ran, from the run's first start on."),
        _gauge("bubble", "share", "ECHO-2's: of the steps' time so far, what the learner waited for rollouts."),
        _gauge("still_seconds", "seconds", "For how long there was no training step; looked at every 5 s."),
        _gauge("t_train", "seconds", "T_train as plans reckon with it: the mean of late."),
        _gauge("t_broadcast", "seconds", "T_bcast: from the end of a step until most who are on had its version."),
        _gauge("t_generation", "seconds", "T_gen: from the start of a lease until it was admitted, 95th percentile."),
    ),
    "rollouts": (
        _counter("rollouts_admitted", "rollouts", "Rollouts that passed every rule.", "peer"),
        _counter("rollouts_refused", "rollouts", "Rollouts refused, by the rule of the first of a delivery.", "rule"),
        _counter("tokens_admitted", "tokens", "Tokens of admitted rollouts.", "peer"),
        _counter("rewards_failed", "rewards", "Rewards that no verifier could compute, held-out ones included.", "how"),
        _gauge("informative", "share", "Of admitted rollouts, those whose group has more than one reward, of late."),
        _gauge("rollouts_buffered", "rollouts", "Admitted rollouts that wait for a batch."),
        _gauge("rollouts_leased", "rollouts", "Rollouts leased and not delivered."),
        _gauge("episodes_open", "rollouts", "Rollouts begun whose group has an episode that goes on."),
        _counter("leases_returned", "leases", "Leases that peers gave back.", "peer"),
        _counter("tokens_handed_back", "tokens", "Tokens of leases that peers handed back before the end.", "peer"),
        _gauge("leases_fruitless", "leases", "Leases that ended without a record since the last that brought one."),
        _counter("leases_recalled", "leases", "Leases withdrawn because no batch could hold what they would bring."),
    ),
    "peers": (
        _gauge("peers", "peers", "Peers that are here."),
        _gauge("peers_active", "peers", "Those of them that are leased to; the others stand by."),
        _gauge(
            "nodes_troubled", "peers", "Peers here that say that they cannot do this: `fetch`, `install`...", "kind"
        ),
        _gauge("nodes_reached", "peers", "Nodes that ever came, by how they say that others reach them.", "kind"),
        _gauge("pairs_met", "pairs", "Pairs of nodes that ever met, by how they say that they did.", "way"),
        _counter("peers_joined", "peers", "How often somebody joined."),
        _counter("peers_left", "peers", "How often somebody left or fell silent."),
        _counter("peer_faults", "faults", "What peers did that no working node does.", "fault"),
        _counter("peer_faults_unsaid", "faults", "Such faults that came too often to be logged one by one."),
        _counter("over_budget", "refusals", "What strangers and peers were refused, by budget: threats.md.", "budget"),
        _gauge("peer_bytes_up", "bytes", "What a peer says it sent of chunks since it came.", "peer"),
        _gauge("peer_bytes_down", "bytes", "What it says it received.", "peer"),
    ),
    "trust": (
        _counter("audits", "groups", "Groups whose tokens were drawn again, by what was found.", "found"),
        _counter("audited_tokens", "tokens", "Tokens of them."),
        _counter("audits_impossible", "attempts", "Attempts to audit that the engine, or a missing version, ended."),
        _counter("peers_banned", "peers", "Peers banned, by an audit or by the operator."),
        _gauge("audits_waiting", "groups", "Groups that wait for their audit."),
        _histogram("audit_seconds", "What the engine took for audits, a version's together; the sum is their cost."),
    ),
    "weights": (
        _counter("versions_published", "versions", "Policy versions published."),
        _gauge("version_bytes", "bytes", "Size of the newest version."),
        _gauge("version_new_bytes", "bytes", "How much of it was not in the version before."),
        _gauge("version_patch_bytes", "bytes", "Size of the patches that lead to it."),
        _gauge("learner_bytes_up", "bytes", "What the learner itself sent of chunks since its start."),
        _gauge(
            "learner_bytes_carried", "bytes", "What circuits through the learner carried between nodes since its start."
        ),
        _counter("relayed_bytes", "bytes", "Bytes of versions that peers are credited for passing on."),
        _gauge("checkpoint_bytes", "bytes", "Size of the newest checkpoint."),
        _counter("checkpoints_failed", "checkpoints", "Checkpoints that could not be written."),
        _gauge("period", "steps", "kappa: a version is published every so many steps."),
    ),
    "processes": (
        _gauge("loop_delay_p99", "seconds", "What 99 of 100 events wait for the event loop, of the last minute."),
        _gauge("loop_delay_max", "seconds", "The longest turn of the event loop in the last minute."),
        _gauge("loop_step_processor", "seconds", "Processor time of the costliest task step in the last minute."),
        _counter("loop_held", "reports", "Reports of a task that held the event loop, once a minute each.", "task"),
        _counter("child_deaths", "processes", "Child processes that ended unasked.", "child"),
        _counter("rows_lost", "rows", "Steps that a sink did not get, because it was too slow or failed.", "sink"),
        _counter("series_refused", "series", "Series beyond the bound on how many there may be."),
    ),
}
"""All metrics by the subject they are shown under."""

METRICS: Mapping[str, Metric] = {metric.name: metric for metrics in TOPICS.values() for metric in metrics}

TOPIC_OF: Mapping[str, str] = {metric.name: topic for topic, metrics in TOPICS.items() for metric in metrics}


def table() -> str:
    """The metrics as the tables of docs/metrics.md. To renew the page: `python -m
    node.learner_role.metrics.catalogue`.
    """
    parts = []
    for topic, metrics in TOPICS.items():
        lines = [f"### {topic}", "", "| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
        for one in metrics:
            labels = ", ".join(f"`{label}`" for label in one.labels)
            lines.append(f"| `{one.name}` | {one.kind.value} | {one.unit} | {labels} | {one.words} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(table(), end="")
