"""Use environments of the package `verifiers`, `verifiers:ENVIRONMENT`, with their rubrics as rewards.

Problems are rows of the environment's data sets (`node.tasks.adapters.verifiers.data`). An episode is one rollout of
the environment. It runs in a verifier's process, and asks the policy through a client of ours
(`node.tasks.adapters.verifiers.episode`).

Invariants:

- An environment that cannot work fails at the start: its rewards compare the rollouts of a group, or its rubric has no
  reward.
- If an environment asks for something that it does not get, such as sampling arguments, the operator is told at the
  start.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node.tasks.adapters.verifiers.data import EnvironmentRows, RowProblem, read_rows
from node.tasks.adapters.verifiers.episode import VerifiersEpisode
from node.tasks.adapters.verifiers.messages import read_tools
from node.tasks.adapters.verifiers.package import VerifiersPackage, import_package, load_environment
from node.tasks.adapters.verifiers.rubric import name_rewards, require_rubric
from node.tasks.api.environment import EnvironmentTask
from node.tasks.api.interface import Option, Problem, TaskArguments, TaskError, TaskKind
from node.tasks.kinds.generated import label_of

HELD_OUT = Option(
    key="held_out",
    default=0.1,
    help="fraction of the different prompts to hold out, if there is no data set for evaluation",
    minimum=0.0,
    maximum=0.9,
)

USUAL_SAMPLING = {"n": 1, "extra_body": {}}
"""Sampling arguments of an environment that asks for nothing special."""


@dataclass(frozen=True, kw_only=True)
class VerifiersTask:
    """An environment of the package as a task. `reward_weights`: by name; empty if the rubric gives only a total."""

    name: str
    label: str
    package: VerifiersPackage
    loaded: Any
    rows: EnvironmentRows
    reward_weights: Mapping[str, float]
    remarks: tuple[str, ...]
    code: str
    levels: int = 1
    pass_rates: None = None

    @property
    def fingerprint(self) -> str:
        return f"{self.label}/{self.package.version}/{self.code}/{self.rows.digest}"

    @property
    def size(self) -> int:
        return len(self.rows.training)

    @property
    def num_held_out(self) -> int:
        return len(self.rows.kept_back)

    @property
    def notes(self) -> tuple[str, ...]:
        return (f"{self.rows.who}: {self.size} problems to train on, {self.num_held_out} held out", *self.remarks)

    def problem(self, index: int) -> RowProblem:
        return self.rows.problem(index)

    def held_out(self, index: int) -> RowProblem:
        return self.rows.held_out(index)

    async def environment(self, problem: Problem, seed: int) -> VerifiersEpisode:
        """Return one rollout that has asked for the policy's first turn. Rollouts of the package take no seed."""
        assert isinstance(problem, RowProblem), "a problem of this task"
        episode = VerifiersEpisode(
            package=self.package,
            environment=self.loaded,
            reward_names=tuple(self.reward_weights),
            problem=problem,
            row=self.rows.row(problem),
            who=self.rows.who,
        )
        await episode.begin()
        return episode


def _build(arguments: TaskArguments) -> EnvironmentTask:
    package, name = import_package(), arguments.argument
    given = {key: _value(str(value)) for key, value in arguments.options.items() if key != HELD_OUT.key}
    loaded = load_environment(package, name, given, arguments.directory)
    who = f"environment {name!r}"
    if hasattr(loaded, "env_map"):
        raise TaskError(
            f"{who} is a group of environments (EnvGroup). Here each one is a task of its own: name them one by one, "
            "under [[task.mixture]]."
        )
    require_rubric(loaded, who)
    weights = name_rewards(loaded.rubric)
    rows = read_rows(
        who,
        _data_set(loaded, who, "get_dataset", "dataset"),
        _data_set(loaded, who, "get_eval_dataset", "eval_dataset"),
        read_tools(getattr(loaded, "tool_defs", None) or getattr(loaded, "oai_tools", None) or (), who),
        arguments.number(HELD_OUT.key),
    )
    return VerifiersTask(
        name=name.rpartition("/")[2],
        label=label_of(f"verifiers:{name}", arguments),
        package=package,
        loaded=loaded,
        rows=rows,
        reward_weights=weights,
        remarks=tuple(_take_over(loaded, who)),
        code=_code_of(name),
    )


def _data_set(loaded: Any, who: str, method: str, part: str) -> Any:
    """Return a data set of the environment, or None if it has none for evaluation. Raises TaskError."""
    has_one = getattr(loaded, part, None) is not None or getattr(loaded, f"{part}_source", None) is not None
    if not has_one and part == "eval_dataset":
        return None
    if not has_one:
        raise TaskError(
            f"{who} has no data set to train on, only one for evaluation. Name an environment whose "
            "load_environment gives `dataset`."
        )
    try:
        return getattr(loaded, method)()
    except Exception as error:  # from the environment's own code, which may raise anything
        raise TaskError(
            f"{who} cannot make its data set: {type(error).__name__}: {error}. If it downloads one, this machine must "
            "be able to reach it, or have it already."
        ) from error


def _take_over(loaded: Any, who: str) -> Iterator[str]:
    """Override what an environment cannot decide here, and yield notes for the operator."""
    asked = {key: value for key, value in (getattr(loaded, "sampling_args", None) or {}).items() if value is not None}
    if ignored := sorted(key for key, value in asked.items() if USUAL_SAMPLING.get(key) != value):
        yield f"{who}: its sampling arguments ({', '.join(ignored)}) are ignored: leases say how tokens are sampled"
    if (seconds := getattr(loaded, "timeout_seconds", None)) is not None:
        loaded.timeout_seconds = None  # it would count the time in which volunteers generate
        yield f"{who}: its limit of {seconds:g} s for a rollout is ignored: [verifiers] timeout_s limits each call"
    if getattr(loaded, "max_total_completion_tokens", 0) > 0:
        yield f"{who}: its limit of tokens for a rollout is ignored: [learn] max_episode_tokens is the limit here"


def _code_of(name: str) -> str:
    """Return a digest of the environment's module, so that machines with another version of it are noticed."""
    module = sys.modules.get(name.replace("-", "_").rpartition("/")[2])
    path = getattr(module, "__file__", None)
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=4).hexdigest() if path else ""


def _value(text: str) -> Any:
    """Return an argument of `load_environment`: a number, true, false or null as in JSON, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


VERIFIERS = TaskKind(
    name="verifiers",
    summary="an environment of the package verifiers, by its name; options are passed to its load_environment",
    build=_build,
    argument="ENVIRONMENT",
    options=(HELD_OUT,),
    free_options=True,
)
