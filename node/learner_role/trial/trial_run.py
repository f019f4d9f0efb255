"""Try a run out before anybody joins: the learner's own engine plays a node, and engine, audit and trainer must agree.

A swarm whose nodes cannot install the first version, or whose engine, audits and trainer compute different models, does
not learn, and nobody is told why. So the engine installs what the trainer exported, generates a few completions of real
prompts (`learner.trial.completion_lengths`), an audit draws them again, and the trainer scores them as it does in
training. It is an audit of ourselves, with the margins that every peer is held to, and a comparison of log
probabilities with what rounding explains (`learner.trust.margins.tolerance_of`).

Invariants:
- the ledger, the store and the swarm hear nothing of a trial; the export that it used is what is published afterwards;
- what the engine or the trainer refuses is told in their own words, and every refusal says what to do next;
- audit and trainer read all completions together, the engine makes the first siblings alone: who shares a batch may
  not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio

from learner.trial.completion_lengths import SIBLINGS, Reach, Stretch, bends_of, stretches
from learner.trial.logprob_agreement import Reading, Tolerance, disagreement, widest
from learner.trust.audit_history import AuditHistory, after
from learner.trust.audit_queue import Passage
from learner.trust.ban_evidence import count_above
from learner.trust.margins import LOUD, Arithmetic, Experts, experts_in, margins_of, tolerance_of
from node.config.swarm_config import SwarmConfig
from node.engine.interface import (
    EngineCrashed,
    EngineError,
    EngineRefused,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    Verified,
)
from node.engine.worker_engine import WorkerEngine
from node.learner_role.training.trainer_process import CallTrainer
from node.learner_role.trust.auditor import claim_of, found_of
from node.processes.outcomes import ChildRefused
from node.runtime.errors import RunError, UsageError
from node.tasks.task_suite import TaskSuite
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.pipe import Arrays, Header
from protocol.experts import experts_bytes

TRIED = InstalledVersion(name=PolicyVersion(1, 0), manifest=ManifestHash(bytes(32)))
"""What the engine is told that it installs: a manifest that no version has."""

LOOK = "docs/operator.md#the-trial"

NODES_FAIL_ALIKE = frozenset({"bad_model", "bad_request", "diverged"})
"""Kinds of refusal of a trainer that are the model's or the settings' fault; the others are this machine's."""

MEMORY = (
    "Give the learner's own engine another device or less memory ([evaluate] device, kv_cache_gb), end what else uses "
    "this one, or take a smaller model; then start again."
)


@dataclass(frozen=True, kw_only=True)
class TrialTerms:
    """What a run asks of its nodes: prompts, how far completions reach, sampling, what travels, how audits judge, and
    whether the trainer replays the experts that engines chose."""

    prompts: Sequence[tuple[int, ...]]
    reach: Reach
    temperature: float
    stop_ids: frozenset[int]
    weights_dtype: str
    arithmetic: Arithmetic
    replays: bool = False


