"""The internal keywords in schemas of Python types: `fsm:text`, a language for strings, and `fsm:validator`, code that checks the value."""

from __future__ import annotations

from dataclasses import dataclass

from fsm.schema.keywords.keyword import PYTHON_TYPE, STRING, Keyword
from fsm.schema.places.shape import TEXT as NAME
from fsm.schema.places.shape import Shape, expected
from fsm.terms.node import Node

TEXT = "fsm:text"
VALIDATOR = "fsm:validator"


@dataclass(frozen=True, slots=True)
class TextLanguage:
    """The inside of strings as a term, and a sentence for the report on what it leaves out."""

    node: Node
    spelling: str


def _check(value: object, pointer: str) -> None:
    if not isinstance(value, TextLanguage):
        raise expected("the language of a Python type", value, pointer)


PYTHON_TYPES = (
    Keyword(
        TEXT,
        Shape(_check),
        STRING,
        since=PYTHON_TYPE,
        language=lambda text, pointer, limits: text.node,
        is_built=True,
        spelling=lambda text: text.spelling,
    ),
    Keyword(VALIDATOR, NAME, since=PYTHON_TYPE, is_built=True),
)
