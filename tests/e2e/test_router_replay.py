"""Router replay in a swarm of real processes, whose nodes compute in bfloat16 and whose trainer in float32.

What they say of the same tokens is nearer where the trainer takes the experts that the nodes chose. A node that does
not tell them is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.tasks.registry import open_task
from tests.e2e.ledger_rules import Run, check_ledger
from tests.e2e.models import write_half_taught
from tests.e2e.programs import DEADLINE_S, NODE_TOML, Machine, Swarm, wait_done

STEPS = 6
TASK = "reverse:letters=3"
LAYERS, EXPERTS, TOP_K = 3, 8, 2


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-MoE of 100 k parameters that gets a part of `TASK` right."""
    directory = tmp_path_factory.mktemp("e2e") / "mixture"
    write_half_taught(
        directory, open_task(TASK, seed=7), lr=5e-3, batch=64, hidden_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=64, moe_intermediate_size=32,
        num_experts=EXPERTS, num_experts_per_tok=TOP_K, vocab_size=64, max_position_embeddings=64,
        initializer_range=0.1,
    )  # fmt: skip
    return directory


def run(machine: Machine, model: Path, *, replay: bool) -> list[dict[str, float]]:
    """Run a swarm to its end, and return what its trainer measured in each step that learnt something."""
    swarm = Swarm(machine=machine, directory=machine.root / f"swarm-{replay}", model=model)
    trainer = f"router_replay = {str(replay).lower()}"
    swarm.configure(steps=STEPS, mode="sequential", task=TASK, weights_dtype="float32", trainer=trainer)
    node_config = swarm.directory / "bfloat16.toml"
    text = NODE_TOML.format(engine="transformers", token_s=0.0)
    node_config.write_text(text.replace("threads = 1", 'threads = 1\ncompute_dtype = "bfloat16"'), encoding="utf-8")
    learner = swarm.learn()
    if replay:
        told_no_experts = swarm.join("three")
        assert told_no_experts.process.wait(timeout=DEADLINE_S) == 2
        assert "This swarm trains with the experts that engines chose" in told_no_experts.story()
    nodes = swarm.join_all(
        learner, ["one", "--config", node_config], ["two", "--config", node_config], engine="transformers"
    )
    wait_done(learner, *nodes)
    check_ledger(swarm, Run(steps=STEPS, staleness=0, verdicts=frozenset({"admitted"})))
    steps = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    return [step for step in steps if step["trained_tokens"]]


@pytest.mark.rest
def test_a_mixture_of_experts_trains_nearer_to_its_engines(machine: Machine, mixture: Path) -> None:
    replayed, plain = run(machine, mixture, replay=True), run(machine, mixture, replay=False)
    assert min(step["replayed"] for step in replayed) > 0.95
    assert not any("replayed" in step for step in plain)
    with_it, without = mismatch(replayed), mismatch(plain)
    assert with_it < without


def mismatch(steps: list[dict[str, float]]) -> float:
    """`mismatch_kl` over all tokens trained on, in nats."""
    whole = sum(step["trained_tokens"] for step in steps)
    return sum(step["mismatch_kl"] * step["trained_tokens"] for step in steps) / whole
