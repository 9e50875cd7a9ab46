"""JSON Schema as languages over bytes."""

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
