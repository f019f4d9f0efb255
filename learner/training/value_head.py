"""Train a critic for PPO: a value head on the policy's last hidden state, with its own optimizer.

The policy's module is not changed. A hook on its trunk keeps the hidden states, so one forward pass gives log
probabilities and values.

Invariants:

- The critic is part of checkpoints and never of exports.
- It begins with value 0 everywhere, so the first steps are REINFORCE.
- A step that fails does not change it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learner.trainer_api.requests import Hyperparameters
from learner.training.batches.packing import Microbatch
from learner.training.distributed.ranks import Ranks
from learner.training.optimizer import MOMENTS


class Critic:
    """A value head with `weight` [D] and `bias` [1] in float32, trained by AdamW without decay."""

    def __init__(self, model: Any, hyperparameters: Hyperparameters) -> None:
        shapes, device = shapes_of(model), model.get_output_embeddings().weight.device
        self.weight = torch.zeros(shapes["critic/weight"], device=device, requires_grad=True)
        self.bias = torch.zeros(shapes["critic/bias"], device=device, requires_grad=True)
        self._hidden: Tensor | None = None
        self._hook = model.base_model.register_forward_hook(self._hear)
        self._rate = hyperparameters.value_learning_rate
        self._optimizer = torch.optim.AdamW(
            [self.weight, self.bias], lr=self._rate, betas=hyperparameters.betas, weight_decay=0.0
        )
        for parameter in (self.weight, self.bias):
            # Now and not at the first step, so that every checkpoint holds the same tensors.
            self._optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def values(self, part: Microbatch) -> Tensor:
        """Return values [N] of the positions that predict the part's targets, from the last forward pass."""
        assert self._hidden is not None, "no forward pass has run"
        hidden, self._hidden = self._hidden, None
        states = torch.nn.functional.embedding(part.predictors, hidden.flatten(0, 1)).float()  # (N, D)
        return states @ self.weight + self.bias

    def _hear(self, module: Any, inputs: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    def clip(self, grad_clip: float, ranks: Ranks) -> float:
        """Add up the head's gradient over the ranks and clip it. Return its norm before clipping."""
        for parameter in (self.weight, self.bias):
            if parameter.grad is None:  # this rank had no sequences
                parameter.grad = torch.zeros_like(parameter)
            ranks.add_up(parameter.grad)
        return torch.nn.utils.clip_grad_norm_([self.weight, self.bias], grad_clip).item()

    def update(self, share: float) -> None:
        """Take one step at `share` times the head's learning rate, and clear the gradients."""
        self._optimizer.param_groups[0]["lr"] = self._rate * share
        self._optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Free the gradients and the kept hidden states."""
        self._hidden = None
        self._optimizer.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return the critic's tensors for a checkpoint, by name, as views."""
        found = {}
        for name, parameter in (("weight", self.weight), ("bias", self.bias)):
            found[f"critic/{name}"] = parameter.detach()
            found |= {f"critic/{moment}/{name}": kept for moment, kept in self._optimizer.state[parameter].items()}
        return found


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors that a checkpoint of `model` has for a critic, even if there is none."""
    width = int(model.get_output_embeddings().weight.shape[1])
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in (("weight", (width,)), ("bias", (1,))):
        found[f"critic/{name}"] = shape
        found |= {f"critic/{moment}/{name}": () if moment == "step" else shape for moment in MOMENTS}
    return found
