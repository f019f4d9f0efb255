"""Find which format of calls a chat template teaches."""

from __future__ import annotations

import pytest

from node.tasks.tools.formats import format_of


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (None, "json"),
        ("{{ messages[0].content }}", "json"),
        ("... <tool_call>{{ message.tool_calls }}</tool_call>", "hermes"),
        ("... [TOOL_CALLS][{{ message.tool_calls }}]", "mistral"),
        ("... <|python_tag|> {{ message.tool_calls }}", "llama3"),
        ("""... ipython {"name": ..., "parameters": ...} {{ message.tool_calls }}""", "llama3"),
        ("... <tool_call><function={{ message.tool_calls }}>", None),
        ("... [TOOL_CALLS]add[ARGS]{}", None),
        ("... <|channel|>commentary {{ message.tool_calls }}", None),
    ],
)
def test_the_format_is_found_in_the_template(template: str | None, expected: str | None) -> None:
    assert format_of(template) == expected
