"""Random languages: patterns, pairs of patterns, schemas and grammars, as values that can be printed, built, and made smaller.

They are drawn by a `random.Random`, so that a seed repeats them. Most compile; what is refused is for the caller to count.
"""

from __future__ import annotations

import json
import re
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType
from typing import Any

import jsonschema_rs
import lark

from fsm import Expression, grammar, json_schema, regex

KINDS = (
    ["regex"] * 4 + ["both", "both, then", "without"] + ["schema"] * 3 + ["schema in any order", "grammar", "grammar", "grammar, dynamic"]
)
_ATOMS = [*"abz1_ -.é", "yes", "no ", "end", r"\n", '"', ".", ".", r"\w", r"\w", r"\W", r"\d", r"\s", r"\S", "[^b]", "[a-z]", "[a-z ]",
          r"[\s\S]", r"[^\W\d]", "[0-9a-f]", r"\.", "[^\"\\\\]", r"\x00", "[ab]", r"\D",
          r"(?:\S+\s+)", r"(?:\w+\W*)", "(?:[a-z]+,)", "(?:a|aa)", "(?:ab?)"]  # fmt: skip
_COUNTS = ["*", "*", "+", "?", "*?", "+?", "??", "{2}", "{0,3}", "{1,4}", "{2,}", "{1,3}?", "{0,20}", "{3,9}"]
_ASSERTIONS = [r"\b", r"\b", r"\B", "(?={})", "(?!{})", "(?<={})", "(?<!{})", "(?!.*{})"]
_LOOPS = [".{0,9}", ".{3,}", r"[ -~\n]{4,20}", "[a-z ]{2,6}", "[^q]*", '[^"]{1,30}', r"\w{0,5}", r"[\s\S]{2,300}"]
_BEHIND = ["a", "b", " ", r"\w", "[^a]", "ab", r"\d"]


def pattern(random: Random, depth: int = 2) -> str:
    """A regular expression with lookarounds, loops and alternatives."""
    return "".join(_part(random, depth) for _ in range(random.randint(1, 4)))


def _part(random: Random, depth: int) -> str:
    drawn = random.random()
    if drawn < 0.18:
        form = random.choice(_ASSERTIONS)
        if "<" in form:
            return form.replace("{}", random.choice(_BEHIND))
        return form.replace("{}", pattern(random, 0)) if "{}" in form else form
    if depth and drawn < 0.3:
        return f"(?:{'|'.join(pattern(random, depth - 1) for _ in range(random.randint(1, 3)))})" + _count(random)
    return random.choice(_ATOMS) + _count(random)


def _count(random: Random) -> str:
    return random.choice(_COUNTS) if random.random() < 0.45 else ""


_NAMES = ["a", "b", "ab", "1", "x-a", "", "é"]
_PATTERNS = ["^x-", "a", "^[ab]*$", r"\bb", "^(?!a)", r"^\w+( \w+){0,3}$", "b$", r"^[a-z][a-z0-9_]{0,8}$", "^a?$", r"\d{2,3}", r"^\S+ \S+$"]
_CONSTANTS: list[Any] = ["a", "b", "ab", "", 1, 2.5, None, True, [], {}, [1], {"a": 1}]


def schema(random: Random, depth: int = 3) -> Any:
    """A JSON schema, mostly of one type."""
    if not depth or random.random() < 0.1:
        return random.choice([True, {"type": "string"}, {"type": "integer"}, {"type": "null"}, {"enum": ["a", "ab", 1]}, {}])
    make: Callable[[Random, int], Any] = random.choice([_object, _object, _string, _number, _array, _combination, _combination])
    return make(random, depth - 1)


def _some(random: Random, words: dict[str, Callable[[], Any]], most: int = 3) -> dict[str, Any]:
    return {word: words[word]() for word in random.sample(sorted(words), random.randint(0, min(most, len(words))))}


def _object(random: Random, depth: int) -> dict[str, Any]:
    def below() -> Any:
        return schema(random, depth)

    def names() -> list[str]:
        return random.sample(_NAMES, random.randint(1, 3))

    words: dict[str, Callable[[], Any]] = {
        "properties": lambda: {name: below() for name in names()},
        "required": names,
        "additionalProperties": lambda: random.choice([False, below()]),
        "patternProperties": lambda: {random.choice(_PATTERNS): below()},
        "propertyNames": lambda: random.choice([_string(random, 0), {"enum": names()}, {"not": {"enum": names()}}]),
        "minProperties": lambda: random.randint(0, 2),
        "maxProperties": lambda: random.randint(0, 4),
        "dependentRequired": lambda: {random.choice(_NAMES): names()},
        "not": lambda: _object(random, 0) if depth else {"required": names()},
    }
    return {"type": "object", **_some(random, words, 4)}


