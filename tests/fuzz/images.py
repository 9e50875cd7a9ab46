"""Random chains of pieces behind images: as `chains`, of networks of images and texts, against fresh runs and one forward with all pixels.

Images are seen at the start, appended, cut, joined, saved and loaded; keys and values are evicted before steps of the engine, at random.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from outlines_cont import Engine, SequenceState, models
from outlines_cont.state.row import StateRow
from tests.fuzz import chains
from tests.fuzz.chains import Chain, Counts
from tests.image_models import parts, picture
from tests.images.oracle import evict_all, whole_logits

FAMILIES = ["llava", "gemma3", "mistral3", "internvl", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3"]
_BEFORE = ["", "the name ", "red green", "日"]
_AFTER = ["", " of ", "\n", ": ", "12"]
_SIZES = [(20, 28), (20, 28), (9, 40), (33, 16)]

__all__ = ["Counts", "ImageChain", "run"]


@cache
def _double(family: str) -> tuple[Any, Any]:
    """A network in float64, so that ties are the only close choices, and its processor."""
    network, processor = parts(family)
    return copy.deepcopy(network).double(), processor


class ImageChain(Chain):
    """A chain whose texts have images; three pictures of four sizes, so that many have equal ids."""

    families = FAMILIES
    most_tokens = 160

    def make_model(self, family: str, **options: Any) -> Any:
        """Return a model of images and texts."""
        return models.from_transformers(*_double(family), **options)

    def start(self) -> SequenceState:
        """Return a state of one or two prompts with images, or one with and one without."""
        texts = [self._text() for _ in range(self.random.choice([1, 1, 2]))]
        self.told.append(f"{texts}")
        images = [self._pictures(text) for text in texts]
        return self.model.see(texts, images, rng=self.random.randint(0, 99))

    def changed(self, state: SequenceState) -> SequenceState:
        """Return the state after a random operation, often one with an image."""
        r = self.random
        act = r.choice(["other", "other", "see", "cut_end", "cut_start", "behind", "detach"])
        match act:
            case "see":
                text = r.choice(_BEFORE) + "<image>" + r.choice(_AFTER)
                self.told.append(f"see {text!r}")
                return state.see([text] * len(state), [self._pictures(text) for _ in range(len(state))])
            case "cut_end":
                at = r.randint(1, 24)
                self.told.append(f"cut the last {at}")
                return state.tokens[..., :-at]
            case "cut_start":
                at = r.randint(1, 24)
                self.told.append(f"cut the first {at}")
                return state.tokens[..., at:]
            case "behind":
                self.told.append("behind a text")
                return "so " + state
            case "detach":
                self.told.append("detach")
                return state.detach_cache()
        return super().changed(state)

    def scores(self, row: StateRow) -> list[float]:
        """Return the log-probability of each token by one forward of everything, with the pixels."""
        logs = whole_logits(self.fresh, row).log_softmax(-1)
        return [0.0, *(float(logs[i - 1, row.token_ids[i]]) for i in range(1, len(row.token_ids)))]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Evict before steps of the engine, at random."""
        step, random = Engine.step, self.random

        def evicted(engine: Engine) -> bool:
            if random.random() < 0.2:
                evict_all(self.model)
            return step(engine)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Engine, "step", evicted)
            yield

    def _text(self) -> str:
        r = self.random
        places = r.choice([1, 1, 1, 2]) if r.random() < 0.85 else 0
        return r.choice(_BEFORE) + "".join("<image>" + r.choice(_AFTER) for _ in range(places)) or "a"

    def _pictures(self, text: str) -> list[Any]:
        return [picture(self.random.randrange(3), self.random.choice(_SIZES)) for _ in range(text.count("<image>"))]


def run(seed: int, seconds: float, counts: Counts, *, count: int | None = None, progress: float = 0) -> Iterator[str]:
    """Run chains with images; see `chains.run`."""
    return chains.run(seed, seconds, counts, count=count, progress=progress, kind=ImageChain)
