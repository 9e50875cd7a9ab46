"""Files that say what is not so, under a right digest, and rows at the bounds of what they may be: a state that can be used, or nothing."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import SavedError, StateFileError, StateMismatch
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.file import _digest
from outlines_cont.state.row import LogprobSum, StateRow, WrittenPiece
from tests.examples import examples
from tests.fakes import VOCAB_SIZE, random_model

Content = tuple[dict[str, torch.Tensor], Any]

_VALUES = [
    -1, 0, 1, 2, 7, 350, 351, 2**31, 2**40, 2**63, 2**70, 2**200, 3_000_000, 1.5, -0.5, 1e308, math.nan, math.inf,
]  # fmt: skip
_VALUES += ["", "x", "error", "f" * 40, None, True, [], [0], [-1], [[0, 1.5]], {}, {"start": 3}]  # type: ignore[list-item]


@cache
def _content() -> Content:
    model = random_model()
    found = continuous(generate.regex(model, "[xyz]{1,2}", sampler=samplers.beam_search(2)))(["the name of", "a"]) + " of "
    state = continuous(generate.text(model, sampler=samplers.multinomial(2)))(found, max_tokens=2, rng=[5, 6])
    with TemporaryDirectory() as folder:
        state.save(Path(folder, "s"))
        return read_file(Path(folder, "s"))


def read_file(path: Path) -> Content:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["outlines_cont"])  # noqa: SIM118


def write_file(path: Path, content: Content) -> None:
    tensors, record = content
    text = json.dumps(record)
    save_file(tensors, path, {"outlines_cont": text, "digest": _digest(tensors, text)})


def _places(item: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON value, as its container and its key."""
    found, todo = [], [item]
    while todo:
        inner = todo.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else []
        found += [(inner, key) for key in keys]
        todo += [inner[key] for key in keys]
    return found


def _spoil(data: st.DataObject, content: Content) -> None:
    """Change one thing."""
    tensors, record = content
    if data.draw(st.booleans()):
        container, key = data.draw(st.sampled_from(_places(record)))
        if data.draw(st.integers(0, 5)):
            container[key] = copy.deepcopy(data.draw(st.sampled_from(_VALUES)))
        elif isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            del container[key]
        return
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors[name]
    kinds = ["gone", "renamed", "type", "shape", "more", *(["cut", "empty", "scalar", "value"] if tensor.numel() else [])]
    match data.draw(st.sampled_from(kinds)):
        case "gone":
            del tensors[name]
        case "renamed":
            tensors[data.draw(st.sampled_from(["kv.0.9.keys", "kv.99.0.keys", "logits.9", "x"]))] = tensors.pop(name)
        case "type":
            tensors[name] = tensor.to(data.draw(st.sampled_from([torch.float16, torch.float32, torch.int32, torch.bool])))
        case "shape":
            tensors[name] = tensor.reshape(-1).clone()
        case "cut":
            tensors[name] = tensor[..., :-1].clone()
        case "empty":
            tensors[name] = tensor[..., :0].clone()
        case "scalar":
            tensors[name] = tensor.reshape(-1)[0].clone()
        case "value":
            flat = tensor.clone().reshape(-1)
            value = data.draw(st.sampled_from([-1, 9999, 2**40] if tensor.dtype == torch.int64 else [0, 255]))
            at = data.draw(st.integers(0, len(flat) - 1))
            flat[at] = data.draw(st.sampled_from([math.nan, math.inf, -3.0])) if flat.is_floating_point() else value
            tensors[name] = flat.reshape(tensor.shape)
        case _:
            tensors[data.draw(st.sampled_from(["kv.1.0.keys", "more"]))] = tensor.clone()


@contextmanager
def bounded(max_bytes: int, max_seconds: float) -> Iterator[None]:
    """Check what is done takes neither more memory nor more time, whether it is refused or not."""
    tracemalloc.start()
    started = time.process_time()
    try:
        yield
    finally:
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert used < max_bytes
        assert time.process_time() - started < max_seconds


