"""`Content`: what a conversation holds, as an immutable value that its forks and marks share: a state of one row, how many of its tokens
were fed (the rest is the pending request), and the constraint on what follows. The state appends, joins and cuts tokens.

`ConversationConstraint`: a token FSM in the state to which the tokens from some index on lead (`TokenNotAllowed` if they fail), up to
an end of text, after which every token is allowed. Of that of a loaded file only the index is known: `ConstraintRequired` until it is
set again.

`drawn`: draws one token after each of several contents from their logits, or from given scores, under their constraints and a mask, as
one batch with the random stream of each, and appends it with its log-probabilities by the model and as drawn. Where one cannot be
drawn, none is: `DeadEnd` (no allowed token has a probability), `InvalidLogits`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import torch

from fsm import Expression, TokenFSM
from fsm.errors import stacklevel_of_user
from fsm.expression import lift
from outlines_cont.checks import check
from outlines_cont.engine.drawing.draw_plan import draw_with, drawing_of
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.engine.row import invalid_logits
from outlines_cont.errors import (
    ConstraintRequired,
    ConstraintWarning,
    DeadEnd,
    EmptyPrompt,
    OptionError,
    PromptTypeError,
)
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet, check_mask
from outlines_cont.policies.constraint import Constraint
from outlines_cont.samplers import greedy
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.image_span import ceiling, floor
from outlines_cont.state.row import GENERATED, StateRow
from outlines_cont.state.sequence_state import SequenceState, only_row
from outlines_cont.state.tokens import Tokens, check_length, checked_given, prompt_ids, prompt_row


@dataclass(frozen=True, slots=True, eq=False)
class ConversationConstraint:
    """A constraint on the tokens from `start` on, with the state of its token FSM after those that were read."""

    start: int = 0
    token_fsm: TokenFSM | None = None  # None if there is none, or it is not known, in a loaded conversation
    state: int | None = None  # None if every token is allowed: without a constraint, and after an end of text

    @property
    def mask(self) -> TokenSet:
        """The token ids that may be sampled next, with ends of text if the text may end; `ConstraintRequired` if not known."""
        return TokenSet.all if self.state is None else TokenSet.of_bitmask(self._known.bitmask(self.state))

    @property
    def is_accepting(self) -> bool:
        """Whether the text is in the language, or may be any; `ConstraintRequired` if not known."""
        return self.state is None or self._known.is_accepting(self.state)

    @property
    def is_lost(self) -> bool:
        """Whether it is that of a loaded conversation, and was not set again."""
        return self.token_fsm is None and self.state is not None

    def after(self, token_ids: Sequence[int], eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint after more tokens; `fsm.TokenNotAllowed` if one breaks it."""
        fsm, state = self.token_fsm, self.state
        for token_id in token_ids:
            if fsm is None or state is None:
                break
            is_end = token_id in eos_token_ids and fsm.is_accepting(state)
            state = None if is_end else fsm.next_state(state, token_id)
        return replace(self, state=state)

    def anew(self, start: int, token_ids: Sequence[int], eos_token_ids: frozenset[int]) -> ConversationConstraint:
        """Return the constraint from `start` on after all `token_ids` of a conversation. Cost: those from `start` on."""
        state = self.state if self.token_fsm is None else self.token_fsm.initial_state
        return replace(self, start=start, state=state).after(token_ids[start:], eos_token_ids)

    @property
    def _known(self) -> TokenFSM:
        if self.token_fsm is None:
            raise ConstraintRequired(
                f"expected the constraint from token {self.start} on with which this conversation was saved: a file does not have it. "
                "Call `constrain(expression)` once more, which reads the text from there, or `constrain(None)` to lift it.",
                self.start,
            )
        return self.token_fsm