def _string(random: Random, depth: int) -> dict[str, Any]:
    words: dict[str, Callable[[], Any]] = {
        "pattern": lambda: random.choice([random.choice(_PATTERNS), pattern(random, 1)]),
        "minLength": lambda: random.randint(0, 4),
        "maxLength": lambda: random.choice([4, 5, 9, 30, 200]),
        "not": lambda: random.choice([{"pattern": random.choice(_PATTERNS)}, {"enum": ["a", "ab"]}, {"minLength": 3}]),
        "enum": lambda: random.sample(["a", "ab", "b 1", "é", "", '"'], 3),
    }
    return {"type": "string", **_some(random, words)}


def _number(random: Random, depth: int) -> dict[str, Any]:
    words: dict[str, Callable[[], Any]] = {
        "minimum": lambda: random.choice([0, -3, 1.5, 17]),
        "maximum": lambda: random.choice([20, 99, 1000, 31.5]),
        "multipleOf": lambda: random.choice([1, 2, 3, 7, 25]),
        "not": lambda: {"enum": [1, 2, 10]},
    }
    return {"type": random.choice(["integer", "integer", "number"]), **_some(random, words)}


def _array(random: Random, depth: int) -> dict[str, Any]:
    words: dict[str, Callable[[], Any]] = {
        "items": lambda: schema(random, depth),
        "prefixItems": lambda: [schema(random, depth) for _ in range(random.randint(1, 2))],
        "contains": lambda: schema(random, 0),
        "minItems": lambda: random.randint(0, 2),
        "maxItems": lambda: random.randint(0, 5),
        "not": lambda: {"items": schema(random, 0)},
    }
    return {"type": "array", **_some(random, words)}


def _combination(random: Random, depth: int) -> dict[str, Any]:
    def several() -> list[Any]:
        return [schema(random, depth) for _ in range(random.randint(1, 3))]

    forms: list[Callable[[], dict[str, Any]]] = [
        lambda: {random.choice(["anyOf", "allOf", "oneOf"]): several()},
        lambda: {"anyOf": several(), "not": schema(random, depth)},
        lambda: {"type": "object", "if": _object(random, 0), "then": _object(random, depth), "else": _object(random, depth)},
        lambda: {"enum": random.sample(_CONSTANTS, 3)},
        lambda: {"properties": {"a": {"$ref": "#"}}, "type": ["object", "null"], **_some(random, {"required": lambda: ["b"]})},
    ]  # fmt: skip
    return random.choice(forms)()


_TERMINALS = ["/[a-z]+/", "/[a-z]/", '"if"', '"i"', '"a"', '"ab"', "/a+b?/", "/[0-9]+/", r"/[0-9]+(\.[0-9]+)?/", '"."', '".."',
              '"=="', '"="', r"/\w+/", '/"[^"]*"/', '" "', "/[^a ]+/", r"/[a-z]+\b/", "/(?!if)[a-z]+/", r"/\/\*.*?\*\//",
              "/[a-z]{2,5}/", '"IF"i']  # fmt: skip


def grammar_text(random: Random) -> str:
    """A grammar in the language of Lark, of terminals that overlap."""
    terminals = "ABCDE"[: random.randint(1, 5)]
    rules = "xyz"[: random.randint(0, 3)]
    names = [*terminals, *terminals, *rules]

    def sequence() -> str:
        found = []
        for _ in range(random.randint(1, 3)):
            name = random.choice([*names, random.choice(['"if"', '";"', '"("'])])
            found.append(f"[{name}]" if random.random() < 0.1 else name + random.choice(["", "", "", "?", "*", "+", "~1..2"]))
        return " ".join(found)

    lines = [f"{rule}: {' | '.join(sequence() for _ in range(random.randint(1, 3)))}" for rule in ("start", *rules)]
    lines += [f"{name}{random.choice(['', '', '.2'])}: {random.choice(_TERMINALS)}" for name in terminals]
    return "\n".join([*lines, *['%ignore " "'] * (random.random() < 0.4)]) + "\n"


