"""Compare steps of objectives that prepare something with literal steps on the plain model, and check that they learn.

A literal step goes sequence by sequence and token by token, with plain AdamW, from the papers' formulas.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from learner.training.server import Trainer
from protocol.core.pipe import Arrays, Header
from tests.learner.training.test_batch_preparation import literal_gae

VOCABULARY = 24
CONFIG: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64},
    **{"initializer_range": 0.1, "tie_word_embeddings": True},
}
UNTIMED = {"seconds": 0, "blocked_s": 0}
"""Values that replace the times of a step."""

RATE = 1e-2
LENGTHS = [4, 2, 1, 3, 3, 4, 2, 1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    ok(Trainer(), "make_model", directory=str(directory), config=CONFIG, seed=4)
    return directory


def ok(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = trainer.answer({"id": 7, "op": op, **fields}, arrays or {})
    assert reply["ok"], reply
    json.dumps(reply, allow_nan=False)
    return reply


def loaded(model: Path, objective: str, **given: Any) -> Trainer:
    trainer = Trainer()
    h = {"objective": objective, "learning_rate": RATE, "max_new_tokens": 4, "max_tokens_per_microbatch": 40, **given}
    ok(trainer, "load", directory=str(model), hyperparameters=h, threads=1)
    return trainer


def arrays_of(prompts: list[Any], answers: list[Any], rewards: Any, groups: list[int], **changed: Any) -> Arrays:
    pairs = list(zip(prompts, answers, strict=True))
    total = sum(map(len, answers))
    arrays = {
        "tokens": np.concatenate([part for pair in pairs for part in pair]).astype(np.int32),
        "lengths": np.array([len(prompt) + len(answer) for prompt, answer in pairs], np.int32),
        "mask": np.concatenate([[0] * len(prompt) + [1] * len(answer) for prompt, answer in pairs]).astype(np.uint8),
        "behaviour_logprobs": np.full(total, -np.log(VOCABULARY), np.float32),
        "lags": np.zeros(total, np.int32),
        "rewards": np.asarray(rewards, np.float32),
        "group_sizes": np.array(groups, np.int32),
        "origins": np.zeros(len(pairs), np.uint8),
    }
    return arrays | changed


def drawn(seed: int, groups: list[int]) -> Arrays:
    """Return eight completions of uneven lengths whose behaviour was near the uniform one."""
    generator = np.random.default_rng(seed)
    answers = [generator.integers(0, VOCABULARY, length) for length in LENGTHS]
    rewards = generator.permuted(np.tile([1.0, 0.0], (4, 1)), axis=1).ravel()
    behaviour = -np.log(VOCABULARY) + 0.3 * generator.normal(size=sum(LENGTHS))
    prompts = [generator.integers(0, VOCABULARY, 3) for size in groups for _ in [generator.integers(9)] * size]
    return arrays_of(prompts, answers, rewards, groups, behaviour_logprobs=behaviour.astype(np.float32))


def taught(seed: int) -> Arrays:
    """Return a teacher's log probabilities of them; it finds one token impossible."""
    found = -4 * np.random.default_rng(100 + seed).random(sum(LENGTHS))
    found[2] = -60.0
    return {"teacher_logprobs": found.astype(np.float32)}


# Literal steps


class Literal:
    """A plain model with plain AdamW, and a value head beside it."""

    def __init__(self, directory: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        self.first = copy.deepcopy(self.model)
        self.weight = torch.zeros(CONFIG["hidden_size"], requires_grad=True)
        self.bias = torch.zeros(1, requires_grad=True)
        self.adamw, self.head = (
            torch.optim.AdamW(parameters, lr=rate, betas=(0.5, 0.95), weight_decay=0.0, foreach=False)
            for parameters, rate in ((list(self.model.parameters()), RATE), ([self.weight, self.bias], 0.05))
        )

    def read(self, model: Any, arrays: Arrays) -> tuple[list[Tensor], list[Tensor]]:
        """Return log probabilities and values of the generated tokens of each sequence."""
        ends = np.cumsum(arrays["lengths"])
        logprobs, values = [], []
        for start, end, length in zip(ends - arrays["lengths"], ends, LENGTHS, strict=True):
            tokens = torch.from_numpy(arrays["tokens"][start:end].astype(np.int64))
            out = model(tokens[None], output_hidden_states=True)
            hidden = out.hidden_states[-1][0]
            every = torch.log_softmax(out.logits[0], dim=-1)
            places = range(len(tokens) - length, len(tokens))
            logprobs.append(torch.stack([every[place - 1, tokens[place]] for place in places]))
            values.append(torch.stack([hidden[place - 1] @ self.weight + self.bias[0] for place in places]))
        return logprobs, values

    def update(self, loss: Tensor) -> tuple[float, float]:
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0).item()
        self.adamw.step()
        if self.weight.grad is not None:
            torch.nn.utils.clip_grad_norm_([self.weight, self.bias], 1.0)
            self.head.step()
        for optimizer in (self.adamw, self.head):
            optimizer.zero_grad()
        return loss.item(), norm