@settings(max_examples=examples(20))
@given(st.data())
def test_a_spoiled_file_is_refused_or_a_state_that_can_be_used(data: st.DataObject) -> None:
    model = random_model()
    content = copy.deepcopy(_content())
    for _ in range(data.draw(st.integers(1, 2))):
        if content[0]:
            _spoil(data, content)
    with TemporaryDirectory() as folder:
        path = Path(folder, "s")
        write_file(path, content)
        try:
            with bounded(max_bytes=20_000_000, max_seconds=3):
                state = SequenceState.load(path, model)
        except (StateFileError, StateMismatch):
            return
        state.save(path)
        again = SequenceState.load(path, model)
    assert state == again
    assert (state.shape, list(state), state.seed) == (again.shape, list(again), again.seed)
    for name in ("weights", "scores", "logprobs", "sampling_logprobs"):
        found = getattr(state, name)
        assert (torch.isfinite(found) | found.isnan()).all()  # NaN is shown where nothing was scored
    after = continuous(generate.text(model))(state, max_tokens=1)
    plain = continuous(generate.text(model))(state.detach_cache(), max_tokens=1)
    assert after.shape[:2] == state.shape[:2]
    assert all(error is None or str(error) for group in after.errors for error in group)
    assert plain.shape[:2] == state.shape[:2]


@pytest.mark.parametrize("count", [3_000_000, 2**40, 2**62])
@pytest.mark.parametrize("field", ["num_layers", "num_samples", "length", "drawn", "batch_size"])
def test_large_numbers_take_neither_memory_nor_time(tmp_path: Path, field: str, count: int) -> None:
    tensors, record = copy.deepcopy(_content())
    (record["rows"][0] if field in record["rows"][0] else record)[field] = count
    with bounded(max_bytes=5_000_000, max_seconds=1):
        _loads(tmp_path / "s", (tensors, record), field == "drawn")


def test_keys_and_values_of_other_tokens_are_refused(tmp_path: Path) -> None:
    tensors, record = copy.deepcopy(_content())
    rows = record["rows"]
    assert rows[0]["parts"][0]["columns"] != rows[2]["parts"][0]["columns"] or rows[0]["parts"] != rows[2]["parts"]
    rows[0]["parts"], rows[2]["parts"] = rows[2]["parts"], rows[0]["parts"]
    rows[1]["parts"] = copy.deepcopy(rows[0]["parts"])
    write_file(tmp_path / "s", (tensors, record))
    with pytest.raises(StateFileError, match="Nothing was loaded"):
        SequenceState.load(tmp_path / "s", random_model())


# -- paths -----------------------------------------------------------------------------------------------------------------


def _state() -> SequenceState:
    return continuous(generate.text(random_model()))("the", max_tokens=2)


def test_a_saved_file_follows_the_umask_and_keeps_the_mode_that_it_has(tmp_path: Path) -> None:
    state, path = _state(), tmp_path / "s"
    before = os.umask(0o027)
    try:
        state.save(path)
        assert path.stat().st_mode & 0o777 == 0o640
        path.chmod(0o604)
        state.save(path)
        assert path.stat().st_mode & 0o777 == 0o604
    finally:
        os.umask(before)
    assert SequenceState.load(path, random_model()) == state


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path: Path) -> None:
    state = _state()
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "file"
    link.symlink_to(target)
    for _ in range(2):  # at first it leads nowhere
        state.save(link)
        assert link.is_symlink()
        assert SequenceState.load(target, random_model()) == state == SequenceState.load(link, random_model())
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "link", "there"]
    round_ = tmp_path / "round"
    round_.symlink_to(round_)
    with pytest.raises(StateFileError):
        state.save(round_)
    assert round_.is_symlink()


def test_a_path_that_can_be_no_file_is_named(tmp_path: Path) -> None:
    state = _state()
    for act in (state.save, lambda path: SequenceState.load(path, random_model())):
        with pytest.raises(StateFileError, match="NUL"):
            act(f"{tmp_path}/a\0b")
    with pytest.raises(StateFileError, match="the folder"):
        state.save(tmp_path)
    with pytest.raises(StateFileError, match="Make it first"):
        state.save(tmp_path / "none" / "s")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(StateFileError, match="not a file"):
            state.save(tmp_path / "pipe")
    with pytest.raises(TypeError, match="expected a path"):
        state.save(os.fsencode(tmp_path / "bytes"))  # type: ignore[arg-type]


_LENGTHS = st.integers(0, 5)


def _ends(largest: int) -> st.SearchStrategy[int]:
    """Numbers from 0 on, both ends of their range among them."""
    return st.sampled_from([0, 1, largest]).map(lambda number: min(number, largest)) | st.integers(0, largest)


