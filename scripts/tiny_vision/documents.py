"""Training documents: a picture of a receipt with what stands in its patches, and what may be asked about it.

A document is one image and several branches, each of which sees the image and itself: a record, single facts, and the text of the picture.
"""

import json
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from outlines_cont.cli.receipts import HEIGHT, MAX_LINES, ROW_HEIGHT, WIDTH, Placed, Receipt, ReceiptWriter, Style
from scripts.tiny_vision.fonts import Fonts

PATCH_HEIGHT, PATCH_WIDTH = ROW_HEIGHT, 8
ROWS, COLUMNS = HEIGHT // PATCH_HEIGHT, WIDTH // PATCH_WIDTH
NUM_SLOTS = 3
"""Characters of a patch that are told apart."""
CHARACTERS = "".join(map(chr, range(32, 127))) + "€£"
NUM_CLASSES = len(CHARACTERS) + 1
"""Class 0 is no character."""
_CLASSES = {character: number for number, character in enumerate(CHARACTERS, 1)}
NAMES = {
    "shop": ("shop", "store", "merchant"),
    "place": ("place", "city"),
    "date": ("date",),
    "total": ("total", "amount"),
    "currency": ("currency",),
    "items": ("items",),
}
"""The names that a field may have in a record; a question has them with a capital."""
FIELD_SHARE, ITEMS_SHARE = 0.85, 0.3
PREFIXES = ("", "", "", "Read this receipt: ", "Receipt: ", "Receipt ")


@dataclass(slots=True)
class Document:
    """A receipt, its picture, and branches.

    Attributes:
        picture: (HEIGHT, WIDTH) uint8.
        slots: (ROWS * COLUMNS, NUM_SLOTS) int64, the classes of the characters whose middles are in each patch.
        prefix: what stands before the image.
        branches: (appended text, generated text).
    """

    picture: NDArray[np.uint8]
    slots: NDArray[np.int64]
    prefix: str
    branches: list[tuple[str, str]]


class DocumentSource:
    """Draws documents.

    Args:
        words: Of the receipts.
        fonts: Of the pictures.
        rng: Of everything.
    """

    def __init__(self, words: Any, fonts: Fonts, rng: random.Random) -> None:
        self._words, self._writer, self._fonts, self._rng = words, ReceiptWriter(words), fonts, rng

    def draw_receipt(self) -> tuple[Receipt, list[Placed], Style]:
        """Return a receipt and how it is drawn."""
        while True:
            font, signs = self._fonts.draw(self._rng)
            receipt = self._writer.write(self._rng, signs)
            style = Style.drawn(self._rng, len(receipt.lines), font)
            placed = style.place(receipt.lines)
            if placed is not None:
                return receipt, placed, style

    def draw_dense(self) -> Document:
        """Return a picture that is full of words and numbers, with no branches: twice as many characters for the tower to learn."""
        rng = self._rng
        while True:
            font, signs = self._fonts.draw(rng)
            length = rng.randint(15, 25)
            lines = [(self._full_line(length, signs),) for _ in range(MAX_LINES)]
            style = Style.drawn(rng, len(lines), font)
            if (placed := style.place(lines)) is not None:
                return Document(pixels(style.draw_placed(placed)), slots_of(placed), "", [])

    def _full_line(self, length: int, signs: str) -> str:
        rng, text = self._rng, ""
        while len(text) < length:
            shape = rng.random()
            if shape < 0.45:
                part = rng.choice((self._words.shop, self._words.place, self._words.item))(rng)
            elif shape < 0.9:
                receipt = self._writer.write(rng, signs)
                part = " ".join(rng.choice(receipt.lines[2:]))
            else:
                part = "".join(rng.choices(CHARACTERS[:95], k=rng.randint(2, 8))).strip()
            text += (" " if text else "") + (part.upper() if rng.random() < 0.1 else part)
        return text[:length].strip() or "0"

    def draw(self, with_picture: bool = True) -> Document:
        """Return a document; without its picture it is drawn in a fiftieth of the time."""
        receipt, placed, style = self.draw_receipt()
        picture = pixels(style.draw_placed(placed)) if with_picture else np.zeros((HEIGHT, WIDTH), np.uint8)
        return Document(picture, slots_of(placed), self._rng.choice(PREFIXES), branches(receipt, self._rng))


def pixels(image: Any) -> NDArray[np.uint8]:
    """Return (HEIGHT, WIDTH) greys of a picture, scaled as the processor scales it."""
    if image.size != (WIDTH, HEIGHT):
        image = image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    return np.asarray(image)[:, :, 0]


def slots_of(placed: list[Placed]) -> NDArray[np.int64]:
    """Return what stands in each patch; see `Document`."""
    slots = np.zeros((ROWS * COLUMNS, NUM_SLOTS), np.int64)
    count = np.zeros(ROWS * COLUMNS, np.int64)
    for one in placed:
        row = min(max(int((one.y - 4.0) // PATCH_HEIGHT), 0), ROWS - 1)
        for character, left, right in zip(one.text, (0.0, *one.ends), one.ends, strict=False):
            column = min(max(int((one.x + (left + right) / 2) // PATCH_WIDTH), 0), COLUMNS - 1)
            patch = row * COLUMNS + column
            if count[patch] < NUM_SLOTS:
                slots[patch, count[patch]] = _CLASSES[character]
                count[patch] += 1
    return slots


def branches(receipt: Receipt, rng: random.Random) -> list[tuple[str, str]]:
    """Return a record of random fields in random order, two facts, and all of the text."""
    facts = receipt.record
    found = [("\nRecord: ", record_text(facts, *drawn_fields(rng)))]
    for key in rng.sample(("shop", "place", "date", "total", "currency"), 2):
        found.append((f"\n{rng.choice(NAMES[key]).capitalize()}: ", facts[key]))
    found.append(("\nText: ", "\n".join(" ".join(line) for line in receipt.lines)))
    return found


def drawn_fields(rng: random.Random) -> tuple[list[str], list[str]]:
    """Return keys of facts in random order, often the usual one, and their names."""
    keys = [key for key in NAMES if rng.random() < (ITEMS_SHARE if key == "items" else FIELD_SHARE)] or ["total"]
    if rng.random() < 0.6:
        rng.shuffle(keys)
    return keys, [NAMES[key][0] if rng.random() < 0.6 else rng.choice(NAMES[key]) for key in keys]


def record_text(facts: dict[str, Any], keys: list[str], names: list[str]) -> str:
    """Return a record as compact JSON; amounts are numbers as they are spelled."""
    parts = []
    for key, name in zip(keys, names, strict=True):
        if key == "items":
            goods = (f'{{"name":{json.dumps(thing)},"price":{price}}}' for thing, price in facts["items"])
            parts.append(f'"{name}":[{",".join(goods)}]')
        else:
            parts.append(f'"{name}":{facts[key] if key == "total" else json.dumps(facts[key])}')
    return "{" + ",".join(parts) + "}"
