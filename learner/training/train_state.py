"""Train a loaded policy: its weights, its optimizers, its counters.

This module knows neither pipes nor files.

Invariants:

- A step that fails leaves weights and moments as they were, to the bit.
- A step whose later update diverges ends there and keeps the updates before it.
- Everything that training changes is among `tensors` and counters, so training resumes from a checkpoint of these as if
  nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from learner.trainer_api.presets import BORNE, Borne, recipe_of
from learner.trainer_api.requests import ExportDtype, Hyperparameters
from learner.training.batch_preparation import Columns, prepare, with_advantage
from learner.training.batches.packing import Microbatch, dealt_microbatches, mini_batches
from learner.training.batches.sequences import Flags, Floats, Ints, Prepared, Ragged, Rollouts, starts_of
from learner.training.checkpoint import Checkpoint
from learner.training.distributed.sharding import whole
from learner.training.model.policy import Policy
from learner.training.objective.loss import objective_of
from learner.training.objective.objective_inputs import Terms, Totals
from learner.training.objective.statistics import Statistics
from learner.training.optimizer import MOMENTS, learning_rate_at, make_adamw, set_learning_rate
from learner.training.reference_policy import Reference
from learner.training.value_head import Critic, shapes_of
from protocol.core.pipe import Arrays


class Diverged(ArithmeticError):
    """A loss or a gradient is not finite. The weights were not changed."""

    kind = "diverged"


@dataclass(kw_only=True)
class _Taken:
    """The outcome of a step's updates: their loss, the norms of their gradients, and whether an update diverged.

    `apart` float32 [T]: distance of each target's log probability from its behaviour log probability, in nats, for the
    sequences that are `trained` [B]. `choices`: the number of choices of experts that were replayed, and of all that
    were given.
    """

    statistics: Statistics
    apart: Floats
    trained: Flags
    loss: float = 0.0
    choices: tuple[int, int] = (0, 0)
    norms: list[float] = field(default_factory=list)
    diverged: bool = False


class Training:
    """A loaded policy with its optimizers: everything that training changes, and everything that a checkpoint holds.

    `steps` counts training steps. The warm start has its own optimizer, dropped at the first training step.
    `before_update` is called before weights change. Every rank makes the same calls, with the same batches.
    """

    def __init__(self, policy: Policy, hyperparameters: Hyperparameters) -> None:
        self.policy = policy
        self.steps = 0
        self.supervised_steps = 0
        self.before_update: Callable[[], None] = lambda: None
        self._warm_start: torch.optim.AdamW | None = None
        self._reference: Reference | None = None
        self._critic: Critic | None = None
        self._choices = [0, 0]
        self.configure(hyperparameters)

    def configure(self, hyperparameters: Hyperparameters) -> None:
        """Put `hyperparameters` in force and reset the moments. Raises UnknownName and NothingToLearn."""
        self.hyperparameters = hyperparameters
        self._recipe = recipe_of(hyperparameters)
        self._borne = BORNE.get(self._recipe.correction, Borne())
        self._objective = objective_of(self._recipe)
        self._optimizer = make_adamw(self.policy, hyperparameters, hyperparameters.learning_rate)
        if self._recipe.needs_reference and self._reference is None:
            self._reference = Reference([parameter for _, parameter in self.policy.parameters])
        if self._critic is not None:
            self._critic.close()
        self._critic = Critic(self.policy.model, hyperparameters) if self._recipe.needs_critic else None

    def step_supervised(self, batch: Ragged, learning_rate: float) -> dict[str, float]:
        """Take one step of cross entropy, mean over the target tokens, with the warm start's own AdamW."""
        if self._warm_start is None:
            self._warm_start = make_adamw(self.policy, self.hyperparameters, learning_rate)
        set_learning_rate(self._warm_start, learning_rate)
        total = int(batch.targets.sum())
        loss_sum = 0.0
        for part in self.parts(batch, np.ones(len(batch), np.bool_)):
            loss = -self.policy.score(part, 1.0).logprobs.sum() / total
            loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += loss.item()
        [loss_sum] = self.policy.ranks.total([loss_sum])
        grad_norm = self._apply(self._warm_start, loss_sum)
        self.supervised_steps += 1
        return {"loss": loss_sum, "grad_norm": grad_norm, "tokens": total}

    def set_peak(self, learning_rate: float) -> None:
        """Give the schedule another peak, from the next training step on."""
        self.hyperparameters = msgspec.structs.replace(self.hyperparameters, learning_rate=learning_rate)

    def step(self, batch: Rollouts) -> tuple[dict[str, Any], Arrays]:
        """Take one training step on `batch`: an update on each of its mini-batches, in order, until one diverges.

        Return the metrics of the step, and `apart` float32 [B]: for each sequence that was trained on, the mean of
        |log pi - log mu| over its targets, in nats; NaN for the others. Sequences with advantage zero only count in the
        divisor. Sequences that are not `trained` count among sequences and groups, but their tokens do not count. A
        mini-batch without any sequence to train on leaves the weights unchanged. Raises Diverged when the first update
        does, BadBatch when the objective cannot learn from such a batch.
        """
        if self._recipe.needs_reference:
            self.before_update()  # the reference's weights take the place of those that a writing may still read
        prepared, found = prepare(batch, self._recipe, self.hyperparameters, self._scored, self._reference)
        learning_rate = learning_rate_at(self.steps, self.hyperparameters)
        set_learning_rate(self._optimizer, learning_rate)
        fresh = batch.lags[~prepared.columns["offline"]]
        taken = self._updates(prepared, int(fresh.max(initial=0)))
        self._warm_start = None
        self.steps += 1
        told = {
            "loss": taken.loss,
            "grad_norm": max(taken.norms, default=0.0),
            "learning_rate": learning_rate,
            **taken.statistics.metrics(),
            **found,
            "mean_lag": float(fresh.mean()) if len(fresh) else 0.0,
            "tokens": int(batch.sequences.targets.sum()),
            "trained_tokens": taken.statistics.tokens,
            "with_advantage": with_advantage(batch, self._recipe),
            "updates": len(taken.norms),
            "diverged": int(taken.diverged),
            "borne_kl": self._borne.kl,
            "borne_ess": self._borne.ess,
            "by_lag": taken.statistics.by_lag(),
            **({"replayed": taken.choices[0] / taken.choices[1]} if taken.choices[1] else {}),
        }
        return told, {"apart": _by_sequence(taken, batch.sequences.target_counts)}

    def _updates(self, batch: Prepared, max_lag: int) -> _Taken:
        """Update on each mini-batch that teaches something. Raises Diverged when the first one does."""
        taken = _Taken(
            statistics=Statistics(max_lag),
            apart=np.zeros(int(batch.sequences.targets.sum()), np.float32),
            trained=np.zeros(len(batch.sequences), np.bool_),
        )
        self._choices = [0, 0]
        sequences = targets = 0
        for part in mini_batches(batch, self.hyperparameters.updates_per_step):
            keep = part.trained if self._recipe.teaches_always else part.teaches
            apart = taken.apart[targets : targets + int(part.sequences.targets.sum())]
            trained = taken.trained[sequences : sequences + len(part.sequences)]
            sequences, targets = sequences + len(trained), targets + len(apart)
            if not keep.any():
                continue
            statistics = Statistics(max_lag)
            try:
                loss, norm = self._update(part, keep, statistics, apart)
            except Diverged:
                if not taken.norms:
                    raise
                # The updates taken stay: a copy to return to would cost 12 bytes a parameter in every step.
                self.forget_gradients()
                taken.diverged = True
                break
            taken.loss += loss * (len(part.sequences) / len(batch.sequences))
            taken.norms.append(norm)
            taken.statistics.merge(statistics)
            trained[:] = keep
        taken.statistics.combine(self.policy.ranks)
        taken.apart = self.policy.ranks.combine(taken.apart)
        if self.policy.routing is not None:
            replayed, given = self.policy.ranks.total([float(count) for count in self._choices])
            taken.choices = round(replayed), round(given)
        return taken

    def _update(self, batch: Prepared, keep: Flags, statistics: Statistics, apart: Floats) -> tuple[float, float]:
        """Take one optimizer update on a batch with its own divisor. Return its loss and the gradient's norm, and fill
        in this rank's part of `apart` (see `_Taken`)."""
        totals = self._totals(batch)
        loss = 0.0
        for part in self.parts(batch.sequences, keep):
            columns = {
                name: torch.from_numpy(column[part.numbers]).to(self.policy.ranks.device)
                for name, column in batch.columns.items()
            }
            loss += self._backward(part, columns, totals, statistics, apart)
        [loss] = self.policy.ranks.total([loss])
        return loss, self._apply(self._optimizer, loss)

    def logprobs(self, batch: Ragged, temperature: float | None, weights: ExportDtype | None = None) -> Arrays:
        """Return `logprobs` and `entropy`, float32 [C], of the batch's targets under the current weights, or under
        the weights of an export in the dtype `weights`."""
        with self._as_exported(weights):
            found = self._scored(batch, np.ones(len(batch), np.bool_), temperature)
        return {name: found[name] for name in ("logprobs", "entropy")}

    @contextmanager
    def _as_exported(self, dtype: ExportDtype | None) -> Iterator[None]:
        """Round the weights for the duration of the `with` block as an export in `dtype` does, then restore them to the
        bit. Meanwhile a copy takes 4 bytes a parameter. There are no gradients at that time, which take as much.
        """
        if dtype is None or dtype == "float32":
            yield
            return
        self.before_update()  # a checkpoint may be reading them
        exported = Reference([tensor.detach() for _, tensor in self.policy.exported if tensor.is_floating_point()])
        exported.round(getattr(torch, dtype))
        with exported.in_force():
            yield

    @torch.no_grad()
    def _scored(self, batch: Ragged, keep: Flags, temperature: float | None = None) -> Columns:
        """Return `logprobs`, `entropy` and, with a critic, `values`, float32 [T], of the sequences to keep; else 0."""
        names = ("logprobs", "entropy", *(["values"] if self._critic else []))
        found: Columns = {name: np.zeros(int(batch.targets.sum()), np.float32) for name in names}
        for part in self.parts(batch, keep):
            scores = self.policy.score(part, temperature or self.hyperparameters.temperature)
            found["logprobs"][part.numbers] = scores.logprobs.cpu().numpy()
            found["entropy"][part.numbers] = scores.entropy.cpu().numpy()
            if self._critic:
                found["values"][part.numbers] = self._critic.values(part).cpu().numpy()
        return {name: self.policy.ranks.combine(values) for name, values in found.items()}

    def parts(self, batch: Ragged, keep: Any) -> Iterator[Microbatch]:
        """Yield this rank's microbatches, on its device. The caller must finish each before it asks for the next."""
        budget, ranks = self.hyperparameters.max_tokens_per_microbatch, self.policy.ranks
        layout = self.policy.layout
        for part in dealt_microbatches(batch, keep, budget, layout=layout, rank=ranks.number, ranks=ranks.count):
            if part is None:
                self.policy.idle()
            else:
                yield part.to(ranks.device)

    def _totals(self, batch: Prepared) -> Totals:
        return Totals(
            sequences=len(batch.sequences),
            groups=len(batch.groups),
            tokens=batch.trained_tokens,
            max_new_tokens=self.hyperparameters.max_new_tokens,
        )

    def _backward(
        self, part: Microbatch, columns: Mapping[str, Tensor], totals: Totals, statistics: Statistics, apart: Floats
    ) -> float:
        scores = self.policy.score(part, self.hyperparameters.temperature)
        terms = Terms(
            logprobs=scores.logprobs,
            segments=part.segments,
            num_sequences=part.num_sequences,
            values=self._critic.values(part) if self._critic else None,
            **columns,
        )
        for place, count in enumerate(self.policy.replayed()):  # before the backward pass, which may recompute it
            self._choices[place] += count
        corrected = self._objective(terms, totals)
        corrected.loss.backward()  # type: ignore[no-untyped-call]
        statistics.add(terms, corrected, scores.entropy)
        apart[part.numbers] = (scores.logprobs.detach() - terms.behaviour).abs().cpu().numpy()
        return corrected.loss.item()

    def _apply(self, optimizer: torch.optim.AdamW, loss: float) -> float:
        """Clip, check, update, and clear the gradients. Return the norm before clipping."""
        h = self.hyperparameters
        parameters = [parameter for _, parameter in self.policy.parameters]
        norm = whole(torch.nn.utils.clip_grad_norm_(parameters, h.grad_clip, foreach=True)).item()
        critic = self._critic if optimizer is self._optimizer else None
        of_critic = critic.clip(h.grad_clip, self.policy.ranks) if critic else 0.0
        if not np.isfinite([norm, of_critic, loss]).all():
            raise Diverged(
                f"the loss ({loss}) or its gradient ({norm}) is not finite; the weights were left as they were: "
                "lower learning_rate, or look for broken behaviour log probabilities"
            )
        self.before_update()
        optimizer.step()
        if critic:
            critic.update(optimizer.param_groups[0]["lr"] / h.learning_rate)
        self.forget_gradients()
        return norm

    def forget_gradients(self) -> None:
        """Free all gradients, also after a failure, so that the next step does not begin with half a sum."""
        self.policy.model.zero_grad(set_to_none=True)
        if self._critic:
            self._critic.forget_gradients()

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that a checkpoint holds, by name: this rank's slices of the tensors in use, and its own
        random state.
        """
        state = {f"weights/{name}": parameter.detach() for name, parameter in self.policy.parameters}
        for kind, optimizer in (("adamw", self._optimizer), ("warm_start", self._warm_start)):
            state |= self._moments(kind, optimizer)
        if self._critic:
            state |= self._critic.tensors()
        return state | self._random_state()

    @property
    def required(self) -> set[str]:
        """Names of the tensors that every checkpoint of this policy holds."""
        return {f"weights/{name}" for name, _ in self.policy.parameters}

    def _random_state(self) -> dict[str, Tensor]:
        number, device = self.policy.ranks.number, self.policy.ranks.device
        state = {f"rng/cpu/{number}": torch.get_rng_state()}
        return state if device.type == "cpu" else state | {f"rng/cuda/{number}": torch.cuda.get_rng_state(device)}

    def _moments(self, kind: str, optimizer: torch.optim.AdamW | None) -> dict[str, Tensor]:
        if optimizer is None:
            return {}
        return {
            f"{kind}/{moment}/{name}": optimizer.state[parameter][moment]
            for name, parameter in self.policy.parameters
            if parameter in optimizer.state
            for moment in MOMENTS
        }

    def expected_tensor(self, name: str) -> tuple[torch.dtype, tuple[int, ...]] | None:
        """Return the dtype and shape that a checkpoint's tensor `name` must have; None if no such tensor belongs
        there.
        """
        kind, _, rest = name.partition("/")
        if kind == "rng":
            known = self._random_state().get(f"rng/{rest.partition('/')[0]}/{self.policy.ranks.number}")
            return torch.uint8, tuple(known.shape) if known is not None else _CUDA_STATE
        if kind == "critic":
            shape = shapes_of(self.policy.model).get(name)  # even without a critic: then the tensor is ignored
            return None if shape is None else (torch.float32, shape)
        moment, _, parameter_name = ("", "", rest) if kind == "weights" else rest.partition("/")
        parameter = dict(self.policy.parameters).get(parameter_name)
        if parameter is None or (kind, moment) not in _KNOWN:
            return None
        return torch.float32, () if moment == "step" else tuple(parameter.shape)

    @torch.no_grad()
    def adopt(self, checkpoint: Checkpoint) -> None:
        """Load a checkpoint that was checked, right after `configure`. Raises OSError."""
        self._warm_start = None
        state = {f"weights/{name}": parameter.detach() for name, parameter in self.policy.parameters}
        for kind in ("adamw", "warm_start"):
            state |= self._empty_moments(kind, checkpoint.names)
        others = self._random_state() | (self._critic.tensors() if self._critic else {})
        state |= {name: tensor for name, tensor in others.items() if name in checkpoint.names}
        checkpoint.load(state, self.policy.ranks)
        for name, tensor in state.items():
            if name.startswith("rng/cpu/"):
                torch.set_rng_state(tensor)
            elif name.startswith("rng/cuda/"):
                torch.cuda.set_rng_state(tensor, self.policy.ranks.device)
        self.steps, self.supervised_steps = checkpoint.head.steps, checkpoint.head.supervised_steps

    def _empty_moments(self, kind: str, names: Set[str]) -> dict[str, Tensor]:
        """Allocate the moments that a checkpoint has, and return them by name."""
        made: dict[str, Tensor] = {}
        for name, parameter in self.policy.parameters:
            if f"{kind}/step/{name}" in names:
                state = self._optimizer_named(kind).state[parameter]
                for moment in MOMENTS:
                    scalar = moment == "step"
                    device = parameter.device
                    state[moment] = torch.zeros((), device=device) if scalar else torch.zeros_like(parameter)
                    made[f"{kind}/{moment}/{name}"] = state[moment]
        return made

    def _optimizer_named(self, kind: str) -> torch.optim.AdamW:
        if kind == "adamw":
            return self._optimizer
        if self._warm_start is None:
            self._warm_start = make_adamw(self.policy, self.hyperparameters, self.hyperparameters.learning_rate)
        return self._warm_start


def _by_sequence(taken: _Taken, counts: Ints) -> Floats:
    """Return the mean of `apart` over the targets of each sequence that was trained on, [B]; NaN for the others."""
    means = np.add.reduceat(taken.apart.astype(np.float64), starts_of(counts)) / counts
    return np.where(taken.trained, means, np.nan).astype(np.float32)


_CUDA_STATE = (16,)
"""Shape of a GPU's random state, which a checkpoint may hold although this rank computes on a CPU."""

_KNOWN = {("weights", ""), *((kind, moment) for kind in ("adamw", "warm_start") for moment in MOMENTS)}
