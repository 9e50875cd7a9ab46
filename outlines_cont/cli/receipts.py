"""`ReceiptWriter` makes up receipts: their lines, and the record that they tell; `Style.draw` draws the lines as a picture with pillow.

The receipts of `outlines-cont demo --images` are drawn so, and those that the bundled vision model was trained on (`scripts/tiny_vision`,
with other words and more fonts). Pillow is imported when the first picture is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol

WIDTH, HEIGHT = 160, 128
"""Pixels of a picture, as the bundled vision model takes it."""
MAX_LINES = 7
CURRENCIES = {"EUR": "€", "USD": "$", "GBP": "£", "CHF": ""}
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
ROW_HEIGHT = 16
"""Pixels from line to line: lines stand in rows of this height, a little above or below their middle."""
_MARGIN = 3
_SHIFT = 2
SIZES = (11, 12, 13)
SMALLEST = 10
Line = tuple[str, ...]
"""One text, or one at the left and one at the right edge."""


class Words(Protocol):
    """Draws the words of receipts."""

    def shop(self, rng: random.Random) -> str:
        """Return the name of a shop."""

    def place(self, rng: random.Random) -> str:
        """Return the name of a place."""

    def item(self, rng: random.Random) -> str:
        """Return the name of a thing."""


class DemoWords:
    """Words that the bundled vision model has not seen in training."""

    NAMES = (
        "Harbour",
        "Fennimore",
        "Old Mill",
        "Quillon",
        "Bellwood",
        "Marisol",
        "Tern",
        "Kestrel",
        "Odell",
        "Juniper",
        "Vespera",
        "Northgate",
    )
    KINDS = ("Bakery", "Books", "Cafe", "Market", "Deli", "Toys", "Garden", "Pharmacy")
    PLACES = (
        "Evora",
        "Sligo",
        "Tartu",
        "Ravenna",
        "Kotka",
        "Ostend",
        "Zadar",
        "Leoben",
        "Tralee",
        "Girona",
        "Ulm",
        "Viborg",
    )
    THINGS = (
        "Walnut loaf",
        "Espresso",
        "Postcards",
        "Tulips",
        "Ginger tea",
        "Crayons",
        "Olives",
        "Thyme",
        "Almanac",
        "Plasters",
        "Marmalade",
        "Twine",
    )

    def shop(self, rng: random.Random) -> str:
        """Return the name of a shop."""
        return f"{rng.choice(self.NAMES)} {rng.choice(self.KINDS)}"

    def place(self, rng: random.Random) -> str:
        """Return the name of a place."""
        return rng.choice(self.PLACES)

    def item(self, rng: random.Random) -> str:
        """Return the name of a thing."""
        return rng.choice(self.THINGS)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a receipt says.

    Attributes:
        lines: from top to bottom.
        record: `shop`, `place`, `date` (ISO), `total` (as it is spelled, with a point), `currency` (its code), and `items`: pairs of a
            name and a price.
    """

    lines: tuple[Line, ...]
    record: dict[str, Any]


class ReceiptWriter:
    """Makes up receipts of at most `MAX_LINES` lines.

    Args:
        words: where names come from.
    """

    def __init__(self, words: Words) -> None:
        self._words = words

    def write(self, rng: random.Random, signs: str = "$") -> Receipt:
        """Return a receipt; `signs` are those of currencies that the font has."""
        shop, place = self._words.shop(rng), self._words.place(rng)
        if rng.random() < 0.15:
            shop = shop.upper()
        year, month, day = rng.randint(2019, 2032), rng.randint(1, 12), rng.randint(1, 28)
        items = [
            (self._words.item(rng), rng.choice((1, 1, 10)) * rng.randint(20, 999)) for _ in range(rng.choice((1, 1, 2)))
        ]
        total, currency = sum(cents for _, cents in items), rng.choice((*CURRENCIES,))
        comma = "," if rng.random() < 0.2 else "."
        lines: list[Line] = [(shop,), (_place_line(rng, place),), _date_line(rng, year, month, day)]
        goods = [(name, _money(cents, comma)) for name, cents in items]
        if rng.random() < 0.2 and len(lines) + len(goods) < MAX_LINES - 1:
            lines.insert(rng.choice((2, 3)), _number_line(rng))
        lines += [*goods, _total_line(rng, _money(total, comma), currency, signs)]
        if rng.random() < 0.4 and len(lines) < MAX_LINES:
            lines.append(_last_line(rng, total, comma))
        record = {
            "shop": shop,
            "place": place,
            "date": f"{year}-{month:02}-{day:02}",
            "total": _money(total, "."),
            "currency": currency,
            "items": [(name, _money(cents, ".")) for name, cents in items],
        }
        return Receipt(tuple(lines), record)


def _money(cents: int, point: str) -> str:
    return f"{cents // 100}{point}{cents % 100:02}"


def _place_line(rng: random.Random, place: str) -> str:
    shape = rng.random()
    return (
        place
        if shape < 0.6
        else f"{rng.randint(1000, 99999)} {place}"
        if shape < 0.8
        else f"{rng.randint(1, 99)} Main St, {place}"
    )


def _date_line(rng: random.Random, year: int, month: int, day: int) -> Line:
    name = MONTHS[month - 1]
    date = rng.choice(
        (
            *(f"{year}-{month:02}-{day:02}", f"{day:02}.{month:02}.{year}", f"{day:02}/{month:02}/{year}"),
            *(f"{day} {name} {year}", f"{name} {day}, {year}"),
        )
    )
    shape = rng.random()
    if shape < 0.4:
        return (date,)
    if shape < 0.7:
        return (f"{rng.choice(('Date', 'Date:'))} {date}",)
    return (date, f"{rng.randint(7, 22):02}:{rng.randint(0, 59):02}")


