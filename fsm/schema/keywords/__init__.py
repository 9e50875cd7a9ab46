"""The keywords of JSON Schema 2020-12, each as one object; the places of a schema where they stand, and what references name.

An object has all facts about its keyword; the modules that read, compile, check or explain schemas look them up in `KEYWORDS` and
have no lists of names of their own. A new keyword is one more object in the file of its kind. Imports `fsm.pattern` and `fsm.terms`.
"""

from __future__ import annotations

from fsm.schema.keywords.keyword import KEYWORDS, Keyword, Registry
from fsm.schema.keywords.standard import ARRAYS, COMBINING, NUMBERS, OBJECTS, STRINGS
from fsm.schema.keywords.value import ANNOTATIONS, ANY_VALUE, PYTHON_TYPES

__all__ = ["KEYWORDS", "Keyword", "Registry"]

KEYWORDS.add((*ANY_VALUE, *COMBINING, *OBJECTS, *ARRAYS, *STRINGS, *NUMBERS, *PYTHON_TYPES, *ANNOTATIONS))
