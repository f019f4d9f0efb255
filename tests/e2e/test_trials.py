"""A swarm that cannot work says so before any node is invited: real models, trainers and engines.

The quick test has a learner of its own; the others are slow for the processes that they start.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from node.tasks.tokenizer import CHARACTER_VOCABULARY, write_character_tokenizer
from tests.e2e.programs import Machine, Swarm, free_port, wait_done, wait_event, wait_for

USAGE, STOPPED = 2, 130
MANY_TOKENS = 40


def own_model(swarm: Swarm) -> Path:
    """A copy of the model that a test may spoil."""
    copied = swarm.machine.root / "model"
    shutil.copytree(swarm.model, copied)
    swarm.model = copied
    return copied


def with_nan(swarm: Swarm) -> None:
    """Set one weight of the last norm to NaN: the files load, and the logits are NaN."""
    from safetensors.torch import load_file, save_file

    file = own_model(swarm) / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})


def with_an_id_without_a_row(swarm: Swarm) -> None:
    """The tokenizer has 330 ids, the embedding 320 rows, and the chat template writes id 329."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = swarm.model = swarm.machine.root / "model"
    write_character_tokenizer(model)
    config = Qwen3Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        intermediate_size=64, vocab_size=320, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary, assistant = tokenizer["model"]["vocab"], "<|assistant|>"
    vocabulary |= {f"<unused{number}>": number for number in range(CHARACTER_VOCABULARY, 329)} | {assistant: 329}
    how = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": 329, "content": assistant, **how})
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / "chat_template.jinja").write_text("{{ messages[0]['content'] }}" + assistant)
    problems = [{"prompt": f"{number}+1=", "answer": str(number + 1)} for number in range(32)]
    (swarm.machine.root / "sums.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))


def with_few_positions(swarm: Swarm) -> None:
    """GPT-2 has another name for its positions, and has fewer than a turn of MANY_TOKENS wants."""
    from transformers import GPT2Config, GPT2LMHeadModel

    swarm.model = swarm.machine.root / "gpt2"
    write_character_tokenizer(swarm.model)
    config = GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=24, vocab_size=CHARACTER_VOCABULARY)
    GPT2LMHeadModel(config).save_pretrained(swarm.model)


def with_an_encoder(swarm: Swarm) -> None:
    """T5 is no causal language model."""
    from transformers import T5Config, T5ForConditionalGeneration

    swarm.model = swarm.machine.root / "t5"
    write_character_tokenizer(swarm.model)
    config = T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, vocab_size=CHARACTER_VOCABULARY)
    T5ForConditionalGeneration(config).save_pretrained(swarm.model)


