"""Run one training whose rollouts come from the product's engine, which holds the weights in some format.

It works like the laboratory of the study of staleness, whose recipes it uses, at S = 0. Each step's weights are
published in bfloat16 and installed by the engine's own code, and its seeded sampler draws. The policy is trained and
evaluated in full precision.

Invariant: runs of one seed begin with the same model, and see the same problems and seeds.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.lagged.laboratory import Laboratory, _Batch
from benchmarks.lagged.recipe import Cell, Recipe
from benchmarks.lagged.sampling import Drawn
from learner.training.model.export import export
from node.engine.common_worker.generate_call import Call, Row
from node.engine.transformers_worker.generation import Generator
from node.engine.transformers_worker.policy import Policy, Settings


@dataclass(frozen=True, kw_only=True, order=True)
class FormatCell:
    """One run: its recipe, its engine's format, and its seed."""

    recipe: str
    form: str
    seed: int


class QuantisedLaboratory(Laboratory):
    """A laboratory whose rollouts come from the product's engine, in the given format."""

    def __init__(self, cell: Cell, recipe: Recipe, model: Path, form: str, folder: Path) -> None:
        super().__init__(cell, recipe, model)
        self._engine = Policy(Settings(device="cpu", quantization="" if form == "stored" else form))
        self._generator = Generator(self._engine, lambda: False)
        self._folder = folder
        self._published = 0

    def _draw(self) -> _Batch:
        recipe = self.recipe
        self._publish()
        indexes = tuple(range(self._cursor, self._cursor + recipe.prompts))
        self._cursor += recipe.prompts
        call, stops = Call(0), tuple(sorted(self.encoded.codec.stop_ids))
        rows = [
            Row(
                call=call,
                prompt=tuple(self.encoded.prompt(index)),
                seed=(self.cell.seed << 40) + index * recipe.group + member,
                temperature=1.0,
                greedy=False,
                budget=recipe.max_new_tokens,
                stop_ids=stops,
            )
            for index in indexes
            for member in range(recipe.group)
        ]
        self._generator.run(rows)
        drawn = tuple(Drawn(tokens=tuple(row.tokens.tolist()), logprobs=row.logprobs) for row in rows)
        rewards = [self.encoded.reward(indexes[n // recipe.group], one.tokens) for n, one in enumerate(drawn)]
        return _Batch(indexes=indexes, drawn=drawn, rewards=np.array(rewards, np.float32))

    def _publish(self) -> None:
        """Install the current weights in the engine as a version."""
        directory = Path(tempfile.mkdtemp(dir=self._folder)) / "version"
        export(self.policy, directory, "bfloat16", 1 << 30)
        self._published += 1
        self._engine.install(directory, {"version": self._published})
        shutil.rmtree(directory.parent)
