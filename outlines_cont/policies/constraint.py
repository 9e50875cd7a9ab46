"""`Constraint`: constrained decoding by a token FSM, whose state is the policy's: its mask at each step (computed during the forward where
it is not cached and the text cannot end there), and jump-forward decoding: bytes that every accepted continuation begins with are tokenized
and appended without sampling, up to the first token where an allowed one reaches beyond them. `force=False` samples these, too.

The forced bytes are encoded by the tokenizer in the context of the last 8 tokens, without a last character that is not complete; a special
token that is a symbol of the language is its id. The token
where an allowed one reaches beyond is sampled, as the tokenizer might have joined it with what follows. Of a long forced text each step
encodes the first kilobyte, and appends what lies well before its end: a text of a megabyte must not make other rows wait.

With `end="free"` tokens that leave the language are allowed where the text may end (`exits.py`), and the piece ends with them.

`CheckedConstraint`: a constraint whose automaton accepts too much, with checks on values when they end. A value that fails is generated
again: in rows that draw at random by rejection sampling of the whole value (the first 4 retries of the generated span, by default), else by
backtracking to one of its tokens, which is excluded or avoided there. After 50 retries (by default) the row fails with `CheckFailed`.

Rejection sampling alone draws a value from the distribution of those that pass, after the text before it: if the rejections suffice. What
passes after backtracking has another one: `state.retries` is then more than `state.rejections`. Backtracking rewinds to the token where
the most probable other value begins: of all positions where another token may be drawn, the one where the probability of what precedes
it times that of any other token is the largest. A token is excluded only if nothing else could have followed it, else it is avoided as
long as there are others. Where the value has no other choice, what comes before it is generated again. Exclusions apply only as long as
the text before them stays the same, and are stored by the engine (`Branch`).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Literal

import numpy as np

from fsm import Expression, TokenFSM, TokenNotAllowed, Vocabulary, bitmask
from fsm.automaton.checker import CheckedReading, Checker, CheckFailure
from fsm.process_fork import lock
from fsm.terms import work
from fsm.terms.node import memory
from fsm.terms.special_token import divided
from outlines_cont.device import trimmer
from outlines_cont.errors import CheckFailed, shortened
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.models.tokenizer.token_bytes import TokenTable
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet
from outlines_cont.policies.exits import LanguageExits
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.user_code import shielded

EndMode = Literal["eos", "free"]
"""How a piece ends: with a token that ends a text, or also with one that leaves the language where the text may end."""

_MEMO_SIZE = 4096
_STATE_BYTES = 1_000  # about what a state of an automaton takes, with its term and its derivatives
_NUM_MASKS = 256
_CONTEXT = 8
_MAX_FORCED_BYTES = 1024  # that one step encodes
_RESERVED_BYTES = 64  # at the end of a text that goes on, whose encoding may depend on what follows
_WORK_PER_FORCED = 10  # a forced token costs some 70 us


class Constraint(Immutable, Policy[int]):
    """Keeps one generated span (piece) of a row inside the language of a token FSM, whose state is the state of the policy."""

    finish_reason = "constraint"

    def __init__(self, token_fsm: TokenFSM, tokenizer: Tokenizer, *, force: bool = True, end: EndMode = "eos") -> None:
        """Follow `token_fsm`.

        With `force`, append text without a choice in one chunk instead of sampling it; with `end="free"`, end the piece with any token
        that leaves the language, else only with those that end a text.
        """
        self.token_fsm = token_fsm
        self.force = force
        self.end = end
        self._tokenizer = tokenizer
        self._spelled = token_fsm.vocabulary.spelled
        self._lengths = np.fromiter(map(len, self._spelled), np.int64, len(self._spelled))
        # By state, and where text is encoded by the last tokens before it, on which the encoding depends.
        self._forced = lru_cache(_MEMO_SIZE)(self._forced_branches)
        self._hints = lru_cache(_MEMO_SIZE)(self._first_forced)
        self._longest = lru_cache(_MEMO_SIZE)(self._longest_allowed)
        self._is_forced = lru_cache(_MEMO_SIZE)(lambda state: bool(token_fsm.forced_text(state, 1)))
        self._sampled = lru_cache(_NUM_MASKS)(self._open_branches if end == "free" else self._closed_branches)
        self._always: dict[int, list[Branch]] = {}  # by state, what is sampled whatever was written before
        self._num_term_bytes = expression_bytes(token_fsm.expression)

    @property
    def nbytes(self) -> int:
        """About how many bytes its terms take, and the states that were made so far, which are more with each use."""
        return self._num_term_bytes + _STATE_BYTES * len(self.token_fsm.automaton)

    @classmethod
    def of_model(
        cls, model: LanguageModel, expression: Expression, *, force: bool = True, end: EndMode = "eos"
    ) -> Constraint:
        """Return the constraint to `expression` over the vocabulary of `model`; see `KeptConstraints`.

        Raises:
            EmptyLanguage: no text satisfies `expression`.
            VocabularyGap: the tokens of the model cannot spell any text that does.

        Cost: the first one of a model builds its vocabulary (0.2 s for 131,072 tokens).
        """
        vocabulary, tokenizer = vocabulary_of_model(model), model.tokenizer

        def made() -> Constraint:
            return Constraint(TokenFSM(expression, vocabulary), tokenizer, force=force, end=end)

        return KeptConstraints.of(model).get((expression, force, end), made)

    def initial(self, row: RowView) -> int:
        """Return the initial state of the FSM, or one that first reads the healed bytes, which are not part of the language."""
        return self._before(row.healed)

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole text is in the language; the tokens begin with the bytes `healed`, which are no part of it."""
        state = self._before(healed)
        try:
            for token_id in token_ids:
                state = self.token_fsm.next_state(state, token_id)
        except TokenNotAllowed:
            return False
        return self.token_fsm.is_accepting(state)

    def advance(self, state: int, token_id: int) -> int:
        """Return the next state of the FSM."""
        return self.token_fsm.next_state(state, token_id)

    def branches(self, state: int, row: RowView) -> list[Branch]:
        """Return the forced tokens if there are any, else the mask of the state."""
        known = self._always.get(state)
        if known is not None:
            return known
        if self.force:
            forced = self._forced(state, tuple(row.token_ids[-_CONTEXT:]))
            if forced:
                return forced
        if self.end == "eos" and self.token_fsm.is_late(state):
            return [Branch(sample_mask=LazyTokenSet(partial(self.token_fsm.bitmask, state)))]
        branches = self._sampled(state)
        if not (self.force and self._is_forced(state)):
            if len(self._always) >= _NUM_MASKS:
                self._always.clear()
            self._always[state] = branches
        return branches

    def exits(self, state: int) -> LanguageExits | None:
        """Return how tokens leave the language in a state; None if they may not."""
        return LanguageExits(self.token_fsm, state) if self.end == "free" else None

    def _closed_branches(self, state: int) -> list[Branch]:
        return [Branch(sample_mask=self._allowed(state))]

    def _open_branches(self, state: int) -> list[Branch]:
        """Return the branch that also allows the tokens that leave the language; if nothing may follow, that of the end alone."""
        exits, token_fsm = self.exits(state), self.token_fsm
        assert exits is not None
        if exits.may_end:
            may_follow = bool(exits.inside & ~TokenSet.of(token_fsm.vocabulary.eos_token_ids))
            return [Branch(sample_mask=exits.mask, exits=exits)] if may_follow else self._closed_branches(state)
        is_late = token_fsm.vocabulary.spells_everything
        make = partial(token_fsm.open_bitmask, state)
        return [Branch(sample_mask=LazyTokenSet(make) if is_late else TokenSet.of_bitmask(make()), exits=exits)]

    def forced_after(self, state: int, token_ids: Sequence[int]) -> list[int]:
        """Return the tokens that `branches` appends in a state of a row with these ids; none if it samples."""
        forced = self._forced(state, tuple(token_ids[-_CONTEXT:])) if self.force else []
        return forced[0].ff_tokens[0] if forced else []

    def _forced_branches(self, state: int, before: Sequence[int]) -> list[Branch]:
        token_ids = self.forced_tokens(state, before)
        return [Branch(ff_tokens=[token_ids])] if token_ids else []

    def forced_tokens(self, state: int, before: Sequence[int]) -> list[int]:
        """Return the tokens that follow `before` without a choice, by the rule at the top of this module."""
        text = self.token_fsm.forced_text(state, _MAX_FORCED_BYTES)
        forced = self._encoded(text, before)
        kept: list[int] = []
        left = sum(len(self._spelled[token_id]) for token_id in forced)
        reserved = _RESERVED_BYTES if len(text) == _MAX_FORCED_BYTES else 0
        # A token that leaves may spell the end of the text, but where one text is left that would be the same.
        leaves = bool(forced) and self.end == "free" and not self.token_fsm.has_one_text(state)
        for token_id in forced:
            if left <= reserved or self._longest(state, leaves) > left or token_id not in self._allowed(state):
                break
            work.add(_WORK_PER_FORCED)
            work.check()
            kept.append(token_id)
            left -= int(self._lengths[token_id])
            state = self.token_fsm.next_state(state, token_id)
        return kept

    def _longest_allowed(self, state: int, leaves: bool) -> int:
        """Return the most bytes of a token that may be drawn in a state, with `leaves` also of those that leave the language."""
        mask = self.token_fsm.open_bitmask(state) if leaves else self.token_fsm.bitmask(state)
        return int(self._lengths[bitmask.to_ids(mask)].max(initial=0))

    def hint(self, state: int, row: RowView) -> int | None:
        """Return the first token of the tokenizer's encoding of the forced text, also where a longer token is allowed."""
        return self._hints(state, tuple(row.token_ids[-_CONTEXT:]))

    def _first_forced(self, state: int, context: tuple[int, ...]) -> int | None:
        return next(iter(self._encoded(self.token_fsm.forced_text(state, _MAX_FORCED_BYTES), context)), None)

    def _encoded(self, forced: bytes, before: Sequence[int]) -> list[int]:
        """Return the tokenizer's encoding of a text that must follow, up to the last whole character."""
        found: list[int] = []
        for index, part in enumerate(divided(forced)):
            if index % 2:
                found.append(self.token_fsm.vocabulary.special_ids[part.decode()])
            elif text := _whole_characters(part):
                found += self._tokenizer.encode_inside(text, [*before, *found])
        return found

    def wish(self, state: int, row: RowView) -> str:
        """Return what the language requires here, and by which keyword, pattern or rule."""
        written = b"".join(map(self.token_bytes, row.token_ids[row.piece_start :]))
        return self.token_fsm.wanted(state, written[len(row.healed) :])

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token as the language reads them; a special token that is no symbol has none."""
        return self._spelled[token_id]

    def spelled(self, token_ids: Sequence[int], healed: bytes = b"") -> bytes:
        """Return a text as the language reads it, for its captures; the tokens begin with the bytes `healed`, which are no part of it."""
        return b"".join(map(self.token_bytes, token_ids))[len(healed) :]

    def _before(self, healed: bytes) -> int:
        return self.token_fsm.state_before(healed) if healed else self.token_fsm.initial_state

    def _allowed(self, state: int) -> TokenSet:
        return TokenSet.of_bitmask(self.token_fsm.bitmask(state))


def expression_bytes(expression: Expression) -> int:
    """Return about how many bytes the terms of an expression take. Cost: 0.5 us for each of them."""
    return memory(expression.node)


class KeptConstraints:
    """The last constraints of a model, as many as take `max_bytes`; of those, the last is kept however large it is."""

    def __init__(self, max_bytes: int = 256 << 20) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, Constraint] = OrderedDict()  # the least recently used first
        self._lock = lock()

    @classmethod
    def of(cls, model: LanguageModel) -> KeptConstraints:
        """Return those of a model."""
        found: KeptConstraints = model.memo.get("constraints") or model.memo.setdefault("constraints", cls())
        return found

    @property
    def nbytes(self) -> int:
        """About how many bytes they take."""
        with self._lock:
            return sum(one.nbytes for one in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], Constraint]) -> Constraint:
        """Return the constraint of a key, made if need be."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            total = sum(one.nbytes for one in self._kept.values())
            while total > self.max_bytes and len(self._kept) > 1:
                nbytes = self._kept.popitem(last=False)[1].nbytes
                total -= nbytes
                trimmer.let_go(nbytes)
        return made


