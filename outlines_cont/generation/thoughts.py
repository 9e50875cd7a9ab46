"""`OpenThinking`: a `Thinking` for one model: thoughts as a piece, free text up to the mark that ends them. When they have ended, what is
missing of the mark follows, then the answer, in the same row, as a new row would after the same tokens.

`Answer`: an answer as a piece, which may begin with a choice that is a piece of its own: a text, which then begins behind a head, or calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from outlines_cont.engine.piece import Next, Piece
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.errors import ContextLengthError
from outlines_cont.generation.thinking import Thinking, end_name, is_thinking
from outlines_cont.immutable import changed
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import FREE, Branch, TokenSet
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.policies.stop import FreeText, StopAt
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import StateRow, Thoughts, WrittenPiece
from outlines_cont.state.text import encoded_after, extended
from outlines_cont.state.tokens import Tokens


class _EndToken(Policy[bool]):
    """Stops after a special token; its state is whether that was drawn."""

    def __init__(self, token_id: int, name: str) -> None:
        self._token_id, self._name = token_id, name

    def initial(self, row: RowView) -> bool:
        """Return that it was not drawn."""
        return False

    def advance(self, state: bool, token_id: int) -> bool:
        """Return whether it is drawn now, or was before."""
        return state or token_id == self._token_id

    def branches(self, state: bool, row: RowView) -> list[Branch]:
        """Return free sampling, and no branch after the token."""
        return [] if state else FREE

    def stop(self, state: bool) -> str | None:
        """Return the name of the token, if it was drawn."""
        return self._name if state else None


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen(Policy[None]):
    """Stops when a choice is made; see `Answer.choice`."""

    choice: Callable[[Sequence[int], int], str | None]

    def initial(self, row: RowView) -> None:
        """Return no state."""

    def advance(self, state: None, token_id: int) -> None:
        """Return no state."""

    def branches(self, state: None, row: RowView) -> list[Branch]:
        """Return free sampling, and no branch after the choice."""
        return FREE if self.choice(row.token_ids, row.piece_start) is None else []


@dataclass(frozen=True, slots=True, eq=False)
class OpenThinking:
    """`Thinking` for a model, with its marks."""

    model: LanguageModel
    begin: str
    end: str
    max_tokens: int | None
    sampler: Sampler | None

    @classmethod
    def of(cls, thinking: Thinking, model: LanguageModel, head: str = "") -> OpenThinking:
        """Return a `Thinking` for a model; raise `OptionError` if no marks were given, and none are found.

        `head` is what the answer begins with by itself, if it is a text: no part of the mark.
        """
        begin, end = thinking.marks(model)
        return cls(model, begin, end.removesuffix(head), thinking.max_tokens, thinking.sampler)

    @property
    def end_name(self) -> str | None:
        """The special token that begins the mark at the end, if one does."""
        return end_name(self.model.tokenizer, self.end)

    @property
    def end_text(self) -> str:
        """By what the model ends its thoughts: a special token, or the mark without white space."""
        return self.end_name or self.end.strip()

    def opened(self, row: StateRow) -> StateRow:
        """Return a row to be continued with thoughts: with the mark that begins them, unless it ends inside of thoughts.

        Raises:
            ContextLengthError: there is no room for the mark.
        """
        if not self.begin or is_thinking(self.model.tokenizer, row.token_ids, self.begin, self.end):
            return row
        found = extended(row, Tokens(self.begin, special=True), self.model.tokenizer)
        limit = self.model.context_length
        if limit is not None and len(found.token_ids) >= limit:
            raise ContextLengthError(
                f"expected a prompt of fewer than {limit} tokens, the context of the model, with the mark {self.begin!r} after it, "
                f"got {len(found.token_ids)}. Shorten the prompt, or use a model with a longer context.",
                len(found.token_ids),
                limit,
            )
        return found

    def piece_before(self, answer: Answer, written: int = 0) -> Piece:
        """Return the thoughts before an answer as a piece, of which `written` tokens are there already; the answer follows it."""
        tokenizer, name = self.model.tokenizer, self.end_name
        free = FreeText.of_model(self.model)
        policies: list[Policy[Any]] = [free, StopAt(self.end_text, tokenizer, keep=True)]
        if name is not None:
            token_id = min(i for i, one in tokenizer.special_tokens.items() if one == name)
            mask = TokenSet.of_bitmask((free.token_ids | TokenSet.of([token_id])).bitmask(self.model.vocab_size))
            policies = [replace(free, token_ids=mask, spelling=lambda _: [Branch(sample_mask=mask)])]
            policies.append(_EndToken(token_id, name))
        return replace(
            answer.piece,
            policies=policies,
            sampler=self.sampler or answer.piece.sampler,
            max_tokens=None if self.max_tokens is None else max(self.max_tokens - written, 0),
            min_tokens=0,
            then=partial(self._answered, answer),
        )

    def think(self, row: Row, written: WrittenPiece | None) -> None:
        """Note that a row, which was not submitted yet, thinks in its piece; `written` is the piece that it resumes, if it does."""
        if written is None:
            row.piece = changed(row.piece, thoughts=Thoughts(row.piece_start))
        elif written.ended:
            row.piece = changed(row.piece, stop=written.stop)
            row.end(written.ended)

    def _answered(self, answer: Answer, row: Row) -> Next:
        """Return the answer of a row whose thoughts have ended, behind the rest of their mark."""
        rest = self.rest(row.piece.stop, row.token_ids)
        first = answer.first([*row.token_ids, *rest], row.length + len(rest))
        return Next(first, between=rest, thoughts=self._thoughts(row), program=answer.program_of(first))

    def _thoughts(self, row: Row) -> Thoughts:
        """Return the thoughts of a row that have just ended."""
        before, reason = row.piece.thoughts, row.piece.finish_reason
        assert before is not None
        stop, num_mark = row.length, 0
        if row.piece.stop == self.end_text:
            is_token = self.end_name is not None
            stop, num_mark = (stop - 1, 0) if is_token else (stop, len(self.end_text.encode()))
        return Thoughts(before.start, stop, num_mark, reason)

    def rest(self, stop: str | int | None, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens to append to a row whose thoughts have ended, by the text `stop` or without it."""
        rest = self.end if stop != self.end_text else self.end[self.end.index(self.end_text) + len(self.end_text) :]
        return encoded_after(token_ids, Tokens(rest, special=True), self.model.tokenizer)


