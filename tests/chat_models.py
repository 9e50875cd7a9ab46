"""Chat models to test with: random networks over a small tokenizer, and chat templates that write what those of known models write."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import AddedToken

from outlines_cont import models
from outlines_cont.models import HuggingFaceModel
from tests.vocabularies import QWEN_PATTERN, pattern_bpe

# Written anew, to give what the template of Qwen3 gives: thoughts of earlier turns are left out, tools in the form of Hermes.
QWEN3 = """\
{%- set first = messages[0] -%}
{%- set ns = namespace(last=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}
{{ '<|im_start|>system\\n' }}
{%- if first.role == 'system' -%}{{ first.content + '\\n\\n' }}{%- endif -%}
{{ '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\nYou are provided with function signatures \
within <tools></tools> XML tags:\\n<tools>' }}
{%- for tool in tools -%}{{ '\\n' + (tool | tojson) }}{%- endfor -%}
{{ '\\n</tools>\\n\\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML \
tags:\\n<tool_call>\\n{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call><|im_end|>\\n' }}
{%- elif first.role == 'system' -%}
{{ '<|im_start|>system\\n' + first.content + '<|im_end|>\\n' }}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' or (m.role == 'system' and not loop.first) -%}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' -%}
{%- set content = m.content or '' -%}
{%- set thought = '' -%}
{%- if '</think>' in content -%}
{%- set thought = content.split('</think>')[0].split('<think>')[-1].strip('\\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}
{%- endif -%}
{{ '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) -%}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif -%}
{{ content }}
{%- for call in m.tool_calls or [] -%}
{%- if content or not loop.first -%}{{ '\\n' }}{%- endif -%}
{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{ '<|im_start|>user' }}{%- endif -%}
{{ '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{ '<|im_end|>\\n' }}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}
{%- endif -%}
"""

# The same with the reasoning of a message, as later templates of Qwen have it; and one whose prompts open the thoughts.
QWEN3_REASONING = QWEN3.replace(
    "{%- if '</think>' in content -%}",
    "{%- if m.reasoning_content is string -%}{%- set thought = m.reasoning_content.strip('\\n') -%}\n{%- elif '</think>' in content -%}",
)
QWEN3_OPEN = QWEN3_REASONING.replace(
    "{{ '<|im_start|>assistant\\n' }}\n{%- if enable_thinking", "{{ '<|im_start|>assistant\\n<think>\\n' }}\n{%- if enable_thinking"
)

# To give what the template of gpt-oss gives, without the text of its system message: thoughts, calls and answers are in channels of their
# own; thoughts are written before a call until an answer follows, and before the last answer.
GPT_OSS = """\
{%- set ns = namespace(final=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and not m.tool_calls -%}{%- set ns.final = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}{{ '<|start|>developer<|message|># Tools\\n\\n## functions\\n\\nnamespace functions {\\n\\n' }}
{%- for tool in tools -%}{{ '// ' + tool.function.description + '\\ntype ' + tool.function.name + ' = (_: ' }}
{{- (tool.function.parameters | tojson) + ') => any;\\n\\n' }}{%- endfor -%}{{ '} // namespace functions<|end|>' }}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- if m.tool_calls -%}
{%- if m.content and m.thinking -%}{{ raise_exception('Cannot pass both content and thinking in a message with tool calls!') }}{%- endif -%}
{%- if (m.content or m.thinking) and ns.final < loop.index0 -%}
{{ '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) + '<|end|>' }}
{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{ '<|start|>assistant to=functions.' + call.name + '<|channel|>commentary json<|message|>' + (call.arguments | tojson) + '<|call|>' }}
{%- else -%}
{%- if m.thinking and loop.last -%}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{%- endif -%}
{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- endif -%}
{%- elif m.role == 'tool' -%}
{{ '<|start|>functions.' + m.name + ' to=assistant<|channel|>commentary<|message|>' + (m.content | tojson) + '<|end|>' }}
{%- else -%}
{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}
"""

# To give what the template of Llama 3.1 gives: BOS, trimmed contents, a call is the whole reply, one at a time.
LLAMA3 = """\
{{- bos_token -}}
{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' -%}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages -%}
{{ '<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n' + system }}
{{- '<|eot_id|>' -}}
{%- for m in rest -%}
{%- if m.role == 'tool' -%}
{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + (m.content if m.content is string else m.content | tojson) + '<|eot_id|>' }}
{%- elif m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{ raise_exception('This model only supports single tool-calls at once!') }}{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
{{- '<|eot_id|>' -}}
{%- else -%}
{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' }}
{%- if tools and loop.index0 == 0 and m.role == 'user' -%}
{{ 'Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers the given \
prompt.\\n\\nRespond in the format {"name": function name, "parameters": dictionary of argument name and its value}. Do not use \
variables.\\n\\n' }}
{%- for tool in tools -%}{{ (tool | tojson(indent=4)) + '\\n\\n' }}{%- endfor -%}
{%- endif -%}
{{ (m.content | trim) + '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif -%}
"""

# To give what the template of Mistral 7B v0.3 and Nemo gives: turns in brackets, calls as a list behind a control token, with ids.
MISTRAL = """\
{{- bos_token -}}
{%- set system = messages[0].content if messages[0].role == 'system' else '' -%}
{%- set rest = messages[1:] if messages[0].role == 'system' else messages -%}
{%- set ns = namespace(last=0) -%}
{%- for m in rest -%}{%- if m.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}
{%- for m in rest -%}
{%- if m.role == 'user' -%}
{%- if tools and loop.index0 == ns.last -%}{{ '[AVAILABLE_TOOLS][' }}
{%- for tool in tools -%}{{ tool | tojson }}{{ '' if loop.last else ', ' }}{%- endfor -%}{{ '][/AVAILABLE_TOOLS]' }}{%- endif -%}
{{ '[INST]' + (system + '\\n\\n' if system and loop.last else '') + m.content + '[/INST]' }}
{%- elif m.tool_calls -%}
{{ '[TOOL_CALLS][' }}
{%- for call in m.tool_calls -%}
{%- if call.id | length != 9 -%}{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif -%}
{{ '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
{{- '' if loop.last else ', ' -}}
{%- endfor -%}{{ ']' + eos_token }}
{%- elif m.role == 'assistant' -%}
{{ m.content + eos_token }}
{%- elif m.role == 'tool' -%}
{{ '[TOOL_RESULTS]{"content": ' + m.content + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif -%}
{%- endfor -%}
"""

# Calls as some models write them, in turns as Qwen has them: each gives what the template of the model gives for a reply that calls.
_TURNS = """\
{%- for m in messages -%}
{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' + (m.content or '') }}
{%- for call in m.tool_calls or [] -%}{%- set f = call.function -%}CALL{%- endfor -%}AFTER
{{- '<|im_end|>\\n' }}
{%- endfor -%}
{{ '<|im_start|>assistant\\n' if add_generation_prompt else '' }}"""


def _calling(call: str, after: str = "") -> str:
    return _TURNS.replace("CALL", call).replace("AFTER", after)


_STRING = "(v if v is string else v | tojson)"
_LITERAL = "('True' if v is true else 'False' if v is false else 'None' if v is none else v | tojson)"
CALLING = {
    "mistral-args": _calling("{{ '[TOOL_CALLS]' + f.name + '[ARGS]' + (f.arguments | tojson) }}"),
    "qwen3-coder": _calling(
        "{{ ('\\n' if not loop.first else '') + '<tool_call>\\n<function=' + f.name + '>\\n' }}{% for k, v in f.arguments | items %}"
        "{{ '<parameter=' + k + '>\\n' + " + _STRING + " + '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}"
    ),
    "pythonic": _calling(
        "{{ ('[' if loop.first else ', ') + f.name + '(' }}{% for k, v in f.arguments | items %}{{ k + '=' + " + _LITERAL + " }}"
        "{{ ', ' if not loop.last else '' }}{% endfor %}{{ ')' + (']' if loop.last else '') }}"
    ),
    "gemma": _calling(
        "{{ '<start_function_call>call:' + f.name + '{' }}{% for k, v in f.arguments | items %}{{ k + ':' }}"
        "{{ ('<escape>' + v + '<escape>') if v is string else (v | tojson) }}{{ ',' if not loop.last else '' }}{% endfor %}"
        "{{ '}<end_function_call>' }}"
    ),
}

# No special tokens and no tools.
PLAIN = """\
{%- for m in messages -%}{{ m.role + ': ' + m.content + '\\n' }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant: ' }}{%- endif -%}
"""

TEMPLATES = {"Qwen3": QWEN3, "Llama 3": LLAMA3, "Mistral": MISTRAL, "plain": PLAIN}
_SPECIAL = {
    "Qwen3": ["<|im_start|>", "<|im_end|>"],
    "Llama 3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "Mistral": [
        *("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        *("[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    ],
    "plain": ["<|end|>"],
    "tools": [*("<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]"), *("<start_function_call>", "<end_function_call>", "<escape>")],
    "gpt-oss": ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|call|>", "<|constrain|>"],
}
_NAMED = {
    "Qwen3": {"eos_token": "<|im_end|>"},
    "Llama 3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    "Mistral": {"bos_token": "<s>", "eos_token": "</s>"},
    "plain": {"eos_token": "<|end|>"},
    "tools": {"eos_token": "<|im_end|>"},
    "gpt-oss": {"eos_token": "<|return|>"},
}


def chat_tokenizer(kind: str) -> Any:
    """A byte-level tokenizer with the special tokens of a kind of model, and its template."""
    plain = pattern_bpe(QWEN_PATTERN)
    plain.add_special_tokens(_SPECIAL[kind])
    if kind == "Qwen3":
        plain.add_tokens([AddedToken(text) for text in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, **_NAMED[kind])
    tokenizer.chat_template = TEMPLATES.get(kind)
    return tokenizer


@cache
def chat_model(kind: str) -> HuggingFaceModel:
    """A random Qwen3 over such a tokenizer, in float64."""
    tokenizer = chat_tokenizer(kind)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id,
            tie_word_embeddings=False,
        )
        network = transformers.Qwen3ForCausalLM(config)
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(6.0)
    return models.from_transformers(network.double().eval(), tokenizer)
