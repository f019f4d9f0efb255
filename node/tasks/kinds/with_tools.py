"""Play any task of one turn with tools: `python` and `shell`, in a sandbox that lasts for the episode.

`tools:SPEC` takes the prompts and rewards of the task SPEC. The policy may call tools up to `calls` times and reads
what they print. A message without a call ends the episode, and SPEC judges that message. This module knows nothing of
the problems, so data files, generated tasks and data sets of reasoning-gym work alike.

Invariants:

- The policy's programs and commands run in `node.tasks.sandbox.workshop` or not at all.
- The files of an episode stay between its calls, and no other episode sees them.
- Every call, right or wrong, is answered with a sentence. The output of a tool is cut to `output` characters.
- An episode ends. After `calls` calls, the policy is told that there are no more. If it still goes on to call, the
  episode ends with the reward of an empty answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from node.tasks.api.interface import (
    Answer,
    Chat,
    ChatMessage,
    Completion,
    Option,
    Problem,
    Spoken,
    Task,
    TaskArguments,
    TaskError,
    TaskKind,
    Tool,
    ToolCall,
)
from node.tasks.gate import FINITE, has, has_environments
from node.tasks.sandbox.bubblewrap import SandboxLimits
from node.tasks.sandbox.workshop import Kind, Lost, Piece, Workshop, require_workshop

TOOLS: Mapping[Kind, tuple[str, Tool]] = {
    "python": (
        "code",
        Tool(
            name="python",
            description="Run a Python program and return what it prints. Files stay until the next call, variables "
            "do not. There is no network.",
            parameters={
                "type": "object",
                "properties": {"code": {"type": "string", "description": "The program."}},
                "required": ["code"],
            },
        ),
    ),
    "shell": (
        "command",
        Tool(
            name="shell",
            description="Run a command of sh and return what it prints. Files stay until the next call. There is no "
            "network.",
            parameters={
                "type": "object",
                "properties": {"command": {"type": "string", "description": "The command."}},
                "required": ["command"],
            },
        ),
    ),
}
"""Each tool, with the name of its one argument."""

WARNINGS = 1
"""Turns that may still contain calls after the last call was run, so that the policy can read that there are no
more."""

NO_MORE = "There are no more calls. Answer now."

SHOWN = 60
"""Characters of a name or value to show to the policy."""

SHOWN_CALLS, SHOWN_OF = 2, 5
"""SHOWN_CALLS of SHOWN_OF examples for a warm start call the tool. In the others the policy gives up, so that the value
of a call is left to be learnt."""

GIVES_UP = "?"
"""The policy's answer when it gives up. A direct answer would not do: its digits differ from example to example, so a
call would be the likeliest beginning from the start."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Which tools there are, and their limits. `output` is in characters."""

    kinds: tuple[Kind, ...]
    calls: int
    output: int
    limits: SandboxLimits
    python: str = ""

    @property
    def tools(self) -> tuple[Tool, ...]:
        return tuple(TOOLS[kind][1] for kind in self.kinds)

    @property
    def fingerprint(self) -> str:
        bounds = self.limits
        return (
            f"{'+'.join(self.kinds)}/{self.calls}/{self.output}/{bounds.time_s:g}/{bounds.memory_mb}/{bounds.processes}"
        )


