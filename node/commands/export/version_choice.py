"""Choose the version to export among those that the store holds and those that a checkpoint keeps.

Pure. The best version is the one with the highest sampled score on the held-out prompts, and the earliest among equals.
A learner chooses the checkpoints that it keeps by the same score (`learner.artifacts.checkpoint_retention`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from learner.artifacts.checkpoint_retention import checkpoints_of
from learner.ledger.rows import CheckpointRow
from node.reports.model.report import Evaluation
from node.runtime.errors import UsageError
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest

BEST = "best"
"""The word for the best version, in place of a version's name."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One version: in the store (`held`), or to be made again from a checkpoint (`row`).

    `why` says how it was chosen, "" if it was named. `note` says what else to know, in whole sentences.
    """

    version: PolicyVersion
    held: SignedManifest | None = None
    row: CheckpointRow | None = None
    why: str = ""
    note: str = ""


def choose(
    wanted: str, held: Sequence[SignedManifest], rows: Sequence[CheckpointRow], scores: Sequence[Evaluation]
) -> Chosen | None:
    """Return the version that `wanted` means; None if the store holds none, or nothing keeps that version.

    Args:
        wanted: "" for the newest, "best" for the best, else INCARNATION.VERSION or VERSION.
        held: versions in the store, oldest first.
        rows: checkpoints, newest first.
        scores: evaluations of versions that no restart cut off.

    Raises UsageError if "best" is wanted and no evaluated version is kept.
    """
    if wanted == BEST:
        return _best(held, rows, scores)
    for signed in reversed(held):
        version = signed.version
        if not wanted:
            notes = (_unevaluated(version, scores), _better(version, held, rows, scores))
            return Chosen(version=version, held=signed, why="the newest", note=" ".join(filter(None, notes)))
        if wanted in (str(version), str(version.version)):
            return Chosen(version=version, held=signed, note=_unevaluated(version, scores))
    if wanted:
        for row in rows:
            if wanted in (row.directory, str(row.step)):
                return _made_again(row)
    return None


def _made_again(row: CheckpointRow, why: str = "", note: str = "") -> Chosen:
    return Chosen(version=PolicyVersion(row.incarnation, row.step), row=row, why=why, note=note)


def _best(held: Sequence[SignedManifest], rows: Sequence[CheckpointRow], scores: Sequence[Evaluation]) -> Chosen:
    if not scores:
        raise UsageError(
            "--version best: no version of this run was evaluated. Set [task] held_out above 0 for the next run, or "
            "omit --version to export the newest."
        )
    kept = _kept(held, rows, scores)
    ranked = _ranked(scores)
    for place, one in enumerate(ranked):
        if (found := kept.get(one.version)) is None:
            continue
        why = f"the best by evaluation, {_score(one)}"
        note = ""
        if place:
            first = ranked[0]
            why = f"the best by evaluation that is kept, {_score(one)}"
            note = f"Version {first.version} had {_score(first)}, but neither the store nor a checkpoint keeps it."
        if found.row is not None and found.row.step != one.version.version:
            why += f" of version {one.version}; this is the first checkpoint after it"
        return Chosen(version=found.version, held=found.held, row=found.row, why=why, note=note)
    raise UsageError(
        f"--version best: neither the store nor a checkpoint keeps any of the {len(ranked)} versions that were "
        "evaluated. Set [evaluate] keep_best above 0 for the next run, or omit --version to export the newest."
    )


def _ranked(scores: Sequence[Evaluation]) -> list[Evaluation]:
    return sorted(scores, key=lambda one: (-one.sampled, one.version.version))


def _kept(
    held: Sequence[SignedManifest], rows: Sequence[CheckpointRow], scores: Sequence[Evaluation]
) -> Mapping[PolicyVersion, Chosen]:
    """Return what is kept of each evaluated version: itself, or else the nearest checkpoint."""

    def each() -> Iterator[tuple[PolicyVersion, Chosen]]:
        by_step = {row.step: row for row in rows}
        near = checkpoints_of(sorted(by_step), [one.version.version for one in scores])
        stored = {signed.version: signed for signed in held}
        for one in scores:
            if (signed := stored.get(one.version)) is not None:
                yield one.version, Chosen(version=one.version, held=signed)
            elif (step := near.get(one.version.version)) is not None:
                yield one.version, _made_again(by_step[step])

    return dict(each())


def _unevaluated(version: PolicyVersion, scores: Sequence[Evaluation]) -> str:
    """Return a note on a version that was not evaluated; "" if it was, or if no version before it was."""
    before = [one for one in scores if one.version < version]
    if not before or any(one.version == version for one in scores):
        return ""
    last = max(before, key=lambda one: one.version)
    return f"Version {version} was not evaluated; version {last.version} before it had {_score(last)}."


def _better(
    newest: PolicyVersion,
    held: Sequence[SignedManifest],
    rows: Sequence[CheckpointRow],
    scores: Sequence[Evaluation],
) -> str:
    """Return a note on a kept version that scored higher than the newest; "" if none did, or none can be compared."""
    own = next((one.sampled for one in scores if one.version == newest), None)
    if own is None and scores and max(scores, key=lambda one: one.version).version < newest:
        own = max(scores, key=lambda one: one.version).sampled
    kept = _kept(held, rows, scores)
    best = next((one for one in _ranked(scores) if one.version in kept), None)
    if own is None or best is None or best.sampled <= own or best.version == newest:
        return ""
    return (
        f"Version {best.version} scored higher on the held-out prompts ({best.sampled:.3f} against {own:.3f} sampled). "
        "--version best exports that one."
    )


def _score(one: Evaluation) -> str:
    return f"{one.sampled:.3f} sampled on {one.prompts:,} held-out prompts"
