"""Cases: languages of the kinds that extraction meets, each with one text that belongs to it.

The texts of schemas are `json.dumps` with its default separators. They hold nothing that only some engines allow (escapes, Unicode
digits), so that every engine can walk them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests import grammars

GRAMMARS = Path(__file__).parent / "grammars"
PROSE = (
    "The delivery from São Paulo arrived on Tuesday; two of the seven boxes were damaged, so we ask you to send new ones "
    "before the end of the month. Please call Ms. Müller (room 214)"
)
PERSON = {
    "name": "Ana Novak", "age": 31, "email": "ana.novak@example.org", "active": True,
    "address": {"street": "14 Mill Lane", "city": "Zürich", "postcode": "8004", "country": "Switzerland"},
    "employer": {"name": "Harbour & Sons", "since": 2017},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One language and a text of it.

    Attributes:
        name: what the tables call it.
        kind: how `source` is to be read.
        source: a pattern, a list of options, a JSON schema or a grammar in the language of Lark.
        text: a text that belongs to the language.
    """

    name: str
    kind: Literal["regex", "choice", "schema", "grammar"]
    source: Any
    text: str

    @property
    def shown(self) -> str:
        """The name, and for a pattern the pattern where it is short."""
        short = self.kind == "regex" and len(self.source) <= 40
        return f"{self.name} `{self.source}`".replace("|", "\\|") if short else self.name


def cases() -> list[Case]:
    """All cases, in the order of the tables."""
    return [*_patterns(), *_extractions(), *_grammars()]


def languages() -> list[Case]:
    """Grammars of languages as programs are written in, of our own (`grammars/`), each with a text; apart from the other cases."""
    names = {"java": "like Java", "sql": "SQL, whole", "c": "a part of C", "config": "configuration"}
    return [
        Case(
            name,
            "grammar",
            (GRAMMARS / f"{stem}.lark").read_text("utf-8"),
            (GRAMMARS / f"{stem}.txt").read_text("utf-8"),
        )
        for stem, name in names.items()
    ]


def warm_up() -> list[Case]:
    """Constraints to run before any clock does, unlike those that are measured: so that code is loaded and has run."""
    value = {
        "word": "Grüße, world",
        "total": 705,
        "share": 0.25,
        "length": 31.75,
        "level": "upper",
        "done": False,
        "items": [{"at": 4}],
        "more": "x",
    }
    schema = _object(
        ["word", "total", "level", "items"],
        word={"type": "string"}, total={"type": "integer"}, share={"type": "number"}, length={"type": "number"},
        level={"enum": ["upper", "lower"]}, done={"type": "boolean"},
        items={"type": "array", "items": _object(at={"type": "integer", "minimum": 1})},
        more={"type": "string", "maxLength": 30},
    )  # fmt: skip
    return [
        Case("", "regex", r"(yes|no)(, [A-F]{2,5}[0-9]*)+!", "yes, ABC47, FE1!"),
        Case("", "choice", ["first", "second", "third"], "second"),
        _extraction("", schema, value),
        Case("", "grammar", 'start: "(" WORD start? ")"\nWORD: /[A-Z]+/\n%ignore "-"', "(AB(C)-)"),
    ]


def _patterns() -> list[Case]:
    words = _words(1000)
    path = "/catalogue/spring_2026/item-4711?lang=en&page=12&sort=price"
    return [
        Case("date", "regex", r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "2026-11-20"),
        Case("email", "regex", r"[a-z0-9._%+-]+@[a-z0-9-]+(\.[a-z0-9-]+)+", "maria.fernandez+orders@mail.example.co"),
        Case("url", "regex", r"https?://[a-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%/-]*)?(\?[A-Za-z0-9._~%&=-]*)?",
             f"https://shop.example.com:8080{path}"),
        Case("names", "regex", r"[A-Z][a-z]+( [A-Z][a-z]+)*", "Maria Fernandez Gonzalez Alexandra Johnson"),
        Case("sentence", "regex", r".{3,200}\.", PROSE[:160] + "."),
        Case("identifier", "regex", r"[a-z]{1,11}[a-z0-9]*", "transactionrecord2026final"),
        Case("lines", "regex", r"(- [^\n]{1,80}\n){1,10}", "- send seven new boxes\n- call Ms. Müller\n- close the case\n"),
        Case("ambiguous", "regex", r"(a|b)*a(a|b){16}", "abbabaababbbabaabbababbaababa"),
        Case("choice of 1,000", "choice", words, words[617]),
    ]  # fmt: skip


def _extractions() -> list[Case]:
    texts = {"title": PROSE[:60], "summary": PROSE, "note": "Zürich, 日本語, ok"}
    codes = [f"{word.upper()}-{i:04d}" for i, word in enumerate(_words(1000))]
    return [
        _extraction("nested person", _typed(PERSON), PERSON),
        _extraction("strings", _strings(None), texts),
        _extraction("strings, maxLength 200", _strings(200), texts),
        _extraction("strings, maxLength 20,000", _strings(20_000), texts),
        _extraction("enums", *_enums()),
        _extraction("enum of 1,000", _object(code={"enum": codes}, count={"type": "integer"}), {"code": codes[421], "count": 12}),
        _extraction("arrays", *_arrays()),
        _extraction("numbers", *_numbers()),
        _extraction("100 properties", *_many_properties()),
        _extraction("tree", *_tree()),
        _extraction("optional properties", *_optional()),
    ]  # fmt: skip


