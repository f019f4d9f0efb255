"""Train on generated tasks, some of which take seconds to open: they must not block the learner's event loop.

Slow: a swarm of real processes for each hash seed, with the default heartbeat. On Python 3.11 the seed decides whether
`isinstance` with a Protocol runs a task's properties, so one seed proves nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node.config.swarm_config import NetworkSection
from node.runtime.loop_watch import HELD_CPU_S
from tests.e2e.ledger_rules import Run, check_admitted, check_nothing_lost, check_versions
from tests.e2e.programs import Machine, Swarm, wait_done
from tests.support.byte_mutations import EOS, VOCABULARY, write_byte_tokenizer

STEPS = 12
MIXTURE = ("arc_agi", "leg_counting:max_animals=4", "chain_sum:max_terms=2", "spell_backward", "gcd")
POSITIONS = 4096
"""Model positions: the shortest prompts of arc_agi have some thousand characters."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of some 60 k parameters with room for very long prompts, that says anything."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    directory = tmp_path_factory.mktemp("loop") / "model"
    write_byte_tokenizer(directory)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, intermediate_size=64, max_position_embeddings=POSITIONS, tie_word_embeddings=True,
        eos_token_id=EOS, pad_token_id=0,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_member_is_dropped_and_no_callback_holds_the_loop(
    machine: Machine, wide: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", str(seed))
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=wide)
    swarm.configure(steps=STEPS, task="MIXTURE", held_out=4, heartbeat_s=NetworkSection().heartbeat_s)
    tables = "".join(f'\n[[task.mixture]]\nspec = "reasoning_gym:{one}"\nname = "{one[:5]}"\n' for one in MIXTURE)
    text = swarm.config.read_text()
    swarm.config.write_text(re.sub(r'spec = "MIXTURE"\n', "", text) + tables)
    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["two"], engine="transformers")
    wait_done(learner, *nodes)
    check_admitted(swarm, Run(steps=STEPS, staleness=3))
    check_nothing_lost(swarm)
    check_versions(swarm)
    [loop] = learner.events("loop_measured")
    print(f"PYTHONHASHSEED={seed}:", {key: value for key, value in loop.items() if key not in ("at", "event")})
    goodbyes = [event["reason"] for event in learner.events("peer_left")]
    assert not [reason for reason in goodbyes if "silent" in reason or "heartbeat" in reason], goodbyes
    assert len(learner.events("peer_joined")) == len(nodes), "a node lost its connection and joined again"
    assert learner.events("reward_failed") == []
    assert loop["worst_processor_s"] < HELD_CPU_S, learner.events("loop_held")
    assert all(event["processor_s"] < HELD_CPU_S for event in learner.events("loop_held"))
