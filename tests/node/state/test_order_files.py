"""Files of orders: whole, in their order, bounded; damaged and huge ones, and those that another user may not touch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.runtime.errors import RunError
from node.state.order_files import FOLDER, MAX_ORDER_BYTES, MAX_WAITING, NoOrder, given_ns, process_began_ns
from node.state.owner_orders import Limit, LimitOrders, read_limit

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Do something as a user who owns nothing."""
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_orders_come_back_whole_and_in_their_order(tmp_path: Path) -> None:
    orders = LimitOrders(tmp_path)
    assert orders.waiting() == []
    given = [Limit(key="hours", value="19:00-20:00", by="me"), Limit(key="upload_mbit", value=10.0), Limit(key="x")]
    for order in given:
        orders.give(order)
    waiting = orders.waiting()
    assert [read_limit(path) for path in waiting] == given
    times = [given_ns(path) for path in waiting]
    assert all(at is not None and at > process_began_ns() for at in times)
    assert (tmp_path / FOLDER).stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [path.name for path in waiting]


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b"{}", b"\xff\xfe", b"[" * 9000, b'{"order": "limit"}', b'{"order": "ban", "key": "hours"}',
        b'{"order": "limit", "key": 3}', b'{"order": "limit", "key": "hours", "value": []}',
        b'{"order": "limit", "key": "hours", "value": true}', b'{"order": "limit", "key": "upload_mbit", "value": NaN}',
        b'{"order": "limit", "key": "hours", "surplus": 1}', b'{"order": "limit", "key": "' + b"x" * 33 + b'"}',
        b'{"order": "limit", "key": "hours", "value": "' + b"1" * 257 + b'"}',
        b'{"order": "limit", "key": "hours"}' + b" " * MAX_ORDER_BYTES,
    ],
)  # fmt: skip
def test_a_file_that_is_no_order_is_named_and_left(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "1.json"
    path.write_bytes(text)
    with pytest.raises(NoOrder, match=r"1\.json is no order and was left where it is \(.*\)\. Remove it\."):
        read_limit(path)
    assert path.read_bytes() == text


@pytest.mark.parametrize("kind", ["directory", "pipe", "link to itself", "device"])
def test_what_is_no_file_is_no_order_and_nobody_waits_for_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "1.json"
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link to itself":
            path.symlink_to(path)
        case _:
            path.symlink_to("/dev/zero")
    with pytest.raises(NoOrder, match="is no order"):
        read_limit(path)


def test_only_so_many_are_read_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for number in range(MAX_WAITING + 5):
        (folder / f"{number:020}-x.json").touch()
    (folder / ".draft").touch()
    assert [given_ns(path) for path in LimitOrders(tmp_path).waiting()] == list(range(MAX_WAITING))


def test_a_name_that_does_not_say_when_is_allowed() -> None:
    for name in ("x.json", "-1.json", "١٢-x.json"):
        assert given_ns(Path(name)) is None


def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / FOLDER).touch()
    with pytest.raises(NoOrder, match=r"orders cannot be read: Not a directory\. Check who owns it\."):
        LimitOrders(tmp_path).waiting()
    with pytest.raises(RunError, match=r"orders cannot be written: "):
        LimitOrders(tmp_path).give(Limit(key="hours"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_another_user_gives_no_orders_and_reads_none(tmp_path: Path) -> None:
    for place in (tmp_path, *tmp_path.parents[:2]):
        place.chmod(0o755)
    orders = LimitOrders(tmp_path)
    with as_nobody(), pytest.raises(RunError, match=r"cannot be written: Permission denied\. Check who owns it"):
        orders.give(Limit(key="hours"))
    assert orders.waiting() == []
    orders.give(Limit(key="hours", value=""))
    [path] = orders.waiting()
    with as_nobody():
        with pytest.raises(NoOrder, match="orders cannot be read: Permission denied"):
            orders.waiting()
        with pytest.raises(NoOrder, match="Permission denied"):
            read_limit(path)
