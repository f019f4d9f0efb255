"""Make the tables of configuration keys from the texts under the keys."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import FieldInfo, fields

from node.config.common import Section, default_of
from node.config.error_messages import choices_of
from node.config.reference import descriptions, toml_value
from node.config.renamed_keys import RENAMED


def key_tables(kind: type[Section], mark: str = "##") -> str:
    """Return the keys of a file as Markdown: for each section a heading, a sentence, a table; then the
    earlier names.
    """
    plain = [key for key in fields(kind) if not _is_section(key.type)]
    parts = [f"{mark} top level", _rows(kind, plain)] if plain else []
    for section in fields(kind):
        if _is_section(section.type):
            about = textwrap.fill(
                " ".join(section.type.__doc__.split()), 120, break_long_words=False, break_on_hyphens=False
            )
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
