"""Any file is read as a pool, or refused with the place of its fault; any pool gives a plan."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.provisioning.estimation.recording import encode_line
from node.commands.plan.inputs import terms_of
from node.commands.plan.json_export import as_json
from node.commands.plan.measured_run import read_run
from node.commands.plan.plan import make_plan
from node.commands.plan.pool import pool_of, read_pool
from node.commands.plan.pool_keys import COLUMNS
from node.commands.plan.text import as_text
from node.runtime.errors import UsageError
from tests.support.examples import examples
from tests.support.recorded_runs import run


@contextmanager
def file(name: str, content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(content)
        yield path


def read_or_refused(path: Path) -> None:
    refusal, pool = "", None
    try:
        pool = read_pool(path)
    except UsageError as error:
        refusal = str(error)
    if pool is None:
        assert path.name in refusal
        assert refusal.endswith(".")
        return
    assert pool.machines
    assert all(machine.rate > 0 and machine.price >= 0 for machine in pool.machines)


cells = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "nan", "inf", "1e309", "USD", "EUR", '"', "box", "true", "0x1", "1_0"]),
    st.text(max_size=6),
)
names = st.one_of(st.sampled_from([column.name for column in COLUMNS]), st.text(max_size=4))


@given(st.lists(names, max_size=6), st.lists(st.lists(cells, max_size=7), max_size=4))
def test_any_csv(header: list[str], rows: list[list[str]]) -> None:
    text = "\n".join(",".join(row) for row in (["name", "price", "rate", *header], *rows))
    with file("pool.csv", text.encode("utf-8", errors="surrogatepass")) as path:
        read_or_refused(path)


@given(
    st.lists(st.dictionaries(names, cells | st.just("[1]") | st.just("{}"), max_size=5), max_size=3),
    st.binary(max_size=40),
)
def test_any_toml(rows: list[dict[str, str]], rest: bytes) -> None:
    text = "\n".join("[[machine]]\n" + "\n".join(f"{key} = {value}" for key, value in row.items()) for row in rows)
    with file("pool.toml", text.encode("utf-8", errors="surrogatepass") + rest) as path:
        read_or_refused(path)


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 300), st.binary(min_size=1, max_size=30), st.booleans())
def test_any_damage_to_a_recording(place: int, wrong: bytes, insert: bool) -> None:
    lines = list(map(encode_line, run(4)))
    at = place % len(lines)
    damaged = [*lines[:at], wrong + b"\n", *lines[at + (not insert) :]]
    with file("recording.jsonl", b"".join(damaged)) as path, pytest.raises(UsageError) as refused:
        read_run(path)
    assert f"line {at + 1}" in str(refused.value)


rows = st.fixed_dictionaries(
    {"price": st.floats(0, 1e6), "rate": st.floats(1e-6, 1e4)},
    optional={
        "broadcast_s": st.floats(0, 5e3),
        "generation_s": st.floats(0, 5e3),
        "count": st.integers(1, 4),
        "start_s": st.floats(0, 1e5),
        "start_price": st.floats(0, 100),
        "stops_per_hour": st.floats(0, 60),
    },
)


@settings(deadline=None, max_examples=examples(50))
@given(
    st.lists(rows, min_size=1, max_size=4),
    st.fixed_dictionaries(
        {
            "train_s": st.floats(10, 1e5),
            "rollouts": st.integers(1, 1 << 30),
            "broadcast_s": st.floats(0, 5e3),
            "staleness": st.integers(0, 5),
            "max_staleness": st.just(4),
        },
        optional={"kappa": st.integers(1, 9), "learner_price": st.floats(0, 1e3), "ahead": st.floats(1, 64)},
    ),
)
def test_any_pool_is_a_plan(machines: list[dict[str, object]], command: dict[str, object]) -> None:
    pool = pool_of("pool", rows=[(f"row {i}", {"name": str(i), **row}) for i, row in enumerate(machines)], settings={})
    plan = make_plan(terms_of(pool, command), with_echo2=True)
    text = as_text(plan)
    assert max(map(len, text.splitlines())) <= 100
    assert "NaN" not in as_json(plan)
    assert "Infinity" not in as_json(plan)
    assert plan.is_feasible == ("infeasible" not in text)
