"""The port behind which training tasks live, on the learner's side only: problems by index, and what a completion is
worth.

What always holds: an index names one problem for ever (a pure function of the task's spec and the index, so that a
reward can be computed again after a restart or in another process); training and held-out problems never share a
prompt; a task works on text and knows nothing of tokens, peers or versions. The difficulty is part of the index
(`learner.curriculum.problem_index`), so a curriculum can move while leases are out. What a task is, and whatever it
returns, passes one gate (`node.tasks.gate`); nobody asks `isinstance` of the protocols here, which runs a task's
properties on Python 3.11.

Third parties offer a `TaskKind` under the entry point group "volery.tasks"; see docs/tasks.md.
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
"""Either way: the trainer computes in float32, which holds the square of it and no more."""


class CannotSay(Enum):
    """The type of CANNOT_SAY, for annotations."""

    CANNOT_SAY = "cannot say"

    def __repr__(self) -> str:
        return self.name


CANNOT_SAY = CannotSay.CANNOT_SAY
"""The reward of which nobody can say what it is: the group of such a completion is dropped, and it is no failure."""


class TaskError(UsageError):
    """A task, its file or the model's tokenizer cannot be used; the message names file or field and the next step."""


class Chat(Enum):
    """Whether a prompt passes through the model's chat template."""

    NEVER = "never"
    AUTO = "auto"
    """Through the template when the model has one, plain otherwise."""
    ALWAYS = "always"


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool that the policy may call. `parameters` is the JSON schema of its arguments: text, or the same as a
    mapping. The chat template shows all three to the policy."""

    name: str
    description: str = ""
    parameters: str | Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call of a tool. `arguments` is a mapping of JSON values. `id` joins the call with the message that answers
    it: nine letters and digits, which the templates of every family take."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChatMessage:
    """One message of a conversation: role is "system", "user", "assistant" or "tool".

    A message of role "tool" answers the call `tool_call_id` of the tool `name`. `tool_calls` are what an assistant's
    message calls.
    """

    role: str
    content: str
    name: str = ""
    tool_call_id: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """What the policy said in one turn, read by the model's tool format.

    `content` is the text without thinking and without calls. `calls` are those that could be read, in order;
    `malformed` has a sentence for each one that could not, which may be shown to the policy. `thinking` is what stood
    between <think> and </think>: a call in there is none.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    malformed: tuple[str, ...] = ()
    thinking: str = ""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What one index asks. Everything but `prompt` and `tools` stays with the learner.

    `prompt` is plain text, or messages, which need a chat template. `answer` is a reference answer, used by the reward
    and for a supervised warm start; None when the task has none to give. `tools` are shown to the policy by the chat
    template, which they need.
    """

    prompt: str | tuple[ChatMessage, ...]
    answer: str | None = None
    chat: Chat = Chat.NEVER
    tools: tuple[Tool, ...] = ()


Answer = str | tuple[ChatMessage, ...]
"""What the policy reads between two turns: text, which is one user's message where there are messages, or messages."""


class Turn(NamedTuple):
    """One part of a dialogue: what the policy said, and what the task answered."""

    said: str
    answered: Answer


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What the policy said. `finished`: it ended by itself, with a stop id (not part of `text`), within its budget.

    In a task of several turns `text` is what it said last, and `turns` are those before that.
    """

    text: str
    finished: bool
    turns: tuple[Turn, ...] = ()


Reward = float | CannotSay | Mapping[str, float | CannotSay]
"""What `reward` returns: a number, CANNOT_SAY, or either by name."""


class Task(Protocol):
    """Problems by their index, and what a completion of each is worth.

    An index names one problem for ever, so that a reward can be computed again after a restart or in another process.
    Training and held-out problems never share a prompt. A task works on text: it knows nothing of tokens or peers.
    """

    @property
    def name(self) -> str:
        """The kind's name, as leases and reports show it."""

    @property
    def levels(self) -> int:
        """How many difficulties there are, at least 1; 0 is the easiest."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever an index may mean another problem: kind, options, seed, content of files."""

    def problem(self, index: int) -> Problem:
        """The training problem of `index` >= 0."""

    def held_out(self, index: int) -> Problem:
        """The held-out problem of `index` >= 0, the same for every seed. Raises TaskError when there is none."""

    def reward(self, problem: Problem, completion: Completion) -> Reward | Awaitable[Reward]:
        """What `completion` is worth: 1.0 for fully right, at most MAX_REWARD either way. Pure: it runs in a verifier's
        process, or inside the learner's node if the task says that it is cheap.

        It may be `async def`: then many are waited for at a time, each for `[verifiers] timeout_s` at most.
        """


