"""Tensors and columns of a state file that do not fit together: each is refused by what is wrong with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from outlines_cont import SequenceState, continuous, generate
from outlines_cont.errors import StateFileError
from outlines_cont.state.file import _digest
from tests.fakes import random_model

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors, dict[str, Any]], None]


def _put(name: str, value: float) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        tensors[name].view(-1)[-1] = value

    return change


def _with(name: str, made: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        tensors[name] = made(tensors[name]).contiguous()

    return change


def _shorter(tensors: Tensors, record: dict[str, Any]) -> None:
    for kind in ("keys", "values"):
        tensors[f"kv.0.1.{kind}"] = tensors[f"kv.0.1.{kind}"][:, :-1].contiguous()


def _columns(found: list[int]) -> Change:
    def change(tensors: Tensors, record: dict[str, Any]) -> None:
        record["rows"][0]["parts"][0]["columns"] = found

    return change


def _more(tensors: Tensors, record: dict[str, Any]) -> None:
    record["rows"][0]["parts"] *= 2


def _layers(tensors: Tensors, record: dict[str, Any]) -> None:
    record["num_layers"] += 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_put("kv.0.0.keys", math.nan), r"`kv\.0\.0` is not finite"),
        (_put("kv.0.1.values", math.inf), r"`kv\.0\.1` is not finite"),
        (_shorter, "the layers of a row have different lengths"),
        (_with("kv.0.0.keys", lambda t: t[..., :-1]), r"`kv\.0\.0` has shape"),
        (_with("kv.0.0.values", lambda t: t[:, :-1]), r"`kv\.0\.0` has shape"),
        (_with("kv.0.0.values", torch.Tensor.float), r"`kv\.0\.0` has shape .* and type torch\.float32"),
        (_put("logits.0", math.inf), r"`logits\.0` has NaN or infinity"),
        (_with("logits.0", lambda t: t[:-1]), r"`logits\.0` has shape"),
        (_with("logits.0", torch.Tensor.half), r"`logits\.0` has shape .* and type torch\.float16"),
        (_with("token_ids", lambda t: t[:-1]), "`token_ids` has shape"),
        (_with("logprobs", torch.Tensor.float), "`logprobs` has shape .* and type torch.float32"),
        (_columns([]), "a row names keys and values that are not there"),
        (_columns([0, 0]), "a row names keys and values that are not there"),
        (_columns([1, 0]), "a row names keys and values that are not there"),
        (_columns([1000]), "a row names keys and values that are not there"),
        (_more, "a row has more keys and values than tokens"),
        (_layers, "3 layers of keys and values, this model 2"),
    ],
)
def test_it_is_refused_by_what_is_wrong(tmp_path: Path, change: Change, reason: str) -> None:
    path = tmp_path / "s"
    state = continuous(generate.text(random_model()))("the name of", max_tokens=3)
    assert torch.isfinite(state.logits).all()  # and now they are known, and saved
    state.save(path)
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        record = json.loads(file.metadata()["outlines_cont"])
    change(tensors, record)
    text = json.dumps(record)
    save_file(tensors, path, {"outlines_cont": text, "digest": _digest(tensors, text)})
    with pytest.raises(StateFileError, match=reason):
        SequenceState.load(path, random_model())
