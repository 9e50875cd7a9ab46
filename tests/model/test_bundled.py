"""The bundled model through the public names: it loads from the package and chains generators on one state."""

from __future__ import annotations

from functools import cache
from typing import Literal

import pydantic
import torch

from outlines_cont import continuous, generate, models
from outlines_cont.models import HuggingFaceModel


class Order(pydantic.BaseModel):
    name: str
    quantity: int
    currency: Literal["EUR", "USD"]


@cache
def _tiny() -> HuggingFaceModel:
    return models.tiny()


def test_it_chains_three_generators_and_feeds_each_token_once() -> None:
    model = _tiny()
    with model.meter() as meter:
        state = continuous(generate.choice(model, ["order", "complaint"]))(
            "Message: Please send 3 chairs. Anna\nKind: "
        )
        kind = state.value
        state = continuous(generate.json(model, Order))(state + "\nRecord: ", max_tokens=200)
        assert isinstance(state.value, Order)
        state = continuous(generate.regex(model, r"20[0-9]{2}-[0-9]{2}-[0-9]{2}"))(state + "\nDue: ")
    assert kind in ("order", "complaint")
    assert str(state).endswith(f"\nDue: {state.value}")
    assert int(state.cached.sum()) == meter.fed_tokens
    assert meter.recomputed_tokens == 0
    assert meter.forwards < meter.fed_tokens


def test_rows_of_a_batch_give_what_they_give_alone() -> None:
    model = models.tiny(dtype=torch.float64)
    generator = generate.json(model, Order)
    prompts = [
        f"Message: {text}\nRecord: " for text in ("3 chairs for Anna, in EUR.", "Bob paid USD for 12 lamps and a desk.")
    ]
    assert [generator(prompt, max_tokens=200) for prompt in prompts] == generator(prompts, max_tokens=200)
