"""Several TLS records decrypted in one go: `Connection.recv` without an object and two copies for each of them.

A fast stream is 160,000 records a second, and a receiver spent a third of its time on what pyOpenSSL does around each.
So this calls the OpenSSL that pyOpenSSL calls, by names that pyOpenSSL keeps to itself (`_ssl`, `_util`): the only file
that does, and sound because its version is pinned. What always holds: only plain data is taken here; whatever else
OpenSSL has to say is left for pyOpenSSL to ask again, so exceptions and alerts have one source.
"""

from __future__ import annotations

from OpenSSL import SSL
from OpenSSL._util import ffi, lib, no_zero_allocator

RECORD_BYTES = 16 * 1024
"""Plaintext of one record, at most."""

MAX_RECORDS = 32
"""At once: twice what a read of a socket brings. Whoever sends tiny ones must not make us set aside 16 KiB for each."""


def read_records(tls: SSL.Connection, num_wanted: int) -> tuple[bytes, int]:
    """Return the plaintext of the next records, and how many they were: fewer than wanted when one is not data.

    `num_wanted` is MAX_RECORDS at most; 0 reads nothing.
    """
    buffer = no_zero_allocator("char[]", num_wanted * RECORD_BYTES)
    size = num_records = 0
    while num_records < num_wanted:
        taken = lib.SSL_read(tls._ssl, buffer + size, RECORD_BYTES)
        if taken <= 0:
            break
        size += taken
        num_records += 1
    return ffi.buffer(buffer, size)[:], num_records
