"""JSON Schema as languages over bytes: `json_schema` makes a term of a document, with checks where no automaton is exact.

A document is split into cases, each case into the JSON types, each type into a term; `blame` goes the same way back from a text. Imports
the rooms below it (documents, scalars, keywords, keywords), `fsm.automaton`, `fsm.expression` and `fsm.terms`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsm.schema.compiler import json_schema
from fsm.schema.documents.tool import tool_schema

if TYPE_CHECKING:
    from types import FunctionType

    from pydantic import BaseModel

__all__ = ["arguments_of", "json_schema", "tool_schema"]


def arguments_of(function: FunctionType) -> type[BaseModel]:
    """A model whose fields are the arguments of a function, with their annotations and defaults.

    Raises:
        SchemaError: the function takes any number of arguments, or an argument has no annotation.
    """
    from fsm.schema import model  # pydantic takes longer to load than all of this package

    return model.arguments_of(function)
