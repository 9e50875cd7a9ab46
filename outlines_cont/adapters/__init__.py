"""Constraints for `model.generate` of transformers: a logits processor, and a function that lists the allowed tokens. Both follow a token
FSM over the ids of the rows; the engine does not run.

`adapters.pydantic_ai`, which is imported by its name, has a model for agents of pydantic-ai, whose replies are those of `Chat`.
"""

from typing import TYPE_CHECKING

from outlines_cont.adapters.opening import logits_processor, prefix_allowed_tokens_fn
from outlines_cont.adapters.processor import AllowedTokens, ConstraintProcessor
from outlines_cont.near_names import module_attributes

__all__ = ["AllowedTokens", "ConstraintProcessor", "logits_processor", "prefix_allowed_tokens_fn"]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist
    __getattr__ = module_attributes(__name__, __all__)
