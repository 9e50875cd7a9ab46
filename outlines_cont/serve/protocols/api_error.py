"""`APIError`: an error as clients of OpenAI's protocol read it, `{"error": {"message", "type", "param", "code"}}`, with its HTTP status.

`api_error` makes one of an exception that a request causes, in the words of HTTP: without advice for Python, and without paths.
`advice_for`: which field of this server does what an unknown one does elsewhere: in vLLM, SGLang, llama.cpp or Ollama.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel

from fsm import FSMError
from outlines_cont.errors import OutlinesContError
from outlines_cont.near_names import did_you_mean

_log = logging.getLogger("outlines_cont.serve")
_TOO_LONG = 2_000
_FIELDS = {
    "thinking": "reasoning_effort",
    "stop_at": "stop",
    "template_variables": "chat_template_kwargs",
    "keep_stop": "include_stop_str_in_output",
    "phrases": "ban",
}
"""The fields of options that have another name there."""
_OWN_FIELDS = {"stop_token_ids", "min_tokens", "stop_at", "keep_stop"}
"""The options that are fields, whatever an error is found with."""
_LIMITS = {"max_work": "`--max-schema-work`", "max_mask_work": "`--max-mask-work`"}
_CODES = {"OptionError": "invalid_value", "ContextLengthError": "context_length_exceeded"}
"""The codes of errors whose name for clients is not the name of the class."""
_MODEL = re.compile(r"<\w*Model '[^']*'[^>]*>|<\w*Model [^>]*>")
_SENTENCE = re.compile(r"(?<=[.;!])\s+(?=[A-Z`])")
_PYTHON = re.compile(
    r"\b(?:fsm|generate|samplers|policies|models|generator|chat|state)\.\w"  # a name of this package
    r"|\w\(|\b\w+=(?:\.\.\.|[\w\['\"{])"  # a call, an argument
    r"|\b[Pp]ass `"
)

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


class ErrorDetails(BaseModel):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """An error as it is sent."""

    error: ErrorDetails


class APIError(Exception):
    """An error of one request.

    Attributes:
        status: the HTTP status.
        param: the field of the request, with a JSON pointer into it if one is known.
        code: a short name, such as `model_not_found`.
        retry_after: in how many seconds to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.retry_after = status, param, code, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """What is sent."""
        code = self.code or ("invalid_value" if self.status < 500 else "internal_error")
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self)[:_TOO_LONG], "type": kind, "param": self.param, "code": code}}


def api_error(error: Exception, param: str | None = None) -> APIError:
    """Return the error of a request: 400 if this package has refused it, 500 for anything else, without its text, which is logged."""
    if isinstance(error, APIError):
        return error
    if isinstance(error, RecursionError):
        return APIError(400, "expected values that are nested less deeply", param, "nested_too_deeply")
    if isinstance(error, UnicodeEncodeError):
        return APIError(
            400, "expected texts without surrogates that stand alone, such as '\\ud800'", param, "invalid_text"
        )
    if isinstance(error, OutlinesContError | FSMError):
        pointer = getattr(error, "pointer", None)
        option = getattr(error, "option", None) or ""
        param = None if option in _OWN_FIELDS else param
        where = (
            f"{param}{pointer}" if param and isinstance(pointer, str) else param or _FIELDS.get(option, option) or None
        )
        if where is None and "negative prompt" in str(error):
            where = "guidance/negative_prompt"
        return APIError(400, in_words_of_http(str(error)) + _limit(error), where, _code(error))
    _log.error("a request has failed", exc_info=error)
    return APIError(
        500, f"the server failed with {type(error).__name__}; its log has the details", None, "internal_error"
    )


def _limit(error: Exception) -> str:
    """Return a sentence with the limit that an error is about; an empty text for other errors."""
    name = getattr(error, "limit", None)
    if not isinstance(error, FSMError) or not isinstance(name, str):
        return ""
    option = _LIMITS.get(name)
    return f" That is the limit `{name}` of this server{f' ({option})' if option else ''}."


def _code(error: Exception) -> str:
    name = type(error).__name__
    return _CODES.get(name) or re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def in_words_of_http(message: str) -> str:
    """Return a message of this package for who has sent a request: sentences with advice for Python go, and so does what names a folder."""
    message = _MODEL.sub("this model", message)
    for option, field in _FIELDS.items():
        message = message.replace(f"`{option}`", f"`{field}`")
    first, *others = _SENTENCE.split(message)
    return " ".join([first, *(one for one in others if _PYTHON.search(one) is None)])


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
