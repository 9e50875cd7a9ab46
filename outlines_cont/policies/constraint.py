"""A constraint: only tokens that a token FSM allows, and the text that it leaves no choice about as one chunk.

Law of forced text. The bytes that every accepted continuation begins with are encoded by the tokenizer in context, as far as
they are whole characters. From the first place on where some allowed token reaches beyond them, sampling decides: there the
tokenizer might have joined them with what follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Generic, Self, TypeVar

import numpy as np

import fsm
from fsm import Expression, TokenNotAllowed, Vocabulary
from outlines_cont.interfaces import LanguageModel, TokenFSM, Tokenizer
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView

K = TypeVar("K")
V = TypeVar("V")

_MEMO_SIZE = 4096
_NUM_CONSTRAINTS = 256
_NUM_MASKS = 256
_CONTEXT = 8


class Constraint(Policy[int]):
    """Keep one piece of a row inside the language of a token FSM. The state is that of the FSM."""

    def __init__(self, token_fsm: TokenFSM, tokenizer: Tokenizer, *, force: bool = True) -> None:
        """Follow `token_fsm`; with `force`, append text without a choice in one chunk instead of sampling it."""
        self.token_fsm = token_fsm
        self.force = force
        self._tokenizer = tokenizer
        self._lengths = np.array([len(data or b"") for data in tokenizer.token_bytes], dtype=np.int64)
        self._forced = Memo[tuple[int, tuple[int, ...]], list[Branch]](_MEMO_SIZE)
        self._hints = Memo[tuple[int, tuple[int, ...]], list[int]](_MEMO_SIZE)
        self._longest = Memo[int, int](_MEMO_SIZE)
        self._sampled = Memo[int, Branch](_NUM_MASKS)

    @classmethod
    def of_model(cls, model: LanguageModel, expression: Expression, *, force: bool = True) -> Constraint:
        """Return the constraint to `expression` over the vocabulary of `model`; equal ones are made once.

        Raises:
            EmptyLanguage: no text satisfies `expression`.
            VocabularyGap: the tokens of the model cannot spell any text that does.

        Cost: the first one of a model builds its vocabulary (0.2 s for 131,072 tokens).
        """
        if "vocabulary" not in model.memo:
            tokens = model.tokenizer.token_bytes[: model.vocab_size]
            model.memo["vocabulary"] = Vocabulary(tokens, sorted(model.eos_token_ids))
        known: Memo[tuple[Expression, bool], Constraint] = model.memo.setdefault("constraints", Memo(_NUM_CONSTRAINTS))
        constraint = known.get((expression, force))
        if constraint is None:
            token_fsm = fsm.TokenFSM(expression, model.memo["vocabulary"])
            constraint = known.put((expression, force), cls(token_fsm, model.tokenizer, force=force))
        return constraint

    def __deepcopy__(self, memo: object) -> Self:
        """Return the same: it never changes."""
        return self

    @property
    def finish_reason(self) -> str:
        """`constraint`: nothing may follow."""
        return "constraint"

    def initial(self, row: RowView) -> int:
        """Return the initial state of the FSM: the language begins where the text of the piece begins, behind what is healed."""
        return self._before(row.healed)

    def accepts(self, token_ids: Sequence[int], healed: bytes = b"") -> bool:
        """Return whether a whole text is of the language; `healed` stands before it in the tokens."""
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
        if self.force:
            forced = self._forced_branches(state, row)
            if forced:
                return forced
        if self.token_fsm.is_late(state):
            return [Branch(sample_mask=LazyTokenSet(partial(self.token_fsm.bitmask, state)))]
        return [self._sampled.get(state) or self._sampled.put(state, Branch(sample_mask=self._allowed(state)))]

    def _forced_branches(self, state: int, row: RowView) -> list[Branch]:
        key = (state, tuple(row.token_ids[-_CONTEXT:]))
        branches = self._forced.get(key)
        if branches is None:
            token_ids = self.forced_tokens(state, row.token_ids)
            branches = self._forced.put(key, [Branch(ff_tokens=[token_ids])] if token_ids else [])
        return branches

    def forced_tokens(self, state: int, before: Sequence[int]) -> list[int]:
        """Return the tokens that follow `before` without a choice, by the law at the top of this module."""
        text = _whole_characters(self.token_fsm.forced_text(state))
        if not text:
            return []
        kept: list[int] = []
        left = len(text.encode())
        for token_id in self._tokenizer.encode_inside(text, before):
            if self._longest_allowed(state) > left or token_id not in self._allowed(state):
                break
            kept.append(token_id)
            left -= int(self._lengths[token_id])
            state = self.token_fsm.next_state(state, token_id)
        return kept

    def hint(self, state: int, row: RowView) -> int | None:
        """Return the token that the tokenizer would spell the text with that has to follow, where one that goes on beyond may come, too."""
        key = (state, tuple(row.token_ids[-_CONTEXT:]))
        hint = self._hints.get(key)
        if hint is None:
            text = _whole_characters(self.token_fsm.forced_text(state))
            hint = self._hints.put(key, self._tokenizer.encode_inside(text, row.token_ids)[:1] if text else [])
        return hint[0] if hint else None

    def wish(self, state: int, row: RowView) -> str:
        """Return what the language asks for here, and which keyword, pattern or rule of it does."""
        written = b"".join(map(self.token_bytes, row.token_ids[row.piece_start :]))
        return self.token_fsm.wanted(state, written[len(row.healed) :])

    def token_bytes(self, token_id: int) -> bytes:
        """Return what a token adds to the text."""
        return self._tokenizer.token_bytes[token_id] or b""

    def _before(self, healed: bytes) -> int:
        return self.token_fsm.state_before(healed) if healed else self.token_fsm.initial_state

    def _allowed(self, state: int) -> TokenSet:
        return TokenSet.of_bitmask(self.token_fsm.bitmask(state))

    def _longest_allowed(self, state: int) -> int:
        longest = self._longest.get(state)
        if longest is None:
            lengths = self._lengths[self.token_fsm.allowed_token_ids(state)]
            longest = self._longest.put(state, int(lengths.max(initial=0)))
        return longest


class Memo(Generic[K, V]):
    """The values that were put in last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return the value of `key`; None where there is none, or not any longer."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> V:
        """Keep a value, and return it; the oldest one goes where there are too many."""
        self._values[key] = value
        if len(self._values) > self._size:
            self._values.popitem(last=False)
        return value


def _whole_characters(data: bytes) -> str:
    """Return the text of `data` without a character that only begins in it, and up to what is no text at all."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
