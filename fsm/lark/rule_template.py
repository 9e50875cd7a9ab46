"""`check_templates`: bounds the distinct instances of the templates of a Lark grammar, before Lark expands each to a rule of its own. They
are counted breadth first, by hash-consing template and arguments, from the other rules on; more than `max_templates`, so also infinitely
many, raise `BudgetExceeded`.
"""

from __future__ import annotations

from typing import Any

from fsm.limits import Limits

_Argument = str | tuple[int]
"""A symbol, or the number of a use."""
_Use = tuple[str, tuple[_Argument, ...]]
"""A template and its arguments."""


def check_templates(grammar: Any, limits: Limits) -> None:
    """Refuse a grammar, as Lark has loaded it, whose templates have too many instances, also infinitely many, as in `a{t}: t | a{b{t}}`.

    Raises:
        BudgetExceeded: there are more than `limits.max_templates`.

    Cost: some us for each use.
    """
    rules = {name: (params, tree) for name, params, tree, _ in grammar.rule_defs}
    found: dict[_Use, int] = {}
    queue: list[tuple[Any, dict[str, _Argument]]] = [
        (tree, {}) for params, tree in rules.values() if not params and tree is not None
    ]
    for tree, arguments in queue:
        for name, values in _new_uses(tree, arguments, found):
            params, body = rules.get(name, ((), None))
            queue += [] if body is None else [(body, dict(zip(params, values, strict=False)))]
        limits.check("max_templates", len(found), "uses of templates with different arguments", None)


def _new_uses(tree: Any, arguments: dict[str, _Argument], found: dict[_Use, int]) -> list[_Use]:
    """Number the uses of templates in a rule, those in arguments first; return those that were not met before."""
    new: list[_Use] = []
    numbers: dict[int, _Argument] = {}
    for usage in tree.find_data("template_usage"):  # from the bottom up
        symbol, *values = usage.children
        parts = [value.children[0] for value in values]
        use = (
            symbol.name,
            tuple(numbers.get(id(part)) or arguments.get(getattr(part, "name", "")) or str(part) for part in parts),
        )
        if use not in found:
            found[use] = len(found)
            new.append(use)
        numbers[id(usage)] = (found[use],)
    return new
