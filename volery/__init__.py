"""What authors of tasks, rewards and objectives import. The only names of the program that are public.

Nothing is defined here: each name is loaded from where it lives when it is first used, so that `import volery` is quick
and never imports torch. Names of objectives import torch when they are used, which is in the trainer alone.

The rule: a name here keeps its meaning within a minor version. A name that is to go works with a warning for one minor
version first. Every other module may change with any version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learner.trainer_api.presets import Bounds as Bounds
    from learner.training.objective.objective_inputs import Corrected as Corrected
    from learner.training.objective.objective_inputs import Terms as Terms
    from learner.training.objective.objective_inputs import Totals as Totals
    from node.tasks.api.interface import MAX_REWARD as MAX_REWARD
    from node.tasks.api.interface import Answer as Answer
    from node.tasks.api.interface import Chat as Chat
    from node.tasks.api.interface import ChatMessage as ChatMessage
    from node.tasks.api.interface import CheapTask as CheapTask
    from node.tasks.api.interface import Completion as Completion
    from node.tasks.api.interface import FiniteTask as FiniteTask
    from node.tasks.api.interface import NeedyTask as NeedyTask
    from node.tasks.api.interface import Option as Option
    from node.tasks.api.interface import Problem as Problem
    from node.tasks.api.interface import Task as Task
    from node.tasks.api.interface import TaskArguments as TaskArguments
    from node.tasks.api.interface import TaskError as TaskError
    from node.tasks.api.interface import TaskKind as TaskKind
    from node.tasks.api.interface import Turn as Turn
    from node.tasks.api.interface import TurnTask as TurnTask

_HOMES = {
    "node.tasks.api.interface": (
        *("MAX_REWARD", "Answer", "Chat", "ChatMessage", "CheapTask", "Completion", "FiniteTask", "NeedyTask"),
        *("Option", "Problem", "Task", "TaskArguments", "TaskError", "TaskKind", "Turn", "TurnTask"),
    ),
    "learner.trainer_api.presets": ("Bounds",),
    "learner.training.objective.objective_inputs": ("Corrected", "Terms", "Totals"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'volery' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
