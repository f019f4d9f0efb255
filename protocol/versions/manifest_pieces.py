"""Cut a manifest's envelope into pieces, one for each answer, and put the pieces from one peer together again.

All pieces come from one peer. So if their bytes do not have the hash that was asked for, that peer lied.

Invariants:

- An envelope of up to one piece travels whole, in one answer.
- Every piece of a larger envelope but the last has exactly MANIFEST_PIECE_BYTES. So no peer can make us ask more often
  than the size requires.
- The size of the whole is checked before a second piece is requested.
- The memory in use is never more than the bytes received, nor more than the bound.
"""

from __future__ import annotations

from protocol.core.digest import digest_of
from protocol.core.envelope import OVERHEAD_BYTES
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import ManifestHash
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_MANIFEST_BYTES
from protocol.versions.exchange import AskManifest, NotHeld, TellManifest

MAX_ENVELOPE_BYTES = MAX_MANIFEST_BYTES + OVERHEAD_BYTES
"""Size of the envelope of a manifest with the largest payload."""


def manifest_piece(raw: bytes, offset: int, piece_bytes: int = MANIFEST_PIECE_BYTES) -> TellManifest | NotHeld:
    """Return the answer to a request for the envelope `raw` from byte `offset` on."""
    if offset >= len(raw):
        return NotHeld()
    if len(raw) <= piece_bytes and not offset:
        return TellManifest(manifest=raw)
    return TellManifest(manifest=raw[offset : offset + piece_bytes], total=len(raw))


class ManifestPieces:
    """A manifest that arrives from one peer in pieces.

    Send `question` and `take` the answer until `question` is None; then call `whole`.

    Args:
        manifest: hash of the requested manifest.
        size_bytes: announced size of its envelope in bytes. A peer that states more than one piece must state this
            size.
        piece_bytes: size of a piece in bytes, the same at both ends.
    """

    def __init__(
        self, manifest: ManifestHash, *, size_bytes: int | None = None, piece_bytes: int = MANIFEST_PIECE_BYTES
    ) -> None:
        self._manifest = manifest
        self._announced = size_bytes
        self._piece_bytes = piece_bytes
        self._pieces: list[bytes] = []
        self._total: int | None = None
        self.held_bytes = 0

    @property
    def question(self) -> AskManifest | None:
        """The next question; None if all pieces are here."""
        if self.held_bytes == self._total:
            return None
        return AskManifest(manifest=self._manifest, offset=self.held_bytes)

    def take(self, answer: TellManifest) -> None:
        """Add the answer to `question`. After a PeerError the caller must not ask this peer for more."""
        total = answer.total or len(answer.manifest)
        if self._total is None:
            self._total = self._believable(total)
        elif answer.total != self._total:
            raise _broken(f"first said that the manifest has {self._total} bytes, and now {total}")
        due = min(self._piece_bytes, self._total - self.held_bytes)
        if len(answer.manifest) != due or not due:
            raise _broken(f"sent {len(answer.manifest)} bytes of a manifest instead of {due} from {self.held_bytes} on")
        self._pieces.append(answer.manifest)
        self.held_bytes += due

    def whole(self) -> bytes:
        """Return the envelope, which has the requested hash.

        Raises PeerError if it has another hash, and LocalProtocolError if pieces are missing.
        """
        if self.held_bytes != self._total:
            raise LocalProtocolError(f"only {self.held_bytes} of {self._total} bytes of a manifest are here")
        raw = b"".join(self._pieces)
        if ManifestHash(digest_of(raw)) != self._manifest:
            raise _broken("answered with another manifest than the one asked for")
        return raw

    def _believable(self, total: int) -> int:
        if total > MAX_ENVELOPE_BYTES:
            raise PeerError(Fault.OVERSIZED, f"a manifest of {total} bytes, at most {MAX_ENVELOPE_BYTES} allowed")
        if total > self._piece_bytes and self._announced not in (None, total):
            raise _broken(f"says that the manifest has {total} bytes, but {self._announced} were announced")
        return total


def _broken(detail: str) -> PeerError:
    return PeerError(Fault.BROKEN_PROMISE, detail)
