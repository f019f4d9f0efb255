"""What is told before a run: the configuration in force, what it takes, and whatever would stop it."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from learner.ledger.ledger import Ledger
from learner.ledger.rows import CheckpointRow
from learner.trainer_api.presets import recipe_of
from learner.trainer_api.requests import Hyperparameters
from node.commands.init.command import write_swarm_config
from node.config.loader import read_swarm_config
from node.config.reference import to_toml
from node.config.swarm_config import SwarmConfig, TrainerSection
from node.learner_role.preflight import check_config
from node.learner_role.training.footprint import ModelFacts, footprint_of, read_facts
from node.runtime.errors import RunError, UsageError
from node.runtime.events import Clock
from node.state.learner_state import open_learner_home
from node.tasks.tokenizer import write_character_tokenizer
from tests.e2e.programs import Machine
from tests.support.dry_runs import show_dry_run
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "math" / "swarm.toml"

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6, "rope_theta": 1000000, "hidden_act": "silu", "eos_token_id": 151645,
}  # fmt: skip
PARAMETERS = 4_022_468_096


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Qwen3's tensors."""
    hidden, ff, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "self_attn.q_norm": (dim,), "self_attn.k_norm": (dim,),
        "mlp.gate_proj": (ff, hidden), "mlp.up_proj": (ff, hidden), "mlp.down_proj": (hidden, ff),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }  # fmt: skip
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    for number in range(config["num_hidden_layers"]):
        found |= {f"model.layers.{number}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in found.items()}


def write_hollow(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file in bfloat16 whose weights are a hole in the file system."""
    entries, end = {}, 0
    for name, shape in tensors.items():
        start, end = end, end + 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


@pytest.fixture
def operator(tmp_path: Path) -> Path:
    """The example as somebody has it: a copy, the model beside it in several files, and problems."""
    model = tmp_path / "Qwen3-4B"
    model.mkdir()
    write_character_tokenizer(model)
    (model / "config.json").write_text(json.dumps(QWEN3_4B))
    tensors = shapes(QWEN3_4B)
    parts = [dict(list(tensors.items())[:200]), dict(list(tensors.items())[200:])]
    names = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        write_hollow(model / name, part)
    index = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "data").mkdir()
    problems = [{"prompt": f"what is {n} plus {n}?", "answer": str(2 * n)} for n in range(100)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    path = tmp_path / EXAMPLE.name
    path.write_text(EXAMPLE.read_text())
    return path


def test_the_example_for_a_real_model_passes_and_says_what_it_takes(operator: Path) -> None:
    before = sorted(operator.parent.rglob("*"))
    told = show_dry_run(operator)
    assert sorted(operator.parent.rglob("*")) == before, "nothing was made"
    assert read_swarm_config(operator).evaluate == msgspec.convert(tomllib.loads(told), SwarmConfig).evaluate
    plain = " ".join(told.split())
    for sentence in (
        "Qwen3ForCausalLM, 4.022 billion parameters. Its files hold 8.04 GB BF16.",
        "16 bytes a parameter (weights 4, gradients 4, moments 8) for 4,022,468,096: 64.4 GB in all.",
        "Each rank of 4: 16.1 GB of it",
        "R = 512 rollouts: 32 leases of 16 completions",
        "Staleness window: S = 3 steps (async). A version is published every step.",
        "5 checkpoints of 48.3 GB (the newest 2, 1 milestone at most, one while it is written and one while its version"
        " is evaluated)",
        "Copies of GPU memory, for checkpoints and versions, use 56.3 GB of the machine's own memory.",
        "At 1000 Mbit/s, the learner sends a version in 64.4 s, a patch in about 1.29 s.",
        "The run begins at step 0",
        "objective dr_grpo: group_mean, clipped_ratio, per_constant",
        "That engine runs on cuda:3. Beside the weights, a batch uses at most 8 GB for keys and values.",
        'device = "cuda:3" # Device of the engine',
        "kv_cache_gb = 8.0 # Maximum GB",
    ):
        assert sentence in plain, told
    (per_rank,) = re.findall(r"positions: about ([\d.]+) GB", told)
    assert 20 < float(per_rank) < 40


def test_a_tokenizer_that_cut_a_text_off_before_it_was_saved_cuts_no_prompt_off(operator: Path) -> None:
    saved = operator.parent / "Qwen3-4B" / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(saved))
    tokenizer.enable_truncation(max_length=16)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(saved))
    assert json.loads(saved.read_bytes())["truncation"]["max_length"] == 16
    (tokens,) = re.findall(r"its first prompt has (\d+) tokens", show_dry_run(operator))
    assert int(tokens) in (len("what is 1 plus 1?"), len("what is 10 plus 10?"))


def test_the_command_prints_it_and_ends_as_it_should(operator: Path) -> None:
    machine = Machine(root=operator.parent)
    outcome = machine.call("learn", operator, "--dry-run", "--quick")
    assert (outcome.code, outcome.err) == (0, "")
    assert "No trial was made (--quick)" in outcome.out
    assert tomllib.loads(outcome.out)["learn"]["staleness"] == 3
    outcome = machine.call("learn", operator, "--quick")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("volery: usage: --quick leaves the trial out of --dry-run, and a start always makes")
    (operator.parent / "Qwen3-4B" / "config.json").unlink()
    outcome = machine.call("learn", operator, "--dry-run")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(f"volery: usage: {operator}: [model] directory")
    assert not (operator.parent / "state").exists()


def test_what_is_printed_is_the_configuration_in_force(operator: Path) -> None:
    config = read_swarm_config(operator)
    assert msgspec.convert(tomllib.loads(show_dry_run(operator)), SwarmConfig) == config


def test_a_mixture_and_odd_names_are_printed_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "swarm.toml"
    path.write_text(
        '[swarm]\nname = "a \\"quoted\\" \\\\ name, \\u00fc, \\u007f"\n[model]\ndirectory = "m"\n'
        '[learn]\nsteps = 5\nmode = "sequential"\n[task]\nheld_out = 2\n'
        '[[task.mixture]]\nspec = "reverse"\nweight = 2.5\n[[task.mixture]]\nspec = "sort"\n'
    )
    config = read_swarm_config(path)
    assert config.learn.staleness == 0
    again = msgspec.convert(tomllib.loads(to_toml(config)), SwarmConfig)
    assert again == config


FACTS = ModelFacts(
    architecture="x", parameters=PARAMETERS, dtypes={}, layers=36, hidden=2560, feed_forward=9728, queries=4096,
    keys_values=1024, vocabulary=151936,
)  # fmt: skip


def trained(**changes: Any) -> dict[str, float]:
    hyperparameters = Hyperparameters(max_new_tokens=8, kl=changes.pop("kl", 0.0))
    return dict(footprint_of(FACTS, TrainerSection(**changes), recipe_of(hyperparameters), "bfloat16").per_parameter)


def test_every_option_that_takes_memory_is_counted() -> None:
    assert sum(trained().values()) == 16
    assert trained(updates_per_step=2) == trained(), "a later update that fails leaves those before it"
    assert sum(trained(kl=0.1).values()) == 20
    facts, recipe = FACTS, recipe_of(Hyperparameters(max_new_tokens=8))
    one, four = (
        footprint_of(facts, TrainerSection(device="cuda", ranks=ranks), recipe, "bfloat16") for ranks in (1, 4)
    )
    assert one.state == four.state == 16 * PARAMETERS
    assert one.per_rank - four.per_rank == pytest.approx(12 * PARAMETERS)
    spared = footprint_of(facts, TrainerSection(device="cuda", activation_checkpointing=True), recipe, "float32")
    assert spared.activations < one.activations / 5
    assert (one.version, spared.version) == (2 * PARAMETERS, 4 * PARAMETERS)
    alone = footprint_of(facts, TrainerSection(device="cpu"), recipe, "float32")
    assert alone.gathered == 0, "one rank on a CPU gathers nothing"


@pytest.mark.parametrize(
    ("learn", "best", "told"),
    [
        (
            "keep_every = 20",
            1,
            "8 checkpoints of 48.3 GB (the newest 2, 4 milestones at most, one while it is written and",
        ),
        (
            "keep_every = 200",
            0,
            "5 checkpoints of 48.3 GB (the newest 2, 2 milestones at most, one while it is written),",
        ),
        ("keep_milestones = 0", 1, "3 checkpoints of 48.3 GB (the newest 2, one while it is written),"),
    ],
)
def test_milestones_are_counted_with_the_disk(operator: Path, learn: str, best: int, told: str) -> None:
    """`steps` is 500: of every 200 there are two."""
    text = operator.read_text()
    assert "keep_best" not in text
    operator.write_text(
        text.replace("[learn]\n", f"[learn]\n{learn}\n").replace("[evaluate]\n", f"[evaluate]\nkeep_best = {best}\n")
    )
    assert told in " ".join(show_dry_run(operator).split())


def test_an_adapter_is_what_is_trained_saved_and_sent(operator: Path) -> None:
    text = operator.read_text().replace("ranks = 4", 'ranks = 4\nlora_rank = 16\nlora_targets = ["q_proj", "v_proj"]')
    operator.write_text(text)
    trained = 36 * 16 * ((4096 + 2560) + (1024 + 2560))
    told = " ".join(show_dry_run(operator).split())
    assert f"moments 8) for {trained:,}, 4 for each of {PARAMETERS:,} frozen ones: 16.2 GB in all." in told
    assert "and the model's files once, 8.04 GB" in told
    assert "At 1000 Mbit/s, the learner sends a version in 64.5 s, the next adapter in 0.0944 s." in told
    facts = read_facts(operator.parent / "Qwen3-4B")
    everywhere = footprint_of(
        facts, TrainerSection(lora_rank=1), recipe_of(Hyperparameters(max_new_tokens=8)), "float32"
    )
    assert everywhere.trained == sum(sum(shape) for name, shape in shapes(QWEN3_4B).items() if "proj" in name)
    assert everywhere.checkpoint == 12 * everywhere.trained


@pytest.mark.parametrize(
    ("targets", "missing"),
    [('"q_proj", "vproj"', "'vproj'"), ('"proj"', "'proj'"), ('"embed_tokens"', "'embed_tokens'")],
)
def test_targets_that_name_nothing_are_refused_as_the_trainer_would(operator: Path, targets: str, missing: str) -> None:
    text = operator.read_text()
    operator.write_text(text.replace("ranks = 4", f"ranks = 4\nlora_rank = 16\nlora_targets = [{targets}]"))
    with pytest.raises(UsageError) as caught:
        show_dry_run(operator)
    assert str(caught.value) == (
        f"{operator}: [trainer] lora_targets: this model has no linear layer called {missing}. Choose among down_proj, "
        "gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj."
    )
    operator.write_text(text.replace("ranks = 4", 'ranks = 4\nlora_rank = 16\nlora_targets = ["lm_head"]'))
    show_dry_run(operator)  # tied to the embeddings: the trainer decides


def test_a_state_that_could_not_be_one_is_refused_as_at_a_start(operator: Path, tmp_path: Path) -> None:
    state = operator.parent / "state"
    state.write_text("a file")
    with pytest.raises(RunError, match=rf"^{operator}: \[swarm\] state: {state} cannot be used: {state} is a file\."):
        show_dry_run(operator)
    with pytest.raises(RunError, match=r"^\[swarm\] state: .* is a file\. Choose another \[swarm\] state\.$"):
        open_learner_home(state / "deeper", name="a", certificate_days=1, now_ms=0)
    state.unlink()
    state.mkdir()
    (state / "node.key").touch()
    with pytest.raises(UsageError, match=r"\[swarm\] state: .* is a rollout node's state\. Choose another"):
        show_dry_run(operator)


def spoil_header(model: Path) -> None:
    path = model / "model-00001-of-00002.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)


def replace_by_file(model: Path) -> None:
    model.rename(model.with_name("moved"))
    model.write_text("no directory")


SPOILED = {
    "no weights": (lambda root: (root / "Qwen3-4B" / "model-00002-of-00002.safetensors").unlink(), "lacks model-00002"),
    "half a file": (lambda root: spoil_header(root / "Qwen3-4B"), "model-00001-of-00002.safetensors: .*Copy the model"),
    "no tokenizer": (lambda root: (root / "Qwen3-4B" / "tokenizer.json").unlink(), "no tokenizer.json"),
    "no problems": (lambda root: (root / "data" / "train.jsonl").unlink(), "train.jsonl"),
    "no numbers": (
        lambda root: (root / "data" / "train.jsonl").write_text('{"prompt": "a", "answer": "b"}\n'),
        "number",
    ),
    "a file for a model": (
        lambda root: replace_by_file(root / "Qwen3-4B"),
        "is a file. Name a directory .*hf download",
    ),
    "a bad config": (lambda root: (root / "Qwen3-4B" / "config.json").write_text("{"), "config.json|Qwen3-4B"),
    "a bad key": (
        lambda root: append(root / EXAMPLE.name, "\n[nothing]\nx = 1\n"),
        "there is no section \\[nothing\\]",
    ),
    "a page nowhere": (
        lambda root: append(root / EXAMPLE.name, '\n[web]\nlisten = "my laptop"\n'),
        r'\[web\] listen = "my laptop" is no address',
    ),
}


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


@pytest.mark.parametrize("what", SPOILED)
def test_what_would_stop_a_start_is_told(operator: Path, what: str) -> None:
    spoil, says = SPOILED[what]
    spoil(operator.parent)
    with pytest.raises(UsageError, match=says) as caught:
        show_dry_run(operator)
    assert str(caught.value).startswith(f"{operator}: ")


def test_a_state_directory_says_where_it_goes_on(operator: Path) -> None:
    home = open_learner_home(operator.parent / "state", name="a", certificate_days=90, now_ms=Clock.now_ms())
    home.lock.close()
    with Ledger(home.ledger, swarm=home.authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, 0)
        assert "The run begins at step 0 (no checkpoint)" in show_dry_run(operator)
        with pytest.raises(UsageError, match="has no checkpoint to continue from"):
            show_dry_run(operator, resume=True)
        of_run = check_config(read_swarm_config(operator), operator).state()
        ledger.training.checkpointed(CheckpointRow(step=7, incarnation=1, directory="1.7", state=of_run), 0)
    assert "The run continues from step 7, the newest checkpoint, and ends after step 500." in show_dry_run(
        operator, resume=True
    )


def test_a_fork_is_looked_at_and_not_made(operator: Path) -> None:
    other = operator.parent / "other"
    other.mkdir()
    config = read_swarm_config(operator)
    state = check_config(config, operator).state()
    (other / "learner.key").touch()
    with Ledger(other / "ledger.sqlite", swarm=b"a swarm") as ledger:
        ledger.training.begin_incarnation(0, 0)
        ledger.training.checkpointed(CheckpointRow(step=7, incarnation=1, directory="1.7", state=state), 0)
    assert f"The run begins with step 7 of {other}@7, and ends" in show_dry_run(operator, fork_from=f"{other}@7")
    with pytest.raises(UsageError, match=r"no such checkpoint\. It has checkpoints of steps: 7"):
        show_dry_run(operator, fork_from=f"{other}@8")
    append(operator.parent / "data" / "train.jsonl", '{"prompt": "one more", "answer": "1"}\n')
    with pytest.raises(UsageError, match=f"^--fork-from {other}: the task is not the one"):
        show_dry_run(operator, fork_from=str(other))
    with pytest.raises(UsageError, match="choose one"):
        show_dry_run(operator, fork_from=str(other), resume=True)
    with pytest.raises(
        UsageError,
        match=r"^--fork-from /nope@3: /nope: no such file or directory, and no node here has that name\. Name a swarm",
    ):
        show_dry_run(operator, fork_from="/nope@3")
    assert not Path(config.swarm.state).exists()


OWN = """
from volery import Problem

class Own:
    name, levels, fingerprint = "vowels", 1, "vowels"
    def __init__(self, arguments): pass
    def problem(self, index): return Problem(prompt=f"say {2 * index}", answer="a")
    def held_out(self, index): return Problem(prompt=f"say {2 * index + 1}", answer="a")
    def reward(self, problem, completion): return float(completion.text == problem.answer)
"""


def test_the_file_that_init_writes_passes(tmp_path: Path) -> None:
    path = write_swarm_config(tmp_path, name="mine", port=4001)
    model = tmp_path / "model"
    model.mkdir()
    write_character_tokenizer(model)
    small = QWEN3_4B | {"num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 64}
    (model / "config.json").write_text(json.dumps(small))
    write_hollow(model / "model.safetensors", shapes(small))
    assert "Task reverse: its first prompt has" in show_dry_run(path)
    (tmp_path / "own_for_dry_run.py").write_text(OWN, encoding="utf-8")
    path.write_text(path.read_text().replace('"reverse:letters=6"', '"python:own_for_dry_run:Own"'))
    assert "Task vowels: its first prompt has" in show_dry_run(path), "by the task's own name"


def test_a_file_of_parquet_is_told_with_its_problems(operator: Path) -> None:
    rows = [{"question": f"what is {n} plus {n}?", "answer": f"so\n#### {2 * n}"} for n in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), operator.parent / "data" / "train.parquet")
    plain = 'spec = "jsonl:data/train.jsonl:match=numeric"'
    operator.write_text(operator.read_text().replace(plain, 'spec = "parquet:data/train.parquet:match=numeric"'))
    with pytest.raises(
        UsageError, match=r"\[task\] spec: .*train\.parquet, row 1: has no field `prompt` \(did you mean"
    ):
        show_dry_run(operator)
    operator.write_text(operator.read_text().replace("parquet:match", "parquet:prompt=question,match"))
    assert "train.parquet: 45 problems to train on, 5 held out." in show_dry_run(operator)


def test_what_is_allowed_and_seldom_meant_is_told(operator: Path) -> None:
    text = re.sub(r"(?m)^(objective|correction|warmup_steps|clip_low|clip_high) = .*\n", "", operator.read_text())
    text = text.replace("dynamic_sampling = true", "dynamic_sampling = false")
    operator.write_text(text.replace("[trainer]", '[trainer]\nobjective = "reinforce"\nwarmup_steps = 2000'))
    told = " ".join(show_dry_run(operator).replace("\n# ", " ").split())
    assert (
        "The learning rate rises over 2000 steps, but the run ends after 500: it reaches no more than 25% of its full "
        "value." in told
    )
    assert "Nothing corrects for rollouts with a lag of up to 3 steps" in told
    operator.write_text(text)
    assert "Nothing corrects" not in show_dry_run(operator)


def test_what_is_trained_on_is_told_with_what_is_left_out(operator: Path) -> None:
    (operator.parent / "logs.jsonl").write_text('{"prompt": "1+", "chosen": "1", "rejected": "2"}\n')
    lines = [{"prompt": f"{n}+{n}", "answer": 2 * n, "date": f"202{n}-01-01"} for n in range(6)]
    (operator.parent / "dated.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = operator.read_text().replace(
        'spec = "jsonl:data/train.jsonl:match=numeric"\nheld_out = 64\n',
        'held_out = 2\n[[task.mixture]]\nspec = "jsonl:dated.jsonl:before=2024-01-01,held_out_from=2025-01-01"\n'
        'weight = 3\n[[task.mixture]]\nspec = "sort"\n[offline]\npath = "logs.jsonl"\nshare = 0.25\n',
    )
    operator.write_text(text.replace("every_versions = 25", "every_versions = 25\nsamples = 8\nk = [1, 8]"))
    told = " ".join(show_dry_run(operator).split())
    for sentence in (
        "R = 384 rollouts: 24 leases of 16",
        "128 completions from logs.",
        "75.0% of the prompts",
        "dated.jsonl: 4 problems to train on, 1 held out; left out: 1 dated 2024-01-01 or later.",
        "logs.jsonl: 1 logged groups of 2 completions, 1 of them pairs.",
        "Evaluation: 3 held-out prompts, each sampled 8 times and once greedily",
    ):
        assert sentence in told, told


def test_the_example_is_in_step_with_its_page() -> None:
    page = (ROOT / "docs" / "operate" / "scaling.md").read_text()
    assert str(EXAMPLE.relative_to(ROOT)) in page
    assert f"{PARAMETERS:,}" in page
