"""Check the right form of an answer for each kind of task: `volery warmup` teaches until enough have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from node.tasks.api.interface import Completion
from node.tasks.gate import Gate, Place
from node.tasks.registry import open_task

HERE = Place(index=0)


def has_form(spec: str, text: str, *, directory: Path | None = None, finished: bool = True) -> bool:
    gate = Gate(open_task(spec, directory=directory))
    return gate.in_form(HERE, gate.problem(HERE), Completion(text=text, finished=finished))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files")
    rows = [{"prompt": f"{n}?", "answer": f"#### {n}"} for n in range(3)]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code = [{"prompt": f"{n}?", "tests": [{"input": "1", "output": "1"}]} for n in range(3)]
    (place / "code.jsonl").write_text("\n".join(map(json.dumps, code)))
    return place


@pytest.mark.parametrize(
    ("spec", "right", "wrong"),
    [
        ("reverse:letters=3", ["abc", "zzz"], ["ab", "ab1", "a b", "äbc"]),
        ("sort", ["1", "123456"], ["a", "12 ", "1.5"]),
        ("product", ["7", "123"], ["-", "x"]),
        ("arithmetic", ["-7", "12"], ["--7", "seven"]),
        ("guess", ["3"], ["?", "three"]),
        ("sokoban", ["udlr", "U"], ["up", "x"]),
        ("jsonl:rows.jsonl:match=numeric", ["It is 4.", "#### 12"], ["four", "\\boxed{x}"]),
        ("jsonl:rows.jsonl:match=math", ["so \\boxed{4}", "#### x + 1"], ["it is 4", "\\boxed{}"]),
        ("jsonl:rows.jsonl", ["anything"], []),
        ("code:code.jsonl", ["```python\nprint(1)\n```"], ["print(1)"]),
        ("tools:product:tools=python", ["42"], ["x"]),
    ],
)
def test_what_can_be_read(directory: Path, spec: str, right: list[str], wrong: list[str]) -> None:
    found = {text: has_form(spec, text, directory=directory) for text in (*right, *wrong)}
    assert found == {**dict.fromkeys(right, True), **dict.fromkeys(wrong, False)}


@pytest.mark.parametrize("spec", ["reverse:letters=3", "jsonl:rows.jsonl"])
def test_what_did_not_end_or_says_nothing_has_no_form(directory: Path, spec: str) -> None:
    assert not has_form(spec, "abc", directory=directory, finished=False)
    assert not has_form(spec, " \n", directory=directory)
