"""Logged completions and preference pairs from files with mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.config.swarm_config import (
    LearnSection,
    ModelSection,
    OfflineSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    TrainerSection,
)
from node.tasks.api.interface import Chat, TaskError
from node.tasks.offline_data import Logs, read_logs
from node.tasks.task_suite import open_task_suite
from node.tasks.tokenizer import TextCodec, write_character_tokenizer

PAIR = {"prompt": "a=", "chosen": "b", "rejected": "cd"}
GROUP = {"prompt": "a=", "completions": [{"text": "b", "reward": 1, "logprobs": [-1, -2]}, {"text": "", "reward": 0.5}]}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_character_tokenizer(tmp_path / "model")
    return tmp_path


def write(base: Path, *rows: Any) -> Path:
    path = base / "logs.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def read(base: Path, *rows: Any, positions: int | None = None, vocabulary: int | None = None) -> Logs:
    codec = TextCodec.load(base / "model")
    return read_logs(write(base, *rows), codec, Chat.NEVER, positions=positions, vocabulary=vocabulary)


def said(base: Path, logs: Logs, group: int = 0) -> list[tuple[str, str, float]]:
    codec = TextCodec.load(base / "model")
    one = logs.groups[group]
    return [(codec.decode(one.prompt), codec.decode(logged.tokens), logged.reward) for logged in one.completions]


def test_pairs_and_groups_are_read(base: Path) -> None:
    logs = read(base, PAIR, "", GROUP)
    codec = TextCodec.load(base / "model")
    stop = codec.decode([codec.eos_id])
    assert said(base, logs) == [("a=", f"b{stop}", 1.0), ("a=", f"cd{stop}", 0.0)]
    assert said(base, logs, 1) == [("a=", f"b{stop}", 1.0), ("a=", stop, 0.5)]
    told, untold = (one.logprobs for one in logs.groups[1].completions)
    assert (list(told or ()), untold) == ([-1.0, -2.0], None)
    assert logs.note.endswith("logs.jsonl: 2 logged groups of 4 completions, 2 of them pairs")


def test_a_text_without_its_end_and_token_ids_are_taken_as_they_are(base: Path) -> None:
    rows = [{"text": "bc", "reward": 0, "finished": False}, {"tokens": [5, 6], "reward": 1, "logprobs": [-1.0, 0.0]}]
    logs = read(base, {"prompt": "a=", "completions": rows})
    first, second = logs.groups[0].completions
    assert (len(first.tokens), list(second.tokens)) == (2, [5, 6])


def test_conversations_are_prompts_and_answers(base: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}={% endfor %}"
    settings = json.loads((base / "model" / "tokenizer_config.json").read_text())
    (base / "model" / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    question = [{"role": "user", "content": "ab"}]
    chosen, rejected = ([*question, {"role": "assistant", "content": text}] for text in ("cd", "dc"))
    whole = {"chosen": chosen, "rejected": rejected}
    apart = {"messages": question, "chosen": chosen[-1:], "rejected": "dc"}
    logs = read(base, whole, apart)
    assert said(base, logs, 0) == said(base, logs, 1)
    assert said(base, logs)[0][0] == "ab="


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "not JSON"),
        ({"prompt": "a="}, "has neither `completions` nor both `chosen` and `rejected`"),
        ({"prompt": "a=", "chosen": "b"}, "has neither"),
        ({"chosen": "b", "rejected": "c"}, "`prompt` is missing or empty"),
        ({"prompt": "", "chosen": "b", "rejected": "c"}, "`prompt` is missing or empty"),
        ({"prompt": "a=", "completions": [{"text": "b", "reward": 1}]}, "`completions` has 1; a group has 2 to 1024"),
        ({**GROUP, "completions": [{"text": "b"}, {"text": "c"}]}, "missing required field `reward`"),
        (
            {**GROUP, "completions": [{"text": "b", "reward": 1}, {"text": "c", "reward": -1e39}]},
            "completion 2: `reward` -1e+39 does not lie between -1e+18 and 1e+18",
        ),
        ('{"prompt": "a=", "completions": [{"text": "b", "reward": NaN}]}', "not JSON"),
        ('{"prompt": "a=", "completions": [{"text": "b", "reward": 1e999}]}', "out of range"),
        ({**GROUP, "completions": [{"reward": 1}] * 2}, "completion 1 needs either `text` or `tokens`"),
        ({**GROUP, "completions": [{"text": "b", "reward": 1, "logprobs": [-1]}] * 2}, "has 1 `logprobs` for 2 tokens"),
        ({**GROUP, "completions": [{"text": "b", "reward": 1, "logprobs": [-1, 2]}] * 2}, "lie between -100 and 0"),
        ({**GROUP, "completions": [{"tokens": [-1], "reward": 1}] * 2}, "holds a number that is not a token id"),
        ({**GROUP, "completions": [{"tokens": [], "reward": 1}] * 2}, "completion 1 has 0 tokens"),
        ({**PAIR, "chosen": [{"role": "user", "content": "b"}]}, "`chosen` does not end with a message of the assist"),
        (
            {
                "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "rejected": [{"role": "assistant", "content": "b"}],
            },
            "differ before their last messages",
        ),
        ({**PAIR, "chosen": "\u00e9"}, "logs.jsonl:3: "),
        ({**PAIR, "chosen": "b" * 40}, "prompt and completion have 43 tokens, and the model has 32 positions"),
    ],
)
def test_a_bad_line_is_named(base: Path, row: Any, says: str) -> None:
    with pytest.raises(TaskError) as caught:
        read(base, PAIR, "", row, positions=32)
    assert "logs.jsonl:3: " in str(caught.value)
    assert says in str(caught.value)


def test_files_that_hold_nothing(base: Path) -> None:
    with pytest.raises(TaskError, match="holds no lines"):
        read(base, "", "")
    with pytest.raises(TaskError, match="cannot be read"):
        read_logs(base / "absent", TextCodec.load(base / "model"), Chat.AUTO)


def config(base: Path, share: float, objective: Any = "dpo", spec: str | None = None) -> SwarmConfig:
    return SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(base / "model")),
        task=TaskSection(spec=spec, held_out=2),
        learn=LearnSection(steps=1, prompts_per_step=3, group_size=2),
        offline=OfflineSection(path="logs.jsonl", share=share),
        trainer=TrainerSection(objective=objective),
    )


def test_a_suite_of_logs_alone_has_no_task_and_goes_on_where_it_was(base: Path) -> None:
    write(base, *[{**PAIR, "prompt": f"{letter}="} for letter in "abcdefg"])
    suite = open_task_suite(config(base, 1.0), base)
    assert suite.held_out == []
    assert suite.stop_ids
    assert suite.offline is not None
    assert [name for name, _ in suite.notes] == ["offline"]
    assert len(suite.offline.draw()) == 3
    state = json.loads(json.dumps(suite.state()))
    following = [suite.offline.draw() for _ in range(5)]
    again = open_task_suite(config(base, 1.0), base)
    again.restore(state)
    assert again.offline is not None
    assert [again.offline.draw() for _ in range(5)] == following


def test_a_share_beside_a_task(base: Path) -> None:
    write(base, PAIR, GROUP)
    chosen = config(base, 0.3, spec="reverse:letters=2")
    assert (chosen.offline_rollouts, chosen.swarm_rollouts) == (2, 4)
    suite = open_task_suite(chosen, base)
    assert suite.next_prompt().task == "reverse"
    assert suite.offline is not None
    assert len(suite.held_out) == 2


def test_a_token_that_the_model_does_not_have_is_refused(base: Path) -> None:
    foreign = {"prompt": "a=", "completions": [{"tokens": [5, 2], "reward": 1}, {"tokens": [64], "reward": 0}]}
    with pytest.raises(TaskError, match=r"logs\.jsonl:2: token id 64 is not in the model's vocabulary of 64"):
        read(base, PAIR, foreign, vocabulary=64)
    assert len(read(base, PAIR, foreign, vocabulary=65).groups) == 2
    (base / "model" / "config.json").write_text('{"vocab_size": 64}')
    write(base, foreign)
    with pytest.raises(TaskError, match="token id 64 is not in"):
        open_task_suite(config(base, 1.0, "dr_grpo"), base)


def test_preferences_want_pairs(base: Path) -> None:
    triple = {"prompt": "a=", "completions": [{"text": "b", "reward": n} for n in range(3)]}
    write(base, PAIR, triple)
    with pytest.raises(TaskError, match="1 of 2 groups are not pairs"):
        open_task_suite(config(base, 1.0), base)
    chosen = config(base, 1.0, "dr_grpo")
    assert open_task_suite(chosen, base).offline is not None
    chosen = msgspec.structs.replace(chosen, trainer=TrainerSection(advantage="preference"))
    with pytest.raises(TaskError, match='advantage = "preference" learns only from pairs'):
        open_task_suite(chosen, base)