class TextRows(Protocol):
    """The rows that choose one of some texts as a whole; see `choice_rows.ChoiceRows`."""

    def prepare(self, row: Row) -> None:
        """Take a row that was not submitted yet, and chooses where it begins."""

    def program(self) -> RowProgram:
        """Return the program of a row that chooses."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """An answer as a piece.

    Attributes:
        piece: the answer, a text behind its head or calls.
        choosing: the piece that chooses; None if there is no choice.
        choice: from the tokens of a row and the start of its piece, what it is, `"text"` or `"calls"`; None while that is open.
        guidance: the negative prompt of the answer, and the scale.
        texts: for an answer that is one of some texts, chosen as a whole, the rows that choose; else None.
    """

    piece: Piece
    choosing: Piece | None = None
    choice: Callable[[Sequence[int], int], str | None] | None = None
    guidance: tuple[StateRow, float] | None = None
    texts: TextRows | None = None

    @classmethod
    def choosing_by(cls, constraint: Any, piece: Piece, guidance: tuple[StateRow, float] | None) -> Answer:
        """Return an answer that begins with a choice by a constraint, which has the method `choice`."""
        policies = [constraint, _Chosen(constraint.choice)]
        choosing = replace(piece, policies=policies, max_tokens=None, min_tokens=0, drafter=None)
        return cls(piece, choosing, constraint.choice, guidance)

    def first(self, token_ids: Sequence[int], start: int) -> Piece:
        """Return the first piece of the row; its own tokens begin at `start`."""
        if self.choosing is None or self.choice is None or self.choice(token_ids, start) is not None:
            return self.piece
        return replace(self.choosing, then=self._chosen)

    def program_of(self, first: Piece) -> RowProgram | None:
        """Return the program of a row that begins with `first`; None if it is drawn token by token."""
        return self.texts.program() if self.texts is not None and first is self.piece else None

    def _chosen(self, row: Row) -> Next | None:
        """Return the answer of a row that has chosen; None if it has not, as the context is full.

        A text begins behind its head; calls begin with the tokens that were drawn.
        """
        assert self.choice is not None
        chosen, piece = self.choice(row.token_ids, row.piece_start), self.piece
        if chosen is None and row.piece.finish_reason != "constraint":
            return None
        start = row.piece_start if chosen is not None else row.length
        if piece.max_tokens is not None:
            piece = replace(piece, max_tokens=max(piece.max_tokens - (row.length - start), 0))
        return Next(piece, start=start, guidance=self.guidance)
