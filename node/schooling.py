"""What the learner asks and what answers are worth: a task, its curriculum and its held-out prompts, all in tokens.

What always holds: the reward of (prompt index, tokens) is a pure function, so a recovered record is worth what it was,
and any thread may ask for it; the curriculum moves only when a group is judged, on one thread, and its state travels
with every checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from learner.leasing import Prompt
from node.config import SwarmConfig
from node.evaluation import HeldOut
from node.tasks.curriculum import TaskCursor
from node.tasks.encoded import EncodedTask
from node.tasks.registry import open_task
from node.tasks.text import TextCodec


@dataclass(kw_only=True)
class Schooling:
    """See the module's paragraph. `held_out` is fixed for the run."""

    encoded: EncodedTask
    cursor: TaskCursor
    held_out: list[HeldOut]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a completion."""
        return tuple(sorted(self.encoded.codec.stop_ids))

    def next_prompt(self) -> Prompt:
        """The next prompt to lease."""
        index = self.cursor.next_index()
        return Prompt(task=self.encoded.task.name, index=index, tokens=self.encoded.prompt(index))

    def reward(self, index: int, tokens: tuple[int, ...]) -> float:
        """The reward of completion `tokens` to training prompt `index`."""
        return self.encoded.reward(index, tokens)

    def observe(self, index: int, mean_reward: float) -> None:
        """A group of prompt `index` was admitted with this mean reward: what the curriculum goes by."""
        self.cursor.observe(index, mean_reward)

    def state(self) -> dict[str, Any]:
        """The curriculum's state, for a checkpoint."""
        return self.cursor.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state. Raises TaskError when it belongs to another task."""
        self.cursor = TaskCursor.restore(self.encoded.task, dict(state))


def open_schooling(config: SwarmConfig, base: Path) -> Schooling:
    """Open the configured task with the model's tokenizer; paths in the spec are relative to `base`.

    Raises TaskError.
    """
    task = open_task(config.task.spec, directory=base, seed=config.learn.seed)
    encoded = EncodedTask(task=task, codec=TextCodec.load(Path(config.model.directory)))
    return Schooling(
        encoded=encoded, cursor=TaskCursor.start(task), held_out=held_out_of(encoded, config.task.held_out)
    )


def held_out_of(encoded: EncodedTask, count: int) -> list[HeldOut]:
    """The first `count` held-out prompts, each with its reward."""
    return [
        HeldOut(prompt=encoded.held_out_prompt(index), reward=partial(encoded.held_out_reward, index))
        for index in range(count)
    ]
