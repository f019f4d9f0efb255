"""A loaded policy in training: its weights, its optimizers, its counters.

What always holds: a step that fails leaves weights and moments as they were, to the bit; everything that training
changes is among `tensors` and counters, so a checkpoint of those goes on as if nothing had happened. It knows neither
pipes nor files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.advantage import advantages
from learner.checkpoint import CheckpointHead
from learner.minibatches import mini_batches
from learner.objective import OBJECTIVES, Bounds, MismatchSums, Objective, Terms, Totals
from learner.optimizer import MOMENTS, all_or_nothing, learning_rate_at, make_adamw, set_learning_rate
from learner.packing import BadBatch, Microbatch, Prepared, Ragged, Rollouts, microbatches
from learner.policy import Policy
from learner.requests import Hyperparameters
from protocol.pipe import Arrays


class Diverged(ArithmeticError):
    """A loss or a gradient is not finite. The weights were not changed."""


class Training:
    """A loaded policy with its optimizers: everything that training changes, and everything that a checkpoint holds.

    `steps` counts training steps. The warm start has an optimizer of its own, dropped at the first training step.
    """

    def __init__(self, policy: Policy, hyperparameters: Hyperparameters) -> None:
        self.policy = policy
        self.steps = 0
        self.supervised_steps = 0
        self._warm_start: torch.optim.AdamW | None = None
        self.configure(hyperparameters)

    def configure(self, hyperparameters: Hyperparameters) -> None:
        """Put `hyperparameters` in force, with fresh moments."""
        self.hyperparameters = hyperparameters
        self._objective: Objective = OBJECTIVES[hyperparameters.objective]
        self._optimizer = make_adamw(self.policy, hyperparameters, hyperparameters.learning_rate)

    def supervised(self, batch: Ragged, learning_rate: float) -> dict[str, float]:
        """Take one step of cross entropy, mean over the target tokens, with the warm start's own AdamW."""
        if self._warm_start is None:
            self._warm_start = make_adamw(self.policy, self.hyperparameters, learning_rate)
        set_learning_rate(self._warm_start, learning_rate)
        total = int(batch.targets.sum())
        loss_sum = 0.0
        for part in self._parts(batch, np.ones(len(batch), np.bool_)):
            loss = -self.policy.score(part, 1.0).logprobs.sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        grad_norm = self._apply(self._warm_start, loss_sum)
        self.supervised_steps += 1
        return {"loss": loss_sum, "grad_norm": grad_norm, "tokens": total}

    def step(self, batch: Rollouts) -> dict[str, float]:
        """Take one training step on `batch`: an update on each of its mini-batches, all of them or none.

        Sequences of zero advantage only count in the divisor; a mini-batch with no others leaves the weights.
        """
        self._require_within_budget(batch)
        parts = mini_batches(self._prepare(batch), self.hyperparameters.updates_per_step)
        learning_rate = learning_rate_at(self.steps, self.hyperparameters)
        set_learning_rate(self._optimizer, learning_rate)
        sums, loss, norms = MismatchSums(), 0.0, []
        with all_or_nothing(self._optimizer, sum(bool(part.teaches.any()) for part in parts)):
            for part in parts:
                if part.teaches.any():
                    part_loss, norm = self._update(part, sums)
                    loss += part_loss * (len(part.sequences) / len(batch.sequences))
                    norms.append(norm)
        self._warm_start = None
        self.steps += 1
        counts = {"tokens": int(batch.sequences.targets.sum()), "trained_tokens": sums.tokens, "updates": len(norms)}
        told = {"loss": loss, "grad_norm": max(norms, default=0.0), "learning_rate": learning_rate}
        return {**told, **sums.metrics(), **counts}

    def _prepare(self, batch: Rollouts) -> Prepared:
        """What the updates need of the batch as it came."""
        relative = advantages(batch.rewards, batch.groups, self.hyperparameters.advantage)
        columns: dict[str, NDArray[Any]] = {
            "behaviour": batch.behaviour,
            "lags": batch.lags,
            "advantages": np.repeat(relative, batch.sequences.target_counts),
        }
        return Prepared(sequences=batch.sequences, groups=batch.groups, columns=columns)

    def _update(self, batch: Prepared, sums: MismatchSums) -> tuple[float, float]:
        """One optimizer update on a batch of its own divisor; return its loss and the gradient's norm."""
        totals = self._totals(batch)
        loss = 0.0
        for part in self._parts(batch.sequences, batch.teaches):
            columns = {name: torch.from_numpy(column[part.numbers]) for name, column in batch.columns.items()}
            loss += self._backward(part, columns, totals, sums)
        return loss, self._apply(self._optimizer, loss)

    @torch.no_grad()
    def logprobs(self, batch: Ragged, temperature: float | None) -> Arrays:
        """Return `logprobs` and `entropy`, float32 [C], of the batch's targets under the current weights."""
        total = int(batch.targets.sum())
        found = {"logprobs": np.empty(total, np.float32), "entropy": np.empty(total, np.float32)}
        for part in self._parts(batch, np.ones(len(batch), np.bool_)):
            scores = self.policy.score(part, temperature or self.hyperparameters.temperature)
            found["logprobs"][part.numbers] = scores.logprobs.numpy()
            found["entropy"][part.numbers] = scores.entropy.numpy()
        return found

    def _parts(self, batch: Ragged, keep: Any) -> Iterator[Microbatch]:
        budget = self.hyperparameters.max_tokens_per_microbatch
        return microbatches(batch, keep, budget, share_prompts=self.policy.shares_prompts)

    def _require_within_budget(self, batch: Rollouts) -> None:
        longest, budget = int(batch.sequences.target_counts.max()), self.hyperparameters.max_new_tokens
        if longest > budget:
            raise BadBatch(
                f"a completion of {longest} tokens is over max_new_tokens = {budget}, "
                "the budget that it was leased under"
            )

    def _totals(self, batch: Prepared) -> Totals:
        return Totals(
            sequences=len(batch.sequences),
            tokens=int(batch.sequences.targets.sum()),
            max_new_tokens=self.hyperparameters.max_new_tokens,
        )

    def _backward(self, part: Microbatch, columns: Mapping[str, Tensor], totals: Totals, sums: MismatchSums) -> float:
        h = self.hyperparameters
        scores = self.policy.score(part, h.temperature)
        terms = Terms(logprobs=scores.logprobs, segments=part.segments, num_sequences=part.num_sequences, **columns)
        bounds = Bounds(clip_low=h.clip_low, clip_high=h.clip_high, weight_cap=h.weight_cap)
        corrected = self._objective(terms, bounds, totals)
        corrected.loss.backward()  # type: ignore[no-untyped-call]
        sums.add(terms, corrected.muted, scores.entropy)
        return corrected.loss.item()

    def _apply(self, optimizer: torch.optim.AdamW, loss: float) -> float:
        """Clip, check, update, forget the gradients; return the norm before clipping."""
        parameters = [parameter for _, parameter in self.policy.parameters]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.hyperparameters.grad_clip, foreach=True).item()
        if not np.isfinite(norm) or not np.isfinite(loss):
            raise Diverged(
                f"the loss ({loss}) or its gradient ({norm}) is not finite; the weights were left as they were: "
                "lower learning_rate, or look for broken behaviour logprobs"
            )
        optimizer.step()
        self.forget_gradients()
        return norm

    def forget_gradients(self) -> None:
        """Free all gradients; also after a failure, so that the next step does not start from half a sum."""
        self.policy.model.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything a checkpoint holds, by name, as views of the tensors in use."""
        state = {f"weights/{name}": parameter.detach() for name, parameter in self.policy.parameters}
        for kind, optimizer in (("adamw", self._optimizer), ("warm_start", self._warm_start)):
            state |= self._moments(kind, optimizer)
        return state | {"rng/torch": torch.get_rng_state()}

    @property
    def required(self) -> set[str]:
        """Names of the tensors that every checkpoint of this policy holds."""
        return {"rng/torch", *(f"weights/{name}" for name, _ in self.policy.parameters)}

    def _moments(self, kind: str, optimizer: torch.optim.AdamW | None) -> dict[str, Tensor]:
        if optimizer is None:
            return {}
        return {
            f"{kind}/{moment}/{name}": optimizer.state[parameter][moment]
            for name, parameter in self.policy.parameters
            if parameter in optimizer.state
            for moment in MOMENTS
        }

    def expected(self, name: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the dtype and shape that a checkpoint's tensor `name` must have, None for a name that does not
        belong.
        """
        if name == "rng/torch":
            return "U8", tuple(torch.get_rng_state().shape)
        kind, _, rest = name.partition("/")
        moment, _, parameter_name = ("", "", rest) if kind == "weights" else rest.partition("/")
        parameter = dict(self.policy.parameters).get(parameter_name)
        if parameter is None or (kind, moment) not in _KNOWN:
            return None
        return "F32", () if moment == "step" else tuple(parameter.shape)

    @torch.no_grad()
    def adopt(self, head: CheckpointHead, tensors: Iterator[tuple[str, Any]]) -> None:
        """Take over a checkpoint's state (numpy arrays, already checked by name, dtype and shape), right after
        `configure`.
        """
        self._warm_start = None
        parameters = dict(self.policy.parameters)
        for name, array in tensors:
            tensor = torch.from_numpy(array)
            kind, _, rest = name.partition("/")
            match kind:
                case "rng":
                    torch.set_rng_state(tensor)
                case "weights":
                    parameters[rest].copy_(tensor)
                case _:
                    moment, _, parameter_name = rest.partition("/")
                    self._optimizer_named(kind).state[parameters[parameter_name]][moment] = tensor
        self.steps, self.supervised_steps = head.steps, head.supervised_steps

    def _optimizer_named(self, kind: str) -> torch.optim.AdamW:
        if kind == "adamw":
            return self._optimizer
        if self._warm_start is None:
            self._warm_start = make_adamw(self.policy, self.hyperparameters, self.hyperparameters.learning_rate)
        return self._warm_start


_KNOWN = {("weights", ""), *((kind, moment) for kind in ("adamw", "warm_start") for moment in MOMENTS)}
