"""`APIError`: an error as clients of OpenAI's protocol read it, `{"error": {"message", "type", "param", "code"}}`, with its HTTP status.

`api_error` makes one of an exception that a request causes, in the words of HTTP: without advice for Python, and without paths.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Literal

from pydantic import BaseModel

from fsm import FSMError
from outlines_cont.errors import OutlinesContError

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
_CODES = {"OptionError": "invalid_value", "ContextLengthError": "context_length_exceeded"}
"""The codes of errors that clients know by another name than that of the class."""
_MODEL = re.compile(r"<\w*Model '[^']*'[^>]*>|<\w*Model [^>]*>")
_SENTENCE = re.compile(r"(?<=[.;!])\s+(?=[A-Z`])")
_PYTHON = re.compile(
    r"\b(?:fsm|generate|samplers|policies|models|generator|chat|state)\.\w"  # a name of this package
    r"|\w\(|\b\w+=(?:\.\.\.|[\w\['\"{])"  # a call, an argument
    r"|\b[Pp]ass `"
)


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
        param: the field of the request, with a JSON pointer into it where one is known.
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
        return APIError(400, in_words_of_http(str(error)), where, _code(error))
    _log.error("a request has failed", exc_info=error)
    return APIError(
        500, f"the server failed with {type(error).__name__}; its log has the details", None, "internal_error"
    )


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