@runtime_checkable
class CheapTask(Task, Protocol):
    """A task that may say that it is cheap. What says nothing is asked in a process of its own, with a time limit."""

    @property
    def is_cheap(self) -> bool:
        """Whether `reward` and `answer_turn` take well under a millisecond and little memory, whatever a stranger made
        the policy say: then the node asks them itself."""


@runtime_checkable
class NeedyTask(Task, Protocol):
    """A task that needs something of the machine where rewards are computed."""

    def require(self) -> None:
        """Raises TaskError, which says what to install, where that is not there. Asked once, before any reward."""


@runtime_checkable
class FiniteTask(Task, Protocol):
    """A task of `size` problems: index i asks problem i % size. It is gone through pass by pass, each in an order of
    its own, and the pass rate of every problem is remembered (`learner.curriculum.epochs`)."""

    @property
    def size(self) -> int:
        """How many training problems there are, at least 1. `levels` is 1."""

    @property
    def num_held_out(self) -> int:
        """How many held-out problems there are; no more are ever asked for."""

    @property
    def notes(self) -> Sequence[str]:
        """What the operator is told at the start, in whole clauses: how many problems, and which were left out."""

    @property
    def pass_rates(self) -> Sequence[float] | None:
        """Pass rates that were measured before, [size] in [0, 1], NaN where there is none; None: of no problem."""


@runtime_checkable
class TurnTask(Task, Protocol):
    """A task of several turns; one without this method has one.

    `answer_turn` is a pure function, so that whoever holds the transcript can replay it: an environment's state is
    folded from the turns, never kept between calls. An episode also ends when the policy uses up the budget of a turn,
    or when the operator's limits leave no room for another; `reward` judges what was said until then.
    """

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
        """What the policy reads next after saying `said`; None ends the episode, and `reward` judges the transcript."""


@runtime_checkable
class FormTask(Task, Protocol):
    """A task that can tell whether an answer has the right form, whatever it is worth. `volery warmup` teaches until
    enough answers have it. Of a task without this method every answer has it that ends by itself and says something."""

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Whether `completion`, which ended by itself, is of the form in which an answer to `problem` can be right.
        Pure, and as quick as text is read: it is asked in the process that warms a model up."""


# Specs: NAME[:ARGUMENT][:key=value[,key=value]]

OptionValue = str | int | float


@dataclass(frozen=True, kw_only=True)
class Option:
    """One key of a spec. Its type is that of `default`; numbers lie in [minimum, maximum], text is among `choices`."""

    key: str
    default: OptionValue
    help: str
    minimum: float = float("-inf")
    maximum: float = float("inf")
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """A spec after parsing: every option present, typed and in range.

    `argument` is "" for kinds that take none; `directory` is what relative paths in it are relative to; `seed` orders
    the training problems and never touches the held-out ones. `services` has what swarm.toml says in `[judge]` and
    `[reward_service]`, by these names, where it says something.
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
    """A family of tasks: what an entry point of the group "volery.tasks" resolves to.

    `argument` names what stands between the name and the options, for example "PATH"; None: nothing may stand there.
    `free_options`: others than `options` may be given, too, and are text. `build` raises TaskError.
    """

    name: str
    summary: str
    build: Callable[[TaskArguments], Task | EnvironmentTask]
    argument: str | None = None
    options: tuple[Option, ...] = ()
    free_options: bool = False
