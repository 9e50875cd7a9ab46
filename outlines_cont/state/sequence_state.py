"""`SequenceState`: batch x sample token sequences with their KV cache, as one immutable value that can be sliced, joined, forked, ranked,
saved, and continued by any generator of its model. Slices are by characters, with `state.tokens` by tokens; forks, slices from the start
and appended text share the keys and values, other slices and text in front lose them. Logits that are not known are computed when they are
read. What else is read of the rows, such as `state.token_ids`, is in the base class `StateViews`.
"""

from __future__ import annotations

import io
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar

import torch
from transformers import DynamicCache

from outlines_cont.checks import (
    MAX_SAMPLES,
    check,
    check_int,
    check_model,
    check_one_of,
    checked_bool,
    checked_path,
    index_of,
    is_int,
    plain,
    write_text_file,
)
from outlines_cont.errors import BatchMismatch, ContextLengthError, ModelMismatch, OptionError, SampleMismatch
from outlines_cont.inspector.page import page
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.sampling.random_stream import RandomStream, Rng, common_seed, open_seeds
from outlines_cont.state.file import File, load_state, save_state
from outlines_cont.state.inspection import inspection
from outlines_cont.state.resampling import checked_weights, systematic
from outlines_cont.state.row import StateRow
from outlines_cont.state.seeing import see_after
from outlines_cont.state.text import RowText, extended, healed, joined, preceded, tokens_cut
from outlines_cont.state.tokens import Given, Tokens, given_texts, is_given, prompt_row
from outlines_cont.state.transformers_cache import cache_of_rows, checked_mask, with_cache
from outlines_cont.state.views import StateViews, cut, parse_key


