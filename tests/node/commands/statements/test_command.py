"""Call `volery receipts` and `volery prove` as a user does, on the state of a learner and its node."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
import sys
from collections import Counter
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trio

from node.cli.main import main
from node.commands.statements.format import Shape, shapes_of
from node.learner_role.peers import proof_service as proof_desk
from node.runtime.events import Clock
from protocol.accounting.relay_receipt import relay_receipt
from protocol.core.envelope import sign
from protocol.core.genesis import certify_learner
from protocol.core.identity import Keypair, peer_id_of
from protocol.core.invite import Invite, write_invite
from protocol.versions.manifest import SignedManifest
from protocol.work import Relayed
from swarm.testing.memory_transport import MemoryNetwork
from tests.support.learner_fixture import FakePeer, Settings, open_learner, until
from tests.support.paths import ROOT
from tests.support.rollout_fixture import serve, work_with
from tests.support.statements import GENESIS as ELSEWHERE
from tests.support.swarm_fixture import key_of, open_node
from tests.support.trainer_fixture import OTHER, SWARM

NODE = "worker"
STEPS = 4
ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: object
    out: str
    err: str


def volery(*arguments: object) -> Ended:
    """Run a command to its end."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["volery", *map(str, arguments)]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as ended:
        return Ended(code=ended.code or 0, out=out.getvalue(), err=err.getvalue())
    finally:
        sys.argv = before
    raise AssertionError("the console script ended without an exit code")


