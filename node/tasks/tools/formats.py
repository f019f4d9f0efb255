"""The formats in which families of models call tools, and which of them a chat template teaches.

    hermes    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>     Hermes, Qwen 2.5 and 3
    llama3    {"name": "add", "parameters": {"a": 1}}                           Llama 3, perhaps after <|python_tag|>
    mistral   [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "..."}] Mistral, up to its third tokenizer
    json      {"name": "add", "arguments": {"a": 1}}                            models that were taught none

Invariant: what a template teaches is a pure function of its text.
"""

from __future__ import annotations

from typing import Literal, get_args

ToolFormat = Literal["hermes", "llama3", "mistral", "json"]

FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)

CALL, END_OF_CALL = "<tool_call>", "</tool_call>"
"""Hermes: each call stands between the two."""

PYTHON_TAG = "<|python_tag|>"
"""Llama 3: may stand before calls."""

TOOL_CALLS = "[TOOL_CALLS]"
"""Mistral: before the list of calls."""

UNREAD = ("<function=", "<arg_key>", "[ARGS]", "[CALL_ID]")
"""Marks of formats that look like one of ours and are not: Qwen3-Coder's, GLM's, Mistral's since its 11th tokenizer."""


def format_of(template: str | None) -> ToolFormat | None:
    """Return the format that a chat template teaches: "json" where it teaches none, or there is no template.

    None: it writes calls in a form that is not read here.
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
