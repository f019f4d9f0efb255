"""Check what must hold in every ledger, whatever was killed on the way, by reading the SQLite file as an auditor would.

The rules are written against `docs/reference/protocol.md` and the schema, and use none of the learner's own code: lag
and chain are computed again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path

import msgspec

from learner.rollouts.open_leases import own_lease
from protocol.accounting.relay_receipt import open_relay_receipt
from protocol.core.codec import unpack_tokens
from protocol.core.envelope import Kind, open_envelope
from protocol.core.genesis import read_genesis
from protocol.core.ids import PeerId, SwarmId
from protocol.versions.manifest import open_manifest
from protocol.work import open_lease, read_record
from tests.e2e.programs import Program, Swarm, counted_by, counted_for, receipts_of, verdicts_for

HONEST = frozenset({"admitted", "stale"})
"""Verdicts that an honest node's records may get when no process was killed."""

AFTER_A_CRASH = HONEST | {"orphaned", "unknown_lease"}
"""The same after a kill. Rollouts of versions that a crash undid are not admitted, nor are those of leases that had
ended before the connection was back. Neither is anybody's fault."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """The settings of the run."""

    steps: int
    incarnations: int = 1
    staleness: int = 3
    batch: int = 16
    group: int = 4
    verdicts: frozenset[str] = HONEST


def check_ledger(swarm: Swarm, run: Run) -> None:
    """Check every rule of this file on a run that reached its last step."""
    assert [step for (step,) in swarm.rows("SELECT step FROM steps ORDER BY step")] == [*range(1, run.steps + 1)]
    assert Counter(rule for (rule,) in swarm.rows("SELECT rule FROM records")).keys() <= run.verdicts
    incarnations = [number for (number,) in swarm.rows("SELECT incarnation FROM incarnations")]
    assert incarnations == [*range(1, run.incarnations + 1)]
    check_admitted(swarm, run)
    check_trained(swarm, run)
    check_nothing_lost(swarm)
    check_versions(swarm)
    check_chain(swarm)
    check_orphans(swarm)
    check_leases(swarm)
    check_relays(swarm)
    check_tallies(swarm)
    check_statement(swarm, swarm.config)


COMPLETION = "hex(coalesce(c.root, r.lease)) || '/' || coalesce(json_extract(c.slots, '$[' || r.idx || ']'), r.idx)"
"""SQL for the completion that record `r` is, or is a part of: its group and its place there. `c` is the completion that
its lease continues."""

CONTINUED = "LEFT JOIN continuations c USING (lease)"


def check_admitted(swarm: Swarm, run: Run) -> None:
    """Check that no record was admitted at a lag that the window does not allow."""
    lags = [lag for (lag,) in swarm.rows("SELECT DISTINCT lag FROM records WHERE rule = 'admitted'")]
    assert min(lags) >= 0
    assert max(lags) <= run.staleness


def check_by_turns(swarm: Swarm, run: Run) -> None:
    """Check that generating and training took turns: each step trained on all rollouts of the version before it, and on
    no others. So every version but the last was trained on, and no rollout was wasted.
    """
    versions = [version for (version,) in swarm.rows("SELECT version FROM versions ORDER BY version")]
    assert versions == [*range(run.steps + 1)]
    batches = swarm.rows(
        f"SELECT r.step, r.version, count(DISTINCT {COMPLETION}) FROM records r {CONTINUED}"
        " WHERE r.rule = 'admitted' GROUP BY r.step, r.version"
    )
    assert batches == [(step, step - 1, run.batch) for step in range(1, run.steps + 1)]
    assert swarm.rows("SELECT * FROM dropped") == []


def check_trained(swarm: Swarm, run: Run) -> None:
    """Check that every step took a full batch of admitted records: each counted once, none older than the window, all
    of its own chain. A batch is larger by less than a group where slow peers were given smaller groups.
    """
    rows = swarm.rows(
        "SELECT r.step, s.incarnation, r.rule, r.incarnation, r.version, r.trained_lag, r.lease, r.idx"
        " FROM records r JOIN steps s USING (step)"
    )
    sizes = dict(
        swarm.rows(
            f"SELECT r.step, count(DISTINCT {COMPLETION}) FROM records r {CONTINUED} WHERE r.step IS NOT NULL"
            " GROUP BY r.step"
        )
    )
    assert sorted(sizes) == [*range(1, run.steps + 1)]
    assert all(run.batch <= size < run.batch + run.group for size in sizes.values())
    assert len({(lease, index) for *_, lease, index in rows}) == len(rows)
    bases = dict(swarm.rows("SELECT incarnation, base FROM incarnations"))
    for step, trainer, rule, incarnation, version, lag, _, _ in rows:
        assert rule == "admitted"
        assert 0 <= lag <= run.staleness
        assert lag == step - 1 - version
        assert _in_chain(bases, trainer, incarnation, version), (trainer, incarnation, version)


TURNS = """
SELECT coalesce(c.root, r.lease), coalesce(json_extract(c.slots, '$[' || r.idx || ']'), r.idx), coalesce(c.turn, 0),
    r.step, r.trained_lag, r.version, r.reward, d.reason, r.envelope, l.envelope
