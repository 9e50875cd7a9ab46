"""`PieceMaker`: a generator without its calls: model, sampler, constraint, parser, policies and draft. It makes the piece of a row, the
value of a finished row, and the values of a state (`squeezed`: without dimensions of size 1), or raises the first error of its rows
(`IncompleteOutput` for a constrained text that was cut).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from outlines_cont.drafts.opening import open_draft
from outlines_cont.engine.piece import Piece, RowLimits
from outlines_cont.errors import IncompleteOutput, NoHypothesis, OptionError, located, shortened
from outlines_cont.events.partial_type import PartialType
from outlines_cont.generation.choices.json_values import FieldFinder
from outlines_cont.generation.exact_choice import ExactChoice, temperature_of
from outlines_cont.generation.options import GENERATORS_OWN, Options, check_ids
from outlines_cont.generation.thinking import Thinking
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.stop import FreeText, StopAt
from outlines_cont.samplers import BeamSearch, BestOf, greedy
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState


class SpanConstraint(Protocol):
    """The policy that keeps a span inside a language: `Constraint`, `CheckedConstraint` or `ReplyConstraint`."""

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole text is in the language; the tokens begin with the bytes `healed`, no part of it."""

    def spelled(self, token_ids: Sequence[int], healed: bytes = b"") -> bytes:
        """Return a text as the language reads it, special tokens included."""


