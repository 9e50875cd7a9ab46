"""`Constraint`: constrained decoding by a token FSM, whose state is the policy's: its mask at each step (computed during the forward where
it is not cached and the text cannot end there), and jump-forward decoding: bytes that every accepted continuation begins with are tokenized
and appended without sampling, up to the first token where an allowed one reaches beyond them. `force=False` samples these, too.

The forced bytes are encoded by the tokenizer in the context of the last 8 tokens, without a last character that is not complete. The token
where an allowed one reaches beyond is sampled, as the tokenizer might have joined it with what follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from fsm import Expression, TokenFSM, TokenNotAllowed, Vocabulary
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.policies.branch import Branch, LazyTokenSet, TokenSet
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView

_MEMO_SIZE = 4096
_NUM_CONSTRAINTS = 256
_NUM_MASKS = 256
_CONTEXT = 8


class Constraint(Immutable, Policy[int]):
    """Keeps one generated span (piece) of a row inside the language of a token FSM, whose state is the state of the policy."""

    finish_reason = "constraint"

    def __init__(self, token_fsm: TokenFSM, tokenizer: Tokenizer, *, force: bool = True) -> None:
        """Follow `token_fsm`; with `force`, append text without a choice in one chunk instead of sampling it."""
        self.token_fsm = token_fsm
        self.force = force
        self._tokenizer = tokenizer
        self._lengths = np.array([len(data or b"") for data in tokenizer.token_bytes], dtype=np.int64)
        # By state, and where text is encoded by the last tokens before it, on which the encoding depends.
        self._forced = lru_cache(_MEMO_SIZE)(self._forced_branches)
        self._hints = lru_cache(_MEMO_SIZE)(self._first_forced)
        self._longest = lru_cache(_MEMO_SIZE)(
            lambda state: int(self._lengths[token_fsm.allowed_token_ids(state)].max(initial=0))
        )
        self._sampled = lru_cache(_NUM_MASKS)(lambda state: Branch(sample_mask=self._allowed(state)))

    @classmethod
    def of_model(cls, model: LanguageModel, expression: Expression, *, force: bool = True) -> Constraint:
        """Return the constraint to `expression` over the vocabulary of `model`; the last 256 of a model are cached.

        Raises:
            EmptyLanguage: no text satisfies `expression`.
            VocabularyGap: the tokens of the model cannot spell any text that does.

        Cost: the first one of a model builds its vocabulary (0.2 s for 131,072 tokens).
        """
        memo, tokenizer = model.memo, model.tokenizer
        if "vocabulary" not in memo:
            memo["vocabulary"] = Vocabulary(tokenizer.token_bytes[: model.vocab_size], sorted(model.eos_token_ids))
        made = memo.setdefault(
            "constraints",
            lru_cache(_NUM_CONSTRAINTS)(
                lambda language, force: Constraint(TokenFSM(language, memo["vocabulary"]), tokenizer, force=force)
            ),
        )
        constraint: Constraint = made(expression, force)
        return constraint

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
        if self.force:
            forced = self._forced(state, tuple(row.token_ids[-_CONTEXT:]))
            if forced:
                return forced
        if self.token_fsm.is_late(state):
            return [Branch(sample_mask=LazyTokenSet(partial(self.token_fsm.bitmask, state)))]
        return [self._sampled(state)]

    def _forced_branches(self, state: int, before: Sequence[int]) -> list[Branch]:
        token_ids = self.forced_tokens(state, before)
        return [Branch(ff_tokens=[token_ids])] if token_ids else []

    def forced_tokens(self, state: int, before: Sequence[int]) -> list[int]:
        """Return the tokens that follow `before` without a choice, by the rule at the top of this module."""
        text = _whole_characters(self.token_fsm.forced_text(state))
        if not text:
            return []
        kept: list[int] = []
        left = len(text.encode())
        for token_id in self._tokenizer.encode_inside(text, before):
            if self._longest(state) > left or token_id not in self._allowed(state):
                break
            kept.append(token_id)
            left -= int(self._lengths[token_id])
            state = self.token_fsm.next_state(state, token_id)
        return kept

    def hint(self, state: int, row: RowView) -> int | None:
        """Return the first token of the tokenizer's encoding of the forced text, also where a longer token is allowed."""
        return self._hints(state, tuple(row.token_ids[-_CONTEXT:]))

    def _first_forced(self, state: int, context: tuple[int, ...]) -> int | None:
        text = _whole_characters(self.token_fsm.forced_text(state))
        return next(iter(self._tokenizer.encode_inside(text, context)), None) if text else None

    def wish(self, state: int, row: RowView) -> str:
        """Return what the language requires here, and by which keyword, pattern or rule."""
        written = b"".join(map(self.token_bytes, row.token_ids[row.piece_start :]))
        return self.token_fsm.wanted(state, written[len(row.healed) :])

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of a token; a special token has none."""
        return self._tokenizer.token_bytes[token_id] or b""

    def _before(self, healed: bytes) -> int:
        return self.token_fsm.state_before(healed) if healed else self.token_fsm.initial_state

    def _allowed(self, state: int) -> TokenSet:
        return TokenSet.of_bitmask(self.token_fsm.bitmask(state))


def _whole_characters(data: bytes) -> str:
    """Return the text of `data` up to the first byte that is not valid UTF-8, such as in a last character that is not complete."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()