FROM records r JOIN leases l USING (lease) LEFT JOIN continuations c USING (lease)
LEFT JOIN dropped d ON d.lease = coalesce(c.root, r.lease) WHERE r.rule = 'admitted' ORDER BY 1, 2, 3
"""
"""(root, slot, turn, step, lag when it was trained on, version, reward, why dropped, record, lease) of each turn."""


def check_episodes(swarm: Swarm, run: Run) -> int:
    """Check that every step took a full batch of whole episodes: each turn once, with the reward at the last. The text
    before a turn is all that was read and said before. Return how many turns there were beyond the first.
    """
    rows = swarm.rows(TURNS)
    assert len({row[:3] for row in rows}) == len(rows), "a turn of an episode was made twice"
    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    steps: dict[int, set[tuple[bytes, int]]] = {}
    for (root, slot), group in groupby(rows, key=lambda row: row[:2]):
        turns = list(group)
        assert [row[2] for row in turns] == [*range(len(turns))], "none is missing"
        assert len({(row[3], row[7]) for row in turns}) == 1, "turns of one episode differ in step or drop"
        assert all(row[6] is None for row in turns[:-1])
        if (step := turns[-1][3]) is not None:
            steps.setdefault(step, set()).add((root, slot))
            assert turns[-1][6] is not None, "only an episode that is over may be trained on"
            assert all(0 <= row[4] <= run.staleness and row[4] == step - 1 - row[5] for row in turns)
        for before, after in pairwise(turns):
            if before[8] is not None and after[9] is not None:
                read, said = _prompt(before[9], authority.swarm), read_record(before[8], authority.swarm).tokens
                assert _prompt(after[9], authority.swarm)[: len(read) + len(said)] == (*read, *said)
    assert sorted(steps) == [*range(1, run.steps + 1)]
    assert all(run.batch <= len(episodes) < run.batch + run.group for episodes in steps.values())
    return sum(row[2] > 0 for row in rows)


def _prompt(envelope: bytes, swarm: SwarmId) -> tuple[int, ...]:
    return unpack_tokens(own_lease(envelope, swarm).prompt)


def check_nothing_lost(swarm: Swarm) -> None:
    """Check that each admitted record was trained on, dropped for its age, or is still there to be trained on."""
    lost = swarm.rows(
        "SELECT lease, idx FROM records WHERE rule = 'admitted' AND step IS NULL AND envelope IS NULL"
        " AND coalesce((SELECT root FROM continuations c WHERE c.lease = records.lease), lease)"
        " NOT IN (SELECT lease FROM dropped)"
    )
    assert lost == []


def skipped(swarm: Swarm) -> set[int]:
    """Return the training steps whose state was not published, since earlier versions were still on their way."""
    lines = (swarm.state / "events.jsonl").read_text("utf-8").splitlines()
    told = [event for event in map(json.loads, lines) if event["event"] == "versions_skipped"]
    return {step for event in told for step in range(event["first"], event["last"] + 1)}


def check_versions(swarm: Swarm) -> None:
    """Check that every admitted record was made with a published version, of the chain as it was then."""
    published = set(swarm.rows("SELECT incarnation, version FROM versions"))
    used = set(swarm.rows("SELECT incarnation, version FROM records WHERE rule = 'admitted'"))
    assert used <= published
    names = swarm.rows("SELECT manifest FROM versions")
    assert len(set(names)) == len(names)


def check_chain(swarm: Swarm) -> None:
    """Check that every start took the next incarnation and went on from a step that survived until then. Its first
    version is that step. Each manifest that is still there names the last version that survived when it was signed.
    """
    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    bases = dict(swarm.rows("SELECT incarnation, base FROM incarnations ORDER BY incarnation"))
    assert [*bases] == sorted(bases)
    assert min(bases) == 1
    alive: list[tuple[int, bytes]] = []
    for number, base in bases.items():
        alive = [(version, manifest) for version, manifest in alive if version <= base]
        mine = swarm.rows(
            "SELECT version, manifest FROM versions WHERE incarnation = ? ORDER BY version, published_ms", number
        )
        assert not mine or mine[0][0] == base
        for version, manifest in mine:
            file = swarm.state / "store" / "manifests" / manifest.hex()
            if file.exists():
                signed = open_manifest(file.read_bytes(), authority)
                assert (signed.version.incarnation, signed.version.version) == (number, version)
                assert signed.manifest.previous == (alive[-1][1] if alive else b"")
            alive.append((version, manifest))


def check_orphans(swarm: Swarm) -> None:
    """Check that rollouts which a restart orphaned count for their author, group by group, unless they are too old as
    well. Nothing else counts.
    """
    rows = swarm.rows(
        "SELECT r.lease, sum(r.tokens), min(r.rule), max(r.rule), min(r.detail) FROM records r"
        " JOIN leases l USING (lease) WHERE r.lease IN (SELECT lease FROM records WHERE rule = 'orphaned')"
        " GROUP BY r.lease"
    )
    credited = dict(swarm.rows("SELECT lease, tokens FROM orphans"))
    assert credited.keys() <= {lease for lease, *_ in rows}
    for lease, tokens, first, last, detail in rows:
        assert first == last == "orphaned"
        if lease in credited:
            assert credited[lease] == tokens
        else:
            assert "older than the window" in detail or "or no longer" in detail, detail


def check_history(swarm: Swarm, run: Run, trained: list[list[str]]) -> None:
    """Check that the trainer's last checkpoint lists the same records as the ledger, once each."""
    rows = dict(
        swarm.rows(
            f"SELECT r.step, count(DISTINCT {COMPLETION}) FROM records r {CONTINUED} WHERE r.step IS NOT NULL"
            " GROUP BY r.step"
        )
    )
    assert [len(batch) for batch in trained] == [rows[step] for step in range(1, run.steps + 1)]
    assert max(Counter(sequence for batch in trained for sequence in batch).values()) == 1


