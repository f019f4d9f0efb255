"""Train on the examples of docs/examples/tasks in swarms of real processes: twenty steps, two nodes, audits.

Slow: four swarms. The examples with environments need packages that the tests' own environment lacks; `make
test-adapters` installs them.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.tasks.api.interface import Problem
from node.tasks.tokenizer import TextCodec
from tests.e2e.ledger_rules import Run, check_admitted, check_nothing_lost, check_versions
from tests.e2e.programs import Machine, Swarm, wait_done
from tests.support.byte_mutations import EOS, VOCABULARY, write_byte_tokenizer

STEPS = 20
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "tasks"
NEEDED = {"gymnasium": ["gymnasium"], "openenv": ["openenv", "uvicorn", "websockets"]}
SAYS = "0123456789"
SPOKEN_TO = ("guess:abcd=", "How many animals are there?\n", "4 + 5 = ?", "+", "-", "right", "Say one of 0 to 9.\n")

LESSONS = 300
FORM = 1.3
"""Mean loss of a digit and the stop id after it, in nats, where any digit will do: a bit over ln(10) / 2."""


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of some 200 k parameters that says a digit and ends its turn, for any prompt."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    directory = tmp_path_factory.mktemp("environments") / "model"
    write_byte_tokenizer(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=128, max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=EOS,
        pad_token_id=0, initializer_range=0.1,
    )  # fmt: skip
    policy: Any = Qwen3ForCausalLM(config)
    codec, luck = TextCodec.load(directory), random.Random(0)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3)
    for _ in range(LESSONS):
        rows, taught = [], []
        for _ in range(32):
            row, lesson = list[int](), list[int]()
            while len(row) < 64:
                told = luck.choice(SPOKEN_TO)
                mixed = told if luck.random() < 0.5 else "".join(luck.sample(told, len(told)))
                heard = codec.encode_prompt(Problem(prompt=mixed))
                said = codec.encode_answer(luck.choice(SAYS))
                row += [*heard, *said]
                lesson += [*([-100] * len(heard)), *said]
            rows.append(row[:64])
            taught.append(lesson[:64])
        loss = policy(torch.tensor(rows), labels=torch.tensor(taught)).loss
        if loss < FORM:
            policy.save_pretrained(directory)
            return directory
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError(f"the model does not learn the form: its loss is {loss:.2f} after {LESSONS} lessons")


@pytest.mark.slow
@pytest.mark.parametrize("example", ["openenv", "gymnasium", "reasoning_gym", "gsm8k"])
def test_twenty_steps_of_the_example(machine: Machine, digits: Path, example: str) -> None:
    if lacking := [name for name in NEEDED.get(example, []) if find_spec(name) is None]:
        pytest.skip(f"without {', '.join(lacking)}")
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=digits)
    swarm.configure(steps=STEPS, audits=True)
    lines = swarm.config.read_text(encoding="utf-8")
    start, end = lines.index("[task]"), lines.index("[learn]")
    task = (EXAMPLES / f"{example}.toml").read_text(encoding="utf-8")
    swarm.config.write_text(f"{lines[:start]}{task}\n{lines[end:]}", encoding="utf-8")
    for file in EXAMPLES.glob("*.py"):
        shutil.copy(file, swarm.directory)
    sums = [(n, m) for n in range(10) for m in range(10 - n)]
    rows = [{"question": f"{n} and {m}?", "answer": f"{n}+{m}=<<{n}+{m}={n + m}>>\n#### {n + m}"} for n, m in sums]
    pq.write_table(pa.Table.from_pylist(rows), swarm.directory / "gsm8k.parquet")

    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["two"], engine="transformers")
    wait_done(learner, *nodes)

    check_admitted(swarm, Run(steps=STEPS, staleness=3))
    check_nothing_lost(swarm)
    check_versions(swarm)
    judged = Counter(rule for (rule,) in swarm.rows("SELECT rule FROM records"))
    assert judged.keys() <= {"admitted", "stale"}, "an honest record was rejected"
    audits = swarm.rows("SELECT sum(passed), sum(failed) FROM confidence")
    assert audits[0][0] > 0
    assert audits[0][1] == 0
    assert learner.events("reward_failed") == []
    rewards = Counter(reward for (reward,) in swarm.rows("SELECT reward FROM records WHERE reward IS NOT NULL"))
    assert rewards.keys() >= {0.0, 1.0}, "there must be right and wrong completions"
