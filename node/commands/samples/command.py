"""Show what a version was trained on, from the files of a running or stopped learner (`volery samples`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from learner.ledger.queries.reader import LedgerReader, read_ledger
from learner.ledger.sqlite.database import LedgerError
from node.commands.samples.text import as_json, as_terminal, as_text
from node.commands.samples.view import Decode, Shown, ShownGroup, chosen, holding, shown_group
from node.learner_role.metrics.sample_selection import KeptGroup
from node.learner_role.metrics.sample_store import FILE, Sample, kept_versions, read_sample
from node.runtime.errors import RunError, UsageError, as_run_error
from node.runtime.stdout import is_screen, screen_width
from node.state.locate import find_place
from node.state.stored_versions import newest_complete
from node.tasks.api.interface import TaskError
from node.tasks.tokenizer import TextCodec
from protocol.core.ids import PolicyVersion

LEDGER = "ledger.sqlite"

NEIGHBOURS = 3
"""Versions on either side that are suggested when the requested version is not kept."""

_VERSION = re.compile(r"(?:(\d{1,9})\.)?(\d{1,9})", re.ASCII)


def show(target: Path | None, *, version: str, group: int, best: int, worst: int, json: bool) -> str:
    """Return what `volery samples` prints. Raises UsageError, RunError."""
    place = find_place(target)
    if not place.is_learner:
        raise UsageError(f"{place.state} is a rollout node's; only a learner keeps samples. Name a swarm.toml.")
    shown = _shown(place.state, read_sample(place.state / FILE, _wanted(place.state, version)))
    if not 0 <= group <= shown.kept:
        raise UsageError(f"--group {group}: version {shown.version} has groups 1 to {shown.kept}.")
    shown = chosen(shown, group=group, best=best, worst=worst)
    if json:
        return as_json(shown)
    if not is_screen():
        return as_text(shown)
    return as_terminal(shown, width=screen_width())


def samples_of(state: Path, *, version: str, best: int, worst: int, find: str) -> Shown:
    """Return the `best` best and `worst` worst completions of a version, "" for the newest that is kept. With `find`,
    only completions count that hold this text, in any case. Raises UsageError, RunError.
    """
    shown = _shown(state, read_sample(state / FILE, _wanted(state, version)))
    return chosen(holding(shown, find) if find else shown, best=best, worst=worst)


def _wanted(state: Path, version: str) -> PolicyVersion:
    """Return the version that `version` names; the newest if it is empty."""
    path = state / FILE
    kept, history = kept_versions(path), _history(state)
    if not kept:
        raise RunError(f"{path} holds no samples{history.why_none}")
    if not version:
        return kept[-1]
    named = _parsed(version)
    found = [one for one in kept if history.is_called(one, *named)]
    if found:
        return found[-1]
    below = [one for one in kept if one.version <= named[1]][-NEIGHBOURS:]
    above = [one for one in kept if one.version > named[1]][:NEIGHBOURS]
    near = ", ".join(map(str, [*below, *above]))
    raise UsageError(
        f"--version {version}: {history.why_not(*named)}. Samples of {len(kept)} versions are kept, from {kept[0]} to "
        f"{kept[-1]}. The nearest: {near}."
    )


def _parsed(version: str) -> tuple[int | None, int]:
    """Return the incarnation, None if `version` does not name it, and the step."""
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UsageError(f"--version {version}: write INCARNATION.VERSION, such as 1.20, or only VERSION, such as 20.")
    return None if found[1] is None else int(found[1]), int(found[2])


@dataclass(frozen=True, kw_only=True)
class _History:
    """What the ledger knows about a run: the step at which each incarnation began, and the rollouts of each step."""

    bases: Mapping[int, int]
    rollouts: Mapping[int, int]

    @property
    def why_none(self) -> str:
        if self.rollouts and not any(self.rollouts.values()):
            return (
                f": all {len(self.rollouts)} training steps of this run took logs alone ([offline] share = 1.0), and "
                "samples are kept only of rollouts. The file of [offline] path holds what it was trained on."
            )
        return " (yet). A learner keeps samples of every training step while [metrics] samples is above 0."

    def is_called(self, kept: PolicyVersion, incarnation: int | None, step: int) -> bool:
        """Return whether `kept` has that name, or had it: a restart publishes its version under a new incarnation."""
        if step != kept.version:
            return False
        again = incarnation is not None and incarnation > kept.incarnation and self.bases.get(incarnation) == step
        return incarnation in (None, kept.incarnation) or again

    def why_not(self, incarnation: int | None, step: int) -> str:
        if incarnation is not None and self.bases and incarnation not in self.bases:
            begun = ", ".join(f"{number} at step {base}" for number, base in self.bases.items())
            return f"there is no incarnation {incarnation}; this learner began incarnation {begun}"
        if self.rollouts.get(step) == 0:
            return f"training step {step} took logs alone, and samples are kept only of rollouts"
        return (
            "no sample of it is kept. The first trained version is 1, old samples are thinned out, and a restart loses "
            "the steps after its checkpoint"
        )


def _history(state: Path) -> _History:
    if not (state / LEDGER).exists():
        return _History(bases={}, rollouts={})
    with as_run_error(LedgerError), read_ledger(state / LEDGER) as ledger:
        bases = {one.incarnation: one.base for one in ledger.training.incarnations()}
        return _History(bases=bases, rollouts=ledger.training.rollouts())


def _shown(state: Path, sample: Sample) -> Shown:
    decode = _decoder(state / "store")
    with as_run_error(LedgerError), read_ledger(state / LEDGER) as ledger:
        whole = ledger.training.trained_on(sample.version)
        groups = [_group(ledger, group, number + 1, decode) for number, group in enumerate(sample.groups)]
    rollouts, reward = whole or (None, None)
    return Shown(
        version=sample.version,
        at_ms=sample.at_ms,
        rollouts=rollouts,
        reward=reward,
        kept=len(groups),
        groups=tuple(groups),
    )


def _group(ledger: LedgerReader, group: KeptGroup, number: int, decode: Decode) -> ShownGroup:
    peer, verdicts = ledger.peers.named(group.peer), ledger.work.rules_of(group.lease)
    return shown_group(
        group,
        number,
        decode=decode,
        task=ledger.training.task_known_as(group.task),
        peer_name=peer.name if peer else "",
        verdicts=verdicts,
    )


def _decoder(store: Path) -> Decode:
    """Return the decoder of the tokenizer that every version carries; without one, token ids are shown in digits."""
    newest = newest_complete(store)
    if newest is not None:
        try:
            return TextCodec.load(store / "versions" / newest.hash.hex()).decode
        except TaskError:
            pass
    return lambda tokens: " ".join(map(str, tokens))
