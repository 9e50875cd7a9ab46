"""States saved and loaded: the same, and nothing of a file that is not whole or whose tensors do not fit together."""

from __future__ import annotations

import copy
import json
import math
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from outlines_cont import SequenceState, continuous, generate, samplers
from outlines_cont.errors import ResumeError, StateFileError, StateMismatch
from outlines_cont.state.row import Exclusion, Exclusions
from tests.fakes import VOCAB_SIZE, fresh_model, random_model
from tests.state.test_state_file_hostile import Content, read_file, write_file


def _state() -> SequenceState:
    write = continuous(generate.text(random_model(), sampler=samplers.multinomial(2)))
    return write(["the name of", "a"], max_tokens=4, rng=[5, 6])


def test_what_rows_share_is_written_once(tmp_path: Path) -> None:
    state = continuous(generate.text(random_model()))("the name of the rose " * 8, max_tokens=1)
    state.save(tmp_path / "one")
    state.fork(16).save(tmp_path / "many")
    assert (tmp_path / "many").stat().st_size < 4 * (tmp_path / "one").stat().st_size
    loaded = SequenceState.load(tmp_path / "many", random_model())
    assert loaded.nbytes < 2 * state.nbytes


def test_a_piece_that_was_cut_is_resumed_after_loading_by_its_generator_alone(tmp_path: Path) -> None:
    model = random_model()
    write = continuous(generate.regex(model, "[a-z]{6,12}-[0-9]{4}"))
    write("the name: ", max_tokens=3).save(tmp_path / "cut")
    with model.meter() as meter:
        loaded = SequenceState.load(tmp_path / "cut", model)
        write.resume(loaded)
    assert meter.recomputed_tokens == 0
    piece = loaded.rows[0][0].piece
    assert piece is not None
    assert json.loads(piece.source) == {"regex": "[a-z]{6,12}-[0-9]{4}"}
    with pytest.raises(ResumeError, match=r'regex.*has cut \(\{"choice": \["a"\]\}\)|choice.*regex'):
        continuous(generate.choice(model, ["a"])).resume(loaded)


def test_errors_and_values_come_back_as_far_as_json_goes(tmp_path: Path) -> None:
    state = continuous(generate.json(random_model(), {"enum": [{"a": 1}]}))(["x", "y" * 300])
    state.save(tmp_path / "s")
    loaded = SequenceState.load(tmp_path / "s", random_model())
    assert loaded.values == [[{"a": 1}], [None]]
    assert "ContextLengthError: expected a prompt" in str(loaded.errors[1][0])


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    _state().save(tmp_path / "s")
    with pytest.raises(StateMismatch, match="this model"):
        SequenceState.load(tmp_path / "s", random_model("gpt2"))
    with pytest.raises(StateMismatch, match="float type"):
        SequenceState.load(tmp_path / "s", random_model(dtype=torch.float32))


def test_another_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = r"\w*, \d+ tokens, .* \d layers"
    names = rf"that of HuggingFaceModel GPT2{size} \(.*, got that of HuggingFaceModel Llama{size}"
    state = _state()
    state.save(tmp_path / "s")
    with pytest.raises(StateMismatch, match=names) as caught:
        SequenceState.load(tmp_path / "s", random_model("gpt2"))
    assert "#" not in str(caught.value)
    monkeypatch.setattr("outlines_cont.state.file.name_of_model", lambda _: "x\x1b[31m" + "y" * 500)
    state.save(tmp_path / "s")
    with pytest.raises(StateMismatch, match=r"got that of x\\x1b\[31my+\.\.\.y+ \("):
        SequenceState.load(tmp_path / "s", random_model("gpt2"))
    monkeypatch.setattr("outlines_cont.state.file.name_of_model", lambda _: "")  # as in files of before
    state.save(tmp_path / "s")
    with pytest.raises(StateMismatch, match="got that of another"):
        SequenceState.load(tmp_path / "s", random_model("gpt2"))


