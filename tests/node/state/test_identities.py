"""A node whose key or receipts are gone is refused with a sentence, before anything is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from node.runtime.errors import NodeError
from node.state.identities import require_node
from node.state.keys import load_key, load_or_create_key
from node.state.receipts import Receipts
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Receipt
from tests.support.trainer_fixture import NOW_MS


def receipt_of(peer: str) -> Receipt:
    return Receipt(
        lease=bytes(16),
        peer=PeerId(peer),
        version=PolicyVersion(1, 0),
        verdicts=[],
        issued_ms=NOW_MS,
        tokens=0,
        certificate=b"",
    )


def worked(root: Path) -> str:
    """Write what a node with one receipt leaves; return its peer id."""
    peer = load_or_create_key(root / "node.key").peer_id
    with closing(Receipts(root / "receipts.sqlite")) as receipts:
        receipts.add(receipt_of(peer), b"signed", engine_s=1.0)
    (root / "about.json").write_text("{}")
    return peer


def exchanged(root: Path) -> None:
    (root / "node.key").unlink()
    load_or_create_key(root / "node.key")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no key": (lambda root: (root / "node.key").unlink(), r"node\.key is missing.*receipts beside it.*Restore"),
    "another key": (exchanged, r"node\.key is .*receipts beside it.*Restore"),
    "no receipts": (lambda root: (root / "receipts.sqlite").unlink(), r"receipts\.sqlite is missing or empty"),
    "empty": (
        lambda root: (root / "receipts.sqlite").write_bytes(b""),
        r"receipts\.sqlite is missing or empty",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_a_node_was_is_not_replaced_in_silence(tmp_path: Path, name: str) -> None:
    worked(tmp_path)
    require_node(tmp_path)
    do, says = DAMAGES[name]
    do(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(NodeError, match=says):
        require_node(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_how_to_go_on_without_them(tmp_path: Path) -> None:
    """As the sentences say."""
    worked(tmp_path)
    (tmp_path / "node.key").unlink()
    (tmp_path / "receipts.sqlite").rename(tmp_path / "kept.sqlite")
    with pytest.raises(NodeError, match="about"):
        require_node(tmp_path)
    (tmp_path / "about.json").unlink()
    require_node(tmp_path)


def test_a_new_directory_and_one_without_receipts_pass(tmp_path: Path) -> None:
    require_node(tmp_path)
    load_or_create_key(tmp_path / "node.key")
    Receipts(tmp_path / "receipts.sqlite").close()
    require_node(tmp_path)
    assert load_key(tmp_path / "node.key")
