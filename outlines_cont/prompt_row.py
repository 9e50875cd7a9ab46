"""Rows that are prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outlines_cont.interfaces import LanguageModel
from outlines_cont.random_stream import RandomStream
from outlines_cont.row_bytes import shown_text
from outlines_cont.state_row import StateRow
from outlines_cont.tokens import num_start_tokens, start_ids


def prompt_row(
    token_ids: Sequence[int], model: LanguageModel, stream: RandomStream, num_start: int | None = None
) -> StateRow:
    """Return a row of which nothing was fed yet, and all of which is the prompt.

    Args:
        token_ids: its ids.
        model: whose ids they are.
        stream: where its random numbers come from.
        num_start: how many of the first are no part of the text; None for those with which the tokenizer begins every text, where
            they are there.
    """
    if num_start is None:
        num_start = num_start_tokens(token_ids, start_ids(model))
    row = StateRow.of_prompt(token_ids, stream, num_start)
    return replace(row, prompt_length=len(shown_text(token_ids, model.tokenizer, num_start)))
