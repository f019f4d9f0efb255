"""Which layers the names in `lora_targets` mean: the rule of peft, for whoever puts adapters on and for whoever asks.

What always holds: a target names a module when it is its whole name, or the end of it after a dot; a target that names
none is refused, also where others name some: what was meant would not be trained. No torch: the node asks before it
starts anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def names(target: str, module: str) -> bool:
    """Whether `target` names the module of that name."""
    return module == target or module.endswith(f".{target}")


def unmatched(targets: Iterable[str], modules: Sequence[str]) -> list[str]:
    """The targets that name none of `modules`."""
    return [target for target in targets if not any(names(target, module) for module in modules)]


def no_targets(missing: Sequence[str], modules: Iterable[str]) -> str:
    """What to say of targets that name none of `modules`, the linear layers; no full stop."""
    kinds = sorted({module.rpartition(".")[2] for module in modules})
    said = ", ".join(map(repr, missing))
    return f"lora_targets: this model has no linear layer called {said}. Choose among {', '.join(kinds)}"
