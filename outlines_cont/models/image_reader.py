"""`ImageReader`: images as one network takes them: the processor of its family turns each, by itself, into the ids that stand for it and
the tensors that the forward takes. Also the positions of its tokens, which in families with rotary embeddings of several axes (M-RoPE) are
those of rows and columns, computed by the network's own `get_rope_index`.

Nothing here knows a family by its name. The text that stands for an image is that which the chat template of the processor writes, or the
image token of the processor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional

from outlines_cont.errors import UnsupportedModel
from outlines_cont.interfaces import Tokenizer
from outlines_cont.kv.pixel_store import PixelStore, ReadImage, digest_of
from outlines_cont.models.image_file import open_image, thumbnail

_MARK = "outlinesmark"
# What the forward of a network takes beside the tensors of images.
_OF_TEXT = {
    *("input_ids", "attention_mask", "position_ids", "inputs_embeds", "labels", "cache", "past_key_values"),
    *("cache_params", "cache_position", "use_cache", "logits_to_keep", "output_attentions", "return_dict"),
}
# A value for each token: 1 for those of images.
_TYPES = ("token_type_ids", "mm_token_type_ids")


def takes_images(network: Any) -> bool:
    """Return whether the forward of a network takes the pixels of images."""
    return any(name.startswith("pixel_values") for name in inspect.signature(network.forward).parameters)


class ImageReader:
    """Images as the ids and tensors of one network.

    Attributes:
        pixels: the tensors of images that are alive.
    """

    def __init__(
        self, network: Any, tokenizer: Tokenizer, open_processor: Callable[[], Any], pixels: PixelStore
    ) -> None:
        self._network = network
        self._tokenizer = tokenizer
        self._open_processor = open_processor
        self._takes = frozenset(inspect.signature(network.forward).parameters) - _OF_TEXT
        self.pixels = pixels

    @cached_property
    def processor(self) -> Any:
        """The processor of transformers, opened when the first image is read."""
        return self._open_processor()

    @cached_property
    def placeholder(self) -> str:
        """The text that stands for an image, for the processor."""
        processor = self.processor
        if getattr(processor, "chat_template", None):
            mark = {"type": "text", "text": _MARK}
            message = {"role": "user", "content": [mark, {"type": "image"}, mark]}
            with suppress(Exception):  # of a template of texts alone
                parts = processor.apply_chat_template([message], tokenize=False).split(_MARK)
                if len(parts) == 3 and parts[1].strip():
                    return str(parts[1].strip())
        # The image token of Gemma 3 is what its processor writes; it reads the one that begins an image.
        name = getattr(processor, "boi_token", None) or getattr(processor, "image_token", None)
        if not isinstance(name, str):
            raise UnsupportedModel(
                f"expected a processor with a chat template that takes images, or an `image_token`, got {type(processor).__name__}"
            )
        around = [getattr(self._network.config, f"vision_{side}_token_id", None) for side in ("start", "end")]
        left, right = (self._tokenizer.special_tokens.get(one, "") if one is not None else "" for one in around)
        return f"{left}{name}{right}"

    @property
    def image_token_id(self) -> int | None:
        """The id of the tokens whose embeddings are those of the image, if the config names it."""
        config = self._network.config
        found = getattr(config, "image_token_id", None)
        return found if found is not None else getattr(config, "image_token_index", None)

    def read(self, source: Any) -> ReadImage:
        """Return an image, see `open_image`, as the network takes it; `ImageError` if it cannot be read. Cost: that of the processor."""
        image = open_image(source)
        options: dict[str, Any] = {"return_tensors": "pt", "add_special_tokens": False}
        made = self.processor(text=[self.placeholder], images=[image], **options)
        ids = [int(i) for i in made["input_ids"][0]]
        start = self._tokenizer.encode("", add_special_tokens=True)
        if start and ids[: len(start)] == start:
            ids = ids[len(start) :]
        inputs = {
            name: value
            for name, value in made.items()
            if name in self._takes and isinstance(value, torch.Tensor) and name not in _TYPES
        }
        return self.of_tensors(ids, inputs, thumbnail(image))

    def of_tensors(self, token_ids: Sequence[int], inputs: Mapping[str, torch.Tensor], picture: str = "") -> ReadImage:
        """Return the image of some ids and tensors; `picture` is a small one for people."""
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in inputs.items()}
        _, shift = self.positions(token_ids, kept)
        return ReadImage(tuple(token_ids), self.pixels.put(digest_of(token_ids, kept), kept, picture), shift)

    def types(self, token_ids: Sequence[int]) -> dict[str, torch.Tensor]:
        """Return what the network takes for each token of (1, N) ids: 1 for those of the image, else 0."""
        ids = torch.tensor([[*token_ids]], device="cpu")
        return {name: self._is_image(ids) for name in _TYPES if name in self._takes}

    def _is_image(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.image_token_id
        return torch.zeros_like(ids) if found is None else ids.eq(found).long()

    def positions(
        self, token_ids: Sequence[int], inputs: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor | None, int]:
        """Return (A, 1, N) positions of N tokens with an image from 0 on, and how much more those behind are than indices.

        None and 0 where positions are indices.
        """
        index = self._rope_index
        if index is None:
            return None, 0
        ids = torch.tensor([[*token_ids]], device="cpu")
        known = {**inputs, "attention_mask": torch.ones_like(ids), **self.types(token_ids)}
        if "mm_token_type_ids" not in known:
            known["mm_token_type_ids"] = self._is_image(ids)
        takes = inspect.signature(index).parameters
        found, deltas = index(
            input_ids=ids,
            **{name: value for name, value in known.items() if name in takes},
        )
        return found, int(deltas.flatten()[0])

    @cached_property
    def _rope_index(self) -> Callable[..., Any] | None:
        places = (self._network, getattr(self._network, "model", None))
        found = (getattr(place, "get_rope_index", None) for place in places)
        return next((index for index in found if index is not None), None)

    def options(
        self,
        token_ids: Sequence[int],
        inputs: Mapping[str, torch.Tensor],
        position_ids: torch.Tensor,
        dtype: torch.dtype,
        num_before: int = 0,
    ) -> dict[str, torch.Tensor]:
        """Return what the forward of an image takes: tensors on the device of (1, N) `position_ids`, which have the first position.

        `num_before` tokens are cached. The mask of transformers takes the kinds of these, too, as it counts columns from the first on.
        """
        device = position_ids.device
        types = {name: functional.pad(kinds, (num_before, 0)) for name, kinds in self.types(token_ids).items()}
        found = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None)
            for name, tensor in {**inputs, **types}.items()
        }
        positions, _ = self.positions(token_ids, inputs)
        if positions is not None:
            found["position_ids"] = positions.to(device) + position_ids[:, :1]
        return found
