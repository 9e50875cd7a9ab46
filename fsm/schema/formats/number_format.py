"""`NUMBER_FORMATS`: the number formats of the OpenAPI registry (`int32`, `float`, ...), each as an equivalent schema of other keywords."""

from __future__ import annotations

from typing import Any

_MAX_SINGLE = (2**24 - 1) * 2**104  # the largest float of 32 bits

NUMBER_FORMATS: dict[str, dict[str, Any]] = {
    "int32": {"multipleOf": 1, "minimum": -(2**31), "maximum": 2**31 - 1},
    "int64": {"multipleOf": 1, "minimum": -(2**63), "maximum": 2**63 - 1},
    "float": {"minimum": -_MAX_SINGLE, "maximum": _MAX_SINGLE},
    "double": {},  # any number that is written
}
"""They apply to numbers only; formats of strings do not apply to numbers."""
