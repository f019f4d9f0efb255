"""Read the judges and services of swarm.toml, as a task does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from node.config.conflicts import conflicts
from node.config.services import MAX_PROMPT_BYTES, services_of
from node.config.swarm_config import (
    JudgeSection,
    LearnSection,
    ModelSection,
    RewardServiceSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.runtime.errors import UsageError

CONFIG = SwarmConfig(
    swarm=SwarmSection(name="n"),
    model=ModelSection(directory="m"),
    task=TaskSection(spec="reverse"),
    learn=LearnSection(steps=1),
)


def with_(**sections: object) -> SwarmConfig:
    return msgspec.structs.replace(CONFIG, **sections)


def test_what_names_no_service_is_none(tmp_path: Path) -> None:
    assert services_of(CONFIG, tmp_path) == {}


def test_a_prompt_is_a_text_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Is {response} right?")
    for prompt, text in (("p.txt", "Is {response} right?"), ("Well, {response}?", "Well, {response}?")):
        judge = JudgeSection(url="http://127.0.0.1:9", model="m", prompt=prompt)
        assert services_of(with_(judge=judge), tmp_path)["judge"]["prompt"] == text
    assert "prompt" not in services_of(with_(judge=JudgeSection(url="http://127.0.0.1:9")), tmp_path)["judge"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read: No such file"),
        (b"Grade it.", "must hold {response}"),
        (b"{response}" + b"a" * MAX_PROMPT_BYTES, "at most 65,536 bytes"),
        (b"\xff{response}", "it "),
    ],
    ids=["missing", "without", "long", "bytes"],
)
def test_a_prompt_that_is_none_is_refused(tmp_path: Path, content: bytes | None, why: str) -> None:
    if content is not None:
        (tmp_path / "p.txt").write_bytes(content)
    judge = JudgeSection(url="http://127.0.0.1:9", model="m", prompt="p.txt")
    with pytest.raises(UsageError, match=r"\[judge\] prompt: p.txt is a text without \{response\}") as caught:
        services_of(with_(judge=judge), tmp_path)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"judge": JudgeSection(model="m")}, '[judge] model = "m" would do nothing'),
        ({"reward_service": RewardServiceSection(batch=3)}, "[reward_service] batch = 3 would do nothing"),
        (
            {"judge": JudgeSection(url="http://h", timeout_s=30.0)},
            "[judge] timeout_s = 30 is not less than",
        ),
        (
            {"reward_service": RewardServiceSection(url="http://h"), "verifiers": VerifiersSection(timeout_s=9.0)},
            "[reward_service] timeout_s = 25 is not less than [verifiers] timeout_s = 9",
        ),
        ({"judge": JudgeSection(url="http://h", model="m")}, ""),
    ],
    ids=["judge", "service", "late", "early", "fine"],
)
def test_keys_that_cannot_be_or_do_nothing_are_told(sections: dict[str, object], why: str) -> None:
    found = next(iter(conflicts(with_(**sections))), "")
    assert found.startswith(why) if why else not found