async def _run(root: Path) -> None:
    network, settings = MemoryNetwork(), Settings(steps=STEPS, staleness=2, prompts=4)
    async with (
        open_learner(root / "learner", settings, network=network) as learner,
        open_node(network, SWARM, root / "node", NODE, follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        await worker.transport.dial(learner.transport.addresses())

        async def work() -> None:
            await work_with(worker, learner, root / "node", keeps_proofs=True)

        def note(signed: SignedManifest) -> None:
            """As if the node and the other peer had had every version after the first from each other."""
            for mine, theirs in ((key_of(NODE), OTHER), (OTHER, key_of(NODE))):
                givers = dict.fromkeys(range(len(signed.manifest.chunks)), theirs.peer_id)
                if signed.version.version and (thanks := relay_receipt(signed.hash, givers)) is not None:
                    raw = sign(mine, SWARM.authority.swarm, thanks)
                    learner.sessions.take_relay_receipt(mine.peer_id, Relayed(receipt=raw))

        learner.context.signals.version_published.subscribe(note)
        nursery.start_soon(work)
        await learner.train(FakePeer(key=OTHER, rollouts=2))
        await until(partial(_has_all_of_its_own, root))
        nursery.cancel_scope.cancel()


def _has_all_of_its_own(root: Path) -> bool:
    """Whether the node has the receipts of what the learner admitted of it, and the proofs of what was trained on."""
    sums = "SELECT count(*), sum(step IS NOT NULL) FROM records WHERE peer = ? AND rule = 'admitted'"
    kept = "SELECT (SELECT count(*) FROM verdicts WHERE rule = 'admitted'), (SELECT count(*) FROM proofs)"
    admitted = rows(root / "learner" / "ledger.sqlite", sums, key_of(NODE).peer_id)
    return admitted == rows(root / "node" / "receipts.sqlite", kept)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State directories of a learner and a node, as after a run in which records of the node trained the versions that
    tests ask for, and both peers were credited for relaying. On a busy machine one peer may have made all of a version,
    or nothing with what the other relayed: then it is run again."""
    for _ in range(ATTEMPTS):
        root = tmp_path_factory.mktemp("books")
        for name in ("learner", "node"):
            (root / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(proof_desk, "PAUSE_S", 0.0)
            trio.run(_run, root)
        trained = "SELECT DISTINCT step FROM records WHERE peer = ?"
        ledger = root / "learner" / "ledger.sqlite"
        credited = {peer for (peer,) in rows(ledger, "SELECT DISTINCT relay FROM relayed")}
        made_both = {(2,), (3,)} <= {*rows(ledger, trained, key_of(NODE).peer_id)}
        if made_both and {key_of(NODE).peer_id, OTHER.peer_id} <= credited:
            break
    for path in (root / "learner" / "ledger.sqlite", root / "node" / "receipts.sqlite"):
        rows(path, "PRAGMA wal_checkpoint(TRUNCATE)")  # so that a copy of the file is a copy of all that is in it
    (root / "learner" / "genesis").write_bytes(SWARM.genesis)
    for path, key in ((root / "learner" / "learner.key", SWARM.learner), (root / "node" / "node.key", key_of(NODE))):
        path.write_text(key.seed.hex())
        path.chmod(0o600)
    (root / "node" / "store").mkdir(exist_ok=True)
    (root / "node" / "store" / "genesis").write_bytes(SWARM.genesis)
    return root


@pytest.fixture
def state_directories(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, and nothing else on this machine."""
    shutil.copytree(made, tmp_path / "books")
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "books"


def rows(path: Path, sql: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql, values).fetchall()


def operator() -> str:
    return peer_id_of(SWARM.authority.operator)


# Export and verify.


@pytest.mark.parametrize("who", ["learner", "node"])
def test_what_is_exported_verifies_and_adds_up_to_the_books(state_directories: Path, who: str) -> None:
    told = volery("receipts", "export", state_directories / who, "--out", "all.jsonl", "--proofs")
    assert (told.code, told.err) == (0, "")
    assert "volery receipts verify all.jsonl" in told.out
    assert " more records that are proved" in volery("receipts", "verify", "all.jsonl").out
    checked = volery("receipts", "verify", "all.jsonl", "--operator", operator(), "--json")
    assert checked.code == 0
    found = json.loads(checked.out)
    assert found["holds"]
    assert found["operator"] == operator()
    peers = {one["peer"]: one for one in found["peers"]}
    ledger = state_directories / "learner" / "ledger.sqlite"
    names = [key_of(NODE).peer_id, OTHER.peer_id] if who == "learner" else [key_of(NODE).peer_id]
    assert set(names) == {peer for peer, one in peers.items() if one["receipts"]}
    for peer in names:
        sums = "SELECT count(*), sum(tokens), sum(step IS NOT NULL) FROM records WHERE peer = ? AND rule = 'admitted'"
        ((admitted, tokens, consumed),) = rows(ledger, sums, peer)
        one = peers[peer]
        assert (one["admitted"], one["tokens"], one["proven"]) == (admitted, tokens, consumed)
    credited = rows(ledger, "SELECT relay, sum(bytes) FROM relayed GROUP BY relay")
    assert credited
    if who == "learner":
        assert {peer: one["relayed_bytes"] for peer, one in peers.items() if one["relayed_bytes"]} == dict(credited)
    else:  # credits after its last question are missing here
        assert 0 < peers[names[0]]["relayed_bytes"] <= int(str(dict(credited)[names[0]]))


def test_the_file_that_the_page_on_joining_names_proves_the_work_when_all_else_is_removed(
    state_directories: Path,
) -> None:
    page = (ROOT / "docs" / "start" / "join.md").read_text(encoding="utf-8")
    [command] = [line.split() for line in page.split("## Remove it")[1].splitlines() if line.startswith("    volery ")]
    assert volery(*command[1:], state_directories / "node").code == 0
    shutil.rmtree(state_directories)
    found = json.loads(volery("receipts", "verify", command[-1], "--operator", operator(), "--json").out)
    [one] = [one for one in found["peers"] if one["peer"] == key_of(NODE).peer_id]
    assert found["holds"]
    assert one["proven"] > 0


def test_the_same_books_make_the_same_file(state_directories: Path) -> None:
    for name in ("one", "two"):
        assert volery("receipts", "export", state_directories / "learner", "--out", name).code == 0
    assert Path("one").read_bytes() == Path("two").read_bytes()


def test_one_peer_s_receipts_are_exported_alone(state_directories: Path) -> None:
    mine = key_of(NODE).peer_id
    assert (
        volery(
            "receipts", "export", state_directories / "learner", "--out", "one", "--peer", mine[-6:], "--proofs"
        ).code
        == 0
    )
    assert volery("receipts", "export", state_directories / "node", "--out", "own", "--proofs").code == 0
    found = json.loads(volery("receipts", "verify", "one", "--json").out)
    assert {one["peer"] for one in found["peers"] if one["receipts"] or one["proven"]} == {mine}
    own = {line for line in Path("own").read_bytes().splitlines() if b'"receipt"' in line or b'"proof"' in line}
    assert own == {line for line in Path("one").read_bytes().splitlines() if b'"receipt"' in line or b'"proof"' in line}


def test_a_table_is_printed_and_says_what_it_rests_on(state_directories: Path) -> None:
    volery("receipts", "export", state_directories / "node", "--out", "all")
    told = volery("receipts", "verify", "all")
    assert told.code == 0
    assert key_of(NODE).peer_id in told.out
    assert "No expected operator was given" in told.out
    assert told.out.startswith("all is valid.\n"), "the verdict first"
    assert "Every signature is valid" in told.out
    pinned = volery("receipts", "verify", "all", "--operator", SWARM.authority.operator.hex())
    assert "That is the operator you named" in pinned.out


def test_an_invite_names_the_operator_even_when_it_has_expired(state_directories: Path) -> None:
    volery("receipts", "export", state_directories / "node", "--out", "all")
    invite = Invite(
        operator=SWARM.authority.operator, swarm=SWARM.authority.swarm, addresses=["/ip4/192.0.2.1/tcp/1"], expires_ms=1
    )
    Path("invite").write_text(write_invite(invite))
    for word in ("invite", write_invite(invite)):
        assert volery("receipts", "verify", "all", "--invite", word).code == 0


def test_a_changed_file_ends_with_1_and_names_the_line(state_directories: Path) -> None:
    volery("receipts", "export", state_directories / "node", "--out", "all")
    lines = Path("all").read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"A", b"B", 1)
    Path("all").write_bytes(b"".join(lines))
    told = volery("receipts", "verify", "all")
    assert told.code == 1
    assert told.out.startswith("all is NOT valid")
    assert told.out.splitlines()[-1].startswith("all is NOT valid"), "the last line must say it as well"
    assert "line 3, envelope: " in told.out
    assert f"line {len(lines)}, sha256: " in told.out


def test_the_statement_of_another_operator_is_refused(state_directories: Path) -> None:
    volery("receipts", "export", state_directories / "node", "--out", "all")
    told = volery("receipts", "verify", "all", "--operator", Keypair(bytes([9]) * 32).peer_id)
    assert told.code == 1
    assert f"line 1, genesis: the operator is {operator()}" in told.out
    assert "you named" not in told.out


def test_a_line_without_end_is_not_read_to_its_end(state_directories: Path, tmp_path: Path) -> None:
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    told = volery("receipts", "verify", endless)
    assert told.code == 1
    assert "line 1, line: it has more than" in told.out


def test_a_device_is_no_file(state_directories: Path) -> None:
    told = volery("receipts", "verify", "/dev/zero")
    assert told.code == 1
    assert "/dev/zero cannot be read: it is a device" in told.err


# Proofs.


def record_of(state_directories: Path, sql: str) -> str:
    ((record,),) = rows(
        state_directories / "learner" / "ledger.sqlite", f"SELECT hex(record) FROM records WHERE {sql} LIMIT 1"
    )
    return str(record).lower()


@pytest.mark.parametrize("who", ["learner", "node"])
def test_a_record_is_proved_from_either_side_and_the_file_stands_alone(state_directories: Path, who: str) -> None:
    record = record_of(state_directories, f"step = 2 AND peer = '{key_of(NODE).peer_id}'")
    told = volery("prove", record, state_directories / who)
    assert told.code == 0
    assert f"Record {record} of {key_of(NODE).peer_id}" in told.out
    assert "trained version 1.2" in told.out
    assert volery("prove", record[:12].upper(), state_directories / who, "--out", "proof").code == 0
    assert len(Path("proof").read_bytes()) < 16_384
    shutil.rmtree(state_directories)
    found = json.loads(volery("receipts", "verify", "proof", "--operator", operator(), "--json").out)
    assert [(one["record"], one["trained"]) for one in found["proven"]] == [(record, "1.2")]
    assert "trained version 1.2" in volery("receipts", "verify", "proof").out


def test_both_sides_write_the_same_proof(state_directories: Path) -> None:
    record = record_of(state_directories, f"step = 3 AND peer = '{key_of(NODE).peer_id}'")
    for who in ("learner", "node"):
        assert volery("prove", record, state_directories / who, "--out", who).code == 0
    assert Path("learner").read_bytes() == Path("node").read_bytes()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE record_rows SET step = NULL WHERE {}", "waits for a batch"),
        (
            "UPDATE record_rows SET rule = 'stale', detail = 'lag 9', step = NULL WHERE {}",
            "was rejected (stale: lag 9)",
        ),
        ("DELETE FROM tallies", "there is no signed tally of that"),
        ("DROP TABLE tallies", "there is no signed tally of that"),
        ("DELETE FROM record_rows WHERE {}", "No record here has an id that begins with"),
        (
            f"UPDATE record_rows SET peer = (SELECT no FROM peer_numbers WHERE peer = '{OTHER.peer_id}') WHERE {{}}",
            "does not prove it",
        ),
        ("DELETE FROM steps", "too little is kept to prove it"),
        (
            "UPDATE tallies SET envelope = CAST(substr(envelope, 1, length(envelope) - 1) || x'00' AS BLOB)",
            "bad_signature",
        ),
    ],
)
def test_what_cannot_be_proved_is_said_with_the_reason(state_directories: Path, change: str, said: str) -> None:
    record = record_of(state_directories, f"step = 2 AND peer = '{key_of(NODE).peer_id}'")
    with closing(sqlite3.connect(state_directories / "learner" / "ledger.sqlite")) as db, db:
        db.executescript(change.format(f"hex(record) = '{record.upper()}'"))
    told = volery("prove", record, state_directories / "learner", "--out", "proof")
    assert told.code == 1
    assert said in told.err
    assert "ledger.sqlite" in told.err
    assert not Path("proof").exists()


