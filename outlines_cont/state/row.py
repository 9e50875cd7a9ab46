"""`StateRow`: one sequence of a state as an immutable record: for each token its id, its kind (prompt, appended, generated, forced, healed)
and two log-probabilities; its KV cache, last logits, random stream and result. `WrittenPiece` describes the span that was generated last,
so that it can be resumed. Text, weight (sum of log-probabilities since it was reset) and score are computed from the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from outlines_cont.interfaces import Tokenizer
from outlines_cont.kv.row import RowKV
from outlines_cont.sampling.kernels.token_counts import TokenCounts
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.exclusions import NO_EXCLUSIONS, Exclusions
from outlines_cont.state.logprob_sum import NOTHING_SKIPPED, LogprobSum
from outlines_cont.state.row_bytes import shown_text, written

PROMPT, APPENDED, GENERATED, FORCED, HEALED = b"p", b"a", b"g", b"f", b"h"
# The kinds that generators wrote.
WRITTEN = GENERATED + FORCED
# The kinds that have a log-probability.
SCORED = WRITTEN + HEALED


@dataclass(frozen=True, slots=True)
class WrittenPiece:
    """The span that was generated last on a row, and what is needed to resume it.

    Attributes:
        start: index of its first token.
        owed: forced tokens that a limit cut off; they are first when the span is resumed.
        source: the constraint of the span, as JSON, such as `{"regex": "[a-z]+"}`; empty where that is not known.
        retries: how often it was rewound because a policy, such as a check, refused what was generated.
        exclusions: the token ids that may not be drawn again, by position.
        stop: the stop text or stop token that ended it; None where neither did.
        unscored: indices of forced tokens whose log-probabilities will be known when they are fed.
        healed: how many bytes at its beginning the row had before; token healing generated them anew, see `healing`.
    """

    start: int
    owed: tuple[int, ...] = ()
    source: str = ""
    retries: int = 0
    exclusions: Exclusions = NO_EXCLUSIONS
    stop: str | int | None = None
    unscored: tuple[int, ...] = ()
    healed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class StateRow:
    """One sequence of T tokens, with a value for each in parallel tuples, and its KV cache.

    Attributes:
        token_ids: T ids.
        kinds: T bytes: `p` prompt, `a` appended or encoded anew, `g` generated, `f` forced, `h` healed: generated, but
            of text that the row had before (token healing).
        logprobs: T natural logarithms, the model's own; 0 for prompt and appended tokens.
        sampling_logprobs: T, those of the distribution that was sampled from (masked, warped); 0 for forced tokens, too.
        counted: what counts in `weight`.
        mirostat_start: index of the first token that counts in the bound of `Mirostat`; None where what was drawn last was not drawn
            with it.
        kv: keys and values of the first tokens; None where none are cached.
        logits: (V,) logits after the last token, where it was fed and they are known.
        stream: the position in the row's random numbers.
        piece: the last generated span; None where there is none, or text was appended since.
        finish_reason: why the last generated span ended; empty where there is none.
        value: the result of the last generator, None where the text was cut or failed.
        error: what the last generator failed with on this row.
        search: what counts in `score`, also before a reset; None where no search has written in the row.
        starts_inside: the tokens were cut out of the middle of a text: they have no beginning, and a space there is no prefix
            space. It counts where the row is joined to another.
        num_start_tokens: how many of the first tokens the tokenizer has put in front of the text, such as BOS; they are not part of it.
        prompt_length: how many characters of the text are the prompt.
    """

    token_ids: tuple[int, ...]
    kinds: bytes
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    stream: RandomStream
    counted: LogprobSum = NOTHING_SKIPPED
    kv: RowKV | None = None
    logits: torch.Tensor | None = None
    piece: WrittenPiece | None = None
    finish_reason: str = ""
    value: Any = None
    error: Exception | None = None
    search: LogprobSum | None = None
    starts_inside: bool = False
    mirostat_start: int | None = None
    num_start_tokens: int = 0
    prompt_length: int = 0

    @classmethod
    def of_prompt(cls, token_ids: Sequence[int], stream: RandomStream, num_start_tokens: int = 0) -> StateRow:
        """Return a row of which nothing was fed yet; the length of the prompt is for the caller to set."""
        length = len(token_ids)
        zeros = (0.0,) * length
        kinds = PROMPT * length
        return cls(tuple(token_ids), kinds, zeros, zeros, stream, _reset(length), num_start_tokens=num_start_tokens)

    def written(self, tokenizer: Tokenizer) -> list[bytes]:
        """Return the bytes that each token contributes to the text, as `row_bytes.written` does."""
        return written(self.token_ids, tokenizer, self.num_start_tokens)

    def text(self, tokenizer: Tokenizer) -> str:
        """Return the text, decoded with `errors="replace"`, without a prefix space."""
        return shown_text(self.token_ids, tokenizer, self.num_start_tokens)

    def has_text(self, tokenizer: Tokenizer) -> bool:
        """Return whether some token contributes something to the text."""
        return any(self.written(tokenizer))

    @property
    def cached(self) -> int:
        """The number of first tokens whose keys and values are cached."""
        return len(self.kv) if self.kv is not None else 0

    @property
    def pending(self) -> int:
        """How many tokens must be fed before the next is sampled; 0 where the logits are known, even if keys are not."""
        return 0 if self.logits is not None else len(self.token_ids) - self.cached

    @property
    def weight(self) -> float:
        """The sum of the log-probabilities since the last reset, and of the ends that were drawn."""
        return self.counted.weight(self.logprobs)

    @property
    def score(self) -> float:
        """The number by which samples are ranked: what was drawn since a search began, else since the last reset."""
        drawn = self.drawn
        return drawn.ranked(drawn.total(self.logprobs), drawn.num_written(self.kinds))

    @property
    def drawn(self) -> LogprobSum:
        """What counts in `score`."""
        return self.counted if self.search is None else self.search

    def searched(self, length_penalty: float = 0.0) -> StateRow:
        """Return the row as the start of a beam search; the score of the first search begins with the weight."""
        return replace(self, search=replace(self.drawn, length_penalty=length_penalty))

    def joined_search(self, right: StateRow, moved: Callable[[int], int]) -> LogprobSum | None:
        """Return the `search` of this row with `right` behind it, whose positions are moved."""
        if self.search is None and right.search is None:
            return None
        both = self.drawn.joined(right.drawn.mapped(moved))
        return both if right.search is None else replace(both, length_penalty=right.search.length_penalty)

    @property
    def next_mirostat_start(self) -> int:
        """The index of the first token that `Mirostat` counts: where it began, else the next one."""
        return len(self.token_ids) if self.mirostat_start is None else self.mirostat_start

    def counts_for(self, *, mirostat: bool) -> TokenCounts:
        """Return the counts that samplers need; `mirostat`: the next token is drawn with `Mirostat`. Cost: O(T log T)."""
        start = self.next_mirostat_start if mirostat else None
        return counts_of(self.token_ids, self.kinds, self.sampling_logprobs, start)

    def append(self, token_ids: Sequence[int], *, reset: bool) -> StateRow:
        """Return the row with given tokens at its end; `reset` sets the weight to 0."""
        if not token_ids:
            return replace(self, counted=_reset(len(self.token_ids))) if reset else self
        zeros = (0.0,) * len(token_ids)
        longer = self.token_ids + tuple(token_ids)
        return replace(
            self,
            token_ids=longer,
            kinds=self.kinds + APPENDED * len(token_ids),
            logprobs=self.logprobs + zeros,
            sampling_logprobs=self.sampling_logprobs + zeros,
            counted=_reset(len(longer)) if reset else self.counted,
            logits=None,
            piece=None,
        )


Rows = tuple[tuple[StateRow, ...], ...]
"""The rows of a state: B tuples of S rows."""


def counts_of(
    token_ids: Sequence[int], kinds: bytes | bytearray, sampling_logprobs: Sequence[float], mirostat_start: int | None
) -> TokenCounts:
    """Return the counts of a row, which samplers need. Cost: O(T log T)."""
    drawn = [x if kind == GENERATED[0] else None for kind, x in zip(kinds, sampling_logprobs, strict=True)]
    return TokenCounts(token_ids, [kind in WRITTEN for kind in kinds], drawn, mirostat_start)


def _reset(length: int) -> LogprobSum:
    """Return the sum of a row of which nothing counts yet."""
    return LogprobSum(((0, length),) if length else ())


def is_lacking(row: StateRow) -> bool:
    """Return whether something of the row must be fed before a token can be sampled after it."""
    return row.logits is None and row.error is None and bool(row.token_ids)
