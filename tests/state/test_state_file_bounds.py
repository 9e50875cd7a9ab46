"""Files of states at the bounds of what a row may be: each field comes back as it was, and what is one beyond is refused."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import SavedError, StateFileError
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import LogprobSum, StateRow, WrittenPiece
from tests.fakes import VOCAB_SIZE, random_model
from tests.state.test_state_file_hostile import Content, _read, _write

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
        draw(_ends(2**64 - 1)),
        draw(_ends(2**32 - 1)),
        draw(_ends(2**32 - 1)),
        draw(_ends(2**63 - 1)),
        draw(_ends(2**128 - 1)),
    )
    owed = st.lists(_ends(VOCAB_SIZE - 1), max_size=2)
    pieces = st.builds(
        WrittenPiece, _ends(length), owed.map(tuple), st.sampled_from(["", '{"regex": "a"}']), st.integers(0, 3)
    )
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


@settings(max_examples=12, deadline=None)
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
def _content() -> Content:
    """Two rows of a search, without keys and values; the first has a piece."""
    search = samplers.beam_search(2)
    state = continuous(generate.regex(random_model(), "[xyz]{2}", sampler=search))("the name of")
    with TemporaryDirectory() as folder:
        replace(state, seed=(1,)).save(Path(folder, "s"), kv=False)
        return _read(Path(folder, "s"))


_LENGTH = len(random_model().tokenizer.encode("the name of", add_special_tokens=True)) + 2
_AT_BOUNDS: list[tuple[str, list[Any], list[Any]]] = [
    ("batch", [0, 2**32 - 1], [-1, 2**32]),
    ("sample", [0, 2**32 - 1], [-1, 2**32]),
    ("drawn", [0, 2**63 - 1], [-1, 2**63]),
    ("seed", [0, 2**64 - 1], [-1, 2**64]),
    ("path", ["0", "f" * 32], ["", "f" * 33, "F"]),
    ("counted", [{"skipped": [[0, _LENGTH]]}], [{"skipped": [[-1, _LENGTH]]}, {"skipped": [[0, _LENGTH + 1]]}]),
    ("counted", [{"skipped": [[0, 1], [1, 2]]}], [{"skipped": [[0, 2], [1, 2]]}, {"skipped": [[2, 1]]}]),
    ("counted", [{"ends": [[_LENGTH, -1.0]]}], [{"ends": [[_LENGTH + 1, -1.0]]}, {"ends": [[-1, -1.0]]}]),
    (
        "counted",
        [{"ends": [[0, 0.0]]}, {"ends": [[0, -1e300]]}],
        [{"ends": [[0, math.inf]]}, {"ends": [[0, math.nan]]}],
    ),
    ("search", [{"cuts": [[_LENGTH, -1.0, 0]]}], [{"cuts": [[_LENGTH + 1, -1.0, 1]]}, {"cuts": [[0, -1.0, -1]]}]),
    ("piece", [None, [_LENGTH, [0, VOCAB_SIZE - 1], "", 0]], [[_LENGTH + 1, [], "", 0], [0, [-1], "", 0]]),
    ("piece", [[0, [], "", 2**63 - 1]], [[0, [VOCAB_SIZE], "", 0], [-1, [], "", 0], [0, [], "", -1]]),
    (
        "search",
        [{"length_penalty": p} for p in (-10.0, 10.0)],
        [{"length_penalty": p} for p in (math.nextafter(-10, -11), math.nextafter(10, 11))],
    ),
    ("length", [_LENGTH], [_LENGTH - 1, _LENGTH + 1, -1]),
]


@pytest.mark.parametrize(("field", "within", "beyond"), _AT_BOUNDS)
def test_a_bound_of_a_row_is_within_and_one_beyond_is_refused(
    tmp_path: Path, field: str, within: list[Any], beyond: list[Any]
) -> None:
    assert _content()[1]["rows"][0]["length"] == _LENGTH
    for values, loads in ((within, True), (beyond, False)):
        for value in values:
            tensors, record = copy.deepcopy(_content())
            record["rows"][0][field] = value
            _loads(tmp_path / "s", (tensors, record), loads)


def _loads(path: Path, content: Content, loads: bool) -> None:
    _write(path, content)
    if loads:
        SequenceState.load(path, random_model())
    else:
        with pytest.raises(StateFileError, match="Nothing was loaded"):
            SequenceState.load(path, random_model())


@pytest.mark.parametrize(
    ("name", "place", "within", "beyond"),
    [
        ("token_ids", 0, [0, VOCAB_SIZE - 1], [-1, VOCAB_SIZE]),
        ("logprobs", _LENGTH - 1, [0.0, 1e-3, -1e300], [1.1e-3, -math.inf, math.nan]),
        ("sampling_logprobs", _LENGTH - 1, [0.0, 1e-3, -1e300], [1.1e-3, -math.inf, math.nan]),
        ("logprobs", 0, [0.0], [1e-9, -1e-9]),
        ("sampling_logprobs", 0, [0.0], [1e-9, -1e-9]),
        ("kinds", 0, [*b"pa"], [0, ord("x")]),
    ],
)
def test_a_bound_of_a_token_is_within_and_one_beyond_is_refused(
    tmp_path: Path, name: str, place: int, within: list[float], beyond: list[float]
) -> None:
    for values, loads in ((within, True), (beyond, False)):
        for value in values:
            tensors, record = copy.deepcopy(_content())
            tensors[name][place] = value
            _loads(tmp_path / "s", (tensors, record), loads)


def test_bounds_of_a_state_without_rows(tmp_path: Path) -> None:
    for batch_size in (1, 2, 2**16):
        state = SequenceState(random_model(), ((),) * batch_size, 3)
        state.save(tmp_path / "s")
        tensors, record = _read(tmp_path / "s")
        assert state.shape == SequenceState.load(tmp_path / "s", random_model()).shape
    for size, loads in ((2**16, True), (2**16 + 1, False), (0, False)):
        record["batch_size"] = size
        _loads(tmp_path / "s", (tensors, record), loads)
    _loads(tmp_path / "s", (_content()[0], _content()[1] | {"batch_size": 1}), False)


def test_bounds_of_groups_and_of_a_constraint(tmp_path: Path) -> None:
    tensors, record = _content()
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
