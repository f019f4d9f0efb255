"""Requests in, replies out: learning, refusing, and going on after a kill as if nothing had happened."""

import copy
import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from learner.trainer_api.pipes import requests_of
from learner.trainer_api.presets import PRESETS
from learner.trainer_api.requests import Hyperparameters
from learner.training.checkpoint import seal
from learner.training.optimizer import learning_rate_at
from learner.training.server import Trainer
from protocol.core.pipe import Arrays, Header, encode_frame
from tests.support.disks import file_limit
from tests.support.processes import Child

CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    "tie_word_embeddings": True,
}
UNTIMED = {"seconds": 0, "blocked_s": 0}
"""In the place of what a step took."""

HYPERPARAMETERS: dict[str, Any] = {
    **{"learning_rate": 1e-2, "max_new_tokens": 4, "max_tokens_per_microbatch": 40},
    **{"objective": "dr_grpo", "clip_high": 0.28},
}
Ask = Callable[..., Header]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    reply, _ = Trainer().answer({"id": 1, "op": "make_model", "directory": str(directory), "config": CONFIG}, {})
    assert reply["ok"]
    return directory


@pytest.fixture
def trainer(model: Path) -> Trainer:
    """A trainer with the model loaded."""
    trainer = Trainer()
    ok(trainer, "load", directory=str(model), hyperparameters=HYPERPARAMETERS)
    return trainer


