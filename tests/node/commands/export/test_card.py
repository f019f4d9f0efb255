"""Write model cards: their facts, harmless strangers' names, and contents that they never have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from node.commands.export.card import as_code, escaped, front_matter, quoted, write_card
from node.commands.export.card_facts import (
    CardFacts,
    Contributor,
    RunFacts,
    TaskFacts,
    TeacherFacts,
    logs_of,
    run_facts,
    settings_of,
    task_facts,
    without_paths,
)
from node.commands.init.command import write_swarm_config
from node.config.loader import read_swarm_config
from node.reports.model.report import Evaluation, Scored
from node.reports.readers.ledger_report import swarm_report
from protocol.core.ids import PolicyVersion
from tests.support.ledgers import demo_run

FACTS = CardFacts(
    swarm="s", swarm_id="ab" * 32, operator="12D3KooWx", version="1.6", manifest="cd" * 32, form="model",
    software="volery 0.1.0",
)  # fmt: skip

NASTY = "a\n---\nlicense: mit\n| `x` | <script> [l](http://e) *b* #h ![i](x) ‮www.evil.com"


def evaluation(step: int, value: float, **tasks: dict[str, float]) -> Evaluation:
    return Evaluation(
        version=PolicyVersion(1, step), at_s=0, prompts=32, greedy=value, sampled=value / 2, survives=True, samples=4,
        tasks=tasks,
    )  # fmt: skip


def front(card: str) -> dict[str, Any]:
    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert found is not None
    values: dict[str, Any] = yaml.safe_load(found[1])
    return values


def test_the_front_matter_says_what_the_hub_asks() -> None:
    facts = replace(FACTS, licence="apache-2.0", base_hub="Qwen/Qwen3-0.6B", base_called="Qwen/Qwen3-0.6B")
    assert front(write_card(facts)) == {
        "license": "apache-2.0",
        "base_model": "Qwen/Qwen3-0.6B",
        "base_model_relation": "finetune",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "volery"],
    }
    adapter = front(write_card(replace(facts, form="adapter")))
    assert (adapter["library_name"], adapter["base_model_relation"], adapter["tags"][-1]) == ("peft", "adapter", "lora")
    assert not {"license", "base_model"} & front(write_card(FACTS)).keys()


def test_a_card_tells_scores_before_and_after_and_shares() -> None:
    run = RunFacts(
        steps=1234, restarts=2, rollouts=9, tokens=10, versions=3,
        before=evaluation(0, 0.25), after=evaluation(6, 0.75, sort={"greedy": 1.0, "sampled": 0.5}),
        contributors=(Contributor(name="bee 123456", records=3, share=0.75),),
        others=Contributor(name="7 others", records=1, share=0.25),
    )  # fmt: skip
    card = write_card(replace(FACTS, run=run, tasks=(TaskFacts(title="sort", spec="sort:n=3", share=1.0),), held_out=4))
    for line in (
        "| training steps | 1,234; the learner was restarted 2 times |",
        "| all | 0.250 | 0.750 | 0.125 | 0.375 |",
        "| sort |  | 1.000 |  | 0.500 |",
        "| bee 123456 | 3 | 75.0% |",
        "| 7 others | 1 | 25.0% |",
        "- `sort:n=3`",
        "Held out, and never trained on: 32 prompts.",
        "| task | greedy, version 1.0 | greedy, version 1.6 | sampled, version 1.0 | sampled, version 1.6 |",
    ):
        assert line in card, line
    assert "over 32 held-out prompts, of the greedy completion and of 4 sampled completions" in card
    assert "No licence was named" in card
    assert "was not evaluated" not in card
    later = write_card(replace(FACTS, run=run, version="1.9"))
    assert "as the learner measured it. Version 1.9 itself was not evaluated." in later


def test_before_the_first_evaluation_a_card_names_the_maximum_of_held_out_prompts() -> None:
    facts = replace(FACTS, tasks=(TaskFacts(title="sort", spec="sort:n=3", share=1.0),), held_out=4, run=RunFacts())
    assert "Held out, and never trained on: at most 4 prompts of each task." in write_card(facts)
    assert "Held out, and never trained on: nothing." in write_card(replace(facts, held_out=0))


def test_names_have_no_effect() -> None:
    run = RunFacts(
        contributors=(Contributor(name=NASTY, records=1, share=1.0),),
        before=evaluation(0, 1.0),
        teachers=(TeacherFacts(name=NASTY, groups=2, tokens=3),),
    )
    facts = replace(
        FACTS, swarm=NASTY, licence=NASTY, base_hub=NASTY, base_called=NASTY, run=run, logs=NASTY,
        tasks=(TaskFacts(title=NASTY, spec=NASTY, share=0.5), TaskFacts(title="x", spec="y", share=0.5)),
    )  # fmt: skip
    card = write_card(facts)
    assert front(card)["license"] == front(card)["base_model"] != ""
    assert "library_name" in front(card)
    text = card.partition("\n---\n")[2]
    assert not re.search(r"(?<!\\)(<script|\[l\]|\*b\*|http:|www\.)", re.sub(r"`[^`\n]*`", "", text))
    rows = [line for line in text.splitlines() if line.startswith("|") and "script" in line]
    assert rows
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} <= {3, 4}


@given(st.text(max_size=300))
def test_any_name_parses_to_one_line(name: str) -> None:
    shown = yaml.safe_load(f"a: {quoted(name)}\nb: 1")
    assert shown["b"] == 1
    assert "\n" not in str(shown["a"])
    assert "\n" not in escaped(name)
    assert as_code(name).count("`") == 2


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("reverse:letters=6", "reverse:letters=6"),
        ("jsonl:data/train.jsonl:match=numeric", "jsonl:train.jsonl:match=numeric"),
        ("jsonl:/home/ann/my data/x.jsonl:match=exact,held_out=0.2", "jsonl:x.jsonl:match=exact,held_out=0.2"),
        ("python:/srv/secret/task.py", "python:task.py"),
        ("jsonl:C:\\Users\\ann\\x.jsonl", "jsonl:C:x.jsonl"),
        ("system:url=https://ann:pw@host.example/v1?token=abc", "system:url=https:...:..."),
        ("jsonl:https://host.example/x.jsonl?token=abc", "jsonl:https:x.jsonl"),
        ("mix:share=1/2", "mix:share=1/2"),
    ],
    ids=["plain", "relative", "spaces", "python", "windows", "password", "query", "fraction"],
)
def test_specs_lose_their_paths(spec: str, shown: str) -> None:
    assert without_paths(spec) == shown


def test_a_configuration_gives_its_objective_and_no_path(tmp_path: Path) -> None:
    path = write_swarm_config(tmp_path / "swarm", name="s", port=4001)
    config = read_swarm_config(path)
    assert ("objective", "topr") in settings_of(config)
    assert task_facts(config)[0].share == 1.0
    assert logs_of(config) == ""
    assert str(tmp_path) not in str((settings_of(config), task_facts(config)))


@pytest.mark.parametrize(
    ("keys", "weight"),
    [
        ({"objective": "distill"}, "1"),
        ({"advantage": "none", "teacher_coefficient": 0.5}, "0.5"),
    ],
    ids=["preset", "by hand"],
)
def test_a_teacher_is_among_the_settings(tmp_path: Path, keys: dict[str, Any], weight: str) -> None:
    config = read_swarm_config(write_swarm_config(tmp_path / "swarm", name="s", port=4001))
    assert "teacher coefficient" not in dict(settings_of(config))
    taught = msgspec.structs.replace(config, trainer=msgspec.structs.replace(config.trainer, **keys))
    assert dict(settings_of(taught))["teacher coefficient"] == weight


def test_teachers_are_contributors_too(tmp_path: Path) -> None:
    demo_run(tmp_path / "ledger.sqlite")
    report = swarm_report(tmp_path / "ledger.sqlite")
    first, *rest = report.rollout_peers
    taught = replace(report, peers=(replace(first, scored=Scored(groups=1200, tokens=3400)), *rest))
    card = write_card(replace(FACTS, run=run_facts(taught, 10**6)))
    assert "| groups scored | tokens scored |" in card
    assert "| 1,200 | 3,400 |" in card
    assert "groups scored" not in write_card(replace(FACTS, run=run_facts(report, 10**6)))


def test_a_ledger_gives_steps_up_to_a_version_and_all_contributors(tmp_path: Path) -> None:
    demo_run(tmp_path / "ledger.sqlite", steps=6)
    report = swarm_report(tmp_path / "ledger.sqlite")
    last = report.steps[-1].step
    whole, part = run_facts(report, last), run_facts(report, last - 1)
    assert whole.steps == part.steps + 1 == len(report.steps)
    assert sum(one.records for one in whole.contributors) == report.trained
    assert whole.others is None


def test_the_front_matter_ends_before_the_text() -> None:
    assert front_matter(FACTS).endswith("---\n")
