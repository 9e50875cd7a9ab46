"""`FreeText`: unconstrained generation: the mask of all tokens that have bytes and those that end a text; other special tokens and ids
without a token are excluded. Its state: what is left to respell of the healed end of a prompt, which must come first.

`StopAt`: stop strings, found by an Aho-Corasick automaton over bytes. The text ends exactly before the first one to be complete (after
it with `keep`), also inside a token: the row rewinds to that token, and its bytes before the cut are encoded again. The prompt is never
cut; what begins in it counts only with `stop_in_prompt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from outlines_cont.checks import checked_bool
from outlines_cont.errors import DeadEnd
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside
from outlines_cont.policies.branch import FREE, Branch, TokenSet
from outlines_cont.policies.healing import position_at, text_before, token_starts
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.text_search.stop_text import StopMatch, StopText, checked_texts

_MEMO_SIZE = 256


@dataclass(frozen=True, slots=True, eq=False)
class FreeText(Policy[bytes]):
    """Samples any token of `token_ids`. Its state is what is left to respell of the bytes that token healing removed, mostly nothing."""

    token_ids: TokenSet
    spelling: Callable[
        [bytes], list[Branch]
    ]  # returns the branch of the tokens that may follow if some bytes are left to spell
    model: LanguageModel

    @classmethod
    def of_model(cls, model: LanguageModel) -> FreeText:
        """Return the policy over the tokens that `model` can write, made once per model. Cost: a pass over the vocabulary."""
        known: FreeText | None = model.memo.get("free_text")
        return known or model.memo.setdefault("free_text", cls._of_vocabulary(model))

    @classmethod
    def _of_vocabulary(cls, model: LanguageModel) -> FreeText:
        spelled = (token_id for token_id, data in enumerate(model.tokenizer.token_bytes) if data)
        ids = TokenSet.of(token_id for token_id in spelled if token_id < model.vocab_size)
        ids = ids | TokenSet.of(model.eos_token_ids)
        ids = _widened(ids, model)
        return cls(ids, lru_cache(_MEMO_SIZE)(partial(_spelling, model, ids)), model)

    def initial(self, row: RowView) -> bytes:
        """Return the bytes to respell before the text begins."""
        return row.healed

    def branches(self, state: bytes, row: RowView) -> list[Branch]:
        """Return one branch that samples any token with text, or one that spells what is left to spell."""
        return self.spelling(state)

    def advance(self, state: bytes, token_id: int) -> bytes:
        """Return what is left to spell; `DeadEnd` if another policy has appended a token that spells something else."""
        if not state:
            return state
        data = self.model.tokenizer.token_bytes[token_id] or b""
        if not data.startswith(state) and not state.startswith(data):
            raise DeadEnd(
                f"expected a token that continues with {state!r}, the end of the given text that is healed, got {token_id} ({data!r}) "
                "from another policy. Omit `heal`, or let the policy wait until `row.healed` is spelled."
            )
        return state[len(data) :]


def _spelling(model: LanguageModel, free: TokenSet, text: bytes) -> list[Branch]:
    tokens = _widened(TokenSet.of(token_starts(model).spelling(text).tolist()), model) if text else free
    return [Branch(sample_mask=tokens)]


def _widened(token_ids: TokenSet, model: LanguageModel) -> TokenSet:
    """Return the set with as many words as the logits need, so that it is not extended at every step."""
    return TokenSet.of_bitmask(token_ids.bitmask(model.vocab_size))


@dataclass(frozen=True, slots=True)
class StopState:
    """The state of the search after some tokens."""

    matcher: StopText  # the state of the automaton
    num_bytes: int = 0  # the length of the text
    cut_at: StopMatch | None = None  # the stop text at which the piece was cut; None before that
    num_healed: int = 0  # how many of the next bytes respell the prompt, and are not searched

    @property
    def match(self) -> StopMatch | None:
        """The stop text that was found, also after the cut; offsets count bytes of the text."""
        return self.cut_at or self.matcher.match


class StopAt(Policy[StopState]):
    """Stops at the first of some texts to be complete, see `StopText`; it is `match` of the state."""

    horizon: int = 0

    def __init__(
        self,
        stop_texts: str | Sequence[str],
        tokenizer: Tokenizer,
        *,
        keep: bool = False,
        stop_in_prompt: bool = False,
    ) -> None:
        """Search for `stop_texts`, and cut the text before the first, or after it with `keep`.

        With `stop_in_prompt` one counts also if it begins before the piece; then the piece is empty, or with `keep` the rest of the stop
        text. The text before the piece is never cut.

        Raises:
            OptionError: a stop text is empty, not a string, or has a lone surrogate.
        """
        self.stop_texts = checked_texts(stop_texts)
        self._matcher = StopText.of(self.stop_texts)
        self.horizon = self._matcher.longest  # a token has a byte or more
        self._tokenizer = tokenizer
        self._keep = checked_bool(keep, "keep")
        self._stop_in_prompt = checked_bool(stop_in_prompt, "stop_in_prompt")

    def initial(self, row: RowView) -> StopState:
        """Return the state before any text of the piece."""
        matcher = self._matcher
        if self._stop_in_prompt:
            matcher = matcher.after(text_before(row, self._tokenizer, matcher.longest - 1))
        return StopState(matcher, num_healed=len(row.healed))

    def branches(self, state: StopState, row: RowView) -> list[Branch]:
        """Return free sampling, the cut after a stop text was found, and no branch after the cut."""
        if state.cut_at:
            return []
        match = state.matcher.match
        if match is None:
            return FREE
        token_ids = row.token_ids[row.piece_start :]
        start = match.end if self._keep else max(match.start, 0)
        cut = position_at(self._tokenizer, token_ids, len(row.healed) + start)
        if cut.token == len(token_ids):
            return []
        rest = self._tokenizer.text_bytes(token_ids[cut.token :])[: cut.offset]
        spelled = encode_bytes_inside(self._tokenizer, rest, row.token_ids[: row.piece_start + cut.token])
        return [Branch(backtrack=len(token_ids) - cut.token, ff_tokens=[spelled] if spelled else [])]

    def advance(self, state: StopState, token_id: int) -> StopState:
        """Return the state after the bytes of `token_id`."""
        token = self._tokenizer.text_bytes([token_id])
        data = token[state.num_healed :]
        matcher, _ = state.matcher.push(data)
        return StopState(matcher, state.num_bytes + len(data), state.cut_at, max(state.num_healed - len(token), 0))

    def rewound(self, before: StopState, after: StopState, row: RowView) -> StopState:
        """Return the state that stops."""
        return replace(after, cut_at=before.match)

    def stop(self, state: StopState) -> str | None:
        """Return the stop text that was found."""
        return state.match.text if state.match is not None else None

    def held_bytes(self, state: StopState) -> int:
        """Return the number of trailing bytes that may belong to a stop text, or that follow one."""
        return 0 if state.cut_at else state.num_bytes - state.matcher.safe
