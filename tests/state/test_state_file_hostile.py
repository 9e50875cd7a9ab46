"""Files that say what is not so, under a right digest: what is loaded is a state that can be used, or nothing."""

from __future__ import annotations

import copy
import json
import math
import os
import time
import tracemalloc
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
from outlines_cont.errors import StateFileError, StateMismatch
from outlines_cont.state.file import _digest
from tests.fakes import random_model

Content = tuple[dict[str, torch.Tensor], Any]

_VALUES = [
    -1,
    0,
    1,
    2,
    7,
    350,
    351,
    2**31,
    2**40,
    2**63,
    2**70,
    2**200,
    3_000_000,
    1.5,
    -0.5,
    1e308,
    math.nan,
    math.inf,
]
_VALUES += ["", "x", "error", "f" * 40, None, True, [], [0], [-1], [[0, 1.5]], {}, {"start": 3}]  # type: ignore[list-item]


@cache
def _content() -> Content:
    model = random_model()
    found = (
        continuous(generate.regex(model, "[xyz]{1,2}", sampler=samplers.beam_search(2)))(["the name of", "a"]) + " of "
    )
    state = continuous(generate.text(model, sampler=samplers.multinomial(2)))(found, max_tokens=2, rng=[5, 6])
    with TemporaryDirectory() as folder:
        state.save(Path(folder, "s"))
        return _read(Path(folder, "s"))


def _read(path: Path) -> Content:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["outlines_cont"])  # noqa: SIM118


def _write(path: Path, content: Content) -> None:
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
    match data.draw(st.sampled_from(["gone", "renamed", "type", "shape", "cut", "empty", "scalar", "value", "more"])):
        case "gone":
            del tensors[name]
        case "renamed":
            tensors[data.draw(st.sampled_from(["kv.0.9.keys", "kv.99.0.keys", "logits.9", "x"]))] = tensors.pop(name)
        case "type":
            tensors[name] = tensor.to(
                data.draw(st.sampled_from([torch.float16, torch.float32, torch.int32, torch.bool]))
            )
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


@settings(max_examples=20)
@given(st.data())
def test_a_spoiled_file_is_refused_or_a_state_that_can_be_used(data: st.DataObject) -> None:
    model = random_model()
    content = copy.deepcopy(_content())
    for _ in range(data.draw(st.integers(1, 2))):
        if content[0]:
            _spoil(data, content)
    with TemporaryDirectory() as folder:
        path = Path(folder, "s")
        _write(path, content)
        tracemalloc.start()
        started = time.process_time()
        try:
            state = SequenceState.load(path, model)
        except (StateFileError, StateMismatch):
            return
        finally:
            used = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert used < 20_000_000
            assert time.process_time() - started < 3
        state.save(path)
        again = SequenceState.load(path, model)
    assert state == again
    assert (state.shape, list(state), state.seed) == (again.shape, list(again), again.seed)
    for name in ("weights", "scores", "logprobs", "sampling_logprobs"):
        assert torch.isfinite(getattr(state, name)).all()
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
    _write(tmp_path / "s", (tensors, record))
    tracemalloc.start()
    started = time.process_time()
    try:
        SequenceState.load(tmp_path / "s", random_model())
        assert field == "drawn"
    except StateFileError:
        assert field != "drawn"
    finally:
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert used < 5_000_000
    assert time.process_time() - started < 1


def test_keys_and_values_of_other_tokens_are_refused(tmp_path: Path) -> None:
    tensors, record = copy.deepcopy(_content())
    rows = record["rows"]
    assert rows[0]["parts"][0]["columns"] != rows[2]["parts"][0]["columns"] or rows[0]["parts"] != rows[2]["parts"]
    rows[0]["parts"], rows[2]["parts"] = rows[2]["parts"], rows[0]["parts"]
    rows[1]["parts"] = copy.deepcopy(rows[0]["parts"])
    _write(tmp_path / "s", (tensors, record))
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


def test_empty_states_come_back_as_they_were(tmp_path: Path) -> None:
    model = random_model()
    for rows in ((), ((), ())):
        state = SequenceState(model, rows, 3)
        state.save(tmp_path / "s")
        assert SequenceState.load(tmp_path / "s", model).rows == rows
