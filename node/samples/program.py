"""`volery show`: what a version was trained on, from the files of a learner that runs or ran."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from learner.ledger_file import LedgerError, snapshot
from node.errors import RunError, UsageError
from node.lookups import WIDTHS, find_place, newest_complete
from node.outlet import is_screen
from node.samples.kept import KeptGroup
from node.samples.selection import Decode, Shown, ShownGroup, chosen, shown_group
from node.samples.store import FILE, Sample, kept_versions, read_sample
from node.samples.text import as_json, as_terminal, as_text
from node.tasks.port import TaskError
from node.tasks.text import TextCodec
from protocol.ids import PolicyVersion

NEIGHBOURS = 3
"""Versions on either side of one that is not kept that are named instead."""


def show(target: Path | None, *, version: str, group: int, best: int, worst: int, json: bool) -> str:
    """What `volery show` prints. Raises UsageError, RunError."""
    place = find_place(target)
    if not place.is_learner:
        raise UsageError(f"{place.state} is a rollout node's: only a learner keeps samples. Name a swarm.toml.")
    path = place.state / FILE
    shown = _shown(place.state, read_sample(path, _wanted(path, version)))
    if not 0 <= group <= shown.kept:
        raise UsageError(f"--group {group}: of version {shown.version} groups 1 to {shown.kept} are kept.")
    shown = chosen(shown, group=group, best=best, worst=worst)
    if json:
        return as_json(shown)
    if not is_screen():
        return as_text(shown)
    return as_terminal(shown, width=min(max(shutil.get_terminal_size().columns, WIDTHS[0]), WIDTHS[1]))


def _wanted(path: Path, version: str) -> PolicyVersion:
    """The version that `version` names, the newest for none."""
    kept = kept_versions(path)
    if not kept:
        raise RunError(
            f"{path}: no samples are kept there (yet). A learner keeps some of every training step while [metrics] "
            "samples is above 0."
        )
    # A version that a restart went on from was published again, under the new incarnation.
    found = [one for one in kept if not version or version in (str(one), str(one.version)) or _again(one, version)]
    if found:
        return found[-1]
    near = _around(kept, version)
    raise UsageError(
        f"--version {version}: no sample of it is kept: training begins with version 1, old samples are thinned out, "
        f"and steps that a restart lost are gone. Kept are {len(kept)}, from {kept[0]} to {kept[-1]}{near}."
    )


def _again(kept: PolicyVersion, version: str) -> bool:
    incarnation, _, step = version.partition(".")
    return step == str(kept.version) and incarnation.isdecimal() and int(incarnation) > kept.incarnation


def _around(kept: Sequence[PolicyVersion], version: str) -> str:
    try:
        step = int(version.rpartition(".")[2])
    except ValueError:
        return ""
    below = [one for one in kept if one.version <= step][-NEIGHBOURS:]
    above = [one for one in kept if one.version > step][:NEIGHBOURS]
    return ", the nearest " + ", ".join(map(str, [*below, *above]))


def _shown(state: Path, sample: Sample) -> Shown:
    decode = _decoder(state / "store")
    try:
        with snapshot(state / "ledger.sqlite") as db:
            whole = db.execute(
                "SELECT rollouts, reward FROM steps WHERE step = ? AND incarnation = ?",
                (sample.step, sample.incarnation),
            ).fetchone()
            groups = [_group(db, group, number + 1, decode) for number, group in enumerate(sample.groups)]
    except LedgerError as error:
        raise RunError(str(error)) from error
    rollouts, reward = whole or (None, None)
    return Shown(
        version=sample.version,
        at_ms=sample.at_ms,
        rollouts=rollouts,
        reward=reward,
        kept=len(groups),
        groups=tuple(groups),
    )


def _group(db: sqlite3.Connection, group: KeptGroup, number: int, decode: Decode) -> ShownGroup:
    named = db.execute("SELECT name FROM peers WHERE peer = ?", (group.peer,)).fetchone()
    verdicts = dict(
        db.execute("SELECT idx, rule FROM records WHERE lease = ? ORDER BY rule <> 'admitted' DESC", (group.lease,))
    )
    return shown_group(group, number, decode=decode, peer_name=named[0] if named else "", verdicts=verdicts)


def _decoder(store: Path) -> Decode:
    """The tokenizer that travels with every version; token ids in digits where there is none."""
    newest = newest_complete(store)
    if newest is not None:
        try:
            return TextCodec.load(store / "versions" / newest.hash.hex()).decode
        except TaskError:
            pass
    return lambda tokens: " ".join(map(str, tokens))
