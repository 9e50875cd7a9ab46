"""JSON Schema as languages over bytes."""

from fsm.schema.compiler import json_schema

__all__ = ["json_schema"]
