"""Prompts as rows: rows of which nothing was fed yet, and the checks that a batch of prompts passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlines_cont.errors import ContextLengthError, located
from outlines_cont.interfaces import LanguageModel
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from outlines_cont.state.row_bytes import shown_text
from outlines_cont.state.tokens import num_start_tokens, start_ids


def prompt_row(
    token_ids: Sequence[int], model: LanguageModel, stream: RandomStream, num_start: int | None = None
) -> StateRow:
    """Return a row of which nothing was fed yet, and all of which is the prompt.

    `num_start` of the first ids are not part of the text; None for those with which the tokenizer begins every text, where they are there.
    """
    if num_start is None:
        num_start = num_start_tokens(token_ids, start_ids(model))
    row = StateRow.of_prompt(token_ids, stream, num_start)
    return replace(row, prompt_length=len(shown_text(token_ids, model.tokenizer, num_start)))


def failed_prompt(error: Exception, stream: RandomStream) -> StateRow:
    """Return a row without tokens, in the place of a prompt that cannot be fed."""
    return replace(StateRow.of_prompt([], stream), error=error, finish_reason="error")


def check_length(model: LanguageModel, token_ids: Sequence[int], name: str = "prompt") -> None:
    """Raise `ContextLengthError` for a prompt behind which the context of the model has no room."""
    limit = model.context_length
    if limit is not None and len(token_ids) >= limit:
        raise ContextLengthError(
            f"expected a {name} of fewer than {limit} tokens, the context of the model, got {len(token_ids)}. "
            f"Shorten the {name}, or use a model with a longer context.",
            len(token_ids),
            limit,
        )


def check_some_run(errors: Sequence[Exception | None]) -> None:
    """Raise the first of the errors of all entries of a batch, where every entry has one."""
    if errors and all(errors) and errors[0] is not None:
        raise located(errors[0], 0) if len(errors) > 1 else errors[0]
