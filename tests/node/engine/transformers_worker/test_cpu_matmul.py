"""Matrix products by oneDNN: the same numbers up to rounding, from weights that may be swapped where they lie."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from node.engine.transformers_worker.cpu_matmul import ROWS_FROM, WEIGHTS_FROM, has_faster_products, quicken

pytestmark = pytest.mark.skipif(not has_faster_products(), reason="torch's own products are the faster ones here")


class Doubled(nn.Linear):
    """A layer that is not just linear."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(rows)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(ROWS_FROM, 1), (3, 7), (1, 1), (5, ROWS_FROM)])
@torch.inference_mode()
def test_the_product_is_the_same_whatever_the_shape(shape: tuple[int, int], bias: bool) -> None:
    layer = nn.Linear(512, 528, bias=bias)
    expected = copy.deepcopy(layer)
    quicken(layer)
    assert "forward" in vars(layer)
    rows = torch.randn(*shape, 512)
    torch.testing.assert_close(layer(rows), expected(rows), rtol=1e-4, atol=1e-4)
    strided = torch.randn(512, *shape).permute(1, 2, 0)
    torch.testing.assert_close(layer(strided), expected(strided), rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_weights_that_are_swapped_where_they_lie_count_at_once() -> None:
    layer = nn.Linear(512, 512)
    quicken(layer)
    rows = torch.randn(64, 512)
    before = layer(rows)
    layer.weight.copy_(torch.eye(512))
    layer.bias.zero_()
    torch.testing.assert_close(layer(rows), rows)
    assert not torch.equal(before, rows)


def test_layers_that_are_not_plain_keep_their_own_way() -> None:
    layers = [Doubled(512, 512), nn.Linear(512, 512).to(torch.bfloat16)]
    quicken(nn.ModuleList(layers))
    assert not any("forward" in vars(layer) for layer in layers)


def test_small_layers_keep_torchs_own_way_whose_call_is_cheaper() -> None:
    small, large = nn.Linear(512, WEIGHTS_FROM // 512 - 1), nn.Linear(512, WEIGHTS_FROM // 512)
    quicken(nn.ModuleList([small, large]))
    assert ["forward" in vars(layer) for layer in (small, large)] == [False, True]


def test_a_gradient_still_flows() -> None:
    layer = nn.Linear(512, 512)
    quicken(layer)
    layer(torch.randn(64, 512)).sum().backward()
    assert layer.weight.grad is not None
