"""A recorded swarm, if a figure of it were another: T_train, R, T_bcast, T_gen, or what an installation takes.

Pure. What always holds: a figure that is said holds for every machine, as in `volery plan --from`; what is not said
stays what each machine has shown. T_bcast contains the installation.
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
"""What each is called."""

Figures = tuple[tuple[str, float], ...]
"""Of FIGURES, each with its value."""


def told(key: str, value: float) -> str:
    """In a few words."""
    return f"{FIGURES[key]} = {f'{value:,}' if key == 'rollouts' else words.seconds(value)}"


def figured(learning: Learning, machines: Sequence[Machine], figures: Figures) -> tuple[Learning, tuple[Machine, ...]]:
    """The same with other figures."""
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
