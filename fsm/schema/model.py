"""Python types as schemas, read by pydantic."""

from __future__ import annotations

from typing import Any


def schema_of_type(annotation: Any) -> dict[str, Any]:
    """x"""
    from pydantic import TypeAdapter

    return TypeAdapter(annotation).json_schema(mode="validation")
