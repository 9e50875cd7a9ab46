"""Networks whose forward raises an error: what a user reads has its type and its message, and blames nothing that was not measured."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from outlines_cont import continuous, generate, models
from outlines_cont.errors import UnsupportedModel
from outlines_cont.models.capability import relative_error
from tests.fakes import FakeTokenizer, random_network
from tests.image_models import parts, picture

Forward = Callable[..., Any]


def _network(change: Callable[[Forward], Forward]) -> Any:
    """A network with another forward, of a class of its own, as what was found is known by class and config."""
    made = random_network("llama")
    base: Any = type(made)
    made.__class__ = type("Changed", (base,), {"forward": change(base.forward)})
    return made


def _without_package(_: Forward) -> Forward:
    def forward(self: Any, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        import no_such_package  # type: ignore[import-not-found] # noqa: F401

    return forward


def _of_two_types(base: Forward) -> Forward:
    def forward(self: Any, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        self.lm_head.half()
        return base(self, input_ids=input_ids, cache=cache, **options)

    return forward


def _with_pixels(base: Forward) -> Forward:
    def forward(self: Any, input_ids: Any, pixels: Any, cache: Any = None, **options: Any) -> Any:
        return base(self, input_ids=input_ids, cache=cache, **options)

    return forward


def _of_own_cache(base: Forward) -> Forward:
    def forward(self: Any, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        if cache is not None:
            cache.own_states
        return base(self, input_ids=input_ids, cache=cache, **options)

    return forward


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (
            _without_package,
            ModuleNotFoundError,
            "raises ModuleNotFoundError: No module named 'no_such_package', with a cache and without one",
        ),
        (_of_two_types, RuntimeError, "raises RuntimeError: .*, with a cache and without one"),
        (_with_pixels, TypeError, "raises TypeError: .*argument: 'pixels', with a cache and without one"),
        (
            _of_own_cache,
            AttributeError,
            "from its cache: its forward raises AttributeError: .*'own_states'. If it is given ids alone: it runs",
        ),
    ],
)
def test_the_error_of_a_network_that_does_not_run_is_shown_and_is_the_cause(change: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(UnsupportedModel, match=f"Changed.*{said}") as error:
        models.from_transformers(_network(change), FakeTokenizer())
    assert type(error.value.__cause__) is kind


_TENSORS: list[weakref.ref[torch.Tensor]] = []


def _of_one_row(base: Forward) -> Forward:
    def forward(self: Any, input_ids: Any = None, cache: Any = None, **options: Any) -> Any:
        copied = input_ids.clone()
        _TENSORS.append(weakref.ref(copied))
        if len(copied) > 1:
            raise ValueError(f"expected one row, got {len(copied)}")
        return base(self, input_ids=copied, cache=cache, **options)

    return forward


def _of_no_mask(base: Forward) -> Forward:
    def forward(self: Any, input_ids: Any = None, cache: Any = None, attention_mask: Any = None, **options: Any) -> Any:
        if attention_mask is not None:
            raise NotImplementedError
        return base(self, input_ids=input_ids, cache=cache, **options)

    return forward


@pytest.mark.parametrize(("change", "said"), [(_of_one_row, "ValueError: expected one row, got 2"), (_of_no_mask, "NotImplementedError")])
def test_a_network_that_takes_no_batch_says_why_and_runs_rows_one_by_one(change: Any, said: str) -> None:
    model = models.from_transformers(_network(change), FakeTokenizer())
    found = model.capabilities
    assert found.crop
    for finding, what in (
        (found.stack, "of two rows with a mask"),
        (found.skip, "of two rows with a mask"),
        (found.branch, "over a shared prefix"),
    ):
        assert not finding
        assert finding.why == f"a forward {what} raised {said}"
        assert type(finding.cause).__name__ == said.partition(":")[0]
    prompts = ["ab", "a name", "x"]
    together = continuous(generate.text(model))(prompts, max_tokens=4, min_tokens=4)
    alone = [continuous(generate.text(model))(prompt, max_tokens=4, min_tokens=4) for prompt in prompts]
    assert [state.generated for state in alone] == [row[0] for row in together.generated]
    assert all(tensor() is None for tensor in _TENSORS)  # that of the error, too, whose traceback is kept


def test_positions_of_its_own_are_refused() -> None:
    def from_two_on(base: Forward) -> Forward:
        def forward(self: Any, input_ids: Any = None, cache: Any = None, position_ids: Any = None, **options: Any) -> Any:
            if position_ids is None:
                position_ids = 2 * torch.arange(input_ids.shape[1])[None] + 2
            return base(self, input_ids=input_ids, cache=cache, position_ids=position_ids, **options)

        return forward

    with pytest.raises(UnsupportedModel, match="Changed to have the same logits with positions that count tokens from 0 on"):
        models.from_transformers(_network(from_two_on), FakeTokenizer())


def test_an_error_with_an_image_is_shown_and_texts_run() -> None:
    network, processor = parts("llava")
    model = models.from_transformers(network, processor)

    def fail(*given: Any) -> Any:
        raise KeyError("no such layer")

    handle = network.model.vision_tower.register_forward_pre_hook(fail)
    try:
        why = model.capabilities.images.why
        assert why == "the forward of transformers with an image and no cache raised KeyError: 'no such layer'"
        with pytest.raises(UnsupportedModel, match="LlavaForConditionalGeneration.*no such layer") as error:
            model.see("<image>", [picture()])
        assert type(error.value.__cause__) is KeyError
        assert continuous(generate.text(model))("A text", max_tokens=2, min_tokens=2).generated
    finally:
        handle.remove()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tokens_that_are_excluded_by_the_least_number_hide_no_error(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    wanted = torch.randn(5, 40, generator=generator, dtype=torch.float64)
    found = wanted + 0.5 * torch.randn(5, 40, generator=generator, dtype=torch.float64)
    plain = relative_error(found[:, ::2], wanted[:, ::2])
    for logits in (found, wanted):
        logits[:, 1::2] = torch.finfo(dtype).min
    assert plain == pytest.approx(relative_error(found, wanted))
    assert plain > 0.5