class ToolEpisode:
    """The environment of one episode. `judge` returns the reward of an answer."""

    def __init__(self, rules: Rules, judge: Callable[[Completion], Any]) -> None:
        self.tools: Sequence[Tool] = rules.tools
        self._rules, self._judge = rules, judge
        self._workshop = Workshop(limits=rules.limits, keep_bytes=4 * rules.output, python=rules.python)
        self._calls = self._warnings = 0
        self._answer: str | None = None

    def step(self, spoken: Spoken) -> Answer | None:
        """Return the results of the calls; None after a message without a call, which is the answer. Waits."""
        if not spoken.calls and not spoken.malformed:
            self._answer = spoken.content
            return None
        if self._calls >= self._rules.calls:
            self._warnings += 1
            if self._warnings > WARNINGS:
                return None
        said = [self._said(call) for call in spoken.calls]
        self._calls += len(spoken.malformed)
        told = list(spoken.malformed)
        if self._calls >= self._rules.calls and NO_MORE not in said:
            told.append(NO_MORE)
        if not said:
            return "\n".join(told)
        # Joined to the last result: some chat templates allow nothing between tools and assistant.
        said[-1] = "\n".join([said[-1], *told])
        return tuple(
            ChatMessage(role="tool", content=text, name=call.name, tool_call_id=call.id)
            for call, text in zip(spoken.calls, said, strict=True)
        )

    def reward(self) -> Any:
        """Return the reward of the answer. An episode without one counts as an empty answer that did not end."""
        answer = self._answer
        return self._judge(Completion(text=answer or "", finished=answer is not None))

    def close(self) -> None:
        """End the sandbox."""
        self._workshop.close()

    def _said(self, call: ToolCall) -> str:
        if self._calls >= self._rules.calls:
            return NO_MORE
        self._calls += 1
        return self._run(call)

    def _run(self, call: ToolCall) -> str:
        """Return what a tool prints, or a sentence if it cannot be run."""
        kind = next((kind for kind in self._rules.kinds if kind == call.name), None)
        if kind is None:
            return f"There is no tool {call.name[:SHOWN]!r}. Tools: {', '.join(self._rules.kinds)}."
        key = TOOLS[kind][0]
        text = call.arguments.get(key)
        if not isinstance(text, str) or len(call.arguments) != 1:
            given = ", ".join(map(str, call.arguments))[:SHOWN] or "nothing"
            return f"{kind} takes one argument, {key}, which is text; it was given {given}."
        return self._in_words(self._workshop.run(kind, text))

    def _in_words(self, ran: Piece | Lost) -> str:
        if isinstance(ran, Lost):
            return "The sandbox was lost, with all files. The next call finds a new one."
        rules = self._rules
        text = ran.output.removesuffix("\n")
        cut = len(text) > rules.output or ran.dropped > 0
        ends = [f"The output is cut after {rules.output} characters."] if cut else []
        if ran.code is None:
            ends.append(f"It did not end within {rules.limits.time_s:g} s, and was ended.")
        elif ran.code:
            ends.append(f"Exit code {ran.code}.")
        elif not text:
            ends.append("It printed nothing.")
        return "\n".join([*([text[: rules.output]] if text else []), *ends])


@dataclass(frozen=True, kw_only=True)
class ToolsTask:
    """A task with the problems of `inner`, played with tools."""

    inner: Task
    rules: Rules
    name: str = "tools"

    @property
    def levels(self) -> int:
        return self.inner.levels

    @property
    def fingerprint(self) -> str:
        return f"tools/{self.rules.fingerprint}/{self.inner.fingerprint}"

    def require(self) -> None:
        """Raise TaskError if tools cannot be run, or if rewards of `inner` cannot be computed."""
        require_workshop(self.rules.limits, self.rules.python)
        if callable(require := getattr(self.inner, "require", None)):
            require()

    async def try_services(self, problem: Problem) -> None:
        """Try the services that `inner` needs for its rewards. Raises TaskError if they do not answer."""
        if (ask := getattr(self.inner, "try_services", None)) is not None:
            await ask(problem)

    @property
    def reward_weights(self) -> Mapping[str, float]:
        """The weights that `inner` gives to its named rewards."""
        found: Mapping[str, float] = getattr(self.inner, "reward_weights", {})
        return found

    def problem(self, index: int) -> Problem:
        return self._with_tools(self.inner.problem(index))

    def held_out(self, index: int) -> Problem:
        return self._with_tools(self.inner.held_out(index))

    def environment(self, problem: Problem, seed: int) -> ToolEpisode:
        del seed  # nothing is random
        return ToolEpisode(self.rules, lambda completion: self.inner.reward(problem, completion))

    def in_form(self, problem: Problem, completion: Completion) -> bool:
        """Return what `inner` says about the message that calls no tool."""
        return not hasattr(self.inner, "in_form") or bool(self.inner.in_form(problem, completion))

    def demonstrate(self, index: int) -> Sequence[ChatMessage]:
        """Return an example for a warm start: a call, its output and the answer, or giving up (`SHOWN_CALLS`). If
        `inner` has no program for its problems, it is only the answer."""
        problem = self.inner.problem(index)
        if problem.answer is None:
            raise TaskError(f"task {self.name!r} has no reference answers, so it cannot warm up a model")
        last = ChatMessage(role="assistant", content=problem.answer)
        program = getattr(self.inner, "program", None)
        if program is None or "python" not in self.rules.kinds:
            return (last,)
        if index % SHOWN_OF >= SHOWN_CALLS:
            return (replace(last, content=GIVES_UP),)
        call = ToolCall(id="warmstart", name="python", arguments={"code": program(problem)})
        return (
            ChatMessage(role="assistant", content="", tool_calls=(call,)),
            ChatMessage(role="tool", content=problem.answer, name=call.name, tool_call_id=call.id),
            last,
        )

    def _with_tools(self, problem: Problem) -> Problem:
        return replace(problem, chat=Chat.ALWAYS, tools=self.rules.tools)


