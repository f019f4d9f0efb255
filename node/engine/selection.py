"""Select the engine that a node uses, say why, and list the engines for `volery engines`.

Pure except `look`.

Invariants:

- A choice names an engine that is available here.
- Every choice has a reason, which the person who starts a node sees.
- Where no engine is installed, the error has the line that installs one.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from node.config.node_config import EngineSection
from node.engine.vllm_install import VllmEnvironment, has_gpu, has_vllm, read_installed
from node.installation.extras import line_of_extra
from node.runtime.errors import UsageError
from node.runtime.user_paths import as_path
from protocol.versions.formats import FP8, INT4, INT8

INSTALL = "volery engines install vllm"
EXTRA = "transformers"
"""The extra of our distribution that brings the engine on transformers."""


@dataclass(frozen=True, kw_only=True)
class Here:
    """The state of this machine: an NVIDIA GPU, transformers in the node's environment, an environment with vLLM.

    add_transformers: the line that adds transformers to the node's environment.
    """

    gpu: bool
    transformers: bool
    vllm: VllmEnvironment | None
    add_transformers: str = ""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The section with its final `kind` and `python`, and the reason, as a clause."""

    section: EngineSection
    why: str


def look(section: EngineSection) -> Here:
    """Return what is available for `section`. An environment that it names takes precedence over the installed one."""
    transformers = all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
    if section.python:
        named = as_path(section.python)
        vllm = VllmEnvironment(python=named, build=None) if has_vllm(named) else None
    else:
        vllm = read_installed()
    add = "" if transformers else line_of_extra(EXTRA)
    return Here(gpu=has_gpu(), transformers=transformers, vllm=vllm, add_transformers=add)


def choose_engine(section: EngineSection, here: Here) -> Choice:
    """Return the engine for `section`. Raises UsageError if the engine that it asks for is not available."""
    if section.kind == "auto":
        return _chosen_for_them(section, here)
    if section.kind == "transformers":
        return _with_transformers(section, here, why='[engine] kind = "transformers"')
    if section.kind != "vllm":
        return Choice(section=section, why=f'[engine] kind = "{section.kind}"')
    return Choice(section=_with_vllm(section, here), why='[engine] kind = "vllm"')


def _chosen_for_them(section: EngineSection, here: Here) -> Choice:
    if section.quantization in (INT8, INT4):
        return _with_transformers(
            section, here, why=f'only it supports [engine] quantization = "{section.quantization}"'
        )
    wants_gpu = section.device == "auto" or section.device.startswith("cuda")
    if here.vllm is not None and here.gpu and wants_gpu and here.vllm.build != "cpu":
        return Choice(section=_with_vllm(section, here), why="there is a GPU, and vLLM is installed")
    if here.vllm is not None and not here.transformers and not section.python:
        return Choice(section=_with_vllm(section, here), why="vLLM is installed, and transformers is not")
    if section.on_new_version != "finish":
        raise UsageError(
            f'[engine] on_new_version = "{section.on_new_version}" works only with vLLM, and the engine here is '
            f'transformers: {_why_not_vllm(section, here)}. Set kind = "vllm", or leave on_new_version out.'
        )
    if section.quantization == FP8:
        raise UsageError(
            '[engine] quantization = "fp8" works only with vLLM, and the engine here is transformers: '
            f'{_why_not_vllm(section, here)}. Set quantization to "int8" or "int4", or leave it out.'
        )
    return _with_transformers(section, here, why=_why_not_vllm(section, here))


def _with_transformers(section: EngineSection, here: Here, *, why: str) -> Choice:
    if not here.transformers and not section.python:
        faster = f" On this machine's GPU, vLLM is faster: {INSTALL}" if here.gpu and here.vllm is None else ""
        raise UsageError(
            f"The engine on transformers is not installed, and it would be used because {why}. "
            f"Type: {here.add_transformers}{faster}"
        )
    return Choice(section=msgspec.structs.replace(section, kind="transformers"), why=why)


def _why_not_vllm(section: EngineSection, here: Here) -> str:
    if not here.gpu:
        return "there is no NVIDIA GPU here"
    if here.vllm is None:
        return f"vLLM is not installed, and would be faster on this machine's GPU ({INSTALL})"
    if here.vllm.build == "cpu":
        return f"the installed vLLM is for CPUs ({INSTALL} builds one for this machine's GPU)"
    return f'device = "{section.device}"'


def _with_vllm(section: EngineSection, here: Here) -> EngineSection:
    if here.vllm is None:
        where = f"{section.python} has no vLLM" if section.python else "vLLM is not installed here"
        raise UsageError(
            f'[engine] kind = "vllm": {where}. Build an environment with it: {INSTALL}. The node then finds it itself.'
        )
    return msgspec.structs.replace(section, kind="vllm", python=str(here.vllm.python))


def table(here: Here) -> str:
    """Return each engine, whether it works here, and its place or what to do; then the one that `volery join` uses."""
    rows = [("engine", "usable", "where, or what to do"), *_rows(here)]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:<{widths[0]}}  {usable:<{widths[1]}}  {note}" for name, usable, note in rows]
    return "\n".join([*lines, "", _default(here)])


def _default(here: Here) -> str:
    try:
        choice = choose_engine(EngineSection(), here)
    except UsageError as error:
        return f"No node can run here. {error}"
    return f"By default, a node here uses {choice.section.kind}: {choice.why}."


def as_values(here: Here) -> dict[str, Any]:
    """Return the same as lists and dictionaries, for programs."""
    found = [{"engine": name, "usable": usable == "yes", "note": note} for name, usable, note in _rows(here)]
    try:
        choice = choose_engine(EngineSection(), here)
    except UsageError as error:
        return {"engines": found, "used": None, "why": str(error)}
    return {"engines": found, "used": choice.section.kind, "why": choice.why}


def _rows(here: Here) -> list[tuple[str, str, str]]:
    rows = []
    if here.transformers:
        rows.append(("transformers", "yes", sys.executable))
    else:
        rows.append(("transformers", "no", f"not installed: {here.add_transformers}"))
    if here.vllm is None:
        rows.append(("vllm", "no", f"not installed: {INSTALL}"))
    else:
        build = f", built for {here.vllm.build.upper()}" if here.vllm.build else ""
        rows.append(("vllm", "yes", f"{here.vllm.python}{build}"))
    rows.append(("fake", "yes", "invents tokens; for tests"))
    return rows
