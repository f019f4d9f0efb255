"""Show a task as its model reads it, and check that it keeps its promises (`volery tasks show`, `... check`).

With a swarm.toml, the model, seed and limits are those of the run, and so are the tasks if no spec is given. With
neither a swarm.toml nor a model, a small tokenizer of one token for each character encodes the prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from learner.rollouts.environment import EpisodeLimits
from node.commands.init.command import fitting_tokens
from node.commands.tasks.text import as_json, as_text
from node.commands.tasks.view import ShownTask, shown_task
from node.config.loader import read_swarm_config
from node.config.preflight import require_directory
from node.config.services import services_of
from node.config.swarm_config import LearnSection, SwarmConfig
from node.runtime.errors import UsageError, about_keys_of, naming
from node.runtime.stdout import screen_width
from node.runtime.user_paths import real_path
from node.state.locate import DEFAULT_CONFIG
from node.tasks.checks.check_task import try_task
from node.tasks.checks.report import Report
from node.tasks.checks.tokens import small_codec
from node.tasks.gate import Gate
from node.tasks.registry import Services, open_task
from node.tasks.task_suite import episode_limits
from node.tasks.tokenizer import TextCodec, limit_of
from node.tasks.ways.model_ways import ModelWays, read_ways

USUAL = LearnSection(steps=1)
"""The values of a run whose swarm.toml sets none."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The tasks to look at, and what they are looked at with. Relative paths in `specs` begin at `directory`.

    Args:
        model: None for the small tokenizer.
        named: the key or option that names the model.
        learn: None without a configuration; the limits are then those that `volery init` would set.
        held_out: number of held-out prompts of each task.
    """

    specs: Sequence[str]
    directory: Path
    seed: int = USUAL.seed
    model: Path | None = None
    named: str = "--model"
    ways: ModelWays = field(default_factory=ModelWays)
    learn: LearnSection | None = None
    held_out: int = 1
    services: Services = field(default_factory=dict)

    def codec(self) -> TextCodec | None:
        """Return the model's tokenizer; None without a model. Raises UsageError that names the key or option."""
        if self.model is None:
            return None
        require_directory(self.model, self.named)
        with naming(self.named):
            return TextCodec.load(self.model, self.ways)

    def limits(self) -> EpisodeLimits:
        """Return the limits of an episode with the model. Raises TaskError."""
        if self.model is None:
            return episode_limits(self.learn or USUAL, None)
        learn = self.learn or LearnSection(steps=USUAL.steps, max_new_tokens=fitting_tokens(self.model))
        limit = limit_of(self.model)
        return episode_limits(learn, limit.tokens if limit else None)


def setting_of(spec: str, *, config: Path | None, model: Path | None) -> Setting:
    """Return the task of `spec`, or those of the configuration `config`; ./swarm.toml if nothing else is named.

    Raises UsageError if nothing says which task, or the configuration cannot be read.
    """
    if config is None and DEFAULT_CONFIG.is_file() and not (spec and model):
        config = DEFAULT_CONFIG
    if config is not None and config.is_dir():
        config = config / DEFAULT_CONFIG
    if config is None:
        if not spec:
            raise UsageError(
                "There is no swarm.toml here. Name a task, for example: volery tasks show reverse:letters=6. `volery "
                "tasks` lists the tasks."
            )
        return Setting(specs=[spec], directory=Path(), model=model)
    found = read_swarm_config(config)
    with about_keys_of(config):
        return _of_config(found, config, spec, model)


def _of_config(config: SwarmConfig, file: Path, spec: str, model: Path | None) -> Setting:
    """Return the settings of the run, except that `model`, if given, takes precedence over the run's."""
    specs = [spec] if spec else [one.spec for one in config.task.tasks]
    if not specs:
        raise UsageError(f"{file}: [task] names no task. Name one, for example: volery tasks show reverse:letters=6.")
    return Setting(
        specs=specs,
        directory=real_path(file).parent,
        seed=config.learn.seed,
        model=model or Path(config.model.directory),
        named="--model" if model is not None else f"{file}: [model] directory",
        ways=read_ways(config.model),
        learn=config.learn,
        held_out=config.task.held_out,
        services=services_of(config, real_path(file).parent),
    )


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What `volery tasks show` or `... check` prints, and the exit code."""

    text: str
    code: int


def show(spec: str, *, config: Path | None, model: Path | None, count: int, as_json_text: bool) -> Printed:
    """Return what `volery tasks show` prints. The exit code is 1 if the model named can train on no problem of a task.

    Raises UsageError, TaskError.
    """
    setting = setting_of(spec, config=config, model=model)
    codec, limits = setting.codec(), setting.limits()
    tasks = [_shown(one, setting, codec or small_codec(), limits, count) for one in setting.specs]
    code = int(codec is not None and any(task.is_hopeless for task in tasks))
    return Printed(text=as_json(tasks) if as_json_text else as_text(tasks, width=screen_width()), code=code)


def _shown(spec: str, setting: Setting, codec: TextCodec, limits: EpisodeLimits, count: int) -> ShownTask:
    gate = Gate(open_task(spec, directory=setting.directory, seed=setting.seed, services=setting.services))
    return shown_task(gate, spec, codec=codec, limits=limits, count=count, held_out=setting.held_out)


def check(
    spec: str,
    *,
    config: Path | None,
    model: Path | None,
    count: int,
    max_problem_s: float | None,
    max_reward_s: float | None,
    as_json_text: bool,
) -> Printed:
    """Run all checks on the tasks. The exit code is 1 if a task breaks a promise.

    Raises UsageError, and TaskError for a model that cannot be read.
    """
    setting = setting_of(spec, config=config, model=model)
    codec = setting.codec()
    reports = [
        try_task(
            one,
            count,
            directory=setting.directory,
            seed=setting.seed,
            codec=codec,
            max_problem_s=max_problem_s,
            max_reward_s=max_reward_s,
            services=setting.services,
        )
        for one in setting.specs
    ]
    code = 0 if all(report.passed for report in reports) else 1
    if as_json_text:
        return Printed(text=json.dumps({"tasks": [_exported(report) for report in reports]}, indent=2), code=code)
    return Printed(text="\n\n".join(map(str, reports)), code=code)


def _exported(report: Report) -> dict[str, object]:
    results = [{"outcome": one.outcome, **asdict(one)} for one in report.results]
    return {**asdict(report), "passed": report.passed, "results": results}
