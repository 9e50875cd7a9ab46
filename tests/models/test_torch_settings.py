"""Settings of torch that a program has made for itself, such as a default type, a default device or autocast, change no result."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from threading import Barrier
from typing import Any

import pytest
import torch

from outlines_cont import Guidance, SequenceState, continuous, generate, models, samplers
from outlines_cont.models import HuggingFaceModel

_PROMPT = "Message: Two lamps, please.\nQuantity: "
_SCHEMA = {"properties": {"kind": {"enum": ["order", "complaint"]}, "quantity": {"type": "integer"}}, "required": ["kind", "quantity"]}


@contextmanager
def _default_type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _default_device() -> Iterator[None]:
    torch.set_default_device("meta")  # whose tensors have no values
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


_SETTINGS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64 by default": partial(_default_type, torch.float64),
    "bfloat16 by default": partial(_default_type, torch.bfloat16),
    "a device by default": _default_device,
    "deterministic algorithms": _deterministic,
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "anomalies": partial(torch.autograd.set_detect_anomaly, True, check_nan=False),
}


def _written(state: SequenceState) -> list[Any]:
    return [state.generated, [round(number, 4) for number in state.weights.flatten().tolist()]]


def _results(model: HuggingFaceModel) -> list[Any]:
    """What a bit of everything gives."""
    text = continuous(generate.text(model))
    surprising = {"top_p": 0.9, "repetition_penalty": 1.2, "mirostat": samplers.Mirostat(tau=3.0)}
    many = continuous(generate.text(model, sampler=samplers.multinomial(2, **surprising)))
    rare = {"xtc": samplers.XTC(threshold=0.1, probability=0.5), "temperature": 0.8}
    few = continuous(generate.text(model, sampler=samplers.multinomial(2, **rare)))
    beams = continuous(generate.regex(model, "[0-9]{1,3} [a-z]{2}", sampler=samplers.beam_search(2)))
    record = continuous(generate.json(model, _SCHEMA, exact_fields=True))
    state = text(_PROMPT, max_tokens=4)
    file = io.BytesIO()
    state.save(file)
    file.seek(0)
    loaded = SequenceState.load(file, model)
    stacked = SequenceState.stack([state[:-2], state + " or", loaded])
    return [
        _written(text(stacked, max_tokens=3)),
        _written(text(_PROMPT, max_tokens=4, guidance=Guidance("Quantity: ", 2.0))),
        _written(many(_PROMPT, max_tokens=4, rng=1)),
        _written(few(_PROMPT, max_tokens=4, rng=1)),
        _written(beams([_PROMPT, "a"])),
        _written(record(_PROMPT, max_tokens=60)),
        _written(continuous(generate.text(model, draft="lookup"))("one two one two one", max_tokens=6)),
        generate.choice(model, ["1", "2", "12"])(_PROMPT),
        [round(number, 3) for number in state.logits[0, 0, :5].tolist()],
        [round(number, 3) for number in model.score(state, " or two").tolist()],
        [tuple(round(number, 3) for number in one) for one in state.logprobs[..., -2:].flatten(0, 1).tolist()],
    ]


@cache
def _plain() -> list[Any]:
    return _results(models.tiny(prefix_cache_bytes=0))


@pytest.mark.filterwarnings("ignore:.*autocast.*")
@pytest.mark.parametrize(
    ("setting", "is_opened_inside"),
    [(name, inside) for name in _SETTINGS for inside in (False, True) if not (inside and name == "a device by default")],
)  # transformers refuses to load weights while the default device is one without memory
def test_results_are_those_of_a_program_without_settings(setting: str, is_opened_inside: bool) -> None:
    expected = _plain()
    model = models.tiny(prefix_cache_bytes=0)
    with _SETTINGS[setting]():
        found = _results(models.tiny(prefix_cache_bytes=0) if is_opened_inside else model)
    assert found == expected


def test_models_may_be_opened_at_once_and_beside_one_that_writes() -> None:
    """Whoever loads changes the process meanwhile: its float type by default, and functions of PyTorch."""
    expected, model = _plain(), models.tiny(prefix_cache_bytes=0)
    begin = Barrier(4)

    def open_some(dtype: str) -> list[Any]:
        begin.wait()
        opened = [models.tiny(dtype=dtype) for _ in range(3)]
        return [continuous(generate.text(one))(_PROMPT, max_tokens=4).generated for one in opened]

    def write() -> list[Any]:
        begin.wait()
        return [_results(model) for _ in range(2)]

    with ThreadPoolExecutor(4) as pool:
        texts = [pool.submit(open_some, dtype) for dtype in ("float32", "bfloat16", "float32")]
        assert pool.submit(write).result() == [expected] * 2
        first, _, third = (one.result() for one in texts)
    assert first == third == [continuous(generate.text(model))(_PROMPT, max_tokens=4).generated] * 3


def test_autocast_that_is_left_out_is_told() -> None:
    model = models.tiny()
    told = pytest.warns(UserWarning, match="`torch.autocast` is left out: .* Open it in another one")
    with torch.autocast("cpu", dtype=torch.bfloat16), told:
        generate.text(model)(_PROMPT, max_tokens=2)
