"""Our loss against TRL's own, on one batch of one model: values, and gradients of every weight, to 1e-5 in float32.

TRL's side is `GRPOTrainer._compute_loss` with its own forward pass over padded completions; ours is the policy's,
packed, in several microbatches. Behaviour log probabilities are far enough off that every side of every bound is hit.
Some tests need what TRL prepares before its loss: ratios to vLLM's log probabilities, completions that were cut off,
several rewards. There its side includes `_generate_and_score_completions`, in which only the generator and the reward
functions are replaced.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, nanstd

from learner.rollouts.batch_arrays import part_arrays
from learner.rollouts.overlong import soft_punishment
from learner.rollouts.reward_parts import RewardPart, total
from learner.trainer_api.advantages import advantages, gdpo
from learner.trainer_api.presets import recipe_of
from learner.trainer_api.requests import Hyperparameters
from learner.training.batch_preparation import prepare
from learner.training.batches.packing import microbatches
from learner.training.batches.sequences import Arrays, Ragged, rollout_batch
from learner.training.model.loading import make_model
from learner.training.model.policy import Policy, load_policy
from learner.training.objective.loss import objective_of
from learner.training.objective.objective_inputs import Terms, Totals

CONFIG = {
    **{"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.1},
}
LENGTHS = [1, 9, 4, 12, 7, 2, 12, 5]
GROUP = 4
MAX_NEW_TOKENS = 12
TEMPERATURE = 0.8

# Settings of GRPOTrainer, beside the preset's name. GSPO is GRPO with ratios of sequences; TRL's epsilon_high of CISPO
# is the bound itself.
TRL: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_low": 0.2, "epsilon_high": 0.28},
    "gspo": {
        **{"loss_type": "grpo", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        "importance_sampling_level": "sequence",
    },
    "cispo": {"loss_type": "cispo", "epsilon_low": 0.2, "epsilon_high": 5.0},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "qwen3"
    make_model(place, CONFIG, 3)
    return place


class Batch:
    """Two groups of four completions of uneven lengths, whose rewards differ, padded as TRL pads them. `drift` is the
    deviation of the log ratios.
    """

    def __init__(self, drift: float) -> None:
        generator = np.random.default_rng(5)
        prompts = [generator.integers(1, 40, 6)] * GROUP + [generator.integers(1, 40, 6)] * GROUP
        answers = [generator.integers(1, 40, length) for length in LENGTHS]
        self.prompts = torch.from_numpy(np.stack(prompts))
        self.answers = torch.zeros(len(LENGTHS), MAX_NEW_TOKENS, dtype=torch.int64)
        self.mask = torch.arange(MAX_NEW_TOKENS) < torch.tensor(LENGTHS)[:, None]
        for row, answer in enumerate(answers):
            self.answers[row, : len(answer)] = torch.from_numpy(answer)
        tokens = np.concatenate([part for pair in zip(prompts, answers, strict=True) for part in pair])
        targets = np.concatenate([np.arange(6 + length) >= 6 for length in LENGTHS])
        self.sequences = Ragged(tokens=tokens, lengths=np.array(LENGTHS) + 6, targets=targets)
        self.rewards = generator.normal(size=len(LENGTHS)).astype(np.float32)
        self.drift = torch.from_numpy(generator.normal(0.0, drift, self.mask.shape).astype(np.float32))


def trl_trainer(model: Any, kl: float, given: dict[str, Any]) -> Any:
    """Return a GRPOTrainer with the fields that `_compute_loss` uses, and no data, optimizer or files."""
    add_fused_lm_head(model, temperature=TEMPERATURE, outputs=("log_probs", "entropy"))
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    defaults = {
        **{"importance_sampling_level": "token", "beta": kl, "top_entropy_quantile": 1.0, "use_vllm": False},
        **{"off_policy_mask_threshold": None, "_entropy_bonus_enabled": False, "aux_loss_enabled": False},
        **{"current_gradient_accumulation_steps": 1, "max_completion_length": MAX_NEW_TOKENS},
        **{"model": model, "accelerator": Accelerator(cpu=True)},
        "args": SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1),
        "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
    }
    for name, value in {**defaults, **given}.items():
        setattr(trainer, name, value)
    model.train()
    return trainer


def trl_advantages(rewards: torch.Tensor, scale: str) -> torch.Tensor:
    """Return the advantages as `GRPOTrainer._generate_and_score_completions` computes them."""
    grouped = rewards.view(-1, GROUP)
    found = rewards - torch.nanmean(grouped, dim=1).repeat_interleave(GROUP)
    return found if scale == "none" else found / (nanstd(grouped, dim=1).repeat_interleave(GROUP) + 1e-4)


def terms_of(policy: Policy, batch: Batch, found: np.ndarray[Any, Any], flat: dict[str, torch.Tensor]) -> list[Terms]:
    """Return the batch as our objective sees it, in microbatches."""
    made = []
    for part in microbatches(batch.sequences, np.ones(len(LENGTHS), np.bool_), 60, share_prompts=True):
        columns = {name: column[part.numbers] for name, column in flat.items()}
        numbers = torch.from_numpy(np.repeat(found, LENGTHS)[part.numbers])
        made.append(
            Terms(
                logprobs=policy.score(part, TEMPERATURE).logprobs,
                lags=torch.zeros(len(part.numbers), dtype=torch.int64),
                offline=torch.zeros(len(part.numbers), dtype=torch.bool),
                advantages=numbers,
                segments=part.segments,
                num_sequences=part.num_sequences,
                **columns,
            )
        )
    return made


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("name", TRL)
def test_loss_and_gradients_are_those_of_trl(directory: Path, name: str, kl: float) -> None:
    batch, given = Batch(drift=1.5 if name == "cispo" else 0.5), dict(TRL[name])
    scale = given.pop("scale_rewards", "group")
    policy = load_policy(directory)
    theirs = load_policy(directory)
    trainer = trl_trainer(theirs.model, kl, given)

    with torch.no_grad():
        whole = torch.cat([batch.prompts, batch.answers], dim=1)
        attention = torch.cat([torch.ones_like(batch.prompts), batch.mask.long()], dim=1)
        now, _, _ = trainer._get_per_token_logps_and_entropies(theirs.model, whole, attention, MAX_NEW_TOKENS)
    behaviour, reference = (now + batch.drift).clamp(max=0.0), now - 0.7 * batch.drift
    trl_advantage = trl_advantages(torch.from_numpy(batch.rewards), scale)
    inputs = {
        **{"prompt_ids": batch.prompts, "prompt_mask": torch.ones_like(batch.prompts)},
        **{"completion_ids": batch.answers, "completion_mask": batch.mask.long()},
        **{"advantages": trl_advantage, "old_per_token_logps": behaviour, "ref_per_token_logps": reference},
        "num_items_in_batch": batch.mask.sum(),
    }
    expected = trainer._compute_loss(theirs.model, inputs)
    expected.backward()

    h = Hyperparameters(objective=name, kl=kl, max_new_tokens=MAX_NEW_TOKENS)
    recipe = recipe_of(h)
    ours = advantages(batch.rewards, [GROUP, GROUP], recipe.advantage)
    assert ours == pytest.approx(trl_advantage.numpy(), rel=1e-5)
    flat = {"behaviour": behaviour[batch.mask], "reference": reference[batch.mask]}
    totals = Totals(sequences=8, groups=2, tokens=sum(LENGTHS), max_new_tokens=MAX_NEW_TOKENS)
    loss, clipped, signs = 0.0, [], []
    for terms in terms_of(policy, batch, ours, flat):
        share = objective_of(recipe)(terms, totals)
        share.loss.backward()
        loss += share.loss.item()
        clipped.append(share.clipped)
        signs.append(terms.advantages.sign())
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    for (parameter_name, mine), (_, other) in zip(policy.parameters, theirs.parameters, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5, msg=parameter_name)
    acted, sign = torch.cat(clipped), torch.cat(signs)
    assert {1.0, -1.0} <= set(sign[acted].tolist()), "a bound must act on both signs of advantage"
    assert not acted.all()


# TRL's preparation of a batch before its loss.

EOS = 39
CUT_OFF = [False, True, False, False, True, False, True, False]


def trl_prepared(trainer: Any, batch: Batch, behaviour: torch.Tensor, rewards: torch.Tensor) -> dict[str, Any]:
    """Return the result of `_generate_and_score_completions` for the batch, generated with log probabilities
    `behaviour` [B, T] and rewarded with `rewards` [B, K].
    """
    answers = [row[known].tolist() for row, known in zip(batch.answers, batch.mask, strict=True)]
    told = [row[known].tolist() for row, known in zip(behaviour, batch.mask, strict=True)]
    kinds = rewards.shape[1]
    defaults = {
        **{"environment_factories": None, "environments": None, "tools": None, "pad_to_multiple_of": None},
        **{"_tokenizer": SimpleNamespace(pad_token_id=0), "eos_token_ids": [EOS], "mask_truncated_completions": False},
        **{"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "token_truncate"},
        **{"vllm_importance_sampling_clip_min": None, "vllm_importance_sampling_clip_max": 3.0, "num_iterations": 1},
        **{"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group", "num_generations": GROUP},
        **{"reward_funcs": [None] * kinds, "reward_func_names": [str(k) for k in range(kinds)]},
        **{"reward_weights": torch.ones(kinds), "ref_model": None, "log_multimodal": False, "_is_vlm": False},
        **{"_pending_extra_logs": {}, "_pending_metrics": {}, "use_vllm": True},
        "_logs": {**{name: [] for name in ("prompt", "completion", "advantages")}, "rewards": defaultdict(list)},
    }
    for name, value in defaults.items():
        if name not in vars(trainer) or name == "use_vllm":
            setattr(trainer, name, value)
    trainer.args.per_device_train_batch_size = len(LENGTHS)
    trainer.args.gradient_accumulation_steps, trainer.args.gradient_checkpointing_kwargs = 1, None
    trainer._generate = lambda prompts: (batch.prompts.tolist(), answers, None, answers, told, {}, None, None)
    trainer._calculate_rewards = lambda *_: rewards
    found: dict[str, Any] = trainer._generate_and_score_completions([{"prompt": ""}] * len(LENGTHS))
    return found


def drifted(trainer: Any, model: Any, batch: Batch) -> torch.Tensor:
    """Return log probabilities [B, T] that are the batch's drift away from those of the model."""
    whole = torch.cat([batch.prompts, batch.answers], dim=1)
    attention = torch.cat([torch.ones_like(batch.prompts), batch.mask.long()], dim=1)
    with torch.no_grad():
        now, _, _ = trainer._get_per_token_logps_and_entropies(model, whole, attention, MAX_NEW_TOKENS)
    return (now + batch.drift).clamp(max=0.0)


