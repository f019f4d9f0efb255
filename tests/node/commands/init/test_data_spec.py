"""`--data` finds the columns of a file and how to compare its answers, or says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from node.commands.init.data_spec import DataSpec, propose_spec
from node.runtime.errors import UsageError
from node.tasks.registry import open_task

ROWS = 4


def write(path: Path, columns: Mapping[str, Sequence[object]]) -> Path:
    """Write a data file in the format that its name says."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    match path.suffix:
        case ".parquet":
            parquet.write_table(pyarrow.table({name: list(values) for name, values in columns.items()}), path)
        case ".csv" | ".tsv":
            sign = "," if path.suffix == ".csv" else "\t"
            lines = [sign.join(columns), *(sign.join(f'"{cell}"' for cell in row.values()) for row in rows)]
            path.write_text("\n".join(lines) + "\n")
        case _:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def proposed(tmp_path: Path, columns: Mapping[str, Sequence[object]], name: str = "x.jsonl") -> DataSpec:
    """Return the proposal, after a look whether the learner could open it from where its file lies."""
    (tmp_path / "swarm").mkdir(exist_ok=True)
    found = propose_spec(write(tmp_path / name, columns), tmp_path / "swarm")
    assert open_task(found.spec, directory=tmp_path / "swarm").name == found.spec.partition(":")[0]
    return found


PROMPTS = [f"What is {number}?" for number in range(ROWS)]
NUMBERS = ["1", "2.5", "1,000", "so it is\n#### 7"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("x.jsonl", "jsonl"), ("x.json", "jsonl"), ("x.csv", "csv"), ("x.tsv", "csv"), ("x.parquet", "parquet")],
)
def test_formats(tmp_path: Path, name: str, kind: str) -> None:
    found = proposed(tmp_path, {"id": range(ROWS), "question": PROMPTS, "result": NUMBERS}, name)
    assert found.spec == f"{kind}:../{name}:prompt=question,answer=result,match=numeric"
    assert found.why == "all 4 answers in `result` are numbers"
    assert "3 problems to train on, 1 held out" in found.notes[0]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (("prompt", "answer"), ""),
        (("question", "answer"), "prompt=question,"),
        (("problem", "solution", "answer"), "prompt=problem,"),
        (("problem", "solution"), "prompt=problem,answer=solution,"),
        (("Question", "Answer"), "prompt=Question,answer=Answer,"),
        (("input", "output"), "prompt=input,answer=output,"),
        (("query", "ground_truth"), "prompt=query,answer=ground_truth,"),
    ],
)
def test_columns(tmp_path: Path, columns: tuple[str, ...], options: str) -> None:
    found = proposed(tmp_path, {name: PROMPTS if number == 0 else NUMBERS for number, name in enumerate(columns)})
    assert found.spec == f"jsonl:../x.jsonl:{options}match=numeric"


def test_fields_inside_objects_are_found(tmp_path: Path) -> None:
    messages = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    truth = [{"style": "rule", "ground_truth": number} for number in NUMBERS]
    for name in ("x.jsonl", "x.parquet"):
        kind = name.removeprefix("x.")
        found = proposed(tmp_path, {"prompt": messages, "reward_model": truth}, name)
        assert found.spec == f"{kind}:../{name}:answer=reward_model.ground_truth,match=numeric"
    assert proposed(tmp_path, {"messages": messages, "answer": NUMBERS}).spec == "jsonl:../x.jsonl:match=numeric"


@pytest.mark.parametrize(
    ("answers", "match", "why"),
    [
        ([1, 2, 3, 4], "numeric", "all 4 answers in `answer` are numbers"),
        (["1", "2", "3", "\\frac{1}{x}"], "math", 'can be read as mathematics, such as "\\frac{1}{x}"'),
        ([f"Thus \\boxed{{x^{n}}}." for n in range(ROWS)], "math", "can be read as mathematics"),
        (["yes", "no", "no", "yes"], "exact", 'are texts, such as "yes"'),
        (["1", "no", "no", "yes"], "exact", 'are texts, such as "no"'),
    ],
)
def test_the_strictest_comparison_that_fits_all_answers(
    tmp_path: Path, answers: list[object], match: str, why: str
) -> None:
    found = proposed(tmp_path, {"prompt": PROMPTS, "answer": answers})
    assert found.spec == f"jsonl:../x.jsonl:match={match}"
    assert why in found.why
    assert found.warning == ""


def test_long_answers_are_warned_of(tmp_path: Path) -> None:
    answers = [f"{word} " * 40 for word in ("poem", "ode", "song", "tale")]
    found = proposed(tmp_path, {"prompt": PROMPTS, "answer": answers})
    assert found.spec.endswith(":match=exact")
    assert "match=judge" in found.warning
    assert found.why.count("poem") < 10
    assert "\n" not in found.why


