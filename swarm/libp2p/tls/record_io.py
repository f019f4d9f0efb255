"""TLS records through OpenSSL, many in one go: what pyOpenSSL does for each of them, without its objects and copies.

A fast stream is 160,000 records a second, and on a slow one a few records at a time are all that comes; either way, a
third of what a node did was around OpenSSL and not in it. So this calls the OpenSSL that pyOpenSSL calls, by names that
pyOpenSSL keeps to itself (`_ssl`, `_into_ssl`, `_from_ssl`, `_util`): the only file that does, and sound because its
version is pinned. What always holds: only plain data is moved here; whatever else OpenSSL has to say is left for
pyOpenSSL to ask again, so exceptions and alerts have one source.
"""

from __future__ import annotations

from OpenSSL import SSL
from OpenSSL._util import ffi, lib, no_zero_allocator

RECORD_BYTES = 16 * 1024
"""Plaintext of one record, at most."""

MAX_RECORDS = 32
"""At once: twice what a read of a socket brings."""

WRITE_BYTES = 512 * 1024
"""Encrypted at once: what waits in memory beside the plaintext, however much is written."""

FLUSH_BYTES = WRITE_BYTES + WRITE_BYTES // 512 + 64 * 1024
"""The same encrypted, at 22 bytes a record, with OpenSSL's own answers to changes of keys."""


class Scratch:
    """Memory for bytes on their way through OpenSSL, used again for all connections of one thread.

    What is in it lasts until the next call.
    """

    def __init__(self) -> None:
        self._plain = no_zero_allocator("char[]", MAX_RECORDS * RECORD_BYTES)
        self._secret = no_zero_allocator("char[]", FLUSH_BYTES)
        self.secret = memoryview(ffi.buffer(self._secret))
        """To read from a socket into; see `take_in`."""

    def take_in(self, tls: SSL.Connection, size: int) -> None:
        """Hand the first `size` bytes of `secret` to OpenSSL."""
        taken = lib.BIO_write(tls._into_ssl, self._secret, size)
        if taken != size:
            tls.bio_write(self.secret[max(taken, 0) : size])

    def read_records(self, tls: SSL.Connection, num_wanted: int) -> tuple[bytes, int]:
        """Return the plaintext of the next records, and how many they were: fewer than wanted when one is not data.

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
        """Return `data`, WRITE_BYTES of it at most, as records, behind what waited to be sent. Raises SSL.Error."""
        if lib.SSL_write(tls._ssl, ffi.from_buffer(data), len(data)) != len(data):
            tls.sendall(data)
        return self.take_out(tls)

    def take_out(self, tls: SSL.Connection) -> memoryview:
        """Return what OpenSSL has ready to be sent, FLUSH_BYTES of it at most."""
        return self.secret[: max(0, lib.BIO_read(tls._from_ssl, self._secret, FLUSH_BYTES))]
