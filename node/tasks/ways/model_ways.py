"""Read what the operator overrides of a model's own files: template, system prompt, stops, tool format.

Invariants:

- `ModelWays()` overrides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, text_of
from node.config.swarm_config import ModelSection
from node.runtime.errors import naming
from node.tasks.api.interface import TaskError
from node.tasks.tools.formats import ToolFormat


@dataclass(frozen=True, kw_only=True)
class ModelWays:
    """The operator's overrides for one model.

    `chat_template`: replaces the model's own; `template_file`: its file. `template_kwargs`: variables of the chat
    template. `system_prompt`: begins every conversation that has no system message. `stop`, `stop_ids`: end a
    completion, in addition to what the model's files say.
    """

    chat_template: str | None = None
    template_file: str = ""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str = ""
    stop: Sequence[str] = ()
    stop_ids: Sequence[int] = ()
    tool_format: ToolFormat | Literal["auto"] = "auto"


def read_ways(section: ModelSection) -> ModelWays:
    """Return what the section says. Raises TaskError if the file of its template cannot be read."""
    return ModelWays(
        chat_template=None if section.chat_template is None else read_template(Path(section.chat_template)),
        template_file=section.chat_template or "",
        template_kwargs=section.chat_template_kwargs,
        system_prompt=section.system_prompt,
        stop=tuple(section.stop),
        stop_ids=tuple(section.stop_ids),
        tool_format=section.tool_format,
    )


def read_template(path: Path) -> str:
    """Return the chat template in a file of the operator. Raises TaskError."""
    with naming("[model] chat_template"):
        try:
            return text_of(read_file(path))
        except NotText as error:
            raise TaskError(f"{path} {error}") from error
        except OSError as error:
            raise TaskError(f"{path}: cannot be read: {error.strerror}. Name a file with a Jinja template.") from error
