"""The keywords of JSON Schema 2020-12, each as one object.

An object says all there is to know of its keyword; whoever reads, compiles, checks or explains a schema asks `KEYWORDS`, and has no list
of names of its own. A new keyword is one more object in the file of its kind. This room imports places, formats and what is below them.
"""

from __future__ import annotations

from fsm.schema.keywords.annotation import ANNOTATIONS
from fsm.schema.keywords.array import ARRAYS
from fsm.schema.keywords.combining import COMBINING
from fsm.schema.keywords.keyword import Keyword, Registry
from fsm.schema.keywords.number import NUMBERS
from fsm.schema.keywords.object import OBJECTS
from fsm.schema.keywords.python_type import PYTHON_TYPES
from fsm.schema.keywords.string import STRINGS
from fsm.schema.keywords.value import ANY_VALUE

__all__ = ["KEYWORDS", "Keyword", "Registry"]

KEYWORDS = Registry((*ANY_VALUE, *COMBINING, *OBJECTS, *ARRAYS, *STRINGS, *NUMBERS, *PYTHON_TYPES, *ANNOTATIONS))
