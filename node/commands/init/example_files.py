"""Write an example of `examples/` into a directory of one's own (`volery init --example`).

`examples` beside this file is a link to the repository's directory of that name. A wheel holds its files here. So the
repository's pages and the installed program have one source.

Invariants:

- The files are those of the example, but for the swarm's name, its port, the model's directory, and the name of the
  directory in the commands of the page.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Literal, get_args

from node.commands.init.named_model import NamedModel, model_path
from node.config.reference import toml_value

ExampleName = Literal["reverse", "gsm8k", "math", "code", "lora"]
EXAMPLES: tuple[ExampleName, ...] = get_args(ExampleName)

SOURCE = Path(__file__).with_name("examples")

PLACEHOLDER = "my-swarm"
"""The directory in the commands of the pages."""

WITH_SMALL_MODEL: ExampleName = "reverse"
"""The example whose model is made here, from random weights. The others name a model to fetch."""

ADVICE = "Choose another directory."
"""What to do if its files cannot be written."""

_FETCH = re.compile(r"^    hf download \S+ --local-dir .*\n", re.M)
"""The line of a page that fetches the model."""

_LINK = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)]+)\)")


def files_of(
    name: ExampleName, directory: Path, *, swarm: str, port: int, model: NamedModel | None = None
) -> dict[Path, str]:
    """Return the texts of an example's files by their paths in `directory`.

    Args:
        swarm: name of the swarm.
        port: the port on which the learner listens.
        model: another model than the example's own.
    """
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in sorted((SOURCE / name).iterdir()) if path.is_file()
    }
    config = _with_key(texts["swarm.toml"], "name", swarm).replace("/tcp/4001", f"/tcp/{port}")
    page = _LINK.sub(r"\1 (\2)", texts["README.md"].replace(PLACEHOLDER, _shown(directory)))
    if model is not None:
        config = _with_key(config, "directory", model_path(model, directory))
        page = _FETCH.sub(lambda _: f"    {model.fetch}\n" if model.fetch else "", page)
    texts["swarm.toml"] = config.replace("volery learn DIR", f"volery learn {_shown(directory)}")
    texts["README.md"] = page
    return {directory / file: text for file, text in texts.items()}


def _with_key(config: str, key: str, value: str) -> str:
    """Return the file with another value of a key. The first one of that name is meant."""
    return re.sub(rf'^{key} = "[^"]*"', lambda _: f"{key} = {toml_value(value)}", config, count=1, flags=re.M)


def _shown(directory: Path) -> str:
    return shlex.quote(str(directory)) if str(directory).isprintable() else "DIR"  # a line end would end a comment


def commands_of(page: str) -> list[str]:
    """Return the commands below "## Run it" on a page, but for `volery init` itself."""
    section = page.partition("\n## Run it\n")[2].partition("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    return [line for line in lines if not line.startswith("volery init ")]