def by_sequence(column: np.ndarray[Any, Any]) -> list[list[float]]:
    return [part.tolist() for part in np.split(column, np.cumsum(LENGTHS)[:-1])]


def clipped(ratio: Tensor, advantage: float) -> Tensor:
    return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)


def literal_ppo(literal: Literal, arrays: Arrays) -> tuple[float, float]:
    old_values = [[one.item() for one in row] for row in literal.read(literal.model, arrays)[1]]
    flat = literal_gae(arrays["rewards"].tolist(), old_values, 1.0, 0.95)
    returns = [a + v for a, v in zip(flat, [v for row in old_values for v in row], strict=True)]
    mean = sum(flat) / len(flat)
    spread = (sum((a - mean) ** 2 for a in flat) / len(flat) + 1e-8) ** 0.5
    logprobs, values = literal.read(literal.model, arrays)
    loss = torch.zeros(())
    behaviour = arrays["behaviour_logprobs"]
    for t, (now, value, old) in enumerate(
        zip(torch.cat(logprobs), torch.cat(values), [v for row in old_values for v in row], strict=True)
    ):
        loss = loss + clipped(torch.exp(now - float(behaviour[t])), (flat[t] - mean) / spread)
        held = old + (value - old).clamp(-0.2, 0.2)
        loss = loss + 0.1 * 0.5 * torch.maximum((value - returns[t]) ** 2, (held - returns[t]) ** 2)
    return literal.update(loss / len(flat))


def literal_dpo(literal: Literal, arrays: Arrays) -> tuple[float, float]:
    now, _ = literal.read(literal.model, arrays)
    with torch.no_grad():
        then, _ = literal.read(literal.first, arrays)
    losses = []
    for first in range(0, len(LENGTHS), 2):
        order = (first, first + 1) if arrays["rewards"][first] > arrays["rewards"][first + 1] else (first + 1, first)
        better, worse = ((now[one] - then[one]).sum() for one in order)
        losses.append(-torch.nn.functional.logsigmoid(0.5 * (better - worse)))
    return literal.update(torch.stack(losses).mean())


def literal_grpo_with_kl(literal: Literal, arrays: Arrays) -> tuple[float, float]:
    now, _ = literal.read(literal.model, arrays)
    with torch.no_grad():
        then, _ = literal.read(literal.first, arrays)
    behaviour, rewards = by_sequence(arrays["behaviour_logprobs"]), arrays["rewards"].astype(np.float64)
    loss = torch.zeros(())
    for s, length in enumerate(LENGTHS):
        siblings = rewards[:4] if s < 4 else rewards[4:]
        advantage = float((rewards[s] - siblings.mean()) / (siblings.std(ddof=1) + 1e-4))
        for t in range(length):
            apart = then[s][t] - now[s][t]
            term = clipped(torch.exp(now[s][t] - behaviour[s][t]), advantage)
            loss = loss + (term + 0.2 * (torch.exp(apart) - apart - 1)) / (8 * length)
    return literal.update(loss)


def literal_decoupled(literal: Literal, arrays: Arrays) -> tuple[float, float]:
    """Take two updates, on a group each; return the larger norm and the mean loss."""
    with torch.no_grad():
        proximal, _ = literal.read(literal.model, arrays)
    behaviour, rewards = by_sequence(arrays["behaviour_logprobs"]), arrays["rewards"]
    told = []
    for part in (range(4), range(4, 8)):
        now, _ = literal.read(literal.model, arrays)
        loss = torch.zeros(())
        for s in part:
            advantage = float(rewards[s] - rewards[part.start : part.stop].mean())
            for t in range(LENGTHS[s]):
                weight = min(float(np.exp(proximal[s][t].item() - behaviour[s][t])), 1.1)
                loss = loss + weight * clipped(torch.exp(now[s][t] - proximal[s][t]), advantage)
        told.append(literal.update(loss / sum(LENGTHS[s] for s in part)))
    return (told[0][0] + told[1][0]) / 2, max(norm for _, norm in told)


def literal_distillation(literal: Literal, arrays: Arrays) -> tuple[float, float]:
    """Weigh each token by how much likelier the teacher finds it, as TOPR weighs good and bad ones."""
    now, _ = literal.read(literal.model, arrays)
    loss = torch.zeros(())
    told = list(zip(torch.cat(now), arrays["behaviour_logprobs"], arrays["teacher_logprobs"], strict=True))
    mean = sum(min(1.0, max(-1.0, float(teacher) - float(mu))) for _, mu, teacher in told) / len(told)
    for pi, mu, teacher in told:
        advantage = min(1.0, max(-1.0, float(teacher) - pi.item())) - mean
        ratio = float(np.exp(pi.item() - float(mu)))
        weight = min(max(ratio, 0.5), 1.5) if advantage > 0 else min(ratio, 1.0)
        loss = loss - weight * advantage * pi
    return literal.update(loss / sum(LENGTHS))


