"""Every metric is declared in one file, measured by a running learner, and explained on one page."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from learner.monitoring import fruitless_leases as fruitless
from learner.monitoring.thresholds import Alarm
from learner.rollouts.environment import Ended, Reply, Said
from learner.rollouts.reward_parts import RewardPart, total
from node.learner_role.metrics.board import MAX_SERIES, Board, Series
from node.learner_role.metrics.catalogue import METRICS, TOPICS, Kind
from node.learner_role.metrics.collect import follow_event, is_trainers
from node.learner_role.metrics.sinks import SinkQueue
from node.runtime.events import EventLog, Field
from protocol.core.errors import LocalProtocolError
from protocol.core.pipe import Arrays, Header
from tests.node.learner_role.metrics.test_sinks import ListSink
from tests.support.learner_fixture import FakePeer, FakeTrainer, Settings, fast_directory, open_learner

EVENTS: list[tuple[str, dict[str, Field]]] = [
    ("delivery_judged", {"peer": "peer", "admitted": 4, "refused": 2, "reason": "stale", "tokens": 40}),
    (
        "delivery_judged",
        {"peer": "peer", "admitted": 4, "refused": 0, "reason": "", "tokens": 40, "dropped": "void"},
    ),
    ("peer_fault", {"peer": "peer", "fault": "malformed", "unsaid": 3}),
    ("over_budget", {"budget": "handshakes", "times": 300, "who": "192.0.2.66", "who_times": 298}),
    ("peer_left", {"peer": "peer"}),
    ("heartbeat", {"peer": "peer", "bytes_up": 3, "bytes_down": 4}),
    ("traffic", {"bytes_up": 5, "bytes_carried": 7}),
    ("leases_returned", {"peer": "peer", "leases": 2}),
    ("leases_recalled", {"peer": "peer", "leases": 2}),
    ("lease_handed_back", {"peer": "peer", "tokens": 9}),
    ("audited", {"peer": "peer", "tokens": 28, "passed": True}),
    ("audits_made", {"groups": 2, "seconds": 0.25, "waiting": 3}),
    ("audit_impossible", {"version": "1.0", "reason": "it is gone"}),
    ("peer_banned", {"peer": "peer", "reason": "it lied"}),
    ("relays_credited", {"peer": "peer", "bytes": 9}),
    ("evaluated", {"version": "1.0", "greedy": 0.5, "sampled": 0.25, "pass_1": 0.2, "pass_8": 0.6}),
    ("evaluated_task", {"version": "1.0", "task": "sort", "greedy": 0.5, "sampled": 0.25, "pass_1": 0.2}),
    ("evaluated_reward", {"version": "1.0", "name": "right", "greedy": 0.5, "sampled": 0.25}),
    ("evaluation_skipped", {"version": "1.0"}),
    (
        "curriculum",
        {"task": "a file", "passes": 1, "known": 4, "all_right": 1, "all_wrong": 2, "rate": 0.5},
    ),
    ("curriculum", {"task": "arithmetic", "given": 9, "level": 1, "rate_0": 0.9, "rate_1": 0.5}),
    ("reward_failed", {"task": "code", "how": "timed_out"}),
    ("evaluation_failed", {"version": "1.0"}),
    ("checkpoint_saved", {"bytes": 9, "seconds": 0.5}),
    ("checkpoint_failed", {}),
    ("batch_dropped", {"step": 3}),
    ("trainer_restarted", {}),
    ("child_died", {"child": "trainer"}),
    ("loop_held", {"task": "node.learner_role.scheduling.lease_service.LeaseService.serve", "seconds": 1.2}),
]
"""What seldom happens, and what other loops than the one below say."""

FIGURES = {
    "loss": 0.1, "grad_norm": 0.2, "learning_rate": 1e-6, "updates": 1, "tokens": 90, "trained_tokens": 80,
    "with_advantage": 0.5,
    "entropy": 0.7, "mismatch_kl": 0.01, "mean_ratio": 1.0, "max_ratio": 1.5, "max_log_ratio": 0.4, "clip_share": 0.1,
    "ess": 0.9, "weight_ess": 0.95, "offline_sequences": 4, "reference_kl": 0.0, "mean_lag": 0.5, "diverged": 1,
    "teacher_kl": 0.0, "borne_kl": 0.08, "borne_ess": 0.5, "masked_share": 0.25, "replayed": 0.99,
    "explained_variance": 0.5, "preference_loss": 0.6, "preference_accuracy": 0.75, "preference_margin": 0.1,
}  # fmt: skip
"""What a trainer replies to `step`, flat; `test_catalogue_figures.py` holds this to the real one."""

AT_LAG = {
    "tokens": 80,
    "ratio": 1.0,
    "kl": 0.01,
    "clip_share": 0.1,
    "entropy": 0.7,
    "reference_kl": 0,
    "ess": 0.9,
    "weight_ess": 0.95,
}


class TalkativeTrainer(FakeTrainer):
    def _step(self, header: Header, arrays: Arrays) -> Header:
        return super()._step(header, arrays) | FIGURES | {"by_lag": {"0": AT_LAG}}


def of_two(index: int, said: Said, transcript: int) -> Reply:
    """A reward that is made of two, each with a name."""
    parts = tuple(RewardPart(name=name, value=said[-1][0] / 64) for name in ("right", "style"))
    return Ended(reward=total(parts), parts=parts)


async def measured() -> Board:
    """What a learner measures that took a few steps, and to which everything happened."""
    with fast_directory() as root:
        trainer = TalkativeTrainer()
        async with open_learner(root, replace(Settings(), steps=3), trainer=trainer, environment=of_two) as learner:
            board = learner.watch.board
            for event, fields in EVENTS:
                learner.sessions.events.emit(event, **fields)
            learner.watch._count_lost("sqlite", 2)
            await learner.train(FakePeer())
            for name in map(str, range(MAX_SERIES)):
                board.add("peer_faults", fault=name)
            return board


async def test_all_that_is_declared_is_measured_and_nothing_else() -> None:
    board = await measured()
    seen = {series.metric for series in board.values()} | {series.metric for series, _, _ in board.tallies()}
    assert seen - set(METRICS) == set()
    # T_bcast needs versions that peers installed, which these peers do not say.
    assert set(METRICS) - seen <= {"t_broadcast"}
    assert sum(series.metric == "peer_faults" for series in board.values()) == MAX_SERIES
    board.set("kl_at_lag", 0.25, lag=11)
    assert board.values()[Series("kl_at_lag", ("11",))] == 0.25, "a full metric must leave room in the others"
    rules = {rule.value for rule in Alarm} | {fruitless.ALARM}
    assert {series.labels[0] for series in board.values() if series.metric == "alarm"} == rules


def test_every_declaration_is_whole() -> None:
    names = [metric.name for metrics in TOPICS.values() for metric in metrics]
    assert len(names) == len(set(names))
    for metric in METRICS.values():
        assert metric.words.endswith(".")
        assert metric.unit
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
        assert list(metric.buckets) == sorted(metric.buckets)


def test_figures_of_the_trainer_go_by_their_own_names() -> None:
    assert all(map(is_trainers, FIGURES))
    assert not any(map(is_trainers, ("step", "reward", "steps", "seconds", "kl_at_lag", "train_seconds")))


@pytest.mark.parametrize(
    ("kind", "metric", "labels"),
    [
        ("set", "entropie", {}),
        ("add", "entropy", {}),
        ("set", "kl_at_lag", {}),
        ("set", "entropy", {"lag": 3}),
        ("observe", "reward", {}),
    ],
)
def test_what_is_not_declared_is_our_mistake(kind: str, metric: str, labels: dict[str, int]) -> None:
    with pytest.raises(LocalProtocolError, match="is declared"):
        getattr(Board(), kind)(metric, 1, **labels)


def test_events_without_their_fields_measure_nothing_wrong() -> None:
    board = Board()
    for event, _ in EVENTS:
        follow_event(board, event, {})
    assert all(value in (0.0, 1.0) for value in board.values().values())


def test_a_row_is_what_is_new_once() -> None:
    board = Board()
    board.set("entropy", 0.5)
    board.add("batches_dropped")
    board.observe("train_seconds", 1.0)
    board.observe("train_seconds", 2.0, 6.0)
    board.observe("waited_seconds")
    board.set("max_ratio", float("inf"))
    board.set("greedy", 0.25)
    evaluation = board.row(incarnation=1, step=2, at_ms=0, only=("greedy", "sampled"))
    assert evaluation.values == {Series("greedy"): 0.25}
    row = board.row(incarnation=1, step=4, at_ms=0)
    assert {str(series): value for series, value in row.values.items()} == {
        "entropy": 0.5,
        "batches_dropped": 1.0,
        "train_seconds": 3.0,
    }
    assert board.row(incarnation=1, step=5, at_ms=0).values == {}
    assert str(Series("kl_at_lag", ("3",))) == 'kl_at_lag{lag="3"}'


async def test_a_restarted_learner_goes_on_with_its_series() -> None:
    """Rows of the steps that survive, once each, whoever wrote them; alarms remember the steps before."""
    with fast_directory() as root:
        sink = ListSink()
        for steps in (3, 6):
            async with open_learner(root, replace(Settings(), steps=steps), trainer=TalkativeTrainer()) as learner:
                outlet = SinkQueue(sink=sink, events=EventLog())
                learner.watch._outlets = [outlet]
                await learner.train(FakePeer())
                await outlet.finish()
                assert len(learner.watch._watchman._steps) == steps
        await trio.lowlevel.checkpoint()
    assert sink.rows == [1, 2, 3, 4, 5, 6]
    assert sink.begun == [(1, 0), (2, 3)]


async def test_alarms_hear_of_a_score_and_over_how_many_completions_it_is_a_mean() -> None:
    with fast_directory() as root:
        async with open_learner(root, replace(Settings(), steps=2)) as learner:
            await learner.training.begin()
            score: dict[str, Field] = {"version": "1.0", "completions": 32, "greedy": 0.5, "sampled": 0.25}
            learner.sessions.events.emit("evaluated", **score)
            learner.training.begin = trio.lowlevel.checkpoint  # type: ignore[method-assign]
            await learner.train(FakePeer())
            first, second = learner.watch._watchman._steps
            assert (first.evaluation, first.evaluated_on) == (0.25, 32)
            assert (second.evaluation, second.evaluated_on) == (None, None)


class ClippedTrainer(FakeTrainer):
    def _step(self, header: Header, arrays: Arrays) -> Header:
        return super()._step(header, arrays) | FIGURES | {"clip_share": 0.9, "diverged": 0}


async def test_alarms_are_said_once_and_again_after_a_restart() -> None:
    with fast_directory() as root:
        for steps, said in ((8, [5]), (12, [5])):
            async with open_learner(root, replace(Settings(), steps=steps), trainer=ClippedTrainer()) as learner:
                await learner.train(FakePeer())
                raised = learner.logged("alarm_raised")
                assert [(fields["alarm"], fields["step"]) for fields in raised] == [("clipped", step) for step in said]
                standing = learner.watch.board.values()[Series("alarm", ("clipped",))]
                assert standing == 1
                counted = learner.watch.board.values().get(Series("alarms_raised", ("clipped",)), 0)
                assert counted == (steps == 8)