def check_leases(swarm: Swarm) -> None:
    """Check that a lease is its holder's alone. No seed occurs twice, except where another lease continues the same
    completion; then only what was delivered, or handed back, counts.

    The ledger keeps a lease's envelope only as long as it may be needed, so seeds are those of the leases left.
    """
    rows = swarm.rows(
        "SELECT lease, peer, envelope, rollouts, coalesce(root, lease), slots FROM leases"
        " LEFT JOIN continuations USING (lease) WHERE envelope IS NOT NULL"
    )
    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    seeds: dict[int, tuple[bytes, int]] = {}
    for lease, peer, envelope, rollouts, root, slots in rows:
        signer = open_envelope(envelope, kind=Kind.LEASE, swarm=authority.swarm, limit=len(envelope)).signer
        word = open_lease(envelope, authority.swarm, learner=signer)
        assert (word.id, word.peer, len(word.seeds)) == (lease, peer, rollouts)
        for seed, slot in zip(word.seeds, json.loads(slots) if slots else range(rollouts), strict=True):
            assert seeds.setdefault(seed, (root, slot)) == (root, slot)
    wrong = swarm.rows(
        "SELECT l.status FROM records r JOIN leases l USING (lease)"
        " WHERE r.rule = 'admitted' AND"
        " (l.status NOT IN ('delivered', 'returned') OR l.peer <> r.peer OR l.receipt IS NULL)"
    )
    assert wrong == []


def check_relays(swarm: Swarm) -> None:
    """Check each receiver's relay credits for a version.

    One signed receipt covers them, the receiver has an admitted record of that version, and their sum is at most the
    version's size.

    The chunks of a receipt are compared with the manifest for as long as the store has that.
    """
    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    rows = swarm.rows("SELECT manifest, incarnation, version, total_bytes FROM versions")
    versions = {manifest: facts for manifest, *facts in rows}
    users = set(swarm.rows("SELECT peer, incarnation, version FROM records WHERE rule = 'admitted'"))
    nodes = {peer for (peer,) in swarm.rows("SELECT peer FROM peers WHERE role = 'rollout'")}
    credits: dict[tuple[bytes, str], dict[str, int]] = {}
    for manifest, receiver, relay, size in swarm.rows("SELECT manifest, receiver, relay, bytes FROM relayed"):
        credits.setdefault((manifest, receiver), {})[relay] = size
    receipts = swarm.rows("SELECT manifest, receiver, envelope FROM relay_receipts")
    assert {(manifest, receiver) for manifest, receiver, _ in receipts} == credits.keys()
    for manifest, receiver, envelope in receipts:
        shares = credits[manifest, receiver]
        incarnation, version, total_bytes = versions[manifest]
        assert (receiver, incarnation, version) in users
        assert shares.keys() <= nodes - {receiver}
        assert 0 < sum(shares.values()) <= total_bytes
        word = open_relay_receipt(envelope, authority.swarm, receiver=PeerId(receiver))
        assert word.manifest == manifest
        file = swarm.state / "store" / "manifests" / manifest.hex()
        if file.exists():
            chunks = open_manifest(file.read_bytes(), authority).manifest.chunks
            said = Counter[str]()
            for chunk, relay in word.by_chunk().items():
                said[relay] += chunks[chunk].size
            assert said == shares


