"""Check that a state directory still has the keys that it worked with.

A key that is gone is never replaced in silence. Invites name the learner's key, and receipts the node's: people who
have either would look for the fault in a firewall. A signed file beside each key remembers whose it was, and cannot be
wrong about that.

    learner.key     its certificate names it        operator.key   the genesis names it
    lease.secret    the ledger has a mark of it
    node.key        its receipts name it            receipts.sqlite   `about.json` is written once there is one

Invariants:

- A start and its `--dry-run` refuse with the same message, before anything is created.
- Each refusal says how to restore what was, and how to continue without it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from learner.ledger.ledger import Ledger
from node.runtime.errors import RunError, UsageError, as_run_error
from node.state.about import ABOUT_FILE
from node.state.keys import load_key
from node.state.receipt_queries import ReceiptQueries, ReceiptsError
from protocol.core.identity import Keypair, peer_id_of
from protocol.core.ids import PublicKey


def require_learner(path: Path, learner: Keypair | None, certified: PublicKey) -> None:
    """Raise UsageError if the learner's key at `path` is missing (None), or is not the one that the certificate beside
    it names."""
    if learner is not None and learner.public == certified:
        return
    was, certificate = peer_id_of(certified), path.with_name("certificate")
    found = "is missing" if learner is None else f"is {learner.peer_id}'s"
    raise UsageError(
        f"{path} {found}, and {certificate} is for {was}, whom every invite names. Restore {path.name} from a copy. If "
        f"that is lost, or was meant to change: move {certificate} away as well, start with operator.key there, and "
        "send out the new invite; the old ones no longer work."
    )


def changes_since(ledger: Ledger, learner: Keypair, secret: bytes) -> Iterator[str]:
    """Yield a message for each key that is not the same as at the last start, which is allowed."""
    before = ledger.training.marked("learner", learner.peer_id.encode())
    if before not in (None, learner.peer_id.encode()):
        yield (
            f"This learner is {learner.peer_id} now, and was {(before or b'').decode(errors='replace')}. Send out the "
            "new invite; the old ones no longer work."
        )
    mark = hmac.digest(secret, b"which secret this is", "sha256")
    if ledger.training.marked("secret", mark) not in (None, mark):
        yield (
            "lease.secret is not the same as before. Open leases keep their seeds, and no audit of them changes; the "
            "new secret decides which groups are audited from now on. Restore the old one only if this one was "
            "not meant."
        )


def require_node(root: Path) -> None:
    """Raise UsageError or RunError for a node's state whose key or receipts are gone, though it has worked. Create
    nothing."""
    key, receipts_file, about = root / "node.key", root / "receipts.sqlite", root / ABOUT_FILE
    if not receipts_file.exists() or (
        receipts_file.is_file() and receipts_file.stat().st_size == 0
    ):  # SQLite would use an empty file as new
        if about.exists():
            raise RunError(
                f"{receipts_file} is missing or empty, and {about} shows that this node has worked: its receipts are "
                f"gone. Restore {receipts_file.name} from a copy. If there is none, move {about.name} away as well: "
                "the node then begins a new file, and what the learner counted stays counted there."
            )
        return
    known = key.exists() or key.is_symlink()
    own = load_key(key).peer_id if known else None
    with as_run_error(ReceiptsError), closing(ReceiptQueries(receipts_file)) as receipts:
        named = receipts.peers()
    if named and own not in named:
        found = "is missing" if own is None else f"is {own}'s"
        raise UsageError(
            f"{key} {found}, and the receipts beside it are {named[0]}'s. Restore {key.name} from a copy: with another "
            f"key this node is a newcomer. If that is what you want, move receipts.sqlite and {ABOUT_FILE} away as "
            "well, and keep them: they are what is left of that peer's work."
        )
