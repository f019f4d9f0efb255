"""Bound what a library builds of a config while it builds it: modules, and elements of parameters and buffers.

No list of names says what a config of any architecture asks for (experts, heads, widths, vocabularies, and products of
them). So the modules are counted while they are built, and building ends when there are more than the weight files can
hold. Models are built on the meta device, where a tensor takes no memory.

Invariant: an honest model is never refused. A module has a share of a tensor, and a parameter at least one bit of the
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..common_worker.errors import Refused
from ..common_worker.sizes import Stored

MODULES_PER_TENSOR = 32
"""Models have one to three; those that store a layer's experts as one tensor but build each have one per expert."""

MODULES = 16_384
"""Number of modules that is always allowed: building them takes a second."""

PARAMETERS_PER_BYTE = 16
"""Eight of one bit each, and twice that for parameters that are registered under two names."""

PARAMETERS = 1 << 24
"""Number of parameters that is always allowed."""

BUFFERS = 1 << 30
"""Elements of buffers, in addition to the bound on parameters. In each layer old models have causal masks of positions
squared, 0.2 * 10^9 elements in the largest."""


@contextmanager
def bound_building(stored: Stored) -> Iterator[None]:
    """Count modules and their tensors while inside; Refused("bad_model") is raised within if there are too many."""
    count = _Count(stored)
    begin: Any = nn.Module.__init__
    parameter, buffer = nn.Module.register_parameter, nn.Module.register_buffer

    def begun(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        count.module(module)
        begin(module, *args, **kwargs)

    def with_parameter(module: nn.Module, name: str, value: nn.Parameter | None) -> None:
        count.parameter(module, name, value)
        parameter(module, name, value)

    def with_buffer(module: nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True) -> None:
        count.buffer(module, name, tensor)
        buffer(module, name, tensor, persistent)

    changed: dict[str, Callable[..., None]] = {
        "__init__": begun,
        "register_parameter": with_parameter,
        "register_buffer": with_buffer,
    }
    for name, method in changed.items():
        setattr(nn.Module, name, method)
    try:
        yield
    finally:
        for name, method in zip(changed, (begin, parameter, buffer), strict=True):
            setattr(nn.Module, name, method)


class _Count:
    """The modules and elements that were built so far, and their bounds."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._modules = self._parameters = self._buffers = 0

    def module(self, module: nn.Module) -> None:
        self._modules += 1
        most = MODULES + MODULES_PER_TENSOR * self._stored.num_tensors
        if self._modules > most:
            raise self._too_many(f"more than {most} modules, the last a {type(module).__name__}")

    def parameter(self, module: nn.Module, name: str, value: torch.Tensor | None) -> None:
        if value is None or not value.is_meta:  # loaded tensors replace built ones
            return
        self._parameters += value.numel()
        most = PARAMETERS + PARAMETERS_PER_BYTE * self._stored.num_bytes
        if self._parameters > most:
            raise self._too_many(f"more than {most} parameters, the last {_named(module, name, value)}")

    def buffer(self, module: nn.Module, name: str, value: torch.Tensor | None) -> None:
        if value is None or not value.is_meta:
            return
        self._buffers += value.numel()
        most = BUFFERS + PARAMETERS_PER_BYTE * self._stored.num_bytes
        if self._buffers > most:
            raise self._too_many(f"buffers of more than {most} elements, the last {_named(module, name, value)}")

    def _too_many(self, what: str) -> Refused:
        held = f"{self._stored.num_tensors} tensors and {self._stored.num_bytes} bytes"
        return Refused("bad_model", f"config.json asks for {what}, but the weights have {held}")


def _named(module: nn.Module, name: str, value: torch.Tensor) -> str:
    return f"{type(module).__name__}.{name} of {' x '.join(map(str, value.shape))}"
