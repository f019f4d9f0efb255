"""Run `volery simulate`: read the inputs, simulate, and format the answer. The command line prints it.

Invariants:

- Nothing is written before everything was read and simulated.
- A recording or a picture is written whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from learner.artifacts.regular_file import open_file
from learner.provisioning.estimation.recording import Began, Recorded, RecordingError, encode_line, read_lines
from learner.simulation.world import SIMULATED
from node.commands.plan.command import NARROWEST
from node.commands.plan.pool import read_pool
from node.commands.plan.pool_keys import judged_options
from node.commands.plan.recordings import MAX_LINE_BYTES
from node.commands.simulate.json_export import as_json
from node.commands.simulate.options import MOST_HOURS, OF_SWARM, OPTIONS, Mode
from node.commands.simulate.overrides import FIGURES
from node.commands.simulate.pool_machines import HOUR_S, swarm_of
from node.commands.simulate.recorded_swarm import Replay, read_replay
from node.commands.simulate.result import Story, tell
from node.commands.simulate.scenario import AS_IT_IS, USUAL, Swarm, WhatIf
from node.commands.simulate.text import as_text
from node.reports.text.tables import SCREEN
from node.runtime.atomic_files import require_own, require_place, write_whole, writing
from node.runtime.errors import UsageError
from node.runtime.stdout import is_screen, screen_width

OF_LINES = ("weights_mb", "learner_up_mbit")
"""Settings that are used with the machines' bandwidths, which no recording contains."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All simulations: the last story is what was asked for, and the others are for comparison."""

    swarm: Swarm
    stories: tuple[Story, ...]
    seed: int
    replay: Replay | None
    recorded: tuple[Recorded, ...]

    @property
    def asked(self) -> Story:
        """Return the story that was asked for."""
        return self.stories[-1]


def answer(
    path: Path | None,
    source: Path | None,
    *,
    options: Mapping[str, Any],
    asked: WhatIf = AS_IT_IS,
    compare: bool = False,
    record: bool = False,
    picture: bool = False,
    seed: int = 0,
) -> Answer:
    """Simulate the pool in `path`, or the run at `source`, with the changes in `asked` and `options`.

    `options` are those of OPTIONS; None means not given. Raises UsageError.
    """
    said = judged_options(OPTIONS, options)
    asked = replace(asked, **{key: said[key] for key in ("staleness", "kappa", "machines") if key in said})
    command = {key.name: said[key.name] for key in OF_SWARM if key.name in said}
    swarm, replay = _swarm(path, source, command)
    if replay is not None:
        asked = replace(asked, figures=tuple((key, command[key]) for key in FIGURES if key in command))
    _require_plan(swarm, asked)
    steps, until_s = _limit(swarm, said)
    simulate = partial(tell, swarm, seed=seed, steps=steps, until_s=until_s)
    events: list[Recorded] | None = [] if record else None
    others = _others(swarm, asked, replayed=replay is not None, compare=compare)
    told = [*map(simulate, others), simulate(asked, spans=picture, record=events)]
    return Answer(swarm=swarm, stories=tuple(told), seed=seed, replay=replay, recorded=tuple(events or ()))


def show(found: Answer, *, as_json_text: bool) -> str:
    """Return the answer as text or JSON."""
    currency = found.swarm.currency
    if as_json_text:
        return as_json(found.stories, currency=currency, seed=found.seed, replay=found.replay)
    look: dict[str, Any] = {"width": screen_width(NARROWEST), "box": SCREEN, "color": True} if is_screen() else {}
    return as_text(found.stories, currency=currency, replay=found.replay, **look)


def require_recording(path: Path) -> None:
    """Check beforehand that a recording could be written to `path`. Raises UsageError, RunError.

    A learner's recording cannot be made again, so only an earlier simulation's recording is replaced.
    """
    require_place(path, "--record", makes_directory=True)
    require_own(path, "--record", "no simulation's recording", _is_simulated)


def _is_simulated(path: Path) -> bool:
    try:
        with open_file(path) as file:
            first = next(read_lines([file.readline(MAX_LINE_BYTES)], str(path)), None)
    except RecordingError:
        return False
    return isinstance(first, Began) and (first.swarm, first.at_s) == (SIMULATED, 0.0)


def write_recording(events: Sequence[Recorded], path: Path) -> None:
    """Write the events as a recording, whole or not at all. Raises RunError."""

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            file.writelines(encode_line(event) for event in events)

    with writing(path, "--record"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, write)


def _swarm(path: Path | None, source: Path | None, command: Mapping[str, Any]) -> tuple[Swarm, Replay | None]:
    """Return the unchanged swarm: a pool with the settings of the command line, or a run as it was."""
    if path is not None and source is not None:
        raise UsageError(
            "Name a pool or a recorded run with --from, not both: a replay has the peers that were in the run."
        )
    if path is not None:
        return swarm_of(read_pool(path), command), None
    if source is None:
        raise UsageError(
            "There is nothing to simulate. Name a .toml or .csv file of machines, or --from with a recorded run."
        )
    if of_lines := [key for key in OF_LINES if key in command]:
        raise UsageError(
            f"--{of_lines[0].replace('_', '-')}: T_bcast is computed from it and the machines' bandwidths, which the "
            f"recording of {source} does not contain. Give --broadcast-s instead."
        )
    replay = read_replay(source, learner_price=command.get("learner_price"), broadcast_s=command.get("broadcast_s"))
    return replay.swarm, replay


def _require_plan(swarm: Swarm, asked: WhatIf) -> None:
    if not asked.cost and not (swarm.is_planned if asked.plan is None else asked.plan):
        why = "with --no-plan all are active" if asked.plan is False else "this run had none, and all were active"
        raise UsageError(f"--no-cost changes how a plan chooses, but {why}. Add --plan, or omit --no-cost.")


def _limit(swarm: Swarm, said: Mapping[str, Any]) -> tuple[int | None, float]:
    """Return how many training steps to simulate, and for how many seconds at most."""
    if "steps" in said:
        if "hours" in said:
            raise UsageError("Give either --hours or --steps, not both.")
        return said["steps"], MOST_HOURS * HOUR_S
    return None, said["hours"] * HOUR_S if "hours" in said else swarm.seconds


def _others(swarm: Swarm, asked: WhatIf, *, replayed: bool, compare: bool) -> list[WhatIf]:
    """Return what is simulated for comparison: the unchanged swarm, and each change alone."""
    parts = asked.parts()
    if not compare:
        return [AS_IT_IS] if replayed and parts else []
    if not parts:
        return [other for other in USUAL if _differs(swarm, other)]
    return [AS_IT_IS, *(parts if len(parts) > 1 else [])]


def _differs(swarm: Swarm, other: WhatIf) -> bool:
    """Return whether it can make a difference: without a plan, nothing depends on prices."""
    if not swarm.is_planned and (not other.cost or other.plan is False):
        return False
    return other.mode is not Mode.SEQUENTIAL or swarm.learning.staleness > 0
