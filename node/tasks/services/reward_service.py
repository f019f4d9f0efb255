"""Ask a plain HTTP service what completions are worth: a list of items in, a list of rewards out.

    POST {"items": [{"prompt", "completion", "turns", "answer", "index", "finished"}]}
    -> {"rewards": [1.0, null, {"correct": 1, "format": 0.5}]}

null means that the service cannot judge the item. An author may use a service in a reward:

    from volery import RewardService

    service = RewardService(url="http://127.0.0.1:9000/rewards", batch=16)
    reward = await service.reward(problem, completion)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from learner.rollouts.reward_parts import MAX_NAME_CHARACTERS, MAX_PARTS
from node.tasks.api.interface import (
    CANNOT_SAY,
    MAX_REWARD,
    Answer,
    CannotSay,
    ChatMessage,
    Completion,
    Problem,
    TaskError,
)
from node.tasks.services.asker import Asker, require_answer
from node.tasks.services.terms import ServiceReward, ServiceTerms, Unsaid, shortened


@dataclass(frozen=True, kw_only=True)
class RewardServiceTerms(ServiceTerms):
    """The settings of a reward service. `weights`: of named rewards; the default is 1."""

    batch: int = 16
    weights: Mapping[str, float] = field(default_factory=dict)


class RewardService:
    """An HTTP service that computes rewards. Make one for a task and keep it: it gathers batches, and caches answers.

    Args:
        url: where items are posted.
        more: any of `batch`, `batch_wait_s`, `api_key_env`, `proxy`, `timeout_s`, `retries`, `at_once` and
            `cache_entries`, as in `[reward_service]` of swarm.toml.

    Raises:
        TaskError: one of these has an invalid value.
    """

    def __init__(self, *, url: str, name: str = "reward service", **more: Any) -> None:
        try:
            terms = RewardServiceTerms(name=name, url=url, **more)
        except TypeError as error:
            raise TaskError(f"volery.RewardService does not have this argument: {error}.") from None
        self._use(terms)

    @classmethod
    def of(cls, terms: RewardServiceTerms) -> RewardService:
        """Return a service with these settings."""
        made = cls.__new__(cls)
        made._use(terms)
        return made

    def _use(self, terms: RewardServiceTerms) -> None:
        self._terms = terms
        self._asker = Asker(terms, _Items())

    @property
    def weights(self) -> Mapping[str, float]:
        """The weights of named rewards, as given."""
        return self._terms.weights

    async def reward(
        self, problem: Problem, completion: Completion, *, index: int | None = None
    ) -> float | Mapping[str, float | CannotSay] | CannotSay:
        """Return the service's reward for the completion; CANNOT_SAY if it gives none. `index`: a number by which the
        service may know the problem. Raises TaskError if its key is not in the environment."""
        found = await self._asker.ask(_item(problem, completion, index))
        if isinstance(found, Unsaid):
            return CANNOT_SAY
        if isinstance(found, Mapping):  # a name with a weight but without a reward is CANNOT_SAY
            known = dict.fromkeys(self._terms.weights) | dict(found)
            return {name: CANNOT_SAY if reward is None else reward for name, reward in known.items()}
        return found

    async def try_out(self, problem: Problem | None = None) -> None:
        """Ask once for the reward of the reference answer of `problem`. Raises TaskError, which says what failed."""
        problem = problem or Problem(prompt="What is 6 * 7?", answer="42")
        completion = Completion(text=problem.answer or "", finished=True)
        await require_answer(self._asker, _item(problem, completion, 0))

    def require(self) -> None:
        """Raise TaskError if its key is not in the environment."""
        self._asker.require()

    async def close(self) -> None:
        """Close the connections."""
        await self._asker.close()


def _item(problem: Problem, completion: Completion, index: int | None) -> bytes:
    turns = [{"said": turn.said, "answered": _conversation(turn.answered)} for turn in completion.turns]
    item = {
        "prompt": _conversation(problem.prompt),
        "completion": completion.text,
        "turns": turns,
        "answer": problem.answer,
        "index": index,
        "finished": completion.finished,
    }
    return json.dumps(item, allow_nan=False).encode()


def _conversation(said: Answer) -> Any:
    return said if isinstance(said, str) else [_message(message) for message in said]


def _message(message: ChatMessage) -> dict[str, Any]:
    more: dict[str, Any] = {"name": message.name, "tool_call_id": message.tool_call_id}
    more["tool_calls"] = [
        {"id": call.id, "name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls
    ]
    return {"role": message.role, "content": message.content, **{key: value for key, value in more.items() if value}}


@dataclass(frozen=True)
class _Items:
    """The protocol that the module's docstring shows."""

    def write(self, questions: list[bytes]) -> bytes:
        return b'{"items": [%b]}' % b", ".join(questions)

    def read(self, body: bytes, count: int) -> list[ServiceReward | Unsaid]:
        """Return the answers in a reply. Raises ValueError."""
        reply = json.loads(body, parse_constant=_no_number)
        rewards = reply.get("rewards") if isinstance(reply, dict) else None
        if not isinstance(rewards, list):
            raise ValueError('it is not {"rewards": [...]}')
        if len(rewards) != count:
            raise ValueError(f"it has {len(rewards)} rewards for {count} items")
        return [_reward(one) for one in rewards]


def _reward(told: Any) -> ServiceReward | Unsaid:
    """Return the reward in a JSON value. Raises ValueError."""
    if told is None:
        return Unsaid("")  # without a reason: null is a valid answer
    if not isinstance(told, dict):
        return _number(told)
    if not 0 < len(told) <= MAX_PARTS:
        raise ValueError(f"a reward has {len(told)} names; 1 to {MAX_PARTS} are allowed")
    return {_name(name): None if reward is None else _number(reward) for name, reward in told.items()}


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"a reward named {shortened(name, 80)!r}; a name has 1 to {MAX_NAME_CHARACTERS} letters, digits, spaces "
            "and signs of _-./"
        )
    return name


def _number(told: Any) -> float:
    """Return a number that a reward may be. Raises ValueError."""
    if isinstance(told, bool) or not isinstance(told, int | float):
        raise ValueError(f"a reward is not a number, null or an object: {shortened(json.dumps(told), 80)}")
    if not abs(told) <= MAX_REWARD:
        raise ValueError("a reward is not a number, or is too large")
    return float(told)


_NAME = re.compile(rf"[A-Za-z0-9_\-./ ]{{1,{MAX_NAME_CHARACTERS}}}")
"""The allowed names of rewards (`node.tasks.gate`)."""


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")