def _grammars() -> list[Case]:
    order = (
        "SELECT name, total_amount, city FROM customers WHERE (city = 'San Francisco' AND total_amount >= 1000) "
        "OR region < 12 LIMIT 25"
    )
    game = "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 6. Re1 b5 7. Bb3 d6 8. c3 O-O 9. exd5+ Qxd5 1-0"
    table = 'name,city,amount\nAna Novak,"San Francisco, CA",12.50\nBob,Zürich,"said ""yes"""\n'
    value = PERSON | {"tags": ["damaged", 12.5, -3e10, True, None], "cells": [[1, 2], [], {}], "note": PROSE[:60]}
    sum_ = "(price + 1.5 * quantity) / 100 - (discount_rate - 3.25e2) * -(a + b) + total_amount"
    return [
        Case("grammar of JSON", "grammar", grammars.JSON, json.dumps(value, ensure_ascii=False)),
        Case("arithmetic", "grammar", grammars.ARITHMETIC, sum_),
        Case("SQL", "grammar", grammars.SQL, order),
        Case("chess", "grammar", grammars.CHESS, game),
        Case("CSV", "grammar", grammars.CSV, table),
    ]


def _extraction(name: str, schema: dict[str, Any], value: Any) -> Case:
    return Case(name, "schema", schema, json.dumps(value, ensure_ascii=False))


def _object(required: list[str] | None = None, /, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _typed(value: Any) -> dict[str, Any]:
    """The schema of a value's types."""
    if isinstance(value, dict):
        return _object(**{key: _typed(item) for key, item in value.items()})
    names = {bool: "boolean", int: "integer", float: "number", str: "string"}
    return {"type": names[type(value)]}


def _strings(max_length: int | None) -> dict[str, Any]:
    text = {"type": "string"} | ({} if max_length is None else {"maxLength": max_length})
    return _object(title=text, summary=text, note=text)


def _enums() -> tuple[dict[str, Any], Any]:
    schema = _object(
        kind={"enum": ["invoice", "complaint", "order", "question", "cancellation"]},
        priority={"enum": ["low", "normal", "high", "urgent"]},
        colour={"enum": ["red", "green", "blue", "yellow", "black", "white"]},
        department={"enum": ["sales", "support", "accounting", "logistics", "legal"]},
    )
    return schema, {"kind": "complaint", "priority": "urgent", "colour": "yellow", "department": "logistics"}


def _arrays() -> tuple[dict[str, Any], Any]:
    line = {"article": "Steel bracket, 40 mm", "quantity": 12, "price": 3.75}
    value = {
        "tags": ["damaged", "express", "second delivery"],
        "positions": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89],
        "lines": [line, line | {"article": "Copper pipe", "quantity": 3, "price": 18.2}],
    }
    schema = _object(
        tags={"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 10},
        positions={"type": "array", "items": {"type": "integer"}},
        lines={"type": "array", "items": _typed(line)},
    )
    return schema, value


def _numbers() -> tuple[dict[str, Any], Any]:
    number, integer = {"type": "number"}, {"type": "integer"}
    schema = _object(
        count=integer, year=integer | {"minimum": 1900, "maximum": 2100}, rating=integer | {"minimum": 0, "maximum": 5},
        price=number, balance=number, latitude=number, longitude=number,
    )  # fmt: skip
    value = {
        "count": 1204, "year": 2026, "rating": 4,
        "price": 1249.5, "balance": -310.75, "latitude": 47.3769, "longitude": 8.5417,
    }  # fmt: skip
    return schema, value


def _many_properties() -> tuple[dict[str, Any], Any]:
    samples: list[Any] = ["some text", 42, True, 2.5]
    value = {f"{word}_{i}": samples[i % 4] for i, word in enumerate(_words(100))}
    return _typed(value), value


def _tree() -> tuple[dict[str, Any], Any]:
    node = _object(
        ["name"],
        name={"type": "string"},
        size={"type": "integer"},
        children={"type": "array", "items": {"$ref": "#/$defs/node"}},
    )

    def branch(name: str, *children: Any) -> Any:
        return {"name": name, "size": len(name)} | ({"children": list(children)} if children else {})

    value = branch(
        "root", branch("left", branch("a leaf"), branch("another")), branch("right", branch("deep", branch("end")))
    )
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}, value


def _optional() -> tuple[dict[str, Any], Any]:
    names = ["id", "title", "first_name", "last_name", "company", "street", "city", "postcode", "phone", "fax", "note"]
    text = {"type": "string"}
    schema = _object(["id", "city"], **{name: {"type": "integer"} if name == "id" else text for name in names})
    return schema, {
        "id": 9,
        "title": "Dr.",
        "last_name": "Okafor",
        "city": "Lagos",
        "phone": "+234 1 555",
        "note": "call",
    }


def _words(count: int) -> list[str]:
    """Distinct pronounceable words, the same on every machine."""
    source = random.Random(0)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(source.choices(syllables, k=source.randint(2, 5)))] = None
    return list(words)