def test_a_node_without_the_proof_says_how_to_get_it(state_directories: Path) -> None:
    record = record_of(state_directories, f"step = 2 AND peer = '{key_of(NODE).peer_id}'")
    with closing(sqlite3.connect(state_directories / "node" / "receipts.sqlite")) as db, db:
        for table in ("proofs", "tallies", "relay_receipts", "credit_notes"):
            db.execute(f"DROP TABLE {table}")
    told = volery("prove", record, state_directories / "node")
    assert told.code == 1
    assert "receipts.sqlite: " in told.err
    assert "there is no proof here that it trained a version" in told.err
    assert volery("receipts", "export", state_directories / "node", "--out", "all", "--proofs").code == 0
    assert volery("receipts", "list", state_directories / "node").code == 0


def test_what_an_audit_refused_later_is_still_proved_to_have_trained_what_it_did(state_directories: Path) -> None:
    record = record_of(state_directories, f"step = 2 AND peer = '{key_of(NODE).peer_id}'")
    with closing(sqlite3.connect(state_directories / "node" / "receipts.sqlite")) as db, db:
        db.execute("UPDATE verdicts SET rule = 'audit' WHERE hex(record) = ?", (record.upper(),))
    assert "trained version 1.2" in volery("prove", record, state_directories / "node").out