def our_loss(
    policy: Policy,
    batch: Batch,
    behaviour: torch.Tensor,
    h: Hyperparameters,
    trained: list[bool] | None = None,
    named: Arrays | None = None,
) -> tuple[float, np.ndarray[Any, Any], torch.Tensor]:
    """Return the loss, with its gradients; the advantages [T]; and the tokens [T] on which a bound acted."""
    arrays = {
        "tokens": batch.sequences.tokens.astype(np.int32),
        "lengths": batch.sequences.lengths.astype(np.int32),
        "mask": batch.sequences.targets.astype(np.uint8),
        "behaviour_logprobs": behaviour[batch.mask].numpy(),
        "lags": np.zeros(sum(LENGTHS), np.int32),
        "rewards": batch.rewards,
        "group_sizes": np.array([GROUP, GROUP], np.int32),
        "origins": np.zeros(len(LENGTHS), np.uint8),
        "trained": np.array(trained or [True] * len(LENGTHS), np.uint8),
        **(named or {}),
    }
    recipe, rollouts = recipe_of(h), rollout_batch(arrays, CONFIG["vocab_size"])
    prepared, _ = prepare(rollouts, recipe, h, lambda *_: {}, None)
    totals = Totals(sequences=8, groups=2, tokens=prepared.trained_tokens, max_new_tokens=MAX_NEW_TOKENS)
    loss, clipped = 0.0, torch.zeros(sum(LENGTHS), dtype=torch.bool)
    for part in microbatches(prepared.sequences, prepared.teaches, 60, share_prompts=True):
        columns = {name: torch.from_numpy(column[part.numbers]) for name, column in prepared.columns.items()}
        scored = policy.score(part, TEMPERATURE).logprobs
        terms = Terms(logprobs=scored, segments=part.segments, num_sequences=part.num_sequences, **columns)
        share = objective_of(recipe)(terms, totals)
        share.loss.backward()
        loss += share.loss.item()
        clipped[part.numbers] = share.clipped
    return loss, prepared.columns["advantages"], clipped


