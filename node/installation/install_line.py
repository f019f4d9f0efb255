"""Say which line adds an extra to this installation.

uv, uvx, pipx, pip, the installer and a checkout each want another line, and each leaves files that tell them apart:
uv's receipt, pipx's metadata, and the metadata of our own distribution (PEP 376 INSTALLER, PEP 610 direct_url.json).

Invariants:

- A line that replaces an environment names the extras that are in it as well, so that it removes nothing.
- A line can be typed as it stands, in any directory.
"""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import unquote, urlsplit

from learner.artifacts.text_files import parse_json

NAME = "volery"
INSTALLER_LABEL = "Installer"
"""The label of the address of install.sh among the addresses of our distribution. pyproject.toml has the address."""

BRING_TORCH = frozenset({"learner", "lora", "transformers"})
PICK_TORCH = "--torch-backend auto "
"""uv takes the build of torch that suits the machine, instead of 5 GB of CUDA where there is no such GPU."""

CPU_TORCH = "--extra-index-url https://download.pytorch.org/whl/cpu "
"""pip finds builds for CPUs there, and takes them before those of the usual index, which are for CUDA."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia")

UVX_FOLDERS = frozenset({"archive-v0", "environments-v2"})
"""Folders of uv's cache that hold the environments of uvx. They are gone when the cache is emptied."""


class Way(Enum):
    """How the program was installed."""

    INSTALLER = "install.sh"
    UV_TOOL = "uv tool"
    UVX = "uvx"
    PIPX = "pipx"
    CHECKOUT = "checkout"
    UV = "uv pip"
    PIP = "pip"


@dataclass(frozen=True, kw_only=True)
class Installation:
    """This installation.

    Args:
        python: its interpreter.
        prefix: the directory of its environment.
        source: address of the wheel that it was made from, or of the checkout; "" if it came from an index.
        extras: the extras that it was made with, as far as that is recorded.
        installer: address of install.sh.
        typed: the arguments of this start, which uvx is given again.
    """

    way: Way
    python: Path
    prefix: Path
    source: str = ""
    extras: frozenset[str] = frozenset()
    installer: str = ""
    typed: tuple[str, ...] = ()


def look(python: Path | None = None, prefix: Path | None = None) -> Installation:
    """Return this installation, read from the files that its maker left."""
    prefix = prefix or Path(sys.prefix)
    python = python or Path(sys.executable)
    try:
        ours = distribution(NAME)
    except PackageNotFoundError:  # the packages were put on the path by hand
        return Installation(way=Way.PIP, python=python, prefix=prefix)
    direct = _json(ours.read_text("direct_url.json"))
    source = str(direct.get("url", ""))
    installer = _address_of_installer(ours)
    if isinstance(directory := direct.get("dir_info"), dict) and directory.get("editable"):
        return Installation(way=Way.CHECKOUT, python=python, prefix=prefix, source=source, installer=installer)
    way, extras = _way(ours, prefix)
    return Installation(
        way=way, python=python, prefix=prefix, source=source, extras=extras, installer=installer,
        typed=tuple(sys.argv[1:]),
    )  # fmt: skip


def _address_of_installer(ours: Distribution) -> str:
    labelled = (line.partition(",") for line in ours.metadata.get_all("Project-URL") or ())
    return next((address.strip() for label, _, address in labelled if label == INSTALLER_LABEL), "")


def _way(ours: Distribution, prefix: Path) -> tuple[Way, frozenset[str]]:
    if (prefix / "uv-receipt.toml").is_file():
        return _by_receipt(prefix / "uv-receipt.toml")
    if (prefix / "pipx_metadata.json").is_file():
        return Way.PIPX, frozenset()
    if UVX_FOLDERS & set(prefix.parts):
        return Way.UVX, frozenset()
    return (Way.UV if (ours.read_text("INSTALLER") or "").strip() == "uv" else Way.PIP), frozenset()


def _by_receipt(path: Path) -> tuple[Way, frozenset[str]]:
    """Read uv's receipt: its extras, and whether install.sh asked for it, which overrides a requirement of libp2p."""
    try:
        tool: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]
        (wanted,) = [one for one in tool["requirements"] if one["name"] == NAME]
    except (OSError, ValueError, KeyError, TypeError):
        return Way.UV_TOOL, frozenset()
    way = Way.INSTALLER if tool.get("overrides") else Way.UV_TOOL
    return way, frozenset(map(str, wanted.get("extras", ())))


def _json(text: str | None) -> dict[str, Any]:
    try:
        told = parse_json((text or "{}").encode())
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def requirement(extras: Iterable[str], source: str = "") -> str:
    """Return what the installers call the program with `extras`, from an index or from the wheel at `source`."""
    named = f"{NAME}[{','.join(sorted(extras))}]"
    return f"{named} @ {source}" if source else named


def line_for(extra: str, made: Installation) -> str:
    """Return the line that adds `extra` to the installation."""
    everything = made.extras | {extra}
    quoted = shlex.quote(requirement({extra}, made.source))
    python = shlex.quote(str(made.python))
    picks = extra in BRING_TORCH and sys.platform == "linux"
    pick = PICK_TORCH if picks else ""
    index = CPU_TORCH if picks and not (NVIDIA_DRIVER.exists() or which("nvidia-smi")) else ""
    match made.way:
        case Way.INSTALLER:
            return _line_of_installer(made, " ".join(sorted(everything)))
        case Way.UV_TOOL:
            return f"uv tool install {pick}{shlex.quote(requirement(everything, made.source))}"
        case Way.UVX:
            wanted = shlex.quote(requirement(everything, made.source))
            return f"uvx {pick}--from {wanted} {shlex.join((NAME, *made.typed))}"
        case Way.PIPX:
            return f"pipx runpip {NAME} install {index}{quoted}"
        case Way.CHECKOUT:
            script = _directory(made.source) / "tools" / "bootstrap.sh"
            return f"sh {shlex.quote(str(script))} {shlex.quote(str(made.prefix))} {extra}"
        case Way.UV:
            return f"uv pip install {pick}--python {python} {quoted}"
        case Way.PIP:
            return f"{python} -m pip install {index}{quoted}"


def _line_of_installer(made: Installation, extras: str) -> str:
    checkout = _directory(made.source)
    if made.source and (checkout / "install.sh").is_file():
        return f"VOLERY_FROM={shlex.quote(f'{checkout}/')} sh {shlex.quote(f'{checkout}/install.sh')} {extras}"
    source = f"VOLERY_FROM={shlex.quote(made.source)} " if made.source else ""
    return f"curl -LsSf {made.installer} | {source}sh -s -- {extras}"


def _directory(address: str) -> Path:
    return Path(unquote(urlsplit(address).path))