def test_a_truncated_altered_or_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    _state().save(path)
    data = path.read_bytes()
    model = fresh_model()
    with pytest.raises(StateFileError, match="does not exist"):
        SequenceState.load(tmp_path / "none", model)
    for size in (0, 7, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with pytest.raises(StateFileError, match="Nothing was loaded"):
            SequenceState.load(path, model)
    for place in range(9, len(data), len(data) // 60):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(StateFileError, match="Nothing was loaded"):
            SequenceState.load(path, model)
    save_file({"a": torch.zeros(3)}, path)
    with pytest.raises(StateFileError, match="something else"):
        SequenceState.load(path, model)
    assert model.kv_store.nbytes == 0


@pytest.mark.parametrize(
    ("name", "renamed", "change"),
    [
        ("kinds", "kindt", lambda tensor: tensor),
        ("kinds", "kinds", lambda tensor: tensor.view(torch.int8)),
        ("kv.0.0.keys", "kv.0.0.keys", lambda tensor: tensor.reshape(tensor.shape[::-1])),
    ],
)
def test_names_types_and_shapes_are_in_the_digest(
    tmp_path: Path, name: str, renamed: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """The bytes and their order stay the same."""
    path = tmp_path / "s"
    _state().save(path)
    with safe_open(path, framework="pt") as file:
        tensors, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    order = sorted(tensors)
    tensors[renamed] = change(tensors.pop(name))
    assert [renamed if one == name else one for one in order] == sorted(tensors)
    save_file(tensors, path, metadata)
    with pytest.raises(StateFileError, match="its digest is wrong"):
        SequenceState.load(path, random_model())


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    _state().save(path)
    data = path.read_bytes()

    def fails(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr("outlines_cont.state.file.save_file", fails)
    with pytest.raises(StateFileError, match="expected a path that can be written, .* no space"):
        _state().save(path)
    assert path.read_bytes() == data
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def test_a_disk_without_room_leaves_the_old_file_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "s"
    _state().save(path)
    data, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(data) // 2, limits[1]))
    try:
        with pytest.raises(StateFileError, match=r"file that was there is unchanged.*save\(path, kv=False\)"):
            _state().save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == data
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def _with_exclusions(places: list[Exclusion]) -> SequenceState:
    state = _state()
    row = state.rows[0][0]
    assert row.piece is not None
    changed = replace(row, piece=replace(row.piece, exclusions=Exclusions(tuple(places)), retries=7))
    return replace(state, rows=((changed, *state.rows[0][1:]), *state.rows[1:]))


def test_what_is_excluded_is_saved_with_its_places(tmp_path: Path) -> None:
    row = _state().rows[0][0]
    assert row.piece is not None
    first, last = row.piece.start, len(row.token_ids)
    top = VOCAB_SIZE - 1
    places = [Exclusion(first, frozenset({0, top}), frozenset({3}), 2, 5), Exclusion(last, frozenset(), frozenset({top}), 0, 1)]
    _with_exclusions(places).save(tmp_path / "s")
    loaded = SequenceState.load(tmp_path / "s", random_model()).rows[0][0].piece
    assert loaded is not None
    assert loaded.exclusions == Exclusions(tuple(places))
    assert loaded.retries == 7


Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors, dict[str, Any]], None]


def _put(name: str, value: float) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        tensors[name].view(-1)[-1] = value

    return change


def _with(made: Callable[[torch.Tensor], torch.Tensor], *names: str) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        tensors.update({name: made(tensors[name]).contiguous() for name in names})

    return change


def _said(**said: Any) -> Change:
    return lambda tensors, record: record.update(said)


def _row(**said: Any) -> Change:
    return lambda tensors, record: record["rows"][0].update(said)


def _columns(found: list[int], times: int = 1) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        part = record["rows"][0]["parts"][0]
        record["rows"][0]["parts"] = [{**part, "columns": found or part["columns"]}] * times

    return change


def _older(tensors: Tensors, record: dict[str, Any]) -> None:
    record["format"] = "outlines-cont state 1"
    record["rows"][0] |= {"weight_start": 3, "ends": 0.0}


def _ninth_layer(tensors: Tensors, record: dict[str, Any]) -> None:
    record["num_layers"], tensors["kv.0.9.keys"] = 99, torch.zeros(1, 2, 3)


def _exclusions(is_avoided: bool, *places: tuple[int, int]) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        row, lists = record["rows"][0], ["excluded", "avoided"][:: -1 if is_avoided else 1]
        start = row["piece"][0]
        assert row["length"] == start + 4
        row["exclusions"] = [
            {"index": start + at, lists[0]: [token_id], lists[1]: [], "policy": 0, "retries": 1} for at, token_id in places
        ]

    return change


_MISSING = "a row names keys and values that are not there"
_WRONG: list[tuple[Change, str]] = [
    (_older, "it has the format 'outlines-cont state 1', and this version reads"),
    (_said(format="outlines-cont state 9"), "format"),
    (_said(num_samples=3), "whole groups"),
    (_said(seed=[1, 2, 3]), "seeds"),
    (_said(seed="x"), "description"),
    (_said(extra=1), "description"),
    (_said(num_layers=3), "3 layers of keys and values, this model 2"),
    (_ninth_layer, "Nothing was loaded"),
    (_row(piece=[99, [], ""]), "Nothing was loaded"),
    (_row(parts=[{"store": 0, "columns": [5, 4]}]), "Nothing was loaded"),
    (_row(parts=[{"store": 77, "columns": [0]}]), "Nothing was loaded"),
    (_row(logits=50), "Nothing was loaded"),
    (_row(path="zz"), "Nothing was loaded"),
    *((_columns(columns), _MISSING) for columns in ([0, 0], [1, 0], [1000])),
    (_row(parts=[{"store": 0, "columns": []}]), _MISSING),
    (_columns([], times=2), "a row has more keys and values than tokens"),
    *(
        (_exclusions(is_avoided, *places), reason)
        for is_avoided in (False, True)
        for places, reason in [
            ([(0, 1), (0, 1)], "ascend"), ([(1, 1), (0, 1)], "ascend"), ([(-1, 1)], "in the last piece"),
            ([(5, 1)], "in the last piece"), ([(0, VOCAB_SIZE)], "out of range"), ([(0, -1)], "description"),
        ]
    ),
    (_put("kv.0.0.keys", math.nan), r"`kv\.0\.0` is not finite"),
    (_put("kv.0.1.values", math.inf), r"`kv\.0\.1` is not finite"),
    (_with(lambda t: t[:, :-1], "kv.0.1.keys", "kv.0.1.values"), "the layers of a row have different lengths"),
    (_with(lambda t: t[..., :-1], "kv.0.0.keys"), r"`kv\.0\.0` has shape"),
    (_with(lambda t: t[:, :-1], "kv.0.0.values"), r"`kv\.0\.0` has shape"),
    (_with(torch.Tensor.float, "kv.0.0.values"), r"`kv\.0\.0` has shape .* and type torch\.float32"),
    (_put("logits.0", math.inf), r"`logits\.0` has NaN or infinity"),
    (_with(lambda t: t[:-1], "logits.0"), r"`logits\.0` has shape"),
    (_with(torch.Tensor.half, "logits.0"), r"`logits\.0` has shape .* and type torch\.float16"),
    (_with(lambda t: t[:-1], "token_ids"), "`token_ids` has shape"),
    (_with(torch.Tensor.float, "logprobs"), "`logprobs` has shape .* and type torch.float32"),
]  # fmt: skip


@cache
def _saved() -> Content:
    state = _state()
    assert torch.isfinite(state.logits).all()  # and now they are known, and saved
    with TemporaryDirectory() as folder:
        state.save(Path(folder, "s"))
        return read_file(Path(folder, "s"))


@pytest.mark.parametrize(("change", "reason"), _WRONG)
def test_a_file_with_a_right_digest_is_refused_by_what_is_wrong(tmp_path: Path, change: Change, reason: str) -> None:
    tensors, record = copy.deepcopy(_saved())
    change(tensors, record)
    write_file(tmp_path / "s", (tensors, record))
    with pytest.raises(StateFileError, match=reason):
        SequenceState.load(tmp_path / "s", random_model())


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc here")
@pytest.mark.parametrize("path", ["/proc/x", "a" * 5_000, "b" * 300, "c/" * 3_000 + "d"])
def test_a_path_that_cannot_be_made_is_an_error_of_the_file(tmp_path: Path, path: str) -> None:
    for act in (_state().save, lambda where: SequenceState.load(where, random_model())):
        with pytest.raises(StateFileError, match="expected a") as refused:
            act(tmp_path / path)
        assert len(str(refused.value)) < 600
