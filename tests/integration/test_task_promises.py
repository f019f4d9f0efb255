"""Every kind of task that comes with the program keeps the promises that the kit for authors checks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from node.tasks.checks.check_task import check_task
from node.tasks.registry import BUILT_IN
from tests.support.byte_mutations import write_byte_tokenizer

SPECS = [
    "arithmetic",
    "code:code.jsonl:reward=share",
    "csv:lines.csv:match=numeric",
    "dataset:saved:match=numeric",
    "gymnasium:Taxi-v4:steps=8",
    "guess:tries=7",
    "jsonl:lines.jsonl:match=numeric",
    "jsonl:lines.jsonl:match=math",
    "lookup",
    "parquet:lines.parquet:match=numeric",
    "poker",
    "product:digits=2",
    "python:own:OWN",
    "reasoning_gym:leg_counting:max_animals=4",
    "reverse",
    "sokoban:reward=boxes",
    "sort:digits=3",
    "tools:sort:digits=3,calls=2",
]
CONFINED = {"code:code.jsonl:reward=share", "jsonl:lines.jsonl:match=math", "tools:sort:digits=3,calls=2"}
"""Tasks that need the sandbox, and take seconds in it."""

FEW = 4

ELSEWHERE = {"openenv", "verifiers"}
"""Kinds whose packages only `make test-adapters` installs: `tests/node/tasks/adapters` imitates what they open."""

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}<{{ message.role }}>"
    "{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A chat template: a model without one is shown no tools."""

OWN = """
from volery import Problem, TaskKind

class Own:
    name, levels, fingerprint = "own", 1, "own"
    def problem(self, index): return Problem(prompt=f"say {2 * index}", answer=str(2 * index))
    def held_out(self, index): return Problem(prompt=f"say {2 * index + 1}", answer=str(2 * index + 1))
    def reward(self, problem, completion): return float(completion.text == problem.answer)

OWN = TaskKind(name="own", summary="", build=lambda arguments: Own())
"""


def write_files(directory: Path) -> None:
    lines = [{"prompt": f"What is {number} + 1?", "answer": number + 1} for number in range(12)]
    code = [
        {
            "prompt": f"Print {number}.",
            "tests": [{"output": str(number)}],
            "asserts": "assert True",
            "answer": f"```python\nprint({number})\n```",
        }
        for number in range(FEW)
    ]
    for name, rows in {"lines": lines, "code": code}.items():
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with (directory / "lines.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["prompt", "answer"])
        writer.writeheader()
        writer.writerows(lines)
    table = pa.Table.from_pylist(lines)
    pq.write_table(table, directory / "lines.parquet")
    (directory / "saved").mkdir()
    with pa.ipc.new_stream(directory / "saved" / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    (directory / "saved" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (directory / "own.py").write_text(OWN, encoding="utf-8")
    (directory / "model").mkdir()
    write_byte_tokenizer(directory / "model")


def test_every_kind_is_checked_here() -> None:
    assert {spec.partition(":")[0] for spec in SPECS} == set(BUILT_IN) - ELSEWHERE


@pytest.mark.parametrize("spec", SPECS)
def test_a_task_that_comes_with_the_program_keeps_its_promises(spec: str, tmp_path: Path) -> None:
    write_files(tmp_path)
    if spec.startswith("tools:"):
        (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    report = check_task(
        spec, FEW if spec in CONFINED else 16, directory=tmp_path, model=tmp_path / "model", max_turns=32
    )
    left_out = {result.name for result in report.results if result.left_out}
    assert left_out <= {"reference", "answers", "end", "transcripts", "times"}
    assert {result.name for result in report.results if result.outcome == "holds"} >= {
        "elsewhere",
        "held-out",
        "tokens",
    }
