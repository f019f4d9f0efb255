"""Find the model that `volery init --model` names: a directory, or a model on Hugging Face that is to be fetched.

Nothing is downloaded here. A download takes minutes, may need an account, and `hf download` continues one that broke
off. So the operator types the line that this module gives.

Invariants:

- A directory that exists is always meant as a directory.
- The path of a model that is not here is the one at which the line will put it.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from node.runtime.user_paths import as_path, real_path

MODEL = "model"
"""Directory in which a model is looked for, beside swarm.toml, and which the template names."""

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""Names of models on Hugging Face: an owner, and a model. Both have at most 96 characters there."""


@dataclass(frozen=True, kw_only=True)
class NamedModel:
    """The model that was named. `fetched_from`: its name on Hugging Face if it is not here yet, else ""."""

    directory: Path
    fetched_from: str = ""

    @property
    def is_here(self) -> bool:
        return not self.fetched_from

    @property
    def fetch(self) -> str:
        """Return the line that fetches the model; "" if it is here."""
        return (
            f"hf download {self.fetched_from} --local-dir {shlex.quote(str(self.directory))}"
            if self.fetched_from
            else ""
        )


def named_model(text: str, directory: Path) -> NamedModel | None:
    """Return the model that `text` names; if it is empty, the one beside swarm.toml in `directory`, or None."""
    if not text:
        return beside(directory)
    path = as_path(text)
    if path.exists() or not HUB_NAME.fullmatch(text):
        return NamedModel(directory=path)
    place = directory / text.partition("/")[2]
    return NamedModel(directory=place, fetched_from="" if (place / "config.json").is_file() else text)


def beside(directory: Path) -> NamedModel | None:
    """Return the model in the directory that the template names; None if there is none (yet)."""
    model = directory / MODEL
    return NamedModel(directory=model) if (model / "config.json").is_file() else None


def model_path(named: NamedModel, directory: Path) -> str:
    """Return the model's directory as a swarm.toml in `directory` names it."""
    model = named.directory
    return str(model) if model.is_absolute() else os.path.relpath(real_path(model), real_path(directory))
