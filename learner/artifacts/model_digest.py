"""Name a model by its contents, so that two machines can tell that they hold the same one.

Invariants:

- Equal digests mean equal weights and an equal config.json, to the byte.
- Other files, such as a tokenizer's, do not count.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from learner.artifacts.chunk_names import num_threads
from learner.artifacts.regular_file import open_file

READ_BYTES = 1024 * 1024


def model_digest(directory: Path) -> bytes:
    """Return 32 bytes: SHA-256 over config.json and all *.safetensors in order of their names, each as its name, a
    newline, and the SHA-256 of its contents. Reads all of them, on all cores. Raises OSError."""
    files = [directory / "config.json", *sorted(directory.glob("*.safetensors"))]
    with ThreadPoolExecutor(num_threads()) as threads:
        digests = list(threads.map(_digest_of, files))
    whole = sha256()
    for file, digest in zip(files, digests, strict=True):
        whole.update(file.name.encode() + b"\n" + digest)
    return whole.digest()


def _digest_of(file: Path) -> bytes:
    digest = sha256()
    with open_file(file) as opened:
        while some := opened.read(READ_BYTES):
            digest.update(some)
    return digest.digest()
