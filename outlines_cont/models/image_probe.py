"""`ImageFeeder`: feeds an image on top of the keys and values of a row, by the forward of transformers with its pixels; `probe_images`:
whether a network continues exactly behind an image: in chunks, in a ragged batch beside a text without one, forked and cut, against one
forward of everything, for which transformers computes masks and positions itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch

from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import Fed
from outlines_cont.kv.pixel_store import ReadImage
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.serial import open_batch
from outlines_cont.kv.store import KVStore
from outlines_cont.models.capability import Finding, raised, relative_error, tolerance
from outlines_cont.models.image_reader import ImageReader
from outlines_cont.models.joined import evaluating

_SIZE = (40, 56)


class ImageFeeder:
    """What a batch of one row needs of a model to feed an image: its forward with the pixels."""

    can_branch = can_skip = False
    can_stack = True

    def __init__(
        self,
        model: LanguageModel,
        reader: ImageReader,
        forward: Callable[..., torch.Tensor],
        image: tuple[Sequence[int], Mapping[str, torch.Tensor]],
    ) -> None:
        self.is_recurrent, self.kv_store, self.new_cache = model.is_recurrent, model.kv_store, model.new_cache
        self.device, self.dtype = model.device, model.dtype
        self._reader, self._forward, self._image, self._offset = reader, forward, image, 0

    def forward(
        self, input_ids: Any, attention_mask: Any, position_ids: torch.Tensor, cache: Any, columns: Sequence[int]
    ) -> torch.Tensor:
        """Feed the image; see `LanguageModel.forward`."""
        num_before = int(position_ids[0, 0]) - self._offset
        options = self._reader.options(*self._image, position_ids, self.dtype, num_before)
        return self._forward(input_ids, attention_mask, position_ids, cache, columns, options)

    def feed(self, share: RowKV | None, offset: int, wanted: Sequence[int]) -> tuple[RowKV | None, Fed]:
        """Feed the image on top of a row; return the keys and values of both, and the logits after some of its tokens."""
        batch = open_batch(cast(LanguageModel, self), [share])
        self._offset, batch.offsets = offset, [offset]
        fed = batch.feed([self._image[0]], [wanted])
        (kv,) = batch.release_all()
        return kv, fed


class _Probed:
    """A model with a store of its own for keys and values, so that a budget has no part in what is measured."""

    def __init__(self, model: LanguageModel, reader: ImageReader, forward: Callable[..., torch.Tensor]) -> None:
        self.kv_store = KVStore()
        self._model, self._reader, self._forward = model, reader, forward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def feed_image(self, share: RowKV | None, image: ReadImage, wanted: Sequence[int]) -> tuple[RowKV | None, Fed]:
        """Feed an image behind text."""
        assert image.pixels.inputs is not None
        feeder = ImageFeeder(
            cast(LanguageModel, self), self._reader, self._forward, (image.token_ids, image.pixels.inputs)
        )
        return feeder.feed(share, 0, wanted)


@torch.inference_mode()
def probe_images(
    network: Any, model: LanguageModel, reader: ImageReader, forward: Callable[..., torch.Tensor]
) -> Finding:
    """Return whether a network is exact behind an image; `forward` is its forward with pixels.

    Cost: the processor, an image fed twice, and 4 forwards of few tokens.
    """
    noise = np.random.default_rng(0).integers(0, 256, (*_SIZE, 3), dtype=np.uint8)
    try:
        image = reader.read(noise)
    except Exception as failure:  # those of any processor, and of packages that it lacks
        return raised("its processor cannot be used: it", failure)
    if image.shift > 0 or image.pixels.inputs is None:
        return Finding(False, "positions grow by more than one for a token of an image")
    try:
        wanted = _whole(network, model, reader, image)
    except Exception as failure:  # those of any network
        return raised("the forward of transformers with an image and no cache", failure)
    try:
        error = relative_error(_in_parts(_Probed(model, reader, forward), image), wanted)
    except Exception as failure:  # those of any network
        return raised("a forward with an image on top of cached tokens, or behind it,", failure)
    bound = tolerance(model.dtype)
    if error < bound:
        return Finding(True, f"measured: error {error:.1e} of the spread of the logits, behind an image")
    return Finding(False, f"measured: behind an image it is off by {error:.1e} times the spread of the logits")


def _texts(model: LanguageModel) -> tuple[list[int], list[int], list[int]]:
    """Return ids of text before an image and behind it, and those of a text without one."""
    known = [i for i, data in enumerate(model.tokenizer.token_bytes[: model.vocab_size]) if data is not None]
    chosen = np.random.default_rng(1).choice(known, 17)
    return chosen[:3].tolist(), chosen[3:10].tolist(), chosen[10:17].tolist()


def _whole(network: Any, model: LanguageModel, reader: ImageReader, image: ReadImage) -> torch.Tensor:
    """Return (N + 8, V) logits after the tokens of an image, after some behind it, and of texts, each of one forward."""
    before, behind, text = _texts(model)
    row, forked = [*before, *image.token_ids, *behind], [*before, *image.token_ids, *behind[:4], *text[:2]]
    start = len(before) + len(image.token_ids)
    first, third = (_forward(network, model, reader, image, ids) for ids in (row, forked))
    second = _forward(network, model, reader, None, text)
    lasts = [*first[len(before) : start], first[start + 3], first[start + 4], first[start + 6]]
    return torch.stack([*lasts, third[start + 4], third[start + 5], second[3], second[4], second[6]])


def _forward(network: Any, model: LanguageModel, reader: ImageReader, image: ReadImage | None, ids: list[int]) -> Any:
    """Return (T, V) logits of one forward, without a cache; transformers computes masks and positions."""
    options: dict[str, Any] = {}
    if image is not None:
        assert image.pixels.inputs is not None
        start = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
        options = reader.options(image.token_ids, image.pixels.inputs, start, model.dtype)
        options.pop("position_ids", None)
        options |= {name: types.to(model.device) for name, types in reader.types(ids).items()}
    place = getattr(network, "model", network)
    kept = getattr(place, "rope_deltas", None)
    try:
        if hasattr(place, "rope_deltas"):
            place.rope_deltas = None
        given = torch.tensor([ids], device=model.device)
        if "attention_mask" in inspect.signature(network.forward).parameters:
            options["attention_mask"] = torch.ones_like(
                given
            )  # as `generate` gives: some compute no positions without one
        with evaluating(network):
            return network(input_ids=given, use_cache=False, **options).logits[0].float()
    finally:
        if hasattr(place, "rope_deltas"):
            place.rope_deltas = kept


def _in_parts(probed: _Probed, image: ReadImage) -> torch.Tensor:
    """Return the same of a row that is fed in chunks, beside the text, and forked from behind the image."""
    model = cast(LanguageModel, probed)
    before, behind, text = _texts(model)
    batch = open_batch(model, [None])
    batch.feed([before], [[]])
    (share,) = batch.release_all()
    count = len(image.token_ids)
    share, fed = probed.feed_image(share, image, range(count))
    found = [fed.logits[0, fed.columns[0][index]] for index in range(count)]
    both = open_batch(model, [share, None])
    both.offsets = [image.shift, 0]
    one = _fed(both, [behind[:4], text[:4]])
    two = _fed(both, [behind[4:5], text[4:5]])
    shares = both.release_all()
    cut = shares[0][: len(before) + count + 4] if shares[0] is not None else None
    if model.is_recurrent:  # whose cache cannot be cut
        cut = share
    forks = open_batch(model, [shares[0], cut, shares[1]])
    forks.offsets = [image.shift, image.shift, 0]
    others = _fed(forks, [behind[5:], (behind[:4] if model.is_recurrent else []) + text[:2], text[5:]])
    last = open_batch(model, [share])
    last.offsets = [image.shift]
    alone = _fed(last, [[*behind[:4], text[0]]])
    return torch.stack([*found, one[0], two[0], others[0], alone[0], others[1], one[1], two[1], others[2]])


def _fed(batch: Any, chunks: list[list[int]]) -> list[torch.Tensor]:
    """Feed the chunks and return (V,) logits after each."""
    fed = batch.feed(chunks, [[len(chunk) - 1] for chunk in chunks])
    return [fed.logits[row, fed.columns[row][len(chunk) - 1]] for row, chunk in enumerate(chunks)]
