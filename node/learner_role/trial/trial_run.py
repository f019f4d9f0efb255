"""Test a run before anybody joins: the learner's own engine plays a node, and engine, audit and trainer must agree.

If nodes cannot install the first version, or if engine, audits and trainer compute different models, a swarm does not
learn, and nobody sees why. So the engine installs the trainer's export and generates a few completions of real prompts
(`learner.trial.completion_lengths`). An audit recomputes them, and the trainer scores them as in training. The learner
audits itself with the margins that hold for every peer. It also compares the log probabilities, and accepts differences
that rounding explains (`learner.trust.margins.tolerance_of`).

Invariants:

- A trial changes neither the ledger nor the store nor the swarm. Its export is what is published afterwards.
- A message repeats the words of the engine or the trainer, and says what to do next.
- Audit and trainer get all completions in one batch, and the engine generates the first group in a batch of its own:
  the result must not depend on the batch.
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

from learner.trial.completion_lengths import FIRST_GROUP, Reach, Stretch, bends_of, stretches
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
"""The version that the engine installs, with a manifest hash that no version has."""

LOOK = "docs/operate/models.md#the-trial"

NODES_FAIL_ALIKE = frozenset({"bad_model", "bad_request", "diverged"})
"""Kinds of a trainer's refusal that come from the model or the settings. All others come from this machine."""

MEMORY = (
    "Give the learner's own engine another device or less memory ([evaluate] device, kv_cache_gb), end other programs "
    "on this device, or use a smaller model. Then start again."
)


@dataclass(frozen=True, kw_only=True)
class TrialTerms:
    """What a run asks of its nodes: prompts, lengths of completions, sampling, format of weights, and audits.

    `replays`: whether the trainer replays the experts that engines chose.
    """

    prompts: Sequence[tuple[int, ...]]
    reach: Reach
    temperature: float
    stop_ids: frozenset[int]
    weights_dtype: str
    arithmetic: Arithmetic
    replays: bool = False


def trial_terms(config: SwarmConfig, suite: TaskSuite) -> TrialTerms | None:
    """Return the terms of a run's trial; None if the run needs no engine, because it trains only on logs and evaluates
    nothing."""
    if not config.swarm_rollouts and not suite.held_out:
        return None
    limits = suite.limits
    return TrialTerms(
        prompts=suite.first_prompts(),
        reach=Reach(
            turn_tokens=limits.turn_tokens,
            tokens=limits.tokens,
            prompt_tokens=suite.longest_prompt,
            has_turns=suite.has_turns,
        ),
        temperature=config.learn.temperature,
        stop_ids=frozenset(suite.stop_ids),
        weights_dtype=config.model.weights_dtype,
        arithmetic=Arithmetic(config.trust.required_compute_dtype),
        replays=config.trainer.router_replay,
    )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What was compared: (dtype, device) of the trainer's layers and of the engine's, and the model's size.

    `experts`: whether both use the same experts.
    """

    parameters: int
    trained_in: tuple[str, str]
    engine_in: tuple[str, str]
    experts: Experts = Experts.NONE

    @property
    def tolerance(self) -> Tolerance:
        """Return the largest differences between the two that rounding explains."""
        both = (self.trained_in, self.engine_in)
        return tolerance_of(
            self.parameters,
            Arithmetic.FLOAT32 if all(dtype == "float32" for dtype, _ in both) else Arithmetic.ANY,
            on_processors=all(device == "cpu" for _, device in both),
            experts=self.experts,
        )

    @property
    def sentence(self) -> str:
        """Return a sentence about the two, without a full stop."""
        return f"The trainer computes in {' on '.join(self.trained_in)}, the engine in {' on '.join(self.engine_in)}"


@dataclass(frozen=True, kw_only=True)
class Passed:
    """A trial that passed: its seconds, and the completions and tokens that were generated.

    `furthest` is the furthest position. `apart` is the largest difference at any token between two of engine, audit and
    trainer, in nats.
    """

    seconds: float
    completions: int
    tokens: int
    furthest: int
    apart: float
    compared: Compared

    @property
    def sentence(self) -> str:
        """Return sentences about the trial."""
        return (
            f"The trial passed in {self.seconds:.1f} s: engine, audit and trainer agree on {self.completions} "
            f"completions of {self.tokens} tokens, up to position {self.furthest}, within {self.apart:.1g} nats a "
            f"token. {self.compared.sentence}."
        )


async def try_out(engine: WorkerEngine, call: CallTrainer, export: Path, loaded: Header, terms: TrialTerms) -> Passed:
    """Test the version in the directory `export`, which the trainer wrote.

    `loaded` is the trainer's reply to the `load` request. Raises UsageError if the model or the settings cannot work,
    RunError if a process fails, and what `call` raises.
    """
    began = trio.current_time()
    with _refusing():
        await engine.install(TRIED, export)
        config = json.loads((export / "config.json").read_bytes())
        bends = bends_of(config if isinstance(config, dict) else {})
        asked = _requests(stretches(terms.prompts, terms.reach, bends), terms)
        drawn = await engine.generate(asked[:FIRST_GROUP])
        drawn += await engine.generate(asked[FIRST_GROUP:])
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
        raise _refuse(f"{error}{_bent(beyond)}. {compared.sentence}") from None
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
            f"the engine returned {len(generation.tokens)} tokens and {len(generation.logprobs)} log probabilities for "
            "a completion"
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
    """Return the arrays of the experts that the engine chose; empty if they were not requested."""
    if any(one.experts is None for one in drawn):
        return {}
    experts = np.concatenate([one.experts for one in drawn if one.experts is not None])
    return {"experts": experts, "routed": np.ones(len(experts), np.uint8)}


async def _score(
    call: CallTrainer, passages: Sequence[Passage], terms: TrialTerms, experts: Arrays
) -> list[np.ndarray[Any, Any]]:
    """Return the trainer's log probabilities of each completion, under the exported weights, with `experts`."""
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
    """Raised if engine, audit and trainer compute different models.

    `furthest`: the furthest position of the completions that show it.
    """

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
    """Return where the model may compute differently, and what to do; "" if completions do not reach that position."""
    if not beyond:
        return ""
    return (
        f". By its config.json the model may compute differently from position {beyond[0]} on, and this run goes "
        "beyond it: lower [learn] max_new_tokens or max_episode_tokens to stay below"
    )


def _allowed(tolerance: Tolerance, audit: Verified, temperature: float) -> Tolerance:
    """Return the tolerance scaled as in audits (`found_of`).

    Rounding errors are errors of logits. They grow with the logits, and with a lower temperature.
    """
    loudest = max([temperature * size for size in audit.sizes if np.isfinite(size)], default=0.0)
    _, exponent = np.frexp(loudest / LOUD)
    times = 2.0 ** max(0, int(exponent)) * max(1.0, 1.0 / temperature)
    return Tolerance(token=times * tolerance.token, mean=times * tolerance.mean)


@contextmanager
def _refusing() -> Iterator[None]:
    """End the trial if the engine raises an error, and repeat its words."""
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
            f"The trial failed: {error}\nRepair the cause, most often a lack of memory, then start again."
        ) from error
    except EngineError as error:
        raise RunError(f"The trial failed: {error}") from error


def _refuse(why: str) -> UsageError:
    return UsageError(
        f"[model] directory: the trial failed: {why.removesuffix('.')}. Nodes would fail in the same way, so nothing "
        f"was published and nobody was invited. {LOOK} says what to try."
    )
