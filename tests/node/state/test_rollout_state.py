"""A rollout node's state directory: one process at a time, and each its own."""

from __future__ import annotations

import pwd
import stat
from pathlib import Path

import pytest

from node.runtime.errors import RunError, UsageError
from node.state import rollout_state as volunteer
from node.state.rollout_state import data_directory, keep_invite, open_volunteer_home
from protocol.core.digest import digest_of
from protocol.core.identity import Keypair
from protocol.core.ids import SwarmId
from protocol.core.invite import Invite, read_invite

SWARM, OTHER = SwarmId(digest_of(b"one")), SwarmId(digest_of(b"other"))


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOLERY_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def test_nodes_of_one_swarm_on_one_machine_keep_out_of_each_others_way(data: Path) -> None:
    first, second = open_volunteer_home(None, SWARM), open_volunteer_home(None, SWARM)
    elsewhere = open_volunteer_home(None, OTHER)
    base = data / SWARM.hex()[:16]
    assert (first.root, second.root) == (base / "node-1", base / "node-2")
    assert (first.others, second.others, elsewhere.others) == ((), ("node-1",), ())
    assert elsewhere.root == data / OTHER.hex()[:16] / "node-1"
    first.lock.close()
    again = open_volunteer_home(None, SWARM)
    assert again.root == first.root, "and find their own again"
    for home in (second, elsewhere, again):
        home.lock.close()


def test_a_directory_that_was_named_is_ours_or_nobodys(tmp_path: Path) -> None:
    home = open_volunteer_home(tmp_path / "mine", SWARM)
    assert home.key == tmp_path / "mine" / "node.key"
    with pytest.raises(RunError, match=r"used by another volery node.*--state"):
        open_volunteer_home(tmp_path / "mine", SWARM)
    home.lock.close()
    open_volunteer_home(tmp_path / "mine", SWARM).lock.close()


def test_when_all_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volunteer, "MAX_NODES", 2)
    homes = [open_volunteer_home(None, SWARM) for _ in range(2)]
    with pytest.raises(RunError, match=r"all 2 directories are in use. Name another with --state"):
        open_volunteer_home(None, SWARM)
    for home in homes:
        home.lock.close()


def test_a_learners_state_is_not_a_nodes(tmp_path: Path) -> None:
    (tmp_path / "learner.key").touch()
    with pytest.raises(UsageError, match=r"a learner's state.*--state"):
        open_volunteer_home(tmp_path, SWARM)
    assert [one.name for one in tmp_path.iterdir()] == ["learner.key"]


def test_a_state_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot be used: .*Name a writable directory with --state"):
        open_volunteer_home(tmp_path / "file", SWARM)


def test_a_lock_that_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(RunError, match=rf"^{tmp_path}/lock cannot be used: "):
        open_volunteer_home(tmp_path, SWARM)


def test_where_nodes_keep_their_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert data_directory() == tmp_path / "data"
    monkeypatch.delenv("VOLERY_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    assert data_directory() == tmp_path / "xdg" / "volery"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory() == tmp_path / ".local" / "share" / "volery"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that was given a user's number alone."""
    for name in ("VOLERY_HOME", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def unknown(number: int) -> None:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(UsageError, match="Set VOLERY_HOME to a directory"):
        data_directory()


def test_an_invite_is_kept_for_the_owner_alone(tmp_path: Path) -> None:
    operator = Keypair(b"\x01" * 32)
    address = f"/ip4/192.0.2.1/tcp/4001/p2p/{operator.peer_id}"
    invite = Invite(operator=operator.public, swarm=SWARM, addresses=[address], token="secret")
    for _ in range(2):  # a second start writes it again
        keep_invite(tmp_path, invite)
    kept = tmp_path / "invite"
    assert read_invite(kept.read_text(), now_ms=0) == invite
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [kept]
    with pytest.raises(RunError, match="cannot be written"):
        keep_invite(tmp_path / "absent", invite)
