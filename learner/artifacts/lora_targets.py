"""Tell which layers the names in `lora_targets` select, by peft's rule.

Used where adapters are attached and where the configuration is checked. No torch, because the node checks before it
starts anything.

Invariants:

- A target selects a module if it is the module's whole name, or its end after a dot.
- A target that selects no module is an error, even if other targets select some: a layer that the operator meant
  would not be trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def names(target: str, module: str) -> bool:
    """Return whether `target` selects the module of that name."""
    return module == target or module.endswith(f".{target}")


def unmatched(targets: Iterable[str], modules: Sequence[str]) -> list[str]:
    """Return the targets that select none of `modules`."""
    return [target for target in targets if not any(names(target, module) for module in modules)]


def no_targets(missing: Sequence[str], modules: Iterable[str]) -> str:
    """Return the message for targets that select none of `modules`, the linear layers; without a full stop."""
    kinds = sorted({module.rpartition(".")[2] for module in modules})
    said = ", ".join(map(repr, missing))
    return f"lora_targets: this model has no linear layer called {said}. Choose among {', '.join(kinds)}"
