"""Write the keys of a configuration for people: a TOML file that explains itself.

The only description of a key stands below it in its section's class, as pydantic's `use_attribute_docstrings` reads it.
`tests/support/config_tables.py` makes the tables of docs/reference from the same descriptions.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any, get_args

import msgspec
from msgspec.structs import FieldInfo, fields

from node.config.common import Section
from node.config.renamed_keys import Key
from node.config.swarm_config import SwarmConfig

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""Keys that TOML accepts without quotes."""

COLUMN = 26
"""Column in which comments begin: most keys with their values end before it."""


@cache
def descriptions(kind: type[Section]) -> Mapping[str, str]:
    """Return the description of each key of a section, in Markdown."""
    found = {}
    for declares in [one for one in reversed(kind.__mro__) if issubclass(one, Section)]:
        (declared,) = ast.parse(inspect.getsource(declares)).body
        assert isinstance(declared, ast.ClassDef)
        for key, text in pairwise(declared.body):
            match key, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = " ".join(said.split())
    return found


def to_toml(config: SwarmConfig, notes: Mapping[Key, str] | None = None) -> str:
    """Return a file that means the same as `config`, with every default in its place. Keys that are unset are comments.

    `notes`, by section and key, stand before the description of a key.
    """
    return "\n".join(_table(name, getattr(config, name), notes or {}) for name in config.__struct_fields__)


def _table(name: str, section: Section, notes: Mapping[Key, str]) -> str:
    lines, below = [_commented(f"[{name}]", brief(section.__doc__ or ""))], []
    for key in fields(type(section)):
        value = msgspec.to_builtins(getattr(section, key.name))
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for table in value:
                below += ["", f"[[{name}.{key.name}]]", *(f"{k} = {toml_value(v)}" for k, v in table.items())]
            continue
        shown = f"# {key.name} = {toml_value(example(key))}" if value is None else f"{key.name} = {toml_value(value)}"
        about = brief(descriptions(type(section))[key.name])
        lines.append(_commented(shown, f"{notes.get((name, key.name), '')} {about}".strip()))
    return "\n".join([*lines, *below, ""])


def _commented(text: str, comment: str) -> str:
    return f"{text:{COLUMN}} # {comment}"


def brief(description: str) -> str:
    """Return the first sentence of a description, without the full stop."""
    return " ".join(description.split()).partition(". ")[0].removesuffix(".")


def toml_value(value: Any) -> str:
    """Return `value` as TOML writes it."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("e-0", "e-")


def _toml_key(key: str) -> str:
    return key if BARE_KEY.fullmatch(key) else toml_value(key)


def example(key: FieldInfo) -> Any:
    """Return a value for a key without a default, from its `Meta(examples=...)`."""
    return next(one for found in _metas(key.type) if found.examples for one in found.examples)


def _metas(declared: Any) -> Iterator[msgspec.Meta]:
    """Yield the annotations of a type, the outermost first."""
    yield from getattr(declared, "__metadata__", ())[::-1]
    for part in get_args(declared):
        yield from _metas(part)