def test_tests_make_a_task_of_programs(tmp_path: Path) -> None:
    asserts = [[f"assert f({n}) == {n}"] for n in range(ROWS)]
    found = proposed(tmp_path, {"text": PROMPTS, "test_list": asserts, "code": PROMPTS})
    assert found.spec == "code:../x.jsonl:prompt=text,asserts_field=test_list,answer=code"
    assert proposed(tmp_path, {"prompt": PROMPTS, "asserts": asserts}).spec == "code:../x.jsonl"
    tests = [[{"input": "1", "output": "1"}]] * ROWS
    assert proposed(tmp_path, {"question": PROMPTS, "tests": tests}).spec == "code:../x.jsonl:prompt=question"


@pytest.mark.parametrize(("sign", "told"), [(";", ";"), ("|", "|"), ("\t", "tab")])
def test_another_delimiter_is_noticed(tmp_path: Path, sign: str, told: str) -> None:
    (tmp_path / "x.csv").write_text(f"question{sign}answer\na{sign}1\nb{sign}2\n")
    found = propose_spec(tmp_path / "x.csv", tmp_path)
    assert found.spec == f"csv:x.csv:prompt=question,match=numeric,delimiter={told}"
    assert len(open_task(found.spec, directory=tmp_path).notes) == 1  # type: ignore[attr-defined]


def test_several_files(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number in range(2):
        write(tmp_path / "parts" / f"train-{number}.csv", {"question": PROMPTS, "answer": NUMBERS})
    (tmp_path / "parts" / "README.md").touch()
    assert propose_spec(tmp_path / "parts", tmp_path).spec == "csv:parts:prompt=question,match=numeric"
    pattern = tmp_path / "parts" / "train-*.csv"
    assert propose_spec(pattern, tmp_path).spec == "csv:parts/train-*.csv:prompt=question,match=numeric"


@pytest.mark.parametrize(("ending", "sign", "option"), [(".tsv", "\t", ""), (".csv", ";", ",delimiter=;")], ids=repr)
def test_several_files_with_another_delimiter(tmp_path: Path, ending: str, sign: str, option: str) -> None:
    (tmp_path / "parts").mkdir()
    for number in range(2):
        text = f"question{sign}answer\na{sign}1\nb{sign}2\n"
        (tmp_path / "parts" / f"train-{number}{ending}").write_text(text)
    for path in ("parts", f"parts/train-*{ending}"):
        found = propose_spec(tmp_path / path, tmp_path)
        assert found.spec == f"csv:{path}:prompt=question,match=numeric{option}"


def test_the_path_begins_where_swarm_toml_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    write(Path("data/x.jsonl"), {"prompt": PROMPTS, "answer": NUMBERS})
    for directory, path in (("swarm", "../data/x.jsonl"), (".", "data/x.jsonl"), ("data", "x.jsonl")):
        assert propose_spec(Path("data/x.jsonl"), Path(directory)).spec == f"jsonl:{path}:match=numeric"
    assert not Path("swarm").exists(), "nothing is written"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"foo": PROMPTS, "answer": NUMBERS}, "no column for the prompt. Its columns are `foo`, `answer`"),
        ({"prompt": PROMPTS, "foo": NUMBERS}, "no column for the answer. Its columns are `prompt`, `foo`"),
        ({"prompt": PROMPTS, "answer": [None] * ROWS}, "is empty in every row"),
        ({"prompt": PROMPTS, "answer": [*NUMBERS[:3], None]}, "x.jsonl:4"),
        ({"prompt": [*PROMPTS[:3], 7], "answer": NUMBERS}, "x.jsonl:4"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, columns: dict[str, list[object]], said: str) -> None:
    file = write(tmp_path / "x.jsonl", columns)
    with pytest.raises(UsageError, match=r"^--data: ") as refused:
        propose_spec(file, tmp_path)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.jsonl", None, "does not exist"),
        ("x.txt", b"a\n", "no known format. Name a file that ends with one of .jsonl"),
        ("x", b"PAR1....", "It is a Parquet file"),
        ("x.jsonl.gz", b"\x1f\x8b......", "unpack it first"),
        ("x.jsonl", b"", "holds no lines"),
        ("x.csv", b"question,answer\n", "holds no rows"),
        ("x.parquet", b"PAR1 and nothing else", "cannot be read as Parquet"),
        ("x.jsonl", b"[1, 2]\n", "x.jsonl"),
        ("a:b.jsonl", b'{"prompt": "a", "answer": 1}\n', "colon"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=r"^--data: ") as refused:
        propose_spec(tmp_path / name, tmp_path)
    assert said in str(refused.value)