_FREE = ConversationConstraint()


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """The immutable content of a conversation."""

    state: SequenceState  # of one row
    num_fed: int = 0  # how many of its tokens were fed; the others are pending
    constraint: ConversationConstraint = _FREE  # on what follows
    # index of the first token whose keys and values are not exactly those of a fresh run; None if all are
    approximate_from: int | None = None

    @classmethod
    def of(cls, row: StateRow, model: LanguageModel, constrained_from: int | None = None) -> Content:
        """Return a content that begins with a row; `constrained_from` is where a constraint began that is not known."""
        constraint = _FREE if constrained_from is None else ConversationConstraint(constrained_from, state=0)
        return cls(SequenceState(model, ((row,),), row.stream.seed), len(row.token_ids) - row.pending, constraint)

    @property
    def row(self) -> StateRow:
        """The row of the state."""
        return self.state.rows[0][0]

    @property
    def exact_state(self) -> SequenceState:
        """The state without keys and values that are approximate."""
        row, first = self.row, self.approximate_from
        if first is None:
            return self.state
        return _with_row(
            self.state, replace(row, kv=row.kv[:first] if row.kv is not None and first else None, logits=None)
        )

    def with_row(self, row: StateRow) -> Content:
        """Return the content with another row of the same tokens."""
        return replace(self, state=_with_row(self.state, row))

    def longer(self, row: StateRow) -> Content:
        """Return the content with a row of more tokens, which are pending; `fsm.TokenNotAllowed` if the constraint refuses one."""
        added = row.token_ids[len(self.row.token_ids) :]
        constraint = self.constraint.after(added, self.state.model.eos_token_ids)
        return replace(self.with_row(row), constraint=constraint)

    def prompted(self, prompt: str | Tokens | list[int] | SequenceState) -> Content:
        """Return the content with text, ids, or the tokens of a state after it; see `Conversation.prompt`."""
        state, row, model = self.state, self.row, self.state.model
        if isinstance(prompt, SequenceState):
            taken = replace(given_row(prompt, model), stream=row.stream)
            if not row.token_ids:
                return replace(self.longer(taken), num_fed=len(taken.token_ids) - taken.pending)
        elif prompt == []:
            return self
        elif not row.token_ids:
            prompt = _with_row(state, _first_row(prompt, model, row.stream))
        return self.longer(state.append(prompt).rows[0][0])

    def constrained(self, expression: Expression | str | None) -> Content:
        """Return the content with another constraint; see `Conversation.constrain`."""
        if expression is None:
            return replace(self, constraint=_FREE)
        token_ids, model, old = self.row.token_ids, self.state.model, self.constraint
        token_fsm = Constraint.of_model(model, lift(expression), force=False).token_fsm
        start = old.start if old.is_lost else len(token_ids)
        new = ConversationConstraint(token_fsm=token_fsm).anew(start, token_ids, model.eos_token_ids)
        return replace(self, constraint=new)

    def without(self, start: int, stop: int, kv: RowKV | None = None) -> Content:
        """Return the content without some tokens; `kv` are approximate keys and values; None recomputes those of later tokens.

        A constraint is lifted, with a `ConstraintWarning`, if nothing is left from a position before its beginning on.
        """
        images = self.row.images
        start, stop = floor(images, start), ceiling(images, stop)  # an image goes as a whole
        row, first, constraint = _without(self.state, start, stop), self.approximate_from, self.constraint
        kv = None if images else kv  # positions of an image are none that a rotation moves
        if start < constraint.start and stop == len(self.row.token_ids):
            _warn_of_lifting(constraint, start)
            constraint = _FREE
        begin = min(max(constraint.start - (stop - start), start), constraint.start)
        constraint = constraint.anew(begin, row.token_ids, self.state.model.eos_token_ids)
        if kv is not None:
            row, first = replace(row, kv=kv), start if first is None else min(first, start)
        is_approximate = first is not None and first < row.cached
        num_fed = self.num_fed - max(min(stop, self.num_fed) - start, 0)
        return Content(_with_row(self.state, row), num_fed, constraint, first if is_approximate else None)


def checked_ids(prompt: int | Iterable[int], vocab_size: int) -> list[int]:
    """Return ids that were given as one, a sequence, or an array; `PromptTypeError` for something else, `OptionError` out of range."""
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


def given_row(state: SequenceState, model: LanguageModel) -> StateRow:
    """Return the row of a state of one row of `model`; `OptionError` if it has failed."""
    row = only_row(state, model, "a conversation")
    if row.error is not None:
        raise OptionError(f"expected a state that has not failed, got one with {row.error!r}", "state")
    return row


def _with_row(state: SequenceState, row: StateRow) -> SequenceState:
    return replace(state, rows=((row,),))


def _first_row(prompt: str | Tokens | list[int], model: LanguageModel, stream: RandomStream) -> StateRow:
    """Return the row of the first prompt of a conversation; start tokens are put before a text."""
    given = tuple(prompt) if isinstance(prompt, list) else checked_given(prompt, model)
    token_ids, num_start = prompt_ids(given, model)
    text = given.text if isinstance(given, Tokens) else given
    if text and not token_ids:
        raise EmptyPrompt(f"expected a text that encodes to one token or more, got {text[:40]!r}")
    return prompt_row(token_ids, model, stream, num_start)


def _without(state: SequenceState, start: int, stop: int) -> StateRow:
    """Return the row of a state of one row without some tokens; those after them lose their keys and values."""
    row, head, tail = state.rows[0][0], state.tokens[:start], state.tokens[stop:]
    num_left = row.num_start_tokens - stop
    if num_left > 0:
        # A sum would leave out start tokens of its right side.
        inside = replace(tail.rows[0][0], num_start_tokens=0, starts_inside=True)
        joined = head.append(_with_row(tail, inside)).rows[0][0]
        return replace(joined, num_start_tokens=start + num_left, starts_inside=row.starts_inside)
    return (head.append(tail) if stop < len(row.token_ids) else head).rows[0][0]


def _warn_of_lifting(constraint: ConversationConstraint, start: int) -> None:
    warnings.warn(
        f"the constraint from token {constraint.start} on was lifted, as the conversation was rewound to token {start}, "
        "before its beginning. Call `constrain` for the text that follows, or before the rewind `constrain(None)`, to lift it "
        "without a warning.",
        ConstraintWarning,
        stacklevel=stacklevel_of_user(),
    )


