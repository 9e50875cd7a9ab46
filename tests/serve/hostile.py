"""`spoiled`: a request of a client in which some values are others than they should be, as JSON text."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any


def _deep(depth: int, value: Any = None) -> Any:
    for _ in range(depth):
        value = {"items": value} if depth % 2 else [value]
    return value


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, -(2**63), 10**400, 0.5, -0.0, 1e308, 5e-324, float("inf"), float("nan")),
    *("", "a", "\ud800", "a\udfffb", "\x00", "\U0010ffff\ufdd0", "9" * 5_000, "<|im_end|>", "(", "\\", "{", "start: start", "%s{}{0}"),
    *("x" * 20_000, "٣", "²", "9" * 18, "-1", "null", "[" * 5_000, "${a}", "{{ a | b }}", "".join(map(chr, range(0xFDD0, 0xFDF0)))),
    *([], {}, [None], [[]], [{}], {"": None}, {"\ud800": 1}, {"a": {"\udc00": "\ud800"}}, ["\ud800"], {"9" * 5_000: 1}, {"type": []}),
    *({"$ref": "#"}, {"type": {"a": 1}}, {"$ref": "\ud800"}, {"type": "message", "content": 3}, {"type": "\ud800"}, [1e308, 10**30], True),
    *(_deep(90), _deep(91), _deep(900), _deep(901), {"pattern": "(?:a|\\2)"}, {"minLength": 10**30}, {"multipleOf": 5e-324}),
]
NAMES = ["type", "name", "content", "model", "", "\ud800", "__class__", "self", "x" * 3_000, "a/b~c", "template", "strict", "$ref", "input"]


TEXTS = [*map(json.dumps, VALUES)]  # with NaN, and lone surrogates as escapes


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place inside of a value, as its holder and its key."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def spoiled(body: dict[str, Any], fields: Sequence[str], rng: random.Random) -> str:
    """A request in which some places, or fields, have a hostile value; these are marks until it is text, as some are nested deeply."""
    body = copy.deepcopy(body)
    marks = rng.sample(range(len(TEXTS)), rng.choice([1, 1, 2]))
    for index in marks:
        if fields and rng.random() < 0.4:
            body[rng.choice(fields)] = f"@{index}@"
            continue
        holder, key = rng.choice(list(_places(body)) or [(body, "x")])
        holder[rng.choice(NAMES) if isinstance(holder, dict) and rng.random() < 0.2 else key] = f"@{index}@"
    text = json.dumps(body)
    for index in marks:
        text = text.replace(f'"@{index}@"', TEXTS[index])
    return text