@pytest.fixture(autouse=True)
def own_temporary_files(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary directory of our own: those of other programs come and go while a test looks for leftovers."""
    directory = machine.root / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", str(directory))


def left_behind() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("volery-*"))


def test_a_start_with_broken_weights_is_refused_before_anybody_is_invited(swarm: Swarm) -> None:
    with_nan(swarm)
    swarm.configure()
    learner = swarm.machine.start("learner", "learn", swarm.config, state=swarm.state)
    assert learner.wait() == USAGE, learner.story()
    complaint = learner.err.read_text()
    assert f"volery: usage: {swarm.config}: [model] directory: {swarm.model / 'model.safetensors'}: '" in complaint
    assert "holds values that are not finite (NaN or infinity)" in complaint, complaint
    assert "Traceback" not in complaint
    assert "volery join" not in learner.out.read_text()
    assert not (swarm.state / "invite").exists()
    assert learner.events("version_published") == learner.events("incarnation_began") == []
    assert swarm.rows("SELECT count(*) FROM incarnations") == [(0,)]


SPOILED: dict[str, Callable[[Swarm], None]] = {
    "weights with NaN": with_nan,
    "an id without a row": with_an_id_without_a_row,
    "GPT-2 with 24 positions": with_few_positions,
    "T5": with_an_encoder,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SPOILED)
def test_what_no_node_could_work_with_is_refused_by_a_dry_run_and_a_start_alike(swarm: Swarm, what: str) -> None:
    SPOILED[what](swarm)
    task = f"jsonl:{swarm.machine.root}/sums.jsonl" if what == "an id without a row" else "reverse:letters=2"
    swarm.configure(audits=True, task=task)
    text = swarm.config.read_text()
    swarm.config.write_text(text.replace("max_new_tokens = 4", f"max_new_tokens = {MANY_TOKENS}"))
    before, files = left_behind(), sorted(swarm.directory.rglob("*"))
    dry = swarm.machine.start("dry", "learn", swarm.config, "--dry-run")
    assert dry.wait() != 0, dry.story()
    assert dry.out.read_text() == ""
    assert (left_behind(), sorted(swarm.directory.rglob("*"))) == (before, files)
    learner = swarm.machine.start("learner", "learn", swarm.config, state=swarm.state)
    assert learner.wait() == dry.wait(), learner.story()
    # The messages name the directory of the export, which is a temporary one in a dry run.
    said = [
        re.sub(r"/\S+/(exports/ahead|volery-\w+/export)", "EXPORT", each.err.read_text()) for each in (dry, learner)
    ]
    assert said[0] == said[1]
    assert not (swarm.state / "invite").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "weights_dtype", "more"), [(1, "float32", ""), (2, "bfloat16", ""), (1, "bfloat16", "lora_rank = 2\n")]
)
def test_a_dry_run_makes_the_trial_says_how_long_it_took_and_leaves_nothing(
    swarm: Swarm, ranks: int, weights_dtype: str, more: str
) -> None:
    swarm.configure(ranks=ranks, weights_dtype=weights_dtype)
    swarm.config.write_text(swarm.config.read_text().replace("[trainer]\n", f"[trainer]\n{more}"))
    before = left_behind()
    outcome = swarm.machine.call("learn", swarm.config, "--dry-run")
    assert outcome.code == 0, outcome.err
    assert "# The trial passed in " in outcome.out
    assert "The trainer computes in float32 on cpu, the engine in float32 on cpu." in outcome.out
    assert "Layers compute in float32 on cpu." in outcome.out
    assert left_behind() == before
    assert not swarm.state.exists()


@pytest.mark.slow
def test_ctrl_c_in_a_dry_run_leaves_nothing(swarm: Swarm) -> None:
    swarm.configure()
    before = left_behind()
    dry = swarm.machine.start("dry", "learn", swarm.config, "--dry-run")
    trainer = dry.child("learner.training.server")
    dry.interrupt()
    assert dry.wait() == STOPPED, dry.story()
    assert dry.err.read_text() == "Stopped. Nothing was started, and nothing is left of the trial.\n"
    assert dry.out.read_text() == ""
    assert not trainer.is_running()
    assert left_behind() == before
    assert not swarm.state.exists()


@pytest.mark.slow
def test_an_engine_is_opened_for_the_trial_alone_and_a_start_after_ctrl_c_begins_anew(swarm: Swarm) -> None:
    swarm.configure(steps=2, held_out=0, audits=False)
    learner = swarm.machine.start("learner", "learn", swarm.config, state=swarm.state)
    wait_event(learner, "child_started", child="evaluation")
    learner.interrupt()
    assert learner.wait() == STOPPED, learner.story()
    assert not (swarm.state / "invite").exists()
    assert swarm.rows("SELECT count(*) FROM incarnations") == [(0,)]
    learner = swarm.learn()
    [passed] = learner.events("trial_passed")
    assert passed["seconds"] > 0
    engine = learner.events("child_started")[-1]
    assert engine["child"] == "evaluation"
    wait_for("the engine's end", lambda: not any(child.pid == engine["pid"] for child in learner.family()), learner)
    node = swarm.join("node")
    wait_done(learner, node)


@pytest.mark.slow
def test_members_that_wait_find_a_learner_that_makes_its_trial_again(swarm: Swarm) -> None:
    swarm.configure(steps=6, port=free_port())
    learner, node = swarm.learn(), swarm.join("node")
    swarm.wait_steps(2, learner, node)
    learner.kill()
    again = swarm.machine.start("learner", "learn", swarm.config, state=swarm.state)
    wait_done(again, node)
    assert len(again.events("trial_passed")) == 2, "there must be one trial for each start"
