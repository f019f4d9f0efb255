"""Write the tables of configuration keys in the guides from the program's own texts on each key.

To renew them: `python -m tests.support.config_tables`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import FieldInfo, fields

from node.config.common import Section, default_of
from node.config.error_messages import choices_of
from node.config.node_config import NodeConfig
from node.config.reference import descriptions, toml_value
from node.config.renamed_keys import RENAMED
from node.config.swarm_config import SwarmConfig
from tests.support.paths import ROOT

PAGES: dict[Path, type[Section]] = {
    ROOT / "docs" / "operator.md": SwarmConfig,
    ROOT / "docs" / "volunteer.md": NodeConfig,
}

BEGIN, END = "<!-- keys, by python -m tests.support.config_tables -->", "<!-- end of the keys -->"


def key_tables(kind: type[Section], mark: str = "##") -> str:
    """Return the keys of a file as Markdown: for each section a heading, a sentence, a table; then the
    earlier names.
    """
    plain = [key for key in fields(kind) if not _is_section(key.type)]
    parts = [f"{mark} top level", _rows(kind, plain)] if plain else []
    for section in fields(kind):
        if _is_section(section.type):
            about = textwrap.fill(" ".join(section.type.__doc__.split()), 120, break_long_words=False)
            parts += [f"{mark} `[{section.name}]`", about, _rows(section.type, fields(section.type))]
    renamed = [f"| `[{old[0]}] {old[1]}` | `[{new[0]}] {new[1]}` |" for old, new in RENAMED[kind].items()]
    told = "The old names still work, with a warning; the next release refuses them."
    return "\n\n".join([*parts, f"{mark} Renamed keys", told, "\n".join(["| old name | now |", "|---|---|", *renamed])])


def _is_section(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, Section)


def _rows(kind: type[Section], keys: Sequence[FieldInfo]) -> str:
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for key in keys:
        value, about = default_of(key), descriptions(kind)[key.name]
        shown = "required" if value is msgspec.NODEFAULT else "unset" if value is None else f"`{toml_value(value)}`"
        choices = [f"`{toml_value(choice)}`" for choice in choices_of(key.type)]
        untold = [choice for choice in choices if choice.strip('`"') not in about]
        one_of = f" One of {', '.join(choices)}." if untold and value not in untold else ""
        lines.append(f"| `{key.name}` | {shown} | {about}{one_of} |")
    return "\n".join(lines)


def renewed(page: Path) -> str:
    """Return the text of a page with its tables as they should be."""
    text = page.read_text(encoding="utf-8")
    new = key_tables(PAGES[page], "###")
    return re.sub(rf"(?s)(?<={BEGIN}\n\n).*(?=\n\n{END})", lambda _: new, text)


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renewed(path), encoding="utf-8")