def _number_line(rng: random.Random) -> Line:
    return (f"{rng.choice(('No', 'Receipt', 'Till', '#'))} {rng.randint(1, 99999)}",)


def _total_line(rng: random.Random, amount: str, currency: str, signs: str) -> Line:
    name = rng.choice(("TOTAL", "Total", "Sum", "SUM", "Amount due", "To pay"))
    shape, sign = rng.random(), CURRENCIES[currency]
    if sign and sign in signs and shape < 0.35:
        return name, f"{sign}{amount}"
    return (f"{name} {currency}", amount) if shape < 0.7 else (name, f"{amount} {currency}")


def _last_line(rng: random.Random, total: int, point: str) -> Line:
    return rng.choice(
        (
            ("Cash", _money(total + rng.randint(1, 900), point)),
            (f"Card **{rng.randint(1000, 9999)}",),
            (f"VAT {rng.choice((5, 7, 19, 20, 21))}%", _money(max(total // 6, 1), point)),
            (rng.choice(("Thank you!", "Please come again", "Goodbye")),),
        )
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """A text on a picture: the left end of its baseline in pixels, the ends of its characters from there, and its row.

    Attributes:
        text: the text.
        x: the left end.
        y: the baseline.
        size: of the font.
        ends: the right end of every character, from `x`.
    """

    text: str
    x: int
    y: int
    size: int
    ends: tuple[float, ...]


@lru_cache(maxsize=64)
def default_font(size: float) -> Any:
    """Return the font that pillow brings, which has no sign of the euro or the pound."""
    from PIL import ImageFont

    return ImageFont.load_default(size)


@dataclass(frozen=True, slots=True)
class Style:
    """How a receipt is drawn. Lengths are pixels.

    Attributes:
        font: returns a font of pillow of a size.
        size: of the font; it becomes smaller if a line would not fit.
        top: the middle of the first line.
        is_centred: whether single texts are in the middle.
        paper: grey of the paper, 0 to 255.
        ink: grey of the ink.
        noise: standard deviation of the noise, in grey levels.
        seed: of the noise.
    """

    font: Callable[[float], Any] = default_font
    size: int = 12
    top: int = 8
    is_centred: bool = False
    paper: int = 250
    ink: int = 20
    noise: float = 4.0
    seed: int = 0

    @classmethod
    def drawn(cls, rng: random.Random, num_lines: int, font: Callable[[float], Any] = default_font) -> Style:
        """Return a random style for some lines, at most eight: sizes, places, greys, noise."""
        paper, first = rng.randint(200, 255), rng.randint(0, HEIGHT // ROW_HEIGHT - num_lines)
        return cls(
            font=font,
            size=rng.choice(SIZES),
            top=ROW_HEIGHT * first + ROW_HEIGHT // 2 + rng.randint(-_SHIFT, _SHIFT),
            is_centred=rng.random() < 0.3,
            paper=paper,
            ink=rng.randint(0, paper - 140),
            noise=rng.uniform(0.0, 8.0),
            seed=rng.getrandbits(32),
        )

    def place(self, lines: Sequence[Line]) -> list[Placed] | None:
        """Return where the texts stand; None if a line does not fit at a legible size."""
        room = WIDTH - 2 * _MARGIN
        for size in range(self.size, SMALLEST - 1, -1):
            length = self.font(size).getlength
            share = {character: length(character) for line in lines for text in line for character in text}
            if max(sum(share[one] for text in line for one in text) + 8 * (len(line) - 1) for line in lines) <= room:
                break
        else:
            return None
        placed = []
        for index, line in enumerate(lines):
            baseline = self.top + index * ROW_HEIGHT + round(0.35 * size)
            for place, text in enumerate(line):
                ends = tuple(accumulate(share[character] for character in text))
                gap = (room - ends[-1]) * (1 if place else 0.5 if self.is_centred and len(line) == 1 else 0)
                placed.append(Placed(text, _MARGIN + int(gap), baseline, size, ends))
        return placed

    def draw(self, lines: Sequence[Line]) -> Any:
        """Return a picture of the lines, an image of PIL in RGB; `ValueError` if a line does not fit. Cost: about 2 ms."""
        placed = self.place(lines)
        if placed is None:
            raise ValueError(
                f"expected lines of which each fits on {WIDTH} pixels at a size of {SMALLEST}, got {lines!r}"
            )
        return self.draw_placed(placed)

    def draw_placed(self, placed: Sequence[Placed]) -> Any:
        """Return a picture of texts in their places."""
        import numpy as np
        from PIL import Image, ImageDraw

        image = Image.new("L", (WIDTH, HEIGHT), self.paper)
        draw = ImageDraw.Draw(image)
        for one in placed:
            draw.text((one.x, one.y), one.text, fill=self.ink, font=self.font(one.size), anchor="ls")
        grain = np.random.default_rng(self.seed).standard_normal((HEIGHT, WIDTH), np.float32)
        grain = np.asarray(image) + np.float32(self.noise) * grain
        return Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8)).convert("RGB")


def demo_receipts(seed: int, count: int) -> list[tuple[Receipt, Any]]:
    """Return receipts of words that the bundled vision model does not know, with their pictures, in pillow's own font."""
    rng, writer = random.Random(f"receipts {seed}"), ReceiptWriter(DemoWords())
    found: list[tuple[Receipt, Any]] = []
    while len(found) < count:
        receipt = writer.write(rng)
        style = Style.drawn(rng, len(receipt.lines))
        if (placed := style.place(receipt.lines)) is not None:
            found.append((receipt, style.draw_placed(placed)))
    return found
