"""`save_state`, `load_state`, `load_chat`: rows with their tokens and, unless `kv=False`, keys, values and logits as one safetensors file;
all else is JSON in its metadata. Reading runs no code; it raises `StateFileError` for a damaged or inconsistent file, `StateMismatch` for
another model or tokenizer. A value that JSON cannot represent and the cache of a recurrent model are not kept, an error only as text.

A file with the right SHA-256 digest is not trusted either: the JSON is validated by pydantic, and every number, name, shape, type and
value of a tensor is compared with the others and with the model before anything is built from it. So a file takes memory and time in
proportion to its length. What rows share is written once, and a file is replaced atomically. The files of conversations (where a
constraint began) and of chats (messages) are written and read here, too.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as tensors_of_bytes
from safetensors.torch import save as safetensors_bytes
from safetensors.torch import save_file

from outlines_cont.checks import checked_path
from outlines_cont.errors import SavedError, StateFileError, StateMismatch, shortened
from outlines_cont.interfaces import ImagePixels, LanguageModel
from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.pixel_store import digest_of
from outlines_cont.kv.row import KVPart, RowKV
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.image_span import Images, ImageSpan, keyed
from outlines_cont.state.kept_options import Count, KeptOptions, StrictRecord
from outlines_cont.state.row import (
    GENERATED,
    HEALED,
    NOTHING_SKIPPED,
    PROMPT,
    SCORED,
    Exclusion,
    Exclusions,
    LogprobSum,
    Rows,
    StateRow,
    Thoughts,
    WrittenPiece,
    shown_text,
)
from outlines_cont.state.tokens import num_start_tokens, start_ids

File = str | os.PathLike[str] | IO[bytes]
Seed = int | tuple[int, ...]

_FORMAT = "outlines-cont state 2"
_METADATA = "outlines_cont"
# Batch entries without a sample, which take no room in the file.
_MAX_EMPTY = 2**16
# By how much rounding may lift a log-probability above 0.
_ROUNDING = 1e-3
# The values of each token of a row, with the type of their tensor.
_COLUMNS = {
    "token_ids": torch.int64,
    "kinds": torch.uint8,
    "logprobs": torch.float64,
    "sampling_logprobs": torch.float64,
}


_Column = Annotated[int, Field(ge=0, lt=2**31)]
_Seed = Annotated[int, Field(ge=0, lt=2**64)]


class _PartRecord(StrictRecord):
    """Some columns of one stored row of keys and values."""

    store: int = Field(ge=0, lt=2**31)
    columns: list[_Column]


# Fields that a row and its record have in common.
_COMMON = ("finish_reason", "counted", "search", "starts_inside", "surprise_start", "pinned")
# Fields of the last generated span that the record of a row has beside its own.
_OF_PIECE = ("healed", "stop", "thoughts", "rejections", "policy_retries", "ended")


class _ImageRecord(StrictRecord):
    """An image of a row; its tensors are stored by its digest, where they are kept."""

    start: Count
    stop: Count
    digest: str = Field(pattern="^[0-9a-f]{32}$")
    shift: int = Field(default=0, gt=-(2**31), le=0)
    kind: Literal["image"] = "image"
    inputs: tuple[str, ...] = ()


class _RowRecord(StrictRecord):
    length: Count
    batch: int = Field(ge=0, lt=2**32)
    sample: int = Field(ge=0, lt=2**32)
    drawn: Count
    path: str = Field(pattern="^[0-9a-f]{1,32}$")
    seed: _Seed
    piece: tuple[Count, list[Count], str, Count] | None
    finish_reason: Literal["", "stop", "constraint", "length", "error"]
    value: Any
    error: str | None
    parts: list[_PartRecord]
    logits: Count | None
    counted: LogprobSum = NOTHING_SKIPPED
    search: LogprobSum | None = None
    starts_inside: bool = False
    exclusions: tuple[Exclusion, ...] = ()
    healed: Count = 0
    # None if they follow from the tokens.
    num_start_tokens: Count | None = None
    prompt_length: Count | None = None
    stop: str | int | None = None
    surprise_start: Count | None = None
    thoughts: Thoughts | None = None
    rejections: Count = 0
    # How many of the first tokens have keys and values that do not follow from the ids.
    pinned: Count = 0
    policy_retries: tuple[Count, ...] = ()
    ended: str = Field(default="", pattern="^(stop|length)?$")
    options: KeptOptions = KeptOptions()
    images: tuple[_ImageRecord, ...] = ()


class _FormatRecord(BaseModel):
    format: str


class _StateRecord(StrictRecord):
    format: str
    model: str
    tokenizer: str
    # For people; see `name_of_model`.
    model_name: str = ""
    num_samples: Count
    seed: _Seed | list[_Seed]
    num_layers: Count
    rows: list[_RowRecord]
    constrained_from: Count | None = None
    # The messages of a conversation, as JSON.
    chat: str | None = None
    # Of a state without rows: how many batch entries it has.
    batch_size: int | None = Field(default=None, ge=1, le=_MAX_EMPTY)


def save_state(
    path: File,
    model: LanguageModel,
    rows: Rows,
    seed: Any,
    *,
    kv: bool,
    constrained_from: int | None = None,
    chat: str | None = None,
) -> None:
    """Write rows to `path`, all or nothing; see `SequenceState.save`.

    Of a conversation `constrained_from` is the token at which its constraint began, and `chat` are the messages of a `Chat` as JSON.
    """
    flat = [row for group in rows for row in group]
    writer = _Writer(kv, model)
    records = [writer.put(row) for row in flat]
    record = _StateRecord(
        format=_FORMAT,
        model=model.fingerprint,
        tokenizer=model.tokenizer.fingerprint,
        model_name=name_of_model(model),
        num_samples=len(rows[0]) if rows else 0,
        batch_size=len(rows) if rows and not flat else None,
        seed=list(seed) if isinstance(seed, tuple) else seed,
        num_layers=writer.num_layers,
        rows=records,
        constrained_from=constrained_from,
        chat=chat,
    )
    tensors = writer.tensors(flat)
    # Defaults are left out, so that older versions read files without newer fields.
    text = record.model_dump_json(exclude_defaults=True)
    metadata = {_METADATA: text, "digest": _digest(tensors, text)}
    if isinstance(path, str | os.PathLike):
        _write(checked_path(path, StateFileError), tensors, metadata)
    else:
        _opened(path, "write").write(safetensors_bytes(tensors, metadata))


def load_state(path: File, model: LanguageModel) -> tuple[Rows, Seed, int | None]:
    """Return rows and seed of the state at `path`, and where its constraint began. See `SequenceState.load`."""
    rows, seed, record = _loaded(path, model)
    return rows, seed, record.constrained_from


def load_chat(path: File, model: LanguageModel) -> tuple[Rows, Seed, str]:
    """Return rows and seed of the conversation at `path`, and its messages as JSON. See `Chat.load`."""
    rows, seed, record = _loaded(path, model)
    if record.chat is None or len(rows) != 1 or len(rows[0]) != 1:
        raise _broken(path, "it has a state and no conversation; `SequenceState.load` reads it")
    return rows, seed, record.chat


def _loaded(path: File, model: LanguageModel) -> tuple[Rows, Seed, _StateRecord]:
    if isinstance(path, str | os.PathLike):
        tensors, text = _read(checked_path(path, StateFileError))
    else:
        tensors, text = _read_bytes(path)
    try:
        saved = _FormatRecord.model_validate_json(text).format
        if saved != _FORMAT:
            raise _broken(path, f"it has the format {saved!r}, and this version reads {_FORMAT!r}")
        record = _StateRecord.model_validate_json(text)
    except ValidationError as error:
        raise _broken(path, f"its description is not as expected ({error.errors()[0]['loc']})") from error
    _check_origin(path, record, model)
    try:
        rows = _RowLoader(record, tensors, model).rows()
    except ValueError as error:
        raise _broken(path, str(error)) from error
    samples = record.num_samples
    groups = tuple(tuple(rows[i : i + samples]) for i in range(0, len(rows), max(samples, 1)))
    groups = groups or ((),) * (record.batch_size or 0)
    seed = tuple(record.seed) if isinstance(record.seed, list) else record.seed
    return groups, seed, record


class _Writer:
    """Converts rows to records and tensors; keys, values and logits that rows share are written once."""

    def __init__(self, with_kv: bool, model: LanguageModel) -> None:
        self.num_layers = 0
        self._model = model
        self._start = start_ids(model)
        self._with_kv = with_kv
        # The parts of all rows, by buffer and row of it; each key is one store of the file.
        self._stores: dict[tuple[int, int], list[tuple[_PartRecord, KVPart]]] = {}
        self._logits: list[torch.Tensor] = []
        self._pixels: dict[str, ImagePixels] = {}

    def put(self, row: StateRow) -> _RowRecord:
        """Return the record of a row, and register the keys, values and logits that it refers to."""
        kv, piece, stream = row.kv if self._with_kv else None, row.piece or WrittenPiece(0), row.stream
        row.check_pinned(row.cached if kv is not None else 0, "the file would be without them (`kv=False`)")
        replace(row, kv=kv).check_images()
        parts = [self._put_part(part) for part in kv[: row.cached].parts] if kv is not None else []
        num_start, prompt_length = _implied_start(row, self._start), _implied_prompt(row, self._model)
        return _RowRecord(
            **{name: getattr(row, name) for name in _COMMON},
            **{name: getattr(piece, name) for name in _OF_PIECE},
            length=len(row.token_ids),
            batch=stream.batch,
            sample=stream.sample,
            drawn=stream.drawn,
            path=f"{stream.path:x}",
            seed=stream.seed,
            value=plain(row.value),
            error=None if row.error is None else f"{type(row.error).__name__}: {row.error}",
            parts=parts,
            logits=self._put_logits(row.logits) if kv is not None and kv.parts else None,
            piece=None if row.piece is None else (piece.start, list(piece.owed), piece.source, piece.retries),
            exclusions=piece.exclusions.entries,
            options=_kept_options(row),
            num_start_tokens=None if row.num_start_tokens == num_start else row.num_start_tokens,
            prompt_length=None if row.prompt_length == prompt_length else row.prompt_length,
            images=tuple(self._put_image(span) for span in row.images),
        )

    def _put_image(self, span: ImageSpan) -> _ImageRecord:
        inputs = span.pixels.inputs if span.pixels is not None else None
        if span.pixels is not None and inputs is not None:
            self._pixels[span.digest] = span.pixels
        names = tuple(sorted(inputs or ()))
        return _ImageRecord(
            start=span.start, stop=span.stop, digest=span.digest, shift=span.shift, kind="image", inputs=names
        )

    def tensors(self, rows: Sequence[StateRow]) -> dict[str, torch.Tensor]:
        """Return everything to write by its name."""
        out = {
            name: torch.tensor([item for row in rows for item in getattr(row, name)], dtype=dtype, device="cpu")
            for name, dtype in _COLUMNS.items()
        }
        for number, held in enumerate(self._stores.values()):
            columns = np.unique(np.concatenate([part.columns for _, part in held]))
            whole = KVPart(held[0][1].buffer, held[0][1].row, columns)
            for index, layer in enumerate(RowKV((whole,)).layers()):
                if layer is not None:
                    out[f"kv.{number}.{index}.keys"], out[f"kv.{number}.{index}.values"] = layer
            for record, part in held:
                record.columns = np.searchsorted(columns, part.columns).tolist()
        out.update({f"logits.{number}": tensor for number, tensor in enumerate(self._logits)})
        for digest, pixels in self._pixels.items():
            out.update({f"image.{digest}.{name}": tensor for name, tensor in (pixels.inputs or {}).items()})
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in out.items()}

    def _put_part(self, part: KVPart) -> _PartRecord:
        key = (id(part.buffer), part.row)
        held = self._stores.setdefault(key, [])
        self.num_layers = max(self.num_layers, part.buffer.num_layers)
        held.append((_PartRecord(store=list(self._stores).index(key), columns=[]), part))
        return held[-1][0]

    def _put_logits(self, logits: torch.Tensor | None) -> int | None:
        if logits is None:
            return None
        if not any(other is logits for other in self._logits):
            self._logits.append(logits)
        return next(number for number, other in enumerate(self._logits) if other is logits)


def _kept_options(row: StateRow) -> KeptOptions:
    """Return the options with which the last span of a row is resumed; the defaults if it cannot be resumed."""
    options = row.piece.options if row.piece is not None and row.finish_reason == "length" else None
    if options is None or isinstance(options, KeptOptions):
        return options or KeptOptions()
    kept: KeptOptions = options.kept_options()
    return kept


def _numbers(used: set[int], what: str) -> int:
    """Return how many of something there are that are numbered from 0 on."""
    if used != set(range(len(used))):
        raise ValueError(f"{what} are not numbered one after the other")
    return len(used)


def _check_logprobs(logprobs: Sequence[float], kinds: Sequence[int], counted: bytes) -> None:
    for logprob, kind in zip(logprobs, kinds, strict=True):
        if not -math.inf < logprob <= (_ROUNDING if kind in counted else 0) or (logprob and kind not in counted):
            raise ValueError(f"{logprob} is not a log-probability of a token of the kind {chr(kind)!r}")


class _RowLoader:
    """Converts records and tensors to rows; raises `ValueError` if they do not fit each other or the model."""

    def __init__(self, record: _StateRecord, tensors: Mapping[str, torch.Tensor], model: LanguageModel) -> None:
        self._record = record
        self._tensors = tensors
        self._model = model
        self._start = start_ids(model)
        self._buffers: dict[int, RowKV] = {}
        self._layout: list[Layer | None] = []
        self._options = KeptOptions()
        # For each store and column: the index of the token, and a hash of it and all tokens before.
        self._prefixes: dict[tuple[int, int], tuple[int, int]] = {}
        self._pixels: dict[str, ImagePixels] = {}

    def rows(self) -> list[StateRow]:
        self._check_shape()
        self._check_names()
        columns = [self._column(name, dtype) for name, dtype in _COLUMNS.items()]
        out, start = [], 0
        for row in self._record.rows:
            out.append(self._row(row, [column[start : start + row.length] for column in columns]))
            start += row.length
        return out

    def _check_shape(self) -> None:
        record = self._record
        if record.rows and record.batch_size is not None:
            raise ValueError("it has both rows and `batch_size`, which is for states without rows")
        if bool(record.rows) != bool(record.num_samples) or (record.rows and len(record.rows) % record.num_samples):
            raise ValueError(f"{len(record.rows)} rows are not whole groups of {record.num_samples}")
        batch_size = record.batch_size or len(record.rows) // max(record.num_samples, 1)
        if isinstance(record.seed, list) and len(record.seed) != batch_size:
            raise ValueError(f"{len(record.seed)} seeds for {batch_size} batch entries")
        if record.constrained_from is not None and any(record.constrained_from > row.length for row in record.rows):
            raise ValueError("a constraint begins beyond its row")

    def _check_names(self) -> None:
        """Raise unless the tensors are those that the records and the model require, no more and no fewer."""
        stores = _numbers({part.store for row in self._record.rows for part in row.parts}, "keys and values")
        logits = _numbers({row.logits for row in self._record.rows if row.logits is not None}, "logits")
        self._layout = self._model.kv_layout if stores else []
        if stores and not self._layout:
            raise ValueError("it has keys and values, of which this model has none")
        if self._record.num_layers != len(self._layout):
            raise ValueError(
                f"it has {self._record.num_layers} layers of keys and values, this model {len(self._layout)}"
            )
        kinds = ("keys", "values")
        layers = [index for index, layer in enumerate(self._layout) if layer is not None]
        wanted = {*_COLUMNS, *(f"logits.{number}" for number in range(logits))}
        wanted.update(
            f"image.{image.digest}.{name}" for row in self._record.rows for image in row.images for name in image.inputs
        )
        wanted.update(f"kv.{number}.{index}.{kind}" for number in range(stores) for index in layers for kind in kinds)
        odd = sorted(wanted.symmetric_difference(self._tensors))
        if odd:
            raise ValueError(f"`{odd[0][:40]}` is {'missing' if odd[0] in wanted else 'not part of it'}")

    def _column(self, name: str, dtype: torch.dtype) -> list[Any]:
        tensor = self._tensors[name]
        total = sum(row.length for row in self._record.rows)
        if tensor.dtype != dtype or tensor.shape != (total,):
            shape = tuple(tensor.shape)
            raise ValueError(f"`{name}` has shape {shape} and type {tensor.dtype}, expected {total} entries")
        return list(tensor.tolist())

    def _piece(self, row: _RowRecord) -> WrittenPiece | None:
        if row.piece is None:
            return None
        start, owed, source, retries = row.piece
        if start > row.length or not self._are_ids(owed):
            raise ValueError("a piece begins beyond its row, or lacks a token that is out of range")
        indices = [entry.index for entry in row.exclusions]
        if any(a >= b for a, b in pairwise(indices)) or not all(start <= index <= row.length for index in indices):
            raise ValueError("the positions of exclusions do not ascend, or are not in the last piece")
        if not all(self._are_ids([*entry.excluded, *entry.avoided]) for entry in row.exclusions):
            raise ValueError("a token that is excluded is out of range")
        if row.thoughts is not None:
            _check_thoughts(row.thoughts, start)
        if not self._are_ids(row.options.stop_token_ids) or sum(row.policy_retries) > retries:
            raise ValueError("a stop token is out of range, or the policies of a piece have more retries than it has")
        return WrittenPiece(
            start,
            tuple(owed),
            source,
            retries,
            Exclusions(row.exclusions),
            **{name: getattr(row, name) for name in _OF_PIECE},
            options=None if row.options == KeptOptions() else self._shared(row.options),
        )

    def _shared(self, options: KeptOptions) -> KeptOptions:
        """Return equal options of neighbouring rows as one object, so that these write one piece."""
        if options != self._options:
            self._options = options
        return self._options

    def _row(self, row: _RowRecord, columns: list[list[Any]]) -> StateRow:
        token_ids, kinds, logprobs, sampling_logprobs = columns
        if not self._are_ids(token_ids):
            raise ValueError("a token id is out of range")
        if not set(kinds) <= set(b"pagfh") or (row.surprise_start or 0) > row.length:
            raise ValueError("a token is of an unknown kind, or what is counted begins beyond its row")
        _check_logprobs(logprobs, kinds, SCORED)
        _check_logprobs(sampling_logprobs, kinds, GENERATED + HEALED)
        if any(self._model.tokenizer.token_bytes[i] is not None for i in token_ids[: row.num_start_tokens or 0]):
            raise ValueError("a token of text is counted among the start tokens")
        for terms in filter(None, (row.counted, row.search)):
            _check_sum(terms, row.length)
        start = row.length if row.piece is None else row.piece[0]
        if row.healed > len(self._model.tokenizer.text_bytes(token_ids[start:])):
            raise ValueError("a piece has healed more text than it has")
        images = self._images(row, token_ids)
        found = StateRow(
            tuple(token_ids),
            bytes(kinds),
            tuple(logprobs),
            tuple(sampling_logprobs),
            RandomStream(row.seed, row.batch, row.sample, row.drawn, int(row.path, 16)),
            kv=self._kv(row, keyed(images, token_ids)),
            images=images,
            logits=self._logits(row.logits),
            piece=self._piece(row),
            value=row.value,
            error=None if row.error is None else SavedError(row.error),
            num_start_tokens=row.num_start_tokens or 0,
            **{name: getattr(row, name) for name in _COMMON},
        )
        if row.num_start_tokens is None:
            found = replace(found, num_start_tokens=_implied_start(found, self._start))
        length = _implied_prompt(found, self._model) if row.prompt_length is None else row.prompt_length
        return replace(found, prompt_length=length)

    def _images(self, row: _RowRecord, token_ids: Sequence[int]) -> Images:
        """Return the images of a row, with their pixels where the file has them."""
        borders = [border for image in row.images for border in (image.start, image.stop)]
        if any(a > b for a, b in pairwise(borders)) or max([0, *borders]) > row.length:
            raise ValueError("the images of a row do not ascend, or are beyond its end")
        return tuple(self._image(image, token_ids[image.start : image.stop]) for image in row.images)

    def _image(self, image: _ImageRecord, token_ids: Sequence[int]) -> ImageSpan:
        span = ImageSpan(image.start, image.stop, image.digest, image.shift)
        if not token_ids or -image.shift >= len(token_ids):
            raise ValueError("an image has no tokens, or no positions")
        if not image.inputs:
            return span
        if image.digest not in self._pixels:
            inputs = {name: self._tensors[f"image.{image.digest}.{name}"] for name in image.inputs}
            try:
                found = self._model.pixels_of(token_ids, inputs)
            except (RuntimeError, IndexError, TypeError) as error:  # of tensors that are none of an image
                raise ValueError(f"the pixels of an image do not fit the model: {error}") from error
            if (found.pixels.digest, found.shift) != (image.digest, image.shift):
                raise ValueError("the pixels of an image are those of another, or of another size")
            self._pixels[image.digest] = found.pixels
        elif digest_of(token_ids, self._pixels[image.digest].inputs or {}) != image.digest:
            raise ValueError("the pixels of an image are those of other tokens")
        return replace(span, pixels=self._pixels[image.digest])

    def _are_ids(self, token_ids: Sequence[int]) -> bool:
        return not token_ids or (min(token_ids) >= 0 and max(token_ids) < self._model.vocab_size)

    def _kv(self, row: _RowRecord, token_ids: Sequence[int]) -> RowKV | None:
        if row.pinned > sum(len(part.columns) for part in row.parts):
            raise ValueError("a row is without keys and values that cannot be computed again")
        if not row.parts:
            return None
        parts, read = [], 0
        prefix = 0
        for part in row.parts:
            stored = self._stored(part.store).parts[0]
            columns = np.array(part.columns, dtype=np.int64)
            if not len(columns) or columns[-1] >= len(stored) or not (np.diff(columns) > 0).all():
                raise ValueError("a row names keys and values that are not there")
            if read + len(columns) > len(token_ids):
                raise ValueError("a row has more keys and values than tokens")
            for column, token_id in zip(part.columns, token_ids[read:], strict=False):
                prefix = hash((prefix, token_id))
                if self._prefixes.setdefault((part.store, column), (read, prefix)) != (read, prefix):
                    raise ValueError("keys and values are those of different tokens")
                read += 1
            parts.append(KVPart(stored.buffer, 0, columns))
        return RowKV(tuple(parts)).pinned(row.pinned)

    def _stored(self, number: int) -> RowKV:
        if number not in self._buffers:
            layers = [self._layer(number, index, layout) for index, layout in enumerate(self._layout)]
            if len({layer[0].shape[1] for layer in layers if layer}) != 1:
                raise ValueError("the layers of a row have different lengths")
            self._buffers[number] = RowKV.of_layers(self._model.kv_store, layers)
        return self._buffers[number]

    def _layer(self, number: int, index: int, layout: Layer | None) -> Layer | None:
        if layout is None:
            return None
        name = f"kv.{number}.{index}"
        keys, values = self._tensors[f"{name}.keys"], self._tensors[f"{name}.values"]
        length = keys.shape[1] if keys.dim() == 3 else 0
        for tensor, like in zip((keys, values), layout, strict=True):
            heads, _, size = like.shape
            if tensor.shape != (heads, length, size) or tensor.dtype != like.dtype or not length:
                raise ValueError(
                    f"`{name}` has shape {tuple(tensor.shape)} and type {tensor.dtype}, expected ({heads}, tokens, {size}) and {like.dtype}"
                )
            if not bool(torch.isfinite(tensor).all()):
                raise ValueError(f"`{name}` is not finite")
        return keys.to(self._model.device), values.to(self._model.device)

    def _logits(self, number: int | None) -> torch.Tensor | None:
        if number is None:
            return None
        logits = self._tensors[f"logits.{number}"]
        if logits.shape != (self._model.vocab_size,) or logits.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"`logits.{number}` has shape {tuple(logits.shape)} and type {logits.dtype}")
        if not math.isfinite(float(logits.max())):
            raise ValueError(f"`logits.{number}` has NaN or infinity")
        return logits.to(self._model.device)


def _check_thoughts(thoughts: Thoughts, start: int) -> None:
    """Raise `ValueError` unless the thoughts are before a piece that begins at `start`, or in it."""
    stop = start if thoughts.stop is None else thoughts.stop
    reasons = ("",) if thoughts.stop is None else ("stop", "length")
    if thoughts.start > stop or stop > start or thoughts.finish_reason not in reasons:
        raise ValueError("thoughts are not before their answer, or have ended without a reason")


def _check_sum(terms: LogprobSum, length: int) -> None:
    borders = [position for span in terms.skipped for position in span]
    if max([0, *borders, *(term[0] for term in (*terms.ends, *terms.cuts, *terms.end_ratios))]) > length:
        raise ValueError("what is counted is beyond its row")
    if not -10 <= terms.length_penalty <= 10:
        raise ValueError(f"the length penalty {terms.length_penalty} is not from -10 to 10")
    if any(a > b for a, b in pairwise(borders)):
        raise ValueError("the spans that are not counted do not ascend")


def _implied_start(row: StateRow, start: Sequence[int]) -> int:
    """Return how many tokens at the beginning are not part of the text, by what the tokenizer puts in front of a text."""
    return 0 if row.starts_inside else num_start_tokens(row.token_ids, start)


def _implied_prompt(row: StateRow, model: LanguageModel) -> int:
    """Return how many characters of the text are the prompt, by the kinds of the tokens."""
    num_given = len(row.kinds) - len(row.kinds.lstrip(PROMPT))
    return len(shown_text(row.token_ids[:num_given], model.tokenizer, row.num_start_tokens))


def name_of_model(model: LanguageModel) -> str:
    """Return the class of a model, its id or folder if it has one, and its size, for messages."""
    # Without the number that tells it from other models of this process.
    name = re.sub(r"(, #[0-9]+)?>$", "", repr(model)).removeprefix("<")
    num_layers = len(model.new_cache().layers)
    return f"{name}, {num_layers} layers" if num_layers else name


def _check_origin(path: Any, record: _StateRecord, model: LanguageModel) -> None:
    other = shortened(repr(record.model_name)[1:-1], 120) or "another"  # with what a terminal obeys as escapes
    for what, saved, own in (
        ("model", record.model, model.fingerprint),
        ("tokenizer", record.tokenizer, model.tokenizer.fingerprint),
    ):
        if saved != own:
            raise StateMismatch(
                f"expected a state of this {what}, that of {name_of_model(model)} ({own[:12]}), in {_shown(path)}, got that of {other} "
                f"({saved[:12]}). Load it with the model, the weights and the float type that it was saved with."
            )


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Write a temporary file and rename it (atomic). Of a symbolic link the file that it names is replaced."""
    try:
        _replace(Path(os.path.realpath(path)), path, tensors, metadata)
    except OSError as error:
        raise StateFileError(
            f"expected a path that can be written, got {_shown(path)}: {error.strerror or error}. The file that was there is unchanged."
        ) from error


