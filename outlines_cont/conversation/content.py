"""`Content`: the immutable content of a conversation: its tokens with their KV cache, how many of them are pending, and its constraint.
Texts, token ids, drawn tokens (`Drawn`) and rows of states are appended, and tokens removed, as functions from one content to the next;
nothing is fed here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from outlines_cont.conversation.constraint import ConversationConstraint
from outlines_cont.errors import ContextLengthError, EmptyPrompt, OptionError, PromptTypeError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import GENERATED, StateRow
from outlines_cont.state.text import extended, joined, kept_tokens, tail_tokens
from outlines_cont.state.tokens import Tokens, checked_given, num_start_tokens, prompt_ids, prompt_row, start_ids


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token that was drawn for a row, with its log-probability by the model and that with which it was drawn.

    `stream` is the random stream of the row after the draw, `mirostat` whether the sampler has that warper.
    """

    token_id: int
    logprob: float
    sampling_logprob: float
    stream: RandomStream
    mirostat: bool


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The immutable content of a conversation, which forks and marks share."""

    row: StateRow  # its tokens, with their keys and values
    num_pending: int  # how many of the last tokens of `row` were not fed
    constraint: ConversationConstraint | None = None  # on what follows; None for none
    # index of the first token whose keys and values are not exactly those of a fresh run; None if all are
    approximate_from: int | None = None

    @property
    def exact_row(self) -> StateRow:
        """The row without keys and values that are approximate."""
        first = self.approximate_from
        return self.row if first is None else replace(self.row, kv=kept_tokens(self.row, first).kv, logits=None)

    def with_row(
        self, row: StateRow, num_pending: int, model: LanguageModel, dropped: tuple[int, int] = (0, 0)
    ) -> Content:
        """Return the content with another row, if the constraint allows it; the tokens between the indices `dropped` were removed."""
        constraint, first = self.constraint, self.approximate_from
        if constraint is not None:
            start = constraint.start - max(min(constraint.start, dropped[1]) - dropped[0], 0)
            constraint = constraint.after(row.token_ids, min(start, len(row.token_ids)), model.eos_token_ids)
        is_approximate = first is not None and first < row.cached
        return Content(row, num_pending, constraint, first if is_approximate else None)

    def grown(self, row: StateRow, model: LanguageModel) -> Content:
        """Return the content with a longer row; `ContextLengthError` if it exceeds the context."""
        if row is self.row:
            return self
        length, limit = len(row.token_ids), model.context_length
        if limit is not None and length > limit:
            raise ContextLengthError(
                f"expected at most {limit} tokens, the context of the model; with the prompt a conversation has {length}. Prompt less, "
                "or use a model with a longer context.",
                length,
                limit,
            )
        return self.with_row(row, self.num_pending + length - len(self.row.token_ids), model)

    def with_text(self, given: str | Tokens, model: LanguageModel) -> Content:
        """Return the content with a text appended; start tokens are put before the first one."""
        checked_given(given, model)
        if self.row.token_ids:
            return self.grown(extended(self.row, given, model.tokenizer), model)
        token_ids, num_start = prompt_ids(given, model)
        text = given if isinstance(given, str) else given.text
        if text and not token_ids:
            raise EmptyPrompt(f"expected a text that encodes to one token or more, got {text[:40]!r}")
        row = prompt_row(token_ids, model, self.row.stream, num_start)
        row = replace(row, counted=self.row.counted.joined(row.counted))
        return self.grown(row, model)

    def with_ids(self, prompt: Any, model: LanguageModel) -> Content:
        """Return the content with token ids appended."""
        token_ids = _checked_ids(prompt, model.vocab_size)
        row = self.row
        num_start = row.num_start_tokens if row.token_ids else num_start_tokens(token_ids, start_ids(model))
        return self.grown(replace(row.append(token_ids, reset=False), num_start_tokens=num_start), model)

    def with_token(self, drawn: Drawn, model: LanguageModel) -> Content:
        """Return the content with a drawn token appended."""
        row = replace(
            self.row,
            token_ids=(*self.row.token_ids, drawn.token_id),
            kinds=self.row.kinds + GENERATED,
            logprobs=(*self.row.logprobs, drawn.logprob),
            sampling_logprobs=(*self.row.sampling_logprobs, drawn.sampling_logprob),
            stream=drawn.stream,
            logits=None,
            piece=None,
            finish_reason="",
            value=None,
            mirostat_start=self.row.next_mirostat_start if drawn.mirostat else None,
        )
        return self.grown(row, model)

    def with_state_row(self, other: StateRow, model: LanguageModel) -> Content:
        """Return the content with the tokens of a row of a state appended; an empty content takes its keys and values, too."""
        if self.row.token_ids:
            return self.grown(joined(self.row, other, model.tokenizer), model)
        return self.with_row(replace(other, stream=self.row.stream), other.pending, model)

    def without(self, start: int, stop: int, model: LanguageModel, kv: RowKV | None) -> Content:
        """Return the content without some tokens; `kv` are approximate keys and values; None recomputes those of later tokens."""
        row, content = _without(self.row, start, stop), self
        if kv is not None:
            row = replace(row, kv=kv)
            first = start if self.approximate_from is None else min(self.approximate_from, start)
            content = replace(self, approximate_from=first)
        length = len(self.row.token_ids)
        num_dropped = max(stop - max(start, length - self.num_pending), 0)
        return content.with_row(row, self.num_pending - num_dropped, model, dropped=(start, stop))


def _checked_ids(prompt: int | Iterable[int], vocab_size: int) -> list[int]:
    try:
        if isinstance(prompt, bytes | bytearray):
            raise TypeError
        items: Any = [prompt] if hasattr(prompt, "__index__") and not getattr(prompt, "shape", ()) else prompt
        token_ids = [index(item) for item in items]
    except TypeError:
        raise PromptTypeError(
            f"expected a text, token ids or a SequenceState as a prompt, got {type(prompt).__name__}"
        ) from None
    odd = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if odd is not None:
        raise OptionError(f"expected token ids from 0 to {vocab_size - 1} as a prompt, got {odd}", "prompt")
    return token_ids


def _without(row: StateRow, start: int, stop: int) -> StateRow:
    """Return the row without some tokens, with the keys and values of those before them; those after them become appended tokens."""
    head, rest = kept_tokens(row, start), tail_tokens(row, stop, len(row.token_ids))
    return replace(
        head,
        token_ids=head.token_ids + rest.token_ids,
        kinds=head.kinds + rest.kinds,
        logprobs=head.logprobs + rest.logprobs,
        sampling_logprobs=head.sampling_logprobs + rest.sampling_logprobs,
    )
