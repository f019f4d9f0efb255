"""Define the formats in which model families call tools, and find the one that a chat template uses.

    hermes    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>     Hermes, Qwen 2.5 and 3
    llama3    {"name": "add", "parameters": {"a": 1}}                           Llama 3, perhaps after <|python_tag|>
    mistral   [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "..."}] Mistral, up to its third tokenizer
    json      {"name": "add", "arguments": {"a": 1}}                            models that were taught none

Invariants:

- The format of a template is a pure function of its text.
"""

from __future__ import annotations

from typing import Literal, get_args

ToolFormat = Literal["hermes", "llama3", "mistral", "json"]

FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
"""The marks before and after each call of Hermes."""

PYTHON_TAG = "<|python_tag|>"
"""The mark of Llama 3 that may stand before calls."""

TOOL_CALLS = "[TOOL_CALLS]"
"""The mark of Mistral before the list of calls."""

UNREAD = ("<function=", "<arg_key>", "[ARGS]", "[CALL_ID]")
"""Marks of similar formats that are not supported: Qwen3-Coder's, GLM's, Mistral's from its 11th tokenizer on."""


def format_of(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template uses; "json" if it uses none, or if there is no template.

    None: it writes calls in a form that is not supported.
    """
    text = template or ""
    if any(mark in text for mark in UNREAD):
        return None
    if TOOL_CALLS in text:
        return "mistral"
    if CALL in text:
        return "hermes"
    if PYTHON_TAG in text or ("ipython" in text and "parameters" in text):
        return "llama3"
    return None if "tool_calls" in text else "json"
