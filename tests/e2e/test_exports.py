"""Export a run with the commands as people type them: merged and bare adapters, a card, a push, a GGUF file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import Swarm, wait_done

STEPS, HELD_OUT = 6, 8

CARD = """\
---
license: apache-2.0
---
"""


@pytest.mark.rest
def test_an_adapter_is_exported_merged_and_alone_and_pushed(swarm: Swarm, tmp_path: Path) -> None:
    model = tmp_path / "a base"
    shutil.copytree(swarm.model, model)
    (model / "README.md").write_text(CARD)
    swarm.model = model
    swarm.configure(steps=STEPS, staleness=1, held_out=HELD_OUT, learning_rate=5e-2, trainer="lora_rank = 4")
    learner = swarm.learn()
    wait_done(learner, swarm.join("one", engine="transformers"))

    merged, alone, mirror = tmp_path / "merged", tmp_path / "alone", tmp_path / "mirror"
    done = swarm.machine.call("export", swarm.config, merged, "--push", mirror.as_uri())
    assert done.code == 0, done.err
    assert f"Wrote version 1.{STEPS} (the newest; " in done.out
    assert "its adapter merged into 7 weights" in done.out
    assert {path.name: path.read_bytes() for path in mirror.iterdir()} == {
        path.name: path.read_bytes() for path in merged.iterdir()
    }
    best = swarm.machine.call("export", swarm.config, alone, "--version", STEPS, "--adapter")
    assert (best.code, "only the adapter" in best.out) == (0, True), best.err
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= {
        one.name for one in alone.iterdir()
    }
    assert not (alone / "model.safetensors").exists()
    check_logits(model, merged, alone)
    check_card((merged / "README.md").read_text(), tmp_path)

    best = swarm.machine.call("export", swarm.config, tmp_path / "best", "--version", "best")
    assert (best.code, "by evaluation, " in best.out) == (0, True), best.err


def check_logits(base: Path, merged: Path, alone: Path) -> None:
    """Check that the merged model computes the same as the adapter on its base with peft, and not as the base alone."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    tokens = torch.arange(3, 20)[None]

    def logits(model: Any) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model.eval()(tokens).logits
        return found

    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    was = logits(plain)
    adapted = logits(peft.PeftModel.from_pretrained(plain, alone))
    whole = logits(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32))
    assert (adapted - was).abs().max() > 1e-2, "the run did not change the model"
    torch.testing.assert_close(whole, adapted, rtol=1e-4, atol=1e-4)


def check_card(card: str, root: Path) -> None:
    assert 'license: "apache-2.0"' in card
    assert "`reverse:letters=2`" in card
    assert "| LoRA | rank 4, alpha 8 |" in card
    assert f"over {HELD_OUT} held-out prompts" in card
    assert str(root) not in card
    assert "127.0.0.1" not in card
    record = json.loads((root / "merged" / "volery.json").read_text())
    assert record["manifest"] in card
    assert record["form"] == "merged"
