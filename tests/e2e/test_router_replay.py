"""Router replay in a swarm of real processes, whose nodes compute in bfloat16 and whose trainer in float32.

The trainer follows the experts that the nodes chose, token by token; random choices would agree with a fifth of them. A
node that does not send them is refused. `benchmarks/router_replay.py` measures how much nearer to its engines the
trainer is.
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
    """A Qwen3-MoE of 100 k parameters that gets a part of `TASK` right, with heads that vLLM can run on a CPU."""
    directory = tmp_path_factory.mktemp("e2e") / "mixture"
    write_half_taught(
        directory, open_task(TASK, seed=7), lr=5e-3, batch=64, hidden_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=64, moe_intermediate_size=32,
        num_experts=EXPERTS, num_experts_per_tok=TOP_K, vocab_size=64, max_position_embeddings=64,
        initializer_range=0.1,
    )  # fmt: skip
    return directory


def replaying(machine: Machine, mixture: Path) -> Swarm:
    """A swarm whose trainer follows the experts of its engines."""
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=mixture)
    swarm.configure(steps=STEPS, mode="sequential", task=TASK, weights_dtype="float32", trainer="router_replay = true")
    return swarm


def in_bfloat16(swarm: Swarm, engine: str) -> Path:
    """The configuration of a node on this engine that computes in bfloat16."""
    path = swarm.directory / f"{engine}.toml"
    text = NODE_TOML.format(engine=engine, token_s=0.0)
    path.write_text(text.replace("threads = 1", 'threads = 1\ncompute_dtype = "bfloat16"'), encoding="utf-8")
    return path


def check_followed(swarm: Swarm) -> None:
    """Check that nothing was rejected, and that the trainer followed nearly all choices."""
    check_ledger(swarm, Run(steps=STEPS, staleness=0, verdicts=frozenset({"admitted"})))
    steps = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    replayed = [step["replayed"] for step in steps if step["trained_tokens"]]
    assert replayed
    assert min(replayed) > 0.95


@pytest.mark.rest
def test_a_trainer_follows_the_experts_of_its_engines(machine: Machine, mixture: Path) -> None:
    swarm = replaying(machine, mixture)
    node_config = in_bfloat16(swarm, "transformers")
    learner = swarm.learn()
    told_no_experts = swarm.join("three")
    assert told_no_experts.process.wait(timeout=DEADLINE_S) == 2
    assert "This swarm trains with the experts that engines chose" in told_no_experts.story()
    nodes = swarm.join_all(
        learner, ["one", "--config", node_config], ["two", "--config", node_config], engine="transformers"
    )
    wait_done(learner, *nodes)
    check_followed(swarm)