_TAIL_TOKENS = 8


def drawn(
    contents: Sequence[Content],
    sampler: Sampler,
    mask: TokenSet,
    scores: torch.Tensor | None,
    masker: Masker,
    *,
    append: bool,
) -> list[tuple[int, Content]]:
    """Return the token that is drawn for each of R contents, one or more, and the content after it.

    The content has advanced its random stream, and has the token with `append`.

    Args:
        contents: of one model, with known logits; they are not changed.
        sampler: draws one token.
        mask: the tokens that may be drawn; the constraint of each content applies, too.
        scores: (R, V) to draw from instead of the logits.
        masker: applies the masks.
        append: whether the tokens are appended.

    Raises:
        OptionError: `scores` have another shape or type than the logits.
        ConstraintRequired: the constraint of a content is not known.
        InvalidLogits, DeadEnd: nothing can be drawn for one of the contents.
        ContextLengthError: one has no room for another token.
    """
    model, rows = contents[0].state.model, [content.row for content in contents]
    logits = torch.stack([row.logits for row in rows if row.logits is not None])
    _check_scores(scores, logits)
    for row in rows if append else ():
        check_length(model, row.token_ids, "conversation")
    masks = [content.constraint.mask & mask for content in contents]
    drawing = drawing_of(sampler)
    uniforms = [row.stream.open().peek() for row in rows] if drawing.needs_random else None
    masked = masker.masked(logits if scores is None else scores, masks)
    draws = draw_with(drawing, masked, uniforms, [drawing.counts_of(row) for row in rows])
    norm = logits.logsumexp(dim=-1)
    logprobs = logits.gather(-1, draws.token_ids[:, None])[:, 0] - norm
    table = torch.stack([norm, logprobs, draws.logprobs.to(norm)]).T.tolist()
    for row, (total, _, sampling_logprob) in zip(rows, table, strict=True):
        _check_draw(model, row, total, sampling_logprob)
    model.count(Meter(sampled_tokens=len(rows)))
    found = []
    for content, row, token_id, (_, logprob, sampling_logprob) in zip(
        contents, rows, draws.token_ids.tolist(), table, strict=True
    ):
        after = replace(row, stream=row.stream.after(int(drawing.needs_random)))
        if append:
            after = replace(
                after.append([token_id], reset=False),
                kinds=row.kinds + GENERATED,
                logprobs=(*row.logprobs, logprob),
                sampling_logprobs=(*row.sampling_logprobs, sampling_logprob),
                finish_reason="",
                value=None,
                surprise_start=row.next_surprise_start if drawing.follows_surprise else None,
            )
        found.append((token_id, content.longer(after)))
    return found


def checked_sampler(sampler: Sampler | None) -> Sampler:
    """Return a sampler, `greedy()` for None; `OptionError` if it draws several tokens, or is a search."""
    is_sampler = hasattr(sampler, "sample") and hasattr(sampler, "num_samples")
    holds = sampler is None or (is_sampler and (sampler.num_samples or 1) == 1)
    advice = "For several samples write `conversation.fork(n)`." if is_sampler else ""
    check("sampler", sampler, holds, "a sampler that draws one token, such as `samplers.multinomial()`,", advice)
    return greedy() if sampler is None else sampler


def checked_mask(mask: TokenSet | None, vocab_size: int) -> TokenSet:
    """Return a mask, that of all tokens for None; `OptionError` if it is not one of the vocabulary."""
    try:
        check_mask(TokenSet.all if mask is None else mask, vocab_size, "mask")
    except (TypeError, ValueError) as error:
        raise OptionError(f"{error} None is for all tokens.", "mask") from error
    return TokenSet.all if mask is None else mask


def _check_draw(model: LanguageModel, row: StateRow, total: float, sampling_logprob: float) -> None:
    if math.isfinite(total) and math.isfinite(sampling_logprob):
        return
    after = f"{len(row.token_ids)} tokens (...{model.tokenizer.decode(row.token_ids[-_TAIL_TOKENS:])!r})"
    if not math.isfinite(total):
        raise invalid_logits(after)
    raise DeadEnd(
        f"no token that may be drawn has a probability after {after}. Loosen the mask or the constraint; a constraint that "
        "is fulfilled needs a model with an end-of-sequence token, or `constrain(None)`."
    )


def _check_scores(scores: torch.Tensor | None, logits: torch.Tensor) -> None:
    is_tensor = isinstance(scores, torch.Tensor)
    if scores is None or (
        is_tensor and scores.shape == logits.shape and scores.dtype in (torch.float32, torch.float64)
    ):
        return
    got = f"one of shape {tuple(scores.shape)} and {scores.dtype}" if is_tensor else type(scores).__name__
    raise OptionError(
        f"expected a tensor of float32 or float64 of shape {tuple(logits.shape)} as `scores`, a row for each conversation, got {got}.",
        "scores",
    )
