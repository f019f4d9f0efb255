"""Train on the built-in tasks in a swarm of real processes: ten steps of each, by the same code.

Slow: seven swarms. `tests/integration/test_tasks_train.py` does the like without torch.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.ledger_rules import Run, check_admitted, check_nothing_lost, check_versions
from tests.e2e.programs import Machine, Swarm, free_port, wait_done
from tests.support.byte_mutations import EOS, VOCABULARY, write_byte_tokenizer

STEPS = 10
SPECS = {
    "leg_counting": "reasoning_gym:leg_counting:max_animals=4",
    "chain_sum": "reasoning_gym:chain_sum:min_terms=2,max_terms=2,min_digits=1,max_digits=1",
    "spell_backward": "reasoning_gym:spell_backward:max_word_len=4",
    "gcd": "reasoning_gym:gcd",
    "letter_counting": "reasoning_gym:letter_counting",
    "code": "code:code.jsonl:bare=yes,held_out=0,time_s=2",
    "parquet": "parquet:gsm8k.parquet:prompt=question,match=math",
}


@pytest.fixture(scope="module")
def babbler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of some 200 k parameters with room for long prompts, that says anything."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    directory = tmp_path_factory.mktemp("tasks") / "model"
    write_byte_tokenizer(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=128, max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=EOS,
        pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_ten_steps_of(machine: Machine, babbler: Path, spec: str) -> None:
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=babbler)
    swarm.configure(steps=STEPS, task=spec)
    lines = [{"prompt": f"print {n}", "tests": [{"output": str(n)}]} for n in range(50)]
    (swarm.directory / "code.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sums = [(f"{n} and {n} is?", f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}") for n in range(50)]
    rows = [{"question": question, "answer": answer} for question, answer in sums]
    pq.write_table(pa.Table.from_pylist(rows), swarm.directory / "gsm8k.parquet")
    learner = swarm.learn()
    node = swarm.join("one", engine="transformers")
    wait_done(learner, node)
    check_admitted(swarm, Run(steps=STEPS, staleness=3))
    check_nothing_lost(swarm)
    check_versions(swarm)
    assert learner.events("reward_failed") == []
    assert [event["child"] for event in learner.events("child_started") if "verifier" in event["child"]]


MOODY = """
from node.tasks.api.interface import Problem


class Moody:
    name, levels, fingerprint, is_cheap = "moody", 1, "moody", {cheap}

    def __init__(self, arguments):
        pass

    def problem(self, index):
        return Problem(prompt=str(index), answer="right")

    def held_out(self, index):
        return Problem(prompt="held out " + str(index))

    def reward(self, problem, completion):
        odd = {{0: None, 1: "text", 2: [1.0], 3: float("nan")}}
        return odd.get(len(completion.text) % 5, 1.0) if completion.text != "right" else 1.0
"""


@pytest.mark.slow
@pytest.mark.parametrize("cheap", [True, False])
def test_rewards_that_are_none_end_no_run_and_no_verifier_also_after_a_restart(swarm: Swarm, cheap: bool) -> None:
    swarm.configure(steps=STEPS, task="python:moody_task:Moody", port=free_port())
    (swarm.directory / "moody_task.py").write_text(MOODY.format(cheap=cheap))
    learner, node = swarm.learn(), None
    node = swarm.join("one")
    swarm.wait_steps(2, learner, node)
    learner.kill()
    again = swarm.learn()
    wait_done(again, node)
    check_admitted(swarm, Run(steps=STEPS, staleness=3, incarnations=2))
    failed = [event for one in (learner, again) for event in one.events("reward_failed")]
    assert failed
    assert {event["how"] for event in failed} == {"raised"}
    assert any("task 'moody' gave no reward at index " in event["detail"] for event in failed)
    assert not [event for event in again.events("child_died") if "verifier" in event["child"]]
    assert "Traceback" not in learner.err.read_text() + again.err.read_text()
