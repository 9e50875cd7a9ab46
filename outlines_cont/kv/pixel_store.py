"""`Pixels`: the tensors that a network takes for one image, as its processor made them; `PixelStore`: those of one model, of which the
least recently used are dropped to stay within a budget of bytes. A state whose keys and values are gone sees its images again from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch

from fsm.process_fork import lock
from outlines_cont.checks import check, is_int
from outlines_cont.immutable import Immutable


class Pixels:
    """The tensors of one image, by the names under which the forward of a network takes them.

    Attributes:
        digest: 32 hexadecimal digits: a SHA-256, shortened, of the tensors and of the ids that stand for them.
        inputs: the tensors, on the CPU; None once they were dropped.
        picture: a small picture for people, as a `data:` URL of a JPEG; empty if it is not known, as of an image from a file of a state.
    """

    __slots__ = ("__weakref__", "digest", "inputs", "picture")

    def __init__(self, digest: str, inputs: Mapping[str, torch.Tensor] | None, picture: str = "") -> None:
        self.digest = digest
        self.inputs = inputs
        self.picture = picture

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors; 0 once they were dropped."""
        return 0 if self.inputs is None else sum(tensor.nbytes for tensor in self.inputs.values())


@dataclass(frozen=True, slots=True, eq=False)
class ReadImage(Immutable):
    """An image as a network takes it; equal where ids and pixels are.

    Attributes:
        token_ids: the ids that stand for it in a row.
        pixels: its tensors.
        shift: how much less, as a negative number, positions grow over it than indices do.
    """

    token_ids: tuple[int, ...]
    pixels: Pixels
    shift: int = 0

    def __eq__(self, other: object) -> bool:
        return self.pixels.digest == other.pixels.digest if isinstance(other, ReadImage) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.pixels.digest)


def digest_of(token_ids: Sequence[int], inputs: Mapping[str, torch.Tensor]) -> str:
    """Return 32 hexadecimal digits that tell an image from others: by its ids and the values of its tensors. Cost: a pass over them."""
    digest = hashlib.sha256(repr([*token_ids]).encode())
    for name in sorted(inputs):
        tensor = inputs[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


class PixelStore:
    """The pixels of the images of one model, each once, by their digests, within a budget. They live as long as a state has them.

    Args:
        max_bytes: the most bytes of all together; the least recently used are dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._lock = lock()
        self._held: WeakValueDictionary[str, Pixels] = WeakValueDictionary()
        self._last_use: dict[str, int] = {}
        self._clock = 0
        self.max_bytes = max_bytes

    @property
    def max_bytes(self) -> int:
        """The most bytes of all pixels together. Pixels that are over a smaller one are dropped at once."""
        return self._max_bytes

    @max_bytes.setter
    def max_bytes(self, value: int) -> None:
        self._max_bytes = check("max_bytes", value, is_int(value, 0), "a number of bytes, 0 or more,")
        with self._lock:
            self._drop_oldest()

    @property
    def nbytes(self) -> int:
        """The bytes of all pixels that are kept."""
        return sum(pixels.nbytes for pixels in list(self._held.values()))

    def __len__(self) -> int:
        """Return how many images have their pixels."""
        return sum(pixels.inputs is not None for pixels in list(self._held.values()))

    def put(self, digest: str, inputs: Mapping[str, torch.Tensor], picture: str = "") -> Pixels:
        """Return the pixels with a digest: those that are known, which get their tensors back if these were dropped, or new ones."""
        with self._lock:
            pixels = self._held.get(digest)
            if pixels is None:
                pixels = self._held[digest] = Pixels(digest, inputs, picture)
            elif pixels.inputs is None:
                pixels.inputs = inputs
            pixels.picture = pixels.picture or picture
            self._touch(digest)
            self._drop_oldest(but=digest)
            return pixels

    def use(self, pixels: Pixels) -> Mapping[str, torch.Tensor] | None:
        """Return the tensors of an image, which counts as a use; None where they were dropped."""
        with self._lock:
            self._touch(pixels.digest)
            return pixels.inputs

    def trim(self) -> None:
        """Drop the least recently used pixels that are over the budget, the newest ones among them."""
        with self._lock:
            self._drop_oldest()

    def _touch(self, digest: str) -> None:
        self._clock += 1
        self._last_use[digest] = self._clock

    def _drop_oldest(self, but: str = "") -> None:
        """Drop pixels by least recent use until the others are within the budget; `but` is needed now and stays."""
        held = dict(self._held)
        self._last_use = {digest: use for digest, use in self._last_use.items() if digest in held}
        total = sum(pixels.nbytes for pixels in held.values())
        for digest in sorted(held, key=lambda digest: self._last_use.get(digest, 0)):
            if total <= self._max_bytes:
                return
            if digest != but:
                total -= held[digest].nbytes
                held[digest].inputs = None
