"""POOL: both forms give the same pool, and every fault is named with its row."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.plan.pool import Machine, read_pool
from node.commands.plan.pool_file import MAX_FILE_BYTES
from node.commands.plan.pool_keys import COLUMNS, MAX_MACHINES
from node.runtime.errors import UsageError
from tests.support.plan_calls import EXAMPLES, TIMES, refusal

HEADER = "name,price,rate"
GOOD = f"{HEADER}\nbox,0.35,0.27\n"


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pool.csv"
    path.write_text(text, encoding="utf-8")
    return path


def toml_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pool.toml"
    path.write_text(text, encoding="utf-8")
    return path


def without_place(machine: Machine) -> dict[str, object]:
    return {key: value for key, value in vars(machine).items() if key != "where"}


def test_both_examples_hold_the_same_machines() -> None:
    toml, csv = read_pool(EXAMPLES / "pool.toml"), read_pool(EXAMPLES / "pool.csv")
    assert [without_place(one) for one in toml.machines] == [without_place(one) for one in csv.machines]
    assert toml.currency == csv.currency == "USD"
    assert sum(one.count for one in csv.machines) == 44
    assert toml.settings["weights_mb"] == 800


def test_machines_alike_are_told_apart_by_a_number() -> None:
    (first, *_) = read_pool(EXAMPLES / "pool.toml").machines
    assert first.names[0] == "rtx5090 #1"
    assert len(set(first.names)) == 24


def test_a_price_of_nothing_is_a_volunteer_s(tmp_path: Path) -> None:
    (machine,) = read_pool(csv_file(tmp_path, f"{HEADER}\nbox,0,0.1\n")).machines
    assert machine.price == 0


def test_what_spreadsheets_write_is_read(tmp_path: Path) -> None:
    path = tmp_path / "POOL.CSV"
    path.write_bytes(b'\xef\xbb\xbfname , price, rate ,count\r\n"a, b", 0.35 ,2e-1,\r\n,,,\r\n\r\n')
    (machine,) = read_pool(path).machines
    assert (machine.name, machine.price, machine.rate, machine.count) == ("a, b", 0.35, 0.2, 1)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("box,-0.35,0.27", ["line 2 (box)", "price = -0.35", "0 or more"]),
        ("box,,0.27", ["line 2 (box)", "price is missing", "0 for a volunteer"]),
        ("box,0.35,", ["line 2 (box)", "rate is missing", "mu"]),
        ("box,0.35,-1", ["line 2 (box)", "rate = -1", "above 0"]),
        ("box,0.35,0", ["line 2 (box)", "rate = 0", "above 0"]),
        ("box,nan,0.27", ["line 2 (box)", "price = nan", "finite"]),
        ("box,0.35,inf", ["line 2 (box)", "rate = inf", "finite"]),
        ("box,cheap,0.27", ["line 2 (box)", "price = 'cheap'", "not a number"]),
        ("box,1e300,0.27", ["line 2 (box)", "price = 1e+300", "out of range", "at most 1e+12"]),
        (",0.35,0.27", ["line 2:", "name is missing"]),
        ("box,0.35,0.27,8", ["line 2", "4 cells under 3 columns"]),
        ("box,0.35,0.27\nfox,0.35,0.27\nbox,0.5,0.5", ["line 4 (box)", "'box'", "line 2 (box)"]),
        ('box,"0.35', ["line 2", "not valid CSV"]),
    ],
)
def test_a_wrong_row_of_a_csv_is_named(tmp_path: Path, row: str, words: list[str]) -> None:
    said = refusal(csv_file(tmp_path, f"{HEADER}\n{row}\n"), *TIMES)
    for word in ["pool.csv", *words]:
        assert word in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["contains no machine", "name, price and rate"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\n[[machine]]\nname='b'\nprice=1", ["machine 2 (b)", "rate is"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\ncolour='red'", ["machine 1 (a)", "'colour'", "up_mbit"]),
        ("[[machine]]\nname='a'\nprice=nan\nrate=1", ["machine 1 (a)", "price = nan"]),
        ("[[machine]]\nname='a'\nprice=true\nrate=1", ["machine 1 (a)", "price = True", "not a number"]),
        ("[[machine]]\nname=7\nprice=1\nrate=1", ["machine 1", "name = 7"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\ncount=2.5", ["machine 1 (a)", "count = 2.5", "whole"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\ncount=0", ["machine 1 (a)", "count = 0", "at most"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\ncount=600\n[[machine]]\nname='b'\nprice=1\nrate=1\ncount=600",
         ["1200 machines", str(MAX_MACHINES)]),
        ("[[machine]]\nname='a #1'\nprice=1\nrate=1\n[[machine]]\nname='a'\nprice=1\nrate=1\ncount=2",
         ["machine 2 (a)", "'a #1'", "machine 1 (a #1)"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\ncurrency='USD'\n[[machine]]\nname='b'\nprice=1\nrate=1\ncurrency='EUR'",
         ["machine 2 (b)", "EUR", "USD", "without conversion"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\n[[machine]]\nname='b'\nprice=1\nrate=1\ncurrency='EUR'",
         ["machine 2 (b)", "EUR", "USD in", "machine 1 (a), where none is given", "without conversion"]),
        (f"[[machine]]\nname='a'\nprice=1\nrate=1{'0' * 400}", ["machine 1 (a)", "rate = 1000", "out of range"]),
        ("[swarm]\ncurrency='CHF'\n[[machine]]\nname='a'\nprice=1\nrate=1\ncurrency='USD'", ["(a)", "USD", "CHF"]),
        ("[[machine]]\nname='a'\nprice=1\nrate=1\ncurrency='euros'", ["machine 1 (a)", "'euros'", "three capital"]),
        ("[swarm]\nstalenes=3\n[[machine]]\nname='a'\nprice=1\nrate=1", ["[swarm]", "'stalenes'", "staleness"]),
        ("[swarm]\ntrain_s=-1\n[[machine]]\nname='a'\nprice=1\nrate=1", ["[swarm]", "train_s = -1"]),
        ("[machines]\nname='a'", ["'machines'", "[[machine]]"]),
        ("[machine]\nname='a'", ["[[machine]]"]),
        ("swarm = 3", ["[swarm]"]),
        ("[[machine]\n", ["not valid TOML", "line 1"]),
    ],
)  # fmt: skip
def test_a_wrong_table_of_a_toml_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    said = refusal(toml_file(tmp_path, text), *TIMES)
    for word in ["pool.toml", *words]:
        assert word in said


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("name,price,rate,colour", ["line 1", "'colour'", "Known are: name, price, rate"]),
        ("name,price,rate,price", ["line 1", "'price'", "twice"]),
        ("name;price;rate", ["line 1", "'name;price;rate'", "separated by commas"]),
    ],
)
def test_a_wrong_header_is_named(tmp_path: Path, header: str, words: list[str]) -> None:
    said = refusal(csv_file(tmp_path, f"{header}\nbox,0.35,0.27,1\n"), *TIMES)
    for word in words:
        assert word in said


def test_a_csv_without_rows_is_an_empty_pool(tmp_path: Path) -> None:
    for text in ("", "\n\n", f"{HEADER}\n"):
        path = csv_file(tmp_path, text)
        assert f"{path} contains no machine" in refusal(path, *TIMES)


def test_files_that_are_no_pool(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.toml", *TIMES).lower()
    assert "cannot be read" in refusal(_directory(tmp_path / "dir.toml"), *TIMES)
    (tmp_path / "pool.txt").write_text(GOOD)
    assert "neither in .toml nor in .csv" in refusal(tmp_path / "pool.txt", *TIMES)
    (tmp_path / "bad.csv").write_bytes(GOOD.encode() + b"\xff,1,1\n")
    assert f"byte {len(GOOD)}" in refusal(tmp_path / "bad.csv", *TIMES)
    (tmp_path / "large.csv").write_bytes(b"a" * (MAX_FILE_BYTES + 1))
    assert str(MAX_FILE_BYTES) in refusal(tmp_path / "large.csv", *TIMES)


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


def test_names_cannot_move_a_cursor(tmp_path: Path) -> None:
    (machine,) = read_pool(toml_file(tmp_path, '[[machine]]\nname="a\\u001b[2Jb"\nprice=0\nrate=1')).machines
    assert machine.name == "a [2Jb"
    with pytest.raises(UsageError, match="1 to 64 characters"):
        read_pool(toml_file(tmp_path, '[[machine]]\nname="\\u001b"\nprice=0\nrate=1'))


def test_what_must_be_there_says_what_to_do() -> None:
    assert {key.name for key in COLUMNS if key.needed} == {"name", "price", "rate"}
