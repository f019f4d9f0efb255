"""Define what a task is: problems by index, and the reward of a completion. This is what authors of tasks implement.

A task runs on the learner's side only. It works on text, and knows nothing of tokens, peers or policy versions. An
index includes the difficulty (`learner.curriculum.problem_index`), so the curriculum can change while leases are open.

Invariants:

- An index always names the same problem: a pure function of the task's spec and the index. So a reward can be computed
  again after a restart, or in another process.
- Training problems and held-out problems never share a prompt.
- Everything that a task returns is checked in one place, `node.tasks.gate`. No module asks `isinstance` of the
  protocols here, because on Python 3.11 that runs the task's properties.

A package offers its tasks as `TaskKind`s under the entry point group "volery.tasks"; see docs/operate/write-a-task.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from node.runtime.errors import UsageError

if TYPE_CHECKING:
    from node.tasks.api.environment import EnvironmentTask

MAX_REWARD = 1e18
"""Largest reward, positive or negative. The trainer computes in float32, which can just hold its square."""


class CannotSay(Enum):
    """The type of CANNOT_SAY, for type annotations."""

    CANNOT_SAY = "cannot say"

    def __repr__(self) -> str:
        return self.name


CANNOT_SAY = CannotSay.CANNOT_SAY
"""The reward of a completion that cannot be judged. Its group is dropped, and this does not count as a failure."""


class TaskError(UsageError):
    """A task, its file or the model's tokenizer cannot be used. The message names the file or field, and the next
    step."""


class Chat(Enum):
    """Whether a prompt of plain text passes through the model's chat template, as one message of the user."""

    NEVER = "never"
    AUTO = "auto"
    """Through the template if the model has one, else as plain text."""
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool that the policy may call. The chat template shows its three fields to the policy.

    `parameters` is the JSON schema of the arguments, as a mapping or as text.
    """

    name: str
    description: str = ""
    parameters: str | Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool. `arguments` is a mapping of JSON values.

    `id` connects the call with the message that answers it. It has nine letters and digits, which the chat templates of
    all model families accept.
    """

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """One message of a conversation. `role` is "system", "user", "assistant" or "tool".

    A message of role "tool" is the result of a call: `name` is the tool's, `tool_call_id` the call's. `tool_calls` are
    the calls that a message of the assistant makes.
    """

    role: str
    content: str
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """One turn of the policy, parsed by the model's tool format.

    `content`: the text without thinking and calls. `calls`: the calls that could be parsed, in order. `malformed`: one
    sentence for each call that could not be parsed; you may show it to the policy. `thinking`: the text between <think>
    and </think>, in which calls do not count.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem that one index names. Only `prompt` and `tools` leave the learner.

    `prompt`: plain text, or messages, which need a model with a chat template. `answer`: a reference answer, for the
    reward and for a supervised warm start; None if there is none. `chat`: whether plain text passes through the chat
    template. `tools`: the tools that the chat template shows to the policy.
    """

    prompt: str | tuple[ChatMessage, ...]
    answer: str | None = None
    chat: Chat = Chat.NEVER
    tools: tuple[Tool, ...] = ()


Answer = str | tuple[ChatMessage, ...]
"""The messages or text that the policy reads between two turns. In a conversation, text is one message of the user."""


class Turn(NamedTuple):
    """An earlier turn of an episode: what the policy said, and what the task answered."""

    said: str
    answered: Answer


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The policy's completion for a problem.

    `text`: in a task of several turns, the last turn. `turns`: the turns before that. `finished`: the completion ended
    by itself within its token budget, with a stop token. That token is not part of `text`.
    """

    text: str
    finished: bool
    turns: tuple[Turn, ...] = ()


Reward = float | CannotSay | Mapping[str, float | CannotSay]
"""The return type of `reward`: a number, CANNOT_SAY, or several of these by name."""


class Task(Protocol):
    """Problems by index, and the reward of a completion. Any object with these attributes is a task.

    An index always names the same problem, so a reward can be computed again after a restart or in another process.
    Training problems and held-out problems never share a prompt. A task works on text, and never sees tokens or peers.
    """

    @property
    def name(self) -> str:
        """The name of the kind of task, which leases and reports show."""

    @property
    def levels(self) -> int:
        """Number of difficulties, at least 1. The easiest is 0."""

    @property
    def fingerprint(self) -> str:
        """A text that changes whenever an index may name another problem: made of kind, options, seed and files."""

    def problem(self, index: int) -> Problem:
        """Return the training problem of `index` >= 0."""

    def held_out(self, index: int) -> Problem:
        """Return the held-out problem of `index` >= 0, the same for every seed. Raises TaskError if there is none."""

    def reward(self, problem: Problem, completion: Completion) -> Reward | Awaitable[Reward]:
        """Return the reward of `completion`: 1.0 if fully right, and between -MAX_REWARD and MAX_REWARD.

        It must be a pure function. It runs in a verifier's process, or in the learner's node if the task says that it
        is cheap. It may be `async def`: then several are awaited at once, each for at most `[verifiers] timeout_s`.
        """


@runtime_checkable
class CheapTask(Task, Protocol):
    """A task that can say that it is cheap. Any other task runs in a process of its own, with a timeout."""

    @property
    def is_cheap(self) -> bool:
        """True if `reward` and `answer_turn` always take well under a millisecond and little memory, even for text that
        a stranger wrote to harm. Then the learner's node calls them itself."""


