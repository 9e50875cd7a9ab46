"""`advice_for`: which field of this server does what an unknown field of a request does elsewhere: in vLLM, SGLang, llama.cpp or Ollama."""

from __future__ import annotations

from collections.abc import Collection

from outlines_cont.checks import did_you_mean

_ELSEWHERE = {
    **{f"guided_{kind}": f'structured_outputs: {{"{kind}": ...}}' for kind in ("json", "regex", "choice", "grammar")},
    "grammar": 'structured_outputs: {"grammar": ...}',
    "ebnf": 'structured_outputs: {"grammar": ...}',
    "regex": 'structured_outputs: {"regex": ...}',
    "choice": 'structured_outputs: {"choice": [...]}',
    "json_schema": 'response_format: {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}',
    "format": 'response_format: {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}',
    "structural_tag": 'structured_outputs: {"structural_tag": ...}',
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "enable_thinking": 'chat_template_kwargs: {"enable_thinking": ...}',
    "thinking": "reasoning_effort",
    "bad_words": "ban",
    "banned_strings": "ban",
    "functions": "tools",
    "function_call": "tool_choice",
    "stop_sequences": "stop",
    "num_return_sequences": "n",
    "ignore_eos_token": "ignore_eos",
    "negative_prompt": 'guidance: {"negative_prompt": ..., "scale": ...}',
    "options": "the fields of its members",
}
_ONE_FIELD = {"response_format": "text", "max_tokens": "max_output_tokens"}


def advice_for(name: str, fields: Collection[str]) -> str:
    """Return a sentence with the field that does the same, or one of a similar name; an empty text, if there is none.

    Args:
        name: the unknown field.
        fields: those of the request.
    """
    found = _ELSEWHERE.get(name, "")
    field, colon, value = found.partition(":")
    if found and field not in fields:
        field, colon, value = _ONE_FIELD.get(field, ""), "", ""
    if field in fields or (found and " " in field):
        return f" Here it is `{field}{colon}{value}`" if field in fields else f" Here they are {field}"
    return did_you_mean(name, [*fields]) or ""