def vocabulary_of_model(model: LanguageModel) -> Vocabulary:
    """Return the vocabulary that all constraints of a model share."""
    if "vocabulary" not in model.memo:
        model.memo["vocabulary"] = vocabulary_of(model.tokenizer, model.eos_token_ids, model.vocab_size)
    found: Vocabulary = model.memo["vocabulary"]
    return found


def vocabulary_of(
    tokenizer: Tokenizer | TokenTable, eos_token_ids: Iterable[int], vocab_size: int | None
) -> Vocabulary:
    """Return the vocabulary of a tokenizer, cut to the rows of a model, with its special tokens as symbols."""
    token_bytes = tokenizer.token_bytes[:vocab_size]
    special = {i: name for i, name in tokenizer.special_tokens.items() if i < len(token_bytes) and not token_bytes[i]}
    return Vocabulary(token_bytes, sorted(eos_token_ids), special)


def _whole_characters(data: bytes) -> str:
    """Return the text of `data` up to the first byte that is not valid UTF-8, such as in a last character that is not complete."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


MAX_RETRIES = 50
"""How often a generated span may backtrack before it fails."""

MAX_REJECTIONS = 4
"""How often a row that draws at random draws a whole value again before it excludes tokens."""

_NUM_READINGS = 256


@dataclass(frozen=True, slots=True, eq=False)
class CheckedState:
    """The state of the automaton and of the checks after some tokens, linked to the state one token before."""

    inner: int  # the state of the constraint
    reading: CheckedReading  # the parses of the text so far
    before: CheckedState | None = None  # the state one token before; None at the beginning
    failure: CheckFailure | None = None  # the value that has failed with the last token, if one has
    num_healed: int = 0  # how many of the next bytes respell the prompt


class CheckedConstraint(Policy[CheckedState]):
    """Keeps one generated span (piece) of a row inside a language with checks.

    Args:
        constraint: what the automaton allows.
        expression: the language.
        eos: the tokens that end a text.
        max_retries: how often a piece may be rewound; beyond it the row fails with `CheckFailed`.
        max_rejections: how often of these a whole value is drawn again, where tokens are drawn at random.
    """

    finish_reason = "constraint"
    horizon = 128  # positions, enough for most values; to rewind further costs a forward
    max_retries: int = MAX_RETRIES

    def __init__(
        self,
        constraint: Constraint,
        expression: Expression,
        eos: TokenSet,
        max_retries: int = MAX_RETRIES,
        max_rejections: int = MAX_REJECTIONS,
    ) -> None:
        self.constraint = constraint
        self.max_retries = max_retries
        self.max_rejections = max_rejections
        self._checker = Checker(expression.node)  # may call code of users
        self._eos = eos
        self._read = lru_cache(_NUM_READINGS)(self._checker.read)  # guessed tokens are read twice

    @property
    def token_fsm(self) -> TokenFSM:
        """The automaton, without the checks."""
        return self.constraint.token_fsm

    def initial(self, row: RowView) -> CheckedState:
        """Return the state before the first token."""
        return CheckedState(self.constraint.initial(row), self._checker.initial, num_healed=len(row.healed))

    def advance(self, state: CheckedState, token_id: int) -> CheckedState:
        """Return the state after one more token, with the value that has failed there, if one has."""
        data = self.constraint.token_bytes(token_id)
        reading: CheckedReading = shielded(self._read, state.reading, data[state.num_healed :])
        inner = self.constraint.advance(state.inner, token_id)
        return CheckedState(inner, reading, state, reading.failure, max(state.num_healed - len(data), 0))

    def branches(self, state: CheckedState, row: RowView) -> list[Branch]:
        """Rewind where a value has failed; else return the branches of the constraint, without an end if that would fail."""
        if state.failure is not None:
            return [self._back(state, state.failure, row)]
        branches = self.constraint.branches(state.inner, row)
        if branches[0].sample_mask is None or not self.token_fsm.is_accepting(state.inner):
            return branches
        at_end = shielded(self._checker.end, state.reading)
        if at_end is True or (isinstance(at_end, CheckFailure) and self._rejects(row)):
            return branches
        exits = None if branches[0].exits is None else branches[0].exits.not_here()
        mask = (branches[0].sample_mask if exits is None else exits.mask) & ~self._eos
        if not mask and isinstance(at_end, CheckFailure):
            return [self._back(state, at_end, row)]
        return [Branch(sample_mask=mask, exits=exits)]

    judges_whole_texts = True  # what stands before a stop text has no value if it does not conform

    def at_end(self, state: CheckedState, row: RowView) -> Branch | None:
        """Rewind where a value fails at the end of the text; None if all pass."""
        at_end = shielded(self._checker.end, state.reading)
        return self._back(state, at_end, row) if isinstance(at_end, CheckFailure) else None

    def give_up(self, state: CheckedState, row: RowView, reason: str) -> CheckedState:
        """Raise `CheckFailed`."""
        raise _error(state, state.failure, reason)

    def hint(self, state: CheckedState, row: RowView) -> int | None:
        """Return the hint of the constraint."""
        return self.constraint.hint(state.inner, row)

    def wish(self, state: CheckedState, row: RowView) -> str:
        """Return what the language requires here."""
        return self.constraint.wish(state.inner, row)

    def held_bytes(self, state: CheckedState) -> int:
        """Return how many trailing bytes have yet to pass a check."""
        start = state.reading.open_since if state.failure is None else 0
        return len(state.reading.data) - start

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole text is in the language and passes its checks; its tokens begin with `healed`, no part of it."""
        return shielded(self._checker.accepts, self.spelled(token_ids, healed))

    def spelled(self, token_ids: Sequence[int], healed: bytes = b"") -> bytes:
        """Return a text as the language reads it."""
        return self.constraint.spelled(token_ids, healed)

    def _back(self, state: CheckedState, failure: CheckFailure, row: RowView) -> Branch:
        """Return the branch that rewinds to where another value is generated, else to the last choice before the value."""
        is_rejection = self._rejects(row)
        choices = self._choices(state, failure.value_start if is_rejection else failure.start, row)
        if not choices:
            raise _error(state, failure, "the constraint leaves nothing else to write")
        if is_rejection:
            return Branch(backtrack=len(row.token_ids) - choices[0], exclude=TokenSet.none)
        chosen = _most_probable(choices, row)
        refused = TokenSet.of([row.token_ids[chosen]])
        is_proven = chosen == choices[-1]
        return Branch(
            backtrack=len(row.token_ids) - chosen,
            exclude=refused if is_proven else None,
            avoid=None if is_proven else refused,
        )

    def _rejects(self, row: RowView) -> bool:
        """Return whether a value that fails is drawn again as a whole."""
        return row.is_random and row.rejections < self.max_rejections

    def _choices(self, state: CheckedState, start: int, row: RowView) -> list[int]:
        """Return the indices of the tokens of a value that could be drawn otherwise, ascending; without any, the last one before it."""
        found: list[int] = []
        index, after, before = len(row.token_ids), state, state.before
        while before is not None:
            index -= 1
            is_before = len(after.reading.data) <= start  # the token ends before the value begins
            if index < row.first_open or (is_before and found):
                break
            if row.was_drawn(index) and self._has_choice(before, index, row):
                found.append(index)
            after, before = before, before.before
        return found[::-1]

    def _has_choice(self, before: CheckedState, index: int, row: RowView) -> bool:
        """Return whether another token than the one at `index`, after the state `before`, may be drawn there."""
        refused = row.excluded(index) | {row.token_ids[index]}
        allowed = self.token_fsm.allowed_token_ids(before.inner)
        return len(allowed) > len(refused) or bool(set(allowed.tolist()) - refused)


def _most_probable(choices: list[int], row: RowView) -> int:
    """Return the index where the most probable other value begins.

    It is the one with the largest product of the probabilities of the value before it and of any other token there. These are those with
    which tokens were drawn, so a piece rewinds to the same index whether it is generated whole or in parts.
    """
    best, best_score, before = choices[0], -math.inf, 0.0
    for index in choices:
        taken = min(row.sampling_logprob(index), 0.0)
        other = math.log(-math.expm1(taken)) if taken < 0 else -math.inf
        if before + other > best_score:
            best, best_score = index, before + other
        before += taken
    return best


def _error(state: CheckedState, failure: CheckFailure | None, reason: str) -> CheckFailed:
    told = "expected a value that passes its check, but every continuation has led to one that fails"
    if failure is not None:
        text = state.reading.data[failure.start : failure.stop].decode(errors="replace")
        told = f"expected that {failure.check}; what was written, {shortened(text, 80)!r}, fails"
    return CheckFailed(
        f"{told}, and {reason}. Raise `max_retries`, use a sampler that draws at random, say in the prompt what is wanted, or write "
        "the schema so that the keyword is exact (`expression.report`)."
    )