@runtime_checkable
class NeedyTask(Task, Protocol):
    """A task that needs something installed on the machine where rewards are computed."""

    def require(self) -> None:
        """Raise TaskError if something is missing, and say what to install. Called once, before any reward."""


@runtime_checkable
class FiniteTask(Task, Protocol):
    """A task with a fixed number of problems: index i names problem i % `size`.

    Training goes through all problems in passes, each in another order, and remembers the pass rate of every problem
    (`learner.curriculum.epochs`). It needs all four attributes below.
    """

    @property
    def size(self) -> int:
        """Number of training problems, at least 1. `levels` is 1."""

    @property
    def num_held_out(self) -> int:
        """Number of held-out problems. No others are asked for."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the operator at the start, each a clause: how many problems there are, which were left out."""

    @property
    def pass_rates(self) -> Sequence[float] | None:
        """Pass rates measured before, [size] in [0, 1], NaN where one is unknown; None if none is known."""


@runtime_checkable
class TurnTask(Task, Protocol):
    """A task of several turns. A task without `answer_turn` has one turn.

    `answer_turn` is a pure function, so the transcript is enough to replay an episode: compute the state from the
    turns, and keep none between calls. An episode also ends when a turn uses up its token budget, or when the
    operator's limits allow no further turn. `reward` then judges what was said until then.
    """

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
        """Return what the policy reads next after it said `said`, or None to end the episode and have it judged."""


@runtime_checkable
class FormTask(Task, Protocol):
    """A task that can tell whether a completion has the right form, even if it is wrong. `volery warmup` trains until
    enough completions have it. Without this method, any completion has it that ends by itself and is not blank."""

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Return whether `completion`, which ended by itself, has the form that a right answer to `problem` has. It
        must be pure and quick: it runs in the process that warms the model up."""


# Specs: NAME[:ARGUMENT][:key=value[,key=value]]

OptionValue = str | int | float


@dataclass(frozen=True, kw_only=True)
class Option:
    """One key of a spec. Its type is that of `default`. A number lies in [minimum, maximum]; a text is one of
    `choices`, if there are any."""

    key: str
    default: OptionValue
    help: str
    minimum: float = float("-inf")
    maximum: float = float("inf")
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """A parsed spec. Every option is present, has its type and lies in its range.

    `argument`: the text between name and options; "" for kinds that take none. `directory`: relative paths in the spec
    start here. `seed`: orders the training problems, and never changes the held-out ones. `services`: the sections
    `[judge]` and `[reward_service]` of swarm.toml, by these names, if present.
    """

    argument: str
    options: Mapping[str, OptionValue]
    directory: Path
    seed: int
    services: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def integer(self, key: str) -> int:
        return int(self.options[key])

    def number(self, key: str) -> float:
        return float(self.options[key])

    def text(self, key: str) -> str:
        return str(self.options[key])


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """A kind of task, which builds tasks from specs. An entry point of the group "volery.tasks" names one.

    `argument` is what the help shows between name and options, for example "PATH"; None if nothing may stand there.
    `free_options`: other keys than those of `options` may be given, and their values are text. `build` raises
    TaskError if the task cannot be built.
    """

    name: str
    summary: str
    build: Callable[[TaskArguments], Task | EnvironmentTask]
    argument: str | None = None
    options: tuple[Option, ...] = ()
    free_options: bool = False
