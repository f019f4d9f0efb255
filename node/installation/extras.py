"""Say which extra of the distribution brings a missing library, and which line installs it.

A volunteer installs neither what trains nor what plots, and no tensor library if vLLM has an environment of its own.
So a command may need a library that is not here. It then ends with one sentence and the line to type, not with a
traceback.

Invariants:

- Every library outside the base has its extra here.
- Nothing is imported to find out whether a library is there.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

from node.installation.install_line import Way, line_for, look
from node.installation.name_clashes import OURS, clash_sentence, find_clashes
from node.runtime.errors import NodeError, RunError, UsageError

EXTRA_OF = {
    "gguf": "gguf",
    "gymnasium": "environments",
    "h11": "learner",
    "huggingface_hub": "learner",
    "jinja2": "learner",
    "math_verify": "tasks",
    "matplotlib": "learner",
    "peft": "lora",
    "pokerkit": "tasks",
    "prometheus_client": "learner",
    "pyarrow": "tasks",
    "reasoning_gym": "tasks",
    "safetensors": "transformers",
    "scipy": "learner",
    "tensorboard": "tensorboard",
    "tokenizers": "learner",
    "torch": "transformers",
    "transformers": "transformers",
    "vllm": "vllm",
    "wandb": "wandb",
    "websockets": "environments",
}
"""The extra that brings each import package."""


def line_of_extra(extra: str) -> str:
    """Return the line to type, which adds `extra` to this installation."""
    made = look()
    # uvx keeps no record of the extras that it was asked for, and makes a new environment of those in the line
    return line_for(extra, replace(made, extras=_present()) if made.way is Way.UVX else made)


def require_extra(extra: str, needer: str) -> None:
    """Raise UsageError if `needer`, a command, needs a library of `extra` that is not installed."""
    for name, brought_by in EXTRA_OF.items():
        if brought_by == extra and find_spec(name) is None:
            raise _missing(name, needer)


def of_missing_library(error: ImportError, needer: str) -> NodeError | None:
    """Return what to tell a person about an import that failed in `needer`; None if it is a defect of ours."""
    name = (error.name or "").partition(".")[0]
    if name in OURS:
        clashes = find_clashes()
        return RunError(clash_sentence(clashes)) if clashes else None
    if not name or not isinstance(error, ModuleNotFoundError):
        return None
    return _missing(name, needer)


def _present() -> frozenset[str]:
    """Return the extras whose libraries are all here."""
    absent = {brought_by for name, brought_by in EXTRA_OF.items() if find_spec(name) is None}
    return frozenset(EXTRA_OF.values()) - absent


def _missing(name: str, needer: str) -> UsageError:
    extra = EXTRA_OF.get(name)
    if extra is None:
        return UsageError(
            f"{needer} needs the Python package {name}, which is missing: this installation is not complete. "
            f"Install Volery again: {line_of_extra('transformers')}"
        )
    return UsageError(
        f"{needer} needs the extra '{extra}', which is not installed ({name} is missing). Type: {line_of_extra(extra)}"
    )
