"""`volery why LEASE --replay`: another engine regenerates the kept records that convicted a cheat."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from learner.ledger.queries.reader import read_ledger
from learner.ledger.queries.trust import KeptLease
from learner.ledger.sqlite.database import snapshot
from node.engine.interface import EngineRefused
from node.learner_role.trust.lease_regeneration import OpenEngine, regenerate_lease
from node.reports.explain.why import why_in_ledger
from node.runtime.errors import RunError, UsageError
from node.state.stored_versions import complete_versions
from protocol.core.envelope import sign
from protocol.core.ids import LeaseId, ManifestHash
from protocol.versions.manifest import SignedManifest
from protocol.work import read_record
from tests.support.learner_fixture import FakePeer, Judge, Settings, open_learner
from tests.support.trainer_fixture import OTHER, PEER, SWARM

Held = Mapping[ManifestHash, tuple[SignedManifest, Path]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner's state directory, after a run with a cheat."""
    root = tmp_path_factory.mktemp("learner")

    async def run() -> None:
        async with open_learner(root, Settings(audits=True, steps=2, staleness=3)) as learner:
            await learner.train(FakePeer(), FakePeer(key=OTHER, draw=lambda seed, version: (7, 7, 0)))

    trio.run(run, clock=trio.testing.MockClock())
    return root


@pytest.fixture
def lease(root: Path) -> LeaseId:
    with snapshot(root / "ledger.sqlite") as db:
        [(lease,)] = db.query("SELECT lease FROM evidence ORDER BY rowid LIMIT 1")
    return LeaseId(lease)


@pytest.fixture
def kept(root: Path, lease: LeaseId) -> KeptLease:
    with read_ledger(root / "ledger.sqlite") as ledger:
        found = ledger.trust.kept_lease(lease)
    assert found is not None
    return found


@pytest.fixture
def held(root: Path) -> Held:
    store = root / "store"
    (store / "genesis").write_bytes(SWARM.genesis)
    return {one.hash: (one, store / "versions" / one.hash.hex()) for one in complete_versions(store)}


def judging(judge: Judge) -> OpenEngine:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Judge]:
        yield judge

    return opened  # type: ignore[return-value]


def test_what_failed_fails_again(root: Path, lease: LeaseId, kept: KeptLease, held: Held) -> None:
    found = regenerate_lease(kept, SWARM.authority, held, opened=judging(Judge()))
    assert found.agrees
    assert found.lines[0].startswith(f"Regenerated on this machine: {kept.counted.tokens} tokens; the audit judged")
    clearest = 4
    counted, margin = kept.counted.counts[clearest], kept.margins[clearest]
    assert counted.above > 0
    same = f"{counted.above} of {counted.trials}"
    assert found.lines[1 + clearest].endswith(
        f"below the draw of its seed, lead {margin.leads}: {same} now, {same} then; {100 * margin.rate:g}% is allowed"
    )
    assert found.lines[-1] == "By itself the group fails, as it did in the audit."
    told = why_in_ledger(root / "ledger.sqlite", lease.hex(), replay=True)
    assert told.kept == kept
    assert "of 28 tokens, failed" in told.text or "failed: " in told.text


def test_counts_that_say_something_else_are_told(kept: KeptLease, held: Held) -> None:
    clean = tuple(replace(one, above=0) for one in kept.counted.counts)
    said = replace(kept, counted=replace(kept.counted, counts=clean))
    found = regenerate_lease(said, SWARM.authority, held, opened=judging(Judge()))
    assert not found.agrees
    assert "fails now, but passed then" in found.lines[-1]


def test_a_version_that_is_gone_an_engine_that_cannot_and_records_of_others_are_told(
    kept: KeptLease, held: Held
) -> None:
    with pytest.raises(UsageError, match=r"--replay: version .* is no longer in the store.*volery why PEER --replay"):
        regenerate_lease(kept, SWARM.authority, {}, opened=judging(Judge()))

    def script(op: str) -> None:
        raise EngineRefused("no", "it has no weights")

    with pytest.raises(RunError, match="The tokens cannot be regenerated here: it has no weights"):
        regenerate_lease(kept, SWARM.authority, held, opened=judging(Judge(script=script)))
    with pytest.raises(RunError, match="cannot be read"):
        regenerate_lease(replace(kept, records=(b"x",)), SWARM.authority, held, opened=judging(Judge()))
    with pytest.raises(RunError, match="The ledger has no records of this lease"):
        regenerate_lease(replace(kept, records=()), SWARM.authority, held, opened=judging(Judge()))


def test_records_that_another_key_signed_are_no_evidence(kept: KeptLease, held: Held) -> None:
    forged = sign(PEER, SWARM.authority.swarm, read_record(kept.records[0], SWARM.authority.swarm).record)
    with pytest.raises(RunError, match="not by its peer"):
        regenerate_lease(replace(kept, records=(forged,)), SWARM.authority, held, opened=judging(Judge()))


def test_records_of_another_lease_are_no_evidence(kept: KeptLease, held: Held) -> None:
    other = msgspec.structs.replace(read_record(kept.records[0], SWARM.authority.swarm).record, index=9)
    with pytest.raises(RunError, match="does not belong to this lease"):
        regenerate_lease(replace(kept, records=(sign(OTHER, SWARM.authority.swarm, other),)), SWARM.authority, held)


def test_a_lease_that_passed_has_nothing_to_regenerate(root: Path) -> None:
    with snapshot(root / "ledger.sqlite") as db:
        [(lease,), *_] = db.query("SELECT lease FROM audits WHERE passed = 1")
    with pytest.raises(UsageError, match="no evidence of lease"):
        why_in_ledger(root / "ledger.sqlite", lease.hex(), replay=True)
