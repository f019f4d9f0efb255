"""Make an environment whose packages come before those of the Python that runs this, from archives.

    python3 -m tools.gpu.environment FOLDER volery.tar.xz
    FOLDER/bin/python -m tools.gpu.environment OTHER vllm.tar.zst vllm-library.zst

The first needs only the standard library; an archive of zstd needs zstandard, which is among Volery's packages. Engine
workers start with `python -I`, which ignores PYTHONPATH but accepts an environment of its own.
"""

from __future__ import annotations

import importlib.util
import sys
import tarfile
import time
from pathlib import Path
from typing import IO

LIBRARY = "vllm/_C_stable_libtorch.abi3.so"
"""vLLM's largest file, which has its own bundle: together the two archives would be too large for one."""

WINDOW_BYTES = 1 << 27
"""The window of `zstd --long=27`; readers must know it."""


def main() -> None:
    began, root = time.time(), Path(sys.argv[1]).absolute()
    packages = make(root)
    for name in sys.argv[2:]:
        unpack(Path(name), packages)
    print(f"environment {root}: {time.time() - began:.1f} s")


def make(root: Path) -> Path:
    """Write bin/python, pyvenv.cfg, and a .pth file that names the packages behind; return the folder of packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = root / "lib" / version / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (root / "bin").mkdir(exist_ok=True)
    torch = importlib.util.find_spec("torch")
    if torch is None or torch.origin is None:
        sys.exit(f"{sys.executable} has no torch, which the bundles leave out. Run this with a Python that has it.")
    behind = Path(torch.origin).parent.parent
    real = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    for name in ("python", "python3", version):
        link = root / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(real)
    (root / "pyvenv.cfg").write_text(
        f"home = {real.parent}\ninclude-system-site-packages = false\nversion = {sys.version.split()[0]}\n"
    )
    (packages / "zz_base.pth").write_text(f"import site; site.addsitedir({str(behind)!r})\n")
    return packages


def unpack(archive: Path, packages: Path) -> None:
    """Add an archive's contents to the packages."""
    if archive.suffixes[-2:] == [".tar", ".xz"]:
        with tarfile.open(archive) as tar:
            tar.extractall(packages, filter="fully_trusted")
    elif archive.suffixes[-2:] == [".tar", ".zst"]:
        with opened(archive) as source, tarfile.open(fileobj=source, mode="r|") as tar:
            tar.extractall(packages, filter="fully_trusted")
    else:
        with opened(archive) as source, (packages / LIBRARY).open("wb") as out:
            while data := source.read(1 << 22):
                out.write(data)


def opened(archive: Path) -> IO[bytes]:
    """Return the contents of an archive of zstd."""
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).stream_reader(archive.open("rb"), closefd=True)


if __name__ == "__main__":
    main()