@dataclass(frozen=True, kw_only=True)
class FiniteToolsTask(ToolsTask):
    """The same for a finite number of problems."""

    inner: Any

    @property
    def size(self) -> int:
        return int(self.inner.size)

    @property
    def num_held_out(self) -> int:
        return int(self.inner.num_held_out)

    @property
    def notes(self) -> Sequence[str]:
        return tuple(self.inner.notes)

    @property
    def pass_rates(self) -> Sequence[float] | None:
        found: Sequence[float] | None = self.inner.pass_rates
        return found


OPTIONS = (
    Option(key="tools", default="both", help="the tools to offer", choices=("both", *TOOLS)),
    Option(key="calls", default=8, help="maximum calls in an episode", minimum=1, maximum=256),
    Option(key="output", default=4000, help="maximum characters of a call's output", minimum=16, maximum=100_000),
    Option(key="time_s", default=5.0, help="seconds for each call", minimum=0.1, maximum=600),
    Option(key="memory_mb", default=512, help="memory of each process of a call", minimum=64, maximum=65_536),
    Option(key="processes", default=8, help="processes and threads of a call", minimum=1, maximum=256),
    Option(key="python", default="", help="the interpreter; default: /usr/bin/python3"),
)

OpenInner = Callable[[str, TaskArguments], Task]
"""Opens the task that a spec names, with directory and seed of the arguments. Raises TaskError."""


def tools_kind(open_inner: OpenInner) -> TaskKind:
    """Return the kind `tools`. `open_inner` opens the task inside."""
    return TaskKind(
        name="tools",
        summary='any task of one turn, with tools that run Python and shell commands in a sandbox: "tools:jsonl:PATH"',
        build=lambda arguments: _build(arguments, open_inner),
        argument="SPEC",
        options=OPTIONS,
        free_options=True,
    )


def _build(arguments: TaskArguments, open_inner: OpenInner) -> ToolsTask:
    own = {option.key for option in OPTIONS}
    rest = ",".join(f"{key}={value}" for key, value in arguments.options.items() if key not in own)
    inner = open_inner(f"{arguments.argument}:{rest}" if rest else arguments.argument, arguments)
    if has_environments(inner) or callable(getattr(inner, "answer_turn", None)):
        raise TaskError(f"task 'tools': {arguments.argument} has turns of its own. Name a task of one turn.")
    chosen = arguments.text("tools")
    rules = Rules(
        kinds=tuple(kind for kind in TOOLS if chosen in ("both", kind)),
        calls=arguments.integer("calls"),
        output=arguments.integer("output"),
        limits=SandboxLimits(
            time_s=arguments.number("time_s"),
            memory_mb=arguments.integer("memory_mb"),
            processes=arguments.integer("processes"),
        ),
        python=arguments.text("python"),
    )
    is_finite = all(has(inner, part) for part in FINITE)
    return (FiniteToolsTask if is_finite else ToolsTask)(inner=inner, rules=rules)
