"""Find how an architecture does in a swarm: it works, it is refused with a reason, or it cannot be made tiny.

Invariants:
- Anything else is an exception of `outcome_of`: there is no fourth outcome.
- A refusal comes from where a run's start finds it: the trainer's load, the engine's install, or the comparison of
  one completion's log probabilities (`learner.trial.logprob_agreement`), short and as long as the model reaches.
- Batches, exports and swaps, which come later, must agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from learner.artifacts.model_directory import BadModel
from learner.training.model.export import export
from learner.training.model.policy import Policy, load_policy
from learner.trial.logprob_agreement import Reading, Tolerance, disagreement, widest
from node.engine.common_worker.errors import Refused
from node.tasks.tokenizer import positions_of
from tests.architectures.readings import Engine, Said, trained, trained_a_little
from tests.architectures.shrinking import NotMade, tiny_model

SAME = Tolerance(token=1e-4, mean=1e-4)
"""In float32."""

GAP = 1e-3
"""Nats that a token may fall short of what the sampler draws from scores that differ by rounding."""

PROMPT = (5, 6, 7, 8, 9)
SHORT = 7
LONGEST = 72
"""Tokens of the longest sequence, where the model does not end before: beyond windows and chunks, and still quick."""

SHARD_BYTES = 1 << 30


class Verdict(Enum):
    """How an architecture ends."""

    AGREES = "agrees"
    REFUSED = "refused"
    NOT_MADE = "not made"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The verdict with its `reason`, "" where all agree: then within `apart` nats at any token. `facts` for people."""

    verdict: Verdict
    reason: str = ""
    apart: float = 0.0
    facts: str = ""


class Disagreement(AssertionError):
    """A trial of one completion passes, and a swarm would still disagree."""


def outcome_of(model_type: str, directory: Path) -> Outcome:
    """Make a tiny model of this type in `directory`, and try it. Raises Disagreement, and whatever nobody foresaw."""
    made = tiny_model(model_type)
    if isinstance(made, NotMade):
        return Outcome(verdict=Verdict.NOT_MADE, reason=made.reason)
    made.model.save_pretrained(directory / "model")
    facts = "" if made.runs == 2 else "not run by the library itself"
    try:
        tried = Tried.load(directory / "model")
        apart = tried.trial()
    except (BadModel, Refused, Disagreement) as refusal:
        return Outcome(verdict=Verdict.REFUSED, reason=" ".join(str(refusal).split()), facts=facts)
    apart = max(apart, tried.batch(), tried.exported(directory), tried.swapped(directory))
    return Outcome(verdict=Verdict.AGREES, apart=apart, facts=tried.facts)


@dataclass
class Tried:
    """A model as trainer and engine have loaded it."""

    policy: Policy
    engine: Engine
    facts: str = ""

    @classmethod
    def load(cls, directory: Path) -> Tried:
        """Load a directory in both. Raises BadModel, Refused, and AssertionError where they count positions apart."""
        tried = cls(policy=load_policy(directory), engine=Engine())
        tried.engine.install(directory, 0)
        told = {"file": positions_of(directory), "trainer": tried.policy.positions, "engine": tried.engine.positions}
        assert len(set(told.values())) == 1, f"positions of the longest sequence: {told}"
        return tried

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that is tried."""
        return min(self.policy.positions or LONGEST, LONGEST)

    def trial(self) -> float:
        """Compare one short completion and a long one; return how far they are apart. Raises Disagreement, Refused."""
        return max(self._compared(self.engine, [PROMPT], [budget]) for budget in (SHORT, self.longest - len(PROMPT)))

    def batch(self) -> float:
        """Compare completions of all lengths, siblings among them, generated together. Raises Disagreement, Refused."""
        apart = self._compared(self.engine, *self._mixed())
        head = "head alone" if self.policy._forward.head_applies_alone else "whole"
        self.facts = f"{self.policy.layout.name.lower()}, {head}, {'padded' if self.engine.pads else 'by length'}"
        return apart

    def exported(self, directory: Path) -> float:
        """Export, and load the export in a trainer and an engine of its own. Raises Disagreement."""
        export(self.policy, directory / "export", "float32", SHARD_BYTES)
        other = Tried.load(directory / "export")
        said = self.engine.generate(*self._mixed())
        readings = [
            Reading(who="engine", logprobs=said.logprobs),
            Reading(who="export's engine", logprobs=other.engine.audit(said)[0]),
            Reading(who="export's trainer", logprobs=trained(other.policy, said)),
        ]
        return _agreeing(readings, said)

    def swapped(self, directory: Path) -> float:
        """Train somewhat, export, and let the engine take that up. Raises Disagreement."""
        trained_a_little(self.policy)
        export(self.policy, directory / "next", "float32", SHARD_BYTES)
        in_place = self.engine.install(directory / "next", 1)
        self.facts += ", swapped in place" if in_place else ", loaded anew"
        return self._compared(self.engine, *self._mixed())

    def _mixed(self) -> tuple[Sequence[Sequence[int]], Sequence[int]]:
        """Prompts, and tokens to generate after each."""
        prompts = [(5, 6, 7), (9, 8, 7, 6, 5), (5, 6, 7), (11,), PROMPT * 3, (17, 4)]
        return prompts, [SHORT, 9, 3, self.longest // 2, self.longest - 3 * len(PROMPT), self.longest - 2]

    def _compared(self, engine: Engine, prompts: Sequence[Sequence[int]], budgets: Sequence[int]) -> float:
        said = engine.generate(prompts, budgets)
        audited, gaps = engine.audit(said)
        readings = [
            Reading(who="engine", logprobs=said.logprobs),
            Reading(who="audit", logprobs=audited),
            Reading(who="trainer", logprobs=trained(self.policy, said)),
        ]
        apart = _agreeing(readings, said)
        assert gaps.max() <= GAP, "log probabilities agree, but the sampler draws other tokens"
        return apart


def _agreeing(readings: Sequence[Reading], said: Said) -> float:
    prompt_tokens = len(said.prompts[0]) if len(said.prompts) == 1 else 0
    if why := disagreement(readings, SAME, prompt_tokens=prompt_tokens):
        raise Disagreement(why)
    return widest(readings)
