"""Bars of `benchmarks/turns.py`: the policy of a fixed length, the task, and the values read from a run's files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from benchmarks.episodes.chain_model import CLOSING, END, OPENING, Shape, write_chain_model
from benchmarks.episodes.chain_task import Waiting, reward_of
from benchmarks.episodes.swarm import TOKENS, TURNS, WARM_TOKENS, _shown
from node.tasks.tokenizer import TextCodec
from node.tasks.ways.model_ways import ModelWays
from volery import Spoken, ToolCall


@pytest.mark.parametrize("tokens", [5, 9])
def test_a_turn_has_so_many_tokens_and_is_a_call(tmp_path: Path, tokens: int) -> None:
    import torch
    from transformers import LlamaForCausalLM

    vocabulary = write_chain_model(tmp_path / "m", Shape(positions=9, layers=1), tokens)
    codec = TextCodec.load(tmp_path / "m", ModelWays(tool_format="hermes"))
    assert codec.rows == vocabulary
    model, said = LlamaForCausalLM.from_pretrained(tmp_path / "m"), list(codec.tokenizer.encode("\n").ids)
    while said[-1] != codec.eos_id:
        with torch.no_grad():
            said.append(int(model(torch.tensor([said])).logits[0, -1].argmax()))
        assert len(said) <= tokens + 1
    assert len(said) == tokens + 1
    text = codec.decode(said[1:-1])
    assert text.startswith(OPENING)
    assert text.endswith(CLOSING)
    assert codec.tokenizer.id_to_token(codec.eos_id) == END


def test_an_episode_ends_after_its_turns() -> None:
    episode = Waiting(turns=2, wait_s=0.0)
    first, second = (
        Spoken(content="", calls=(ToolCall(id="1", name="wait", arguments={"text": text}),))
        for text in ("a1 b2 ", "a1 a2 ")
    )
    assert asyncio.run(episode.step(first)) is not None
    assert asyncio.run(episode.step(second)) is None
    assert episode.reward() == 0.75
    assert reward_of("no words") == 0.0


def test_what_counts_begins_behind_the_start(tmp_path: Path) -> None:
    """Deliveries of 100 s each second, and an account in which a turn takes 2 ms of the loop."""
    quarter = WARM_TOKENS // 4
    events = [{"at": 10.0 + n, "event": "delivery_judged", "admitted": 1, "tokens": quarter} for n in range(8)]
    events += [{"at": 18.0, "event": "delivery_judged", "admitted": 0, "tokens": 0}, {"at": 18.5, "event": "step"}]
    account = [{"at_s": at, "loop_s": at / 10, "env_s": 0.002 * at, "turns": at} for at in range(5, 30, 3)]
    for name, lines in (("events", events), ("account", account)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut', encoding="utf-8")
    shown = _shown(tmp_path / "events", tmp_path / "account", cores=0.5, others_cores=1.0)
    assert shown.seconds == 4.0, "from the fourth delivery, with which the start is over, to the last"
    assert shown.tokens == 4 * quarter == 4 * 4 * TURNS * TOKENS
    assert shown.env_loop_ms == pytest.approx(2.0)
    assert shown.loop_s == pytest.approx(0.4)
    assert shown.tokens_per_core_s == 2 * shown.tokens_per_s
    assert shown.failed == 0