@dataclass(frozen=True, eq=False)
class PieceMaker(Immutable):
    """Base of `generate.Generator`, which documents the attributes."""

    model: LanguageModel
    sampler: Sampler | BeamSearch
    constraint: SpanConstraint | None
    parse: Callable[[Any], Any] = field(repr=False)
    source: str
    partial_type: PartialType | None = field(default=None, repr=False)
    steering: tuple[Policy[Any], ...] = field(default=(), repr=False)
    draft: Any = field(default=None, repr=False)
    unbounded: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    thinking: Thinking | None = field(default=None, repr=False)
    shown_schema: str = field(default="", repr=False)
    exact: ExactChoice | None = field(default=None, repr=False)
    fields: FieldFinder | None = field(default=None, repr=False)
    head = ""
    """What stands before an answer that is a text, by itself; see `ReplyMaker`."""
    parses_specials: bool = field(
        default=False, repr=False
    )  # `parse` is given the bytes that the language reads, not a text

    def policies(self, options: Options) -> list[Policy[Any]]:
        """Return the policies of a row: the constraint, those that the options imply, and those of the user."""
        model = self.model
        constraint = FreeText.of_model(model) if self.constraint is None else self.constraint
        policies = [cast("Policy[Any]", constraint)]
        if options.stop_at:
            stop_in_prompt, keep = options.stop_in_prompt, options.keep_stop
            policies.append(StopAt(options.stop_at, model.tokenizer, keep=keep, stop_in_prompt=stop_in_prompt))
        return policies + [policy.for_model(model) for policy in (*self.steering, *options.policies)]

    def piece(
        self,
        options: Options,
        *,
        sampler: Sampler | None = None,
        temperature: float | None = None,
        scores_end: bool = True,
    ) -> Piece:
        """Return the piece that rows write, by the sampler of the generator, if no other is given; a search takes the most probable tokens.

        With `scores_end` forced tokens at the end are fed for their log-probabilities; those of a search always are.
        """
        where = "as `stop_token_ids`, those of the model"
        check_ids(options.stop_token_ids, self.model.vocab_size, "ids", where, "stop_token_ids")
        own, is_beams = self.sampler, isinstance(self.sampler, BeamSearch)
        return Piece(
            policies=self.policies(options),
            sampler=sampler or (greedy() if isinstance(own, BeamSearch) else own),
            limits=RowLimits.of(self.model, options.stop_token_ids),
            max_tokens=options.max_tokens,
            min_tokens=options.min_tokens,
            temperature=temperature,
            drafter=None if is_beams else open_draft(self.draft_of(options), self.model),  # beam search uses no draft
            source=self.source,
            options=options.kept(),
            # Hypotheses are compared by all of their tokens.
            scores_end=scores_end or is_beams or isinstance(own, BestOf),
        )

    @property
    def chooses(self) -> bool:
        """Whether an answer begins with a choice of a text or calls."""
        return False

    def draft_of(self, options: Options) -> Any:
        """Return the draft of a call: the one given to the call, else that of the generator."""
        return self.draft if options.draft is GENERATORS_OWN else options.draft

    def thinking_of(self, options: Options) -> Thinking | None:
        """Return how a call thinks: as given to the call, else as the generator does."""
        found: Thinking | None = self.thinking if options.thinking is GENERATORS_OWN else options.thinking
        return found

    def chooses_exactly(self, options: Options) -> bool:
        """Return whether a call chooses one of the texts of `exact` as a whole; raise `OptionError` where it must and cannot."""
        if self.exact is None:
            if options.against is not None:
                self._check_against(options)
            return False
        return self.exact.is_used(self.sampler, options, has_policies=bool(self.steering))

    def _check_against(self, options: Options) -> None:
        """Raise `OptionError` where no field is chosen as a whole, so that `against` calibrates nothing."""
        if self.fields is None:
            raise OptionError(
                "expected a generator of `generate.choice`, or of `generate.json` with `exact_fields=True`, for `against`, whose options "
                f"it calibrates, got one of {shortened(self.source, 120)}. Omit it.",
                "against",
            )
        if not self.chooses_fields(options) or options.against == "batch" or options.heal:
            raise OptionError(
                "expected prompts without content as `against`, and nothing that changes single tokens (policies, stop texts, guidance, "
                f"healing, samplers other than `greedy` and `multinomial(temperature=...)`), got {shortened(repr(options.against))} with "
                f"{self.sampler!r}. Omit `against`, or the others.",
                "against",
            )

    def chooses_fields(self, options: Options) -> bool:
        """Return whether a call chooses the values of fields as wholes: where nothing acts on single tokens of them."""
        if self.fields is None or self.steering or temperature_of(self.sampler) is None:
            return False
        return not (options.policies or options.stop_at or options.is_guided)

    def finish(self, row: StateRow) -> StateRow:
        """Return a finished row with its value, which is None if a constrained text was cut."""
        if row.piece is not None:
            row = replace(row, piece=replace(row.piece, maker=self))
        if not self.is_whole(row):
            return replace(row, value=None)
        if self.parses_specials and self.constraint is not None and row.piece is not None:
            token_ids = row.token_ids[row.piece.start :]
            return replace(row, value=self.parse(self.constraint.spelled(token_ids, self._healed(row))))
        return replace(row, value=self.parse(self.piece_text(row)))

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row conforms to the constraint; free text always does, once the model has thought."""
        if row.piece is not None and row.piece.is_thinking:
            return False
        if self.constraint is None or row.finish_reason == "constraint":
            return True
        if row.finish_reason != "stop" or row.piece is None:
            return False
        # It may be the piece of another generator.
        return self.constraint.accepts(row.token_ids[row.piece.start :], self._healed(row))

    def value_of(self, state: SequenceState, max_tokens: int | None) -> Any:
        """Return the values of a state that a call with this limit has made, or raise the first error of its rows."""
        self._check([[self._row_error(row, max_tokens) for row in group] for group in state.rows], state)
        return squeezed(state.values)

    def check_stream(self, state: SequenceState, max_tokens: int | None) -> None:
        """Raise the first error of the rows of a stream; the end of a text at a stop text is none, as the caller has asked for it."""
        errors = [[self._row_error(row, max_tokens) for row in group] for group in state.rows]
        kept = [
            [None if isinstance(error, IncompleteOutput) and error.reason == "stop" else error for error in group]
            for group in errors
        ]
        self._check(kept, state)

    def _check(self, errors: list[list[Exception | None]], state: SequenceState) -> None:
        """Raise the first of the errors of the rows of a state, with all of them."""
        failed = [(b, s) for b, group in enumerate(errors) for s, error in enumerate(group) if error is not None]
        if not failed:
            return
        batch, sample = failed[0]
        first = errors[batch][sample]
        assert first is not None
        if len(errors) * len(errors[0]) > 1:
            first = errors[batch][sample] = located(first, batch, sample)
        first.results = squeezed(state.values)  # type: ignore[attr-defined]
        first.errors = squeezed(errors)  # type: ignore[attr-defined]
        raise first

    def _healed(self, row: StateRow) -> bytes:
        if row.piece is None or not row.piece.healed:
            return b""
        return self.model.tokenizer.text_bytes(row.token_ids[row.piece.start :])[: row.piece.healed]

    def piece_text(self, row: StateRow) -> str:
        """Return the text of the last piece of a row, without its thoughts; empty while the model thinks."""
        if row.piece is None or row.piece.is_thinking:
            return ""
        data = self.model.tokenizer.text_bytes(row.token_ids[row.piece.start :])
        return data[row.piece.healed :].decode("utf-8", errors="replace")

    def _row_error(self, row: StateRow, max_tokens: int | None) -> Exception | None:
        if row.error is not None or self.is_whole(row):
            return None if isinstance(row.error, NoHypothesis) else row.error
        text = self.piece_text(row)
        limit, advice = self._cut_by(row, max_tokens)
        return IncompleteOutput(
            f"expected a complete text that conforms to the constraint, but {limit} cut it to {shortened(repr(text))}. {advice}",
            text,
            row.finish_reason,
        )

    def _cut_by(self, row: StateRow, max_tokens: int | None) -> tuple[str, str]:
        """Return which limit cut a text, and what to do about it."""
        if row.finish_reason == "length" and row.piece is not None and row.piece.retries:
            advice = "A ban or a check may exclude every other text; or raise `max_tokens`."
            return f"the most tokens of the piece, after {row.piece.retries} retries of its policies,", advice
        if row.finish_reason != "length":
            return "a stop text", "Leave out `stop_at`, or use one that no conforming text contains."
        context = self.model.context_length
        if context is not None and len(row.token_ids) >= context:
            limit = f"the context of the model ({context} tokens)"
            return limit, "Shorten the prompt, or use a model with a longer context."
        if row.piece is not None and len(row.token_ids) - row.piece.start < (max_tokens or math.inf):
            limit = f"the context of the model ({context} tokens), which the negative prompt and the text fill,"
            return limit, "Shorten the negative prompt, or use a model with a longer context."
        return (
            "`max_tokens`",
            "Raise `max_tokens`, or use `continuous(generator)`, and continue its state with `resume`.",
        )


def squeezed(grid: list[list[Any]]) -> Any:
    """Return `[batch][sample]` lists without the dimensions of size 1."""
    rows = [group[0] for group in grid] if all(len(group) == 1 for group in grid) else grid
    return rows[0] if len(grid) == 1 else rows
