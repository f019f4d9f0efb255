"""Hold the policy: a causal language model with float32 weights that scores sequences, whole or cut over ranks.

Invariants:

- It is deterministic.
- It is the same model on any number of ranks: names, shapes and order of its tensors do not depend on them.
- Only targets are scored, and the (targets, vocabulary) logits are never all in memory when they are many.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from learner.artifacts.model_directory import BadModel, ModelDirectory, one_line, read_directory
from learner.trainer_api.requests import Lora
from learner.training.batches.packing import MAX_SHARED_WIDTH, Layout, Microbatch, dealt_microbatches, microbatches
from learner.training.batches.sequences import Ragged
from learner.training.distributed.ranks import Ranks
from learner.training.distributed.sharding import layers_of, shard
from learner.training.model.causality_check import measure_shift, share
from learner.training.model.loading import (
    NO_MODEL,
    body_of,
    caps_logits,
    first_position,
    give_memory,
    load_weights,
    outline,
    positions_of,
    prepare,
    windows_of,
)
from learner.training.model.lora import Attached, attach, identity_of, initialise
from learner.training.model.router_replay import RouterReplay, attach_replay
from learner.training.model.tensor_mapping import Part, correspond
from learner.training.model.varlen_attention import NAME
from protocol.experts import Routing

ENTROPY_BLOCK = 1 << 22
"""Number of logits whose entropy is computed together: 16 MiB of temporaries, also for a vocabulary of 150,000."""

LOGITS_BLOCK = 1 << 27
"""Number of logits computed together, half a GiB in float32. More targets are scored in several blocks, each computed
again in the backward pass. Otherwise 16,000 positions of a vocabulary of 150,000 would take 10 GiB, and as much for
their gradient."""

SAME_LOGITS = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Largest difference, as a fraction of the largest logit, between two ways to the same logits. Rounding makes about
1e-6 in float32 and 1e-2 in bfloat16; a mask or a scale that was ignored makes far more.
"""

REGROUPED = 4
"""Logits of a mixture of experts may move this many times as far in one layout as in another when tokens that they do
not depend on change. Both are rounding, which varies that much over a few tokens."""

TRIED = 12
"""Tokens of a sequence in the tests of a new model: enough to fill a convolution and a block of heads."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of N targets: `logprobs` [N] = log_softmax(logits / T) of the target, differentiable; `entropy` [N] in
    nats, detached.
    """

    logprobs: Tensor
    entropy: Tensor