# Lists.


@pytest.mark.parametrize("who", ["learner", "node"])
def test_receipts_are_listed_newest_first(state_directories: Path, who: str) -> None:
    found = json.loads(volery("receipts", "list", state_directories / who, "--last", "1000", "--json").out)
    dates = [one["issued_ms"] for one in found]
    assert dates == sorted(dates, reverse=True)
    trained = {record["record"] for one in found for record in one["records"] if record["trained"]}
    who_else = "" if who == "learner" else f" AND peer = '{key_of(NODE).peer_id}'"
    consumed = rows(
        state_directories / "learner" / "ledger.sqlite",
        f"SELECT lower(hex(record)) FROM records WHERE step IS NOT NULL{who_else}",
    )
    assert trained == {record for (record,) in consumed}
    text = volery("receipts", "list", state_directories / who, "--last", "3", "--records").out
    assert text.startswith("record")
    above, headings, *listed = volery("receipts", "list", state_directories / who, "--last", "3").out.splitlines()
    assert len(listed) == 3
    assert above.split() == ["learner's", "trained"]
    assert headings.split()[-5:] == ["version", "admitted", "rejected", "tokens", "version"]


def test_of_a_ledger_one_peer_s_are_listed(state_directories: Path) -> None:
    found = json.loads(volery("receipts", "list", state_directories / "learner", "--peer", OTHER.peer_id, "--json").out)
    assert {one["peer"] for one in found} == {OTHER.peer_id}


