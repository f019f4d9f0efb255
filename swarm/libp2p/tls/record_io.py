"""Move TLS records through OpenSSL, many in one call, without pyOpenSSL's objects and copies for each record.

A fast stream has 160,000 records a second, and a slow one brings only a few records at a time. Either way, a third of
what a node did was around OpenSSL and not in it. So this module calls the OpenSSL that pyOpenSSL calls, by pyOpenSSL's
private names (`_ssl`, `_into_ssl`, `_from_ssl`, `_util`). It is the only file that does, and it is safe because
pyOpenSSL's version is pinned.

Invariants:

- Only plain data is moved here. Everything else that OpenSSL reports is left for pyOpenSSL to ask for again, so
  exceptions and alerts have one source.
"""

from __future__ import annotations

from OpenSSL import SSL
from OpenSSL._util import ffi, lib, no_zero_allocator

RECORD_BYTES = 16 * 1024
"""Bytes of plaintext in one record, at most."""

MAX_RECORDS = 32
"""Records decrypted at once: twice what a read of a socket brings."""

WRITE_BYTES = 512 * 1024
"""Bytes encrypted at once. This bounds what waits in memory beside the plaintext, however much is written."""

FLUSH_BYTES = WRITE_BYTES + WRITE_BYTES // 512 + 64 * 1024
"""Bytes of that plaintext when encrypted, at 22 bytes a record, with OpenSSL's own answers to changes of keys."""


class Scratch:
    """Hold bytes on their way through OpenSSL, in memory that all connections of one thread share.

    Its contents last until the next call.
    """

    def __init__(self) -> None:
        self._plain = no_zero_allocator("char[]", MAX_RECORDS * RECORD_BYTES)
        self._secret = no_zero_allocator("char[]", FLUSH_BYTES)
        self.secret = memoryview(ffi.buffer(self._secret))
        """Memory to read from a socket into; see `take_in`."""

    def take_in(self, tls: SSL.Connection, size: int) -> None:
        """Pass the first `size` bytes of `secret` to OpenSSL."""
        taken = lib.BIO_write(tls._into_ssl, self._secret, size)
        if taken != size:
            tls.bio_write(self.secret[max(taken, 0) : size])

    def read_records(self, tls: SSL.Connection, num_wanted: int) -> tuple[bytes, int]:
        """Return the plaintext of the next records, and their number: less than wanted when one is not data.

        `num_wanted` is MAX_RECORDS at most; 0 reads nothing.
        """
        plain, ssl, read = self._plain, tls._ssl, lib.SSL_read
        size = num_records = 0
        while num_records < num_wanted:
            taken = read(ssl, plain + size, RECORD_BYTES)
            if taken <= 0:
                break
            size += taken
            num_records += 1
        return ffi.buffer(plain, size)[:], num_records

    def encrypt(self, tls: SSL.Connection, data: bytes | memoryview) -> memoryview:
        """Return `data`, at most WRITE_BYTES, as records, behind what waited to be sent. Raises SSL.Error."""
        if lib.SSL_write(tls._ssl, ffi.from_buffer(data), len(data)) != len(data):
            tls.sendall(data)
        return self.take_out(tls)

    def take_out(self, tls: SSL.Connection) -> memoryview:
        """Return what OpenSSL has ready to send, at most FLUSH_BYTES."""
        return self.secret[: max(0, lib.BIO_read(tls._from_ssl, self._secret, FLUSH_BYTES))]
