"""Run the trainer's process by the configuration: its command, and its load request."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from learner.trainer_api.presets import Recipe, recipe_of
from learner.trainer_api.requests import Hyperparameters
from node.config.swarm_config import ModelSection, SwarmConfig, TrainerSection
from node.learner_role.shared.context import Service
from node.learner_role.shared.signals import TrainerSpoke
from node.processes.child import SupervisedChild, open_child
from node.processes.event_log import child_events
from node.processes.outcomes import ChildDied, ChildEvent, ChildRestarting, ChildStarted
from node.processes.spec import READY_S, ChildSpec
from node.tasks.tokenizer import TextCodec
from node.tasks.ways.model_ways import read_ways
from protocol.core.pipe import Arrays, Header

TRAINER = (sys.executable, "-m", "learner.training.server")
"""The command of the trainer's process."""

GRACE_S = 4.0
"""Seconds that the process has to end. Ranks end one after the other, and torchrun looks at them ten times a second."""


@dataclass(kw_only=True, eq=False)
class TrainerProcess(Service):
    """The trainer's process, which answers requests while it is `open`. Its events become signals."""

    spec: ChildSpec
    _child: SupervisedChild | None = None

    def __post_init__(self) -> None:
        self._log = child_events(self.events, "trainer")

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the process while inside. Raises what `open_child` raises."""
        async with open_child(self.spec, on_event=self._note, on_frame=self._hear) as self._child:
            yield

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def call(
        self,
        op: str,
        header: Mapping[str, object] | None = None,
        arrays: Arrays | None = None,
        *,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[Header, Arrays]:
        """Make one request, see `SupervisedChild.call`."""
        assert self._child is not None, "requests are made only while it is open"
        return await self._child.call(op, header, arrays, sent=sent)

    def _note(self, event: ChildEvent) -> None:
        self._log(event)
        match event:
            case ChildStarted():
                self.state.waits = ""
            case ChildRestarting():
                self.state.waits = "The trainer's process is being started again."
            case ChildDied():
                self.signals.trainer_died.emit(None)

    def _hear(self, header: Header, arrays: Arrays) -> None:
        if header["event"] == "waiting":
            text = str(header.get("text"))
            self.state.waits = f"{text[:1].upper()}{text[1:]}."
            self.events.emit("trainer_waits", text=text)
        else:
            self.signals.trainer_spoke.emit(TrainerSpoke(header=header, arrays=arrays))


_SHARED = [name for name in TrainerSection.__struct_fields__ if name in Hyperparameters.__struct_fields__]
"""Keys of [trainer] that the trainer's process knows by the same names."""


def load_request(config: SwarmConfig) -> dict[str, Any]:
    """Return the trainer's load request. Raises TaskError."""
    trainer, learn = config.trainer, config.learn
    return {
        "directory": config.model.directory,
        "seed": learn.seed,
        "threads": _threads(learn.threads),
        "device": trainer.device,
        "compute_dtype": trainer.compute_dtype,
        "compile": trainer.compile,
        "lora": _lora(trainer),
        "hyperparameters": _hyperparameters(config),
        **_spoken_to(config.model),
        **({"router_replay": True} if trainer.router_replay else {}),
    }


def _hyperparameters(config: SwarmConfig) -> dict[str, Any]:
    trainer, learn = config.trainer, config.learn
    return {
        **{name: getattr(trainer, name) for name in _SHARED},
        "kl": trainer.kl_coefficient,
        "teacher": trainer.teacher_coefficient,
        "betas": [trainer.beta1, trainer.beta2],
        "temperature": learn.temperature,
        "max_new_tokens": learn.max_new_tokens,
        "gradient_checkpointing": trainer.activation_checkpointing,
    }


def _spoken_to(model: ModelSection) -> dict[str, Any]:
    """Return the settings that replace those of the model's own files. Raises TaskError."""
    ways = read_ways(model)
    found: dict[str, Any] = {} if ways.chat_template is None else {"chat_template": ways.chat_template}
    if ways.stop or ways.stop_ids:
        found["stop_ids"] = sorted(TextCodec.load(Path(model.directory), ways).stop_ids)
    return found


def _lora(trainer: TrainerSection) -> dict[str, Any] | None:
    if trainer.lora_rank == 0:
        return None
    alpha = trainer.lora_alpha or 2 * trainer.lora_rank
    return {"rank": trainer.lora_rank, "alpha": alpha, "targets": trainer.lora_targets}


def child_spec(argv: Sequence[str], config: SwarmConfig) -> ChildSpec:
    """Return the spec of the child process. `argv` is the command of one rank."""
    return ChildSpec(
        name="trainer",
        argv=launch_command(argv, config.trainer),
        threads=_threads(config.learn.threads),
        grace_s=GRACE_S,
        # People start the other machines. The trainer waits for them without limit, and names those that are missing
        # (`learner.training.distributed.machines`).
        ready_timeout_s=math.inf if config.trainer.machines > 1 else READY_S,
    )


def launch_command(argv: Sequence[str], trainer: TrainerSection) -> tuple[str, ...]:
    """Return the command that starts all ranks of this machine, the first: torchrun's, unless there is only one."""
    if trainer.ranks * trainer.machines == 1 or tuple(argv) != TRAINER:
        return tuple(argv)
    place = (trainer.ranks, trainer.machines, 0, trainer.rendezvous) if trainer.machines > 1 else (trainer.ranks,)
    return (sys.executable, "-m", "learner.training.distributed.launcher", *map(str, place))


def recipe_in(config: SwarmConfig) -> Recipe:
    """Return the recipe that the trainer will use, from the configuration alone."""
    return recipe_of(msgspec.convert(_hyperparameters(config), Hyperparameters))


def _threads(configured: int) -> int:
    return configured or max(1, (os.cpu_count() or 2) // 2)


CallTrainer = Callable[[str, Mapping[str, object], Arrays | None], Awaitable[tuple[Header, Arrays]]]
"""Makes one request to the trainer, and returns its header and arrays. Raises ChildRefused, and its owner's errors."""

Sent = Callable[[], None]
"""Called once a request comes before all later ones."""


def once(call: Sent) -> Sent:
    """Return a function that calls `call` only the first time."""
    left = [call]
    return lambda: left.pop()() if left else None


class CallInTurn(Protocol):
    """As `CallTrainer`; `sent` is called once the request comes before all later ones."""

    def __call__(
        self, op: str, header: Mapping[str, object], arrays: Arrays | None = None, sent: Sent = ..., /
    ) -> Awaitable[tuple[Header, Arrays]]: ...