def ask(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> tuple[Header, Arrays]:
    reply, found = trainer.answer({"id": 7, "op": op, **fields}, arrays or {})
    assert reply["id"] == 7
    json.dumps(reply, allow_nan=False)
    return reply, found


def ok(trainer: Trainer, op: str, arrays: Arrays | None = None, **fields: Any) -> Header:
    reply, _ = ask(trainer, op, arrays, **fields)
    assert reply["ok"], reply
    return reply


def refused(trainer: Trainer, kind: str, op: str, arrays: Arrays | None = None, **fields: Any) -> str:
    reply, found = ask(trainer, op, arrays, **fields)
    assert not reply["ok"]
    assert reply["kind"] == kind, reply
    assert not found
    assert "\n" not in reply["error"]
    return str(reply["error"])


def rollouts(seed: int, **changed: Any) -> Arrays:
    """Two groups of four completions of 1 to 4 tokens, one of which all got the same reward."""
    generator = np.random.default_rng(seed)
    prompts = [generator.integers(0, 40, 5)] * 4 + [generator.integers(0, 40, 3)] * 4
    lengths = generator.integers(1, 5, 8)
    answers = np.split(generator.integers(0, 40, lengths.sum()), np.cumsum(lengths)[:-1])
    arrays = sequences_of(prompts, answers) | {
        "behaviour_logprobs": (np.log(1 / 40) + 0.3 * generator.normal(size=lengths.sum())).astype(np.float32),
        "lags": np.zeros(lengths.sum(), np.int32),
        "rewards": np.concatenate([generator.normal(size=4), np.zeros(4)]).astype(np.float32),
        "group_sizes": np.array([4, 4], np.int32),
        "origins": np.zeros(8, np.uint8),
    }
    return arrays | changed


def sequences_of(prompts: list[Any], answers: list[Any]) -> Arrays:
    pairs = list(zip(prompts, answers, strict=True))
    return {
        "tokens": np.concatenate([part for pair in pairs for part in pair]).astype(np.int32),
        "lengths": np.array([len(prompt) + len(answer) for prompt, answer in pairs], np.int32),
        "mask": np.concatenate([[0] * len(prompt) + [1] * len(answer) for prompt, answer in pairs]).astype(np.uint8),
    }


def completions(arrays: Arrays) -> Arrays:
    return {name: arrays[name] for name in ("tokens", "lengths", "mask")}


def counts_of(arrays: Arrays) -> np.ndarray[Any, Any]:
    """Generated tokens of each sequence."""
    return np.add.reduceat(arrays["mask"].astype(np.int64), np.cumsum(arrays["lengths"]) - arrays["lengths"])


def warm_start(seed: int) -> Arrays:
    tokens = np.random.default_rng(seed).integers(0, 40, 20).astype(np.int32)
    return {
        "tokens": tokens,
        "lengths": np.array([8, 12], np.int32),
        "mask": np.array([0] * 4 + [1] * 4 + [0] * 4 + [1] * 8, np.uint8),
    }


def weights(trainer: Trainer, place: Path) -> bytes:
    ok(trainer, "export", directory=str(place), dtype="float32")
    return (place / "model.safetensors").read_bytes()


def literal_step(directory: Path, arrays: Arrays) -> tuple[float, float, dict[str, torch.Tensor]]:
    """One GRPO step as the paper writes it: sequence by sequence, token by token, plain AdamW. (loss, gradient norm,
    weights)
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.5, 0.95), weight_decay=0.0, foreach=False)
    sequences = np.split(arrays["tokens"], np.cumsum(arrays["lengths"])[:-1])
    behaviour = np.split(arrays["behaviour_logprobs"], np.cumsum(counts_of(arrays))[:-1])
    means = np.repeat([arrays["rewards"][:4].mean(), arrays["rewards"][4:].mean()], 4)
    loss = torch.zeros(())
    for sequence, old, advantage in zip(sequences, behaviour, arrays["rewards"] - means, strict=True):
        tokens = torch.from_numpy(sequence.astype(np.int64))
        logprobs = torch.log_softmax(model(tokens[None]).logits[0], dim=-1)
        for i in range(len(old)):
            place = len(tokens) - len(old) + i
            ratio = torch.exp(logprobs[place - 1, tokens[place]] - float(old[i]))
            clipped = torch.clamp(ratio, 0.8, 1.28)
            loss = loss - torch.minimum(ratio * float(advantage), clipped * float(advantage)) / (8 * 4)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
    optimizer.step()
    return loss.item(), norm, {name: tensor.detach() for name, tensor in model.named_parameters()}


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_a_step_equals_a_literal_one_whatever_the_microbatches(tmp_path: Path, model: Path, budget: int) -> None:
    trainer = Trainer()
    ok(trainer, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, "max_tokens_per_microbatch": budget})
    arrays = rollouts(0)
    reply = ok(trainer, "step", arrays)
    loss, norm, expected = literal_step(model, arrays)
    assert reply["loss"] == pytest.approx(loss, abs=1e-6)
    assert reply["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert reply["clip_share"] > 0
    ok(trainer, "export", directory=str(tmp_path / "export"), dtype="float32")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "export", dtype=torch.float32)
    for name, parameter in found.named_parameters():
        # AdamW's first step is lr * sign(gradient): where a gradient is rounding noise, so is the step.
        torch.testing.assert_close(parameter.detach(), expected[name], atol=2e-4, rtol=0)


def test_a_step_tells_what_it_did(trainer: Trainer) -> None:
    arrays = rollouts(1)
    _, found = ask(trainer, "logprobs", completions(arrays))
    reply = ok(trainer, "step", arrays)
    kept = int(counts_of(arrays)[:4].sum())
    assert reply["tokens"] == arrays["mask"].sum()
    assert reply["trained_tokens"] == kept
    assert reply["steps"] == 1
    log_ratio = (found["logprobs"] - arrays["behaviour_logprobs"])[:kept].astype(np.float64)
    assert reply["mean_ratio"] == pytest.approx(np.exp(log_ratio).mean(), rel=1e-4)
    assert reply["max_ratio"] == pytest.approx(np.exp(log_ratio).max(), rel=1e-4)
    assert reply["max_log_ratio"] == pytest.approx(np.abs(log_ratio).max(), rel=1e-4)
    assert reply["mismatch_kl"] == pytest.approx((np.exp(log_ratio) - 1 - log_ratio).mean(), rel=1e-3)
    assert reply["entropy"] == pytest.approx(found["entropy"][:kept].mean(), rel=1e-4)
    ratio = np.exp(log_ratio)
    assert reply["ess"] == pytest.approx(ratio.sum() ** 2 / (kept * (ratio**2).sum()), rel=1e-4)


@pytest.mark.parametrize(("budget", "updates"), [(40, 1), (8, 1), (40, 2)])
def test_a_step_tells_how_far_each_sequence_is_from_what_generated_it(model: Path, budget: int, updates: int) -> None:
    trainer = Trainer()
    changed = {"max_tokens_per_microbatch": budget, "updates_per_step": updates}
    ok(trainer, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, **changed})
    arrays = rollouts(3)
    _, scores = ask(trainer, "logprobs", completions(arrays))
    off = np.abs(scores["logprobs"] - arrays["behaviour_logprobs"])
    expected = [part.mean() for part in np.split(off, np.cumsum(counts_of(arrays))[:-1])]
    reply, found = ask(trainer, "step", arrays)
    assert reply["updates"] == 1, "the other group teaches nothing"
    np.testing.assert_allclose(found["apart"][:4], expected[:4], rtol=1e-5)
    assert found["apart"].dtype == np.float32
    assert np.isnan(found["apart"][4:]).all()


def test_a_step_tells_each_lag_apart(trainer: Trainer) -> None:
    """Completions that began under an older version than they ended with, one of them from a log."""
    arrays = two_groups(1)
    counts = counts_of(arrays)
    lags = np.concatenate([np.sort(np.arange(count) % 3)[::-1] for count in counts]).astype(np.int32)
    origins = np.array([0] * 7 + [1], np.uint8)
    _, found = ask(trainer, "logprobs", completions(arrays))
    reply = ok(trainer, "step", arrays | {"lags": lags, "origins": origins})
    offline = np.repeat(origins, counts) == 1
    assert reply["mean_lag"] == pytest.approx(lags[~offline].mean())
    assert set(reply["by_lag"]) == {*map(str, set(lags[~offline].tolist())), "offline"}
    log_ratio = (found["logprobs"] - arrays["behaviour_logprobs"]).astype(np.float64)
    for name, row in reply["by_lag"].items():
        chosen = log_ratio[offline if name == "offline" else (lags == int(name)) & ~offline]
        assert row["tokens"] == len(chosen)
        assert row["ratio"] == pytest.approx(np.exp(chosen).mean(), rel=1e-4)
        assert row["kl"] == pytest.approx((np.exp(chosen) - 1 - chosen).mean(), rel=1e-3)


def test_steps_make_the_better_completion_likelier(trainer: Trainer) -> None:
    arrays = rollouts(2)
    arrays["rewards"] = np.array([1, -1, 0, 0, 0, 0, 0, 0], np.float32)
    better, worse = (slice(0, counts_of(arrays)[0]), slice(*np.cumsum(counts_of(arrays))[:2]))
    _, before = ask(trainer, "logprobs", completions(arrays))
    for _ in range(5):
        ok(
            trainer,
            "step",
            arrays | {"behaviour_logprobs": ask(trainer, "logprobs", completions(arrays))[1]["logprobs"]},
        )
    _, after = ask(trainer, "logprobs", completions(arrays))
    assert after["logprobs"][better].sum() > before["logprobs"][better].sum()
    assert after["logprobs"][worse].sum() < before["logprobs"][worse].sum()


def test_a_batch_that_teaches_nothing_counts_but_changes_nothing(tmp_path: Path, trainer: Trainer) -> None:
    ok(trainer, "step", rollouts(3))  # so that AdamW has moments that could drift on
    before = weights(trainer, tmp_path / "before")
    reply = ok(trainer, "step", rollouts(4, rewards=np.ones(8, np.float32)))
    assert (reply["steps"], reply["updates"], reply["trained_tokens"]) == (2, 0, 0)
    assert reply["with_advantage"] == 0
    assert weights(trainer, tmp_path / "after") == before


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 3}, [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ({"decay_steps": 4, "decay_floor": 0.25}, [1, 0.75, 0.5, 0.25, 0.25, 0.25]),
        ({"warmup_steps": 2, "decay_steps": 10}, [0.5, 0.9, 0.8, 0.7, 0.6, 0.5]),
    ],
)
def test_the_learning_rate_rises_and_falls_in_lines(schedule: dict[str, Any], factors: list[float]) -> None:
    hyperparameters = msgspec.convert({**HYPERPARAMETERS, **schedule}, Hyperparameters)
    rates = [learning_rate_at(steps, hyperparameters) for steps in range(6)]
    assert rates == pytest.approx([1e-2 * factor for factor in factors])


def test_a_schedule_goes_on_where_a_checkpoint_left_it(tmp_path: Path, model: Path) -> None:
    trainer, other = Trainer(), Trainer()
    for each in (trainer, other):
        ok(each, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, "decay_steps": 4})
    ok(trainer, "step", rollouts(0))
    ok(trainer, "save", directory=str(tmp_path / "checkpoint"))
    ok(other, "restore", directory=str(tmp_path / "checkpoint"))
    assert ok(other, "step", rollouts(1))["learning_rate"] == pytest.approx(0.75e-2)


def test_a_step_may_name_another_peak_which_stays(model: Path) -> None:
    trainer = Trainer()
    ok(trainer, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, "decay_steps": 4})
    rates = [ok(trainer, "step", rollouts(seed), **peak)["learning_rate"] for seed, peak in enumerate(({}, PEAK, {}))]
    assert rates == pytest.approx([1e-2, 0.75 * 2e-2, 0.5 * 2e-2]), "the schedule goes on"
    assert not ask(trainer, "step", rollouts(3), learning_rate=0.0)[0]["ok"]


PEAK = {"learning_rate": 2e-2}


def test_a_learning_rate_decayed_to_nothing_moves_nothing(tmp_path: Path, model: Path) -> None:
    trainer = Trainer()
    ok(trainer, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, "decay_steps": 1, "decay_floor": 0.0})
    ok(trainer, "step", rollouts(0))
    before = weights(trainer, tmp_path / "before")
    ok(trainer, "step", rollouts(1))
    assert weights(trainer, tmp_path / "after") == before


def test_the_warm_start_learns_its_sequences(trainer: Trainer) -> None:
    losses = [ok(trainer, "supervised", warm_start(0), learning_rate=1e-2)["loss"] for _ in range(30)]
    assert losses[0] == pytest.approx(np.log(40), rel=0.2)
    assert losses[-1] < 0.5 * losses[0]


def test_logprobs_under_the_weights_of_an_export_are_those_of_who_loads_it(tmp_path: Path, trainer: Trainer) -> None:
    arrays = completions(rollouts(0))
    ok(trainer, "step", rollouts(1))  # weights that no export in bfloat16 holds
    _, own = ask(trainer, "logprobs", arrays)
    _, exported = ask(trainer, "logprobs", arrays, weights="bfloat16")
    _, again = ask(trainer, "logprobs", arrays)
    assert np.array_equal(own["logprobs"], again["logprobs"]), "the weights come back to the bit"
    assert np.abs(own["logprobs"] - exported["logprobs"]).max() > 1e-3
    ok(trainer, "export", directory=str(tmp_path / "export"), dtype="bfloat16")
    other = Trainer()
    ok(other, "load", directory=str(tmp_path / "export"), hyperparameters=HYPERPARAMETERS)
    assert np.array_equal(ask(other, "logprobs", arrays)[1]["logprobs"], exported["logprobs"])
    assert np.array_equal(ask(trainer, "logprobs", arrays, weights="float32")[1]["logprobs"], own["logprobs"])


def test_logprobs_heed_the_temperature(trainer: Trainer) -> None:
    arrays = completions(rollouts(5))
    _, default = ask(trainer, "logprobs", arrays)
    _, same = ask(trainer, "logprobs", arrays, temperature=1.0)
    _, flat = ask(trainer, "logprobs", arrays, temperature=1e6)
    assert np.array_equal(default["logprobs"], same["logprobs"])
    assert flat["logprobs"] == pytest.approx(np.log(1 / 40), abs=1e-3)


def test_steps_that_diverge_are_undone(tmp_path: Path, trainer: Trainer) -> None:
    before = weights(trainer, tmp_path / "before")
    broken = rollouts(6)
    broken["rewards"] = HUGE
    assert "not finite" in refused(trainer, "diverged", "step", broken)
    assert weights(trainer, tmp_path / "after") == before
    literal = ok(trainer, "step", rollouts(6))
    fresh = Trainer()
    ok(fresh, "load", directory=str(tmp_path / "after"), hyperparameters=HYPERPARAMETERS)
    assert ok(fresh, "step", rollouts(6))["grad_norm"] == literal["grad_norm"]


HUGE = np.array([3e38, -3e38] * 4, np.float32)
"""Rewards whose sum over tokens leaves float32."""

# Several updates in one step.


def halves(arrays: Arrays) -> tuple[Arrays, Arrays]:
    """The two groups of `rollouts`, each as a batch of its own."""
    tokens, targets = int(arrays["lengths"][:4].sum()), int(counts_of(arrays)[:4].sum())
    cuts = {"tokens": tokens, "mask": tokens, "behaviour_logprobs": targets, "lags": targets, "group_sizes": 1}
    first, second = (
        {name: array[: cuts.get(name, 4)] for name, array in arrays.items()},
        {name: array[cuts.get(name, 4) :] for name, array in arrays.items()},
    )
    return first, second


def two_groups(seed: int) -> Arrays:
    """`rollouts` both of whose groups teach something."""
    return rollouts(seed, rewards=np.random.default_rng(seed + 100).normal(size=8).astype(np.float32))


def loaded(model: Path, **changes: Any) -> Trainer:
    trainer = Trainer()
    ok(trainer, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, **changes}, threads=1)
    return trainer


def test_two_updates_are_two_steps_on_the_halves_bit_for_bit(tmp_path: Path, model: Path) -> None:
    two, one = loaded(model, updates_per_step=2), loaded(model)
    for seed in range(2):
        arrays = two_groups(seed)
        whole = ok(two, "step", arrays)
        parts = [ok(one, "step", half) for half in halves(arrays)]
        assert (whole["steps"], whole["updates"]) == (seed + 1, 2)
        assert whole["tokens"] == sum(part["tokens"] for part in parts)
        assert whole["trained_tokens"] == sum(part["trained_tokens"] for part in parts)
        assert whole["loss"] == pytest.approx(sum(part["loss"] for part in parts) / 2)
        assert whole["grad_norm"] == max(part["grad_norm"] for part in parts)
        for mean in ("mean_ratio", "mismatch_kl", "entropy", "clip_share"):
            total = sum(part[mean] * part["trained_tokens"] for part in parts)
            assert whole[mean] == pytest.approx(total / whole["trained_tokens"]), mean
        assert whole["max_log_ratio"] == max(part["max_log_ratio"] for part in parts)
    assert weights(two, tmp_path / "two") == weights(one, tmp_path / "one")


def test_two_updates_go_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, model: Path) -> None:
    straight, other = (loaded(model, updates_per_step=2, warmup_steps=4) for _ in range(2))
    ok(straight, "step", two_groups(0))
    ok(straight, "save", directory=str(tmp_path / "checkpoint"))
    restored = ok(other, "restore", directory=str(tmp_path / "checkpoint"))
    assert restored["hyperparameters"]["updates_per_step"] == 2
    for seed in (1, 2):
        replies = [ok(each, "step", two_groups(seed)) for each in (straight, other)]
        assert replies[0]["learning_rate"] == pytest.approx(1e-2 * (seed + 1) / 4), "the rate counts training steps"
        assert {**replies[0], **UNTIMED} == {**replies[1], **UNTIMED}
    for name, trainer in (("straight", straight), ("other", other)):
        ok(trainer, "save", directory=str(tmp_path / name))
    assert state_of(tmp_path / "straight") == state_of(tmp_path / "other")


def state_of(checkpoint: Path) -> tuple[bytes, bytes]:
    return (checkpoint / "rank-00000.safetensors").read_bytes(), (checkpoint / "trainer.json").read_bytes()


@pytest.mark.parametrize("steps_before", [0, 1])
def test_a_first_update_that_diverges_leaves_everything_as_it_was(
    tmp_path: Path, model: Path, steps_before: int
) -> None:
    trainer = loaded(model, updates_per_step=2)
    for seed in range(steps_before):
        ok(trainer, "step", two_groups(seed))
    ok(trainer, "save", directory=str(tmp_path / "before"))
    broken = two_groups(6)
    broken["rewards"][:4] = HUGE[:4]
    assert "not finite" in refused(trainer, "diverged", "step", broken)
    ok(trainer, "save", directory=str(tmp_path / "after"))
    assert state_of(tmp_path / "after") == state_of(tmp_path / "before")
    fresh = loaded(model, updates_per_step=2)
    ok(fresh, "restore", directory=str(tmp_path / "before"))
    assert ok(trainer, "step", two_groups(7))["loss"] == ok(fresh, "step", two_groups(7))["loss"]
    assert weights(trainer, tmp_path / "one") == weights(fresh, tmp_path / "other")


def test_a_later_update_that_diverges_ends_the_step_there(tmp_path: Path, model: Path) -> None:
    trainer, alone = loaded(model, updates_per_step=2), loaded(model)
    broken = two_groups(6)
    broken["rewards"][4:] = HUGE[4:]  # only the second update meets it
    reply = ok(trainer, "step", broken)
    first, _ = halves(two_groups(6))
    taken = ok(alone, "step", first)
    assert (reply["updates"], reply["diverged"], reply["steps"]) == (1, 1, 1)
    assert (taken["updates"], taken["diverged"]) == (1, 0)
    for name in ("trained_tokens", "grad_norm", "mean_ratio", "by_lag"):
        assert reply[name] == taken[name], name
    assert weights(trainer, tmp_path / "one") == weights(alone, tmp_path / "other")
    assert ok(trainer, "step", two_groups(7))["updates"] == 2


def test_a_part_that_teaches_nothing_takes_no_update(tmp_path: Path, model: Path) -> None:
    two, alone = loaded(model, updates_per_step=2), loaded(model)
    reply = ok(two, "step", rollouts(0))  # all of the second group got the same reward
    first, _ = halves(rollouts(0))
    assert reply["updates"] == 1
    assert reply["loss"] == pytest.approx(ok(alone, "step", first)["loss"] / 2)
    assert weights(two, tmp_path / "two") == weights(alone, tmp_path / "alone")
    assert ok(loaded(model, updates_per_step=9), "step", two_groups(0))["updates"] == 2, "no more than groups"


@pytest.mark.parametrize(
    ("objective", "given"),
    [("topr", {}), ("dapo", {"updates_per_step": 2}), ("grpo", {"kl": 0.1}), ("ppo", {}), ("dapo", {"kl": 0.1})],
)
def test_of_what_is_not_trained_on_only_its_reward_counts(
    model: Path, tmp_path: Path, objective: str, given: dict[str, Any]
) -> None:
    """Whatever it says, and however likely that was."""
    arrays = two_groups(3)
    left_out, counts = np.array([0, 1, 0, 0, 0, 0, 1, 0], np.bool_), counts_of(arrays)
    generated = np.flatnonzero(arrays["mask"])[np.repeat(left_out, counts)]
    others = {name: arrays[name].copy() for name in ("tokens", "behaviour_logprobs")}
    others["tokens"][generated] = (others["tokens"][generated] + 7) % 40
    others["behaviour_logprobs"][np.repeat(left_out, counts)] -= 3.0
    trained = {"trained": (~left_out).astype(np.uint8)}
    made = []
    for place, changed in (("one", {}), ("other", others)):
        trainer = loaded(model, objective=objective, **given)
        reply, found = ask(trainer, "step", arrays | changed | trained)
        assert reply["ok"], reply
        assert np.isnan(found["apart"]).tolist() == left_out.tolist()
        assert (reply["tokens"], reply["trained_tokens"]) == (counts.sum(), counts[~left_out].sum())
        made.append((reply["loss"], reply["with_advantage"], weights(trainer, tmp_path / place)))
    assert made[0] == made[1]
    assert made[0][1] == 0.75
    whole = loaded(model, objective=objective, **given)
    ok(whole, "step", arrays)
    assert weights(whole, tmp_path / "whole") != made[0][2]


@pytest.mark.parametrize(("objective", "given"), [("topr", {}), ("grpo", {"kl": 0.1}), ("ppo", {})])
def test_a_batch_of_which_nothing_is_trained_on_leaves_the_weights(
    model: Path, tmp_path: Path, objective: str, given: dict[str, Any]
) -> None:
    trainer = loaded(model, objective=objective, **given)
    before = weights(trainer, tmp_path / "before")
    reply = ok(trainer, "step", two_groups(3) | {"trained": np.zeros(8, np.uint8)})
    assert (reply["updates"], reply["trained_tokens"], reply["with_advantage"]) == (0, 0, 0)
    assert weights(trainer, tmp_path / "after") == before


@pytest.mark.parametrize("ratio", ["product", "geometric"])
def test_a_mask_over_sequences_says_how_many_it_left_out(model: Path, ratio: str) -> None:
    arrays = two_groups(3)
    counts = counts_of(arrays)
    _, found = ask(loaded(model), "logprobs", completions(arrays))
    apart = (found["logprobs"] - arrays["behaviour_logprobs"]).astype(np.float64)
    sums = np.add.reduceat(apart, np.cumsum(counts) - counts)
    ratios = np.exp(sums if ratio == "product" else sums / counts)
    low, high = np.quantile(ratios, [0.3, 0.7])
    mask = {"sequence_mask": ratio, "mask_low": float(low), "mask_high": float(high)}
    reply = ok(loaded(model, correction="uncorrected", **mask), "step", arrays)
    outside = (ratios < low) | (ratios > high)
    assert reply["masked_share"] == outside.mean() > 0
    assert reply["clip_share"] == pytest.approx(counts[outside].sum() / counts.sum())


@pytest.mark.parametrize("objective", sorted(set(PRESETS) - {"dpo"}))
def test_forged_logprobs_leave_every_number_finite(tmp_path: Path, trainer: Trainer, objective: str) -> None:
    ok(trainer, "export", directory=str(tmp_path / "model"), dtype="float32")
    ok(trainer, "load", directory=str(tmp_path / "model"), hyperparameters=HYPERPARAMETERS | {"objective": objective})
    forged = rollouts(6)
    forged["behaviour_logprobs"] = np.full_like(forged["behaviour_logprobs"], -1e4)  # a ratio of e^10000
    if objective == "distill":
        forged["teacher_logprobs"] = np.where(np.arange(len(forged["lags"])) % 2, 0.0, -3e38).astype(np.float32)
    reply = ok(trainer, "step", forged)
    assert all(np.isfinite(value) for value in reply.values() if isinstance(value, float))


@pytest.mark.parametrize("op", ["step", "supervised", "logprobs", "export", "save", "restore"])
def test_nothing_works_before_a_model_is_loaded(tmp_path: Path, op: str) -> None:
    needs = {"supervised": {"learning_rate": 1e-3}, "step": {}, "logprobs": {}}
    fields = needs.get(op, {"directory": str(tmp_path / "place")})
    assert "load" in refused(Trainer(), "bad_request", op, **fields)


@pytest.mark.parametrize(
    ("op", "fields", "said"),
    [
        ("dance", {}, "dance"),
        ("save", {}, "directory"),
        ("save", {"directory": 5}, "directory"),
        ("step", {"learnin_rate": 1}, "learnin_rate"),
        ("export", {"directory": "x", "dtype": "int8"}, "dtype"),
        ("load", {"directory": "x", "hyperparameters": {**HYPERPARAMETERS, "clip_hi": 0.3}}, "clip_hi"),
        ("load", {"directory": "x", "hyperparameters": {**HYPERPARAMETERS, "learning_rate": 0}}, "learning_rate"),
        ("load", {"directory": "x", "hyperparameters": {**HYPERPARAMETERS, "betas": [0.9, 1.5]}}, "betas"),
        ("load", {"directory": "x", "hyperparameters": {**HYPERPARAMETERS, "objective": "magic"}}, "grpo"),
        ("load", {"directory": "x", "hyperparameters": {**HYPERPARAMETERS, "advantage": "best_of_n"}}, "leave_one_out"),
        ("load", {"directory": "x", "hyperparameters": {**HYPERPARAMETERS, "sequence_mask": "sum"}}, "geometric"),
        ("load", {"directory": "x", "hyperparameters": {}}, "max_new_tokens"),
    ],
)
def test_requests_that_make_no_sense_name_the_field(
    trainer: Trainer, op: str, fields: dict[str, Any], said: str
) -> None:
    assert said in refused(trainer, "bad_request", op, **fields)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(model: Path) -> None:
    fields = {"directory": str(model), "hyperparameters": HYPERPARAMETERS, "device": "cuda"}
    assert "needs a GPU for each rank" in refused(Trainer(), "bad_request", "load", **fields)


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    said = refused(Trainer(), "bad_model", "load", directory=str(tmp_path), hyperparameters=HYPERPARAMETERS)
    assert f"{tmp_path} has no config.json" in said


def test_a_sequence_that_the_model_does_not_reach_is_refused(model: Path) -> None:
    """Beyond its positions a model fails, or computes something else than nodes do."""
    trainer = Trainer()
    reply = ok(trainer, "load", directory=str(model), hyperparameters=HYPERPARAMETERS)
    assert reply["positions"] == CONFIG["max_position_embeddings"]
    length = CONFIG["max_position_embeddings"] + 1
    arrays = {
        "tokens": np.ones(length, np.int32),
        "lengths": np.array([length], np.int32),
        "mask": np.arange(length, dtype=np.uint8).clip(max=1),
    }
    for request in ({"op": "logprobs"}, {"op": "supervised", "learning_rate": 1e-3}):
        reply, _ = trainer.answer({"id": 2, **request}, arrays)
        assert reply["kind"] == "bad_request"
        assert f"a sequence has {length} tokens, but the model takes at most {length - 1}" in reply["error"]


def test_arrays_that_do_not_fit_are_named(trainer: Trainer) -> None:
    arrays = rollouts(7)
    assert "rewards" in refused(trainer, "bad_request", "step", arrays | {"rewards": np.zeros(3, np.float32)})
    tokens = np.full_like(arrays["tokens"], 40)
    assert "vocabulary of 40" in refused(trainer, "bad_request", "step", arrays | {"tokens": tokens})


def test_a_checkpoint_in_mid_warm_start_goes_on_bit_for_bit(tmp_path: Path, model: Path, trainer: Trainer) -> None:
    for seed in range(2):
        ok(trainer, "supervised", warm_start(seed), learning_rate=1e-2)
    ok(trainer, "save", directory=str(tmp_path / "checkpoint"))
    ok(trainer, "supervised", warm_start(2), learning_rate=1e-3)
    straight = weights(trainer, tmp_path / "straight")

    # Back in the same process, as after an overshoot, and then in another one's place.
    assert ok(trainer, "restore", directory=str(tmp_path / "checkpoint"))["supervised_steps"] == 2
    ok(trainer, "supervised", warm_start(2), learning_rate=1e-3)
    assert weights(trainer, tmp_path / "back") == straight
    other = Trainer()
    ok(other, "load", directory=str(model), hyperparameters=HYPERPARAMETERS)
    ok(other, "restore", directory=str(tmp_path / "checkpoint"))
    ok(other, "supervised", warm_start(2), learning_rate=1e-3)
    assert weights(other, tmp_path / "other") == straight


def test_restore_brings_its_hyperparameters_unless_told_otherwise(
    tmp_path: Path, model: Path, trainer: Trainer
) -> None:
    ok(trainer, "step", rollouts(8))
    ok(trainer, "save", directory=str(tmp_path / "checkpoint"))
    other = Trainer()
    ok(other, "load", directory=str(model), hyperparameters={**HYPERPARAMETERS, "learning_rate": 1e-5})
    kept = ok(other, "restore", directory=str(tmp_path / "checkpoint"), keep_hyperparameters=True)
    assert (kept["steps"], kept["hyperparameters"]["learning_rate"]) == (1, 1e-5)
    restored = ok(other, "restore", directory=str(tmp_path / "checkpoint"))
    assert restored["hyperparameters"]["learning_rate"] == 1e-2


def truncate(checkpoint: Path) -> None:
    state = checkpoint / "rank-00000.safetensors"
    state.write_bytes(state.read_bytes()[:-100])


def drop_head(checkpoint: Path) -> None:
    (checkpoint / "trainer.json").unlink()


def cut_head(checkpoint: Path) -> None:
    (checkpoint / "trainer.json").write_text('{"format": 2, "steps"')


def drop_state(checkpoint: Path) -> None:
    (checkpoint / "rank-00000.safetensors").unlink()


def drop_tensor(checkpoint: Path) -> None:
    head = json.loads((checkpoint / "trainer.json").read_text())
    del head["index"]["weights/model.norm.weight"]
    (checkpoint / "trainer.json").write_text(json.dumps(seal(head)))


def drop_slice(checkpoint: Path) -> None:
    head = json.loads((checkpoint / "trainer.json").read_text())
    head["index"]["adamw/exp_avg/model.norm.weight"]["slices"] = []
    (checkpoint / "trainer.json").write_text(json.dumps(seal(head)))


def change_head(**changes: Any) -> Callable[[Path], None]:
    """As a program that writes other things would."""

    def spoil(checkpoint: Path) -> None:
        head = json.loads((checkpoint / "trainer.json").read_text())
        (checkpoint / "trainer.json").write_text(json.dumps(seal(head | changes)))

    return spoil


def flip(name: str, place: float) -> Callable[[Path], None]:
    """The lowest bit of a digit or a letter, or of whatever stands at `place`, from 0 to 1, of the file."""

    def spoil(checkpoint: Path) -> None:
        data = bytearray((checkpoint / name).read_bytes())
        at = round(place * (len(data) - 1))
        if name.endswith(".json"):
            at += next(i for i, byte in enumerate(data[at:]) if chr(byte).isalnum())
        data[at] ^= 1
        (checkpoint / name).write_bytes(data)

    return spoil


def change_a_number_of_the_head(checkpoint: Path) -> None:
    text = (checkpoint / "trainer.json").read_text()
    assert '"steps": 1,' in text
    (checkpoint / "trainer.json").write_text(text.replace('"steps": 1,', '"steps": 3,'))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (truncate, "half-written"),
        (drop_head, "no trainer.json"),
        (cut_head, "half-written"),
        (drop_state, "half-written"),
        (change_head(format=3), "format 3, newer than"),
        (change_head(format=3, steps="many"), "format 3, newer than"),
        (change_head(format=1), "format 1, older than"),
        (change_head(fingerprint="0" * 64), "another model"),
        (flip("rank-00000.safetensors", 0.0), "rank-00000.safetensors is damaged"),
        (flip("rank-00000.safetensors", 0.5), "rank-00000.safetensors is damaged"),
        (flip("rank-00000.safetensors", 1.0), "rank-00000.safetensors is damaged"),
        (flip("trainer.json", 0.2), "trainer.json is"),
        (flip("trainer.json", 0.7), "trainer.json is"),
        (change_a_number_of_the_head, "trainer.json is damaged"),
        (drop_tensor, "lacks 'weights/model.norm.weight'"),
        (drop_slice, "lacks a part of 'adamw/exp_avg/model.norm.weight'"),
        (change_head(hyperparameters={"objective": "of the future"}), "hyperparameters"),
    ],
)
def test_a_bad_checkpoint_is_named_and_changes_nothing(
    tmp_path: Path, trainer: Trainer, spoil: Callable[[Path], None], said: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    ok(trainer, "step", rollouts(9))
    ok(trainer, "save", directory=str(checkpoint))
    ok(trainer, "step", rollouts(10))
    before = weights(trainer, tmp_path / "before")
    spoil(checkpoint)
    foreign = any(word in said for word in ("newer", "older", "another model"))
    kind = "foreign_checkpoint" if foreign else "bad_checkpoint"
    error = refused(trainer, kind, "restore", directory=str(checkpoint))
    assert said in error
    assert str(checkpoint) in error
    assert weights(trainer, tmp_path / "after") == before


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, trainer: Trainer) -> None:
    ok(trainer, "save", directory=str(tmp_path / "checkpoint"))
    other = Trainer()
    config = {**CONFIG, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}
    ok(other, "make_model", directory=str(tmp_path / "other"), config=config)
    ok(other, "load", directory=str(tmp_path / "other"), hyperparameters=HYPERPARAMETERS)
    assert "another model" in refused(other, "foreign_checkpoint", "restore", directory=str(tmp_path / "checkpoint"))


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path, trainer: Trainer) -> None:
    with file_limit(10_000):
        for op in ("save", "export"):
            assert "nothing was left" in refused(trainer, "disk", op, directory=str(tmp_path / "place"))
    assert list(tmp_path.iterdir()) == []
    ok(trainer, "save", directory=str(tmp_path / "place"))
    assert "exists already" in refused(trainer, "bad_request", "save", directory=str(tmp_path / "place"))


def test_a_checkpoint_that_is_not_waited_for_is_told_of_when_it_is_durable(tmp_path: Path, model: Path) -> None:
    events: list[Header] = []
    trainer = Trainer(tell=lambda event, arrays: events.append(event))
    ok(trainer, "load", directory=str(model), hyperparameters=HYPERPARAMETERS)
    for event, said in (("saved", "bytes"), ("save_failed", "error")):
        ok(trainer, "save", directory=str(tmp_path / "first"), wait=False)
        assert not events, "the reply comes first"
        trainer.wait_until_written()
        told = events.pop()
        assert (told["event"], told["directory"], not events) == (event, str(tmp_path / "first"), True)
        assert told[said]


NOISY = """
import builtins, os, runpy, sys
plain_import = builtins.__import__
def noisy_import(name, *rest, **more):
    if name == "torch":
        print("printed by a library while it is imported", flush=True)
        os.system("echo echoed by a program that it starts")
        assert sys.stdin.read() == ""
    return plain_import(name, *rest, **more)
builtins.__import__ = noisy_import
runpy.run_module("learner.training.server", run_name="__main__", alter_sys=True)
"""
"""The trainer among libraries as noisy and as greedy as they can be."""


def test_training_goes_on_bit_for_bit_in_another_process(tmp_path: Path, model: Path) -> None:
    """Five steps here; two, save, another process, restore, three there. The other process is full of noise, too."""
    straight = Trainer()
    ok(straight, "load", directory=str(model), hyperparameters=HYPERPARAMETERS, threads=1)
    for seed in range(2):
        ok(straight, "step", rollouts(seed))
    ok(straight, "save", directory=str(tmp_path / "checkpoint"))
    metrics = [ok(straight, "step", rollouts(seed)) for seed in range(2, 5)]

    child = Child("-c", NOISY, log=None)
    ready, _ = child.receive()
    assert ready == {"event": "ready", "torch": torch.__version__, "threads": 1, "ranks": 1}
    child.ask("load", directory=str(model), hyperparameters={**HYPERPARAMETERS, "learning_rate": 1.0}, threads=1)
    assert child.ask("restore", directory=str(tmp_path / "checkpoint"))["steps"] == 2
    resumed = [child.ask("step", rollouts(seed)) for seed in range(2, 5)]
    child.ask("export", directory=str(tmp_path / "resumed"), dtype="float32")
    child.ask("save", directory=str(tmp_path / "again"))
    assert child.end() == 0

    assert [{**reply, "id": 0, **UNTIMED} for reply in resumed] == [{**reply, "id": 0, **UNTIMED} for reply in metrics]
    assert weights(straight, tmp_path / "straight") == (tmp_path / "resumed" / "model.safetensors").read_bytes()
    ok(straight, "save", directory=str(tmp_path / "twin"))
    for file in ("trainer.json", "rank-00000.safetensors"):
        assert (tmp_path / "twin" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


STUCK = """
import runpy, threading
import learner.training.checkpoint
import learner.training.background_writing
stuck = lambda *rest, **more: threading.Event().wait()
learner.training.checkpoint.save = learner.training.background_writing.write_export = stuck
runpy.run_module("learner.training.server", run_name="__main__")
"""


STUCK_LOADING = """
import threading
import learner.artifacts.model_directory
learner.artifacts.model_directory.read_file = lambda *rest, **more: threading.Event().wait()  # as a silent disk
"""


@pytest.mark.parametrize("doing", ["load", "save", "export"])
def test_a_trainer_whose_node_is_gone_ends_whatever_it_is_doing(tmp_path: Path, model: Path, doing: str) -> None:
    child = Child("-c", (STUCK_LOADING if doing == "load" else "") + STUCK)
    child.receive()
    if doing == "load":
        child.send("load", directory=str(model), hyperparameters=HYPERPARAMETERS)
    else:
        child.ask("load", directory=str(model), hyperparameters=HYPERPARAMETERS)
        child.ask(doing, directory=str(tmp_path / "written"), wait=False)
    child.requests.close()
    assert child.replies.read() == b"", "it has ended"
    assert child.bury()[0] == 1
    assert not (tmp_path / "written").exists()


def test_a_trainer_whose_node_is_gone_as_it_answers_fails_so_that_torchrun_ends_the_other_ranks() -> None:
    child = Child()
    child.receive()
    child.replies.close()
    child.send("nothing of the kind")
    assert child.bury() == (1, "")


def test_frames_end_with_the_stream_wherever_it_is_cut() -> None:
    frame = encode_frame({"id": 1, "op": "step"}, {"rewards": np.zeros(3, np.float32)})
    for cut in range(1, len(frame)):
        assert len(list(requests_of(BytesIO(frame + frame[:cut])))) == 1


def test_a_process_that_is_sent_something_else_says_so_and_ends() -> None:
    child = Child()
    child.receive()
    child.requests.write(b"GET / HTTP/1.1\r\n\r\n")
    child.requests.flush()
    assert child.end() == 1


def test_requests_are_not_changed_by_answering_them(trainer: Trainer) -> None:
    header, arrays = {"id": 1, "op": "step"}, rollouts(11)
    for array in arrays.values():
        array.flags.writeable = False  # as frames decode them
    before = copy.deepcopy(header)
    reply, _ = trainer.answer(header, arrays)
    assert reply["ok"]
    assert header == before
