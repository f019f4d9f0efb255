"""Run `volery warmup` as a process of its own: it learns a task to a range, and RL can begin; kills, Ctrl-C, bad input.

The model has random weights and one token a character, so its answers have no form at all before it is taught.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learner.training.model.loading import make_model
from node.learner_role.training.warm_start import TINY_QWEN3
from node.tasks.tokenizer import write_character_tokenizer
from tests.e2e.programs import Machine, Program, wait_for

TOML = """\
[swarm]
name = "warm"

[model]
directory = "{model}"
weights_dtype = "float32"

[task]
spec = "{task}"
held_out = {held_out}

[learn]
steps = 2
max_new_tokens = 8
prompts_per_step = 4
group_size = 4
threads = 1
"""

FAST = ("--learning-rate", 2e-3)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "random"
    make_model(directory, {key: value for key, value in TINY_QWEN3.items() if key != "model_type"}, 3)
    write_character_tokenizer(directory)
    return directory


def configured(machine: Machine, model: Path, *, task: str = "reverse:letters=3", held_out: int = 64) -> Path:
    path = machine.root / "swarm.toml"
    path.write_text(TOML.format(model=model, task=task, held_out=held_out))
    return path


def lines_of(program: Program) -> list[dict[str, Any]]:
    """Return the JSON lines that it has printed, whole lines alone."""
    whole, _, _ = program.out.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def test_a_model_is_taught_into_the_range_and_a_run_can_begin_with_it(machine: Machine, model: Path) -> None:
    config, out = configured(machine, model), machine.root / "taught"
    length = ("--until", "0.4..0.9", "--steps", 400, "--check-every", 10)
    program = machine.start("warmup", "warmup", config, out, *FAST, *length, "--json")
    assert program.wait() == 0, program.story()
    told = lines_of(program)
    looks = [one for one in told if one["event"] == "look"]
    assert looks[0]["format"] < 0.4 <= looks[-1]["format"] <= 0.9
    assert looks[-1]["held_out_loss"] < looks[0]["held_out_loss"]
    assert told[-1] == {"event": "done", "out": str(out), "steps": looks[-1]["step"]}
    assert not (machine.root / "taught.warmup").exists()
    assert machine.call("init", machine.root / "begun", "--model", out).code == 0
    trial = machine.start("dry run", "learn", configured(machine, out), "--dry-run")
    assert trial.wait() == 0, trial.story()
    assert "The trial passed" in trial.out.read_text()


def test_rows_teach_an_adapter_that_is_merged(machine: Machine, model: Path) -> None:
    config, out, data = configured(machine, model, held_out=0), machine.root / "taught", machine.root / "sums.jsonl"
    rows = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(9) for b in range(9)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows) + json.dumps({"question": "1" * 80, "answer": "1"}))
    length = ("--data", data, "--field", "prompt=question", "--epochs", 2, "--lora", 4)
    program = machine.start("warmup", "warmup", config, out, *FAST, *length)
    assert program.wait() == 0, program.story()
    said = program.out.read_text()
    assert "77 examples of" in said
    assert "1 left out (too long)" in said
    assert not (out / "adapter_config.json").exists()
    assert machine.call("init", machine.root / "begun", "--model", out).code == 0


def noted(place: Path) -> int:
    """Return the step from which a warm-up would go on."""
    state = place / "state.json"
    return int(json.loads(state.read_bytes())["steps"]) if state.exists() else -1


def test_after_a_kill_and_a_stop_the_same_command_goes_on_to_the_same_weights(machine: Machine, model: Path) -> None:
    config = configured(machine, model)
    length = (*FAST, "--steps", 30, "--check-every", 5, "--json")
    straight = machine.start("straight", "warmup", config, machine.root / "straight", *length)
    assert straight.wait() == 0, straight.story()

    out = machine.root / "broken"
    killed = machine.start("killed", "warmup", config, out, *length)
    wait_for("a checkpoint", lambda: noted(machine.root / "broken.warmup") >= 5, killed)
    killed.kill()
    assert not out.exists()

    stopped = machine.start("stopped", "warmup", config, out, *length)
    wait_for("a later one", lambda: any(one["event"] == "step" for one in lines_of(stopped)), stopped)
    stopped.interrupt()
    code = stopped.wait()
    if code != 0:  # otherwise it was quicker than the signal
        assert code == 130, stopped.story()
        last = lines_of(stopped)[-1]
        assert last["event"] == "stopped"
        assert "The same command continues from step" in last["text"]
        ended = machine.start("ended", "warmup", config, out, *length)
        assert ended.wait() == 0, ended.story()
        assert next(one for one in lines_of(ended) if one["event"] == "begun")["steps"] >= 5
    weights = [(machine.root / name / "model.safetensors").read_bytes() for name in ("straight", "broken")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("task", "held_out", "options", "code", "said"),
    [
        ("reverse", 0, (), 2, "[task] held_out = 0, so no score can be measured"),
        ("reverse", 8, ("--epochs", 2), 2, "--epochs: these examples have no end"),
        ("reverse", 8, ("--until", "0.9"), 2, "--until 0.9 is not a range"),
        ("reverse", 8, ("--data", "none.jsonl", "--epochs", 1), 2, "none.jsonl does not exist"),
        ("reverse", 8, ("--data", "swarm.toml", "--epochs", 1), 2, "its format is not known"),
        ("reverse", 8, ("--data", "talk.jsonl", "--epochs", 1), 2, "talk.jsonl:1: "),
        ("jsonl:none.jsonl", 8, (), 2, "none.jsonl: cannot be read"),
    ],
    ids=["no held-out", "no end", "no range", "no file", "no data", "no template", "no task"],
)
def test_what_cannot_be_taught_is_told_before_anything_is_made(
    machine: Machine, model: Path, task: str, held_out: int, options: tuple[object, ...], code: int, said: str
) -> None:
    (machine.root / "talk.jsonl").write_text(
        json.dumps({"messages": [{"role": "user", "content": "2"}, {"role": "assistant", "content": "2"}]})
    )
    outcome = machine.call("warmup", configured(machine, model, task=task, held_out=held_out), "out", *options)
    assert (outcome.code, said in outcome.err) == (code, True), outcome
    assert not list(machine.root.glob("out*"))


def test_a_place_that_is_taken_is_not_touched(machine: Machine, model: Path) -> None:
    config, out = configured(machine, model), machine.root / "mine"
    out.mkdir()
    outcome = machine.call("warmup", config, out)
    assert outcome.code == 2
    assert "already exists, and was not changed" in outcome.err
    assert list(out.iterdir()) == []


def test_a_rate_that_ruins_the_model_is_told(machine: Machine, model: Path) -> None:
    config, out = configured(machine, model), machine.root / "out"
    program = machine.start("warmup", "warmup", config, out, "--learning-rate", 1e30, "--steps", 40)
    assert program.wait() == 1, program.story()
    said = program.err.read_text()
    assert "Lower --learning-rate and add --anew" in said
    assert "continues from step 0" in said
    assert not out.exists()