@st.composite
def _rows(draw: st.DrawFn) -> StateRow:
    length = draw(_LENGTHS)
    kinds = bytes(draw(st.lists(st.sampled_from(b"pagf"), min_size=length, max_size=length)))
    # A sum of rounded numbers may be a little above 0.
    logprob = st.sampled_from([-1e300, -0.5, 0.0, 1e-3])
    logprobs = [draw(logprob) if kind in b"gf" else 0.0 for kind in kinds]
    sampled = [draw(logprob) if kind in b"g" else 0.0 for kind in kinds]
    stream = RandomStream(
        draw(_ends(2**64 - 1)), draw(_ends(2**32 - 1)), draw(_ends(2**32 - 1)), draw(_ends(2**63 - 1)), draw(_ends(2**128 - 1))
    )
    owed = st.lists(_ends(VOCAB_SIZE - 1), max_size=2)
    pieces = st.builds(WrittenPiece, _ends(length), owed.map(tuple), st.sampled_from(["", '{"regex": "a"}']), st.integers(0, 3))
    borders = st.lists(_ends(length), min_size=4, max_size=4).map(sorted)
    skipped = borders.map(lambda found: tuple(zip(found[::2], found[1::2], strict=True)))
    ends = st.lists(st.tuples(_ends(length), st.sampled_from([-7.5, 0.25, 1e300])), max_size=2).map(tuple)
    cuts = st.lists(st.tuples(_ends(length), st.sampled_from([-1.5, 0.25]), _ends(3)), max_size=2).map(tuple)
    sums = st.builds(LogprobSum, skipped, ends, cuts, st.sampled_from([-10.0, 0.0, 0.5, 10.0]))
    return StateRow(
        tuple(draw(st.lists(_ends(VOCAB_SIZE - 1), min_size=length, max_size=length))),
        kinds,
        tuple(logprobs),
        tuple(sampled),
        stream,
        counted=draw(sums),
        piece=draw(st.none() | pieces),
        finish_reason=draw(st.sampled_from(["", "stop", "constraint", "length", "error"])),
        value=draw(st.sampled_from([None, "", 0, [1, {"a": None}], 2**70])),
        error=draw(st.none() | st.just(SavedError("ValueError: no"))),
        search=draw(st.none() | sums),
        starts_inside=draw(st.booleans()),
    )


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(1, 3), st.integers(1, 2), st.data())
def test_every_field_of_a_row_comes_back_as_it_was(batch_size: int, num_samples: int, data: st.DataObject) -> None:
    rows = tuple(tuple(data.draw(_rows()) for _ in range(num_samples)) for _ in range(batch_size))
    seeds = st.lists(_ends(2**64 - 1), min_size=batch_size, max_size=batch_size).map(tuple)
    seed: Any = data.draw(_ends(2**64 - 1) | seeds)
    state, file = SequenceState(random_model(), rows, seed), io.BytesIO()
    state.save(file)
    file.seek(0)
    loaded = SequenceState.load(file, random_model())
    assert seed == loaded.seed
    assert state.shape == loaded.shape
    for row, again in zip(state._flat, loaded._flat, strict=True):
        for field in fields(StateRow):
            if field.name != "error":
                assert getattr(row, field.name) == getattr(again, field.name), field.name
        # The name of its class stands before what it says.
        assert (row.error is None) == (again.error is None)
        assert str(row.error or "") in str(again.error or "")


@cache
def _bounds_content() -> Content:
    """Two rows of a search, without keys and values; the first has a piece."""
    search = samplers.beam_search(2)
    state = continuous(generate.regex(random_model(), "[xyz]{2}", sampler=search))("the name of")
    with TemporaryDirectory() as folder:
        replace(state, seed=(1,)).save(Path(folder, "s"), kv=False)
        return read_file(Path(folder, "s"))


