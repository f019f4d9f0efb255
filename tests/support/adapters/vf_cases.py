"""Provide environments of the package verifiers for the tests of its adapter, chosen by `kind`."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"say {number}", "answer": str(number)} for number in range(20)]


def exact(completion: Any, answer: str) -> float:
    return float(bool(completion) and completion[-1].content == answer)


def short(completion: Any) -> float:
    said = [message.content or "" for message in completion if message.role == "assistant"]
    return float(sum(map(len, said)) < 3)


def compared(completions: Any) -> list[float]:
    return [0.0 for _ in completions]


def failing(completion: Any) -> float:
    raise RuntimeError("no")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


class Counting(vf.MultiTurnEnv):
    """Answers with the number of turns, until the policy says "stop"."""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        if messages[-1].content == "broken":
            raise vf.InfraError("its server is gone")
        return [{"role": "user", "content": f"turn {len(state['trajectory'])}"}]

    @vf.stop
    async def told_to_stop(self, state: Any) -> bool:
        return bool(state["trajectory"]) and state["trajectory"][-1]["completion"][-1].content == "stop"


class Rewriting(Counting):
    """Forgets everything before the last turn."""

    async def get_prompt_messages(self, state: Any) -> Any:
        messages = await super().get_prompt_messages(state)
        return messages if len(messages) < 4 else messages[-3:]


class Otherwise(Counting):
    """Begins with another prompt than its data set has."""

    async def setup_state(self, state: Any) -> Any:
        state["prompt"] = [{"role": "user", "content": "something else"}]
        return state


class Gathering(Counting):
    """Asks twice at once, and forgives errors."""

    async def get_prompt_messages(self, state: Any) -> Any:
        asked = [self.get_model_response(state, state["prompt"]) for _ in range(2)]
        await asyncio.gather(*asked, return_exceptions=True)
        return state["prompt"]


class Direct(Counting):
    """Speaks to the model's server itself."""

    async def get_prompt_messages(self, state: Any) -> Any:
        await state["client"].client.chat.completions.create(model="m", messages=[])
        return state["prompt"]


class Hanging(Counting):
    """Never answers; its rollout reports when it is cleaned up."""

    cleaned: ClassVar[list[str]] = []

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        await asyncio.Event().wait()

    @vf.cleanup
    async def tell(self, state: Any) -> None:
        self.cleaned.append(state["trajectory_id"])


KINDS = {
    "hanging": Hanging,
    "counting": Counting,
    "rewriting": Rewriting,
    "otherwise": Otherwise,
    "gathering": Gathering,
    "direct": Direct,
}


def load_environment(kind: str = "single", rows: int = 20) -> Any:
    data = Dataset.from_list(ROWS[:rows])
    rubric = vf.Rubric(funcs=[exact, short], weights=[1.0, 0.5])
    if kind in KINDS:
        return KINDS[kind](dataset=data, rubric=rubric, max_turns=3)
    match kind:
        case "single":
            return vf.SingleTurnEnv(dataset=data, rubric=rubric)
        case "completion":
            plain = Dataset.from_list([{"prompt": row["question"], "answer": row["answer"]} for row in ROWS])
            return vf.SingleTurnEnv(dataset=plain, rubric=rubric)
        case "tool":
            return vf.ToolEnv(tools=[add], dataset=data, rubric=rubric, max_turns=4)
        case "stopping":
            return vf.ToolEnv(tools=[add], dataset=data, rubric=rubric, stop_errors=[Exception])
        case "eval":
            return vf.SingleTurnEnv(dataset=data, eval_dataset=Dataset.from_list(ROWS[15:]), rubric=rubric)
        case "eval_alone":
            return vf.SingleTurnEnv(eval_dataset=data, rubric=rubric)
        case "compared":
            return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[compared]))
        case "unrewarded":
            return vf.SingleTurnEnv(dataset=data)
        case "failing":
            return vf.SingleTurnEnv(dataset=data, rubric=vf.Rubric(funcs=[failing, short]))
        case "twice":
            group = vf.RubricGroup(rubrics=[rubric, vf.Rubric(funcs=[short], weights=[0.25])])
            return vf.SingleTurnEnv(dataset=data, rubric=group)
        case "limited":
            return vf.SingleTurnEnv(
                dataset=data, rubric=rubric, timeout_seconds=7.0, sampling_args={"temperature": 0.1}
            )
        case "picture":
            part = {"type": "image_url", "image_url": {"url": "data:"}}
            seen = Dataset.from_list([{"prompt": [{"role": "user", "content": [part]}], "answer": "a"}])
            return vf.SingleTurnEnv(dataset=seen, rubric=rubric)
        case "group":
            return vf.EnvGroup(envs=[vf.SingleTurnEnv(dataset=data, rubric=rubric)])
        case "nothing":
            return SimpleNamespace(env_id="", env_args={})
    raise ValueError(f"no kind {kind!r}")
