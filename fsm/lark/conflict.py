"""`check_templates`: bounds the distinct instances of the templates of a Lark grammar, before Lark expands each to a rule of its own. They
are counted breadth first, by hash-consing template and arguments, from the other rules on; more than `max_templates`, so also infinitely
many, raise `BudgetExceeded`.

`is_lalr`, `accepted_terminals`: whether Lark's LALR(1) analysis of a grammar finds no conflict, and which terminals each state accepts.
Shift/reduce conflicts count, too. The LR(0) item sets are counted first; beyond `MAX_PLACES` items the grammar counts as not LALR. For
conflicts, only `MAX_TWINS` of several terminals that occur in the same positions, such as many keywords, are analysed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lark.common import ParserConf
from lark.exceptions import LarkError
from lark.grammar import Rule
from lark.parsers.lalr_analysis import LALR_Analyzer

from fsm.limits import Limits

_Argument = str | tuple[int]
"""A symbol, or the number of a use."""
_Use = tuple[str, tuple[_Argument, ...]]
"""A template and its arguments."""


def check_templates(grammar: Any, limits: Limits) -> Counter[str]:
    """Refuse a grammar, as Lark has loaded it, whose templates have too many instances, also infinitely many, as in `a{t}: t | a{b{t}}`.

    Returns:
        How many instances each template has.

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
    return Counter(name for name, _ in found)


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


MAX_PLACES = 50_000  # the most items in all states of the parser, with the transitions from them
MAX_TWINS = 3  # a conflict is between two productions, at one lookahead terminal: three that occur in the same positions are enough

_Item = tuple[int, int]
"""A production, and how many of its symbols were read."""


def is_lalr(rules: Sequence[Rule], start: str) -> bool:
    """True if the LALR tables have no conflict; False if they have one, or would take too long to compute.

    Cost: 10 us per item, at most `MAX_PLACES`.
    """
    return _analyzed(_with_few_twins(rules), start) is not None


def accepted_terminals(rules: Sequence[Rule], start: str) -> set[frozenset[str]] | None:
    """The names of the terminals that the parser accepts, for each of its states; None if `is_lalr` would be False.

    Cost: 10 us per item, at most `MAX_PLACES`, now with all terminals.
    """
    analyzer = _analyzed(rules, start)
    if analyzer is None:
        return None
    terminals = {symbol.name for rule in rules for symbol in rule.expansion if symbol.is_term}
    return {frozenset(terminals.intersection(actions)) for actions in analyzer.parse_table.states.values()}


def _analyzed(rules: Sequence[Rule], start: str) -> LALR_Analyzer | None:
    """The analysis of Lark, or None if there is a conflict, or if it would take too long."""
    if not _is_small(rules, start):
        return None
    analyzer = LALR_Analyzer(ParserConf(list(rules), {}, [start]), strict=True)
    try:
        analyzer.compute_lalr()  # type: ignore[no-untyped-call]
    except (LarkError, RecursionError):
        return None
    return analyzer


def _with_few_twins(rules: Sequence[Rule]) -> list[Rule]:
    """The rules with only a few of the terminals that occur in the same positions."""
    positions: dict[str, list[tuple[object, ...]]] = {}
    for rule in rules:
        names = [symbol.name for symbol in rule.expansion]
        for position, symbol in enumerate(rule.expansion):
            if symbol.is_term:
                around = rule.origin.name, *names[:position], None, *names[position + 1 :]
                positions.setdefault(symbol.name, []).append(around)
    twins: dict[frozenset[tuple[object, ...]], list[str]] = {}
    for name, found in positions.items():
        twins.setdefault(frozenset(found), []).append(name)
    left_out = {name for names in twins.values() for name in names[MAX_TWINS:]}
    return [rule for rule in rules if not any(symbol.name in left_out for symbol in rule.expansion)]


def _is_small(rules: Sequence[Rule], start: str) -> bool:
    """True if the LR(0) item sets have at most `MAX_PLACES` items and transitions."""
    by_origin: dict[str, list[int]] = {}
    for number, rule in enumerate(rules):
        by_origin.setdefault(rule.origin.name, []).append(number)
    first = frozenset((number, 0) for number in by_origin[start])
    seen, queue, num_items = {first}, [first], 0
    for kernel in queue:
        reached: dict[object, set[_Item]] = {}
        waiting, met = list(kernel), set(kernel)
        for number, read in waiting:
            if read == len(rules[number].expansion):
                continue
            symbol = rules[number].expansion[read]
            reached.setdefault(symbol, set()).add((number, read + 1))
            new = () if symbol.is_term else [(n, 0) for n in by_origin[symbol.name] if (n, 0) not in met]
            met.update(new)
            waiting += new
        num_items += len(met) + len(reached)
        if num_items > MAX_PLACES:
            return False
        targets = dict.fromkeys(map(frozenset, reached.values()))
        queue += [target for target in targets if target not in seen]
        seen.update(targets)
    return True