@pytest.mark.parametrize(
    ("objective", "given", "step", "groups"),
    [
        ("ppo", {"value_learning_rate": 0.05}, literal_ppo, [4, 4]),
        ("dpo", {"dpo_beta": 0.5}, literal_dpo, [2, 2, 2, 2]),
        ("grpo", {"kl": 0.2}, literal_grpo_with_kl, [4, 4]),
        ("decoupled", {"updates_per_step": 2, "weight_cap": 1.1}, literal_decoupled, [4, 4]),
        ("distill", {}, literal_distillation, [4, 4]),
    ],
)
def test_three_steps_equal_literal_ones(
    model: Path, objective: str, given: dict[str, Any], step: Any, groups: list[int]
) -> None:
    """Three steps are needed, so that weights, critic and moments are no longer the initial ones."""
    trainer, literal = loaded(model, objective, **given), Literal(model)
    for seed in range(3):
        arrays = drawn(seed, groups) | taught(seed)
        reply = ok(trainer, "step", arrays)
        loss, norm = step(literal, arrays)
        told = reply["preference_loss"] if objective == "dpo" else reply["loss"]
        assert told == pytest.approx(loss, abs=2e-4), seed
        assert reply["grad_norm"] == pytest.approx(norm, rel=2e-3), seed


# Learning


def sampled(trainer: Trainer, prompts: Any, length: int, generator: torch.Generator) -> tuple[Any, Any]:
    """Return completions of `length` tokens by the policy as it is, with their log probabilities, one row a prompt."""
    training = trainer._training
    assert training is not None
    tokens, told = torch.from_numpy(prompts), []
    with torch.no_grad():
        for _ in range(length):
            logprobs = torch.log_softmax(training.policy.model(tokens).logits[:, -1], dim=-1)
            chosen = torch.multinomial(logprobs.exp(), 1, generator=generator)
            told.append(logprobs.gather(1, chosen))
            tokens = torch.cat([tokens, chosen], dim=1)
    return tokens[:, prompts.shape[1] :].numpy(), torch.cat(told, dim=1).numpy().ravel()


def test_ppo_learns_which_first_token_is_worth_something(model: Path) -> None:
    trainer = loaded(model, "ppo", value_learning_rate=0.02, learning_rate=3e-3)
    generator, random = torch.Generator().manual_seed(0), np.random.default_rng(0)
    means = []
    for _ in range(40):
        prompts = random.integers(0, VOCABULARY, (32, 2))
        answers, logprobs = sampled(trainer, prompts, 3, generator)
        rewards = (answers[:, 0] % 2 == 0).astype(np.float32)
        arrays = arrays_of(list(prompts), list(answers), rewards, [32], behaviour_logprobs=logprobs)
        ok(trainer, "step", arrays)
        means.append(rewards.mean())
    assert np.mean(means[:3]) < 0.7
    assert np.mean(means[-3:]) > 0.85


def test_a_critic_comes_to_know_what_it_has_seen(model: Path) -> None:
    trainer = loaded(model, "ppo", value_learning_rate=0.05, learning_rate=1e-4)
    told = [ok(trainer, "step", drawn(0, [4, 4]))["explained_variance"] for _ in range(15)]
    assert told[0] == 0, "the critic must begin with the value 0 everywhere"
    assert told[-1] > 0.8


def preferences(generator: np.random.Generator) -> Arrays:
    """Sixteen pairs from a log: in the better completion all tokens are below 12, in the worse none."""
    prompts = generator.integers(0, VOCABULARY, (16, 2)).repeat(2, axis=0)
    answers = generator.integers(0, 12, (32, 3))
    rewards = generator.permuted(np.tile([1.0, 0.0], (16, 1)), axis=1).ravel()
    answers[rewards == 0] += 12
    origins = np.ones(32, np.uint8)
    return arrays_of(list(prompts), list(answers), rewards, [2] * 16, origins=origins)


def test_dpo_learns_from_a_log_of_pairs(model: Path) -> None:
    trainer, generator = loaded(model, "dpo", dpo_beta=0.5, learning_rate=1e-3), np.random.default_rng(1)
    replies = [ok(trainer, "step", preferences(generator)) for _ in range(25)]
    assert replies[0]["preference_loss"] == pytest.approx(np.log(2)), (
        "the first loss is that of a policy equal to its reference"
    )
    assert replies[0]["preference_margin"] == pytest.approx(0, abs=1e-6)
    assert set(replies[0]["by_lag"]) == {"offline"}
    late = replies[-5:]  # all pairs are new ones
    assert np.mean([reply["preference_accuracy"] for reply in late]) > 0.9
    assert np.mean([reply["preference_loss"] for reply in late]) < 0.35
    assert replies[-1]["reference_kl"] > 0
    answers, _ = sampled(trainer, generator.integers(0, VOCABULARY, (64, 2)), 3, torch.Generator().manual_seed(2))
    assert (answers < 12).mean() > 0.7, "the initial model has no more than half"


