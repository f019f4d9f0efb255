"""A learner's state directory: the swarm's identity, the certificate's life, and one process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.runtime.atomic_files import write_durably
from node.runtime.errors import RunError, UsageError
from node.state.keys import load_or_create_key
from node.state.learner_state import DAY_MS, RENEW_BEFORE_MS, LearnerStateDir, open_learner_home, require_home
from node.state.rollout_state import open_volunteer_home
from protocol.core.genesis import open_certificate, read_genesis
from tests.support.trainer_fixture import NOW_MS, SWARM


def open_home(root: Path, *, days: float = 90.0, now_ms: int = NOW_MS, name: str = "a swarm") -> LearnerStateDir:
    home = open_learner_home(root, name=name, certificate_days=days, now_ms=now_ms)
    home.close()
    return home


def test_a_swarm_is_founded_once(tmp_path: Path) -> None:
    root = tmp_path / "state"
    first, again = open_home(root), open_home(root, name="another name")
    assert again.authority.swarm == first.authority.swarm
    assert (again.learner.peer_id, again.secret, again.certificate) == (
        first.learner.peer_id, first.secret, first.certificate,
    )  # fmt: skip
    assert read_genesis(first.genesis)[0].name == "a swarm"
    assert open_home(tmp_path / "other").authority.swarm != first.authority.swarm
    names = {"operator.key", "learner.key", "lease.secret", "genesis", "certificate", "lock"}
    assert {one.name for one in root.iterdir()} == names
    assert all((root / key).stat().st_mode & 0o777 == 0o600 for key in names if key.endswith((".key", ".secret")))


def not_after(home: LearnerStateDir) -> int:
    return open_certificate(home.certificate, home.authority).not_after_ms


def test_the_certificate_is_renewed_when_it_is_about_to_end(tmp_path: Path) -> None:
    first = open_home(tmp_path)
    ends = not_after(first)
    assert ends == NOW_MS + 90 * DAY_MS
    assert open_home(tmp_path, now_ms=ends - RENEW_BEFORE_MS - 1).certificate == first.certificate
    renewed = open_home(tmp_path, now_ms=ends - RENEW_BEFORE_MS)
    assert not_after(renewed) == ends - RENEW_BEFORE_MS + 90 * DAY_MS
    assert open_certificate(renewed.certificate, renewed.authority).learner == first.learner.public


def test_the_operators_key_may_be_kept_elsewhere_while_the_certificate_holds(tmp_path: Path) -> None:
    first = open_home(tmp_path)
    (tmp_path / "operator.key").rename(tmp_path / "safe")
    ends = not_after(first)
    assert open_home(tmp_path, now_ms=ends - 1).certificate == first.certificate
    with pytest.raises(UsageError, match=r"certificate is missing, expired or for another key, and .*operator\.key"):
        open_home(tmp_path, now_ms=ends)
    (tmp_path / "safe").rename(tmp_path / "operator.key")
    assert not_after(open_home(tmp_path, now_ms=ends)) > ends


def test_a_new_learners_key_needs_the_operators_word(tmp_path: Path) -> None:
    first = open_home(tmp_path)
    (tmp_path / "learner.key").unlink()
    (tmp_path / "operator.key").rename(tmp_path / "safe")
    (tmp_path / "certificate").rename(tmp_path / "old certificate")
    with pytest.raises(UsageError, match="for another key"):
        open_home(tmp_path)
    (tmp_path / "safe").rename(tmp_path / "operator.key")
    rotated = open_home(tmp_path)
    assert rotated.learner.peer_id != first.learner.peer_id
    assert rotated.authority.swarm == first.authority.swarm
    assert open_certificate(rotated.certificate, rotated.authority).learner == rotated.learner.public


def test_another_operators_key_is_refused(tmp_path: Path) -> None:
    first = open_home(tmp_path / "state")
    open_home(tmp_path / "other")
    (tmp_path / "other" / "operator.key").replace(tmp_path / "state" / "operator.key")
    with pytest.raises(UsageError, match="not the key that founded this swarm"):
        open_home(tmp_path / "state", now_ms=not_after(first))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("genesis", b"", "genesis is not a swarm's genesis.*Restore it from a copy"),
        ("genesis", SWARM.certificate, "genesis is not a swarm's genesis"),
        ("certificate", b"\x00", "certificate is not a certificate of this swarm.*Restore it"),
        ("certificate", SWARM.certificate, "certificate is not a certificate of this swarm"),
        ("learner.key", b"?", "learner.key is not a key"),
        ("lease.secret", b"?", "lease.secret is not a key"),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    first = open_home(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=says):
        open_home(tmp_path)
    assert (tmp_path / name).read_bytes() == content
    (tmp_path / name).write_bytes(whole)
    assert open_home(tmp_path).authority == first.authority, "and nobody holds the lock"


def test_a_swarm_that_lost_its_genesis_is_not_founded_again(tmp_path: Path) -> None:
    open_home(tmp_path)
    (tmp_path / "genesis").unlink()
    with pytest.raises(UsageError, match=r"genesis is missing.*Restore it from a copy"):
        open_home(tmp_path)
    assert not (tmp_path / "genesis").exists()


def test_killed_before_its_first_word_a_swarm_is_founded_by_the_same_operator(tmp_path: Path) -> None:
    operator = load_or_create_key(tmp_path / "operator.key")
    assert open_home(tmp_path).authority.operator == operator.public


def test_a_directory_is_used_by_one_learner_at_a_time(tmp_path: Path) -> None:
    home = open_learner_home(tmp_path, name="a swarm", certificate_days=90.0, now_ms=NOW_MS)
    with pytest.raises(RunError, match=r"used by a learner that is running. Stop that one first"):
        open_home(tmp_path)
    home.close()
    open_home(tmp_path)


def test_a_learner_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from node.state.learner_state import open_learner_home as o; "
        f"home = o(Path({str(tmp_path)!r}), name='n', certificate_days=9.0, now_ms={NOW_MS}); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"\n"
        with pytest.raises(RunError, match="used by a learner"):
            open_home(tmp_path)
        program.kill()
        program.wait()
    open_home(tmp_path)


def test_a_rollout_nodes_state_is_not_a_learners(tmp_path: Path) -> None:
    open_volunteer_home(tmp_path, SWARM.authority.swarm).lock.close()
    (tmp_path / "node.key").touch()
    with pytest.raises(UsageError, match="a rollout node's state"):
        open_home(tmp_path)


def test_a_state_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "deep"):
        with pytest.raises(RunError, match=r"cannot be used: .*Choose another \[swarm\] state"):
            open_home(root)


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_a_lock_that_is_no_file_is_named(tmp_path: Path, kind: str) -> None:
    (Path.mkdir if kind == "directory" else os.mkfifo)(tmp_path / "lock")
    with pytest.raises(RunError, match=rf"\[swarm\] state: {tmp_path}/lock cannot be used: "):
        open_home(tmp_path)


def test_write_durably_writes_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "invite"
    write_durably(path, b"one")
    write_durably(path, b"two")
    assert path.read_bytes() == b"two"
    (tmp_path / "directory").mkdir()
    with pytest.raises(RunError, match=r"directory cannot be written: .*choose another directory"):
        write_durably(tmp_path / "directory", b"x")
    assert {one.name for one in tmp_path.iterdir()} == {"invite", "directory"}


def test_a_clock_behind_the_certificate_is_said_to_be_wrong(tmp_path: Path) -> None:
    """Its receipts would bear dates at which nobody had certified it, and no node would believe them."""
    open_home(tmp_path / "state")
    with pytest.raises(RunError, match=r"clock is probably wrong: it shows 20\d\d-.* is valid from 20\d\d-"):
        open_home(tmp_path / "state", now_ms=NOW_MS - 2 * DAY_MS)
    open_home(tmp_path / "state", now_ms=NOW_MS - DAY_MS)


@pytest.mark.parametrize("is_gone", [True, False], ids=["gone", "another's"])
def test_a_learners_key_is_not_replaced_in_silence(tmp_path: Path, is_gone: bool) -> None:
    """Every invite names it. The certificate beside it remembers whose it was; a dry run refuses in the same words."""
    state = tmp_path / "state"
    first = open_home(state)
    (state / "learner.key").rename(tmp_path / "kept")
    if not is_gone:
        load_or_create_key(state / "learner.key")
    before = sorted(path.name for path in state.iterdir())
    with pytest.raises(
        UsageError, match=rf"learner\.key is .*{first.learner.peer_id}.*Restore.*move .*certificate"
    ) as said:
        open_home(state)
    with pytest.raises(UsageError) as looked:
        require_home(state, now_ms=NOW_MS)
    assert str(looked.value) == str(said.value)
    assert sorted(path.name for path in state.iterdir()) == before, "nothing was made"
    (tmp_path / "kept").replace(state / "learner.key")
    assert open_home(state).learner.peer_id == first.learner.peer_id


def test_another_operators_key_is_found_before_it_is_needed(tmp_path: Path) -> None:
    open_home(tmp_path / "state")
    open_home(tmp_path / "other")
    (tmp_path / "other" / "operator.key").replace(tmp_path / "state" / "operator.key")
    with pytest.raises(UsageError, match="not the key that founded this swarm"):
        open_home(tmp_path / "state")
    with pytest.raises(UsageError, match="not the key that founded this swarm"):
        require_home(tmp_path / "state", now_ms=NOW_MS)


@pytest.mark.parametrize("left", ["certificate", "lease.secret", "learner.key"])
def test_a_swarm_of_which_anything_is_left_is_not_founded_again(tmp_path: Path, left: str) -> None:
    state = tmp_path / "state"
    open_home(state)
    for path in list(state.iterdir()):
        if path.name != left:
            path.unlink()
    with pytest.raises(UsageError, match=r"genesis is missing.*Restore it from a copy"):
        open_home(state)
    assert {path.name for path in state.iterdir()} == {left, "lock"}
