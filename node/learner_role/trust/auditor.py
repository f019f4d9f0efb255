"""Run audits beside training, on an engine of the learner's own, one version at a time.

Invariants:

- Training waits for an audit only if a group is held for it.
- Audits that do not block training pause as `node.learner_role.trust.engine_budget` says, so that the learner trains
  no matter what is delivered.
- Audits and evaluations use the engine in turns, one at a time.
- A version stays in the store until its audits are made or given up.
- If the engine fails MAX_FAILURES times in a row, the run ends with the reason, because newcomers' records could never
  be used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from learner.trust.audit_queue import Passage, Portion
from learner.trust.ban_evidence import Found
from learner.trust.margins import LOUD
from node.engine.interface import (
    Claim,
    EngineCrashed,
    EngineError,
    EngineRefused,
    InstalledVersion,
    Verified,
    VerifyingEngine,
)
from node.learner_role.shared.context import Service
from node.learner_role.trust.audit_service import AuditService
from node.learner_role.trust.engine_budget import EngineBudget
from node.runtime.errors import RunError
from protocol.core.ids import ManifestHash
from protocol.versions.formats import STORED
from swarm.store import StoreError

MAX_FAILURES = 5
"""Failures in a row that end the run. The engine is restarted, or gets another version, after each, so that so many are
no accident."""


def claim_of(passage: Passage) -> Claim:
    """Return the claim for the engine to verify, from a passage."""
    return Claim(
        prompt=passage.prompt,
        tokens=passage.tokens,
        seed=passage.seed,
        temperature=passage.temperature,
        start=passage.position,
        experts=passage.experts,
    )


def found_of(verified: Verified, passage: Passage) -> list[Found]:
    """Compare the engine's results for a passage with its author's claims, in nats, scaled as margins expect.

    Margins are for temperature 1. Rounding errors are errors of logits, and their effect on sampled tokens grows as the
    temperature falls. A temperature above 1 does not bring log probabilities closer together. Margins also are for
    logits below LOUD, because floats of twice the size are spaced twice as far apart.
    """
    heat = passage.temperature
    rows = zip(
        verified.gaps,
        verified.leads,
        verified.sizes,
        verified.logprobs,
        passage.logprobs,
        passage.contexts,
        strict=True,
    )
    found = []
    for gap, lead, size, logprob, claimed, context in rows:
        _, exponent = math.frexp(heat * size / LOUD)  # 0 from LOUD / 2 to LOUD
        louder = 2.0 ** max(0, exponent)
        found.append(
            Found(
                gap=heat * gap / louder,
                lead=heat * lead / louder,
                apart=min(1.0, heat) * abs(logprob - claimed) / louder,
                context=context,
            )
        )
    return found


async def found_by(
    engine: VerifyingEngine, portion: Portion, directory: Callable[[ManifestHash], Path]
) -> list[Sequence[Found]]:
    """Verify the passages of a portion, and return the engine's findings for each.

    The engine uses the version that made them, from `directory`, in the weight format that the peer claims. Raises
    EngineError, and what `directory` raises.
    """
    held = "" if portion.form == STORED else portion.form
    version = InstalledVersion(name=portion.version, manifest=portion.manifest, weights=held)
    if engine.installed != version:
        await engine.install(version, directory(portion.manifest))
    verified = await engine.verify([claim_of(passage) for _, _, passage in portion.passages])
    return [found_of(one, passage) for one, (_, _, passage) in zip(verified, portion.passages, strict=True)]


@dataclass(kw_only=True, eq=False)
class AuditLoop(Service):
    """Makes the audits on the agenda, one portion after the other."""

    engine: VerifyingEngine
    lock: trio.Lock
    service: AuditService
    budget: EngineBudget
    _failures: int = 0

    async def run(self) -> None:
        """Make the audits on the agenda until cancelled. Raises RunError if the engine cannot be used."""
        while True:
            self.service.added = trio.Event()  # before the look, so that an audit that comes meanwhile wakes us
            if (portion := self.service.agenda.next()) is None:
                await self.service.added.wait()
                continue
            is_awaited = self.service.agenda.waiting > 0
            if not is_awaited and (rest_s := self.budget.rest_s()) > 0:
                with trio.move_on_after(rest_s):
                    await self.service.added.wait()
                continue
            took_s = await self._audit(portion)
            if not is_awaited:
                self.budget.spend(took_s)

    async def _audit(self, portion: Portion) -> float:
        """Make these audits, and return the seconds that the engine took."""
        async with self.lock:
            began = trio.current_time()
            try:
                told = await found_by(self.engine, portion, self.context.store.directory)
            except (EngineError, StoreError) as error:
                self._bear(portion, error)
                return trio.current_time() - began
            took_s = trio.current_time() - began
        self._failures = 0
        await trio.to_thread.run_sync(self.ledger.trust.engine_used, "audits", took_s)
        over = self.service.agenda.take_results(portion, told)
        await self.service.conclude(over)
        self.events.emit("audits_made", groups=len(over), seconds=round(took_s, 4), waiting=len(self.service.agenda))
        return took_s

    def _bear(self, portion: Portion, error: Exception) -> None:
        """Skip these audits, or try again if the engine's process ended. Raises RunError after MAX_FAILURES."""
        if portion.manifest not in self.service.kept:  # it was given up meanwhile, and perhaps evicted
            return
        reason = str(error).splitlines()[0]
        self._failures += 1
        if self._failures >= MAX_FAILURES:
            raise RunError(
                f"Audits failed {self._failures} times in a row: {reason}\nRepair the cause, or set [trust] audits = "
                "false if all peers are your own, then start again: the run continues from its newest checkpoint."
            ) from error
        self.events.emit("audit_impossible", version=str(portion.version), reason=reason)
        if isinstance(error, EngineCrashed):
            return
        if isinstance(error, EngineRefused):
            for lease in {lease for lease, _, _ in portion.passages}:
                self.service.give_up(lease)
            return
        self.service.lose(portion.manifest)
