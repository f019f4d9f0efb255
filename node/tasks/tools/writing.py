"""Write tool calls like the model's family: for reference answers, examples and tests.

Invariants:

- `node.tasks.tools.reading` reads back exactly the calls that are written here (tests/node/tasks/tools).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from node.tasks.api.interface import ToolCall
from node.tasks.tools.formats import CALL, END_OF_CALL, TOOL_CALLS, ToolFormat


def write_calls(tool_format: ToolFormat, calls: Sequence[ToolCall], content: str = "") -> str:
    """Return `content` and then the calls. The formats "llama3" and "json" leave out content beside calls."""
    if not calls:
        return content
    match tool_format:
        case "hermes":
            parts = [f"{CALL}\n{_json(_plain(call, 'arguments'))}\n{END_OF_CALL}" for call in calls]
            return "\n".join([*([content] if content else []), *parts])
        case "mistral":
            return f"{content}{TOOL_CALLS}{_json([{**_plain(call, 'arguments'), 'id': call.id} for call in calls])}"
        case "llama3":
            return "; ".join(_json(_plain(call, "parameters")) for call in calls)
        case "json":
            found = [_plain(call, "arguments") for call in calls]
            return _json(found[0] if len(found) == 1 else found)


def _plain(call: ToolCall, key: str) -> dict[str, Any]:
    return {"name": call.name, key: dict(call.arguments)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