def trial_terms(config: SwarmConfig, schooling: TaskSuite) -> TrialTerms | None:
    """What a run is tried on; None where no engine takes part in it, since all is logged and nothing is evaluated."""
    if not config.swarm_rollouts and not schooling.held_out:
        return None
    limits = schooling.limits
    return TrialTerms(
        prompts=schooling.first_prompts(),
        reach=Reach(
            turn_tokens=limits.turn_tokens,
            tokens=limits.tokens,
            prompt_tokens=schooling.longest_prompt,
            has_turns=schooling.has_turns,
        ),
        temperature=config.learn.temperature,
        stop_ids=frozenset(schooling.stop_ids),
        weights_dtype=config.model.weights_dtype,
        arithmetic=Arithmetic(config.trust.required_compute_dtype),
        replays=config.trainer.router_replay,
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Who was compared: (dtype, device) that the trainer's layers and the engine's compute in, the model's size, and
    whether all of them go through the same experts."""

    parameters: int
    trained_in: tuple[str, str]
    engine_in: tuple[str, str]
    experts: Experts = Experts.NONE

    @property
    def tolerance(self) -> Tolerance:
        """What rounding explains between the two."""
        both = (self.trained_in, self.engine_in)
        return tolerance_of(
            self.parameters,
            Arithmetic.FLOAT32 if all(dtype == "float32" for dtype, _ in both) else Arithmetic.ANY,
            on_processors=all(device == "cpu" for _, device in both),
            experts=self.experts,
        )

    @property
    def told(self) -> str:
        """A sentence for people, without full stop."""
        return f"The trainer computes in {' on '.join(self.trained_in)}, the engine in {' on '.join(self.engine_in)}"


@dataclass(frozen=True, kw_only=True)
class Passed:
    """A trial that passed: its seconds, what was generated, the furthest position, and the largest difference between
    any two of engine, audit and trainer at any token, in nats."""

    seconds: float
    completions: int
    tokens: int
    furthest: int
    apart: float
    compared: Compared

    @property
    def told(self) -> str:
        """A sentence for people."""
        return (
            f"The trial passed in {self.seconds:.1f} s: engine, audit and trainer agree on {self.completions} "
            f"completions of {self.tokens} tokens, up to position {self.furthest}, within {self.apart:.1g} nats a "
            f"token. {self.compared.told}."
        )


async def try_out(engine: WorkerEngine, call: CallTrainer, export: Path, loaded: Header, terms: TrialTerms) -> Passed:
    """Try the version in the directory `export`, which the trainer wrote; `loaded` is its reply to the `load` request.

    Raises UsageError when the model or the settings cannot work, RunError when a process fails, and what `call` raises.
    """
    began = trio.current_time()
    with _refusing():
        await engine.install(TRIED, export)
        config = json.loads((export / "config.json").read_bytes())
        bends = bends_of(config if isinstance(config, dict) else {})
        asked = _requests(stretches(terms.prompts, terms.reach, bends), terms)
        drawn = await engine.generate(asked[:SIBLINGS])
        drawn += await engine.generate(asked[SIBLINGS:])
        passages = [_passage(*pair) for pair in zip(asked, drawn, strict=True)]
        verified = await engine.verify([claim_of(passage) for passage in passages])
        described = await engine.describe()
    scored = await _score(call, passages, terms, _experts(drawn))
    compared = Compared(
        parameters=int(described["parameters"]),
        trained_in=(str(loaded["compute_dtype"]), str(loaded["device"])),
        engine_in=(str(described["dtype"]), str(described["device"])),
        experts=experts_in(config, told=terms.replays),
    )
    try:
        apart = _require_agreement(passages, verified, scored, compared, terms)
    except _Apart as error:
        beyond = [bend for bend in bends if bend < error.furthest]
        raise _refuse(f"{error}{_bent(beyond)}. {compared.told}") from None
    return Passed(
        seconds=trio.current_time() - began,
        completions=len(passages),
        tokens=sum(len(one.tokens) for one in passages),
        furthest=max(one.cost for one in passages),
        apart=apart,
        compared=compared,
    )


def _requests(chosen: Sequence[Stretch], terms: TrialTerms) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            prompt=one.prompt,
            seed=seed,
            temperature=terms.temperature,
            max_new_tokens=one.tokens,
            stop_ids=terms.stop_ids if one.stops else frozenset(),
            experts=terms.replays,
        )
        for seed, one in enumerate(chosen)
    ]


def _passage(request: GenerationRequest, generation: Generation) -> Passage:
    if len(generation.tokens) != len(generation.logprobs) or not generation.tokens:
        raise _refuse(
            f"the engine gives {len(generation.tokens)} tokens and {len(generation.logprobs)} log probabilities for a "
            "completion"
        )
    return Passage(
        prompt=request.prompt,
        tokens=generation.tokens,
        logprobs=generation.logprobs,
        parts=((0, len(generation.tokens)),),
        seed=request.seed,
        temperature=request.temperature,
        version=TRIED.name,
        manifest=TRIED.manifest,
        experts=b"" if generation.experts is None else experts_bytes(generation.experts),
    )


def _experts(drawn: Sequence[Generation]) -> Arrays:
    """The arrays of the experts that the engine chose; none where they were not asked for."""
    if any(one.experts is None for one in drawn):
        return {}
    experts = np.concatenate([one.experts for one in drawn if one.experts is not None])
    return {"experts": experts, "routed": np.ones(len(experts), np.uint8)}


async def _score(
    call: CallTrainer, passages: Sequence[Passage], terms: TrialTerms, experts: Arrays
) -> list[np.ndarray[Any, Any]]:
    """The trainer's log probabilities of each completion, under the weights as they were exported, with `experts`."""
    asked: Arrays = {
        **experts,
        "tokens": np.array([token for one in passages for token in (*one.prompt, *one.tokens)], np.int32),
        "lengths": np.array([one.cost for one in passages], np.int32),
        "mask": np.concatenate([np.repeat([0, 1], [len(one.prompt), len(one.tokens)]) for one in passages]).astype(
            np.uint8
        ),
    }
    try:
        header = {"temperature": terms.temperature, "weights": terms.weights_dtype}
        _, found = await call("logprobs", header, asked)
    except ChildRefused as refused:
        said = f"the trainer cannot score what the engine generated: {refused.error.removesuffix('.')}."
        raise _refuse(said) if refused.kind in NODES_FAIL_ALIKE else RunError(f"The trial failed: {said}") from None
    return np.split(found["logprobs"].astype(np.float64), np.cumsum([len(one.tokens) for one in passages])[:-1])


class _Apart(Exception):
    """Engine, audit and trainer do not compute one model; `furthest` goes what shows it."""

    def __init__(self, said: str, furthest: int) -> None:
        super().__init__(said)
        self.furthest = furthest


def _require_agreement(
    passages: Sequence[Passage],
    verified: Sequence[Verified],
    scored: Sequence[np.ndarray[Any, Any]],
    compared: Compared,
    terms: TrialTerms,
) -> float:
    """Return the largest difference at any token, in nats. Raises _Apart."""
    apart = 0.0
    for passage, audit, trainer in zip(passages, verified, scored, strict=True):
        readings = [
            Reading(who="engine", logprobs=np.array(passage.logprobs)),
            Reading(who="audit", logprobs=np.array(audit.logprobs)),
            Reading(who="trainer", logprobs=trainer),
        ]
        allowed = _allowed(compared.tolerance, audit, terms.temperature)
        if said := disagreement(readings, allowed, prompt_tokens=len(passage.prompt)):
            raise _Apart(said, passage.cost)
        apart = max(apart, widest(readings))
    found = [token for passage, audit in zip(passages, verified, strict=True) for token in found_of(audit, passage)]
    margins = margins_of(compared.parameters, terms.arithmetic, compared.experts)
    finding = after(AuditHistory(), count_above(found, margins), margins)[1]
    if not finding.passed:
        furthest = max(one.cost for one in passages)
        raise _Apart(f"an audit of the engine's own completions fails: {finding.detail}", furthest)
    return apart


def _bent(beyond: Sequence[int]) -> str:
    """Where the model may change, if completions reach beyond, and what to do then."""
    if not beyond:
        return ""
    return (
        f". By its config.json the model may compute otherwise from position {beyond[0]} on, and this run goes beyond: "
        "lower [learn] max_new_tokens or max_episode_tokens to stay within"
    )


def _allowed(tolerance: Tolerance, audit: Verified, temperature: float) -> Tolerance:
    """As audits have it (`found_of`): rounding is of logits, and grows with them and as the temperature falls."""
    loudest = max([temperature * size for size in audit.sizes if np.isfinite(size)], default=0.0)
    _, exponent = np.frexp(loudest / LOUD)
    times = 2.0 ** max(0, int(exponent)) * max(1.0, 1.0 / temperature)
    return Tolerance(token=times * tolerance.token, mean=times * tolerance.mean)


@contextmanager
def _refusing() -> Iterator[None]:
    """What the engine raises ends the trial, in its words."""
    try:
        yield
    except (InstallFailed, EngineRefused) as error:
        does = "install" if isinstance(error, InstallFailed) else "use"
        said = f"the learner's own engine cannot {does} the first version: {error}"
        if getattr(error if isinstance(error, EngineRefused) else error.__cause__, "kind", "") == "out_of_memory":
            raise RunError(f"The trial failed: {said}\n{MEMORY}") from error
        raise _refuse(said) from error
    except EngineCrashed as error:
        raise RunError(
            f"The trial failed: {error}\nMend the cause, most often memory that ran out, then start again."
        ) from error
    except EngineError as error:
        raise RunError(f"The trial failed: {error}") from error


def _refuse(why: str) -> UsageError:
    return UsageError(
        f"[model] directory: the trial failed: {why.removesuffix('.')}. Nodes would fail alike, so nothing was "
        f"published and nobody was invited. {LOOK} says what to try."
    )
