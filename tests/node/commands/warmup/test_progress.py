"""Print the progress while a model is warmed up."""

from __future__ import annotations

import json
from typing import Any

import pytest

from learner.monitoring.eval_scores import Scores
from node.commands.warmup.progress import Progress
from node.commands.warmup.scoring import Judged

SCORES = Judged(by="format", scores=Scores(greedy=0.0, sampled=0.0, pass_at={1: 0.25}, named={"format": (0.5, 0.4)}))


def tell(progress: Progress) -> None:
    progress.examples("3 examples")
    progress.total = 10
    progress.begun(0, "all weights")
    progress.step(1, loss=1.5, rate=2e-5, tokens=100)
    progress.look(1, loss=1.25, judged=SCORES)
    progress.look(2, loss=None, judged=None)
    progress.undone(0, block=2, rate=0.5)
    progress.stopped("Stopped.")
    progress.done("Wrote it.", out="/out", steps=1)


def test_programs_read_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Progress(as_json=True))
    told: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in told] == ["examples", "begun", "step", "look", "undone", "stopped", "done"]
    assert told[1] == {"event": "begun", "steps": 0, "total": 10}
    assert {name: told[2][name] for name in ("step", "loss", "learning_rate", "tokens")} == {
        "step": 1,
        "loss": 1.5,
        "learning_rate": 2e-5,
        "tokens": 100,
    }
    assert told[3] == {"event": "look", "step": 1, "held_out_loss": 1.25, **SCORES.figures}


def test_people_read_lines_and_not_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Progress())
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "3 examples.",
        "10 steps, all weights.",
        "step 1 of 10: held-out loss 1.2500; 40.0% of sampled answers in the right form (50.0% of greedy ones), "
        "25.0% right",
        "The score is above the range: back to step 0, in blocks of 2 steps, at 0.5 times the rate",
        "Stopped.",
        "Wrote it.",
    ]


def test_a_trainer_that_waits_for_machines_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(as_json=True)
    progress.waiting({"event": "waiting", "text": "1 of 2 machines"})
    progress.waiting({"event": "saved"})
    captured = capsys.readouterr()
    assert captured.err == "volery: note: the trainer waits: 1 of 2 machines\n"
    assert captured.out == ""
