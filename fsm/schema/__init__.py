"""JSON Schema as languages over bytes: `json_schema` makes a term of a document, with checks where no automaton is exact.

A document is split into cases, each case into the JSON types, each type into a term; `blame` goes the same way back from a text. Imports
the rooms below it (documents, scalars, keywords), `fsm.automaton`, `fsm.expression` and `fsm.terms`.
"""

from __future__ import annotations

from fsm.schema.compiler import json_schema
from fsm.schema.documents.tool import tool_schema

__all__ = ["json_schema", "tool_schema"]
