"""Ask a language model to judge completions, over OpenAI's chat completions protocol (also of vLLM and llama.cpp).

An author may use a judge in a reward:

    from volery import Judge

    judge = Judge(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-32B")
    reward = await judge.score(question="6 * 7?", answer="42", response="It is 42.")
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from node.tasks.api.interface import CANNOT_SAY, CannotSay, Completion, Problem, TaskError
from node.tasks.services.asker import Asker, require_answer
from node.tasks.services.terms import ServiceReward, ServiceTerms, Unsaid
from node.tasks.services.verdicts import PROMPT, RESPONSE, message_of, messages, score_of

PATH = "/chat/completions"


@dataclass(frozen=True, kw_only=True)
class JudgeTerms(ServiceTerms):
    """The settings of a judge. `prompt`: contains {response}, and perhaps {question} and {answer}. `scale`: the worst
    and the best score. `fields`: sent with each request, in addition to the model and the messages."""

    model: str = ""
    prompt: str = PROMPT
    scale: tuple[float, float] = (0.0, 10.0)
    fields: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_tokens": 1024})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.rstrip("/").endswith(PATH):
            object.__setattr__(self, "url", self.url.rstrip("/") + PATH)
        object.__setattr__(self, "scale", _scale(self.name, self.scale))
        object.__setattr__(self, "batch", 1)  # the protocol allows no more
        if not self.model:
            raise TaskError(f"{self.name} model: names no model. Name the one that the server has (GET /v1/models).")
        if RESPONSE not in self.prompt:
            raise TaskError(f"{self.name} prompt: lacks {RESPONSE}, the place of the completion. Add it.")
        try:
            json.dumps(self.fields, allow_nan=False)
        except (TypeError, ValueError):
            raise TaskError(
                f"{self.name} fields: contain a value that is not text, a number, true, false, a list or a table of "
                "these. Write a date as text."
            ) from None


def _scale(name: str, scale: Any) -> tuple[float, float]:
    if len(scale) != 2 or not -1e15 <= scale[0] < scale[1] <= 1e15:
        raise TaskError(f"{name} scale: must be two numbers, the worst and the best score, such as [0, 10].")
    return float(scale[0]), float(scale[1])


class Judge:
    """A language model as a judge. Make one for a task and keep it: it caches verdicts, and knows whether it is down.

    Args:
        url: the address up to and with `/v1`, as for OpenAI's clients.
        model: the server's name for the judge.
        more: any of `prompt`, `scale`, `fields`, `api_key_env`, `proxy`, `timeout_s`, `retries`, `at_once` and
            `cache_entries`, as in `[judge]` of swarm.toml.

    Raises:
        TaskError: one of these has an invalid value.
    """

    def __init__(self, *, url: str, model: str, name: str = "judge", **more: Any) -> None:
        try:
            terms = JudgeTerms(name=name, url=url, model=model, **more)
        except TypeError as error:
            raise TaskError(f"volery.Judge does not have this argument: {error}.") from None
        self._use(terms)

    @classmethod
    def of(cls, terms: JudgeTerms) -> Judge:
        """Return a judge with these settings."""
        made = cls.__new__(cls)
        made._use(terms)
        return made

    def _use(self, terms: JudgeTerms) -> None:
        self._terms = terms
        self._asker = Asker(terms, _Chat(terms.scale))

    async def score(self, *, question: str, response: str, answer: str = "") -> float | CannotSay:
        """Return the judge's score of `response`, from 0.0 (worst) to 1.0 (best); CANNOT_SAY if it gives none.
        `answer`: the reference, if there is one. Raises TaskError if the judge's key is not in the environment."""
        found = await self._asker.ask(self._question(question, answer, response))
        return found if isinstance(found, float) else CANNOT_SAY

    async def reward(self, problem: Problem, completion: Completion) -> float | CannotSay:
        """Return the score of a completion, its earlier turns included. Raises TaskError like `score`."""
        return await self.score(
            question=asked_text(problem), response=said_text(completion), answer=problem.answer or ""
        )

    async def try_out(self) -> None:
        """Ask once. Raises TaskError, which says what failed."""
        await require_answer(self._asker, self._question("What is 6 * 7?", "42", "42"))

    def require(self) -> None:
        """Raise TaskError if its key is not in the environment."""
        self._asker.require()

    async def close(self) -> None:
        """Close the connections."""
        await self._asker.close()

    def _question(self, question: str, answer: str, response: str) -> bytes:
        terms = self._terms
        told = messages(terms.prompt, question, answer, response, terms.scale)
        return json.dumps({"model": terms.model, "messages": told, **terms.fields}, allow_nan=False).encode()


@dataclass(frozen=True)
class _Chat:
    """The chat completions protocol: one question is one request."""

    scale: tuple[float, float]

    def write(self, questions: list[bytes]) -> bytes:
        [question] = questions
        return question

    def read(self, body: bytes, count: int) -> list[ServiceReward | Unsaid]:
        """Return the answer in a reply. Raises ValueError."""
        said = message_of(json.loads(body))
        return [said if isinstance(said, Unsaid) else score_of(said, self.scale)]


def asked_text(problem: Problem) -> str:
    """Return what a problem asks, as text for a judge."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{message.role}: {message.content}" for message in problem.prompt)


def said_text(completion: Completion) -> str:
    """Return what the policy said, with what it read between its turns, as text for a judge."""
    lines = []
    for turn in completion.turns:
        answered = turn.answered
        read = answered if isinstance(answered, str) else "\n".join(one.content for one in answered)
        lines += [f"policy: {turn.said}", f"it read: {read}"]
    return "\n".join([*lines, f"policy: {completion.text}"]) if lines else completion.text
