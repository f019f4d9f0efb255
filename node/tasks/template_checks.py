"""Check before a run whether the model's chat template can write what a task will say.

A template can fail on a conversation that it was not written for: a system message, a tool, a second turn. A run would
meet that only in the middle. So the start tries one prompt of each task, with answers between turns if the task has
them.

Invariants:

- If every episode would fail, that is a TaskError that says what to do.
- Everything else is a note for the operator, which is a clause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from node.tasks.api.interface import Chat, ChatMessage, Problem, TaskError, Tool
from node.tasks.tokenizer import TextCodec
from node.tasks.ways.chat_template import CALL_ID, SAID, SHOWN

EARLIER = "WhatThePolicySaidBefore"
"""Stands for an earlier turn of the policy."""

THOUGHT = "WhatThePolicyThought"
"""Stands for the thinking in an earlier turn of the policy."""


def check_template(codec: TextCodec, problem: Problem, *, has_turns: bool) -> list[str]:
    """Return notes on how prompts like that of `problem` are written. Raises TaskError if they cannot be written."""
    messages = codec.messages(problem)
    if messages is None:
        if codec.system_prompt:
            raise TaskError(
                "[model] system_prompt cannot be used with prompts of plain text. Leave it out, or send the task's "
                "prompts through the chat template: `chat=always` in its spec, or `chat=Chat.ALWAYS` in its problems."
            )
        is_bare = problem.chat is Chat.AUTO and codec.template is None
        bare = ["the model has no chat template, so its prompts are plain text"] if is_bare else []
        return [*bare, *_of_beginning(codec, problem)]
    notes = [*_of_beginning(codec, problem)]  # also tries to write the prompt, with its tools
    if problem.tools:
        codec.require_tool_format()
    notes += [*_of_end(codec, messages, problem.tools)]
    if has_turns:
        notes += _of_turns(codec, messages, problem)
    return notes


def _of_beginning(codec: TextCodec, problem: Problem) -> Iterator[str]:
    ids, bos = codec.encode_as_written(problem), codec.bos_id
    if bos is None:
        return
    text = codec.special_tokens["bos_token"]
    if ids[:2] == (bos, bos):
        yield f"its prompts would begin with {text} twice (prompt or chat template, and tokenizer); one is left out"
    elif ids[:1] != (bos,) and codec.messages(problem) is not None and codec.begins_with_bos:
        yield f"the model's chat template does not write {text}, though the tokenizer would; prompts have none"


def _of_end(codec: TextCodec, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Iterator[str]:
    """Note if the token that the template writes after the assistant's message does not end a completion."""
    assert codec.template is not None
    try:
        said = ChatMessage(role="assistant", content=SAID)
        _, _, end = codec.template.render([*messages, said], tools, begins=False).rpartition(SAID)
    except TaskError:  # such a conversation may never occur
        return
    ids = codec.tokenizer.encode(end, add_special_tokens=False).ids
    if ids and not codec.stop_ids & set(ids) and ids[0] in codec.tokenizer.get_added_tokens_decoder():
        text = codec.tokenizer.id_to_token(ids[0])
        yield (
            f"the model's chat template ends the assistant's messages with {text}, which no file of the model names as "
            f"an end: add it to [model] stop, or completions do not end there"
        )


def _of_turns(codec: TextCodec, messages: Sequence[ChatMessage], problem: Problem) -> Iterator[str]:
    """Raise TaskError if an answer between turns cannot be written, or is written differently in a later turn."""
    answer = ChatMessage(role="user", content=SHOWN)
    if problem.tools:
        answer = ChatMessage(role="tool", content=SHOWN, name=problem.tools[0].name, tool_call_id=CALL_ID)
    template = codec.template
    assert template is not None
    codec.encode_turn(problem, (answer,))
    try:
        first = template.after_said(messages, [answer], problem.tools)
        thinking = f"<think>\n{THOUGHT}\n</think>\n\n{EARLIER}"
        earlier = [*messages, ChatMessage(role="assistant", content=thinking), answer]
        second = template.after_said(earlier, [answer], problem.tools)
        again = template.render([*earlier], problem.tools)
    except TaskError:
        return  # the template needs calls, and accepts them: `encode_turn` has tried
    if first != second:
        raise TaskError(
            f"{template.where}: what its chat template writes after a turn depends on earlier turns, so an episode of "
            "several turns cannot go on token for token. Give another template in [model] chat_template, or train on "
            "tasks of one turn."
        )
    if EARLIER not in again or THOUGHT not in again:
        yield (
            "the model's chat template rewrites earlier turns (for example, it removes thinking); in an episode every "
            "turn stays as it was said, token for token"
        )