@dataclass(frozen=True, eq=False, repr=False)
class SequenceState(StateViews):
    """Batch x sample token sequences with their KV cache, immutable; the result of a generator, and the prompt of another.

    A generator continues a state, or a state with text added to it.

        state = continuous(generate.choice(model, ["order", "invoice"]))("Message: Two lamps, please.\\nKind: ")
        state = continuous(generate.regex(model, "[0-9]{1,3}"))(state + "\\nQuantity: ")

    Shapes: B batch entries, S samples, T ids of the longest row. Tensors are made on demand, left-padded with id 0; padding
    is never part of a text.

    Attributes:
        model: the model that the sequences belong to.
        rows: B tuples of S rows.
        seed: the seed of the random streams: an int, or one per batch entry if they differ. As `rng=` it draws the same again.
    """

    # A sum with an array of NumPy or a column of pandas is a state, too, not an array of texts.
    __array_ufunc__: ClassVar[None] = None
    __pandas_priority__: ClassVar[int] = 5000

    @property
    def nbytes(self) -> int:
        """Bytes of the keys, values and logits that this state keeps alive; storage that rows share counts once."""
        return kv_bytes([self])

    @property
    def kv_cache(self) -> DynamicCache | None:
        """Keys and values as a `DynamicCache` of B * S rows; column j belongs to column j of `token_ids`.

        Its length is T - max(1, largest number of tokens of a row that are not cached); None if that is not positive,
        and for a recurrent model, whose cache does not hold keys and values.
        Columns of padding hold anything and must be masked. Given to `model.generate` with `token_ids` flattened to
        (B * S, T) and `attention_mask`, it saves feeding those columns. Later work never changes it.

        Cost: one copy.

        Raises:
            UnsupportedModel: the model is a function of token ids, and has no keys and values.
        """
        return cache_of_rows(self.model, self._flat)

    @property
    def logits(self) -> torch.Tensor:
        """(B, S, V) float32 or float64, the logits of the next token; NaN for a row that failed or has no token.

        Cost: nothing if they are known (a generator has just ended, or they were read before); else one forward,
        whose keys and values the state keeps.
        """
        rows = self.model.prefilled(self._flat)
        if any(new is not old for new, old in zip(rows, self._flat, strict=True)):
            self._learn(rows)
        known = next((row.logits for row in rows if row.logits is not None), torch.empty(0, device="cpu"))
        missing = torch.full((self.model.vocab_size,), torch.nan, dtype=known.dtype, device=known.device)
        lines = [row.logits if row.logits is not None else missing for row in rows]
        shape = (self.batch_size, self.num_samples, self.model.vocab_size)
        return torch.stack(lines).reshape(shape) if lines else missing.new_empty(shape)

    def alternatives(
        self,
        path: str,
        *,
        generator: Any = None,
        against: Any = None,
        spellings: str = "canonical",
        max_prefixes: int = 4096,
    ) -> Any:
        """Return the exact probability of every value that a field of the JSON text might have had, such as those of an enum.

        The last piece of each row is the JSON text. The values are those that the schema allows after what stands before the field.
        Under the constraint, a probability is that with which a sampler without options draws the value there. `shares` are the model's
        own: the probability that it continues with a text that begins with the value, spelled as the tokenizer spells it, from the end
        of the last token before the field on.

        Args:
            path: where the value is, such as `kind`, `address.city` or `items[0].paid`; empty for a text that is one scalar.
            generator: the generator that wrote the text; it is known but in a state that was loaded.
            against: prompts without content. The probabilities are then the model's own, conditioned on the values, divided by the
                mean of those after each of these prompts with the same beginning of the text; see docs/choices.md.
            spellings: `"all"` sums the shares over all sequences of tokens that spell the value.
            max_prefixes: the most prefixes of spellings, for each row, that may be fed.

        Returns:
            `[batch][sample]` lists of `Probabilities`, mappings from each value to its probability; a dimension of size 1 is left out.

        Raises:
            OptionError: there is no such field; it has more than 1,000 values, or one whose text begins that of another, as numbers
                may; the last piece is no whole JSON text of the generator; more than `max_prefixes` are needed.
            DeadEnd, InvalidLogits: the logits of the model define no probabilities.

        Cost: as `Generator.probabilities`; what stands before the field is not fed again, but for one token.
        """
        known: list[Any] = [
            row.piece.maker for row in self._flat if row.piece is not None and row.piece.maker is not None
        ]
        maker = generator if generator is not None else next(iter(known), None)
        if maker is None or not hasattr(maker, "alternatives"):
            raise OptionError(
                "expected a state with a JSON text that a generator has just written, got another. Take the state before text is added "
                "to it; for a state that was loaded, pass the `generator` that wrote it.",
                "generator",
            )
        return maker.alternatives(self, path, against=against, spellings=spellings, max_prefixes=max_prefixes)

    @property
    def tokens(self) -> TokenView:
        """Indexing by tokens instead of characters: `state.tokens[:5]` has the first five tokens of each row."""
        return TokenView(self)

    def __getitem__(self, key: Any) -> SequenceState:
        """Return some rows, and of each the characters that the last part of the key takes.

        `state[batch, sample, ids]`, ints or slices, negative as in Python; `state[ids]` for one row, `state[sample, ids]` for
        one batch entry, `state[batch, ids]` for one sample. `...` stands for all axes that are not named, so that
        `state[..., ids]` is for any shape, and `state[batch, ...]` has whole rows. An int keeps its axis; an axis may be empty.

        A slice from the first character on keeps the keys and values of the tokens inside it; what is left of a token that
        is cut is encoded anew. Any other slice starts without, and its tokens are given text: their log-probabilities
        belonged to what was before them, so they are NaN, and the weight is 0.

        Raises:
            IndexError: the key has another form, or an int is out of range.
        """
        return self._cut(key, self._text_cut)

    def crop(self, key: Any) -> SequenceState:
        """Return `state[key]`, or raise `SlicingError` if that would lose cached keys and values.

        Raises:
            SlicingError: cached keys and values of tokens inside the slice would be lost.
            IndexError: as for `state[key]`.
        """
        return self._cut(key, lambda row, ids, at: self._text_cut(row, ids, at, crop=True))

    def fork(self, n: int, *, same: bool = False) -> SequenceState:
        """Return a state of n * S samples: each row n times, side by side. The keys and values are shared, not copied.

        Args:
            n: how many of each, 1 or more; a batch entry has at most 100,000 samples.
            same: give all forks of a row the row's own random stream, so that equal calls write equal texts. Otherwise each
                has a stream of its own, which depends on the row's stream, its position in it, and the number of the fork.

        Raises:
            OptionError: `n` is not an int, 1 or more, or too large.
        """
        n = check_int("n", n, 1, max(MAX_SAMPLES // max(self.num_samples, 1), 1))
        checked_bool(same, "same")

        def forks(row: StateRow) -> list[StateRow]:
            return [row if same else replace(row, stream=row.stream.fork(index)) for index in range(n)]

        return replace(self, rows=tuple(tuple(fork for row in group for fork in forks(row)) for group in self.rows))

    def take(self, rows: Sequence[tuple[int, int]]) -> SequenceState:
        """Return the rows at the given (batch, sample) indices, in this order, as a state of one sample per batch entry.

        A row that is named twice is there twice, with the same random stream; `fork` gives different ones.

        Raises:
            IndexError: there is no such row, or an index is not a pair of ints.
            TypeError: `rows` is not a list.
        """
        if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
            raise TypeError(f"expected a list of pairs (batch index, sample index) as `rows`, got {rows!r}")
        indices = [_pair(item) for item in rows]
        groups = tuple(self[b, s, :].rows[0] for b, s in indices)
        seeds = self.seeds
        return SequenceState(self.model, groups, common_seed([seeds[b] for b, _ in indices]))

    def resample(self, log_weights: Any, n: int | None = None) -> SequenceState:
        """Return `n` samples of each batch entry, drawn from its samples by weights, as between the steps of a particle filter.

        A sample with the share w of all weight of its entry is there floor(n w) or ceil(n w) times, n w on average (systematic
        resampling). What is there once keeps its random stream, copies have streams of their own. Keys and values are shared.

            forks = continuous(generate.text(model, sampler=samplers.multinomial(16)))(before, max_tokens=8)
            kept = forks.resample([float(one.sum()) for one in model.score(forks, after)])

        Args:
            log_weights: the natural logarithm of the weight of each row, (B, S), or S numbers for one batch entry; they need not sum
                to 1. A failed row counts as minus infinity, with which a row is never drawn.
            n: how many samples; as many as there are by default.

        Raises:
            OptionError: `n` is not an int from 1 to 100,000; a weight is missing, NaN or infinite; an entry has none that is finite.

        The one random number of an entry follows from the stream of its first sample, and is not taken from it.
        """
        count = check_int("n", self.num_samples if n is None else n, 1, MAX_SAMPLES)
        given = checked_weights(log_weights, self.shape[:2])
        groups = tuple(resampled(group, weights, count) for group, weights in zip(self.rows, given, strict=True))
        return replace(self, rows=groups)

    @classmethod
    def stack(cls, states: Sequence[SequenceState]) -> SequenceState:
        """Return the batch entries of all states as one state. Rows may have any lengths and come from any chains.

        Raises:
            OptionError: there is no state in the list, or something else.
            ModelMismatch, SampleMismatch: the states have different models or numbers of samples.
        """
        is_list = isinstance(states, Sequence) and len(states) > 0
        if not is_list or not all(isinstance(state, SequenceState) for state in states):
            raise OptionError(f"expected a list of one or more states, got {states!r}", "states")
        first = next((state for state in states if state.batch_size), states[0])
        for state in states:
            first._check_model(state)
            if state.batch_size:  # without one it has no number of samples
                _check_samples(first.num_samples, state.num_samples)
        rows = tuple(group for state in states for group in state.rows)
        return cls(first.model, rows, common_seed([seed for state in states for seed in state.seeds]))

    def best(self, n: int = 1) -> SequenceState:
        """Return the `n` samples of each batch entry with the largest scores, the largest first; failed rows come last.

        The score of a row is its weight, but for rows that a search wrote; see `scores`.

        Raises:
            OptionError: `n` is not an int from 1 to the number of samples.
        """
        n, largest = plain(n), self.num_samples
        wanted = f"an int from 1 to {largest}" if largest else "an int, 1 or more,"
        check("n", n, is_int(n, 1, largest or None), wanted)
        self._score()
        return replace(self, rows=tuple(tuple(_ranked(group)[:n]) for group in self.rows))

    def sort(self) -> SequenceState:
        """Return the state with the samples of each batch entry by score, the largest first; failed rows come last."""
        return self.best(self.num_samples) if self.num_samples else self

    @classmethod
    def from_cache(
        cls,
        model: LanguageModel,
        token_ids: torch.Tensor,
        cache: DynamicCache,
        *,
        attention_mask: torch.Tensor | None = None,
        recomputable: bool | None = None,
        rng: Rng = None,
    ) -> SequenceState:
        """Return a state of rows that transformers has fed, such as those of `model.generate(..., return_dict_in_generate=True)`.

        Args:
            model: the model that the cache was made with.
            token_ids: (R, T) int64; the rows become batch entries.
            cache: R rows and at most T columns; column j belongs to column j of `token_ids`. It is copied.
            attention_mask: (R, T), 0 for padding, on the left and behind the end of a row; None for no padding.
            recomputable: whether keys and values follow from the ids. Those of an image, or of other embeddings (`inputs_embeds`), do
                not, so they can never be computed again: they are `pinned`. None finds out; False pins all that the cache has, True
                nothing.
            rng: the seed of the random streams, as for a prompt.

        Raises:
            OptionError: shapes do not fit, an id is out of range, or the cache is not that of the rows, as after a search with beams:
                it is that of the beams that ran last, in their order, while the rows are the best that were found.
            UnsupportedModel: the cache has layers that are not plain keys and values, or the model is a function of token ids.

        Cost: a copy, and one forward of the last 8 cached tokens of each row, to check that the cache is theirs; where `recomputable` is
        None one of all cached tokens, in parts of 512, up to the last that are pinned (and nine more of such a part).
        """
        mask = checked_mask(model, token_ids, attention_mask)
        seeds = open_seeds(rng, len(mask))
        rows = []
        for number, (ids, is_token) in enumerate(zip(token_ids.tolist(), mask, strict=True)):
            rows.append(prompt_row([*compress(ids, is_token)], model, RandomStream(seeds[number])))
        check(
            "recomputable", recomputable, recomputable is None or isinstance(recomputable, bool), "True, False or None"
        )
        groups = tuple((row,) for row in with_cache(model, rows, cache, mask, recomputable))
        return cls(model, groups, common_seed(seeds))

    def save(self, path: File, *, kv: bool = True) -> None:
        """Write the state to one safetensors file, all or nothing.

        Tokens, log-probabilities, random streams and the last generated spans are kept, so that one that was cut can be resumed
        after loading. A value that JSON cannot hold, such as a pydantic object, is not kept; an error is, as text. The
        constraint of a conversation is not part of its state.

        Args:
            path: the file; one that is there is replaced and keeps its mode, a new one follows the umask. Of a link the file that it
                names is written. Or an open file or buffer, which gets the bytes.
            kv: write keys, values and logits, too, so that nothing is fed again; what rows share is written once.

        Raises:
            StateFileError: the folder does not exist, or `path` is a folder, something else that is not a file, or has a NUL character;
                or there is no room for the file, or it cannot be made. The old one is unchanged.
        """
        self._score()
        save_state(path, self.model, self.rows, self.seed, kv=checked_bool(kv, "kv"))

    @classmethod
    def load(cls, path: File, model: LanguageModel) -> SequenceState:
        """Return the state that `save` wrote to a path, or to an open file or buffer, which is read to its end.

        Raises:
            StateFileError: the file is missing, cut, altered, or something else. Nothing is loaded.
            StateMismatch: it belongs to another model or tokenizer.
            OptionError: `model` was not made by `outlines_cont.models`.
        """
        check_model(model, "second")
        rows, seed, _ = load_state(path, model)
        return cls(model, rows, seed)

    def inspect(self, path: str | Path, *, top: int = 0) -> None:
        """Write a page that shows how each token came about, one HTML file that needs nothing else.

        Args:
            path: the file; one that is there is replaced.
            top: how many of the most probable tokens it shows at each position, with and without the constraint of the last span, beside
                the entropy, the probability that the constraint has removed, and why. 0 needs no logits.

        Raises:
            OptionError: `top` is not an int from 0 to 1,000, or no file can be written at `path`.

        Cost: a pass over the tokens. With `top` one forward over the last 2,000 tokens of all rows together; see `inspection`.
        """
        top = check("top", plain(top), is_int(plain(top), 0, 1000), "a number of tokens from 0 to 1000")
        file = checked_path(path, partial(OptionError, option="path"))
        self._score()
        write_text_file(file, page(inspection(self.model, self.rows, top)), partial(OptionError, option="path"))

    def detach_cache(self) -> SequenceState:
        """Return the state without keys, values and logits; continued, all its tokens are fed again.

        Raises:
            NotRecomputable: a row has `pinned` tokens.
            ImageLost: it has an image whose pixels were dropped.
        """

        def detached(row: StateRow) -> StateRow:
            row.check_pinned(0, "`detach_cache()` drops them")
            bare = replace(row, kv=None, logits=None)
            bare.check_images()
            return bare

        return self._map(detached)

    def to(self, device: str | torch.device) -> SequenceState:
        """Return the state with its keys, values and logits on `device`.

        A state that is continued is moved to the device of its model by itself; moving it away frees memory there meanwhile.

        Raises:
            OptionError: there is no such device.
        """
        try:
            target = torch.empty(0, device=device).device
        except (RuntimeError, AssertionError, TypeError, ValueError) as error:
            raise OptionError(
                f"expected a device of this machine as `device`, got {device!r}: {error}", "device"
            ) from error
        return self._map(lambda row: _moved(row, self.model, target))

    def append(self, text: Text | Sequence[Text] | SequenceState, *, boundary: str = "as_is") -> SequenceState:
        """Return the state with text at the end of its rows; tokens, keys and values, and weights are kept.

        The text is encoded as a continuation of the row. Special tokens that are written in it are ordinary characters, with a warning,
        except in `Tokens.of(text, special=True)`. Nothing is fed before the next generator runs, and then only the new tokens.

        Args:
            text: one text for all rows, or a list of B texts, or of B * S texts. A list of token ids counts as one text. Or a state,
                whose rows are appended as by `+`.
            boundary: `as_is` leaves the tokens of the row alone; `heal` encodes the last one anew together with the text, as
                one text would be encoded, so that a row that ends in "http:" and "//" is no worse than "http://".

        Raises:
            BatchMismatch: the list has neither B nor B * S texts.
            ContextLengthError: a row would be longer than the context of the model.
            TypeError: something else than text.
            TokenizerError: a text cannot be encoded, or an id is not one of the model.
            OptionError: another `boundary`, or "heal" with a state.
        """
        check_one_of("boundary", boundary, ("as_is", "heal"))
        if isinstance(text, SequenceState):
            advice = "Append its texts, `list(other)`, to encode them anew."
            check("boundary", boundary, boundary == "as_is", "'as_is' with a state, whose tokens are kept,", advice)
            return self._joined(text)
        if boundary == "heal":
            self._score()
        return self._with_texts(text, healed if boundary == "heal" else extended)

    def see(self, text: Text | Sequence[Text], images: Any, *, keep_pixels: bool = True) -> SequenceState:
        """Return the state with a text and its images at the end of its rows, which are fed at once; else as `append`.

            state = state.see("And this one: <image>\\n", images=[other_scan])

        Args:
            text: a text in which `<image>` stands for each image; or a list of B texts, or of B * S.
            images: the images of the text; for a list of texts a list with those of each. See `EngineModel.see`.
            keep_pixels: see `EngineModel.see`.

        Raises what `model.see` does; an image that cannot be read is the error of the whole call.

        Cost: a forward for each image and row, and those of the text. Rows that the state shares keys and values of do so afterwards.
        """
        return replace(self, rows=see_after(self.model, self.rows, text, images, keep_pixels=keep_pixels))

    def __add__(self, other: object) -> SequenceState:
        """Return the state with more at the end of its rows: a text or texts as `append` takes them, or another state.

        With text, the weights start again at 0. With a state, row by row, weights are added; it needs the same shape. Its
        log-probabilities stay those of the context in which it was generated.

        Raises:
            BatchMismatch, SampleMismatch, ModelMismatch: the two do not fit.
        """
        if isinstance(other, SequenceState):
            return self._joined(other)
        if not is_given(other):
            return NotImplemented
        return self._with_texts(other, lambda *given: extended(*given).append((), reset=True))

    def __radd__(self, text: object) -> SequenceState:
        """Return the state with text in front of its rows; all of it is fed again. 0, with which `sum` begins, adds nothing."""
        if isinstance(text, int) and not isinstance(text, bool) and text == 0:
            return self
        if not is_given(text):
            return NotImplemented
        self._score()
        return self._with_texts(text, preceded)

    def _with_texts(self, text: Any, change: Callable[[StateRow, Given, Tokenizer], StateRow]) -> SequenceState:
        texts = iter(given_texts(text, self.model, self.batch_size, self.num_samples))
        return self._map(lambda row: self._fitting(change(row, next(texts), self.tokenizer)))

    def _joined(self, other: SequenceState) -> SequenceState:
        self._check_model(other)
        if self.batch_size != other.batch_size:
            raise BatchMismatch(
                f"expected two states of one batch size, got {self.batch_size} and {other.batch_size}. "
                "`state.take` and `SequenceState.stack` make states of other shapes."
            )
        _check_samples(self.num_samples, other.num_samples)
        other._score()  # in the context in which it was generated
        others = iter(other._flat)
        return self._map(lambda row: self._fitting(joined(row, next(others), self.tokenizer)))

    def _fitting(self, row: StateRow) -> StateRow:
        length, limit = len(row.token_ids), self.model.context_length
        if limit is not None and length > limit:
            raise ContextLengthError(
                f"expected at most {limit} tokens, the context of the model; with the appended text a row has {length}. "
                "Append less text, or use a model with a longer context.",
                length,
                limit,
            )
        return row

    def _cut(self, key: Any, change: Callable[[StateRow, int | slice, tuple[int, int]], StateRow]) -> SequenceState:
        chosen = parse_key(key, self.batch_size, self.num_samples)
        rows = tuple(tuple(change(self.rows[b][s], chosen.ids, (b, s)) for s in chosen.samples) for b in chosen.batch)
        seed = self.seed if isinstance(self.seed, int) else common_seed([self.seed[b] for b in chosen.batch])
        return SequenceState(self.model, rows, seed)

    def _text_cut(self, row: StateRow, ids: int | slice, at: tuple[int, int], *, crop: bool = False) -> StateRow:
        if ids == slice(None):
            return row
        text = RowText(row, self.tokenizer)
        part = cut(ids, len(text.text), at, "characters")
        return text.cropped(part, at) if crop else text.cut(part)

    def _check_model(self, other: SequenceState) -> None:
        if other.model is not self.model:
            raise ModelMismatch(
                f"expected two states of one model, got one of {self.model!r} and one of {other.model!r}. "
                "Add its text instead: `state + str(other)`."
            )

    def _map(self, change: Callable[[StateRow], StateRow]) -> SequenceState:
        return replace(self, rows=tuple(tuple(change(row) for row in group) for group in self.rows))

    def __eq__(self, other: object) -> bool:
        """Return whether model, token ids and images are the same, row by row; weights, caches and random streams may differ.

        Texts are the same then, too, unless one of two texts writes the BOS that the tokenizer has put in front of the other.
        """
        if not isinstance(other, SequenceState):
            return NotImplemented
        return self.model is other.model and self._key == other._key

    def __hash__(self) -> int:
        return hash((id(self.model), self._key))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the model and the bytes that `save` writes, keys and values included; `detach_cache()` makes them fewer."""
        file = io.BytesIO()
        self.save(file)
        return _loaded, (type(self), self.model, file.getvalue())

    @property
    def _key(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        return tuple(tuple(row.key_ids for row in group) for group in self.rows)


@dataclass(frozen=True, slots=True)
class TokenView:
    """Indexing of a state by tokens: `state.tokens[key]`."""

    state: SequenceState

    def __getitem__(self, key: Any) -> SequenceState:
        """Return some rows, and of each the tokens that the last part of the key takes; else as `state[key]`."""
        tokenizer = self.state.tokenizer
        return self.state._cut(
            key, lambda row, ids, at: tokens_cut(row, cut(ids, len(row.token_ids), at, "tokens"), tokenizer)
        )


Text = str | Tokens | Sequence[int]


def resampled(group: Sequence[StateRow], log_weights: Sequence[float], count: int) -> tuple[StateRow, ...]:
    """Return `count` of some rows by weights, one for each row; see `SequenceState.resample`. Failed rows are never drawn."""
    weights = [-math.inf if row.error is not None else log for row, log in zip(group, log_weights, strict=True)]
    if max(weights) == -math.inf:
        raise OptionError(
            "expected one finite weight or more for each batch entry, of a row without an error, got none",
            "log_weights",
        )
    first = group[0].stream
    picks = systematic(weights, count, first.open().decision(first.drawn, len(group[0].token_ids)))
    rows = list[StateRow]()
    for pick, num_copies in Counter(picks).items():
        row = group[pick]
        rows += [row] if num_copies == 1 else [replace(row, stream=row.stream.fork(copy)) for copy in range(num_copies)]
    return tuple(rows)


def _loaded(cls: type[SequenceState], model: LanguageModel, data: bytes) -> SequenceState:
    """Return a state that was pickled."""
    return cls.load(io.BytesIO(data), model)


def only_row(state: SequenceState, model: LanguageModel, what: str) -> StateRow:
    """Return the row of a state of one row of a model, for `what`, such as "a template".

    Raises:
        ModelMismatch: the state belongs to another model.
        SampleMismatch: it has another number of rows.
    """
    if state.model is not model:
        raise ModelMismatch(
            f"expected a state of the model {model!r} for {what}, got one of {state.model!r}. Pass its text: `str(state)`."
        )
    if len(state) != 1:
        raise SampleMismatch(
            f"expected a state of one row for {what}, got one of {state.batch_size} x {state.num_samples}. Take a row of it: "
            "`state.take([(b, s)])`."
        )
    return state.rows[0][0]


def kv_bytes(states: Sequence[SequenceState]) -> int:
    """Return the bytes of keys, values and logits that `states` keep alive together; what they share counts once."""
    storage: dict[int, int] = {}
    for row in (row for state in states for row in state._flat):
        storage |= row.kv.storage if row.kv is not None else {}
        storage |= {id(row.logits): row.logits.nbytes} if row.logits is not None else {}
    return sum(storage.values())


# Scores of the same tokens that are nearer than this are the same.
_ROUNDING = 1e-4


def best_row(rows: Sequence[StateRow]) -> StateRow:
    """Return the row with the largest score, the first of equal ones; a failed one only if all have failed."""
    return _ranked(rows)[0]


def _ranked(rows: Sequence[StateRow]) -> list[StateRow]:
    """Return rows by score, the largest first, failed ones last; rows with the same tokens stay in order.

    The scores of the same tokens differ by the rounding of their forwards, which depends on what else was fed then.
    """
    ranks = defaultdict[tuple[tuple[int, ...], bytes, str], list[float]](list)
    by_row = list[float]()
    for row in rows:
        if row.error is not None:
            by_row.append(float("inf"))
            continue
        earlier = ranks[row.token_ids, row.kinds, row.finish_reason]
        same = next((first for first in earlier if abs(first + row.score) < _ROUNDING), None)
        if same is None:
            earlier.append(-row.score)
        by_row.append(-row.score if same is None else same)
    return [rows[number] for number in sorted(range(len(rows)), key=by_row.__getitem__)]


def _moved(row: StateRow, model: LanguageModel, device: torch.device) -> StateRow:
    kv = row.kv.to(device, model.kv_store).pinned(row.pinned) if row.kv is not None else None
    return replace(row, kv=kv, logits=row.logits.to(device) if row.logits is not None else None)


def _pair(item: Any) -> tuple[int, int]:
    found = [index_of(part) for part in item] if isinstance(item, tuple) else []
    if len(found) == 2 and found[0] is not None and found[1] is not None:
        return found[0], found[1]
    raise IndexError(f"expected a pair (batch index, sample index) for each row, got {item!r}")


def _check_samples(first: int, second: int) -> None:
    if first != second:
        advice = "`state.fork(n)` widens a state, `state.best(n)` narrows it."
        advice = advice if first and second else "Leave the one without samples out: it has no row."
        raise SampleMismatch(f"expected two states with one number of samples, got {first} and {second}. {advice}")
