"""States on disk: one safetensors file, whose metadata holds everything that is no tensor as JSON.

Nothing in it is executed, and nothing is believed: a digest covers all of it, the JSON is validated field by field, and the
file names the model and the tokenizer that it belongs to. What rows share is written once.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as tensors_of_bytes
from safetensors.torch import save as safetensors_bytes
from safetensors.torch import save_file

from outlines_cont.errors import SavedError, StateFileError, StateMismatch
from outlines_cont.interfaces import BufferStore, LanguageModel
from outlines_cont.kv import Part, RowKV
from outlines_cont.kv.buffer import Layer
from outlines_cont.random_stream import RandomStream
from outlines_cont.state_row import Piece, StateRow

_FORMAT = "outlines-cont state 1"
_METADATA = "outlines_cont"
_MAX_STREAM = 2**128
# Batch entries without a sample, which take no room in the file.
_MAX_EMPTY = 2**16
Rows = tuple[tuple[StateRow, ...], ...]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _PartRecord(_Record):
    """Some columns of one stored row of keys and values: those from `start` up to `stop`, or those listed."""

    store: int = Field(ge=0)
    columns: list[int]


class _RowRecord(_Record):
    length: int = Field(ge=0)
    weight_start: int = Field(ge=0)
    ends: float
    batch: int = Field(ge=0, lt=2**32)
    sample: int = Field(ge=0, lt=2**32)
    drawn: int = Field(ge=0)
    path: str = Field(pattern="^[0-9a-f]{1,32}$")
    seed: int = Field(ge=0, lt=2**64)
    piece: tuple[int, list[int], str, int] | None
    finish_reason: Literal["", "stop", "constraint", "length", "error"]
    value: Any
    error: str | None
    parts: list[_PartRecord]
    logits: int | None
    starts_inside: bool = False


class _StateRecord(_Record):
    format: str
    model: str
    tokenizer: str
    num_samples: int = Field(ge=0)
    # Where there are no samples; else the rows tell.
    batch_size: int = Field(default=0, ge=0, le=_MAX_EMPTY)
    seed: int | list[int]
    num_layers: int = Field(ge=0)
    rows: list[_RowRecord]
    constrained_from: int | None = Field(default=None, ge=0)


def save_state(
    path: str | os.PathLike[str] | IO[bytes],
    model: LanguageModel,
    rows: Rows,
    seed: Any,
    *,
    kv: bool,
    constrained_from: int | None = None,
) -> None:
    """Write rows to `path`, all or nothing. See `SequenceState.save`.

    `constrained_from` is the token at which the constraint of a conversation began that still holds.
    """
    flat = [row for group in rows for row in group]
    shelf = _Shelf(kv)
    records = [shelf.put(row) for row in flat]
    record = _StateRecord(
        format=_FORMAT,
        model=model.fingerprint,
        tokenizer=model.tokenizer.fingerprint,
        num_samples=len(rows[0]) if rows else 0,
        batch_size=0 if flat else len(rows),
        seed=list(seed) if isinstance(seed, tuple) else seed,
        num_layers=shelf.num_layers,
        rows=records,
        constrained_from=constrained_from,
    )
    tensors = shelf.tensors(flat)
    # Without a constraint the file is one that older versions read, too.
    text = record.model_dump_json(exclude_defaults=True)
    metadata = {_METADATA: text, "digest": _digest(tensors, text)}
    if isinstance(path, str | os.PathLike):
        _write(Path(path), tensors, metadata)
    else:
        _opened(path, "write").write(safetensors_bytes(tensors, metadata))


def load_state(
    path: str | os.PathLike[str] | IO[bytes], model: LanguageModel
) -> tuple[Rows, int | tuple[int, ...], int | None]:
    """Return rows and seed of the state at `path`, and where its constraint began. See `SequenceState.load`."""
    tensors, text = _read(Path(path)) if isinstance(path, str | os.PathLike) else _read_bytes(path)
    try:
        record = _StateRecord.model_validate_json(text)
    except ValidationError as error:
        raise _broken(path, f"its description is not as expected ({error.errors()[0]['loc']})") from error
    _check_origin(path, record, model)
    try:
        rows = _Reader(record, tensors, model).rows()
    except (KeyError, IndexError, ValueError, TypeError, RuntimeError) as error:
        raise _broken(path, str(error) or type(error).__name__) from error
    samples = record.num_samples
    groups = (
        tuple(tuple(rows[i : i + samples]) for i in range(0, len(rows), max(samples, 1))) or ((),) * record.batch_size
    )
    seed = tuple(record.seed) if isinstance(record.seed, list) else record.seed
    return groups, seed, record.constrained_from


class _Shelf:
    """Keys, values and logits that are to be written, each once."""

    def __init__(self, with_kv: bool) -> None:
        self.num_layers = 0
        self._with_kv = with_kv
        self._columns: dict[tuple[int, int], np.ndarray[Any, Any]] = {}
        self._parts: dict[tuple[int, int], Part] = {}
        self._logits: list[torch.Tensor] = []
        self._held: list[tuple[_PartRecord, Part]] = []

    def put(self, row: StateRow) -> _RowRecord:
        """Return the description of a row, and note what it needs."""
        held = self._with_kv and row.kv is not None and bool(row.kv.parts)
        parts = [self._put_part(part) for part in row.kv[: row.cached].parts] if held and row.kv is not None else []
        return _RowRecord(
            length=len(row.token_ids),
            weight_start=row.weight_start,
            ends=row.ends,
            batch=row.stream.batch,
            sample=row.stream.sample,
            drawn=row.stream.drawn,
            path=f"{row.stream.path:x}",
            seed=row.stream.seed,
            piece=(row.piece.start, list(row.piece.owed), row.piece.source, row.piece.retries)
            if row.piece is not None
            else None,
            finish_reason=row.finish_reason,  # type: ignore[arg-type]
            value=_plain(row.value),
            error=None if row.error is None else f"{type(row.error).__name__}: {row.error}",
            parts=parts,
            logits=self._put_logits(row.logits) if held else None,
            starts_inside=row.starts_inside,
        )

    def tensors(self, rows: Sequence[StateRow]) -> dict[str, torch.Tensor]:
        """Return everything to write by its name."""
        out = {
            "token_ids": torch.tensor([i for row in rows for i in row.token_ids], dtype=torch.int64),
            "kinds": torch.tensor([kind for row in rows for kind in row.kinds], dtype=torch.uint8),
            "logprobs": torch.tensor([p for row in rows for p in row.logprobs], dtype=torch.float64),
            "sampling_logprobs": torch.tensor([p for row in rows for p in row.sampling_logprobs], dtype=torch.float64),
        }
        for number, key in enumerate(self._columns):
            whole = Part(self._parts[key].buffer, key[1], self._columns[key])
            for index, layer in enumerate(RowKV((whole,)).layers()):
                if layer is not None:
                    out[f"kv.{number}.{index}.keys"], out[f"kv.{number}.{index}.values"] = layer
        for record, part in self._held:
            columns = self._columns[id(part.buffer), part.row]
            record.columns = np.searchsorted(columns, part.columns).tolist()
        out.update({f"logits.{number}": tensor for number, tensor in enumerate(self._logits)})
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in out.items()}

    def _put_part(self, part: Part) -> _PartRecord:
        key = (id(part.buffer), part.row)
        known = self._columns.get(key)
        self._columns[key] = part.columns if known is None else np.union1d(known, part.columns)
        self._parts.setdefault(key, part)
        self.num_layers = max(self.num_layers, part.buffer.num_layers)
        record = _PartRecord(store=list(self._columns).index(key), columns=[])
        self._held.append((record, part))
        return record

    def _put_logits(self, logits: torch.Tensor | None) -> int | None:
        if logits is None:
            return None
        known = next((i for i, other in enumerate(self._logits) if other is logits), None)
        if known is None:
            self._logits.append(logits)
        return len(self._logits) - 1 if known is None else known


class _Reader:
    """Rows from their descriptions; everything is checked against everything else."""

    def __init__(self, record: _StateRecord, tensors: Mapping[str, torch.Tensor], model: LanguageModel) -> None:
        self._record = record
        self._tensors = tensors
        self._model = model
        self._buffers: dict[int, RowKV] = {}

    def rows(self) -> list[StateRow]:
        record = self._record
        if bool(record.rows) != bool(record.num_samples) or (record.rows and len(record.rows) % record.num_samples):
            raise ValueError(f"{len(record.rows)} rows are not whole groups of {record.num_samples}")
        batch_size = len(record.rows) // max(record.num_samples, 1) or record.batch_size
        if isinstance(record.seed, list) and len(record.seed) != batch_size:
            raise ValueError(f"{len(record.seed)} seeds for {batch_size} batch entries")
        if record.constrained_from is not None and any(record.constrained_from > row.length for row in record.rows):
            raise ValueError("a constraint begins beyond its row")
        columns = [self._column(name) for name in ("token_ids", "kinds", "logprobs", "sampling_logprobs")]
        out, start = [], 0
        for row in record.rows:
            out.append(self._row(row, [column[start : start + row.length] for column in columns]))
            start += row.length
        return out

    def _column(self, name: str) -> list[Any]:
        types = {"token_ids": torch.int64, "kinds": torch.uint8}
        tensor = self._tensors[name]
        total = sum(row.length for row in self._record.rows)
        if tensor.dtype != types.get(name, torch.float64) or tensor.shape != (total,):
            raise ValueError(
                f"`{name}` has shape {tuple(tensor.shape)} and type {tensor.dtype}, expected {total} entries"
            )
        return list(tensor.tolist())

    def _row(self, row: _RowRecord, columns: list[list[Any]]) -> StateRow:
        token_ids, kinds, logprobs, sampling_logprobs = columns
        if not all(0 <= token_id < self._model.vocab_size for token_id in token_ids):
            raise ValueError("a token id is out of range")
        if not set(kinds) <= set(b"pagf") or row.weight_start > row.length:
            raise ValueError("a token is of an unknown kind, or a weight begins beyond its row")
        if row.piece is not None and not 0 <= row.piece[0] <= row.length:
            raise ValueError("a piece begins beyond its row")
        return StateRow(
            tuple(token_ids),
            bytes(kinds),
            tuple(logprobs),
            tuple(sampling_logprobs),
            RandomStream(row.seed, row.batch, row.sample, row.drawn, int(row.path, 16)),
            weight_start=row.weight_start,
            ends=row.ends,
            kv=self._kv(row),
            logits=self._logits(row.logits),
            piece=Piece(row.piece[0], tuple(row.piece[1]), *row.piece[2:]) if row.piece is not None else None,
            finish_reason=row.finish_reason,
            value=row.value,
            error=None if row.error is None else SavedError(row.error),
            starts_inside=row.starts_inside,
        )

    def _kv(self, row: _RowRecord) -> RowKV | None:
        if not row.parts:
            return None
        parts = []
        for part in row.parts:
            stored = self._stored(part.store).parts[0]
            columns = np.array(part.columns, dtype=np.int64)
            if not len(columns) or columns[0] < 0 or columns[-1] >= len(stored) or not (np.diff(columns) > 0).all():
                raise ValueError("a row names keys and values that are not there")
            parts.append(Part(stored.buffer, 0, columns))
        if sum(map(len, parts)) > row.length:
            raise ValueError("a row has more keys and values than tokens")
        return RowKV(tuple(parts))

    def _stored(self, number: int) -> RowKV:
        if number not in self._buffers:
            store: BufferStore = self._model.kv_store
            layers = [self._layer(number, index) for index in range(self._record.num_layers)]
            if len({layer[0].shape[1] for layer in layers if layer}) != 1:
                raise ValueError("the layers of a row have different lengths")
            self._buffers[number] = RowKV.of_layers(store, layers)
        return self._buffers[number]

    def _layer(self, number: int, index: int) -> Layer | None:
        name = f"kv.{number}.{index}"
        if f"{name}.keys" not in self._tensors:
            return None
        keys, values = self._tensors[f"{name}.keys"], self._tensors[f"{name}.values"]
        if keys.dim() != 3 or values.dim() != 3 or keys.shape[:2] != values.shape[:2] or not keys.is_floating_point():
            raise ValueError(f"`{name}` is no pair of keys and values")
        return keys.to(self._model.device), values.to(self._model.device)

    def _logits(self, number: int | None) -> torch.Tensor | None:
        if number is None:
            return None
        logits = self._tensors[f"logits.{number}"]
        if logits.shape != (self._model.vocab_size,) or not logits.is_floating_point():
            raise ValueError(f"`logits.{number}` has shape {tuple(logits.shape)}")
        return logits.to(self._model.device)


def _check_origin(path: Any, record: _StateRecord, model: LanguageModel) -> None:
    if record.format != _FORMAT:
        raise _broken(path, f"it has the format {record.format!r}, and this version reads {_FORMAT!r}")
    for what, saved, own in (
        ("model", record.model, model.fingerprint),
        ("tokenizer", record.tokenizer, model.tokenizer.fingerprint),
    ):
        if saved != own:
            raise StateMismatch(
                f"expected a state of this {what} ({own[:12]}) in {_shown(path)}, got one of another ({saved[:12]}). "
                "Load it with the model, the weights and the float type that it was saved with."
            )


def _write(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    if not path.parent.is_dir():
        raise StateFileError(
            f"expected a folder to write {path.name!r} in, but {str(path.parent)!r} does not exist or is no folder. Make it first."
        )
    if path.is_dir():
        raise StateFileError(f"expected the path of a file to write, got the folder {_shown(path)}.")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        save_file(tensors, name, metadata)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors and the description of a file whose digest is right."""
    if not path.is_file():
        raise StateFileError(
            f"expected a file that `state.save` wrote, but {_shown(path)} does not exist or is no file"
        )
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError, RuntimeError) as error:
        raise _broken(path, str(error)) from error
    return tensors, _described(path, metadata, tensors)


def _read_bytes(file: IO[bytes]) -> tuple[dict[str, torch.Tensor], str]:
    """Return the same of a file that is open."""
    data = _opened(file, "read").read()
    if not data:
        raise _broken(file, "there is nothing to read from where it stands; after writing, `seek(0)`")
    try:
        tensors = tensors_of_bytes(data)
        # What safetensors has read whole has a header: its length, 8 bytes, and JSON.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, RuntimeError) as error:
        raise _broken(file, str(error)) from error
    return tensors, _described(file, header.get("__metadata__", {}), tensors)


def _opened(file: IO[bytes], verb: str) -> IO[bytes]:
    """Return the file, if it is one that is open for bytes."""
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
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _broken(path: Any, reason: str) -> StateFileError:
    return StateFileError(
        f"expected a whole file that `state.save` of this version wrote at {_shown(path)}, but {reason}. Nothing was loaded."
    )


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold; None for others, such as objects of a class of the user."""
    try:
        return value if json.loads(json.dumps(value, allow_nan=False)) == value else None
    except (TypeError, ValueError):
        return None


def _shown(path: Any) -> str:
    return repr(str(path)) if isinstance(path, str | os.PathLike) else repr(path)
