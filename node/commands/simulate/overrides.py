"""Change settings of a recorded swarm: T_train, R, T_bcast, T_gen, or the time of an installation.

Pure.

Invariants:

- A setting that is given applies to every machine, as in `volery plan --from`. Otherwise each machine keeps what it has
  shown.
- T_bcast contains the installation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from learner.simulation.machines import Machine, batch_for
from learner.simulation.trace import Learning
from node.runtime import formatting as words

FIGURES = {
    "train_s": "T_train",
    "rollouts": "R",
    "broadcast_s": "T_bcast",
    "generation_s": "T_gen",
    "install_s": "installation",
}
"""The name of each setting in texts."""

Figures = tuple[tuple[str, float], ...]
"""Keys of FIGURES, each with its value."""


def setting_text(key: str, value: float) -> str:
    """Return a setting in a few words."""
    return f"{FIGURES[key]} = {f'{value:,}' if key == 'rollouts' else words.seconds(value)}"


def figured(learning: Learning, machines: Sequence[Machine], figures: Figures) -> tuple[Learning, tuple[Machine, ...]]:
    """Return the swarm and its machines with other settings."""
    said = dict(figures)
    other = replace(
        learning,
        train_s=said.get("train_s", learning.train_s),
        rollouts=int(said.get("rollouts", learning.rollouts)),
        broadcast_s=said.get("broadcast_s", learning.broadcast_s),
    )
    return other, tuple(_machine(one, said, learning.group_size) for one in machines)


def _machine(one: Machine, said: Mapping[str, float], group: int) -> Machine:
    install_s, arrival_s = said.get("install_s", one.install_s), one.broadcast_s
    if (broadcast_s := said.get("broadcast_s")) is not None:
        install_s = min(install_s, broadcast_s)
        arrival_s = broadcast_s - install_s
    held = one.batch_rollouts
    if (generation_s := said.get("generation_s")) is not None:
        held = batch_for(one.rate, generation_s, group)
    return replace(one, install_s=install_s, broadcast_s=arrival_s, batch_rollouts=held)
