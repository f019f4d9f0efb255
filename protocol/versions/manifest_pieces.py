"""A manifest's envelope in pieces: what one answer carries, and putting the pieces of one peer together again.

What always holds: an envelope of up to one piece travels whole, in one answer; of a larger one every piece but the last
has exactly MANIFEST_PIECE_BYTES, so nobody can make us ask more often than its size explains; how large the whole may
be is judged before a second piece is asked for; what is held is never more than what has come, nor more than the
bound; and since all pieces come from one peer, bytes that have another hash than was asked for are that peer's lie.
"""

from __future__ import annotations

from protocol.core.digest import digest_of
from protocol.core.envelope import OVERHEAD_BYTES
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import ManifestHash
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_MANIFEST_BYTES
from protocol.versions.exchange import AskManifest, NotHeld, TellManifest

MAX_ENVELOPE_BYTES = MAX_MANIFEST_BYTES + OVERHEAD_BYTES
"""Of a manifest with the largest payload."""


def manifest_piece(raw: bytes, offset: int, piece_bytes: int = MANIFEST_PIECE_BYTES) -> TellManifest | NotHeld:
    """The answer to who asks for the envelope `raw` from byte `offset` on."""
    if offset >= len(raw):
        return NotHeld()
    if len(raw) <= piece_bytes and not offset:
        return TellManifest(manifest=raw)
    return TellManifest(manifest=raw[offset : offset + piece_bytes], total=len(raw))


class ManifestPieces:
    """One manifest on its way from one peer: ask `question`, `take` the answer, until there is none; then `whole`.

    Args:
        manifest: the hash that was asked for.
        size_bytes: of its envelope, as it was announced; a peer that promises more than one piece must promise this.
        piece_bytes: what a piece has, at both ends.
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
        """What to ask next; None when all is here."""
        if self.held_bytes == self._total:
            return None
        return AskManifest(manifest=self._manifest, offset=self.held_bytes)

    def take(self, answer: TellManifest) -> None:
        """Take in the answer to `question`. Raises PeerError, and then this peer is asked no further."""
        total = answer.total or len(answer.manifest)
        if self._total is None:
            self._total = self._believable(total)
        elif answer.total != self._total:
            raise _broken(f"says now that the manifest has {total} bytes, after {self._total}")
        due = min(self._piece_bytes, self._total - self.held_bytes)
        if len(answer.manifest) != due or not due:
            raise _broken(f"sent {len(answer.manifest)} bytes of a manifest instead of {due} from {self.held_bytes} on")
        self._pieces.append(answer.manifest)
        self.held_bytes += due

    def whole(self) -> bytes:
        """The envelope, which has the hash that was asked for. Raises PeerError; LocalProtocolError before its end."""
        if self.held_bytes != self._total:
            raise LocalProtocolError(f"{self.held_bytes} of {self._total} bytes of a manifest are here")
        raw = b"".join(self._pieces)
        if ManifestHash(digest_of(raw)) != self._manifest:
            raise _broken("answered with another manifest than the one asked for")
        return raw

    def _believable(self, total: int) -> int:
        if total > MAX_ENVELOPE_BYTES:
            raise PeerError(Fault.OVERSIZED, f"a manifest of {total} bytes, at most {MAX_ENVELOPE_BYTES} allowed")
        if total > self._piece_bytes and self._announced not in (None, total):
            raise _broken(f"says that the manifest has {total} bytes, and {self._announced} were announced")
        return total


def _broken(detail: str) -> PeerError:
    return PeerError(Fault.BROKEN_PROMISE, detail)
