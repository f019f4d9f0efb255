"""Manifests: each rule of consistency broken once, and everything that may not sign or name one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import encode
from protocol.core.digest import cid_of, digest_of
from protocol.core.envelope import Kind, seal
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import Authority, certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion
from protocol.core.limits import MAX_CHUNK_BYTES, MAX_FILE_BYTES, MAX_FILES, MAX_PATCHES
from protocol.versions.manifest import (
    DTYPE_BYTES,
    ChunkRef,
    FileEntry,
    Manifest,
    PatchEntry,
    TensorEntry,
    is_safe_file_name,
    open_manifest,
    require_consistent,
    sign_manifest,
)

OPERATOR, LEARNER, STRANGER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000)

HEADER, WEIGHTS, CONFIG = b"h" * 8, b"w" * 100, b"{}"
CHUNKS = [ChunkRef(cid_of(data), len(data)) for data in (HEADER, WEIGHTS, CONFIG)]
GOOD = Manifest(
    version=PolicyVersion(1, 3),
    previous=b"\x8a" * 32,
    created_ms=1500,
    certificate=CERTIFICATE,
    files=[FileEntry("model.safetensors", 108, [0, 1]), FileEntry("config.json", 2, [2])],
    chunks=CHUNKS,
    tensors=[
        TensorEntry("embed", "F32", [4, 5], 0, 8, 88),
        TensorEntry("scale", "BF16", [10], 0, 88, 108),
        TensorEntry("nothing", "F32", [0, 7], 0, 108, 108),
        TensorEntry("step", "I64", [], 0, 8, 16),
    ],
)


def but(**changes: Any) -> Manifest:
    """The good manifest with some of its fields replaced."""
    return msgspec.structs.replace(GOOD, **changes)


def with_file(name: str, size: int, chunks: list[int]) -> Manifest:
    return but(files=[*GOOD.files, FileEntry(name, size, chunks)])


def with_tensor(*entry: Any) -> Manifest:
    return but(tensors=[*GOOD.tensors, TensorEntry("more", *entry)])


def with_patches(*patches: tuple[bytes, int, list[int]]) -> Manifest:
    return but(patches=[PatchEntry(*patch) for patch in patches])


def sealed(manifest: Manifest, signer: Keypair = LEARNER, authority: Authority = SWARM) -> bytes:
    return seal(signer, authority.swarm, Kind.MANIFEST, encode(manifest))


def fault_of(raw: bytes, now_ms: int | None = 1500) -> Fault:
    with pytest.raises(PeerError) as caught:
        open_manifest(raw, SWARM, now_ms=now_ms)
    return caught.value.fault


def test_a_good_manifest_is_read_as_signed() -> None:
    signed = sign_manifest(LEARNER, SWARM, GOOD)
    assert signed == open_manifest(signed.raw, SWARM, now_ms=1500)
    assert (signed.manifest, signed.version, signed.signer) == (GOOD, PolicyVersion(1, 3), LEARNER.peer_id)
    assert bytes(signed.hash) == digest_of(signed.raw)
    assert signed.manifest.total_bytes == 110
    assert signed.parameters == 31
    assert [chunk.name for chunk in signed.manifest.chunks] == [cid_of(HEADER), cid_of(WEIGHTS), cid_of(CONFIG)]


def test_a_manifest_may_offer_patches() -> None:
    manifest = with_patches((b"\x8a" * 32, 108, [0, 1]), (b"\x8b" * 32, 2, [2]))
    assert sign_manifest(LEARNER, SWARM, manifest).manifest == manifest
    assert manifest.total_bytes == GOOD.total_bytes


def test_a_manifest_without_patches_has_the_bytes_it_had_before_there_were_any() -> None:
    fields = msgspec.msgpack.decode(encode(GOOD))
    assert list(fields) == ["version", "previous", "created_ms", "certificate", "files", "chunks", "tensors"]
    assert encode(but(patches=[])) == encode(GOOD)


BROKEN: dict[str, tuple[Manifest, str]] = {
    "previous is half a hash": (but(previous=bytes(16)), "previous"),
    "chunk id of another codec": (
        but(chunks=[ChunkRef(b"\x01\x70" + CHUNKS[0].cid[2:], 8), *CHUNKS[1:]]),
        "content id",
    ),
    "chunk listed twice": (but(chunks=[*CHUNKS, CHUNKS[0]]), "listed twice"),
    "chunk listed with two sizes": (but(chunks=[*CHUNKS, ChunkRef(CHUNKS[0].cid, 9)]), "listed twice"),
    "file listed twice": (with_file("config.json", 2, [2]), "config.json is listed twice"),
    "files that differ in case only": (with_file("Config.json", 2, [2]), "Config.json is listed twice"),
    "file names an unlisted chunk": (with_file("more.json", 2, [3]), "not listed"),
    "file larger than its chunks": (with_file("more.json", 3, [2]), "add up"),
    "file smaller than its chunks": (with_file("more.json", 1, [2]), "add up"),
    "file without chunks but a size": (with_file("more.json", 2, []), "add up"),
    "patch names an unlisted chunk": (with_patches((b"\x8a" * 32, 2, [3])), "from 8a8a8a8a names a chunk"),
    "patch larger than its chunks": (with_patches((b"\x8a" * 32, 3, [2])), "from 8a8a8a8a do not add up"),
    "patch without chunks": (with_patches((b"\x8a" * 32, 1, [])), "do not add up"),
    "two patches from one base": (with_patches((b"\x8a" * 32, 2, [2]), (b"\x8a" * 32, 2, [2])), "two patches"),
    "tensor listed twice": (but(tensors=[*GOOD.tensors, GOOD.tensors[0]]), "embed is listed twice"),
    "tensor in an unlisted file": (with_tensor("U8", [8], 2, 0, 8), "outside its file"),
    "tensor beyond the end of its file": (with_tensor("U8", [9], 0, 100, 109), "outside its file"),
    "tensor that ends before it starts": (with_tensor("U8", [0], 0, 9, 8), "outside its file"),
    "unknown dtype": (with_tensor("F12", [8], 0, 0, 8), "unknown dtype"),
    "shape too small": (with_tensor("U8", [7], 0, 0, 8), "its shape needs 7"),
    "shape too large": (with_tensor("F32", [3], 0, 0, 8), "its shape needs 12"),
    "dtype of another size": (with_tensor("F16", [8], 0, 0, 8), "its shape needs 16"),
    "shape that overflows 64 bits": (with_tensor("U8", [1 << 39] * 8, 0, 0, 8), "its shape needs"),
}


@pytest.mark.parametrize(("manifest", "detail"), BROKEN.values(), ids=BROKEN.keys())
def test_an_inconsistent_manifest_is_malformed(manifest: Manifest, detail: str) -> None:
    with pytest.raises(PeerError, match=detail) as caught:
        require_consistent(manifest)
    assert caught.value.fault is Fault.MALFORMED
    assert fault_of(sealed(manifest)) is Fault.MALFORMED
    with pytest.raises(LocalProtocolError, match=detail):
        sign_manifest(LEARNER, SWARM, manifest)


OUT_OF_BOUNDS: dict[str, Manifest] = {
    "previous longer than a hash": but(previous=bytes(33)),
    "chunk of no bytes": but(chunks=[*CHUNKS, ChunkRef(cid_of(b""), 0)]),
    "chunk too large": but(chunks=[*CHUNKS, ChunkRef(cid_of(b"x"), MAX_CHUNK_BYTES + 1)]),
    "file too large": with_file("more.json", MAX_FILE_BYTES + 1, []),
    "file of negative size": with_file("more.json", -1, []),
    "file that names chunk -1": with_file("more.json", 2, [-1]),
    "too many files": but(files=[FileEntry(f"{n}.json", 0, []) for n in range(MAX_FILES + 1)]),
    "patch from half a hash": with_patches((bytes(16), 2, [2])),
    "patch of no bytes": with_patches((bytes(32), 0, [])),
    "patch that names chunk -1": with_patches((bytes(32), 2, [-1])),
    "too many patches": with_patches(*((n.to_bytes(32, "big"), 2, [2]) for n in range(MAX_PATCHES + 1))),
    "tensor of negative shape": with_tensor("U8", [-2, -4], 0, 0, 8),
    "tensor before its file": with_tensor("U8", [8], 0, -8, 0),
    "tensor of rank 9": with_tensor("U8", [1] * 9, 0, 0, 1),
    "version below zero": but(version=PolicyVersion(-1, 0)),
    "version beyond a double": but(version=PolicyVersion(1, 1 << 53)),
    "certificate too long": but(certificate=bytes(401)),
}


@pytest.mark.parametrize("manifest", OUT_OF_BOUNDS.values(), ids=OUT_OF_BOUNDS.keys())
def test_a_manifest_out_of_bounds_is_malformed(manifest: Manifest) -> None:
    assert fault_of(sealed(manifest)) is Fault.MALFORMED
    with pytest.raises(LocalProtocolError):
        sign_manifest(LEARNER, SWARM, manifest)


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "config.json",
        "generation_config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja", "merges.txt", "a..json",
        "0.txt",
    ],
)  # fmt: skip
def test_data_files_may_travel(name: str) -> None:
    assert is_safe_file_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "..", ".json", "../config.json", "..\\config.json", "/etc/config.json", "C:config.json", "a/b.json",
        "a\\b.json", ".hidden.json", "-rf.json", "_x.json", "~x.json", "modeling.py", "model.pkl", "pytorch_model.bin",
        "model.pt", "model.pth", "model.ckpt", "model.gguf", "run.sh", "config.json.py", "config.json ", " config.json",
        "config.json\n", "config\n.json", "con\0fig.json",
        "config.JSON", "config.jsön", "\uff43onfig.json", "safetensors",
        "config json", "x.json/", "%2e%2e%2fx.json", "x;y.json", "$x.json",
    ],
)  # fmt: skip
def test_code_paths_and_hidden_files_may_not(name: str) -> None:
    assert not is_safe_file_name(name)
    with pytest.raises(PeerError, match="not that of a data file"):
        require_consistent(with_file(name, 2, [2]))


@given(st.text(max_size=12), st.sampled_from(["", ".safetensors", ".json", ".jinja", ".txt", ".model", ".py"]))
def test_a_safe_name_stays_in_its_directory(stem: str, suffix: str) -> None:
    name = stem + suffix
    if is_safe_file_name(name):
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set("/\\: ~")
        assert name[0] not in ".-"
        assert suffix not in ("", ".py") or stem.endswith((".safetensors", ".json", ".jinja", ".txt", ".model"))


def test_a_certificate_is_judged_now_or_at_the_date_of_the_manifest() -> None:
    raw = sealed(GOOD)
    assert open_manifest(raw, SWARM, now_ms=None).manifest == GOOD
    for now_ms in (999, 2001):
        assert fault_of(raw, now_ms=now_ms) is Fault.UNAUTHORISED
    for created_ms in (999, 2001):
        assert fault_of(sealed(but(created_ms=created_ms)), now_ms=None) is Fault.UNAUTHORISED


def test_only_a_certified_learner_signs_manifests() -> None:
    assert fault_of(sealed(GOOD, signer=STRANGER)) is Fault.UNAUTHORISED
    assert fault_of(sealed(GOOD, signer=OPERATOR)) is Fault.UNAUTHORISED
    self_made = certify_learner(STRANGER, SWARM, learner=STRANGER.public, not_before_ms=0, not_after_ms=9999)
    assert fault_of(sealed(but(certificate=self_made), signer=STRANGER)) is Fault.UNAUTHORISED
    assert fault_of(sealed(but(certificate=b""))) is Fault.MALFORMED
    with pytest.raises(LocalProtocolError):
        sign_manifest(STRANGER, SWARM, GOOD)


def test_a_manifest_of_another_swarm_is_refused() -> None:
    _, other = found_swarm(OPERATOR, name="kites", created_ms=1, nonce=bytes(16))
    assert fault_of(sealed(GOOD, authority=other)) is Fault.WRONG_SWARM


def test_one_name_with_two_hashes_is_there_to_be_seen() -> None:
    """Equivocation: two validly signed manifests of one version. Opening either succeeds; their hashes tell."""
    one, two = sign_manifest(LEARNER, SWARM, GOOD), sign_manifest(LEARNER, SWARM, but(created_ms=1501))
    assert one.version == two.version
    assert one.hash != two.hash
    assert one.hash == sign_manifest(LEARNER, SWARM, GOOD).hash


def test_a_newer_writer_is_read_and_its_chain_holds() -> None:
    later: Callable[[list[Any]], list[Any]] = lambda entry: [*entry, "later"]  # noqa: E731
    fields = msgspec.msgpack.decode(encode(GOOD))
    fields |= {
        "relays": [{"base": [1, 2]}],
        "ext": {"probe": b"x"},
        "files": list(map(later, fields["files"])),
        "chunks": list(map(later, fields["chunks"])),
        "tensors": list(map(later, fields["tensors"])),
    }
    raw = seal(LEARNER, SWARM.swarm, Kind.MANIFEST, msgspec.msgpack.encode(fields))
    read = open_manifest(raw, SWARM, now_ms=1500)
    assert read.manifest == but(ext={"probe": b"x"})
    assert (read.raw, bytes(read.hash)) == (raw, digest_of(raw))


def test_dtype_sizes() -> None:
    for dtype, size in DTYPE_BYTES.items():
        digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
        assert size == (int(digits) // 8 if digits else 1)