# Wrong files and arguments: code 2 for what was asked, 1 for what was found.


WRONG: list[tuple[list[str], int, str]] = [
    (["receipts", "verify", "nowhere"], 1, "nowhere cannot be read: No such file"),
    (["receipts", "verify", "."], 1, ". cannot be read: Is a directory"),
    (["receipts", "verify", "books/node/receipts.sqlite"], 1, ""),
    (["receipts", "verify", "x", "--operator", "me"], 2, "a key is a peer id"),
    (["receipts", "verify", "x", "--operator", "z" * 64], 2, "a key is a peer id"),
    (["receipts", "verify", "x", "--operator", "1" * 52], 2, "a key is a peer id"),
    (["receipts", "verify", "x", "--invite", "volery1x"], 2, "invite"),
    (["receipts", "verify", "x", "--operator", "a", "--invite", "b"], 2, "not both"),
    (["receipts", "verify"], 2, "Missing argument"),
    (["receipts", "export", "books/node"], 2, "--out"),
    (["receipts", "export", "books/node", "--out", "."], 1, ". cannot be written"),
    (["receipts", "export", "books/node", "--out", "no/such/file"], 1, "cannot be written"),
    (["receipts", "export", "books", "--out", "all"], 2, "holds neither a learner nor a node"),
    (["receipts", "export", "books/node", "--out", "all", "--peer", "x"], 2, "are one node's"),
    (["receipts", "export", "books/learner", "--out", "all", "--peer", "nobody"], 2, "no rollout node with such an id"),
    (["receipts", "list", "books/node", "--last", "0"], 2, "--last"),
    (["receipts", "list", "nowhere"], 2, "no such file or directory"),
    (["receipts", "nonsense"], 2, "nonsense"),
    (["prove", "xyz", "books/node"], 2, "is neither a record's id"),
    (["prove", "", "books/node"], 2, "is neither a record's id"),
    (["prove", "a" * 65, "books/node"], 2, "is neither a record's id"),
    (["prove", "0123456789abcdef" * 4, "books/node"], 1, "No record here has an id"),
    (["prove", "aa", "books/node", "--out", "no/such/file"], 1, "cannot be written"),
    (["prove", "aa"], 2, "Name a swarm.toml or a state directory"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "code", "said"), WRONG, ids=[" ".join(words)[:60] for words, _, _ in WRONG])
def test_what_is_wrong_is_said(state_directories: Path, arguments: list[str], code: int, said: str) -> None:
    told = volery(*arguments)
    assert told.code == code
    assert said in " ".join(told.err.replace("│", " ").split()) + told.out
    assert "Traceback" not in told.err
    assert not Path("all").exists()


