"""A language model as a judge, asked over the chat completions protocol of OpenAI, which vLLM and llama.cpp speak, too.

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
from node.tasks.services.terms import ServiceTerms, Unsaid, Worth
from node.tasks.services.verdicts import PROMPT, RESPONSE, message_of, messages, score_of

PATH = "/chat/completions"


@dataclass(frozen=True, kw_only=True)
class JudgeTerms(ServiceTerms):
    """`prompt` holds {response}, and perhaps {question} and {answer}. `scale`: the worst score, and the best. `fields`
    are in each request, beside the model and the messages."""

    model: str = ""
    prompt: str = PROMPT
    scale: tuple[float, float] = (0.0, 10.0)
    fields: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0, "max_tokens": 1024})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.url.rstrip("/").endswith(PATH):
            object.__setattr__(self, "url", self.url.rstrip("/") + PATH)
        object.__setattr__(self, "scale", _scale(self.name, self.scale))
        object.__setattr__(self, "batch", 1)  # the protocol has no other
        if not self.model:
            raise TaskError(f"{self.name} model: names no model. Name the one that the server has (GET /v1/models).")
        if RESPONSE not in self.prompt:
            raise TaskError(f"{self.name} prompt: lacks {RESPONSE}, where the completion goes. Put it there.")
        try:
            json.dumps(self.fields, allow_nan=False)
        except (TypeError, ValueError):
            raise TaskError(
                f"{self.name} fields: hold a value that is no text, number, true, false, list or table of these. Write "
                "a date as text."
            ) from None


def _scale(name: str, scale: Any) -> tuple[float, float]:
    if len(scale) != 2 or not -1e15 <= scale[0] < scale[1] <= 1e15:
        raise TaskError(f"{name} scale: must be two numbers, the worst score and the best, as [0, 10].")
    return float(scale[0]), float(scale[1])


class Judge:
    """A judge. Make one for a task and keep it: it remembers verdicts, and whether it was reached.

    Args:
        url: as OpenAI's clients take it, up to and with `/v1`.
        model: the name under which the server knows the judge.
        more: any of `prompt`, `scale`, `fields`, `api_key_env`, `proxy`, `timeout_s`, `retries`, `at_once` and
            `cache_entries`, as in `[judge]` of swarm.toml.

    Raises:
        TaskError: one of these cannot be.
    """

    def __init__(self, *, url: str, model: str, name: str = "judge", **more: Any) -> None:
        try:
            terms = JudgeTerms(name=name, url=url, model=model, **more)
        except TypeError as error:
            raise TaskError(f"volery.Judge takes no such thing: {error}.") from None
        self._use(terms)

    @classmethod
    def of(cls, terms: JudgeTerms) -> Judge:
        """The one with these terms."""
        made = cls.__new__(cls)
        made._use(terms)
        return made

    def _use(self, terms: JudgeTerms) -> None:
        self._terms = terms
        self._asker = Asker(terms, _Chat(terms.scale))

    async def score(self, *, question: str, response: str, answer: str = "") -> float | CannotSay:
        """What the judge finds `response` worth, from 0.0, the worst of its scale, to 1.0; CANNOT_SAY where it does not
        say. `answer`: the reference, if there is one. Raises TaskError where its key is not in the environment."""
        found = await self._asker.ask(self._question(question, answer, response))
        return found if isinstance(found, float) else CANNOT_SAY

    async def reward(self, problem: Problem, completion: Completion) -> float | CannotSay:
        """The score of a completion, its earlier turns included. Raises as `score` does."""
        return await self.score(
            question=asked_text(problem), response=said_text(completion), answer=problem.answer or ""
        )

    async def try_out(self) -> None:
        """Ask once. Raises TaskError that says what failed."""
        await require_answer(self._asker, self._question("What is 6 * 7?", "42", "42"))

    def require(self) -> None:
        """Raises TaskError where its key is not in the environment."""
        self._asker.require()

    async def close(self) -> None:
        """End the connections."""
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

    def read(self, body: bytes, count: int) -> list[Worth | Unsaid]:
        """Raises ValueError."""
        said = message_of(json.loads(body))
        return [said if isinstance(said, Unsaid) else score_of(said, self.scale)]


def asked_text(problem: Problem) -> str:
    """What a problem asks, as a judge reads it."""
    if isinstance(problem.prompt, str):
        return problem.prompt
    return "\n".join(f"{message.role}: {message.content}" for message in problem.prompt)


def said_text(completion: Completion) -> str:
    """What the policy said, with what it read between its turns."""
    lines = []
    for turn in completion.turns:
        answered = turn.answered
        read = answered if isinstance(answered, str) else "\n".join(one.content for one in answered)
        lines += [f"policy: {turn.said}", f"it read: {read}"]
    return "\n".join([*lines, f"policy: {completion.text}"]) if lines else completion.text