def test_a_student_comes_near_its_teacher(tmp_path: Path, model: Path) -> None:
    """The teacher is another model of the same vocabulary, and no reward is ever given."""
    other = tmp_path / "teacher"
    ok(Trainer(), "make_model", directory=str(other), config=CONFIG | {"initializer_range": 0.3}, seed=9)
    teacher, student = loaded(other, "grpo"), loaded(model, "distill", learning_rate=3e-3)
    generator, told, prompts = torch.Generator().manual_seed(0), [], np.repeat([[3, 5]], 64, axis=0)
    for _ in range(25):
        answers, logprobs = sampled(student, prompts, 3, generator)
        arrays = arrays_of(list(prompts), list(answers), np.zeros(64), [64], behaviour_logprobs=logprobs)
        _, found = teacher.answer({"id": 1, "op": "logprobs"}, {k: arrays[k] for k in ("tokens", "lengths", "mask")})
        told.append(ok(student, "step", arrays | {"teacher_logprobs": found["logprobs"]}))
    assert told[0]["teacher_kl"] > 1.0
    assert np.mean([reply["teacher_kl"] for reply in told[-5:]]) < 0.5 * told[0]["teacher_kl"]
    assert told[0]["with_advantage"] == 1.0


def test_a_batch_without_pairs_is_refused_and_changes_nothing(model: Path) -> None:
    trainer = loaded(model, "dpo")
    reply, _ = trainer.answer({"id": 1, "op": "step"}, drawn(0, [4, 4]))
    assert (reply["ok"], reply["kind"]) == (False, "bad_request")
    assert "two completions a group" in reply["error"]
    assert ok(trainer, "step", drawn(0, [2, 2, 2, 2]))["steps"] == 1


# Going on


def weights(trainer: Trainer, place: Path) -> bytes:
    ok(trainer, "export", directory=str(place), dtype="float32")
    return (place / "model.safetensors").read_bytes()


@pytest.mark.parametrize("objective", ["ppo", "dpo"])
def test_a_checkpoint_goes_on_bit_for_bit(tmp_path: Path, model: Path, objective: str) -> None:
    """The checkpoint holds the critic; the reference is the initial model of the run, loaded again."""
    straight, other = (loaded(model, objective) for _ in range(2))
    for seed in range(2):
        ok(straight, "step", drawn(seed, [2, 2, 2, 2]))
    ok(straight, "save", directory=str(tmp_path / "checkpoint"))
    ok(other, "restore", directory=str(tmp_path / "checkpoint"))
    replies = [ok(each, "step", drawn(9, [2, 2, 2, 2])) for each in (straight, other)]
    assert {**replies[0], **UNTIMED} == {**replies[1], **UNTIMED}
    assert weights(straight, tmp_path / "one") == weights(other, tmp_path / "two")


def test_a_critic_is_never_published(tmp_path: Path, model: Path) -> None:
    trainer = loaded(model, "ppo")
    ok(trainer, "step", drawn(0, [4, 4]))
    ok(trainer, "export", directory=str(tmp_path / "export"), dtype="float32")
    exported, plain = (
        set(AutoModelForCausalLM.from_pretrained(place).state_dict()) for place in (tmp_path / "export", model)
    )
    assert exported == plain


@pytest.mark.parametrize(("first", "then"), [("grpo", "ppo"), ("ppo", "grpo")])
def test_a_run_may_go_on_with_or_without_a_critic(tmp_path: Path, model: Path, first: str, then: str) -> None:
    before, after = loaded(model, first), loaded(model, then)
    ok(before, "step", drawn(0, [4, 4]))
    ok(before, "save", directory=str(tmp_path / "checkpoint"))
    ok(after, "restore", directory=str(tmp_path / "checkpoint"), keep_hyperparameters=True)
    reply = ok(after, "step", drawn(1, [4, 4]))
    assert (reply["steps"], reply["updates"]) == (2, 1)
    if then == "ppo":
        assert reply["explained_variance"] == 0, "a new critic explains no variance"
    ok(after, "restore", directory=str(tmp_path / "checkpoint"))  # and with the objective of the checkpoint
    replies = [ok(each, "step", drawn(1, [4, 4])) for each in (before, after)]
    assert {**replies[0], **UNTIMED} == {**replies[1], **UNTIMED}
