"""Write a package with a new task, its test, and a run with a small model (`volery new`).

Invariants:

- Nothing is overwritten: if one of the files exists, none is written.
- A name that could not be imported, or that would hide another module, is rejected before anything is written.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Literal

import trio

from node.commands.init.command import free_port
from node.learner_role.training.warm_start import TINY_QWEN3
from node.processes.child import open_child
from node.processes.event_log import child_events
from node.processes.outcomes import ChildError
from node.processes.spec import ChildSpec
from node.runtime.atomic_files import write_new
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog
from node.runtime.stdout import say
from node.tasks.registry import BUILT_IN
from node.tasks.tokenizer import write_character_tokenizer
from swarm.transport.error_groups import first_cause

TEMPLATES = Path(__file__).with_name("template")

MODEL = "model"
"""Directory of the small model, beside swarm.toml."""

MAX_NAME_CHARS = 40
"""Most characters of a name: leases and reports show it, and it names files."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


What = Literal["task", "environment"]
"""A task whose reward judges a completion, or an environment whose episodes have a state."""

_WORDS: Mapping[What, Mapping[str, str]] = {
    "task": {
        "title": "A task",
        "option": "letters=3",
        "turns": "",
        "steps": "60",
        "learns": "In a minute or two it solves nearly all problems.",
    },
    "environment": {
        "title": "An environment",
        "option": "tries=3",
        "turns": "max_turns = 3\n",
        "steps": "80",
        "learns": "In a minute it opens every box; a few minutes later it also says what is inside.",
    },
}
"""The words in which the files differ that both kinds have."""


def write_task(name: str, directory: Path, what: What = "task") -> list[Path]:
    """Write the package of a task called `name` to `directory` and return its files.

    Raises UsageError if the name cannot be used or one of the files exists, RunError if the disk fails.
    """
    module = module_name(name)
    texts = {directory / file: text for file, text in files_of(name, module, free_port(directory), what).items()}
    write_new(texts, "Choose another directory with --at.")
    return list(texts)


def module_name(name: str) -> str:
    """Return the module of a task called `name`: `my_task` for `my-task`. Raises UsageError."""
    module = name.replace("-", "_")
    where = f"NAME {name[:MAX_NAME_CHARS]!r}"
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise UsageError(
            f"{where} cannot be a task's name. Use lower-case letters, digits, - and _, with a letter first, at most "
            f"{MAX_NAME_CHARS} characters, such as my-task."
        )
    other = (
        f"Choose another name, such as {name}-2." if name.startswith("my") else f"Choose another, such as my-{name}."
    )
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        raise UsageError(f"{where} is a reserved word of Python, so no module can have that name. {other}")
    if module in BUILT_IN:
        raise UsageError(f"{where} is a built-in task. {other}")
    if module in sys.stdlib_module_names or _is_installed(module):
        raise UsageError(f"{where}: Python already has a module {module!r}, and yours would hide it. {other}")
    return module


def _is_installed(module: str) -> bool:
    """Return whether a module of that name can be imported here. A directory without code does not count."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return True
    return found is not None and found.origin is not None


def files_of(name: str, module: str, port: int, what: What = "task") -> dict[str, str]:
    """Return the texts of the package's files, by name."""
    class_name, constant = "".join(word.capitalize() for word in module.split("_")), module.upper()
    words = {
        **_WORDS[what],
        "name": name,
        "module": module,
        "dist": name.replace("_", "-"),
        "constant": constant,
        "class_name": class_name if class_name != constant else f"{class_name}Task",  # for a name of one letter
        "port": str(port),
    }
    targets = {
        "pyproject.toml": "pyproject.toml.txt",
        f"{module}.py": f"{what}.py.txt",
        f"test_{module}.py": f"test_{what}.py.txt",
        "README.md": "README.md.txt",
        "swarm.toml": "swarm.toml.txt",
        "node.toml": "node.toml.txt",
    }
    return {
        target: Template((TEMPLATES / source).read_text(encoding="utf-8")).substitute(words)
        for target, source in targets.items()
    }


def next_steps(directory: str) -> str:
    """Return what to type next in a shell; `directory` is quoted for it."""
    return (
        f"Test it:   cd {directory} && python -m pytest\n"
        "Look:      volery tasks show\n"
        "Train:     volery learn .  When it has printed the invite, in another terminal: "
        "volery join state/invite --config node.toml"
    )


async def make_small_model(directory: Path, afterwards: str) -> int:
    """Make a small model with random weights in `directory`/model, unless there is one, then print `afterwards`.

    Returns the exit code. Raises RunError.
    """
    model = directory / MODEL
    if not (model / "config.json").exists():
        spec = ChildSpec(name="trainer", argv=(sys.executable, "-m", "learner.training.server"))
        try:
            with first_cause():
                async with open_child(spec, on_event=child_events(EventLog(), "trainer")) as trainer:
                    await trainer.call("make_model", {"directory": str(model), "config": dict(TINY_QWEN3), "seed": 0})
            await trio.to_thread.run_sync(write_character_tokenizer, model)
        except (ChildError, OSError) as error:
            raise RunError(
                f"The small model cannot be made in {model}: {str(error).rstrip('.')}. The task is written. Set your "
                f"own model in {directory / 'swarm.toml'}, or remove {directory} and try again."
            ) from None
    if afterwards:
        say(afterwards)
    return 0