def _replace(target: Path, path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    if not target.parent.is_dir():
        raise StateFileError(
            f"expected a folder to write {target.name!r} in, but {str(target.parent)!r} does not exist or is not a folder. Make it first."
        )
    if target.is_symlink() or (target.exists() and not target.is_file()):
        what = "the folder" if target.is_dir() else "something that is not a file"
        raise StateFileError(f"expected the path of a file to write, got {what} {_shown(path)}.")
    part = target.with_name(f"{target.name[:40]}{secrets.token_hex(8)}.part")
    # Created as `open` does, so that the umask counts; a file that is replaced keeps its mode.
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        if target.exists():
            shutil.copymode(target, part)
        mode = stat.S_IMODE(part.stat().st_mode)
        try:
            save_file(tensors, part, metadata)
        except SafetensorError as error:  # the library wraps those of the system
            raise StateFileError(
                f"expected room for the state in {_shown(path)}, but it cannot be written: {error}. The file that was there is unchanged. "
                "Free some space, or leave out keys and values: `state.save(path, kv=False)`."
            ) from error
        part.chmod(mode)  # the library may have changed it
        os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _read(path: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors and the description of a file whose digest is right."""
    try:
        is_file = path.is_file()
    except OSError as error:  # a name that is too long
        raise _broken(path, error.strerror or str(error)) from error
    if not is_file:
        raise StateFileError(
            f"expected a file that `state.save` wrote, but {_shown(path)} does not exist or is not a file"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _broken(path, str(error)) from error
    return tensors, _described(path, metadata, tensors)


def _read_bytes(file: IO[bytes]) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors and the description of an open file, from its position to its end."""
    data = _opened(file, "read").read()
    if not data:
        raise _broken(file, "it is at its end, and nothing is left to read; after writing, `seek(0)`")
    try:
        tensors = tensors_of_bytes(data)
        # What safetensors has read whole has a header: its length, 8 bytes, and JSON.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _broken(file, str(error)) from error
    return tensors, _described(file, header.get("__metadata__", {}), tensors)


def _opened(file: IO[bytes], verb: str) -> IO[bytes]:
    if not hasattr(file, verb) or isinstance(file, io.TextIOBase):
        raise TypeError(f"expected a path, or a file or buffer that is open for bytes, got {type(file).__name__}")
    return file


def _described(path: Any, metadata: Mapping[str, str], tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the description in a file whose digest is right."""
    if _METADATA not in metadata:
        raise _broken(path, "it is a safetensors file of something else")
    text = metadata[_METADATA]
    if metadata.get("digest") != _digest(tensors, text):
        raise _broken(path, "its digest is wrong: it was altered or damaged")
    return text


def _digest(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _broken(path: Any, reason: str) -> StateFileError:
    return StateFileError(
        f"expected a whole file that `state.save` of this version wrote at {_shown(path)}, but {reason}. Nothing was loaded."
    )


def plain(value: Any) -> Any:
    """Return a value that JSON can hold; None for others, such as objects of a class of the user."""
    try:
        return value if json.loads(json.dumps(value, allow_nan=False)) == value else None
    except (TypeError, ValueError):
        return None


def _shown(path: Any) -> str:
    return shortened(repr(str(path)), 200) if isinstance(path, str | os.PathLike) else repr(path)
