"""Swarms in which no node can work: everybody is told why, soon, and the nodes end with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from learner.monitoring.fruitless_leases import ALARM
from node.engine.fake import FakeConfig
from node.tasks.tokenizer import write_character_tokenizer
from tests.e2e.programs import Machine, Program, Swarm, wait_event, wait_for
from tests.e2e.refusing_engine import refusing_python
from tests.e2e.test_bad_input import TROUBLE, check_paragraph
from tests.support.store_fixture import safetensors_file

STEPS = 100_000
"""More steps than a test waits for."""

BEYOND = f"a prompt is empty or leaves the vocabulary of {FakeConfig().vocab_size}"
REFUSED = "attention 'x' is not supported\\x1b[2J"

NODE_TOML = """\
[network]
listen = ["/ip4/127.0.0.1/tcp/0"]

[engine]
kind = "{engine}"
python = "{python}"
threads = 1
batch_rollouts = 8
patience_s = {patience_s}
"""


def write_model(directory: Path) -> Path:
    """Write a model whose chat template ends with a token that has no row in the embedding of the nodes' engine."""
    write_character_tokenizer(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<far>", special=True, normalized=False)])
    assert tokenizer.token_to_id("<far>") >= FakeConfig().vocab_size
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}<far>")
    config = {"model_type": "qwen3", "vocab_size": 128, "max_position_embeddings": 64, "eos_token_id": 2}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(safetensors_file({"embed": ("U8", (8,), bytes(8))}))
    return directory


@pytest.fixture
def swarm(machine: Machine) -> Swarm:
    """A learner with a trainer that hashes, and would train on anything. Its prompts contain the token
    without a row.
    """
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=write_model(machine.root / "model"))
    tasks = machine.root / "task.jsonl"
    pairs = [(a, b) for a in "abcdefgh" for b in "abcdefgh"]
    tasks.write_text("".join(json.dumps({"prompt": f"{a}{b}", "answer": f"{b}{a}"}) + "\n" for a, b in pairs))
    swarm.configure(steps=STEPS, task=f"jsonl:{tasks}")
    return swarm


def join(swarm: Swarm, name: str, *, engine: str = "fake", python: str = "", patience_s: float = 3600.0) -> Program:
    config = swarm.directory / f"{name}.toml"
    config.write_text(NODE_TOML.format(engine=engine, python=python, patience_s=patience_s), encoding="utf-8")
    state = swarm.directory / name
    return swarm.machine.start(
        name, "join", swarm.invite, "--config", config, "--name", name, "--state", state, state=state
    )


def says(swarm: Swarm, command: str, target: Path) -> str:
    said = swarm.machine.call(command, target)
    assert said.code == 0, said
    return " ".join(said.out.split())


def test_leases_that_no_node_can_use(swarm: Swarm) -> None:
    """Before nodes told the reason, two of them gave back a hundred leases a second, and the learner only waited."""
    learner = swarm.learn_doomed()
    nodes = [join(swarm, name, patience_s=6.0) for name in ("one", "two")]
    sentence = f"2 of 2 nodes cannot use their leases: {BEYOND}"
    wait_event(learner, "nodes_unable", text=sentence, everyone=True)
    assert f"doing no node can work: {sentence}" in says(swarm, "status", swarm.config)
    for node in nodes:
        assert node.wait() == TROUBLE
        check_paragraph(node.err.read_text(), "given up", "none of its leases", BEYOND, "operator", "[engine] kind")
        assert 3 <= len(node.events("leases_given_back")) <= 6
        assert len(node.events("gave_up")) == 1
    ((leases,),) = swarm.rows("SELECT count(*) FROM leases")
    assert leases <= 2 * sum(len(node.events("leases_given_back")) for node in nodes) + 4
    assert sentence in says(swarm, "report", swarm.config), "the report must keep the reason after the nodes have left"
    assert sentence in says(swarm, "status", swarm.config)
    wait_for("a status line", lambda: _line(learner, f"NODES {sentence}"), learner)


@pytest.mark.slow
def test_a_version_that_no_node_can_install(swarm: Swarm) -> None:
    learner = swarm.learn_doomed()
    python = refusing_python(swarm.directory)
    nodes = [join(swarm, name, engine="transformers", python=str(python), patience_s=8.0) for name in ("one", "two")]
    sentence = f"2 of 2 nodes cannot install 1.0: {REFUSED}"
    wait_event(learner, "nodes_unable", text=sentence, everyone=True)
    assert f"doing no node can work: {sentence}" in says(swarm, "status", swarm.config)
    for node in nodes:
        assert node.wait() == TROUBLE
        text = node.err.read_text()
        check_paragraph(text, "given up", "no version could be installed", REFUSED, "operator")
        assert "\x1b" not in text
        assert [event["again"] for event in node.events("install_failed")] == [
            "again in 5 s", "again in 10 s", "again in 20 s",
        ]  # fmt: skip
    assert swarm.rows("SELECT count(*) FROM leases") == [(0,)]
    report = says(swarm, "report", swarm.config)
    assert sentence in report
    assert "\x1b" not in learner.out.read_text() + report


@pytest.mark.slow
def test_leases_without_records_are_an_alarm(swarm: Swarm) -> None:
    """With waits of 1, 2, 4, ... seconds the fifth round is over in half a minute."""
    learner = swarm.learn_doomed()
    node = join(swarm, "one")
    alarm = wait_event(learner, "alarm_raised", node, alarm=ALARM)
    assert f"1 of 1 nodes cannot use their leases: {BEYOND}" in alarm["text"]
    wait_for("a status line", lambda: _line(learner, f"ALARM {ALARM}"), learner, node)
    ((leases,),) = swarm.rows("SELECT count(*) FROM leases")
    assert leases <= 24
    assert "brought no record" in says(swarm, "report", swarm.config)


def _line(program: Program, words: str) -> str:
    return next((line for line in program.out.read_text().splitlines() if words in line), "")
