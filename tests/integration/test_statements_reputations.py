"""`volery reputation`: peers' reputations, signed, checked offline, and unchanged on the way."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from learner.ledger.rows import AuditRow
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory
from node.commands.statements.format import Head, ReputationLine, write_lines
from protocol.accounting.reputation import DAY_MS, Band
from protocol.core.genesis import certify_learner
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion
from protocol.work import Rule
from tests.node.commands.statements.test_command import volery
from tests.support import statements as stating
from tests.support.ledgers import ALPHA, BETA, LEARNER, START_MS, open_story, peer_row
from tests.support.statements import GENESIS, OPERATOR, SWARM, flaws, judged, reputation_line

V0 = PolicyVersion(1, 0)


def private(path: Path, key: Keypair) -> None:
    path.write_text(key.seed.hex() + "\n")
    path.chmod(0o600)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's state directory, with one steady peer and one that an audit has banned."""
    root = tmp_path / "state"
    story = open_story(root / "ledger.sqlite") if root.mkdir() is None else None
    assert story is not None
    story.join(peer_row(LEARNER, "learner", role="learner"))
    for peer in (ALPHA, BETA):
        story.join(peer_row(peer, "a peer"))
    for _ in range(9):
        story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    lease = story.lease(BETA)
    story.deliver(lease, BETA, Rule.AUDIT, version=V0)
    row = AuditRow(
        lease=lease, peer=BETA, at_ms=story.now_ms, tokens=28, counts=(), worst=1.5, evidence=30.0, passed=False,
        detail="20 of 28 tokens are off",
    )  # fmt: skip
    story.ledger.trust.audited([AuditOutcome(row=row, known=AuditHistory(failed=1, banned="20 of 28 tokens are off"))])
    story.ledger.close()
    (root / "genesis").write_bytes(GENESIS)
    now_ms = time.time_ns() // 1_000_000
    (root / "certificate").write_bytes(
        certify_learner(
            OPERATOR, SWARM, learner=stating.LEARNER.public, not_before_ms=now_ms - 1000, not_after_ms=2 * now_ms
        )
    )
    private(root / "learner.key", stating.LEARNER)
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return root


def test_what_is_exported_verifies_and_says_what_the_report_says(state: Path) -> None:
    told = volery("reputation", "export", state, "--out", "all.jsonl")
    assert (told.code, told.err) == (0, "")
    assert "2 peers. Anybody can check it: volery reputation verify all.jsonl" in told.out
    checked = volery("reputation", "verify", "all.jsonl", "--operator", OPERATOR.peer_id, "--json")
    assert checked.code == 0
    found = {one["peer"]: one for one in json.loads(checked.out)["reputations"]}
    assert found.keys() == {ALPHA, BETA}
    assert (found[ALPHA]["band"], found[ALPHA]["score"], found[ALPHA]["strikes"]) == ("steady", 1.0, [])
    assert (found[BETA]["band"], found[BETA]["banned"]) == ("banned", "20 of 28 tokens are off")
    assert found[BETA]["strikes"] == ["an audit failed lately"]
    assert [one["leases_in_time"] for one in found[ALPHA]["days"]] == [9]
    assert found[ALPHA]["day"] == START_MS // DAY_MS, "an old run must be reported with its own day"
    report = {one["peer"]: one["reputation"] for one in json.loads(volery("report", state, "--json").out)["peers"]}
    for peer, one in found.items():
        assert report[peer]["band"] == one["band"]
        assert report[peer]["soundness"] == pytest.approx(one["soundness"], abs=1e-3)


def test_a_table_is_printed_for_people(state: Path) -> None:
    volery("reputation", "export", state, "--out", "one", "--peer", BETA[-6:])
    told = volery("reputation", "verify", "one")
    assert told.code == 0
    assert BETA in told.out
    assert ALPHA not in told.out
    assert f"{BETA} was banned: 20 of 28 tokens are off" in told.out
    assert "No expected operator was given" in told.out
    assert volery("receipts", "verify", "one").out == told.out, "receipts verify must accept the same file"


def test_changed_bytes_do_not_hold(state: Path) -> None:
    volery("reputation", "export", state, "--out", "all")
    lines = Path("all").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1].replace(b"A", b"B", 1)
    Path("all").write_bytes(b"".join(lines))
    told = volery("reputation", "verify", "all")
    assert told.code == 1
    assert "all is NOT valid" in told.out
    assert "line 2, note: " in told.out


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda state: (state / "certificate").unlink(), "certificate cannot be read: "),
        (lambda state: private(state / "learner.key", OPERATOR), "does not let"),
        (lambda state: (state / "certificate").write_bytes(b"x"), "start the learner once with operator.key in place"),
        (lambda state: (state / "ledger.sqlite").unlink(), "there is no ledger"),
        (lambda state: (state / "ledger.sqlite").write_bytes(b"x" * 4096), "is damaged, or no ledger"),
        (lambda state: (state / "genesis").unlink(), "genesis cannot be read"),
    ],
)
def test_a_learner_that_cannot_sign_says_what_to_do_and_writes_nothing(state: Path, spoil: object, said: str) -> None:
    assert callable(spoil)
    spoil(state)
    told = volery("reputation", "export", state, "--out", "all")
    assert told.code == 1
    assert said in told.err
    assert not Path("all").exists()


def test_a_node_has_nothing_to_say_of_others_and_unknown_peers_are_named(state: Path, tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.mkdir()
    private(node / "node.key", stating.ALPHA)
    told = volery("reputation", "export", node, "--out", "all")
    assert told.code == 2
    assert "only a learner states reputations" in told.err
    told = volery("reputation", "export", state, "--out", "all", "--peer", "nobody")
    assert told.code == 2
    assert "no rollout node with such an id has joined" in told.err
    told = volery("reputation", "export", state, "--out", "nowhere/all")
    assert told.code == 1
    assert "Name another file after --out." in told.err


def test_a_ledger_of_before_audits_says_less(state: Path) -> None:
    with closing(sqlite3.connect(state / "ledger.sqlite")) as db:
        for table in ("decisions", "audits", "evidence", "confidence", "revisions"):
            db.execute(f"DROP TABLE {table}")
        db.commit()
    assert volery("reputation", "export", state, "--out", "all").code == 0
    told = json.loads(volery("reputation", "verify", "all", "--json").out)
    assert {one["band"] for one in told["reputations"]} == {"steady", "new"}


# Lines that cannot be


def written(*lines: ReputationLine) -> list[bytes]:
    return list(write_lines(Head(swarm=SWARM.swarm.hex(), genesis=GENESIS), lines))


def test_lines_that_cannot_be_are_flaws_of_their_note() -> None:
    assert flaws(written(reputation_line())) == []
    assert judged(written(reputation_line())).reputations[stating.ALPHA.peer_id].band is Band.STEADY
    assert flaws(written(reputation_line(), reputation_line())) == [(3, "note")]
    assert flaws(written(reputation_line(score=3))) == [(2, "note")]
    assert flaws(written(reputation_line(band=Band.BANNED))) == [(2, "note")]
    assert flaws(written(reputation_line(signer=stating.STRANGER))) == [(2, "note")]
    assert flaws(written(reputation_line(), reputation_line(stating.BETA.peer_id))) == []
