"""Our loss against TRL's own, on one batch of one model: values, and gradients of every weight, to 1e-5 in float32.

TRL's side is `GRPOTrainer._compute_loss` with its own forward pass over padded completions; ours is the policy's,
packed, in several microbatches. Behaviour logprobs are far enough off that every side of every bound is hit.
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
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head, nanstd

from learner.trainer_api.advantages import advantages
from learner.trainer_api.presets import recipe_of
from learner.trainer_api.requests import Hyperparameters
from learner.training.batches.packing import microbatches
from learner.training.batches.sequences import Ragged
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

# What GRPOTrainer is told, beside the preset's name. GSPO is GRPO with ratios of sequences; TRL's epsilon_high of CISPO
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
    """A GRPOTrainer that has what `_compute_loss` asks for, and no data, optimizer or files."""
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
    """As `GRPOTrainer._generate_and_score_completions` computes them."""
    grouped = rewards.view(-1, GROUP)
    found = rewards - torch.nanmean(grouped, dim=1).repeat_interleave(GROUP)
    return found if scale == "none" else found / (nanstd(grouped, dim=1).repeat_interleave(GROUP) + 1e-4)


def terms_of(policy: Policy, batch: Batch, found: np.ndarray[Any, Any], flat: dict[str, torch.Tensor]) -> list[Terms]:
    """The batch as our objective sees it, in microbatches."""
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
    assert {1.0, -1.0} <= set(sign[acted].tolist()), "a bound acted on either sign of advantage"
    assert not acted.all()
