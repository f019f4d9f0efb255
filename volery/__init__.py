"""Offer the names that authors of tasks, rewards and objectives import: the only public names of the program.

`volery new task my-task` writes a task to start from. The names in short; `help(volery.TaskArguments)`, and the same
for any other name, says more:

- A task is any object with the attributes of `Task`: a name, a fingerprint, problems by index, rewards. An index always
  gives the same problem. `CheapTask`, `NeedyTask`, `FiniteTask`, `FormTask` and `TurnTask` are optional additions. So
  is `demonstrate(index)`: text or messages that a warm start learns for a training problem.
- A `Problem` is the content of one index: a prompt of text or of `ChatMessage`s, and perhaps a reference answer. `Chat`
  says whether text passes through the model's chat template.
- A `Completion` is the policy's reply. In a task of several turns it has a `Turn` for each earlier reply, with the
  `Answer` to it: text or messages.
- A reward is a number between -`MAX_REWARD` and `MAX_REWARD`; 1.0 is fully right. `CANNOT_SAY` is the reward of a
  completion that nobody can judge. `Reward` is what `reward` returns: one reward, or several by their names.
- `reward` may be `async def`. It may then ask a `Judge`, which is a language model, or a `RewardService`, which is an
  HTTP service.
- An `EnvironmentTask` makes an `Environment` for each episode that has a state. Its `step` gets what the policy said
  (`Spoken`) and returns what it reads next (`Observation`).
- A `Tool` of a problem is shown to the policy, which calls it with a `ToolCall`.
- A class or function that a `swarm.toml` names is called with `TaskArguments`, which hold the seed and the options. A
  `TaskKind` does the same, and declares each `Option`.
- `TaskError` is for problems that a person can correct. Say what failed, why, and what to do next.
- An objective consists of functions of `Terms`, `Totals` and `Bounds` that return `Corrected`; see
  docs/explain/objectives.md.
- `volery.testing` checks whether a task keeps its promises.

Nothing is defined here. Each name is loaded from its module when it is first used, so `import volery` is quick and
never imports torch. Names of objectives import torch when they are used, which happens only in the trainer.

The rule: a name here keeps its meaning within a minor version. Before a name is removed, it works with a warning for
one minor version. Every other module may change with any version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learner.trainer_api.presets import Bounds as Bounds
    from learner.training.objective.objective_inputs import Corrected as Corrected
    from learner.training.objective.objective_inputs import Terms as Terms
    from learner.training.objective.objective_inputs import Totals as Totals
    from node.tasks.api.environment import Environment as Environment
    from node.tasks.api.environment import EnvironmentTask as EnvironmentTask
    from node.tasks.api.environment import Observation as Observation
    from node.tasks.api.interface import CANNOT_SAY as CANNOT_SAY
    from node.tasks.api.interface import MAX_REWARD as MAX_REWARD
    from node.tasks.api.interface import Answer as Answer
    from node.tasks.api.interface import CannotSay as CannotSay
    from node.tasks.api.interface import Chat as Chat
    from node.tasks.api.interface import ChatMessage as ChatMessage
    from node.tasks.api.interface import CheapTask as CheapTask
    from node.tasks.api.interface import Completion as Completion
    from node.tasks.api.interface import FiniteTask as FiniteTask
    from node.tasks.api.interface import FormTask as FormTask
    from node.tasks.api.interface import NeedyTask as NeedyTask
    from node.tasks.api.interface import Option as Option
    from node.tasks.api.interface import Problem as Problem
    from node.tasks.api.interface import Reward as Reward
    from node.tasks.api.interface import Spoken as Spoken
    from node.tasks.api.interface import Task as Task
    from node.tasks.api.interface import TaskArguments as TaskArguments
    from node.tasks.api.interface import TaskError as TaskError
    from node.tasks.api.interface import TaskKind as TaskKind
    from node.tasks.api.interface import Tool as Tool
    from node.tasks.api.interface import ToolCall as ToolCall
    from node.tasks.api.interface import Turn as Turn
    from node.tasks.api.interface import TurnTask as TurnTask
    from node.tasks.services.judge import Judge as Judge
    from node.tasks.services.reward_service import RewardService as RewardService

_HOMES = {
    "node.tasks.api.interface": (
        *("CANNOT_SAY", "MAX_REWARD", "Answer", "CannotSay", "Chat", "ChatMessage", "CheapTask", "Completion"),
        *(
            "FiniteTask",
            "FormTask",
            "NeedyTask",
            "Option",
            "Problem",
            "Reward",
            "Spoken",
            "Task",
            "TaskArguments",
            "TaskError",
            "TaskKind",
            "Tool",
            "ToolCall",
        ),
        *("Turn", "TurnTask"),
    ),
    "node.tasks.api.environment": ("Environment", "EnvironmentTask", "Observation"),
    "node.tasks.services.judge": ("Judge",),
    "node.tasks.services.reward_service": ("RewardService",),
    "learner.trainer_api.presets": ("Bounds",),
    "learner.training.objective.objective_inputs": ("Corrected", "Terms", "Totals"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

_PUBLIC = sorted(_HOME_OF)
"""The public names. This is no `__all__`: `help(volery)` would print each class in full, 1,900 lines."""


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'volery' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME_OF]
