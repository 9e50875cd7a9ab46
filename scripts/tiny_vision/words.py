"""`ReceiptWords`: names of shops, places and things for the training of the bundled vision model, in ASCII; a part is held out."""

import random

from outlines_cont.cli.receipts import DemoWords
from scripts.tiny.words import ADJECTIVES, CITIES, FIRST_NAMES, LAST_NAMES, NOUNS, WordSource, is_held_out, part_of

KINDS = (
    *(
        "Bakery",
        "Market",
        "Books",
        "Cafe",
        "Pharmacy",
        "Hardware",
        "Foods",
        "Bistro",
        "Garden",
        "Toys",
        "Shoes",
        "Flowers",
    ),
    *("Kiosk", "Deli", "Bar", "Store", "Shop", "Grocer", "Tea House", "Kitchen", "Cycles", "Wines", "Optics", "Crafts"),
)
GOODS = (
    *(
        "bread",
        "milk",
        "coffee",
        "tea",
        "butter",
        "cheese",
        "apples",
        "pears",
        "rice",
        "pasta",
        "sugar",
        "salt",
        "honey",
        "eggs",
    ),
    *(
        "soap",
        "stamps",
        "batteries",
        "juice",
        "water",
        "soup",
        "salad",
        "cake",
        "cookies",
        "ham",
        "onions",
        "carrots",
        "paper",
    ),
    *(
        "candles",
        "roses",
        "magazine",
        "novel",
        "shampoo",
        "towel",
        "gloves",
        "socks",
        "pizza",
        "sandwich",
        "lemonade",
        "olive oil",
    ),
)
_MADE_UP_SHARE = 0.5
_DEMO = {
    word.lower() for name in ("NAMES", "PLACES", "THINGS") for text in getattr(DemoWords, name) for word in text.split()
}


class ReceiptWords:
    """Words of one part; names and places of the demo are in neither.

    Args:
        held_out: The part.
    """

    def __init__(self, held_out: bool) -> None:
        self._source = WordSource(held_out)
        self._names = [
            word
            for word in part_of((*FIRST_NAMES, *LAST_NAMES), held_out)
            if word.isascii() and word.lower() not in _DEMO
        ]
        self._places = [
            city
            for city in part_of(CITIES, held_out)
            if city.isascii() and len(city) <= 14 and city.lower() not in _DEMO
        ]

    def shop(self, rng: random.Random) -> str:
        """Return the name of a shop: a name and a kind, in several forms."""
        name, kind, shape = self._name(rng), rng.choice(KINDS), rng.random()
        if shape < 0.6:
            return f"{name} {kind}"
        if shape < 0.7:
            return f"{kind} {name}"
        if shape < 0.78:
            return f"{name}'s {kind}"
        if shape < 0.86:
            return f"{name} & {self._name(rng)}"
        return f"{name} {self._name(rng)}" if shape < 0.95 else name

    def place(self, rng: random.Random) -> str:
        """Return the name of a place."""
        return rng.choice(self._places) if rng.random() > _MADE_UP_SHARE else self._made_up(rng).capitalize()

    def item(self, rng: random.Random) -> str:
        """Return the name of a thing, with an adjective now and then."""
        shape = rng.random()
        noun = self._made_up(rng) if shape < 0.4 else rng.choice(GOODS) if shape < 0.7 else rng.choice(NOUNS)
        if rng.random() < 0.2:
            noun = f"{rng.choice(ADJECTIVES)} {noun}"
        return noun.capitalize() if rng.random() < 0.85 else noun

    def _name(self, rng: random.Random) -> str:
        return rng.choice(self._names) if rng.random() > _MADE_UP_SHARE else self._made_up(rng).capitalize()

    def _made_up(self, rng: random.Random) -> str:
        while True:
            word = self._source.made_up(rng, rng.choice((2, 2, 3)))
            if word.isascii() and 3 <= len(word) <= 10 and word not in _DEMO:
                return word


def is_of_training(word: str) -> bool:
    """Return whether training may draw a word."""
    return not is_held_out(word) and word.lower() not in _DEMO