def assert_gradients_agree(ours: Policy, theirs: Policy) -> None:
    for (name, mine), (_, other) in zip(ours.parameters, theirs.parameters, strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(mine.grad, other.grad, atol=1e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("mode", "low", "high", "correction"),
    [
        ("token_truncate", None, 1.2, "truncated_weight"),
        ("token_mask", 0.7, 1.4, "masked_weight"),
        ("sequence_truncate", None, 1.2, "truncated_sequence"),
        ("sequence_mask", None, 1.5, "masked_sequence"),
        ("sequence_mask", 0.4, 1.8, "masked_sequence"),
    ],
)
def test_ratios_to_what_the_engine_said_are_held_as_trl_holds_them(
    directory: Path, mode: str, low: float | None, high: float, correction: str
) -> None:
    """The loss is CISPO's, whose ratio to the step's own start is 1, so only the weight is left."""
    batch = Batch(drift=0.5)
    ours, theirs = load_policy(directory), load_policy(directory)
    trainer = trl_trainer(theirs.model, 0.0, {**TRL["cispo"], "vllm_importance_sampling_mode": mode})
    trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = low, high
    behaviour = drifted(trainer, theirs.model, batch)
    inputs = trl_prepared(trainer, batch, behaviour, torch.from_numpy(batch.rewards)[:, None])
    expected = trainer._compute_loss(theirs.model, inputs)
    expected.backward()

    masks = {"clip_low": 1 - (low or 0.0), "clip_high": high - 1} if mode.endswith("mask") else {"weight_cap": high}
    h = Hyperparameters(objective="cispo", correction=correction, max_new_tokens=MAX_NEW_TOKENS, **masks)
    loss, found, clipped = our_loss(ours, batch, behaviour, h)
    assert found == pytest.approx(np.repeat(inputs["advantages"].numpy(), LENGTHS), rel=1e-5)
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert_gradients_agree(ours, theirs)
    assert {-1.0, 1.0} <= set(np.sign(found[clipped.numpy()])), "a bound must act on both signs of advantage"
    assert not clipped.all()


@pytest.mark.parametrize("name", TRL)
def test_what_was_cut_off_is_left_out_as_trl_leaves_it_out(directory: Path, name: str) -> None:
    """The reward of a cut completion counts in its group, its tokens are in no divisor, and it counts as a sequence."""
    batch, given = Batch(drift=0.5), dict(TRL[name])
    ends = torch.tensor(LENGTHS) - 1
    batch.answers[batch.answers == EOS] = 1
    batch.answers[torch.arange(len(LENGTHS)), ends] = torch.where(torch.tensor(CUT_OFF), 1, EOS)
    batch.sequences.tokens[batch.sequences.targets] = batch.answers[batch.mask].numpy()
    ours, theirs = load_policy(directory), load_policy(directory)
    trainer = trl_trainer(theirs.model, 0.0, {"scale_rewards": "group", **given, "mask_truncated_completions": True})
    behaviour = drifted(trainer, theirs.model, batch)
    inputs = trl_prepared(trainer, batch, behaviour, torch.from_numpy(batch.rewards)[:, None])
    trainer.use_vllm = False  # PPO's ratio to the behaviour log probabilities, and no other ratio beside it
    inputs["old_per_token_logps"] = behaviour
    expected = trainer._compute_loss(theirs.model, inputs)
    expected.backward()

    h = Hyperparameters(objective=name, max_new_tokens=MAX_NEW_TOKENS)
    loss, found, _ = our_loss(ours, batch, behaviour, h, [not cut for cut in CUT_OFF])
    kept = np.repeat(~np.array(CUT_OFF), LENGTHS)
    assert found[kept] == pytest.approx(np.repeat(inputs["advantages"].numpy(), LENGTHS)[kept], rel=1e-5)
    assert not found[~kept].any()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    assert_gradients_agree(ours, theirs)


@pytest.mark.parametrize("unknown", [False, True])
def test_several_rewards_are_normalised_and_summed_as_by_trl(directory: Path, unknown: bool) -> None:
    """GDPO, with rewards of different spread, and with some rewards unknown for some completions."""
    batch, weights = Batch(drift=0.1), [1.0, 0.25, 2.0]
    rewards = np.random.default_rng(8).normal(size=(8, 3)) * [1.0, 100.0, 0.01]
    rewards[4:, 0] = 0.5
    if unknown:
        rewards[[0, 5, 6], 1] = rewards[3] = np.nan
    trainer = trl_trainer(load_policy(directory).model, 0.0, {**TRL["grpo"], "reward_weights": torch.tensor(weights)})
    trainer.multi_objective_aggregation = "normalize_then_sum"
    behaviour = drifted(trainer, trainer.model, batch)
    expected = trl_prepared(trainer, batch, behaviour, torch.from_numpy(rewards))["advantages"]
    found = gdpo(rewards, weights, [GROUP, GROUP])
    assert found == pytest.approx(expected.numpy(), rel=1e-6, abs=1e-9)
    h = Hyperparameters(objective="grpo", advantage="gdpo", max_new_tokens=MAX_NEW_TOKENS)
    parts = [
        tuple(RewardPart(name=str(k), value=value, weight=weights[k]) for k, value in enumerate(row)) for row in rewards
    ]
    named = part_arrays([total(several) for several in parts], parts)
    _, through, _ = our_loss(load_policy(directory), batch, behaviour, h, named=named)
    assert through == pytest.approx(np.repeat(expected.numpy(), LENGTHS), rel=1e-5, abs=1e-6)


def test_one_reward_is_gdpo_too(directory: Path) -> None:
    batch = Batch(drift=0.1)
    trainer = trl_trainer(load_policy(directory).model, 0.0, TRL["grpo"])
    trainer.multi_objective_aggregation = "normalize_then_sum"
    behaviour = drifted(trainer, trainer.model, batch)
    inputs = trl_prepared(trainer, batch, behaviour, torch.from_numpy(batch.rewards)[:, None])
    found = advantages(batch.rewards, [GROUP, GROUP], "gdpo")
    assert found == pytest.approx(inputs["advantages"].numpy(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("budget", "buffer"), [(100, 20), (20, 20), (7, 1)])
def test_long_completions_are_punished_as_by_trl(budget: int, buffer: int) -> None:
    lengths = range(1, budget + 1)
    expected = get_soft_overlong_punishment(budget, buffer)([[1] * length for length in lengths])
    assert [soft_punishment(length, budget, buffer) for length in lengths] == pytest.approx(expected)
