"""Run one rollout of a `verifiers` environment as an environment of ours.

The environment drives the policy itself: for each turn it awaits the response of a client. The client here is ours. Its
`get_response` passes on the new messages of the conversation, and waits until the policy has spoken. That happens on
another machine, under a lease with a seed. Only the messages of a request count; the model's name and the sampling
arguments are ignored.

    environment() ... rollout -> get_response(prompt) waits
    step(spoken)  ... the response; rollout -> get_response(prompt, spoken, new messages) waits; the new messages
    step(spoken)  ... the response; rollout returns its state; over
    reward()      ... rubric.score_rollout(state)

Invariants:

- The rollout runs only while a call of `step` or `reward` is waiting. Between two calls it waits for the policy.
- Only one request waits at a time. Any other request of the environment fails its episode, even if the environment
  catches the error.
- If the operator's limits end an episode, the rollout ends as in the package when a prompt is too long. Its rubric then
  judges what was reached until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from node.tasks.adapters.chat_transcript import ChatTranscript
from node.tasks.adapters.verifiers.messages import message_of, read_messages, read_tools, write_call
from node.tasks.adapters.verifiers.package import VerifiersPackage
from node.tasks.api.environment import Observed
from node.tasks.api.interface import Problem, Reward, Spoken, TaskError, Tool

MODEL = "policy"
"""The model's name, which environments put into requests and logs."""


