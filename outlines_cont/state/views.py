"""`parse_key`: converts the key of `state[batch, sample, ids]` to indices of the batch and sample axes and one int or slice for all rows;
`cut` converts that to start, stop, step in one row. Batch and sample axes of size 1 may be left out, `...` replaces all that are not named;
ints keep their axis and must be in range, slices are clipped as in Python. Other keys, such as lists and masks, are an `IndexError`.

`StateViews`: what can be read of the rows of a state: tokens and log-probabilities as padded tensors (those of forced tokens that were
not fed yet are computed), texts, results, spans, finish reasons, and how a state is shown: as text, in a console, and in a notebook.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

import torch

from fsm.errors import stacklevel_of_user
from outlines_cont.checks import index_of
from outlines_cont.errors import NoValueWarning, OptionError, shortened
from outlines_cont.immutable import Immutable
from outlines_cont.inspector.page import frame, page
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.state.inspection import inspection
from outlines_cont.state.log_z import LogZ
from outlines_cont.state.row import APPENDED, FORCED, GENERATED, HEALED, PROMPT, Rows, StateRow, shown_logprobs

_SHORT = 4  # tokens that may be one character
_FORMS = {
    (True, True): "`state[ids]`, `state[sample, ids]` or `state[batch, sample, ids]`",
    (True, False): "`state[sample, ids]` or `state[batch, sample, ids]`",
    (False, True): "`state[batch, ids]` or `state[batch, sample, ids]`",
    (False, False): "`state[batch, sample, ids]`",
}


_ROWS = "`state[0, 0, :]` is the first row, and `list(state)` are the texts of all"


@dataclass(frozen=True, slots=True)
class Key:
    """A key as indices of the batch and sample axes, and a slice of every row, or an int that must be in range for every row."""

    batch: range
    samples: range
    ids: int | slice


def parse_key(key: Any, batch_size: int, num_samples: int) -> Key:
    """Return a key of a state of B x S rows; `IndexError` for another number or type of parts, or an int out of range."""
    parts = _filled(list(key) if isinstance(key, tuple) else [key])
    if len(parts) == 2:
        parts = [slice(None), *parts] if batch_size == 1 else [parts[0], slice(None), parts[1]]
        _check_arity(batch_size == 1 or num_samples == 1, key, batch_size, num_samples)
    elif len(parts) == 1:
        parts = [slice(None), slice(None), *parts]
        _check_arity(batch_size == num_samples == 1, key, batch_size, num_samples)
    _check_arity(len(parts) == 3, key, batch_size, num_samples)
    batch, samples, ids = (_part(part, key, batch_size, num_samples) for part in parts)
    return Key(_indices(batch, batch_size, "batch"), _indices(samples, num_samples, "sample"), ids)


def _filled(parts: list[Any]) -> list[Any]:
    """Return three parts, with whole axes in place of one `...`; other keys unchanged."""
    dots = [at for at, part in enumerate(parts) if part is Ellipsis]
    if len(dots) != 1 or len(parts) > 4:
        return parts
    (at,) = dots
    return parts[:at] + [slice(None)] * (4 - len(parts)) + parts[at + 1 :]


def cut(ids: int | slice, length: int, row: tuple[int, int], unit: str) -> slice:
    """Return `ids` for a row of `length` items, as a slice with 0 <= start, and stop and step as for `range`.

    An int out of range is an `IndexError`, which names `row`, its (batch, sample) index, and the `unit`: characters or tokens.
    """
    if isinstance(ids, slice):
        return slice(*ids.indices(length))
    if not length:
        raise IndexError(f"expected a slice for the row at {list(row)}, which is empty, got {ids}")
    if not -length <= ids < length:
        raise IndexError(
            f"expected an index from {-length} to {length - 1} for the row at {list(row)}, which has {length} {unit}, got "
            f"{ids}. A slice may reach beyond the end, an int may not. The last axis counts {unit}: {_ROWS}."
        )
    start = ids % length
    return slice(start, start + 1, 1)


def _check_arity(holds: bool, key: Any, batch_size: int, num_samples: int) -> None:
    if not holds:
        forms = _FORMS[batch_size == 1, num_samples == 1]
        raise IndexError(
            f"expected {forms}, or `state[..., ids]`, where `ids` are characters, for a state of {batch_size} x {num_samples} rows; "
            f"got {_shown(key)}. To take a whole row, write `:` for `ids`: {_ROWS}."
        )


def _part(part: Any, key: Any, batch_size: int, num_samples: int) -> int | slice:
    if isinstance(part, slice):
        return part
    index = index_of(part)
    _check_arity(index is not None, key, batch_size, num_samples)
    assert index is not None
    return index


def _indices(part: int | slice, size: int, axis: str) -> range:
    if isinstance(part, slice):
        return range(size)[part]
    if not size:
        raise IndexError(f"expected a slice on the {axis} axis, which is empty, got {part}")
    if not -size <= part < size:
        raise IndexError(f"expected a {axis} index from {-size} to {size - 1}, got {part}")
    return range(part % size, part % size + 1)


def _shown(key: Any) -> str:
    return f"`state[{', '.join(map(_shown_part, key if isinstance(key, tuple) else [key]))}]`"


def _shown_part(part: Any) -> str:
    if not isinstance(part, slice):
        return "..." if part is Ellipsis else repr(part)[:40]
    ends = ["" if end is None else str(end) for end in (part.start, part.stop)]
    return ":".join(ends if part.step is None else [*ends, str(part.step)])


_KINDS = {PROMPT: "prompt", APPENDED: "appended", GENERATED: "generated", FORCED: "forced", HEALED: "healed"}
# Of what a notebook shows.
_MAX_ROWS = 16
_MAX_TOKENS = 2_000


@dataclass(frozen=True, slots=True)
class Span:
    """A run of neighbouring tokens of one provenance, and their text.

    Attributes:
        kind: `prompt`, `appended` (given, or encoded anew), `generated` (sampled), `forced` (without a choice) or `healed` (sampled
            or forced, of text that the row had before).
        tokens: their indices in the row, a range. Tensors of a state of several rows, such as `logprobs`, have padding before shorter ones.
        text: their part of the text of the row, decoded with `errors="replace"`; a character that ends in the next span is cut.
        is_piece: whether they belong to the last generated span.
        num_healed: how many bytes at the beginning of `text` the row had before token healing; such tokens are a span of their own.
    """

    kind: str
    tokens: range
    text: str
    is_piece: bool
    num_healed: int = 0


@dataclass(frozen=True, eq=False)
class StateViews(Immutable):
    """The rows of a state, and what is read of them; the attributes are those of `SequenceState`, which derives states from states."""

    _advice: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("text", "texts", "decode"), "Write `str(state)`; `list(state)` for the texts of several rows."
        ),
        **dict.fromkeys(
            ("completion", "output", "outputs", "content", "answer"),
            "Write `state.generated` for the text after the prompt, or `state.value` for the result of the last generator.",
        ),
        **dict.fromkeys(
            ("generate", "continue_", "resume", "extend", "gen"),
            "A state is continued by a generator: `continuous(generator)(state)`, or `continuous(generator).resume(state)` if it was cut.",
        ),
        **dict.fromkeys(
            ("split", "strip", "startswith", "endswith", "find", "replace", "lower", "splitlines"),
            "That is a method of its text: `str(state)`.",
        ),
        **dict.fromkeys(("past_key_values", "cache", "kv"), "Write `state.kv_cache`."),
        **dict.fromkeys(("input_ids", "ids"), "Write `state.token_ids`."),
    }

    model: LanguageModel
    rows: Rows
    seed: int | tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """The number B of batch entries."""
        return len(self.rows)

    @property
    def num_samples(self) -> int:
        """The number S of samples of each batch entry."""
        return len(self.rows[0]) if self.rows else 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, T): batch entries, samples, tokens of the longest row."""
        return self.batch_size, self.num_samples, max((len(row.token_ids) for row in self._flat), default=0)

    @property
    def seeds(self) -> list[int]:
        """The seed of each batch entry."""
        return list(self.seed) if isinstance(self.seed, tuple) else [self.seed] * self.batch_size

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return self.model.tokenizer

    @property
    def token_ids(self) -> torch.Tensor:
        """(B, S, T) int64 on the CPU, left-padded."""
        return self._padded(lambda row: row.token_ids, torch.int64)

    @property
    def attention_mask(self) -> torch.Tensor:
        """(B, S, T) bool: True for tokens, False for padding."""
        return self._padded(lambda row: row.kinds, torch.bool)  # no kind is 0

    @property
    def logprobs(self) -> torch.Tensor:
        """(B, S, T) float32: the log-probability that the model itself gives to every generated token, forced ones included; left-padded.

        It is the log-softmax of the logits without mask and temperature. What was not scored is NaN: padding, tokens of the prompt, text
        that was added or encoded again (such as what is kept of the token that ends a text with `end="free"`), tokens whose left context
        was cut away, and those after the last drawn token of a row that failed. So sum by `nansum`; `score` has those of a given text. If
        states are added, each token keeps the value of the context in which it was generated.

        Cost: one forward if forced tokens at the end were not fed yet, as in the state of a stream that was left.
        """
        self._score()
        return self._padded(_logprobs_of, torch.float32, math.nan)

    def score(self) -> torch.Tensor:
        """Return (B, S, T) float32: the log-probability that the model gives to each token of the rows, those of the prompt among them.

        Each is given the tokens before it in its row, without mask, at temperature 1. NaN for padding, for the first token of a row, for
        pinned tokens, up to the last image and the token after it, and for rows that have failed. For a text after a state see
        `model.score(state, text)`.

        Raises:
            InvalidLogits: the logits of the model are NaN.

        Cost: all tokens are fed once more, as the logits before given tokens are not kept; their keys and values are not.
        """
        rows = [row for row in self._flat if row.error is None]
        firsts = [max(row.pinned, row.images[-1].stop if row.images else 0) + 1 for row in rows]
        found = iter(zip(firsts, self.model.score_rows(rows, firsts), strict=True))

        def line(row: StateRow) -> list[float]:
            if row.error is not None:
                return [math.nan] * len(row.token_ids)
            first, scores = next(found)
            return [math.nan] * min(first, len(row.token_ids)) + [one.logprob for one in scores]

        return self._padded(line, torch.float32, math.nan)

    @property
    def sampling_logprobs(self) -> torch.Tensor:
        """(B, S, T) float32: the same with mask, penalties and warpers, as the token was drawn; 0 for forced tokens, which were certain."""
        return self._padded(lambda row: shown_logprobs(row.sampling_logprobs, row.kinds), torch.float32, math.nan)

    @property
    def weights(self) -> torch.Tensor:
        """(B, S) float32: the sum of `logprobs` since the last reset, including those of sampled ends of text.

        `+` with text, and a slice that does not begin at the start, reset it. A slice from the start keeps the part of the sum that belongs
        to its tokens. An end of text that alone was allowed adds nothing.
        """
        self._score()
        return self._numbers(lambda row: row.weight, torch.float32)

    @property
    def importance(self) -> torch.Tensor:
        """(B, S) float64: the logarithm of the model's probability of what was written, over that with which it was sampled.

        It counts what `weights` count, tokens and ends that were drawn: the sum of `logprobs` minus that of `sampling_logprobs`. These are
        the weights that turn samples under a constraint, or at another temperature, into samples of the model's own distribution:
        `state.resample(state.importance)`. Minus infinity for a row that failed. It is exact for samples that were drawn at random once and
        kept: not for `greedy`, for a search, for rows that were resampled, or where a policy has rewound a row (`retries`).
        """
        self._score()
        return self._numbers(lambda row: row.importance if row.error is None else -math.inf, torch.float64)

    @property
    def log_z(self) -> LogZ:
        """Estimates, one for each batch entry, of the log-probability that the model alone would have written a text of the language.

        Its samples must be drawn independently, see `importance`; one that failed, or was cut before its text conforms, counts as 0. The
        ends count as in `weights`: after a text that cannot go on, any text of the model may follow.

        Raises:
            OptionError: the state has no row.
        """
        if not self._flat:
            raise OptionError("expected a state with one sample or more for `log_z`, got one without rows", "log_z")
        rows = zip(self.importance.tolist(), self.rows, strict=True)
        return LogZ.of(
            [
                [log if _is_whole(row) else -math.inf for log, row in zip(logs, group, strict=True)]
                for logs, group in rows
            ]
        )

    @property
    def end_logprobs(self) -> torch.Tensor:
        """(B, S) float32: the log-probability that the model itself gives to the end of text that was drawn, which is no token of the row.

        It is what `weights` has more than the `logprobs` of its tokens: the sum over all ends since the last reset. 0 if no end was
        drawn, as before a stop text or at a limit, and if an end alone was allowed. A slice keeps the ends inside of it.
        """
        return self._numbers(lambda row: row.counted.of_ends, torch.float32)

    @property
    def scores(self) -> torch.Tensor:
        """(B, S) float32: the values by which `best` and `sort` rank: the weights, and the log-probabilities of tokens that were drawn
        and then cut by a stop text. In rows that a search wrote they count from its beginning; see `samplers.beam_search`.
        """
        self._score()
        return self._numbers(lambda row: row.score, torch.float32)

    @property
    def cached(self) -> torch.Tensor:
        """(B, S) int64: the number of tokens of each row whose keys and values are cached; less after an eviction."""
        return self._numbers(lambda row: row.cached, torch.int64)

    @property
    def pinned(self) -> torch.Tensor:
        """(B, S) int64: how many of the first tokens of each row have keys and values that do not follow from their ids.

        They are those of a cache with an image, see `from_cache`. They are never evicted, and what would compute them again (another
        beginning, `detach_cache`, `save(kv=False)`) raises `NotRecomputable`.
        """
        return self._numbers(lambda row: row.pinned, torch.int64)

    @property
    def retries(self) -> torch.Tensor:
        """(B, S) int64: how often the last generated span of each row was rewound because a policy, such as a check, refused it."""
        return self._numbers(lambda row: row.piece.retries if row.piece else 0, torch.int64)

    @property
    def rejections(self) -> torch.Tensor:
        """(B, S) int64: how often of these a whole value that had failed its check was drawn again, and no token was excluded.

        A row with as many `retries` has values from the distribution of those that pass; the others have gone back to single tokens.
        """
        return self._numbers(lambda row: row.piece.rejections if row.piece else 0, torch.int64)

    @property
    def stops(self) -> list[list[str | int | None]]:
        """B lists of S: the stop text, or the id of the stop token, that ended the last generated span of each row; else None."""
        return [[row.piece.stop if row.piece else None for row in group] for group in self.rows]

    @property
    def thoughts(self) -> str | list[list[str]]:
        """What the model has thought before the last generated span, without marks, see `Thinking`; in the form of `generated`."""
        texts = self._grid(lambda row: _thoughts_of(row, self.tokenizer))
        return texts[0][0] if len(self._flat) == 1 else texts

    @property
    def thought_reasons(self) -> list[list[str]]:
        """B lists of S: why the thoughts of each row have ended: `stop` if the model ended them, `length` at their limit; else empty."""
        found = self._grid(lambda row: None if row.piece is None else row.piece.thoughts)
        return [["" if thoughts is None else thoughts.finish_reason for thoughts in group] for group in found]

    @property
    def generated(self) -> str | list[list[str]]:
        """What came after the prompt, text that was added included: one text for a state of one row, else B lists of S texts.

        `str(state) == prompt + state.generated`, unless the tokenizer changes the text of the prompt.
        """
        texts = self._grid(lambda row: row.text(self.tokenizer)[row.prompt_length :])
        return texts[0][0] if len(self._flat) == 1 else texts

    @property
    def finished(self) -> torch.Tensor:
        """(B, S) bool: whether the last generated span is complete; False if it was cut or failed."""
        return self._numbers(lambda row: row.finish_reason in ("stop", "constraint"), torch.bool)

    @property
    def finish_reasons(self) -> list[list[str]]:
        """B lists of S: `stop`, `constraint` (nothing may follow), `length` (cut) or `error`; empty before anything was generated."""
        return self._grid(lambda row: row.finish_reason)

    @property
    def values(self) -> list[list[Any]]:
        """B lists of S results of the last generator; None for a row that was cut or failed."""
        return self._grid(lambda row: row.value)

    @property
    def value(self) -> Any:
        """The result of the last generator: one for a state of one row, else as `values`.

        It is None, with a `NoValueWarning` that says why, if the one row was cut or failed; `finished` and `values` do not warn.
        """
        if len(self._flat) != 1:
            return self.values
        (row,) = self._flat
        if row.value is None and row.finish_reason in ("length", "error"):
            warnings.warn(_no_value(row, self.tokenizer), NoValueWarning, stacklevel_of_user())
        return row.value

    @property
    def errors(self) -> list[list[Exception | None]]:
        """B lists of S: the error of each row that failed, otherwise None."""
        return self._grid(lambda row: row.error)

    @property
    def spans(self) -> list[list[list[Span]]]:
        """B lists of S lists: the tokens of each row, in spans of the same origin; see `Span`."""
        return self._grid(lambda row: _spans_of(row, self.tokenizer))

    def __iter__(self) -> Iterator[str]:
        return iter([row.text(self.tokenizer) for row in self._flat])

    def __reversed__(self) -> Iterator[str]:
        """Yield the texts of the rows, the last row first; `state[..., ::-1]` has the characters in reverse."""
        return reversed(list(self))

    def __contains__(self, item: object) -> bool:
        raise TypeError(
            "a state is a text and a list of texts, so `in` could mean either. Instead of `x in state` write "
            "`x in str(state)` for a part of its text, or `x in list(state)` for the whole text of a row."
        )

    def __len__(self) -> int:
        return len(self._flat)

    def __str__(self) -> str:
        texts = list(self)
        if len(texts) == 1:
            return texts[0]
        samples = self.num_samples
        return "\n".join(f"[{i // samples}, {i % samples}] {text!r}" for i, text in enumerate(texts))

    def __format__(self, spec: str) -> str:
        """Return `str(state)` as a text is formatted: `f"{state:>10}"`."""
        return format(str(self), spec)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the page of `inspect`, of at most 16 rows and their last 2,000 tokens."""
        self._score()
        first = max(self.shape[2] - _MAX_TOKENS, 0)
        shown = page(inspection(self.model, self.rows, first=first, max_rows=_MAX_ROWS))
        return frame(shown, "\n".join([row.text(self.tokenizer) for row in self._flat[:_MAX_ROWS]]))

    def __repr__(self) -> str:
        batch, samples, width = self.shape
        reasons = sorted({row.finish_reason for row in self._flat} - {""})
        texts = [row.text(self.tokenizer) for row in self._flat] if width <= _SHORT else []
        # As of `state[0, 0]`, where a row may have been meant, which is `state[0, :]`.
        letters = f" of one character, {', '.join(map(repr, texts[:4]))}" if texts and {*map(len, texts)} == {1} else ""
        return (
            f"<{type(self).__name__} of {batch} x {samples} rows{letters}, at most {width} tokens, "
            f"{int(self.cached.sum())} cached in all, {'/'.join(reasons) or 'nothing generated'}>"
        )

    @property
    def _flat(self) -> tuple[StateRow, ...]:
        return tuple(row for group in self.rows for row in group)

    def _score(self) -> None:
        """Compute the log-probabilities of forced tokens that were not fed yet."""
        unscored = [row for row in self._flat if row.unscored]
        if unscored:
            fed = iter(self.model.prefilled([replace(row, error=None) for row in unscored]))
            self._learn([row.scored_by(next(fed)) if row.unscored else row for row in self._flat])

    def _learn(self, rows: Sequence[StateRow]) -> None:
        """Keep what was computed of the rows; the value is the same."""
        found = iter(rows)
        object.__setattr__(self, "rows", tuple(tuple(next(found) for _ in group) for group in self.rows))

    def _grid(self, of: Callable[[StateRow], Any]) -> list[list[Any]]:
        return [[of(row) for row in group] for group in self.rows]

    def _numbers(self, of: Callable[[StateRow], Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([of(row) for row in self._flat], dtype=dtype, device="cpu").reshape(
            self.batch_size, self.num_samples
        )

    def _padded(
        self, values: Callable[[StateRow], Sequence[float]], dtype: torch.dtype, padding: float = 0
    ) -> torch.Tensor:
        """Return (B, S, T): what `values` has of each token of a row, padded on the left."""
        out = torch.full(self.shape, padding, dtype=dtype, device="cpu")
        for line, row in zip(out.flatten(0, 1), self._flat, strict=True):
            line[len(line) - len(row.token_ids) :] = torch.tensor(list(values(row)), dtype=dtype, device="cpu")
        return out


def _no_value(row: StateRow, tokenizer: Tokenizer) -> str:
    """Return why a row has no value, and what to do."""
    if row.error is not None:
        return f"`value` is None, since the row has failed: {row.error} (`state.errors`)"
    start = 0 if row.piece is None else row.piece.start
    text = tokenizer.text_bytes(row.token_ids[start:]).decode(errors="replace")
    return (
        f"`value` is None, since the text was cut to {shortened(text)!r} before it was complete. Raise `max_tokens`, or complete it with "
        "`continuous(generator).resume(state)`. Ask `state.finished` first if that may happen."
    )


def _logprobs_of(row: StateRow) -> list[float]:
    """Return what `state.logprobs` shows of a row."""
    shown = shown_logprobs(row.logprobs, row.kinds)
    if row.error is None or row.piece is None:
        return shown
    end = max(row.kinds.rfind(GENERATED) + 1, row.piece.start)
    return shown[:end] + [math.nan] * (len(shown) - end)


def _is_whole(row: StateRow) -> bool:
    """Return whether the text of the last piece of a row conforms to its constraint, as far as that is known."""
    if row.piece is None:
        return row.error is None
    known = getattr(row.piece.maker, "is_whole", None)
    if known is not None:
        return bool(known(row))
    return row.error is None and (row.finish_reason != "length" or not row.piece.source)


def _thoughts_of(row: StateRow, tokenizer: Tokenizer) -> str:
    if row.piece is None or row.piece.thoughts is None:
        return ""
    return row.piece.thoughts.data(row.token_ids, tokenizer).decode(errors="replace")


def _spans_of(row: StateRow, tokenizer: Tokenizer) -> list[Span]:
    """Return the spans of a row, in order; together they are all of its tokens."""
    start, num_healed = (len(row.token_ids), 0) if row.piece is None else (row.piece.start, row.piece.healed)
    keys, left = [], num_healed
    for index, token_id in enumerate(row.token_ids):
        is_healed = index >= start and left > 0
        keys.append((row.kinds[index : index + 1], index >= start, is_healed))
        left -= len(tokenizer.text_bytes([token_id])) if is_healed else 0
    left = num_healed
    parts = row.written(tokenizer)
    out, at = [], 0
    for (kind, is_piece, is_healed), group in groupby(keys):
        stop = at + len(list(group))
        data = b"".join(parts[at:stop])
        num_healed = min(left, len(data)) if is_healed else 0
        left -= num_healed
        out.append(Span(_KINDS[kind], range(at, stop), data.decode(errors="replace"), is_piece, num_healed))
        at = stop
    return out