def test_an_ambiguous_beginning_is_refused(state_directories: Path) -> None:
    starts = rows(
        state_directories / "node" / "receipts.sqlite", "SELECT lower(substr(hex(record), 1, 1)) FROM verdicts"
    )
    counts = Counter(str(start) for (start,) in starts)
    (digit, several), *_ = counts.most_common(1)
    assert several > 1
    told = volery("prove", digit, state_directories / "node")
    assert told.code == 2
    assert "Several records" in told.err


@pytest.mark.parametrize(
    ("who", "table"), [("learner", "ledger.sqlite:record_rows"), ("node", "receipts.sqlite:verdicts")]
)
def test_a_record_that_came_again_counts_once(state_directories: Path, who: str, table: str) -> None:
    """Its replays may be all that a search sees: then it hides another record, or the lease that admitted it."""
    file, _, table = table.partition(":")
    path, mine = state_directories / who / file, f"step = 2 AND peer = '{key_of(NODE).peer_id}'"
    number = "no" if who == "learner" else "rowid"
    record = record_of(state_directories, mine)
    other = record_of(state_directories, f"{mine} AND hex(record) <> '{record.upper()}'")
    with closing(sqlite3.connect(path)) as db, db:
        names = [name for _, name, *_ in db.execute(f"PRAGMA table_info({table})") if name != number]
        again = {"lease": "l.lease", "rule": "'unknown_lease'", "step": "NULL"}
        columns = ", ".join(again.get(name, f"r.{name}") for name in names)
        db.execute(
            f"INSERT INTO {table} ({number}, {', '.join(names)}) SELECT -l.{number}, {columns} FROM {table} r,"
            f" (SELECT {number}, lease FROM {table} GROUP BY lease) l WHERE hex(r.record) = ? AND r.lease <> l.lease",
            (record.upper(),),
        )
    assert "trained version 1.2" in volery("prove", record, state_directories / who).out
    with closing(sqlite3.connect(path)) as db, db:
        renamed = bytes.fromhex(record[:8] + other[8:])
        db.execute(f"UPDATE {table} SET record = ? WHERE hex(record) = ?", (renamed, other.upper()))
    told = volery("prove", record[:8], state_directories / who)
    assert told.code == 2
    assert "Several records" in told.err


@pytest.mark.parametrize("genesis", [None, b"x", ELSEWHERE])
def test_books_without_their_genesis_are_refused(state_directories: Path, genesis: bytes | None) -> None:
    path = state_directories / "node" / "store" / "genesis"
    path.unlink() if genesis is None else path.write_bytes(genesis)
    told = volery("receipts", "export", state_directories / "node", "--out", "all")
    if genesis == ELSEWHERE:
        assert volery("receipts", "verify", "all").code == 1, "every envelope is of another swarm"
        return
    assert told.code == 1
    assert str(path) in told.err


def test_empty_books_state_nothing(state_directories: Path) -> None:
    with closing(sqlite3.connect(state_directories / "node" / "receipts.sqlite")) as db, db:
        for table in ("verdicts", "receipts", "proofs", "tallies", "relay_receipts", "credit_notes"):
            db.execute(f"DELETE FROM {table}")
    assert volery("receipts", "list", state_directories / "node").out == "There are no receipts yet.\n"
    assert "states nothing" in volery("receipts", "export", state_directories / "node", "--out", "all").out
    assert volery("receipts", "verify", "all").code == 0


@pytest.mark.parametrize("file", ["learner/ledger.sqlite", "node/receipts.sqlite"])
def test_damaged_books_are_an_error_and_are_left_alone(state_directories: Path, file: str) -> None:
    path = state_directories / file
    for extra in ("-wal", "-shm"):
        path.with_name(path.name + extra).unlink(missing_ok=True)
    path.write_bytes(b"not a database, and longer than a header of SQLite's would be" * 20)
    before = path.read_bytes()
    for words in (["receipts", "list"], ["receipts", "export", "--out", "all"]):
        told = volery(*words, path.parent)
        assert told.code == 1
        assert str(path) in told.err
    assert path.read_bytes() == before
    assert not Path("all").exists()