class Forward(nn.Module):
    """The forward pass. It is the only module that is called from outside, so that weights that FSDP gathers around a
    call are there for all of it.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.first_position = first_position(model)
        self.head_applies_alone = False
        self.scored: Scored = _scored
        self.replay: RouterReplay | None = None

    def forward(self, batch: Microbatch, temperature: float | None) -> tuple[Tensor, Tensor]:
        """Return log probabilities and entropies of the batch's targets. With a temperature of None return all logits
        of its predictors, twice.
        """
        if self.replay is not None:
            self.replay.force(batch.routes)
        inputs: dict[str, Any] = {"input_ids": batch.inputs, "use_cache": False}
        if batch.positions is not None:
            inputs["position_ids"] = batch.positions + self.first_position
        elif self.first_position:  # otherwise the model counts by itself, and skips tokens that look like padding
            columns = torch.arange(batch.inputs.shape[1], device=batch.inputs.device)
            inputs["position_ids"] = (columns + self.first_position).expand(batch.inputs.shape)
        if batch.visible is not None:
            inputs["attention_mask"] = batch.visible
        elif batch.ends is not None:
            lengths = {"cu_seq_lens_q": batch.ends, "cu_seq_lens_k": batch.ends}
            inputs |= {"max_length_q": batch.longest, "max_length_k": batch.longest, **lengths}
        if not self.head_applies_alone:
            logits = _rows(self.model(**inputs).logits, batch.predictors)
            if temperature is None:
                return logits.float(), logits.float()
            return self.scored(logits, batch.tokens, temperature)
        # The head is the widest layer by far, so it gets only the predictors, no prompts and no padding.
        hidden = _rows(body_of(self.model)(**inputs).last_hidden_state, batch.predictors)
        head = self.model.get_output_embeddings()
        if temperature is None:
            logits = head(hidden).float()
            return logits, logits
        return _scored_by_blocks(head, self.scored, hidden, batch.tokens, temperature)


Scored = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


class Policy:
    """A loaded model, ready to score sequences and to be written out again. Made by `load_policy`."""

    def __init__(
        self,
        forward: Forward,
        directory: ModelDirectory,
        parts: Sequence[Part],
        ranks: Ranks,
        attached: Attached | None,
    ) -> None:
        self.ranks = ranks
        self.attached = attached
        self.directory = directory
        self.parts = parts
        self.model = forward.model
        # Only once: while FSDP has gathered weights, a module shows those instead.
        self.parameters: list[tuple[str, nn.Parameter]] = [
            (name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad
        ]
        self.vocab_size = int(self.model.get_input_embeddings().weight.shape[0])  # until the first logits are seen
        self.positions = positions_of(self.model)
        self._tensors = _tensors(self.model, attached)
        self._forward = forward
        self._has_experts = any("expert" in name for name, _ in self.model.named_parameters())
        self._require_causal()
        forward.head_applies_alone = self._head_applies_alone()
        shares_prompts = self._heeds_masks()
        packs = ranks.device.type == "cuda" and ranks.compute_dtype == torch.bfloat16 and self.lay_end_to_end()
        self.layout = Layout.END_TO_END if packs else Layout.GROUPS if shares_prompts else Layout.ROWS

    @property
    def num_parameters(self) -> int:
        """Number of trained numbers, tied ones counted once."""
        return sum(parameter.numel() for _, parameter in self.parameters)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of everything that defines the model except its weights: config, tensor names, shapes."""
        tensors = sorted((name, list(tensor.shape)) for name, tensor in self.tensors())
        meaning: list[object] = [self.directory.meaning, tensors]
        if self.attached is not None:
            # Checkpoints hold the adapter alone, so its base model matters.
            trained = sorted((name, list(parameter.shape)) for name, parameter in self.parameters)
            meaning += [self.attached.lora.alpha, trained, identity_of(self.directory)]
        return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()

    @property
    def exported(self) -> Sequence[tuple[str, Tensor]]:
        """The tensors that an export writes from memory: the adapter's if only one is trained, else all."""
        return self.parameters if self.attached is not None else list(self.tensors())

    def score(self, batch: Microbatch, temperature: float) -> Scores:
        """Return log probabilities and entropies of the batch's N targets under the current weights at `temperature`.

        All ranks must score equally many microbatches; see `idle`.
        """
        logprobs, entropy = self._forward(batch.to(self.ranks.device), temperature)
        return Scores(logprobs=logprobs, entropy=entropy)

    @property
    def routing(self) -> Routing | None:
        """The model's routing if experts are replayed, else None."""
        return None if self._forward.replay is None else self._forward.replay.routing

    def replayed(self) -> tuple[int, int]:
        """Return how many choices of the last microbatch were replayed, and how many were given; see `RouterReplay`."""
        return (0, 0) if self._forward.replay is None else self._forward.replay.counted()

    def idle(self) -> None:
        """Take part in a pass for which this rank has no sequences, because the others need its slices."""
        logprobs, _ = self._forward(_probe(1, 2, self.vocab_size, self.layout).to(self.ranks.device), 1.0)
        if logprobs.requires_grad:
            (logprobs.sum() * 0.0).backward()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's tensors by its own names, without adapters. Tied ones come once, under their first name."""
        seen: set[int] = set()
        for name, tensor in self._tensors.items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    @property
    def by_name(self) -> Mapping[str, Tensor]:
        """The model's tensors by all of its own names, without adapters. Tied ones are under each of their names."""
        return self._tensors

    @torch.no_grad()
    def _require_causal(self) -> None:
        """Raise BadModel if logits are not a function of the earlier tokens in their own sequence, tested on two
        sequences. Nodes have no later tokens and other neighbours, so they would generate from another distribution
        than the trained one.
        """
        probe = _probe(2, min(TRIED, self.positions or TRIED), self.vocab_size)
        length = probe.inputs.shape[1]
        logits = self._first_logits(probe)
        mine, last = torch.arange(length), torch.tensor([length - 1])
        tolerance = SAME_LOGITS[self.ranks.compute_dtype if self._has_experts else torch.float32]
        self._regrouped = self._moves(probe, mine + length, mine)
        if not self._regrouped <= tolerance:
            raise self._unfit("its logits for a sequence depend on the other sequences in its batch")
        if not self._moves(probe, last, mine[:-1]) <= tolerance:
            later = "it is no causal language model: a later token changes its logits for earlier ones"
            raise self._unfit(later + _masked(self.model))
        shorter = self._logits(_probe(1, length // 2 + 1, self.vocab_size))
        if not self._same(shorter, logits[: len(shorter)]):
            raise self._unfit("its logits for a token depend on how many tokens follow")

    def _first_logits(self, probe: Microbatch) -> Tensor:
        """Return the logits (N, V) of the first batch. Raises BadModel if there are none, or they are no numbers."""
        try:
            logits = self._logits(probe)
        except torch.OutOfMemoryError:
            raise
        except NO_MODEL as error:
            raise self._unfit(f"transformers fails on {probe.inputs.numel()} tokens: {one_line(error)}") from error
        if logits.isnan().any():
            raise self._unfit("its logits are not numbers, though its weights are")
        columns = logits.shape[1]
        if columns > self.vocab_size:
            raise self._unfit(f"its head has {columns} outputs, but only {self.vocab_size} tokens have an embedding")
        self.vocab_size = columns  # the other tokens can be read, and are never generated
        return logits

    def _unfit(self, why: str) -> BadModel:
        return BadModel(f"{self.directory.path} cannot be trained here ({type(self.model).__name__}): {why}")

    @torch.no_grad()
    def _heeds_masks(self) -> bool:
        """Return whether siblings may share a row: score two of them both ways, and test that neither sees the other.

        Architectures with windows, recurrent layers or positions of their own may ignore a mask that hides siblings;
        they get a row for each sequence. So do those with a window that is narrower than a row: a mask given from
        outside replaces the window, which two short sequences would not show.
        """
        if any(width < MAX_SHARED_WIDTH for width in windows_of(self.model.config)):
            return False
        tokens = np.arange(14, dtype=np.int64) % self.vocab_size
        tokens[7:10] = tokens[:3]  # two sequences of 7, with the same prompt of 3
        pair = Ragged(tokens=tokens, lengths=np.array([7, 7]), targets=np.tile(np.arange(7) >= 3, 2))
        together, apart = (
            next(microbatches(pair, np.ones(2, np.bool_), 64, share_prompts=share)) for share in (True, False)
        )
        expected = self._logits(apart)
        own = [together.predictors[together.segments == one][1:] for one in (0, 1)]  # without the prompt's last one
        try:
            return self._same(self._logits(together), expected) and self._are_alone(together, own)
        except (TypeError, ValueError, AssertionError, RuntimeError):
            return False  # it takes no masks of this shape, like architectures whose positions are in the mask

    @torch.no_grad()
    def lay_end_to_end(self) -> bool:
        """Let sequences lie end to end if the model then gives the same logits and no sequence sees another. Return
        whether it does.

        On a CPU rows of about equal width waste a twentieth of the positions, and siblings that share a prompt save
        more than that. So this is for GPUs, whose kernels take no masks.
        """
        before = self.model.config._attn_implementation
        if before != "sdpa":
            return False
        tokens = np.arange(16, dtype=np.int64) % self.vocab_size
        pair = Ragged(tokens=tokens, lengths=np.array([5, 11]), targets=np.append(np.arange(5) > 1, np.arange(11) > 2))
        together, apart = (
            next(dealt_microbatches(pair, np.ones(2, np.bool_), 64, layout=layout, rank=0, ranks=1))
            for layout in (Layout.END_TO_END, Layout.ROWS)
        )
        assert together is not None
        assert together.ends is not None
        assert apart is not None
        order = [torch.from_numpy(np.argsort(part.numbers)) for part in (together, apart)]
        expected = self._logits(apart)[order[1]]
        own = torch.split(torch.arange(int(together.ends[-1])), together.ends.diff().tolist())
        self.model.set_attn_implementation(NAME)
        try:
            fits = self._same(self._logits(together)[order[0]], expected) and self._are_alone(together, own)
        except (TypeError, AssertionError, RuntimeError):
            # The architecture does not pass on where sequences begin, or the GPU is too old for the kernel.
            fits = False
        if fits:
            self.layout = Layout.END_TO_END
        else:
            self.model.set_attn_implementation(before)
        return fits

    def _are_alone(self, pair: Microbatch, own: Sequence[Tensor]) -> bool:
        """Return whether each of the two sequences of `pair` keeps its logits when the other's tokens, at its `own`
        positions, change. Equality of the two layouts' logits does not show that: in bfloat16 they differ by more.
        """
        tolerance = SAME_LOGITS[torch.float32]
        if self._has_experts:  # these then group other tokens together, as they do if rows are apart
            tolerance = max(tolerance, REGROUPED * self._regrouped)
        watched = [torch.nonzero(pair.segments == one)[:, 0] for one in (0, 1)]
        return all(self._moves(pair, own[one], watched[1 - one]) <= tolerance for one in (0, 1))

    def _moves(self, batch: Microbatch, changed: Tensor, watched: Tensor) -> float:
        found = measure_shift(self._logits, batch, changed, watched, self.vocab_size)
        return self.ranks.largest([found if found == found else math.inf])[0]

    @torch.no_grad()
    def _head_applies_alone(self) -> bool:
        """Return whether logits are the head applied to the hidden states, tested on eight tokens.

        Some architectures scale or cap logits after the head; these use the slow path, which computes logits of every
        position. A cap is not tested: it hardly shows on small logits, and changes the large ones.
        """
        if self.model.get_output_embeddings() is None or caps_logits(self.model.config):
            return False
        logits = self._logits(_probe(2, 5, self.vocab_size))
        self._forward.head_applies_alone = True
        try:
            found = self._logits(_probe(2, 5, self.vocab_size))
        except (AttributeError, TypeError, RuntimeError):
            return False  # it returns no hidden states, or its head takes other inputs
        return found.shape == logits.shape and self._same(found, logits)

    def _logits(self, batch: Microbatch) -> Tensor:
        logits: Tensor = self._forward(batch.to(self.ranks.device), None)[0]
        return logits

    def _same(self, logits: Tensor, expected: Tensor) -> bool:
        found = share(logits, expected)
        return self.ranks.largest([found if found == found else math.inf])[0] <= SAME_LOGITS[self.ranks.compute_dtype]


def load_policy(
    directory: Path,
    *,
    gradient_checkpointing: bool = False,
    ranks: Ranks | None = None,
    lora: Lora | None = None,
    seed: int = 0,
    compile: bool = False,
    chat_template: str | None = None,
    stop_ids: Sequence[int] = (),
    router_replay: bool = False,
) -> Policy:
    """Load a causal LM directory (config.json and safetensors, sharded or not) with float32 weights. Raises BadModel.

    `chat_template` and `stop_ids` replace the directory's own in exports, see `Load`. With `router_replay` the policy
    uses the experts of a microbatch. Every rank reads the directory; call `ranks.place` first.
    """
    ranks = ranks or Ranks()
    with ranks.agreeing():
        found = read_directory(directory).spoken_to(chat_template, stop_ids)
        model = outline(found)
        parts = correspond(model, found)
        attached = None if lora is None else attach(model, lora)
    forward = Forward(model)
    if ranks.mesh is None:
        give_memory(model)
    else:
        shard(forward, model, ranks)
    with ranks.agreeing():
        load_weights(model, parts, _tensors(model, attached), found)
    if attached is not None:
        initialise(model, seed)
    if router_replay:
        forward.replay = attach_replay(model)
    prepare(model, gradient_checkpointing=gradient_checkpointing)
    policy = Policy(forward, found, parts, ranks, attached)
    with ranks.agreeing():
        _ = policy.fingerprint  # an adapter's reads the files of its base model
    if compile:  # after the tests on a few tokens, which need no compilation
        for layer in layers_of(model):
            # The forward and not the module, so that names stay, and FSDP's work around a layer is not traced.
            layer.forward = torch.compile(layer.forward)
        forward.scored = torch.compile(_scored, dynamic=True)
    return policy


def _masked(model: Any) -> str:
    """Return what a config says that may explain why later tokens count."""
    said = ", ".join(map(str, model.config.architectures or ()))
    named = f"; its config.json names {said}" if said else ""
    if getattr(model.config, "is_decoder", True):
        return named
    return f"{named}, and is_decoder = false: set that to true only if the weights were trained to generate"


def _tensors(model: Any, attached: Attached | None) -> dict[str, Tensor]:
    """Return the model's own tensors by its own names, even if adapters have renamed them."""
    found: dict[str, Tensor] = model.state_dict(keep_vars=True)
    return found if attached is None else {name: found[now] for name, now in attached.renamed.items()}


def _probe(rows: int, length: int, vocab_size: int, layout: Layout = Layout.ROWS) -> Microbatch:
    """Return a few tokens, to test how a model treats them."""
    tokens = np.arange(rows * length, dtype=np.int64) % vocab_size
    targets = np.tile(np.arange(length) >= 1, rows)
    batch = Ragged(tokens=tokens, lengths=np.full(rows, length), targets=targets)
    keep = np.ones(rows, np.bool_)
    part = next(dealt_microbatches(batch, keep, rows * length, layout=layout, rank=0, ranks=1))
    assert part is not None, "a single rank is never idle"
    return part


def _scored(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return log probabilities of `tokens` [N] and entropies of `logits` (N, V) at `temperature`, in float32."""
    logits = logits.float()  # here, because compiled code then never stores the wide ones
    if temperature != 1.0:
        logits = logits / temperature
    # gather - logsumexp: the (N, V) log_softmax is never stored, not even for the backward pass.
    norms = torch.logsumexp(logits, dim=-1)
    chosen = logits.gather(1, tokens[:, None]).squeeze(1)
    return chosen - norms, _entropy(logits.detach(), norms.detach())


def _scored_by_blocks(
    head: Any, scored: Scored, hidden: Tensor, tokens: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    def score(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        return scored(head(hidden), tokens, temperature)

    rows = max(1, LOGITS_BLOCK // head.weight.shape[0])
    if len(tokens) <= rows:
        return score(hidden, tokens)
    blocks = [
        checkpoint(score, some, chosen, use_reentrant=False)
        for some, chosen in zip(torch.split(hidden, rows), torch.split(tokens, rows), strict=True)
    ]
    logprobs, entropies = zip(*blocks, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return rows `index` [N] of (R, L, D) seen as (R * L, D). It is an embedding, because the gradient of index_select
    is index_add, which adds row by row on a CPU: slow.
    """
    return torch.nn.functional.embedding(index, values.flatten(0, 1))


@torch.no_grad()
def _entropy(logits: Tensor, norms: Tensor) -> Tensor:
    """Return H = logsumexp(l) - sum(p l), [N], for logits (N, V) with their logsumexp [N]."""
    if torch.compiler.is_compiling():  # one kernel, without temporaries
        return norms - (torch.exp(logits - norms[:, None]) * logits).sum(dim=-1)
    rows = max(1, ENTROPY_BLOCK // logits.shape[1])
    parts = [
        norm - (torch.exp(part - norm[:, None]) * part).sum(dim=-1)
        for part, norm in zip(torch.split(logits, rows), torch.split(norms, rows), strict=True)
    ]
    return torch.cat(parts)
