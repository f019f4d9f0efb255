"""Import every module of `protocol`, for tests that look at all messages."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import protocol

AT_LEAST = 38
"""Number of modules that `protocol` has at least, its folders included: a walk that finds fewer would let its tests
pass unseen."""


def protocol_modules() -> list[ModuleType]:
    """Return the modules of `protocol` and of its folders, imported."""
    found = [importlib.import_module(module.name) for module in pkgutil.walk_packages(protocol.__path__, "protocol.")]
    assert len(found) >= AT_LEAST, [module.__name__ for module in found]
    return found