COMMANDS = {
    Shape.RECEIPTS: ("receipts", "export", "books/learner"),
    Shape.REPUTATIONS: ("reputation", "export", "books/learner"),
    Shape.PROOF: ("prove", "", "books/learner"),
}


@pytest.mark.parametrize("shape", Shape)
def test_only_what_the_same_command_wrote_is_replaced(state_directories: Path, shape: Shape) -> None:
    ((record,),) = rows(
        state_directories / "learner" / "ledger.sqlite", "SELECT lower(hex(record)) FROM records WHERE step LIMIT 1"
    )
    now_ms = Clock.now_ms()
    (state_directories / "learner" / "certificate").write_bytes(
        certify_learner(
            SWARM.operator, SWARM.authority, learner=SWARM.learner.public, not_before_ms=0, not_after_ms=2 * now_ms
        )
    )
    commands = {one: [word or str(record) for word in words] for one, words in COMMANDS.items()}
    for one, words in commands.items():
        assert volery(*words, "--out", one.name).code == 0
    kept = {path: path.read_bytes() for path in state_directories.rglob("*") if path.is_file()}
    Path("empty").touch()
    kept |= {Path("empty"): b""} | {Path(one.name): Path(one.name).read_bytes() for one in Shape if one is not shape}
    for path in kept:
        told = volery(*commands[shape], "--out", path)
        assert told.code == 2, path
        assert told.err == (
            f"volery: usage: --out {path}: this file is no {shape.value} that volery wrote, and was not touched. "
            "Name another file, or remove it.\n"
        )
    assert {path: path.read_bytes() for path in kept} == kept
    for name in (shape.name, "new"):
        assert volery(*commands[shape], "--out", name).code == 0, name


def test_an_export_that_states_nothing_is_in_nobodys_way(state_directories: Path) -> None:
    for table in ("receipts", "verdicts", "proofs", "relay_receipts", "credit_notes", "reputation"):
        with closing(sqlite3.connect(state_directories / "node" / "receipts.sqlite")) as db, db:
            db.execute(f"DELETE FROM {table}")
    assert "It states nothing" in volery("receipts", "export", state_directories / "node", "--out", "all").out
    assert shapes_of(Path("all")) == frozenset(Shape)
    Path("torn").write_bytes(Path("all").read_bytes().split(b"\n")[0])
    assert not shapes_of(Path("torn"))


def test_what_was_compacted_says_the_same(state_directories: Path) -> None:
    """Why, proofs, lists and exports, of a ledger whose receipts are packed."""
    state = state_directories / "learner"
    record = record_of(state_directories, f"step = 3 AND peer = '{key_of(NODE).peer_id}'")
    ((lease,),) = rows(
        state / "ledger.sqlite", "SELECT lower(hex(lease)) FROM leases WHERE receipt IS NOT NULL LIMIT 1"
    )

    def told() -> list[Ended]:
        answers = [
            volery("why", record, state),
            volery("why", lease, state),
            volery("receipts", "list", state, "--records", "--last", 1000),
            volery("receipts", "export", state, "--out", "all.jsonl", "--proofs"),
            volery("receipts", "verify", "all.jsonl", "--json"),
            volery("prove", record, state, "--out", "proof.jsonl"),
            volery("receipts", "verify", "proof.jsonl", "--json"),
            volery("report", state, "--json"),
        ]
        for name in ("all.jsonl", "proof.jsonl"):
            answers.append(Ended(code=0, out=Path(name).read_text(encoding="utf-8"), err=""))
            Path(name).unlink()
        return answers

    before = told()
    assert [one.code for one in before] == [0] * len(before)
    compacted = volery("compact", state, "--keep-days", 0)
    assert compacted.code == 0, compacted
    ((whole, packed),) = rows(
        state / "ledger.sqlite", "SELECT (SELECT count(*) FROM receipts), (SELECT count(*) FROM packed_receipts)"
    )
    assert (whole, packed > 5) == (0, True)
    assert told() == before