TALLIES = """
SELECT incarnation, version, after, envelope, manifest FROM tallies JOIN versions USING (incarnation, version)
ORDER BY incarnation, version
"""
CONSUMED = """
SELECT record, r.peer, lease, idx, s.incarnation, step FROM records r JOIN steps s USING (step)
WHERE step > ? AND step <= ? ORDER BY step, record
"""


def check_tallies(swarm: Swarm) -> None:
    """Check the tallies of the versions that survived. They follow each other from the first step to the last, and each
    has the root of the records that its steps consumed. So each such record is counted once. The manifests that are
    left carry the tallies.
    """
    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    counted = reached = 0
    for incarnation, version, after, raw, manifest in swarm.rows(TALLIES):
        envelope = open_envelope(raw, kind=Kind.TALLY, swarm=authority.swarm, limit=len(raw))
        said = msgspec.msgpack.decode(envelope.payload)
        assert (said["version"], said["after"], after) == ([incarnation, version], reached, reached)
        leaves = [
            msgspec.msgpack.encode([record, peer, lease, index, [trainer, step]])
            for record, peer, lease, index, trainer, step in swarm.rows(CONSUMED, after, version)
        ]
        assert (said["records"], said["root"]) == (len(leaves), _root(leaves))
        counted, reached = counted + len(leaves), version
        file = swarm.state / "store" / "manifests" / manifest.hex()
        if file.exists():
            assert open_manifest(file.read_bytes(), authority).manifest.ext["volery.tally"] == raw
    ((consumed,),) = swarm.rows("SELECT count(*) FROM records WHERE step IS NOT NULL")
    ((steps,),) = swarm.rows("SELECT max(step) FROM steps")
    assert (counted, reached) == (consumed, steps)


def _root(leaves: list[bytes]) -> bytes:
    """Return the Merkle root as RFC 9162 defines it."""
    if len(leaves) < 2:
        return sha256(b"\0" + leaves[0]).digest() if leaves else sha256().digest()
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return sha256(b"\1" + _root(leaves[:half]) + _root(leaves[half:])).digest()


def check_statement(swarm: Swarm, books: Path) -> dict[str, dict[str, int]]:
    """Verify a statement of a learner or a node with the invite. Return what it says of each peer."""
    file = swarm.machine.root / f"{books.name}.jsonl"
    told = swarm.machine.call("receipts", "export", books, "--out", file, "--proofs")
    assert told.code in (0, None), told
    checked = swarm.machine.call("receipts", "verify", file, "--invite", swarm.invite, "--json")
    assert checked.code == 0, checked.out
    return {one["peer"]: one for one in json.loads(checked.out)["peers"]}


def check_receipts(swarm: Swarm, node: Program, *, cut_off: bool = False) -> None:
    """Check that the node's receipts agree with the ledger, and are complete unless the node was `cut_off` before they
    came.
    """
    told, written = receipts_of(node), verdicts_for(swarm, peer_of(swarm, node))
    assert told.items() <= written.items()
    assert node.state is not None
    peer = peer_of(swarm, node)
    stated = check_statement(swarm, node.state).get(peer, {})
    if not cut_off:
        assert told == written
        ((trained,),) = swarm.rows("SELECT count(*) FROM records WHERE peer = ? AND step IS NOT NULL", peer)
        assert stated.get("proven", 0) >= trained, "at least the records that were trained on"
        assert counted_by(node) == counted_for(swarm, peer_of(swarm, node))


def peer_of(swarm: Swarm, node: Program) -> str:
    """Return the peer id of a node, as the learner knows it."""
    ((peer,),) = swarm.rows("SELECT peer FROM peers WHERE name = ?", node.name)
    return str(peer)


def reasons(swarm: Swarm, peer: str) -> Collection[str]:
    """Return the reasons for which the peer's visits ended."""
    return [reason for (reason,) in swarm.rows("SELECT reason FROM presence WHERE peer = ? ORDER BY id", peer)]


def _in_chain(bases: dict[int, int], head: int, incarnation: int, version: int) -> bool:
    """Return whether incarnation `head` grew from (incarnation, version): no restart in between threw it away."""
    later = [base for number, base in bases.items() if incarnation < number <= head]
    return incarnation <= head and version >= bases[incarnation] and all(version <= base for base in later)
