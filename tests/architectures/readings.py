"""Compute the log probabilities of engine, audit and trainer for one completion, in one process without a swarm."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from learner.training.batches.packing import dealt_microbatches
from learner.training.batches.sequences import Ragged
from learner.training.model.policy import Policy
from node.engine.common_worker.errors import Refused
from node.engine.transformers_worker.policy import Settings
from node.engine.transformers_worker.server import Server
from protocol.core.pipe import Arrays, Header, read_frame

Logprobs = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Said:
    """Completions with their prompts, seeds 0, 1, 2, ...; `logprobs` [T] of all their tokens by the engine."""

    prompts: Sequence[Sequence[int]]
    completions: Sequence[Sequence[int]]
    logprobs: Logprobs


class Hand:
    """An intake that is filled by hand."""

    def __init__(self) -> None:
        self.generates: list[tuple[Header, Arrays]] = []

    def take_generates(self) -> list[tuple[Header, Arrays]]:
        taken, self.generates = self.generates, []
        return taken

    def take_cancelled(self) -> set[int]:
        return set()

    def take_interrupts(self) -> list[int]:
        return []


class Engine:
    """The transformers worker's own server, asked without a pipe."""

    def __init__(self) -> None:
        self._intake, self._output = Hand(), io.BytesIO()
        self._server = Server(Settings(device="cpu"), self._intake, self._output)  # type: ignore[arg-type]

    def install(self, directory: Path, version: int) -> bool:
        """Install a model directory; return whether the weights went into the model already there. Raises Refused."""
        request = {"op": "install", "directory": str(directory), "version": {"version": version}}
        return bool(self._server._do(request, {})[0]["in_place"])

    @property
    def positions(self) -> int | None:
        """Tokens of the longest sequence."""
        return self._server._policy.habits.positions

    @property
    def pads(self) -> bool:
        """Whether prompts of several lengths share a batch."""
        return self._server._policy.habits.pads

    def generate(self, prompts: Sequence[Sequence[int]], budgets: Sequence[int]) -> Said:
        """Draw one completion of each prompt. Raises Refused."""
        distinct = list(dict.fromkeys(map(tuple, prompts)))
        arrays = {
            "prompts": np.array([token for prompt in distinct for token in prompt], np.int32),
            "prompt_lengths": np.array(list(map(len, distinct)), np.int32),
            "prompt": np.array([distinct.index(tuple(prompt)) for prompt in prompts], np.int32),
            "seeds": np.arange(len(prompts), dtype=np.uint64),
            "temperatures": np.ones(len(prompts)),
            "greedy": np.zeros(len(prompts), np.uint8),
            "budgets": np.array(budgets, np.int32),
            "stop_set": np.zeros(len(prompts), np.int32),
            "starts": np.zeros(len(prompts), np.int32),
        }
        self._output.seek(0)
        self._output.truncate()
        self._intake.generates.append(({"id": 1, "op": "generate", "stop_sets": [[]]}, arrays))
        for call in self._intake.take_generates():
            self._server._queue.extend(self._server._replies.admit(*call))
        while batch := self._server._form_batch():
            self._server._generate(batch)
        self._output.seek(0)
        header, reply = next(frame for frame in iter(lambda: read_frame(self._output), None) if "ok" in frame[0])
        if not header["ok"]:
            raise Refused(header["kind"], header["error"])
        cuts = np.cumsum(reply["lengths"])[:-1]
        completions = [part.tolist() for part in np.split(reply["tokens"], cuts)]
        return Said(prompts=prompts, completions=completions, logprobs=reply["logprobs"].astype(np.float64))

    def audit(self, said: Said) -> tuple[Logprobs, Logprobs]:
        """Return an audit's logprobs [T], and how far, in nats, each token falls short of what the sampler draws."""
        arrays = {
            "tokens": np.array([t for p, c in _pairs(said) for t in (*p, *c)], np.int32),
            "prompt_lengths": np.array(list(map(len, said.prompts)), np.int32),
            "completion_lengths": np.array(list(map(len, said.completions)), np.int32),
            "temperatures": np.ones(len(said.prompts)),
            "seeds": np.arange(len(said.prompts), dtype=np.uint64),
            "starts": np.zeros(len(said.prompts), np.int32),
        }
        reply = self._server._do({"op": "verify"}, arrays)[1]
        return reply["logprobs"].astype(np.float64), reply["gaps"].astype(np.float64)


def trained(policy: Policy, said: Said) -> Logprobs:
    """Return the trainer's logprobs [T], after a backward pass whose gradients are finite and then forgotten."""
    rows = [np.array([*prompt, *completion], np.int64) for prompt, completion in _pairs(said)]
    targets = [np.arange(len(row)) >= len(prompt) for row, prompt in zip(rows, said.prompts, strict=True)]
    batch = Ragged(tokens=np.concatenate(rows), lengths=np.array(list(map(len, rows))), targets=np.concatenate(targets))
    found = np.zeros(len(said.logprobs))
    keep = np.ones(len(rows), np.bool_)
    for part in dealt_microbatches(batch, keep, 512, layout=policy.layout, rank=0, ranks=1):
        assert part is not None
        scores = policy.score(part, 1.0)
        scores.logprobs.sum().backward()
        found[part.numbers] = scores.logprobs.detach().numpy()
    for name, parameter in policy.parameters:
        assert parameter.grad is None or parameter.grad.isfinite().all(), f"the gradient of {name} is not finite"
        parameter.grad = None
    return found


@torch.no_grad()
def trained_a_little(policy: Policy) -> None:
    """Move all weights somewhat, as a training step does."""
    generator = torch.Generator().manual_seed(1)
    for _, parameter in policy.parameters:
        parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))


def _pairs(said: Said) -> list[tuple[Sequence[int], Sequence[int]]]:
    return list(zip(said.prompts, said.completions, strict=True))
