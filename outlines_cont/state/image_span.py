"""`ImageSpan`: the tokens of a row that stand for one image, with a digest of its pixels, by which rows with equal ids and other pixels are
told apart. An image is in a row as a whole or not at all: `floor` is where a cut through one takes effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from outlines_cont.interfaces import ImagePixels

PLACEHOLDER = "<image>"
"""What stands for an image in the text of a prompt, and in that of a state, in all families."""


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """The tokens of one image in a row, those around it that its processor has written included.

    Attributes:
        start, stop: the index of the first token, and that after the last.
        digest: 32 hexadecimal digits of the pixels and the ids; see `kv.pixel_store.digest_of`.
        shift: how much less, as a negative number, positions grow over it than indices do; 0 but in families with rotary embeddings
            of several axes (M-RoPE), in which an image takes as many positions as its longer side has tokens.
        kind: the kind of medium, `image`.
        pixels: the tensors that the network takes for it.
    """

    start: int
    stop: int
    digest: str
    shift: int = 0
    kind: str = "image"
    pixels: ImagePixels | None = field(default=None, compare=False, repr=False)

    def moved(self, by: int) -> ImageSpan:
        """Return the span in a row in which it begins so many tokens later."""
        return replace(self, start=self.start + by, stop=self.stop + by)

    @property
    def is_lost(self) -> bool:
        """Whether its pixels are not at hand, so that it cannot be seen again."""
        return self.pixels is None or self.pixels.inputs is None

    @property
    def keys(self) -> list[int]:
        """What stands for its ids in keys of caches: negative numbers that no other image has, one for each token."""
        base = int(self.digest, 16) << 32
        return [~(base + index) for index in range(self.stop - self.start)]


Images = tuple[ImageSpan, ...]


def until(images: Images, count: int) -> Images:
    """Return the images that are whole within the first `count` tokens."""
    return tuple(span for span in images if span.stop <= count) if images else ()


def between(images: Images, start: int, stop: int) -> Images:
    """Return the images that are whole between two indices, in a row that begins at the first."""
    return tuple(span.moved(-start) for span in images if start <= span.start and span.stop <= stop) if images else ()


def floor(images: Images, count: int) -> int:
    """Return `count`, or the index of the first token of the image that a cut after `count` tokens would go through."""
    return next((span.start for span in images if span.start < count < span.stop), count)


def ceiling(images: Images, count: int) -> int:
    """Return `count`, or the index after the last token of the image that a cut after `count` tokens would go through."""
    return next((span.stop for span in images if span.start < count < span.stop), count)


def offset(images: Images, index: int) -> int:
    """Return by how much the positions of tokens from `index` on differ from their indices, by the images before it."""
    return sum(span.shift for span in images if span.stop <= index)


def keyed(images: Images, token_ids: Sequence[int]) -> list[int]:
    """Return ids in which those of images are replaced by their `keys`, as a key of keys and values."""
    found = [*token_ids]
    for span in images:
        if span.stop <= len(found):
            found[span.start : span.stop] = span.keys
    return found


def shown(images: Images, parts: list[bytes]) -> list[bytes]:
    """Return what each token contributes to the text of a row, `parts`, in which the last token of an image writes `<image>`."""
    for span in images:
        parts[span.start : span.stop] = [b""] * (span.stop - span.start - 1) + [PLACEHOLDER.encode()]
    return parts
