"""`Exclusions`: for rejection sampling without replacement, the token ids that are not drawn again at positions to which a row was rewound.
Ids are excluded strictly, or avoided: drawn only if no other id is allowed. An entry is valid for the tokens before its position only: a
rewind to an earlier position removes it, so that an id that was refused after one prefix is not refused after another. The engine stores
them, not the policies.

`LogprobSum`: which log-probabilities of a row count in its weight, or in the score that ranks it: those of its tokens outside of some
spans, of ends of text that were drawn, and, in the score alone, of tokens that were drawn and are no longer among the ids. All of them have
positions, so the sum follows a row that is cut, joined or respelled. A beam search divides the score by a power of the number of tokens.

`written`, `shown_text`: the bytes that each token of a row contributes to its text (a special token its name, such as `<|im_end|>`; none
for start tokens, such as BOS, that the tokenizer has put in front, nor for an id without a name), and the text, decoded with U+FFFD for
invalid UTF-8 and without the prefix space that a tokenizer adds.

`StateRow`: one sequence of a state as an immutable record: for each token its id, its kind (prompt, appended, generated, forced, healed)
and two log-probabilities; its KV cache, last logits, random stream and result. `WrittenPiece` describes the span that was generated last,
so that it can be resumed, and its `Thoughts`, those before it. The types of fields that files hold (`Count`, `Finite`) are what is checked
in a file that is loaded. Text, weight (sum of log-probabilities since it was reset) and score are
computed from the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from outlines_cont.errors import ImageLost, NotRecomputable
from outlines_cont.interfaces import Tokenizer
from outlines_cont.kv.row import RowKV
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.image_span import Images, keyed, shown
from outlines_cont.state.kept_options import Count, Counts, Finite


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The token ids that may not be drawn at one position of a row.

    Attributes:
        index: the position, as the index of the token that is drawn there.
        excluded: ids that are never drawn there, because every continuation of them is refused.
        avoided: ids that are drawn there only if no others are allowed, because one continuation of them was refused.
        policy: the index, among the policies of the generated span, of the one that refused last.
        retries: how often the row was rewound to this position.
    """

    index: Count
    excluded: Counts = frozenset()
    avoided: Counts = frozenset()
    policy: Count = 0
    retries: Count = 0


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Exclusions by position, ascending. Immutable: methods return a changed copy."""

    entries: tuple[Exclusion, ...] = field(default=())

    def __iter__(self) -> Iterator[Exclusion]:
        return iter(self.entries)

    def at(self, index: int) -> Exclusion | None:
        """Return what may not be drawn as token `index`; None if nothing is excluded. Cost: the number of entries after it."""
        for entry in reversed(self.entries):
            if entry.index <= index:
                return entry if entry.index == index else None
        return None

    def adding(self, index: int, excluded: frozenset[int], avoided: frozenset[int], policy: int) -> Exclusions:
        """Return these with more ids excluded, or avoided, as token `index`; entries after it are dropped, a retry is counted."""
        before = self.at(index) or Exclusion(index)
        excluded, avoided = before.excluded | excluded, before.avoided | avoided
        together = Exclusion(index, excluded, avoided, policy, before.retries + 1)
        return Exclusions((*self.until(index).entries, together))

    def with_ids(self, index: int, excluded: frozenset[int]) -> Exclusions:
        """Return these with more ids excluded as token `index`, without a retry."""
        before = self.at(index) or Exclusion(index)
        return Exclusions((*self.until(index).entries, replace(before, excluded=before.excluded | excluded)))

    def until(self, index: int) -> Exclusions:
        """Return those before token `index`."""
        if not self.entries or self.entries[-1].index < index:
            return self
        return Exclusions(tuple(entry for entry in self.entries if entry.index < index))


NO_EXCLUSIONS = Exclusions()


# The kinds that count as tokens in a length penalty: generated and forced.
_WRITTEN = b"gf"


@dataclass(frozen=True, slots=True)
class LogprobSum:
    """The terms of a sum over a row; a position is the number of tokens before it.

    Attributes:
        skipped: spans (first position, last position) of tokens that do not count, such as those before a reset, ascending.
        ends: (position, log-probability) of each end of text that was drawn.
        cuts: (position, log-probability, number of tokens) of what was drawn and then cut, by a stop text or by healing.
        length_penalty: the score is divided by the number of written tokens to this power.
        end_ratios: (position, logarithm of the model's probability over the sampled one) of the token of each of these ends.
    """

    skipped: tuple[tuple[Count, Count], ...] = ()
    ends: tuple[tuple[Count, Finite], ...] = ()
    cuts: tuple[tuple[Count, Finite, Count], ...] = ()
    length_penalty: float = 0.0
    end_ratios: tuple[tuple[Count, Finite], ...] = ()

    def weight(self, logprobs: Sequence[float]) -> float:
        """Return the sum over the tokens and ends of a row with these log-probabilities."""
        return sum(sum(logprobs[part]) for part in self._counted()) + self.of_ends

    @property
    def of_ends(self) -> float:
        """The sum over the ends alone."""
        return sum(logprob for _, logprob in self.ends)

    def total(self, logprobs: Sequence[float]) -> float:
        """Return the sum over tokens, ends and cuts."""
        return self.weight(logprobs) + sum(logprob for _, logprob, _ in self.cuts)

    def importance(self, logprobs: Sequence[float], sampling_logprobs: Sequence[float]) -> float:
        """Return the logarithm of the model's probability of what was written over that with which it was sampled."""
        sampled = sum(sum(sampling_logprobs[part]) for part in self._counted())
        return self.weight(logprobs) - self.of_ends - sampled + sum(ratio for _, ratio in self.end_ratios)

    def num_written(self, kinds: bytes | bytearray) -> int:
        """Return how many of the tokens that count were written by generators, cut ones included."""
        return sum(kinds[part].count(kind) for part in self._counted() for kind in _WRITTEN) + sum(
            count for _, _, count in self.cuts
        )

    def ranked(self, total: float, num_written: int) -> float:
        """Return the score: the total, divided by a power of the number of tokens that generators wrote."""
        return total / float(max(num_written, 1) ** self.length_penalty) if self.length_penalty else total

    def mapped(self, moved: Callable[[int], int]) -> LogprobSum:
        """Return the sum with other positions, by a function that never decreases."""
        spans = ((moved(start), moved(stop)) for start, stop in self.skipped)
        return replace(
            self,
            skipped=tuple((start, stop) for start, stop in spans if start < stop),
            ends=tuple((moved(position), logprob) for position, logprob in self.ends),
            cuts=tuple((moved(position), logprob, count) for position, logprob, count in self.cuts),
            end_ratios=tuple((moved(position), ratio) for position, ratio in self.end_ratios),
        )

    def reopened(self, count: int) -> LogprobSum:
        """Return the sum for a row whose tokens after the first `count` are written anew; its other terms are kept."""
        return self.mapped(lambda position: min(position, count))

    def cut(self, count: int) -> LogprobSum:
        """Return the sum over the first `count` tokens, with what was drawn up to there."""
        ends, ratios = (tuple(end for end in of if end[0] <= count) for of in (self.ends, self.end_ratios))
        cuts = tuple(one for one in self.cuts if one[0] <= count)
        return replace(self.reopened(count), ends=ends, cuts=cuts, end_ratios=ratios)

    def joined(self, other: LogprobSum) -> LogprobSum:
        """Return the terms of both, with the length penalty of this one; the spans of `other` are behind those of this one."""
        return self.adding(other.ends, other.cuts, other.skipped, other.end_ratios)

    def adding(
        self,
        ends: tuple[tuple[int, float], ...] = (),
        cuts: tuple[tuple[int, float, int], ...] = (),
        skipped: tuple[tuple[int, int], ...] = (),
        end_ratios: tuple[tuple[int, float], ...] = (),
    ) -> LogprobSum:
        """Return the sum with further terms."""
        ratios = self.end_ratios + end_ratios
        return replace(
            self, skipped=self.skipped + skipped, ends=self.ends + ends, cuts=self.cuts + cuts, end_ratios=ratios
        )

    def _counted(self) -> Iterator[slice]:
        """Yield the spans that count, between those that are skipped."""
        stops = (*(start for start, _ in self.skipped), None)
        for start, stop in zip((0, *(stop for _, stop in self.skipped)), stops, strict=True):
            yield slice(start, stop)


NOTHING_SKIPPED = LogprobSum()


def written(token_ids: Sequence[int], tokenizer: Tokenizer, num_start_tokens: int = 0) -> list[bytes]:
    """Return what each token contributes, nothing for the first `num_start_tokens`; a prefix space stays."""
    table = tokenizer.token_bytes
    parts = [table[token_id] for token_id in token_ids]
    names = tokenizer.special_tokens if None in parts else {}
    return [
        b"" if index < num_start_tokens else names.get(token_ids[index], "").encode() if part is None else part
        for index, part in enumerate(parts)
    ]


def shown_text(token_ids: Sequence[int], tokenizer: Tokenizer, num_start_tokens: int = 0) -> str:
    """Return the text of tokens that begin a row, decoded with `errors="replace"`, without a prefix space."""
    return _decoded(token_ids, written(token_ids, tokenizer, num_start_tokens), tokenizer)


def _decoded(token_ids: Sequence[int], parts: Sequence[bytes], tokenizer: Tokenizer) -> str:
    text = b"".join(parts).decode("utf-8", errors="replace")
    return text[1:] if begins_with_prefix_space(token_ids, parts, tokenizer) else text


def first_written(parts: Sequence[bytes]) -> int:
    """Return the index of the first token that contributes something; the number of tokens if none does."""
    return next((index for index, part in enumerate(parts) if part), len(parts))


def begins_with_prefix_space(token_ids: Sequence[int], parts: Sequence[bytes], tokenizer: Tokenizer) -> bool:
    """Return whether a text that began with these tokens would not show its leading space; `parts` is what they contribute."""
    first = first_written(parts)
    token = token_ids[first : first + 1]
    if not token or tokenizer.token_bytes[token[0]] != parts[first]:  # a special token, or one of an image
        return False
    return len(tokenizer.decode(token)) < len(parts[first].decode(errors="replace"))


PROMPT, APPENDED, GENERATED, FORCED, HEALED = b"p", b"a", b"g", b"f", b"h"
# The kinds that generators wrote.
WRITTEN = GENERATED + FORCED
# The kinds that have a log-probability.
SCORED = WRITTEN + HEALED


def shown_logprobs(logprobs: Sequence[float], kinds: bytes | bytearray) -> list[float]:
    """Return the log-probabilities of tokens as they are shown: NaN for those that no generator wrote, which were not scored.

    Rows hold 0 there, so that sums need no care.
    """
    return [x if kind in SCORED else math.nan for x, kind in zip(logprobs, kinds, strict=True)]


@dataclass(frozen=True, slots=True)
class Thoughts:
    """The free text between the marks of thinking, before an answer.

    Attributes:
        start: index of its first token, after the mark that begins it.
        stop: index after its last token; None while the model thinks.
        num_mark_bytes: how many bytes at its end are the mark that ends it, where that is text.
        finish_reason: `stop` if the model has ended it, `length` if a limit has, empty while the model thinks.
    """

    start: Count
    stop: Count | None = None
    num_mark_bytes: Count = 0
    finish_reason: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the model still thinks."""
        return self.stop is None

    def data(self, token_ids: Sequence[int], tokenizer: Tokenizer) -> bytes:
        """Return its bytes in a row, without the mark."""
        data = tokenizer.text_bytes(token_ids[self.start : self.stop])
        return data[: max(len(data) - self.num_mark_bytes, 0)]


@dataclass(frozen=True, slots=True)
class WrittenPiece:
    """The span that was generated last on a row, and what is needed to resume it.

    Attributes:
        start: index of its first token.
        owed: forced tokens that a limit cut off; they are first when the span is resumed.
        source: the constraint of the span, as JSON, such as `{"regex": "[a-z]+"}`; empty if that is not known.
        retries: how often it was rewound because a policy, such as a check, refused what was generated.
        rejections: how often of these no token was excluded; see `CheckedConstraint`.
        policy_retries: the same for each of its policies, whose limits count them.
        ended: why the span has ended, if it is thoughts whose answer was not begun; else empty.
        exclusions: the token ids that may not be drawn again, by position.
        stop: the stop text or stop token that ended it; None if neither did.
        healed: how many bytes at its beginning the row had before; token healing generated them anew, see `healing`.
        maker: the generator that wrote it, once the span has ended; None if that is not known, as in a state that was loaded.
        thoughts: what the model has thought before it; while it thinks the span itself. None without `thinking`.
        options: those of the call that wrote it (`generation.options.Options`), with which it is resumed; as a `KeptOptions` in a state
            that was loaded. None if they are not known.
        drafted: which of its tokens a draft had guessed, as bits: bit i is that of token `start + i`. Files do not have it.
        reused: how many of the first tokens of the row were not fed to write it. Files do not have it.
    """

    start: int
    owed: tuple[int, ...] = ()
    source: str = ""
    retries: int = 0
    exclusions: Exclusions = NO_EXCLUSIONS
    stop: str | int | None = None
    healed: int = 0
    maker: Any = field(default=None, compare=False, repr=False)
    thoughts: Thoughts | None = None
    policy_retries: tuple[int, ...] = ()
    ended: str = ""
    options: Any = field(default=None, compare=False, repr=False)
    drafted: int = field(default=0, compare=False)
    reused: int = field(default=0, compare=False)
    rejections: int = 0

    @property
    def is_thinking(self) -> bool:
        """Whether the span was cut while the model thought, before its answer began."""
        return self.thoughts is not None and self.thoughts.is_open


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
        surprise_start: index of the first token whose surprisal counts for a warper that follows it; None if what was drawn last was
            drawn without one.
        kv: keys and values of the first tokens; None if none are cached.
        logits: (V,) logits after the last token, where it was fed and they are known.
        stream: the position in the row's random numbers.
        piece: the last generated span; None if there is none, or text was appended since.
        finish_reason: why the last generated span ended; empty if there is none.
        value: the result of the last generator, None if the text was cut or failed.
        error: what the last generator failed with on this row.
        search: what counts in `score`, also before a reset; None if no search has written in the row.
        starts_inside: the tokens were cut out of the middle of a text: they have no beginning, and a space there is no prefix
            space. It counts where the row is joined to another.
        num_start_tokens: how many of the first tokens the tokenizer has put in front of the text, such as BOS; they are not part of it.
        prompt_length: how many characters of the text are the prompt.
        unscored: indices of forced tokens, ascending, whose log-probabilities are 0 here, and known when the tokens are fed.
        pinned: how many of the first tokens have keys and values that do not follow from their ids; `kv` has them, or the row cannot run.
        images: the spans of tokens that stand for images, ascending.
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
    surprise_start: int | None = None
    num_start_tokens: int = 0
    prompt_length: int = 0
    unscored: tuple[int, ...] = ()
    pinned: int = 0
    images: Images = ()

    @classmethod
    def of_prompt(cls, token_ids: Sequence[int], stream: RandomStream, num_start_tokens: int = 0) -> StateRow:
        """Return a row of which nothing was fed yet; the length of the prompt is for the caller to set."""
        length = len(token_ids)
        zeros = (0.0,) * length
        kinds = PROMPT * length
        return cls(tuple(token_ids), kinds, zeros, zeros, stream, _reset(length), num_start_tokens=num_start_tokens)

    def written(self, tokenizer: Tokenizer) -> list[bytes]:
        """Return the bytes that each token contributes to the text, as `row_bytes.written` does; an image is `<image>`."""
        parts = written(self.token_ids, tokenizer, self.num_start_tokens)
        return shown(self.images, parts) if self.images else parts

    def text(self, tokenizer: Tokenizer) -> str:
        """Return the text, decoded with `errors="replace"`, without a prefix space."""
        return _decoded(self.token_ids, self.written(tokenizer), tokenizer)

    def has_text(self, tokenizer: Tokenizer) -> bool:
        """Return whether some token contributes something to the text."""
        return any(self.written(tokenizer))

    @property
    def cached(self) -> int:
        """The number of first tokens whose keys and values are cached."""
        return len(self.kv) if self.kv is not None else 0

    def check_pinned(self, first: int, what: str) -> None:
        """Raise `NotRecomputable` if `what` would compute anew, from the ids alone, tokens from index `first` on that are pinned."""
        if first < self.pinned:
            raise NotRecomputable(
                f"expected an operation that keeps the keys and values of the first {self.pinned} tokens of a row, which do not follow "
                f"from its ids (they were made of an image, or of other embeddings), but {what}, so that they would be lost. Keep the row "
                "whole and append to it, or make a cache and a state anew: `SequenceState.from_cache`."
            )

    @property
    def num_seen(self) -> int:
        """The number of tokens up to the end of the last image; 0 without one."""
        return self.images[-1].stop if self.images else 0

    @property
    def key_ids(self) -> tuple[int, ...]:
        """The ids as a key of keys and values, in which those of images stand for their pixels."""
        return tuple(keyed(self.images, self.token_ids)) if self.images else self.token_ids

    def check_images(self) -> None:
        """Raise `ImageLost` if an image whose keys and values are not cached cannot be seen again."""
        cached = self.cached if self.images else 0
        for span in self.images:
            if span.stop > cached and span.is_lost:
                raise ImageLost(
                    f"expected an image that can be seen again, but the keys and values of that in tokens {span.start} to {span.stop - 1} "
                    "are gone, and its pixels, too. See it anew (`model.see`); keep more pixels (`model.pixels.max_bytes`, "
                    "`keep_pixels=True`), or give keys and values more room (`kv_budget_bytes`)."
                )

    @property
    def pending(self) -> int:
        """How many tokens must be fed before the next is sampled; 0 if the logits are known, even if keys are not."""
        return 0 if self.logits is not None else len(self.token_ids) - self.cached

    @property
    def weight(self) -> float:
        """The sum of the log-probabilities since the last reset, and of the ends that were drawn."""
        return self.counted.weight(self.logprobs)

    @property
    def importance(self) -> float:
        """The logarithm of the model's probability over the sampled one, of what counts in `weight`."""
        return self.counted.importance(self.logprobs, self.sampling_logprobs)

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
    def next_surprise_start(self) -> int:
        """The index of the first token whose surprisal a warper of the next token counts: `surprise_start`, else the next one."""
        return len(self.token_ids) if self.surprise_start is None else self.surprise_start

    def counts_for(self, *, follows_surprise: bool) -> TokenCounts:
        """Return the counts that samplers need; `follows_surprise`: see `SamplingParams`. Cost: O(T log T)."""
        start = self.next_surprise_start if follows_surprise else None
        return counts_of(self.token_ids, self.kinds, self.sampling_logprobs, start)

    def scored_by(self, fed: StateRow) -> StateRow:
        """Return the row with the scores, keys, values and logits of `fed`, the same row without its error."""
        return fed if self.error is None else replace(fed, error=self.error, logits=None)

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
    token_ids: Sequence[int], kinds: bytes | bytearray, sampling_logprobs: Sequence[float], surprise_start: int | None
) -> TokenCounts:
    """Return the counts of a row, which samplers need. Cost: O(T log T)."""
    drawn = [x if kind == GENERATED[0] else None for kind, x in zip(kinds, sampling_logprobs, strict=True)]
    return TokenCounts(token_ids, [kind in WRITTEN for kind in kinds], drawn, surprise_start)


def _reset(length: int) -> LogprobSum:
    """Return the sum of a row of which nothing counts yet."""
    return LogprobSum(((0, length),) if length else ())


def is_lacking(row: StateRow) -> bool:
    """Return whether tokens must be fed before sampling or scoring."""
    return (row.logits is None or bool(row.unscored)) and row.error is None and bool(row.token_ids)
