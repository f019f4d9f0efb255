"""Run a mixture of a file and an endless task: equal rewards dropped, a share of logs, pass@k of both tasks."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from learner.curriculum.problem_index import place_of
from node.tasks.registry import open_task
from tests.e2e.programs import Swarm, wait_done

STEPS = 6

DATA_PLANE = """
[[task.mixture]]
spec = "reverse:letters=2"
weight = 3.0

[[task.mixture]]
spec = "jsonl:words.jsonl:held_out=0.2"
name = "words"

[curriculum]
dynamic_sampling = true
order = "easy_first"

[offline]
path = "logs.jsonl"
share = 0.25

[learn]
"""


def write_files(swarm: Swarm) -> None:
    """Write 40 words of the endless task as a file, and logs of the next eight."""
    task = open_task("reverse:letters=2", seed=11)
    problems = [task.problem(index) for index in range(48)]
    rows = [{"prompt": one.prompt, "answer": one.answer} for one in problems[:40]]
    logs = [
        {"prompt": one.prompt, "completions": [{"text": one.answer, "reward": 1}, {"text": "a", "reward": 0}]}
        for one in problems[40:]
    ]
    for name, lines in (("words.jsonl", rows), ("logs.jsonl", logs)):
        (swarm.directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.mark.slow
def test_a_mixture_with_logs_and_dynamic_sampling_and_pass_at_k(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS, staleness=3, held_out=6)
    text = swarm.config.read_text(encoding="utf-8")
    text = text.replace('spec = "reverse:letters=2"\n', "").replace("\n[learn]\n", DATA_PLANE)
    swarm.config.write_text(text.replace("[evaluate]\n", "[evaluate]\nsamples = 4\nk = [1, 4]\n"), encoding="utf-8")
    write_files(swarm)
    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["other"], engine="transformers")
    wait_done(learner, *nodes)

    leased = swarm.rows("SELECT task, prompt FROM leases")
    counts = Counter(task for task, _ in leased)
    assert abs(counts["words"] - len(leased) / 4) < 2 + 8, (
        "the share is off by more than the prompts looked at for slow peers"
    )
    assert all(("reverse", "words")[place_of(prompt, 2)[1]] == task for task, prompt in leased)
    groups = swarm.rows(
        "SELECT min(reward) < max(reward), max(r.step) IS NOT NULL, max(d.reason), count(*) FROM records r"
        " LEFT JOIN dropped d USING (lease) WHERE rule = 'admitted' GROUP BY r.lease"
    )
    assert all(differs for differs, trained, *_ in groups if trained)
    assert all(reason in ("uninformative", None) for differs, _, reason, _ in groups if not differs)
    assert swarm.rows("SELECT min(rollouts) >= 12 FROM steps") == [(1,)]
    for (metrics,) in swarm.rows("SELECT metrics FROM steps"):
        assert json.loads(metrics)["offline_sequences"] == 4
        assert json.loads(metrics)["by_lag"]["offline"]["reward"] == 0.5
    report = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    last = report["evaluations"][-1]
    assert (last["samples"], last["prompts"]) == (4, 12)
    assert set(last["tasks"]) == {"reverse", "words"}
    assert last["pass_at"]["4"] >= last["pass_at"]["1"]
    dropped = sum(rollouts for *_, reason, rollouts in groups if reason == "uninformative")
    assert report["totals"]["uninformative"] == dropped > 0
    ((state,),) = swarm.rows("SELECT state FROM checkpoints ORDER BY step DESC LIMIT 1")
    assert {"tasks", "credits", "cursors", "offline"} <= set(json.loads(state)["curriculum"])
