"""Choose the version that an export is of, among those that the store holds and those that a checkpoint keeps.

Pure. The best version is the one with the highest sampled score on the held-out prompts, the earliest of equals: the
figure by which a learner chooses the checkpoints that it keeps (`learner.artifacts.checkpoint_retention`).
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
"""What people type instead of a version's name."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One version: in the store (`held`), or to be made again of a checkpoint (`row`). `why` says how it was chosen,
    "" where it was named; `note` what else there is to know, in whole sentences."""

    version: PolicyVersion
    held: SignedManifest | None = None
    row: CheckpointRow | None = None
    why: str = ""
    note: str = ""


def choose(
    wanted: str, held: Sequence[SignedManifest], rows: Sequence[CheckpointRow], scores: Sequence[Evaluation]
) -> Chosen | None:
    """Return the version that `wanted` means: the newest for "", the best for "best", else INCARNATION.VERSION or
    VERSION. None where the store holds none, or nothing keeps it.

    `held` is from the oldest on, `rows` from the newest; `scores` are of versions that no restart cut off. Raises
    UsageError where no version that was evaluated is kept.
    """
    if wanted == BEST:
        return _best(held, rows, scores)
    for signed in reversed(held):
        version = signed.version
        if not wanted:
            return Chosen(version=version, held=signed, why="the newest", note=_better(version, held, rows, scores))
        if wanted in (str(version), str(version.version)):
            return Chosen(version=version, held=signed)
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
            "leave --version away for the newest."
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
            note = f"Version {first.version} had {_score(first)}, and neither the store nor a checkpoint keeps it."
        if found.row is not None and found.row.step != one.version.version:
            why += f" of version {one.version}: the first checkpoint after it"
        return Chosen(version=found.version, held=found.held, row=found.row, why=why, note=note)
    raise UsageError(
        f"--version best: neither the store nor a checkpoint keeps any of the {len(ranked)} versions that were "
        "evaluated. Set [evaluate] keep_best above 0 for the next run, or leave --version away for the newest."
    )


def _ranked(scores: Sequence[Evaluation]) -> list[Evaluation]:
    return sorted(scores, key=lambda one: (-one.sampled, one.version.version))


def _kept(
    held: Sequence[SignedManifest], rows: Sequence[CheckpointRow], scores: Sequence[Evaluation]
) -> Mapping[PolicyVersion, Chosen]:
    """By the evaluated version what is kept of it: itself, else the checkpoint that comes nearest."""

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


def _better(
    newest: PolicyVersion,
    held: Sequence[SignedManifest],
    rows: Sequence[CheckpointRow],
    scores: Sequence[Evaluation],
) -> str:
    """Which version did better than the newest, if one is kept and the newest was evaluated."""
    own = next((one.sampled for one in scores if one.version == newest), None)
    if own is None and scores and max(scores, key=lambda one: one.version).version < newest:
        own = max(scores, key=lambda one: one.version).sampled
    kept = _kept(held, rows, scores)
    best = next((one for one in _ranked(scores) if one.version in kept), None)
    if own is None or best is None or best.sampled <= own or best.version == newest:
        return ""
    return (
        f"Version {best.version} did better on the held-out prompts ({best.sampled:.3f} against {own:.3f} sampled): "
        "--version best takes that."
    )


def _score(one: Evaluation) -> str:
    return f"{one.sampled:.3f} sampled on {one.prompts:,} held-out prompts"
