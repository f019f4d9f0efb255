"""Weights of few bits: the promises of each format, and layers that compute with them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from node.engine.transformers_worker import quantised_weights
from node.engine.transformers_worker.quantised_weights import (
    INT4_GROUP,
    SCHEMES,
    QuantisedWeight,
    Scheme,
    quantised,
)

CPU = torch.device("cpu")
NAMES = sorted(SCHEMES)
ROWS = st.integers(1, 5)
COLUMNS = st.sampled_from([1, 2, 31, 32, 33, 64, 95])
NUMBERS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**100), max_value=2.0**100)


@st.composite
def matrices(draw: st.DrawFn) -> torch.Tensor:
    rows, columns = draw(ROWS), draw(COLUMNS)
    values = draw(st.lists(NUMBERS, min_size=1, max_size=rows * columns))
    flat = [values[place % len(values)] for place in range(rows * columns)]
    return torch.tensor(flat, dtype=torch.float32).view(rows, columns)


def packed(weight: torch.Tensor, scheme: Scheme) -> QuantisedWeight:
    return quantised(weight, scheme, torch.float32, CPU)


def full(weight: QuantisedWeight) -> torch.Tensor:
    return weight.read_rows(0, weight.shape[0], torch.float32)


def steps_of(weight: QuantisedWeight) -> torch.Tensor:
    steps = weight.parts["steps"].double()
    if weight.scheme.name == "int8":
        return steps[:, None].expand(weight.shape)
    return steps.repeat_interleave(INT4_GROUP, 1)[:, : weight.shape[1]]


@given(weight=matrices(), name=st.sampled_from(NAMES))
def test_no_value_is_further_than_half_a_step(weight: torch.Tensor, name: str) -> None:
    made = packed(weight, SCHEMES[name])
    apart = (full(made).double() - weight.double()).abs()
    # A quotient of float32 may fall to the other side of a half, and the value is rounded once.
    rounding = 1e-5 * steps_of(made) + 1e-6 * weight.double().abs() + torch.finfo(torch.float32).tiny
    if name == "int4":
        rounding = rounding + 1e-6 * made.parts["lows"].double().abs().amax(1, keepdim=True)
    assert bool((apart <= steps_of(made) / 2 + rounding).all())


@given(columns=COLUMNS, name=st.sampled_from(NAMES))
def test_zeros_stay_zeros(columns: int, name: str) -> None:
    weight = torch.ones(3, columns)
    weight[1] = 0
    assert full(packed(weight, SCHEMES[name]))[1].abs().max() == 0


@given(columns=COLUMNS, name=st.sampled_from(NAMES), seed=st.integers(0, 99), cut=st.integers(1, 4))
def test_a_row_is_the_same_whatever_is_made_beside_it(columns: int, name: str, seed: int, cut: int) -> None:
    weight = torch.randn(5, columns, generator=torch.Generator().manual_seed(seed))
    made = packed(weight, SCHEMES[name])
    parts = QuantisedWeight(SCHEMES[name], weight.shape, torch.float32, CPU)
    parts.write_rows(cut, weight[cut:])
    parts.write_rows(0, weight[:cut])
    for one, other in zip(made.parts.values(), parts.parts.values(), strict=True):
        assert torch.equal(one, other)


def test_int8_as_it_is_specified() -> None:
    weight = torch.tensor([[0.5, -127.0, 1.5, 2.5, 126.6], [0.0, 0.0, 0.0, 0.0, 0.0]])
    made = packed(weight, SCHEMES["int8"])
    assert made.parts["codes"].tolist() == [[0, -127, 2, 2, 127], [0] * 5], "halves go to the even number"
    assert made.parts["steps"].tolist() == [1.0, 0.0]


def test_int4_as_it_is_specified() -> None:
    weight = torch.arange(33, dtype=torch.float32)[None].clone()
    weight[0, :16] *= -1
    weight[0, 32] = 0.3
    made = packed(weight, SCHEMES["int4"])
    low, alone = made.parts["lows"][0].tolist()
    step, _ = made.parts["steps"][0].tolist()
    assert low == -15.0
    assert step == 3.078125, "46 / 15 = 3.0667, and the next bfloat16 above it"
    assert alone == 0.298828125, "0.3, and the next bfloat16 below it"
    values = [low + step * min(15, max(0, round((one - low) / step))) for one in weight[0, :32].tolist()]
    assert full(made)[0, :32].tolist() == values


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_makes_nothing_that_is(name: str, odd: float) -> None:
    weight = torch.ones(2, 40)
    weight[0, 3] = odd
    found = full(packed(weight, SCHEMES[name]))
    assert not found[0, :32].isfinite().any()
    assert found[1].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [1, 3, 40])
@torch.inference_mode()
def test_layers_compute_with_the_values(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantised_weights, "CPU_BLOCK", 1 << 12)  # several blocks, and a last one that is smaller
    weight = torch.randn(700, 33)
    layer, table = nn.Linear(33, 700), nn.Embedding(700, 33)
    made = packed(weight, SCHEMES[name])
    layer.weight = table.weight = made  # type: ignore[assignment]
    values = full(made)
    given_rows = torch.randn(rows, 2, 33)
    torch.testing.assert_close(layer(given_rows), given_rows @ values.t() + layer.bias, rtol=1e-5, atol=1e-4)
    ids = torch.randint(0, 700, (rows, 4))
    assert torch.equal(table(ids), values[ids])
    assert sum(one.numel() for one in layer.parameters()) == 700 * 34
    assert (layer.weight.shape, layer.weight.dtype, layer.weight.device) == ((700, 33), torch.float32, CPU)


def test_another_operation_is_refused_with_what_to_do() -> None:
    made = packed(torch.ones(4, 4), SCHEMES["int8"])
    for asked in (lambda: made.t() @ made, lambda: made + 1, lambda: made[0]):
        with pytest.raises(NotImplementedError, match="quantization"):
            asked()


@pytest.mark.parametrize(("name", "most"), [("int8", 0.51), ("int4", 0.3125)])
def test_what_a_format_takes(name: str, most: float) -> None:
    assert packed(torch.ones(64, 1024), SCHEMES[name]).held_bytes <= most * 2 * 64 * 1024
