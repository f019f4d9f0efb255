"""Provide chat templates in the shape of known families, and model directories that have them.

Each template does in a few lines of our own what its family's is known for:

- Qwen3 strips thinking from earlier turns.
- Llama 3 writes the beginning of the text and shows tools in the first user's message.
- Mistral refuses a system message, and demands turns that alternate, and answers of tools with ids of nine characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from node.tasks.api.interface import Tool

QWEN3 = r"""
{%- set ns = namespace(asked=-1) -%}
{%- for message in messages if message.role == 'user' %}{% set ns.asked = messages.index(message) %}{% endfor -%}
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content + '\n\n' }}{% endif -%}
You may call tools:
{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}
Call with <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' -%}
{%- set content = message.content -%}
{%- if loop.index0 < ns.asked %}{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif -%}
<|im_start|>assistant
{{ content }}
{%- for call in message.tool_calls or [] %}{{ '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif -%}
{%- endif -%}
"""

LLAMA3 = r"""
{{- bos_token -}}
{%- set ns = namespace(told=false) -%}
{%- for message in messages -%}
{%- if message.tool_calls is defined -%}
{%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif -%}
{%- set call = message.tool_calls[0].function -%}
<|start_header_id|>assistant<|end_header_id|>

{{ '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}<|eot_id|>
{%- elif message.role in ('tool', 'ipython') -%}
<|start_header_id|>ipython<|end_header_id|>

{% if message.content is iterable %}{{ message.content | tojson }}{% else %}{{ message.content }}{% endif -%}
<|eot_id|>
{%- else -%}
<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if message.role == 'user' and tools is not none and not ns.told -%}
{%- set ns.told = true -%}
Answer with {"name": function, "parameters": its arguments}.

{% for tool in tools %}{{ (tool | tojson(indent=4)) + '\n\n' }}{% endfor -%}
{%- endif -%}
{{ message.content | trim }}<|eot_id|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif -%}
"""

MISTRAL = r"""
{{- bos_token -}}
{%- set ns = namespace(turn=0, last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif -%}
{%- if message.role in ('user', 'assistant') and message.tool_calls is not defined -%}
{%- if (message.role == 'user') != (ns.turn % 2 == 0) -%}
{{ raise_exception('roles must alternate user/assistant/user/assistant') }}
{%- endif -%}
{%- set ns.turn = ns.turn + 1 -%}
{%- elif message.role not in ('tool', 'assistant') -%}
{{ raise_exception('Only user, assistant and tool roles are supported') }}
{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
{%- if tools is not none and loop.index0 == ns.last -%}
[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]
{%- endif -%}
[INST] {{ message.content }}[/INST]
{%- elif message.tool_calls is defined -%}
[TOOL_CALLS] [
{%- for call in message.tool_calls -%}
{{ (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{% if not loop.last %}, {% endif %}
{%- endfor -%}
]{{ eos_token }}
{%- elif message.role == 'assistant' -%}
{{ ' ' + (message.content | trim) + eos_token }}
{%- else -%}
{%- if message.tool_call_id is not defined or message.tool_call_id | length != 9 -%}
{{ raise_exception('Tool call ids are 9 characters') }}
{%- endif -%}
[TOOL_RESULTS] {{ {'content': message.content, 'call_id': message.tool_call_id} | tojson }}[/TOOL_RESULTS]
{%- endif -%}
{%- endfor -%}
"""

SPECIAL: Mapping[str, tuple[str | None, str, tuple[str, ...]]] = {
    QWEN3: (None, "<|im_end|>", ("<|im_start|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>")),
    LLAMA3: ("<|begin_of_text|>", "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")),
    MISTRAL: ("<s>", "</s>", ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[TOOL_RESULTS]")),
}  # fmt: skip
"""For each template: the token that begins a text, the one that ends a turn, and others."""

ADD = Tool(
    name="add",
    description="Add two numbers, e.g. 'a' & \"b\".",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number", "description": "Größe"}},
        "required": ["a", "b"],
    },
)


def write_family_model(directory: Path, template: str) -> Path:
    """Write a tokenizer of bytes, with the special tokens of the template's family, and the template; return
    `directory`."""
    bos, eos, others = SPECIAL[template]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [name for name in (bos, eos, *others) if name is not None]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        **({"bos_token": bos} if bos else {}),
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory
