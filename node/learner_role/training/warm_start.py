"""A small model made on the spot, taught just enough to begin with: the demo's first minute.

The warm start is supervised on clean reference answers and stops while GREEDY accuracy on held-out prompts lies in a
stated band: below it reinforcement learning finds nothing to reinforce, above it there is nothing left to learn. What
always holds: the band is met by measurement, never assumed; a block of steps that overshoots is undone (the trainer
goes back to the state before it) and taken again in smaller steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learner.monitoring.eval_scores import Scores
from node.engine.interface import InstalledVersion, PolicyEngine
from node.learner_role.training.evaluation import EvaluationTerms, evaluate
from node.processes.child import SupervisedChild
from node.runtime.errors import RunError
from node.tasks.held_out import HeldOut
from node.tasks.tokenized_task import EncodedTask
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays

TINY_QWEN3: Mapping[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 256,
    "tie_word_embeddings": True,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    # The default 0.02 left one of three seeds stuck at the beginning of the warm start.
    "initializer_range": 0.08,
}
"""0.21 M parameters: learns to reverse six letters in seconds on one core."""

VLLM_HEAD_DIM = 32
"""The smallest that vLLM can do on a CPU."""


@dataclass(frozen=True, kw_only=True)
class WarmStartTerms:
    """Greedy accuracy is to end in [`low`, `high`]. Blocks of `first_block` steps, shorter once accuracy moves."""

    low: float = 0.40
    high: float = 0.55
    batch: int = 64
    learning_rate: float = 2e-3
    first_block: int = 20
    fine_block: int = 3
    moving: float = 0.03
    max_blocks: int = 400


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The parts a warm start needs: a trainer with the model loaded, an engine, a task, its held-out prompts."""

    trainer: SupervisedChild
    engine: PolicyEngine
    encoded: EncodedTask
    held_out: list[HeldOut]
    terms: WarmStartTerms
    evaluation: EvaluationTerms
    scratch: Path
    told: Callable[[int, Scores], None]

    async def run(self, directory: Path) -> Scores:
        """Teach until the band is met, write the model to `directory`, return its scores. Raises RunError if it cannot
        be met.
        """
        terms, block, rate, steps, cursor = self.terms, self.terms.first_block, self.terms.learning_rate, 0, 0
        before = 0.0
        for attempt in range(terms.max_blocks):
            saved = self.scratch / f"before-{attempt}"
            await self.trainer.call("save", {"directory": str(saved)})
            for _ in range(block):
                arrays = supervised_arrays(self.encoded, range(cursor, cursor + terms.batch))
                await self.trainer.call("supervised", {"learning_rate": rate}, arrays)
                cursor += terms.batch
            scores = await self._scores(attempt)
            self.told(steps + block, scores)
            if terms.low <= scores.greedy <= terms.high:
                await self.trainer.call("export", {"directory": str(directory), "dtype": "float32"})
                return scores
            if scores.greedy > terms.high:
                await self.trainer.call("restore", {"directory": str(saved)})
                block, rate = max(1, block // 2), rate / 2
                continue
            steps, before = steps + block, max(before, scores.greedy)
            if before >= terms.moving:
                block = min(block, terms.fine_block)
        raise RunError(f"The warm start did not reach greedy accuracy {terms.low} to {terms.high}. Try another --seed.")

    async def _scores(self, attempt: int) -> Scores:
        export = self.scratch / f"check-{attempt}"
        await self.trainer.call("export", {"directory": str(export), "dtype": "float32"})
        version = InstalledVersion(name=PolicyVersion(0, attempt), manifest=ManifestHash(attempt.to_bytes(32, "big")))
        await self.engine.install(version, export)
        return await evaluate(self.engine, self.held_out, self.evaluation)


def supervised_arrays(encoded: EncodedTask, indexes: range) -> Arrays:
    """One batch of prompts and their reference answers, with the answers as targets."""
    rows = [(encoded.prompt(index), encoded.answer(index)) for index in indexes]
    return {
        "tokens": np.concatenate([np.array(prompt + answer, np.int32) for prompt, answer in rows]),
        "lengths": np.array([len(prompt) + len(answer) for prompt, answer in rows], np.int32),
        "mask": np.concatenate([np.array([0] * len(p) + [1] * len(a), np.uint8) for p, a in rows]),
    }
