"""Make a small model on the spot: with random weights, then taught by example until it answers some prompts right.

Invariants:

- The examples are never asked later, since the tasks have different seeds.
- Nothing is downloaded.
- The processes that made the model have ended when it is there.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from learner.monitoring.eval_scores import Scores
from learner.rollouts.environment import MAX_EPISODE_TOKENS, EpisodeLimits
from node.config.node_config import EngineSection
from node.engine.factory import open_engine
from node.engine.interface import EngineError
from node.learner_role.training.evaluation import EvaluationTerms
from node.learner_role.training.warm_start import WarmStart, WarmStartTerms
from node.processes.child import open_child
from node.processes.event_log import child_events
from node.processes.outcomes import ChildError
from node.processes.spec import ChildSpec
from node.runtime.atomic_files import writing
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from node.tasks.registry import open_task
from node.tasks.task_suite import held_out_of
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, positions_of, write_character_tokenizer
from swarm.transport.error_groups import first_cause

UNTRAINED = "model-untrained"
MODEL = "model"
"""Subdirectories of the model with random weights, and of the taught model."""


@dataclass(frozen=True, kw_only=True)
class StartingModel:
    """The model to make.

    Args:
        task: the spec of the task that it is taught.
        held_out: held-out prompts on which it is judged.
        max_new_tokens: most tokens of a completion.
        seed: the seed of weights and tasks.
        config: its Hugging Face config.json.
        terms: the target of the warm start.
        write_tokenizer: writes its tokenizer into a directory.
        max_turns: most turns of an episode.
        option: words after which its directory was named, for messages.
    """

    task: str
    held_out: int
    max_new_tokens: int
    seed: int
    config: Mapping[str, Any]
    terms: WarmStartTerms = WarmStartTerms()  # noqa: RUF009  (it is frozen)
    write_tokenizer: Callable[[Path], None] = write_character_tokenizer
    max_turns: int = 1
    option: str = "--out"

    async def make(self, out: Path, events: EventLog) -> Scores:
        """Make the model in `out`/model, and return its scores. Raises RunError if it cannot be made or taught."""
        try:
            with writing(out, self.option, named="directory"), first_cause():
                return await self._make(out, events)
        except (ChildError, EngineError) as error:
            said = f"The small model cannot be made in {out}: {str(error).rstrip('.')}"
            raise RunError(f"{said}. Name another directory after {self.option}.") from None

    async def _make(self, out: Path, events: EventLog) -> Scores:
        spec = ChildSpec(name="trainer", argv=(sys.executable, "-m", "learner.training.server"))
        untrained = out / UNTRAINED
        async with AsyncExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=out)))
            trainer = await stack.enter_async_context(open_child(spec, on_event=child_events(events, "trainer")))
            engine = await stack.enter_async_context(
                open_engine(EngineSection(kind="transformers", threads=1, nice=0), events, name="engine", state=scratch)
            )
            await trainer.call(
                "make_model", {"directory": str(untrained), "config": dict(self.config), "seed": self.seed}
            )
            await trio.to_thread.run_sync(self.write_tokenizer, untrained)
            hyperparameters = {"learning_rate": 1e-3, "max_new_tokens": self.max_new_tokens}
            await trainer.call(
                "load", {"directory": str(untrained), "seed": self.seed, "hyperparameters": hyperparameters}
            )
            task = open_task(self.task, seed=self.seed + 1_000_003)
            encoded = EncodedTask(task=task, codec=TextCodec.load(untrained))
            encoded.gate.require()
            positions = positions_of(untrained) or MAX_EPISODE_TOKENS
            limits = EpisodeLimits(turns=self.max_turns, tokens=positions, turn_tokens=self.max_new_tokens)

            def report(steps: int, scores: Scores) -> None:
                events.emit("warm_start", steps=steps, greedy=round(scores.greedy, 4), sampled=round(scores.sampled, 4))

            warm_start = WarmStart(
                trainer=trainer,
                engine=engine,
                encoded=encoded,
                held_out=held_out_of(encoded, self.held_out, limits),
                terms=self.terms,
                evaluation=EvaluationTerms(
                    every_versions=0,
                    temperature=1.0,
                    max_new_tokens=self.max_new_tokens,
                    stop_ids=encoded.codec.stop_ids,
                ),
                scratch=scratch,
                report=report,
            )
            return await warm_start.run(out / MODEL)
