"""`benchmarks/skew.py`: the recording that it draws lengths from, its replay, and the comparison on a few batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.lengths.collatz import Collatz, sequence
from benchmarks.lengths.recording import RecordedGroup, Recording, read_recording, write_recording
from benchmarks.lengths.replay import Replay
from benchmarks.lengths.trial import SIDES, Ran, Setting, Trial, machines, run_trial
from benchmarks.skew import HEADER, RECORDED, figures_of, of_today, row
from volery import Completion, TaskError

SMALL = Setting(name="small", staleness=0, rollouts=128, nodes=4)


@pytest.fixture(scope="module")
def recording() -> Recording:
    return read_recording(RECORDED)


def test_the_recording_says_how_it_was_made(recording: Recording) -> None:
    assert recording.made["command"].startswith(".venv/bin/python -m benchmarks.lengths.record ")
    assert recording.made.keys() >= {"date", "task", "model", "warm_up", "run", "engine", "seed"}
    assert RECORDED.stat().st_size < 300_000


def test_each_group_is_whole_and_within_its_budget(recording: Recording) -> None:
    run, versions = recording.made["run"], [group.version for group in recording.groups]
    size = int(recording.made["task"].partition("size=")[2].split()[0])
    assert len(recording.groups) >= 0.95 * run["steps"] * run["prompts_per_step"], "a few were cut short"
    assert versions[0] == 0
    assert max(versions) < run["steps"]
    for group in recording.groups:
        assert len(group.lengths) == run["group_size"]
        assert min(group.lengths) >= 1
        assert max(group.lengths) <= run["max_new_tokens"]
        assert 0 <= group.problem < size


def test_the_recording_has_a_long_tail_and_problems_that_come_again(recording: Recording) -> None:
    assert recording.percentile(0.99) >= 3 * recording.percentile(0.5)
    assert len(recording.groups) >= 3 * len({group.problem for group in recording.groups})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    group = RecordedGroup(version=3, problem=7, prompt_tokens=2, lengths=(5, 400))
    written = Recording(made={"seed": 1}, groups=(group, replace(group, version=4)))
    write_recording(tmp_path / "lengths.jsonl", written)
    assert read_recording(tmp_path / "lengths.jsonl") == written
    assert (written.mean, written.percentile(0.25), written.percentile(0.99)) == (202.5, 5, 400)


def test_a_replay_begins_again_after_the_last_group() -> None:
    groups = [RecordedGroup(version=0, problem=7 - one, prompt_tokens=2 + one, lengths=(5, 9)) for one in range(2)]
    replay = Replay(recording=Recording(made={}, groups=tuple(groups)))
    prompts = [replay.next_prompt() for _ in range(3)]
    assert [prompt.index for prompt in prompts] == [0, 1, 2]
    assert [len(prompt.tokens) for prompt in prompts] == [2, 3, 2]
    assert [replay.alike(index) for index in range(3)] == [(7, 0), (6, 0), (7, 0)]
    assert (replay.usual, replay.longest(2)) == (7.0, 9)
    assert replace(replay, repeat=False).alike(2) == (2, 0)


def test_nodes_differ_by_seed_and_supply_what_was_asked() -> None:
    some, others = machines(SMALL, 0), machines(SMALL, 1)
    assert some == machines(SMALL, 0) != others
    assert sum(one.rate for one in some) == pytest.approx(128 / 60)
    assert len({one.rate for one in machines(replace(SMALL, rate_spread=0.0), 0)}) == 1


def test_all_sides_are_run_and_longest_first_does_not_lose_the_long_ones(recording: Recording) -> None:
    trial = run_trial(SMALL, recording, 0, steps=10)
    assert tuple(trial) == SIDES
    assert trial == run_trial(SMALL, recording, 0, steps=10)
    assert trial["known"].gathered_s < trial["today"].gathered_s
    assert all(ran.step_s > ran.gathered_s for ran in trial.values()), "with S = 0 a step follows its batch"


def test_figures_are_medians_of_shares() -> None:
    def trial(gathered_s: float) -> Trial:
        today = Ran(gathered_s=10.0, late_s=10.0, step_s=20.0, vain_share=0.01)
        mine = replace(today, gathered_s=gathered_s, late_s=gathered_s / 2, vain_share=0.02)
        return {"today": today, "longest first": mine, "known": replace(mine, gathered_s=4.0)}

    trials = [trial(gathered_s) for gathered_s in (9.0, 5.0, 6.0)]
    assert of_today(trials) == 0.6
    assert list(figures_of(trials).values()) == [0.6, 0.3, 0.4, 1.0]
    assert row(SMALL, trials) == ["small", "10.0", "6.0", "0.60", "0.30", "0.40", "1.00", "1.0 / 2.0"]
    assert len(HEADER) == len(row(SMALL, trials))


def test_the_task_writes_a_sequence_down_and_counts_what_is_right() -> None:
    task = Collatz(size=8)
    problem = task.problem(4 + 8)
    assert (problem.prompt, problem.answer) == ("6:", "3 10 5 16 8 4 2 1")
    assert sequence(4) == [2, 1]
    assert task.reward(problem, Completion(text="3 10 5 16 8 4 2 1", finished=True)) == 1.0
    assert task.reward(problem, Completion(text="3 10 5 16 8 4 2 1", finished=False)) == 0.9
    assert task.reward(problem, Completion(text="3 10 6", finished=True)) == pytest.approx(0.9 / 4)
    with pytest.raises(TaskError, match="holds no problems out"):
        task.held_out(0)
