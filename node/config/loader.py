"""Read and check the configuration files.

Invariants, after `read_*_config`:

- Every key is known, and every value has its type and lies in its range.
- No keys contradict each other.
- Paths are absolute; relative ones in the file begin where the file lies.
- `[learn]` holds the values in force. The mode is resolved only here, so other code reads S, kappa and
  `max_batches_ahead` without asking for the mode.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_toml
from node.config.common import Section
from node.config.conflicts import conflicts, conflicts_of_node
from node.config.daily_hours import HoursError, parse_hours
from node.config.error_messages import explain_validation, lower, types_of
from node.config.invite_text import refuse_invite
from node.config.node_config import EngineSection, NodeConfig, TeacherSection
from node.config.renamed_keys import move_renamed
from node.config.swarm_config import DistillSection, LearnSection, ModelSection, SwarmConfig, TrainerSection
from node.runtime.errors import UsageError, naming, shortened
from node.runtime.user_paths import as_path, real_path

C = TypeVar("C", SwarmConfig, NodeConfig)


def read_swarm_config(path: Path) -> SwarmConfig:
    """Return `swarm.toml` with absolute paths and the values of its mode in force. Raises UsageError."""
    config = _read(path, SwarmConfig)
    offline = config.offline
    config = msgspec.structs.replace(
        config,
        learn=_in_force(config.learn),
        trainer=_over_the_run(config.trainer, config.learn.steps),
        offline=msgspec.structs.replace(offline, share=offline.share_in_force) if offline.path else offline,
        swarm=msgspec.structs.replace(config.swarm, state=_placed(path, "[swarm] state", config.swarm.state)),
        model=_placed_model(path, config.model),
        distill=_placed_teacher(path, config.distill),
    )
    for wrong in conflicts(config):
        raise UsageError(f"{path}: {wrong}")
    return config


def _placed_model(file: Path, model: ModelSection) -> ModelSection:
    template = model.chat_template
    return msgspec.structs.replace(
        model,
        directory=_placed(file, "[model] directory", model.directory),
        chat_template=None if template is None else _placed(file, "[model] chat_template", template),
    )


def _placed_teacher(file: Path, distill: DistillSection) -> DistillSection:
    if distill.teacher is None:
        return distill
    return msgspec.structs.replace(distill, teacher=_placed(file, "[distill] teacher", distill.teacher))


def _placed(file: Path, key: str, value: str) -> str:
    """Return the path at `key`, absolute: a relative one begins where the file lies. Raises UsageError naming both."""
    with naming(f"{file}: {key}"):
        base, path = real_path(file).parent, as_path(value)
        while path.parts[:1] == ("..",):  # `base` has no links, so this names the same directory, without the dots
            base, path = base.parent, path.relative_to("..")
        return str(base / path)


def _in_force(learn: LearnSection) -> LearnSection:
    """Return `[learn]` with the values that its mode demands.

    "sequential" is Echo's sequential pull (arXiv 2508.05387): weights are refreshed before every generation. So a
    version is published after every step, and no more is leased than the batch that will be trained on next. Further
    rollouts would be too old for the step after it.
    """
    if learn.mode == "async":
        return learn
    return msgspec.structs.replace(learn, staleness=0, publish_every=1, max_batches_ahead=1.0)


def _over_the_run(trainer: TrainerSection, steps: int) -> TrainerSection:
    """Return `[trainer]` with a learning rate that falls over the whole run, unless the file says otherwise.

    The gradients of old rollouts come late, and the error of a late correction grows with the learning rate. If the
    rate falls, runs with S = 6 and S = 11 end where S = 0 does (docs/explain/objectives.md).
    """
    return trainer if trainer.decay_steps is not None else msgspec.structs.replace(trainer, decay_steps=steps)


def read_node_config(path: Path | None) -> NodeConfig:
    """Return `node.toml`, or the defaults when there is none. Raises UsageError."""
    if path is None:
        return NodeConfig()
    config = _read(path, NodeConfig)
    require_hours(config.engine, f"{path}: [engine] hours")
    for wrong in conflicts_of_node(config):
        raise UsageError(f"{path}: {wrong}")
    if not config.teacher.directory:
        return config
    directory = _placed(path, "[teacher] directory", config.teacher.directory)
    return msgspec.structs.replace(config, teacher=TeacherSection(directory=directory))


def require_hours(engine: EngineSection, where: str) -> None:
    """Raise UsageError, beginning with `where`, if `engine.hours` cannot be read."""
    try:
        parse_hours(engine.hours)
    except HoursError as error:
        raise UsageError(f"{where}: {error}") from None


S = TypeVar("S", bound=Section)


def replaced(section: S, **values: float | str) -> S:
    """Return `section` with values from the command line, checked like those of a file. Raises UsageError."""
    for key, value in values.items():
        try:
            msgspec.convert(value, types_of(type(section))[key])
        except msgspec.ValidationError as error:
            raise UsageError(f"--{key.replace('_', '-')} {value}: {lower(str(error))}.") from None
    return msgspec.structs.replace(section, **values)


def _key_with_nul(value: object, place: str = "") -> str | None:
    """Return the first key, as [section] key, whose text holds a NUL. The system accepts no NUL in a path."""
    if isinstance(value, str):
        return place if "\0" in value else None
    if isinstance(value, dict):
        parts = ((f"{place} {key}".strip() if place else f"[{key}]", part) for key, part in value.items())
    elif isinstance(value, list):
        parts = ((place, part) for part in value)
    else:
        return None
    return next((found for name, part in parts if (found := _key_with_nul(part, name)) is not None), None)


def _read(path: Path, kind: type[C]) -> C:
    refuse_invite(path, "a swarm.toml" if kind is SwarmConfig else "a node.toml")
    try:
        raw = parse_toml(read_file(path))
    except FileNotFoundError:
        hint = " `volery init` writes one." if kind is SwarmConfig else ""
        raise UsageError(f"{path}: no such file.{hint}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory. Name the TOML file in it.") from None
    except OSError as error:
        raise UsageError(f"{shortened(str(path))} cannot be read: {error.strerror}. Name a TOML file.") from None
    except NotText as error:
        raise UsageError(f"{path} {error}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    if (key := _key_with_nul(raw)) is not None:
        raise UsageError(f"{path}: {key} holds a NUL character, which names and texts may not hold. Remove it.")
    move_renamed(raw, kind, path)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {explain_validation(str(error), kind, raw)}") from None
