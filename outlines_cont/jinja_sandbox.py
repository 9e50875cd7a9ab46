"""`BoundedSandbox`: Jinja's immutable sandbox, base class of those of `templates` and of the prompts of `pipelines`: undefined names raise,
nothing is escaped, powers of ints are limited to about 4,096 bits, and constants are not folded at compile time. Limits on time and memory
are added by its subclasses and their callers.
"""

from __future__ import annotations

from typing import Any

from jinja2 import StrictUndefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MAX_POWER_BITS = 4096


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """A sandbox without escaping, since the output is not HTML, and without computation before a template runs."""

    # All operators, since Python's compiler would otherwise fold constants before any limit applies.
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, **options: Any) -> None:
        super().__init__(undefined=StrictUndefined, autoescape=False, optimized=False, **options)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`, unless it is a huge power."""
        if (
            operator == "**"
            and isinstance(left, int)
            and isinstance(right, int)
            and left.bit_length() * abs(right) > _MAX_POWER_BITS
        ):
            raise SecurityError(f"a power of more than {_MAX_POWER_BITS} bits is not computed")
        return super().call_binop(context, operator, left, right)