@dataclass(kw_only=True)
class VerifiersEpisode:
    """One rollout. `who`: names the environment in errors. `row`: the input of the rollout."""

    package: VerifiersPackage
    environment: Any
    reward_names: Sequence[str]
    problem: Problem
    row: Mapping[str, Any]
    who: str
    tools: tuple[Tool, ...] = ()
    _transcript: ChatTranscript = field(init=False)
    _rollout: asyncio.Task[Any] | None = None
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while a request waits for the policy."""
    _spoken: asyncio.Future[Any] | None = None
    """The response that this request waits for."""
    _new: Any = None
    """The new messages in this request."""
    _failure: TaskError | None = None
    _is_cut: bool = False
    """Whether the operator's limits have ended the episode."""
    _is_scored: bool = False

    def __post_init__(self) -> None:
        self._transcript = ChatTranscript(prompt=self.problem.prompt, who=self.who)

    async def begin(self) -> None:
        """Start the rollout, and wait for its first request. Raises TaskError if that is not the prompt of its data
        set."""
        client = _policy_of(self.package, self)
        rollout = self.environment.rollout(deepcopy(dict(self.row)), client, MODEL, {})
        self._rollout = asyncio.get_running_loop().create_task(rollout)
        try:
            await self._until_quiet()
        except BaseException:
            await self.close()  # the caller closes only environments that could be made
            raise

    async def step(self, spoken: Spoken) -> Observed:
        """Give the environment what the policy said, and return what the policy reads next."""
        if self._spoken is None:
            return None  # it has ended without asking for this turn
        message = message_of(spoken)
        self._transcript.say(message)
        waiting, self._spoken = self._spoken, None
        self._asked.clear()
        waiting.set_result(self._response(spoken))
        if await self._until_quiet():
            return None
        return self._new  # type: ignore[no-any-return]

    async def reward(self) -> Reward:
        """Return the rewards of the rubric: each of `reward_names`, or the total if there are none."""
        state = await self._end()
        await self.environment.rubric.score_rollout(state)
        self._is_scored = True
        await _clean(self.environment.rubric, state)
        metrics = state.get("metrics") or {}
        if self.reward_names:
            return {name: metrics[name] for name in self.reward_names}
        total: Reward = state["reward"]
        return total

    async def close(self) -> None:
        """Cancel the rollout, which releases what it holds."""
        rollout = self._rollout
        if rollout is None:
            return
        rollout.cancel()
        with suppress(asyncio.CancelledError, Exception):  # it was told to end, and nothing depends on how it ends
            await asyncio.wait([rollout])
            if not rollout.cancelled() and rollout.exception() is None and not self._is_scored:
                await _clean(self.environment.rubric, rollout.result())

    # Requests of the client

    async def ask(self, messages: object, tools: object, sampling: object) -> Any:
        """Return the policy's next turn, once it has spoken. Raises TaskError for a request that is not supported."""
        if self._is_cut:
            raise self.package.errors.OverlongPromptError("the operator's limits leave no room for another turn")
        if self._spoken is not None:
            raise self._fail("asks for several answers at once. An episode is one conversation, turn by turn.")
        if isinstance(sampling, Mapping) and (sampling.get("n") or 1) != 1:
            raise self._fail(f"asks for {sampling['n']} answers to one prompt, but may only ask for one.")
        try:
            where = f"a request of {self.who}"
            if (asked := read_tools(tools or (), where)) != self.problem.tools:
                names = [", ".join(tool.name for tool in each) or "none" for each in (asked, self.problem.tools)]
                raise TaskError(
                    f"{self.who} shows the policy other tools than its data set says: {names[0]}, but the prompt "
                    f"shows {names[1]}, or the same with other descriptions."
                )
            new = self._transcript.read(read_messages(messages, where))
        except TaskError as error:
            self._failure = error
            raise
        self._new = new
        self._spoken = asyncio.get_running_loop().create_future()
        self._asked.set()
        return await self._spoken

    def _fail(self, what: str) -> TaskError:
        self._failure = TaskError(f"{self.who} {what}")
        return self._failure

    def _response(self, spoken: Spoken) -> Any:
        types = self.package.types
        calls = [types.ToolCall(**write_call(call)) for call in spoken.calls]
        message = types.ResponseMessage(
            content=spoken.content,
            reasoning_content=spoken.thinking or None,
            tool_calls=calls or None,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return types.Response(id="", created=0, model=MODEL, message=message)

    # The progress of the rollout

    async def _until_quiet(self) -> bool:
        """Wait until the rollout sends a request, or ends; then return True. Raises what the rollout raised."""
        rollout = self._rollout
        assert rollout is not None, "the rollout has begun"
        asked = asyncio.get_running_loop().create_task(self._asked.wait())
        try:
            await asyncio.wait([rollout, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
        if self._failure is not None:
            raise self._failure
        if not rollout.done():
            return False
        self._state()
        return True

    async def _end(self) -> Any:
        """Return the state of the rollout. Ends the rollout if it still runs."""
        rollout, waiting = self._rollout, self._spoken
        assert rollout is not None, "the rollout has begun"
        if not rollout.done():
            self._is_cut, self._spoken = True, None
            assert waiting is not None, "between two calls the rollout waits for the policy"
            waiting.set_exception(self.package.errors.OverlongPromptError("the operator's limits ended the episode"))
            await asyncio.wait([rollout])
        return self._state()

    def _state(self) -> Any:
        """Return what the rollout has returned. Raises TaskError if it failed."""
        rollout = self._rollout
        assert rollout is not None, "the rollout has begun"
        if self._failure is not None:
            raise self._failure
        if rollout.cancelled():
            raise TaskError(f"{self.who} has cancelled its own rollout.")
        if (raised := rollout.exception()) is not None:
            if isinstance(raised, TaskError):
                raise raised
            raise TaskError(f"{self.who} failed: {_error_text(raised)}.") from raised
        state = rollout.result()
        error = state.get("error")
        if error is not None and not isinstance(error, self.package.errors.ToolError):
            raise TaskError(
                f"{self.who} failed: {_error_text(error)}."
            )  # only a tool's error is the policy's own mistake
        return state


def _policy_of(package: VerifiersPackage, episode: VerifiersEpisode) -> Any:
    """Return a client of the package whose responses are what the policy says in that episode."""

    async def get_response(self: Any, prompt: Any, model: Any, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
        return await episode.ask(prompt, tools, sampling_args)

    async def close(self: Any) -> None:
        """Do nothing, as there is nothing to close."""

    def refuse(self: Any, *_: Any, **__: Any) -> Any:
        raise episode._fail("speaks to a model's server itself. It must ask `get_model_response`.")

    parts = dict.fromkeys(getattr(package.client, "__abstractmethods__", ()), refuse)
    kind = type("Policy", (package.client,), {**parts, "get_response": get_response, "close": close})
    return kind(_NoServer(refuse))


class _NoServer:
    """Stands in the place where other clients hold a vendor's client."""

    def __init__(self, refuse: Any) -> None:
        self._refuse = refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # attributes that `deepcopy` and the like look for in any object
            raise AttributeError(name)
        return self._refuse(self)


async def _clean(rubric: Any, state: Any) -> None:
    if callable(clean := getattr(rubric, "cleanup", None)):
        await clean(state)


def _error_text(error: BaseException) -> str:
    """Return the error and its causes as text."""
    chain, seen = [], 0
    next_: BaseException | None = error
    while next_ is not None and seen < 4:
        text = str(next_)
        chain.append(f"{type(next_).__name__}: {text}" if text else type(next_).__name__)
        next_, seen = next_.__cause__, seen + 1
    return ", from ".join(chain)
