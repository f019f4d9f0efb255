"""What a start looks at before anybody joins: whether the model's chat template can say what a task will say.

A template fails where a conversation has what it was not written for: a system message, a tool, a second turn. A run
would meet that in the middle. So one prompt of each task is tried, with answers between turns where the task has them.

Invariants:
- what would fail in every episode is a TaskError that says what to do;
- what is only worth knowing is a note, which is a clause.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from node.tasks.api.interface import Chat, ChatMessage, Problem, TaskError, Tool
from node.tasks.tokenizer import TextCodec
from node.tasks.ways.chat_template import CALL_ID, SAID, SHOWN

EARLIER = "WhatThePolicySaidBefore"
"""Stands for an earlier turn."""

THOUGHT = "WhatThePolicyThought"
"""Stands for the thinking of an earlier turn."""


def check_template(codec: TextCodec, problem: Problem, *, has_turns: bool) -> list[str]:
    """Return notes on how prompts like that of `problem` are written. Raises TaskError where they cannot be."""
    messages = codec.messages(problem)
    if messages is None:
        if codec.system_prompt:
            raise TaskError(
                "[model] system_prompt has no place in prompts of plain text. Leave it out, or send the task's prompts "
                "through the chat template: `chat=always` in its spec, or `chat=Chat.ALWAYS` in its problems."
            )
        is_bare = problem.chat is Chat.AUTO and codec.template is None
        bare = ["the model has no chat template, so its prompts are plain text"] if is_bare else []
        return [*bare, *_of_beginning(codec, problem)]
    notes = [*_of_beginning(codec, problem)]  # which writes the prompt, with its tools
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
        yield f"its prompts would begin with {text} twice (prompt or chat template, and tokenizer), and begin with one"
    elif ids[:1] != (bos,) and codec.messages(problem) is not None and codec.begins_with_bos:
        yield f"the model's chat template writes no {text}, with which the tokenizer begins a text: prompts have none"


def _of_end(codec: TextCodec, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> Iterator[str]:
    """Whether the token with which the template ends what the assistant says ends a completion."""
    assert codec.template is not None
    try:
        said = ChatMessage(role="assistant", content=SAID)
        _, _, end = codec.template.render([*messages, said], tools, begins=False).rpartition(SAID)
    except TaskError:  # such a conversation may never come
        return
    ids = codec.tokenizer.encode(end, add_special_tokens=False).ids
    if ids and not codec.stop_ids & set(ids) and ids[0] in codec.tokenizer.get_added_tokens_decoder():
        text = codec.tokenizer.id_to_token(ids[0])
        yield (
            f"the model's chat template ends what the assistant says with {text}, and no file of the model calls that "
            f"an end: add it to [model] stop, or completions go on behind it"
        )


def _of_turns(codec: TextCodec, messages: Sequence[ChatMessage], problem: Problem) -> Iterator[str]:
    """Raises TaskError where an answer between turns cannot be written, or is not the same in every turn."""
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
        return  # it wants calls, and takes them: `encode_turn` has tried
    if first != second:
        raise TaskError(
            f"{template.where}: what its chat template writes after a turn depends on earlier turns, so an episode of "
            "several turns cannot go on token for token. Give another template in [model] chat_template, or train on "
            "tasks of one turn."
        )
    if EARLIER not in again or THOUGHT not in again:
        yield (
            "the model's chat template rewrites earlier turns (as thinking that is stripped); in an episode every turn "
            "stays as it was said, token for token"
        )