def draw(random: Random) -> tuple[str, Any]:
    """A kind, and the source of a language of that kind."""
    kind = random.choice(KINDS)
    if kind.startswith("grammar"):
        return kind, grammar_text(random)
    if kind.startswith("schema"):
        return kind, schema(random)
    if kind == "regex":
        return kind, pattern(random)
    second = random.choice(_LOOPS) if random.random() < 0.6 else pattern(random)
    return kind, [pattern(random), second] + [pattern(random, 1)] * (kind == "both, then")


def build(kind: str, source: Any) -> Expression:
    """The language; raises what the compiler raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind.startswith("grammar"):
            return grammar(source, lexer="dynamic" if kind.endswith("dynamic") else "contextual")
        if kind.startswith("schema"):
            return json_schema(source, key_order="any" if kind.endswith("any order") else "schema", formats="annotate")
        if kind == "regex":
            return regex(source)
        left, right, *rest = map(regex, source)
        return left & ~right if kind == "without" else (left & right) + rest[0] if rest else left & right


def is_valid(kind: str, source: Any, text: str) -> bool | None:
    """Whether a text belongs to the language by another library; None where that cannot tell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _within_a_second():
                if kind == "regex":
                    return re.fullmatch(source, text) is not None
                if kind.startswith("grammar"):
                    lark.Lark(source, lexer="dynamic_complete" if kind.endswith("dynamic") else "dynamic").parse(text)
                    return True
                if kind.startswith("schema"):
                    value = json.loads(text, object_pairs_hook=_object_of)
                    if not text.isascii() and re.search(r"\(\?[=!<].*\\\\[wWdD]", json.dumps(source)):
                        return None  # inside of lookarounds jsonschema-rs reads `\W` by Unicode
                    judged = _with_ascii_boundaries(source)
                    return jsonschema_rs.Draft202012Validator(judged, validate_formats=False).is_valid(value)
                found = [re.fullmatch(one, text) is not None for one in source]
                return None if len(found) > 2 else found[0] and found[1] == (kind == "both")
        except lark.exceptions.UnexpectedInput:
            return False
        except (
            re.error,
            KeyError,
            TimeoutError,
            jsonschema_rs.ValidationError,
            lark.exceptions.LarkError,
            RuntimeError,  # inside of Lark
        ):
            return None


_BOUNDARIES = {
    r"\b": "(?:(?<=[0-9A-Za-z_])(?![0-9A-Za-z_])|(?<![0-9A-Za-z_])(?=[0-9A-Za-z_]))",
    r"\B": "(?:(?<=[0-9A-Za-z_])(?=[0-9A-Za-z_])|(?<![0-9A-Za-z_])(?![0-9A-Za-z_]))",
}


def _with_ascii_boundaries(schema: Any) -> Any:
    """The schema with word boundaries spelled out as ECMA-262 defines them, by ASCII: those of jsonschema-rs are of Unicode."""
    if isinstance(schema, dict):
        return {_with_ascii_boundaries(key): _with_ascii_boundaries(value) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_with_ascii_boundaries(item) for item in schema]
    return re.sub(r"\\.", lambda m: _BOUNDARIES.get(m[0], m[0]), schema) if isinstance(schema, str) else schema


@contextmanager
def _within_a_second() -> Iterator[None]:
    """Raise `TimeoutError` after a second of processor time: that of `re` may grow exponentially."""
    before = signal.signal(signal.SIGVTALRM, _stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _stop(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise KeyError("a key twice")
    return dict(pairs)


def smaller(source: Any) -> Iterator[Any]:
    """Sources with something taken out, larger parts first."""
    if isinstance(source, str):
        size = len(source) // 2
        while size:
            yield from (source[:start] + source[start + size :] for start in range(0, len(source), size))
            size //= 2
    elif isinstance(source, dict):
        yield from (value for value in source.values() if isinstance(value, dict))
        yield from ({key: value for key, value in source.items() if key != left_out} for left_out in source)
        yield from (source | {key: less} for key, value in source.items() for less in smaller(value))
    elif isinstance(source, list):
        yield from (source[:n] + source[n + 1 :] for n in range(len(source)))
        yield from ([*source[:n], less, *source[n + 1 :]] for n, item in enumerate(source) for less in smaller(item))