_LENGTH = len(random_model().tokenizer.encode("the name of", add_special_tokens=True)) + 2
_LOGPROBS = ("logprobs", "sampling_logprobs")
_AT_BOUNDS: list[tuple[str | tuple[str, int], list[Any], list[Any]]] = [
    ("batch", [0, 2**32 - 1], [-1, 2**32]),
    ("sample", [0, 2**32 - 1], [-1, 2**32]),
    ("drawn", [0, 2**63 - 1], [-1, 2**63]),
    ("seed", [0, 2**64 - 1], [-1, 2**64]),
    ("path", ["0", "f" * 32], ["", "f" * 33, "F"]),
    ("counted", [{"skipped": [[0, _LENGTH]]}], [{"skipped": [[-1, _LENGTH]]}, {"skipped": [[0, _LENGTH + 1]]}]),
    ("counted", [{"skipped": [[0, 1], [1, 2]]}], [{"skipped": [[0, 2], [1, 2]]}, {"skipped": [[2, 1]]}]),
    ("counted", [{"ends": [[_LENGTH, -1.0]]}], [{"ends": [[_LENGTH + 1, -1.0]]}, {"ends": [[-1, -1.0]]}]),
    ("counted", [{"ends": [[0, 0.0]]}, {"ends": [[0, -1e300]]}], [{"ends": [[0, math.inf]]}, {"ends": [[0, math.nan]]}]),
    ("search", [{"cuts": [[_LENGTH, -1.0, 0]]}], [{"cuts": [[_LENGTH + 1, -1.0, 1]]}, {"cuts": [[0, -1.0, -1]]}]),
    ("piece", [None, [_LENGTH, [0, VOCAB_SIZE - 1], "", 0]], [[_LENGTH + 1, [], "", 0], [0, [-1], "", 0]]),
    ("piece", [[0, [], "", 2**63 - 1]], [[0, [VOCAB_SIZE], "", 0], [-1, [], "", 0], [0, [], "", -1]]),
    (
        "search",
        [{"length_penalty": p} for p in (-10.0, 10.0)],
        [{"length_penalty": p} for p in (math.nextafter(-10, -11), math.nextafter(10, 11))],
    ),
    ("length", [_LENGTH], [_LENGTH - 1, _LENGTH + 1, -1]),
    (("token_ids", 0), [0, VOCAB_SIZE - 1], [-1, VOCAB_SIZE]),
    *(((name, _LENGTH - 1), [0.0, 1e-3, -1e300], [1.1e-3, -math.inf, math.nan]) for name in _LOGPROBS),
    *(((name, 0), [0.0], [1e-9, -1e-9]) for name in _LOGPROBS),
    (("kinds", 0), [*b"pa"], [0, ord("x")]),
]
"""What is in a record of a row, or at a place of a tensor: values within and beyond its bounds."""


@pytest.mark.parametrize(("field", "within", "beyond"), _AT_BOUNDS)
def test_a_bound_is_within_and_one_beyond_is_refused(
    tmp_path: Path, field: str | tuple[str, int], within: list[Any], beyond: list[Any]
) -> None:
    assert _bounds_content()[1]["rows"][0]["length"] == _LENGTH
    for values, loads in ((within, True), (beyond, False)):
        for value in values:
            tensors, record = copy.deepcopy(_bounds_content())
            if isinstance(field, tuple):
                tensors[field[0]][field[1]] = value
            else:
                record["rows"][0][field] = value
            _loads(tmp_path / "s", (tensors, record), loads)


def _loads(path: Path, content: Content, loads: bool) -> None:
    write_file(path, content)
    if loads:
        SequenceState.load(path, random_model())
    else:
        with pytest.raises(StateFileError, match="Nothing was loaded"):
            SequenceState.load(path, random_model())


def test_bounds_of_a_state_without_rows(tmp_path: Path) -> None:
    for batch_size in (1, 2, 2**16):
        state = SequenceState(random_model(), ((),) * batch_size, 3)
        state.save(tmp_path / "s")
        tensors, record = read_file(tmp_path / "s")
        assert state.shape == SequenceState.load(tmp_path / "s", random_model()).shape
    for size, loads in ((2**16, True), (2**16 + 1, False), (0, False)):
        record["batch_size"] = size
        _loads(tmp_path / "s", (tensors, record), loads)
    _loads(tmp_path / "s", (_bounds_content()[0], _bounds_content()[1] | {"batch_size": 1}), False)


def test_bounds_of_groups_and_of_a_constraint(tmp_path: Path) -> None:
    tensors, record = _bounds_content()
    num_rows = len(record["rows"])
    for change, loads in (
        ({"num_samples": num_rows}, True),
        ({"num_samples": num_rows + 1}, False),
        ({"num_samples": 0}, False),
        ({"num_samples": 1, "seed": [0, 2**64 - 1][:num_rows]}, num_rows == 2),
        ({"seed": [0]}, True),
        ({"seed": [2**64]}, False),
        ({"seed": [0, 0]}, False),
        ({"constrained_from": min(row["length"] for row in record["rows"])}, True),
        ({"constrained_from": _LENGTH + 1}, False),
    ):
        _loads(tmp_path / "s", (tensors, record | change), loads)
