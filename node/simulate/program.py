"""`volery simulate`: read, simulate, tell. Whoever prints is the command line.

What always holds: nothing is written before everything was read and simulated; a recording and a picture are written
whole or not at all.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD

from learner.provisioning.recording import Recorded, encode_line
from node.errors import RunError, UsageError
from node.plan.pool import SETTINGS, Key, judged, read_pool
from node.plan.program import WIDTHS
from node.simulate.export import as_json
from node.simulate.machinery import HOUR_S, swarm_of
from node.simulate.replay import Replay, read_replay
from node.simulate.scenario import USUAL, Mode, Swarm, WhatIf
from node.simulate.story import Limit, Story, tell
from node.simulate.text import as_text

MOST_HOURS = 10_000
MOST_STEPS = 1_000_000
MOST_TIMES = 100
"""Of the machines."""

OPTIONS = (
    Key(name="hours", meaning="simulated", above=True, high=MOST_HOURS),
    Key(name="steps", meaning="simulated", low=1, high=MOST_STEPS, whole=True),
    Key(name="machines", meaning="a share of them", above=True, high=MOST_TIMES),
    Key(name="staleness", meaning="S", high=1000, whole=True),
    Key(name="kappa", meaning="publication period", low=1, high=1000, whole=True),
)


OF_A_RUN = ("train_s", "rollouts", "learner_price")
"""What may be said of a recorded run that was otherwise."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Everything that was simulated: what was asked is the last story, what it is compared with comes before."""

    swarm: Swarm
    stories: tuple[Story, ...]
    seed: int
    replay: Replay | None
    recorded: tuple[Recorded, ...]

    @property
    def asked(self) -> Story:
        """What was asked for."""
        return self.stories[-1]


def answer(
    path: Path | None,
    source: Path | None,
    *,
    options: Mapping[str, Any],
    mode: Mode | None = None,
    p2p: bool = True,
    cost: bool = True,
    plan: bool | None = None,
    compare: bool = False,
    record: bool = False,
    picture: bool = False,
    seed: int = 0,
) -> Answer:
    """Simulate the pool in `path`, or the run at `source`. `options` are those of OPTIONS and of a `[swarm]` table that
    were given. Raises UsageError.
    """
    said = _judged_options(options)
    asked = WhatIf(
        mode=mode,
        staleness=said.get("staleness"),
        kappa=said.get("kappa"),
        p2p=p2p,
        cost=cost,
        machines=said.get("machines", 1.0),
        plan=plan,
    )
    command = {key.name: said[key.name] for key in SETTINGS if key.name in said and key.name not in ("hours", "kappa")}
    swarm, replay = _swarm(path, source, command)
    limit = _limit(swarm, said)
    events: list[Recorded] | None = [] if record else None
    others = _others(asked, replayed=replay is not None, compare=compare)
    told = [tell(swarm, other, seed=seed, limit=limit) for other in others]
    told.append(tell(swarm, asked, seed=seed, limit=limit, spans=picture, record=events))
    return Answer(swarm=swarm, stories=tuple(told), seed=seed, replay=replay, recorded=tuple(events or ()))


def show(found: Answer, *, as_json_text: bool) -> str:
    """The answer as text or JSON."""
    currency = found.swarm.currency
    if as_json_text:
        return as_json(found.stories, currency=currency, seed=found.seed, replay=found.replay)
    if not sys.stdout.isatty():
        return as_text(found.stories, currency=currency, replay=found.replay)
    width = min(max(shutil.get_terminal_size().columns, WIDTHS[0]), WIDTHS[1])
    return as_text(found.stories, currency=currency, replay=found.replay, width=width, box=SIMPLE_HEAD, color=True)


def write_recording(events: Sequence[Recorded], path: Path) -> None:
    """The events as a recording, whole or not at all. Raises RunError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.writelines(encode_line(event) for event in events)
        partial.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}. Name another file after --record.") from None
    finally:
        partial.unlink(missing_ok=True)


def _swarm(path: Path | None, source: Path | None, command: Mapping[str, Any]) -> tuple[Swarm, Replay | None]:
    window = {key: value for key, value in command.items() if key != "staleness"}
    if path is not None and source is not None:
        raise UsageError(
            "Name a pool or --from with a recorded run, not both: a replay is of the peers that were there."
        )
    if path is not None:
        return swarm_of(read_pool(path), window), None
    if source is None:
        raise UsageError(
            "There is nothing to simulate. Name a .toml or .csv of machines, or --from with a recorded run."
        )
    if foreign := [key for key in window if key not in OF_A_RUN]:
        option = f"--{foreign[0].replace('_', '-')}"
        raise UsageError(f"{option} is read off the run at {source}. Leave it out, or name a pool instead of --from.")
    replay = read_replay(source, window)
    return replay.swarm, replay


def _limit(swarm: Swarm, said: Mapping[str, Any]) -> Limit:
    if "steps" in said:
        if "hours" in said:
            raise UsageError("Give --hours or --steps, not both.")
        return Limit(seconds=MOST_HOURS * HOUR_S, steps=said["steps"])
    return Limit(seconds=said["hours"] * HOUR_S if "hours" in said else swarm.seconds)


def _others(asked: WhatIf, *, replayed: bool, compare: bool) -> list[WhatIf]:
    """What is simulated beside what was asked: as it is, and each difference alone."""
    as_it_is, parts = WhatIf(), asked.parts()
    if not compare:
        return [as_it_is] if replayed and parts else []
    if not parts:
        return list(USUAL)
    return [as_it_is, *(parts if len(parts) > 1 else [])]


def _judged_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, named as they were typed."""
    found: dict[str, Any] = {}
    for key in {key.name: key for key in (*SETTINGS, *OPTIONS)}.values():
        if (value := options.get(key.name)) is not None:
            found |= judged([key], {key.name: value}, f"--{key.name.replace('_', '-')}")
    return found
