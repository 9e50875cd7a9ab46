"""`prompt_row`: returns the `StateRow` of the token ids of a prompt, with an empty KV cache; start tokens (BOS) are left out of its text,
and its `prompt_length` counts characters. `failed_prompt` returns the empty row of a prompt that failed. Also the checks that a prompt
is shorter than the context, and that not every prompt of a batch has failed.
"""

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
    """Return a row whose tokens are all of the prompt, and none in the KV cache.

    The first `num_start` ids (BOS) are not part of the text; None: the tokenizer's start tokens, if `token_ids` begins with them.
    """
    if num_start is None:
        num_start = num_start_tokens(token_ids, start_ids(model))
    row = StateRow.of_prompt(token_ids, stream, num_start)
    return replace(row, prompt_length=len(shown_text(token_ids, model.tokenizer, num_start)))


def failed_prompt(error: Exception, stream: RandomStream) -> StateRow:
    """Return a row without tokens that carries `error`, for a prompt of a batch that cannot be fed."""
    return replace(StateRow.of_prompt([], stream), error=error, finish_reason="error")


def check_length(model: LanguageModel, token_ids: Sequence[int], name: str = "prompt") -> None:
    """Raise `ContextLengthError` unless the prompt has fewer tokens than the context of the model, so that one more fits."""
    limit = model.context_length
    if limit is not None and len(token_ids) >= limit:
        raise ContextLengthError(
            f"expected a {name} of fewer than {limit} tokens, the context of the model, got {len(token_ids)}. "
            f"Shorten the {name}, or use a model with a longer context.",
            len(token_ids),
            limit,
        )


def check_some_run(errors: Sequence[Exception | None]) -> None:
    """Raise the first error if every entry of a batch has failed."""
    if errors and all(errors) and errors[0] is not None:
        raise located(errors[0], 0) if len(errors) > 1 else errors[0]
