"""The configuration files, read once and checked at the door.

What always holds after `read_*_config`: every key is known, every value has its type and lies in its range, what must
fit together does, relative paths are relative to the file, and `[learn]` says what is in force: the mode is resolved
here and nowhere else, so whoever reads S, kappa and `ahead` need not ask for it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_toml
from learner.rollouts.leases import delivery_bytes
from node.config.common import Section
from node.config.daily_hours import HoursError, parse_hours
from node.config.error_messages import explain_validation, lower, types_of
from node.config.invite_text import refuse_invite
from node.config.node_config import (
    EngineSection,
    NodeConfig,
)
from node.config.swarm_config import (
    CostSection,
    CurriculumSection,
    LearnSection,
    OfflineSection,
    SwarmConfig,
    TaskSection,
    TrainerSection,
)
from node.config.unused_keys import idle_key, idle_key_of_node
from node.runtime.errors import UsageError, naming, shortened
from node.runtime.user_paths import as_path, real_path
from protocol.core.limits import MAX_WORK_BYTES

MAX_PORT = 65_535

C = TypeVar("C", SwarmConfig, NodeConfig)


def read_swarm_config(path: Path) -> SwarmConfig:
    """Return `swarm.toml` with its paths made absolute and its mode in force. Raises UsageError."""
    config = _read(path, SwarmConfig)
    learn = _in_force(config.learn)
    _require_consistent(path, learn, config.trainer)
    _require_offline(path, config)
    if config.swarm_rollouts or config.task.tasks:
        _require_tasks(path, config.task)
    _require_band(path, config.curriculum)
    _require_informative(path, config)
    if idle := idle_key(config):
        raise UsageError(f"{path}: {idle}")
    if (most := max(config.evaluate.k, default=1)) > (samples := config.evaluate.samples):
        raise UsageError(
            f"{path}: [evaluate] k = {most} is more than samples = {samples}, and pass@k needs at least k samples "
            "of a prompt. Raise samples; twice k or more makes the estimate steadier."
        )
    _require_reachable(path, config)
    if config.trust.audits and config.learn.quantized_engines:
        raise UsageError(
            f"{path}: [learn] quantized_engines = true and [trust] audits = true cannot both be: an audit cannot tell "
            "an engine that quantises from a peer that cheats. Leave such engines out, or set audits = false where "
            "every peer is your own."
        )
    _require_reference(path, config.cost)
    config = msgspec.structs.replace(
        config,
        learn=learn,
        trainer=_over_the_run(config.trainer, learn.steps),
        offline=_as_shared(config.offline),
        swarm=msgspec.structs.replace(config.swarm, state=_placed(path, "[swarm] state", config.swarm.state)),
        model=msgspec.structs.replace(
            config.model, directory=_placed(path, "[model] directory", config.model.directory)
        ),
    )
    _require_apart(path, config)
    return config


def _placed(file: Path, key: str, value: str) -> str:
    """The path at `key`, absolute: relative ones begin where the file lies. Raises UsageError naming both."""
    with naming(f"{file}: {key}"):
        return str(real_path(file).parent / as_path(value))


def _in_force(learn: LearnSection) -> LearnSection:
    """What the mode makes of the other keys.

    "sequential" is Echo's sequential pull (arXiv 2508.05387): weights are refreshed before every generation. So a
    version is published after every step, and no more is leased than the batch that it will be trained on: what was
    made beyond would be too old for the next.
    """
    if learn.mode == "async":
        return learn
    return msgspec.structs.replace(learn, staleness=0, publish_every=1, ahead=1.0)


def _over_the_run(trainer: TrainerSection, steps: int) -> TrainerSection:
    """The learning rate falls over the whole run where nothing else is said.

    Rollouts that are old are answered late, and what they correct too late grows with the rate: where it falls, S = 6
    and S = 11 end where S = 0 does (docs/objectives.md).
    """
    return trainer if trainer.decay_steps is not None else msgspec.structs.replace(trainer, decay_steps=steps)


def _as_shared(offline: OfflineSection) -> OfflineSection:
    return offline if offline.path is None else msgspec.structs.replace(offline, share=offline.share_in_force)


def _require_consistent(path: Path, learn: LearnSection, trainer: TrainerSection) -> None:
    if learn.mode == "async" and learn.staleness == 0:
        raise UsageError(
            f'{path}: [learn] staleness = 0 leaves mode = "async" nothing to do at the same time. Set mode = '
            '"sequential" for rollouts made by exactly the policy that they train, or staleness to 1 or more.'
        )
    if learn.publish_every > max(1, learn.staleness):
        raise UsageError(
            f"{path}: [learn] publish_every = {learn.publish_every} is more than staleness = {learn.staleness} allows: "
            f"rollouts of one version would be too old before the next appears. Set it to {learn.staleness} or less."
        )
    if trainer.updates_per_step > learn.prompts_per_step:
        raise UsageError(
            f"{path}: [trainer] updates_per_step = {trainer.updates_per_step} is more than the groups of a training "
            f"step, [learn] prompts_per_step = {learn.prompts_per_step}, and each update takes one at least. Lower the "
            "one or raise the other."
        )
    if trainer.machines > 1 and not _is_rendezvous(trainer.rendezvous):
        raise UsageError(
            f"{path}: [trainer] machines = {trainer.machines} need rendezvous, where the others reach this one: "
            '"HOST:PORT", a free port of this machine, 1 to 65535.'
        )
    if (size := delivery_bytes(learn.group_size, learn.max_new_tokens)) > MAX_WORK_BYTES:
        raise UsageError(
            f"{path}: [learn] group_size = {learn.group_size} completions of max_new_tokens = {learn.max_new_tokens} "
            f"take up to {size} bytes, and a delivery has at most {MAX_WORK_BYTES}. Lower one of the two."
        )


def _is_rendezvous(address: str) -> bool:
    found = re.fullmatch(r".+:(\d{1,5})", address)
    return found is not None and 1 <= int(found[1]) <= MAX_PORT


def _require_reachable(path: Path, config: SwarmConfig) -> None:
    if not config.network.listen and config.swarm_rollouts:
        raise UsageError(
            f"{path}: [network] listen = [] lets no volunteer reach this learner, and it trains on what they make. "
            'Name an address, as "/ip4/0.0.0.0/tcp/4001", or let [offline] bring all of each batch with share = 1.'
        )


def _require_reference(path: Path, cost: CostSection) -> None:
    """A machine has a price and a speed, or nothing can be held against it."""
    given = (cost.reference_per_hour is not None, cost.reference_tokens_per_s is not None)
    if any(given) and not all(given):
        lacking = "reference_tokens_per_s" if given[0] else "reference_per_hour"
        raise UsageError(
            f"{path}: [cost] {lacking} is missing: a machine to compare with has a price per hour and the tokens per "
            "second that it generates. Add it, or leave both out."
        )
    if cost.reference and not any(given):
        raise UsageError(
            f"{path}: [cost] reference = {cost.reference!r} has neither price nor speed. Add reference_per_hour and "
            "reference_tokens_per_s, or leave reference out."
        )


def _require_apart(path: Path, config: SwarmConfig) -> None:
    """The model is read and never written: what a run makes lies elsewhere."""
    state, model = real_path(Path(config.swarm.state)), real_path(Path(config.model.directory))
    if state == model or model in state.parents:
        raise UsageError(
            f"{path}: [swarm] state: {config.swarm.state} lies in [model] directory, where nothing may be written. "
            "Choose another directory."
        )


def _require_offline(path: Path, config: SwarmConfig) -> None:
    offline, learn = config.offline, config.learn
    if offline.path is not None and (config.offline_rollouts < 2 or config.swarm_rollouts == 1):
        raise UsageError(
            f"{path}: [offline] share = {offline.share_in_force} of the {learn.prompts_per_step * learn.group_size} "
            "completions of a batch leaves less than a group of two for one side. Choose another share."
        )
    if (chosen := config.trainer.pairs_by) and config.swarm_rollouts and learn.group_size != 2:
        raise UsageError(
            f"{path}: [trainer] {chosen} learns from pairs, and [learn] group_size = {learn.group_size}. Set "
            "it to 2, or let [offline] bring all of each batch with share = 1."
        )


def _require_informative(path: Path, config: SwarmConfig) -> None:
    """Dynamic sampling drops groups of one reward, which is only right where those teach nothing."""
    trainer = config.trainer
    if not config.curriculum.dynamic_sampling:
        return
    if trainer.kl > 0:
        why = f"kl = {trainer.kl}"
    elif trainer.advantage_in_force in ("gae", "batch_mean"):
        why = f'the advantage "{trainer.advantage_in_force}" (objective = "{trainer.objective}")'
    else:
        return
    raise UsageError(
        f"{path}: [curriculum] dynamic_sampling drops groups whose rewards are all equal, and with [trainer] {why} "
        "those teach, too: dropping them would bias what is learnt. Set dynamic_sampling to false, or choose an "
        "advantage that compares within the group, with kl = 0."
    )


def _require_tasks(path: Path, task: TaskSection) -> None:
    if (task.spec is None) == (not task.mixture):
        raise UsageError(
            f"{path}: [task] wants either spec, for one task, or a [[task.mixture]] table for each of several."
        )
    titles = [one.title for one in task.tasks]
    for title in titles:
        if titles.count(title) > 1:
            raise UsageError(
                f"{path}: [[task.mixture]] has {titles.count(title)} tasks called {title!r}. Give each a name = of its "
                "own: reports tell them apart by it."
            )


def _require_band(path: Path, curriculum: CurriculumSection) -> None:
    if curriculum.low >= curriculum.high:
        raise UsageError(
            f"{path}: [curriculum] low = {curriculum.low} leaves nothing below high = {curriculum.high}. Pass rates "
            "between the two are the band that is asked in every pass: 0.0 and 1.0 leave out all wrong and all right."
        )


def read_node_config(path: Path | None) -> NodeConfig:
    """Return `node.toml`, or the defaults when there is none. Raises UsageError."""
    if path is None:
        return NodeConfig()
    config = _read(path, NodeConfig)
    require_hours(config.engine, f"{path}: [engine] hours")
    _require_gpus(config.engine, path)
    if idle := idle_key_of_node(config):
        raise UsageError(f"{path}: {idle}")
    return config


def require_hours(engine: EngineSection, where: str) -> None:
    """Raises UsageError, beginning with `where`, unless `engine.hours` can be read."""
    try:
        parse_hours(engine.hours)
    except HoursError as error:
        raise UsageError(f"{where}: {error}") from None


def _require_gpus(engine: EngineSection, path: Path) -> None:
    if engine.tensor_parallel_size > 1 and engine.device.startswith("cuda:"):
        raise UsageError(
            f'{path}: [engine] device = "{engine.device}" is one GPU, and tensor_parallel_size = '
            f'{engine.tensor_parallel_size} shares the model among so many. Set device = "cuda", or leave '
            "tensor_parallel_size out."
        )


S = TypeVar("S", bound=Section)


def replaced(section: S, **values: float | str) -> S:
    """`section` with values from the command line, each judged as one in the file is. Raises UsageError."""
    for key, value in values.items():
        try:
            msgspec.convert(value, types_of(type(section))[key])
        except msgspec.ValidationError as error:
            raise UsageError(f"--{key.replace('_', '-')} {value}: {lower(str(error))}.") from None
    return msgspec.structs.replace(section, **values)


def _key_with_nul(value: object, place: str = "") -> str | None:
    """The first key, as [section] key, whose text holds a NUL: the system takes none in a path."""
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
        hint = " `volery init` writes one to begin with." if kind is SwarmConfig else ""
        raise UsageError(f"{path}: no such file.{hint}") from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a directory; name the TOML file in it.") from None
    except OSError as error:
        raise UsageError(f"{shortened(str(path))} cannot be read: {error.strerror}. Name a TOML file.") from None
    except NotText as error:
        raise UsageError(f"{path} {error}.") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None
    if (key := _key_with_nul(raw)) is not None:
        raise UsageError(f"{path}: {key} holds a NUL character, which no name and no text here may have. Remove it.")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {explain_validation(str(error), kind)}") from None
