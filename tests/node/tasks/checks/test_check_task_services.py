"""Tasks whose rewards are waited for are tried out as all others, and shown as all others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from node.commands.tasks.command import show
from node.config.loader import read_swarm_config
from node.config.services import services_of
from node.config.swarm_config import RewardServiceSection
from node.tasks.api.interface import CANNOT_SAY, CannotSay, Completion, Problem
from node.tasks.checks.check_task import check_task, try_task
from node.tasks.services.judge import Judge
from node.tasks.services.reward_service import RewardService
from tests.support.paths import ROOT
from tests.support.reward_servers import Heard, Reply, chat, nobody, serving


@dataclass(frozen=True, kw_only=True)
class Awaited:
    name: str = "awaited"
    levels: int = 1
    fingerprint: str = "awaited/1"
    unsaid: str = "all"

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"{2 * index}", answer=str(index))

    def held_out(self, index: int) -> Problem:
        return Problem(prompt=f"{2 * index + 1}", answer=str(index))

    async def reward(self, problem: Problem, completion: Completion) -> float | CannotSay:
        if self.unsaid == "all" or completion.text == self.unsaid:
            return CANNOT_SAY
        return float(completion.text == problem.answer)


def test_a_reward_that_is_async_and_not_always_said_keeps_its_promises() -> None:
    check_task(Awaited(unsaid="I do not know."))


def test_one_that_says_nothing_at_all_is_told() -> None:
    report = try_task(Awaited())
    assert not report.passed
    assert "returned CANNOT_SAY for every completion" in str(report)


def grade(number: int, heard: Heard) -> Reply:
    """A judge that reads the reference, and looks for it in the response."""
    user = heard.value["messages"][1]["content"]
    reference = user.split("Reference answer:\n")[1].split("\n")[0]
    said = user.split(">\n", 1)[1].rsplit("\n</response", 1)[0]
    return chat(json.dumps({"score": 10 if said == reference else 0}))


def swarm_toml(root: Path, url: str) -> Path:
    rows = [{"prompt": f"say {number}", "answer": f"{number}"} for number in range(40)]
    (root / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "swarm.toml").write_text(
        f"""
[swarm]
name = "n"
[model]
directory = "nothing"
[task]
spec = "jsonl:t.jsonl:match=judge"
[judge]
url = "{url}"
model = "m"
timeout_s = 5
[learn]
steps = 1
"""
    )
    return root / "swarm.toml"


def test_a_judged_file_keeps_its_promises(tmp_path: Path) -> None:
    swarm_toml(tmp_path, "http://127.0.0.1:9")
    with serving(grade) as server:
        report = try_task(
            "jsonl:t.jsonl:match=judge",
            8,
            directory=tmp_path,
            services={"judge": {"url": server.url, "model": "m", "timeout_s": 20.0}},
        )
    assert report.passed, str(report)


def test_show_asks_the_judge_or_says_why_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.commands.tasks.command.Setting.codec", lambda self: None)
    monkeypatch.setattr("node.commands.tasks.command.limit_of", lambda directory: None)
    with serving(grade) as server:
        shown = show("", config=swarm_toml(tmp_path, server.url), model=None, count=1, as_json_text=False).text
    assert "The reference answer has reward 1, an empty one 0." in shown
    shown = show("", config=swarm_toml(tmp_path, nobody()), model=None, count=1, as_json_text=False).text
    assert "was asked once and gave no reward" in shown


def test_the_example_of_the_documents_asks_a_judge(tmp_path: Path) -> None:
    section = (ROOT / "docs/operate/write-a-task.md").read_text("utf-8").split("## Ask a judge yourself")[1]
    code = section.split("```python\n")[1].split("```")[0]
    with serving(lambda number, heard: chat('{"score": 10}')) as server:
        (tmp_path / "of_poems.py").write_text(code.replace("http://127.0.0.1:8000/v1", server.url))
        check_task("python:of_poems:poems", 4, directory=tmp_path)
        assert server.heard


def test_an_authors_judge_may_be_that_of_the_configuration(tmp_path: Path) -> None:
    config = read_swarm_config(swarm_toml(tmp_path, "http://127.0.0.1:9"))
    config = msgspec.structs.replace(config, reward_service=RewardServiceSection(url="http://127.0.0.1:9"))
    services = json.loads(json.dumps(services_of(config, tmp_path)))
    Judge(**services["judge"])
    RewardService(**services["reward_service"])
