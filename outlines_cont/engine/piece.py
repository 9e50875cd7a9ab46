"""`Piece`: a span of text to be written, as a value: policies, sampler, limits, draft, and what follows it (`Next`). `RunningPiece`: a span
that a row is writing, with its limits, its text, and why it has ended. A row has one, which is replaced when the next begins (`Row.begin`).
`Sample`: how the next token of a row is drawn. `RowStatus`: what a row does in a step.

`RowLimits`: the limits of a row: minimal and maximal length, the context, and the tokens that end a text (those of the model, and stop
tokens). `sampled` adds the stop tokens to masks that allow an end of the model, and removes all ends below the minimal length unless
nothing else is allowed. `room`: how many tokens may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple, Self

from outlines_cont.engine.drawing.draw_plan import drawing_of, tempered
from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.immutable import changed
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import Exits, LazyTokenSet, TokenSet, check_mask
from outlines_cont.policies.healing import PieceText
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.policy_states import PolicyStates
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import HEALED, StateRow, Thoughts, WrittenPiece


class SampleMask(NamedTuple):
    """A mask of policies as it is sampled under."""

    given: TokenSet  # as the policies returned it
    mask: TokenSet  # with the stop tokens, or without ends
    has_text: bool  # whether it has a token that is no end; True for one that is not computed yet, see `LazyTokenSet`
    has_end: bool  # whether it has an end, if it has no other token


# How many masks are remembered with what they allow; most rows sample under few.
_NUM_MASKS = 512


@dataclass(frozen=True, slots=True, eq=False)
class RowLimits:
    """The length limits and end tokens of one generated span (piece)."""

    end_ids: frozenset[int]  # the tokens that end the text: those of the model and the stop tokens
    eos: TokenSet  # the same as a set for masks
    not_eos: TokenSet  # the others, as wide as the masks
    model_eos: TokenSet  # the tokens with which the model ends a text
    stop_tokens: TokenSet  # those of the call
    context_length: int | None  # the most tokens of a row; None for any number
    min_length: int = 0  # below it no end is drawn, unless nothing else is allowed
    max_length: int | None = None  # the most tokens of the row; None for any number
    max_written: int | None = None  # the same without healed tokens, if the end of the prompt is healed
    known: dict[int, SampleMask] = field(
        default_factory=dict, repr=False
    )  # masks as they are sampled under, by id, unless the row is too short; shared by all rows with the same ends

    @classmethod
    def of(cls, model: LanguageModel, stop_token_ids: Sequence[int]) -> Self:
        """Return the limits of rows of a model, without those of a call; without stop tokens the same object, which remembers masks."""
        if stop_token_ids:
            return cls._made(model, stop_token_ids)
        key = "row_limits", model.eos_token_ids, model.context_length
        known: Self | None = model.memo.get(key)
        return known or model.memo.setdefault(key, cls._made(model, ()))

    @classmethod
    def _made(cls, model: LanguageModel, stop_token_ids: Sequence[int]) -> Self:
        model_eos, stop_tokens = TokenSet.of(model.eos_token_ids), TokenSet.of(stop_token_ids)
        eos, end_ids = model_eos | stop_tokens, frozenset([*model.eos_token_ids, *stop_token_ids])
        not_eos = TokenSet.of_bitmask((~eos).bitmask(model.vocab_size))
        return cls(end_ids, eos, not_eos, model_eos, stop_tokens, model.context_length, max_length=model.context_length)

    def without_ends(self) -> Self:
        """Return the same limits for a row in which ends of text are tokens like all others."""
        return replace(self, end_ids=frozenset(), eos=TokenSet.none, not_eos=TokenSet.all, known={})

    def up_to(self, length: int | None) -> Self:
        """Return the same with a maximal length of `length` (None for any), or that of the context if smaller."""
        known = [limit for limit in (length, self.context_length) if limit is not None]
        return replace(self, max_length=min(known, default=None))

    def sampled(self, mask: TokenSet, vocab_size: int, *, is_short: bool) -> SampleMask:
        """Return a mask with the stop tokens where the model may end the text; without ends in a row that is too short, unless it has
        nothing else. It joins `known`, as policies return the same sets again.

        Raises `TypeError` for what is not a `TokenSet`, and `ValueError` for an id of `vocab_size` or more.
        """
        check_mask(mask, vocab_size, "sample_mask")
        sampled = self._sampled(mask, is_short=is_short)
        if not is_short and not isinstance(mask, LazyTokenSet):
            if len(self.known) >= _NUM_MASKS:
                self.known.clear()
            self.known[id(mask)] = sampled  # it holds the mask, so that no other one has its id
        return sampled

    def _sampled(self, given: TokenSet, *, is_short: bool) -> SampleMask:
        mask = given
        if self.stop_tokens and mask & self.model_eos:
            mask = mask | self.stop_tokens
        if is_short:
            mask = mask & ~self.eos or mask
        has_text = isinstance(mask, LazyTokenSet) or bool(mask & self.not_eos)
        return SampleMask(given, mask, has_text, has_end=has_text or bool(mask & self.eos))

    def context_room(self, length: int) -> int | None:
        """Return how many tokens the context has room for after `length`; None for any number."""
        return None if self.context_length is None else max(self.context_length - length, 0)

    def room(self, length: int, num_healed: int) -> int | None:
        """Return how many tokens may follow `length`, of which `num_healed` are or will be healed; None for any number."""
        room = None if self.max_length is None else max(self.max_length - length, 0)
        if self.max_written is None:
            return room
        written = max(self.max_written + num_healed - length, 0)
        return written if room is None else min(written, room)


class RowStatus(Enum):
    """What a row does in this step of the engine."""

    SAMPLING = "sampling"
    SCORING = "scoring"  # its forced tokens are fed for their log-probabilities
    WAITING = "waiting"
    CALLING = "calling"  # its program is to be called; see `Job.start_calls`
    LEAVING = "leaving"


@dataclass(frozen=True, eq=False, kw_only=True)
class Piece:
    """A span to be written, by any number of rows.

    Attributes:
        policies: those of each row; a piece without policies is steered branch by branch (`steering.follow`).
        sampler: how tokens are drawn.
        limits: the ends of text and the context; see `RowLimits.of`.
        max_tokens: the most tokens to append, forced ones included; None for the rest of the context.
        min_tokens: until the piece has this many tokens, no end is drawn unless nothing else is allowed.
        temperature: in place of that of the sampler; None for that.
        drafter: a `Drafter`, for speculative decoding, or None.
        source: the constraint as JSON; see `WrittenPiece`.
        scores_end: whether forced tokens at the very end are fed for their log-probabilities.
        horizon: at how many of the last positions logits are kept, if no policy wants more.
        options: those of the call, which the state keeps; see `WrittenPiece`.
        then: a function of the row that returns what follows the piece when it has ended without an error; None, or if it returns None,
            the row ends with the piece.
    """

    policies: Sequence[Policy[Any]] = ()
    sampler: Sampler
    limits: RowLimits
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    drafter: Any = None
    source: str = ""
    scores_end: bool = True
    horizon: int = 0
    options: Any = None
    then: Callable[[Any], Next | None] | None = None
    _drawings: dict[float | None, Drawing] = field(default_factory=dict, init=False, repr=False)

    def drawing(self, temperature: float | None = None) -> Drawing:
        """Return the drawing at a temperature; None for that of the piece."""
        wanted = self.temperature if temperature is None else temperature
        drawing = self._drawings.get(wanted)
        if drawing is None:
            plain = drawing_of(self.sampler) if wanted is None else self._drawings.get(None) or drawing_of(self.sampler)
            self._drawings[None] = plain
            drawing = self._drawings[wanted] = plain if wanted is None else tempered(plain, wanted)
        return drawing


@dataclass(frozen=True, slots=True, eq=False)
class Next:
    """What follows a piece in its row.

    Attributes:
        piece: what is to be written next.
        between: tokens to append first, which no policy reads. The row ends by its length if the context has no room for them.
        start: index of the first token of the piece; None for the end of the row.
        guidance: the negative prompt, a row, and the scale; see `Row.begin`.
        thoughts: those that have just ended; None for those that the row has.
        program: what decides on the row from then on; None to keep what does.
    """

    piece: Piece
    between: Sequence[int] = ()
    start: int | None = None
    guidance: tuple[StateRow, float] | None = None
    thoughts: Thoughts | None = None
    program: Any = None


class Sample(NamedTuple):
    """How the next token of a row is drawn; see `Branch`."""

    mask: TokenSet = TokenSet.all
    sequences: Sequence[list[int]] = ()
    temperature: float | None = None  # None for that of the piece
    exits: Exits | None = None
    drawing: Drawing | None = None  # how it is drawn at that temperature; None before the first


class RunningPiece:
    """A piece that a row is writing. Immutable: `changed` makes another.

    Attributes:
        spec: what is written.
        limits: those of this row.
        text: where the piece begins, and how far its text is final.
        owed: forced tokens that a limit has cut off.
        given: the row as it was given, if token healing has removed its last tokens.
        finish_reason, stop: why the piece has ended, empty until then; the stop text or stop token, if one did.
        ends_row: whether the row ends with the piece, as nothing follows it.
        error: what the piece has failed with, if the row goes on.
        thoughts: what the model has thought before the piece, or thinks in it; None without thinking.
        drafted, reused: see `WrittenPiece`.
    """

    def __init__(self, piece: Piece, written: WrittenPiece, text: PieceText, length: int) -> None:
        """Begin in a row of `length` tokens; `written` is the part of the piece that the row has already."""
        self.spec, self.text, self.ends_row = piece, text, piece.then is None
        longest = None if piece.max_tokens is None else length + piece.max_tokens
        # The tokens that respell a healed end do not count.
        limits = piece.limits.up_to(None if text.healed else longest)
        max_written = longest if text.healed else None
        self.limits = replace(limits, min_length=written.start + piece.min_tokens, max_written=max_written)
        self.owed = written.owed
        self.given: StateRow | None = None
        self._first = length
        self.finish_reason = ""
        self.stop: str | int | None = None
        self.error: Exception | None = None
        self.thoughts: Thoughts | None = written.thoughts
        self.drafted, self.reused = written.drafted, 0

    def guided_by(self, prompt: StateRow) -> Self:
        """Return the piece with a negative prompt; it ends where one of both sequences has reached the end of the context."""
        if self.limits.context_length is None:
            return self
        room = self.limits.context_length - len(prompt.token_ids)
        most = self.limits.max_length or self.limits.context_length
        return changed(self, limits=replace(self.limits, max_length=min(self.text.start + room, most)))

    @property
    def horizon(self) -> int:
        """At how many of the last positions logits are kept."""
        return max((policy.horizon for policy in self.spec.policies), default=self.spec.horizon)

    @property
    def has_ended(self) -> bool:
        """Whether the piece has ended."""
        return bool(self.finish_reason)

    @property
    def is_thinking(self) -> bool:
        """Whether the model thinks in this piece, before its answer."""
        return self.thoughts is not None and self.thoughts.is_open

    def room(self, token_ids: Sequence[int], kinds: bytes | bytearray, following: Sequence[int] = ()) -> int | None:
        """Return how many tokens may be appended to those of the row, `following` first, of which healed ones do not count; None for any
        number.
        """
        if self.limits.max_written is None:
            return self.limits.room(len(token_ids), 0)
        healed = kinds.count(HEALED, self._first)
        return self.limits.room(len(token_ids), healed + self.text.num_healing(token_ids, following))

    def record(self, policies: PolicyStates) -> WrittenPiece:
        """Return what is needed to resume the piece, with the states of its policies."""
        return WrittenPiece(
            self.text.start,
            source=self.spec.source,
            retries=policies.retries,
            rejections=policies.rejections,
            policy_retries=policies.retries_of_each,
            options=self.spec.options,
            owed=self.owed,
            exclusions=policies.exclusions,
            stop=self.stop,
            healed=len(self.text.healed),
            thoughts=self.thoughts,
            drafted=self.drafted,
            reused=self.reused,
        )
