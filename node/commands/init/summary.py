"""Say what `volery init` wrote, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.commands.init.data_spec import DataSpec
    from node.commands.init.named_model import NamedModel


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What was written. `aside`: where the old file is now. `again`: the command that writes the file anew."""

    config: Path
    model: NamedModel | None
    data: DataSpec | None
    aside: Path | None
    again: str

    @property
    def start(self) -> str:
        """Return the line that starts the learner."""
        return f"volery learn {shlex.quote(str(self.config))}"

    @property
    def missing(self) -> list[str]:
        """Return the keys that a person should set before the start."""
        needed = {
            "[model] directory": self.model is None,
            "[task] spec": self.data is None,
            "[learn] steps": self.model is not None,
        }
        return [key for key, is_needed in needed.items() if is_needed]

    @property
    def values(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        return {
            "config": self.config,
            "model": None if self.model is None else self.model.directory,
            "fetch": None if self.model is None else self.model.fetch or None,
            "task": None if self.data is None else self.data.spec,
            "why": None if self.data is None else self.data.why,
            "kept": self.aside,
            "set": self.missing,
            "next": self.start,
        }

    @property
    def text(self) -> str:
        """Return the same in lines for a person."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        of_model = f", for the model in {self.model.directory}" if self.model is not None and self.model.is_here else ""
        yield f"Wrote {self.config}{of_model}." + (f" The old file is {self.aside}." if self.aside else "")
        if self.data is not None:
            yield f'[task] spec = "{self.data.spec}", because {self.data.why}.'
            yield from (f"  {note}" for note in self.data.notes)
            if self.data.warning:
                yield self.data.warning
        if self.model is not None and not self.model.is_here:
            yield (
                f"No directory here is called {self.model.fetched_from}, so it is taken for a name on Hugging Face. "
                f"Fetch it:\n  {self.model.fetch}"
            )
            yield (
                "The values in the file suit models of 100 million parameters and 1,024 tokens or more. For a smaller "
                f"one, type then:\n  {self.again}"
            )
        keys = self.missing[0] if len(self.missing) == 1 else f"{', '.join(self.missing[:-1])} and {self.missing[-1]}"
        yield f"Set {keys} in it, then: {self.start}"
