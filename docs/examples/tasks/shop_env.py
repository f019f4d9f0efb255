"""An environment of the package verifiers: what does a basket cost? The price of each fruit comes from a tool.

The policy calls `price` as often as it likes, and then says the sum. Its rubric has three rewards: whether the last
message is the sum, whether it asked for fruits that the shop has, and whether it was brief. The data is made here, so
that nothing is downloaded.
"""

import random

import verifiers as vf
from datasets import Dataset

PRICES = {"apple": 3, "pear": 5, "plum": 2, "fig": 7}


def price(fruit: str) -> int:
    """Look up what a fruit costs.

    Args:
        fruit: its name.
    """
    return PRICES[fruit]


def right_sum(completion: vf.Messages, answer: str) -> float:
    """1 where the last message is the sum."""
    return float(bool(completion) and str(completion[-1].content or "").strip() == answer)


def looked_up(completion: vf.Messages) -> float:
    """The share of prices asked for that the shop has."""
    told = [str(message.content) for message in completion if message.role == "tool"]
    return sum(one.isdigit() for one in told) / max(len(told), 1)


def spoke_briefly(completion: vf.Messages) -> float:
    """1 less a hundredth for each character said, at least 0."""
    said = sum(len(message.content or "") for message in completion if message.role == "assistant")
    return max(0.0, 1.0 - said / 100)


def load_environment(rows: int = 200, max_turns: int = 4) -> vf.Environment:
    """Make the environment. Its first tenth of the baskets is for evaluation."""
    dice = random.Random(0)
    baskets = sorted({tuple(dice.choices(sorted(PRICES), k=dice.randint(1, 6))) for _ in range(rows)})
    told = [
        {"question": f"What do these cost: {', '.join(basket)}?", "answer": str(sum(PRICES[one] for one in basket))}
        for basket in baskets
    ]
    kept_back = len(told) // 10
    return vf.ToolEnv(
        tools=[price],
        max_turns=max_turns,
        dataset=Dataset.from_list(told[kept_back:]),
        eval_dataset=Dataset.from_list(told[:kept_back]),
        system_prompt="Say the sum as a bare number.",
        rubric=vf.Rubric(funcs=[right_sum, looked_up, spoke_briefly], weights=[1.0, 0.2, 0.1]),
    )
