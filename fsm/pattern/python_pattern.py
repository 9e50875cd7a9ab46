"""`re_parser`: CPython's private parser of regular expressions (`re._parser`), after a test that it works as expected. It parses one sample
pattern with nearly every construct; if a name is missing, or the syntax tree, its flags or a width differ (any version of Python may
change them), importing `fsm` raises `UnsupportedPython`.

`regex`: Python regular expressions with the meaning of `re.fullmatch`, as a term whose Brzozowski derivatives are the states of the
DFA. The standard library's parser makes the syntax tree (`re_parser`), `lookaround.py` the term. Refused: back-references, conditional
and atomic groups, possessive repetition, and what `lookaround.py` refuses. Also here: leftmost-first matches (`preferred_texts`), `widths`,
whether a pattern `looks_outside` its match, and the parts of one that does so at its end (`without_last_look`).

Every escape and flag means what it means to `re` in the running Python. Supported: literals, escapes, classes, `.`, groups of other kinds,
alternation, greedy and lazy repetition with any counts, the flags i s m a u x (global and scoped), `^ $ \\A \\Z \b \\B`, lookahead and
lookbehind anywhere, also of texts of several lengths, which `re` refuses. Anchors and lookarounds apply to the text of their own
expression, not to what is joined to it: `regex("a(?!b)") + "b"` is the text "ab".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import zip_longest
from typing import Any

from fsm.errors import (
    BudgetExceeded,
    ExpressionError,
    RegexSyntaxError,
    UnsupportedPython,
    UnsupportedRegex,
    clip,
    is_one_of,
)
from fsm.expression import Expression
from fsm.pattern import postfix
from fsm.pattern.leftmost_first import preferred
from fsm.pattern.lookaround import full_match
from fsm.pattern.postfix import Anchor
from fsm.recipe import remembered
from fsm.terms import characters
from fsm.terms import node as nodes
from fsm.terms.characters import Ranges, category, ignoring_case, invert, normalize, single, union
from fsm.terms.derivative import Derivatives
from fsm.terms.node import ANYTHING, Node

TESTED_VERSIONS = "3.11 to 3.13"

_NAMES = (
    *("LITERAL", "NOT_LITERAL", "ANY", "IN", "RANGE", "NEGATE", "CATEGORY", "FAILURE"),
    *("SUBPATTERN", "BRANCH", "MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT", "ATOMIC_GROUP", "MAXREPEAT"),
    *("ASSERT", "ASSERT_NOT", "GROUPREF", "GROUPREF_EXISTS", "AT"),
    *("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_END", "AT_END_STRING", "AT_BOUNDARY", "AT_NON_BOUNDARY"),
    *(f"CATEGORY_{kind}" for kind in ("DIGIT", "NOT_DIGIT", "SPACE", "NOT_SPACE", "WORD", "NOT_WORD")),
)
_SAMPLE = r"^\A(?i-s:a)(?:[^b-d\W]|.)*?(e){2,}(?=f)(?<!g)\1(?(1)h|i)(?>j)k?+[^l]\b\B\Z$"
_CLASS = [("NEGATE", None), ("RANGE", (98, 100)), ("CATEGORY", "CATEGORY_NOT_WORD")]
_EXPECTED: list[tuple[Any, ...]] = [
    ("AT", "AT_BEGINNING"),
    ("AT", "AT_BEGINNING_STRING"),
    ("SUBPATTERN", (None, 2, 16, [("LITERAL", 97)])),
    ("MIN_REPEAT", (0, "MAXREPEAT", [("BRANCH", (None, [[("IN", _CLASS)], [("ANY", None)]]))])),
    ("MAX_REPEAT", (2, "MAXREPEAT", [("SUBPATTERN", (1, 0, 0, [("LITERAL", 101)]))])),
    ("ASSERT", (1, [("LITERAL", 102)])),
    ("ASSERT_NOT", (-1, [("LITERAL", 103)])),
    ("GROUPREF", 1),
    ("GROUPREF_EXISTS", (1, [("LITERAL", 104)], [("LITERAL", 105)])),
    ("ATOMIC_GROUP", [("LITERAL", 106)]),
    ("POSSESSIVE_REPEAT", (0, 1, [("LITERAL", 107)])),
    ("NOT_LITERAL", 108),
    ("AT", "AT_BOUNDARY"),
    ("AT", "AT_NON_BOUNDARY"),
    ("AT", "AT_END_STRING"),
    ("AT", "AT_END"),
]


def re_parser() -> Any:
    """Return the module with which `re` reads patterns: `parse`, `SubPattern`, and the constants of what it returns.

    Raises:
        UnsupportedPython: this version of Python has no such module, or it returns other syntax trees than expected.

    Cost: 0.1 ms; it is called once, when `fsm` is imported.
    """
    try:
        parser = import_module("re._parser")
        missing = [name for name in ("parse", "SubPattern", *_NAMES) if not hasattr(parser, name)]
        fault = f"`{missing[0]}` is missing" if missing else _fault(parser)
    except Exception as error:  # any exception of a changed parser
        fault = f"{type(error).__name__}: {error}"
    if fault:
        version = ".".join(map(str, sys.version_info[:3]))
        raise UnsupportedPython(
            f"expected the parser of `re` as it is in Python {TESTED_VERSIONS}, received that of Python {version}, which was changed "
            f"({fault}): use one of those versions, or a newer release of outlines-cont."
        )
    return parser


def _fault(parser: Any) -> str:
    """The first difference in the syntax tree of the sample, or an empty text."""
    parsed = parser.parse(_SAMPLE, re.NOFLAG)
    for expected, item in zip_longest(_EXPECTED, _plain(parser, parsed)):
        if expected != item:
            return f"expected {expected!r} for a part of a pattern, received {item!r}"
    if int(parsed.state.flags) != int(re.UNICODE):
        return f"expected the flags {int(re.UNICODE)} of a pattern, received {parsed.state.flags!r}"
    least, most = parser.SubPattern(parsed.state, [*parsed.data[2:5]]).getwidth()
    return "" if least == 3 and most > 1 << 30 else f"expected a width of 3 or more, received {least} to {most}"


def _plain(parser: Any, value: Any) -> Any:
    """A syntax tree with names instead of constants; only for the sample, as it recurses."""
    if isinstance(value, parser.SubPattern):
        return [(str(operator), _plain(parser, argument)) for operator, argument in value.data]
    if isinstance(value, list | tuple):
        return type(value)(_plain(parser, item) for item in value)
    return str(value) if isinstance(value, int) and type(value) is not int else value


MAX_PATTERN_DEPTH = 200  # the parser of `re` takes two Python frames for each level, out of 1,000
MAX_PATTERN_LENGTH = 1_000_000

_sre = re_parser()

# Plain integers: `&` of two flags makes an enum member, which would be half of the time for a long pattern.
_IGNORECASE, _MULTILINE, _DOTALL, _ASCII = int(re.IGNORECASE), int(re.MULTILINE), int(re.DOTALL), int(re.ASCII)
_TYPES = int(re.ASCII | re.LOCALE | re.UNICODE)
_NESTING = re.compile(r"\\.|\[\^?\]?|[\]()]", re.DOTALL)
_NEWLINE: Ranges = ((0x0A, 0x0A),)

_MATCHES_EMPTY = re.search(r"\B", "") is not None  # since Python 3.14

_NO_PROPERTIES = r"`re` has no Unicode properties. Write a class, as '[^\W\d_]' for letters; the `pattern` of a JSON schema reads '\p{L}'."
_ADVICE = {
    "missing ), unterminated subpattern": r"Close the group with ')', or write '\(' for a parenthesis.",
    "unbalanced parenthesis": r"Remove the ')', or write '\)' for a parenthesis.",
    "unterminated character set": r"Close the class with ']', or write '\[' for a bracket.",
    "nothing to repeat": r"Put something before the quantifier, or write a backslash before it for the character itself.",
    "multiple repeat": "Put a group around the first repetition, as in '(?:a*)*'.",
    "bad escape (end of pattern)": r"Write '\\' for a backslash.",
    r"bad escape \p": _NO_PROPERTIES,
    r"bad escape \P": _NO_PROPERTIES,
    r"incomplete escape \u": r"Write four hexadecimal digits, as in '\u00e9', or '\U' and eight, as in '\U0001f600'.",
    "unknown extension ?<": "In `re` a named group is '(?P<name>...)', and '(?:...)' one without a name.",
    "bad escape": "Remove the backslash, or use an escape that `re` knows.",
    "bad character range": "Write the lower character first, or put '-' at the end of the class.",
    "min repeat greater than max repeat": "Write the smaller count first.",
    "the repetition number is too large": "Leave the upper count out for no bound, as in 'a{3,}'.",
    "global flags not at the start of the expression": "Move the flags to the start, or scope them as in '(?i:...)'.",
}


@remembered
def regex(pattern: str, *, ascii: bool = False) -> Expression:
    r"""Return the texts that `re.fullmatch(pattern, text)` matches, in UTF-8.

    Surrogates have no UTF-8, so that nothing matches them. A doubtful class (`[[a]`) gives the FutureWarning of `re`.

    Args:
        pattern: a regular expression in the syntax of `re`.
        ascii: `\d \w \s` and case-insensitive matching are those of `re.ASCII`.

    Raises:
        ExpressionError: `pattern` is not a `str`.
        RegexSyntaxError: it is not a regular expression; the position is an attribute.
        UnsupportedRegex: it uses something that is not regular or not supported; see the top of this module.
        BudgetExceeded: it is longer than `MAX_PATTERN_LENGTH` or nested deeper than `MAX_PATTERN_DEPTH`.

    Cost: linear in the pattern; a count such as `{1,50000}` costs nothing. `\w` takes some 50 ms when first used.
    """
    if not isinstance(pattern, str):
        raise ExpressionError(f"expected a regular expression as text, received {_describe(pattern)}")
    if not is_one_of(ascii, (True, False)):
        raise ExpressionError(f"expected True or False as `ascii`, received {_describe(ascii)}")
    node = _compiled(pattern, re.ASCII if ascii else re.NOFLAG, full_match)
    return Expression(node, source=clip(f"regex({pattern!r}{', ascii=True' if ascii else ''})"))


def preferred_texts(pattern: str) -> Node:
    """The texts `w` for which `re.match(pattern, w)` takes all of `w`; the errors are those of `regex`."""
    return _compiled(pattern, re.NOFLAG, preferred)


def _compiled(pattern: str, flags: re.RegexFlag, compile_: _Compile) -> Node:
    parsed = _parse(pattern, flags)
    try:
        return compile_(_postfix(parsed, int(parsed.state.flags)), characters.utf8)
    except postfix.NotSupported as refusal:
        said = f"{refusal.construct} is not supported, in {clip(pattern, 80)!r}. {refusal.advice}"
        raise UnsupportedRegex(said, pattern) from None


def looks_outside(pattern: str) -> bool:
    """True unless all anchors and lookarounds look at nothing but the text that is matched.

    Decided by widths: the most that a lookaround may look at, and the least that is matched before or after it.
    """
    return _looks_outside(_parse(pattern, re.NOFLAG))


def without_last_look(pattern: str) -> tuple[Node, Node] | None:
    r"""Divide a pattern that looks at the text after it.

    Returns:
        Its texts without the last `\b` or `(?!...)`, and the texts that must not follow; None for other patterns, and where `\b` requires
        a word character after it.
    """
    parsed, flags = _unwrapped(_parse(pattern, re.NOFLAG))
    word = characters.utf8(category("w", bool(flags & _ASCII)))
    body, looks, num_boundaries = list(parsed.data), list[Any](), 0
    while body and (body[-1] == (_sre.AT, _sre.AT_BOUNDARY) or (body[-1][0] is _sre.ASSERT_NOT and body[-1][1][0] > 0)):
        operator, argument = body.pop()
        num_boundaries += operator is _sre.AT
        looks += [argument[1]] if operator is _sre.ASSERT_NOT else []
    rest = _sre.SubPattern(parsed.state, body)
    if len(body) == len(parsed.data) or any(map(_looks_outside, (rest, *looks))):
        return None
    texts, *others = (full_match(_postfix(part, flags), characters.utf8) for part in (rest, *looks))
    if num_boundaries:
        others.append(word)
        not_in_word = nodes.complement(nodes.concat(ANYTHING, word))
        if Derivatives().is_inhabited(nodes.intersection((texts, not_in_word))):
            return None
    return texts, nodes.alternation(others)


@dataclass(frozen=True, slots=True)
class Widths:
    """How much a pattern reads, in characters.

    Attributes:
        least, most: of what it matches; `most` is None if there is no bound.
        behind, ahead: the most that its anchors and lookarounds look at before and after a position; None if there is no bound.
    """

    least: int
    most: int | None
    behind: int
    ahead: int | None


def widths(pattern: str) -> Widths:
    """Return how much a pattern reads; the errors are those of `regex`."""
    parsed = _parse(pattern, re.NOFLAG)
    behind = ahead = 0
    tasks = [parsed]
    while tasks:
        for operator, argument in tasks.pop().data:
            if operator is _sre.AT:
                behind, ahead = max(behind, 1), max(ahead, 2)  # `$` looks at a line break and the character after it
            elif operator in (_sre.ASSERT, _sre.ASSERT_NOT):
                direction, body = argument
                width = body.getwidth()[1]
                behind, ahead = (max(behind, width), ahead) if direction < 0 else (behind, max(ahead, width))
                tasks.append(body)
            else:
                tasks += _bodies(operator, argument)
    least, most = parsed.getwidth()
    return Widths(int(least), _bounded(most), int(behind), _bounded(ahead))


def _bounded(width: int) -> int | None:
    # The parser counts up to a number that differs between versions of Python.
    return int(width) if width < 2**31 else None


def _unwrapped(parsed: Any) -> tuple[Any, int]:
    """A parsed pattern without groups around all of it, and the flags that hold in it."""
    flags = int(parsed.state.flags)
    while len(parsed.data) == 1 and parsed.data[0][0] is _sre.SUBPATTERN:
        _, add, remove, parsed = parsed.data[0][1]
        flags = _scoped(flags, add, remove)
    return parsed, flags


def _looks_outside(parsed: Any) -> bool:
    tasks = [(parsed, 0, 0)]
    while tasks:
        parsed, before, after = tasks.pop()
        widths = [_sre.SubPattern(parsed.state, [item]).getwidth()[0] for item in parsed.data]
        least = sum(widths)
        for (operator, argument), width in zip(parsed.data, widths, strict=True):
            least -= width
            near, far = before, after + least
            before += width
            if operator is _sre.AT:
                behind, ahead = _SEEN.get(argument, (1, 1))
                if near < behind or far < ahead:
                    return True
            elif operator in (_sre.ASSERT, _sre.ASSERT_NOT):
                direction, body = argument
                most = body.getwidth()[1]
                if most > (near if direction < 0 else far):
                    return True
                tasks.append((body, near - most, far) if direction < 0 else (body, near, far - most))
            else:
                tasks += [(body, near, far) for body in _bodies(operator, argument)]
    return False


def _bodies(operator: Any, argument: Any) -> list[Any]:
    """The patterns inside a parsed item."""
    if operator in (_sre.SUBPATTERN, _sre.MAX_REPEAT, _sre.MIN_REPEAT):
        return [argument[-1]]
    return list(argument[1]) if operator is _sre.BRANCH else []


def _describe(value: object) -> str:
    if isinstance(value, re.Pattern):
        return "a compiled pattern. Give its `.pattern`, and write its flags into it, as in '(?i)...'."
    if isinstance(value, bytes):
        return "bytes. Decode them first."
    return f"{type(value).__name__}. Give the pattern as text."


def _parse(pattern: str, flags: re.RegexFlag) -> Any:
    """Parse with the parser of `re`; its failures become typed errors."""
    _check_size(pattern)
    try:
        return _sre.parse(pattern, flags)
    except re.error as error:
        raise _syntax_error(pattern, error.msg, error.pos) from None
    except (OverflowError, ValueError) as error:  # a count beyond 32 bits, flags that contradict each other
        raise _syntax_error(pattern, str(error), None) from None
    except FutureWarning as warning:  # only where the caller made errors of warnings
        raise _syntax_error(pattern, str(warning), None, "Write a backslash before the bracket or sign.") from None
    except RecursionError:
        raise _too_deep() from None


def _check_size(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BudgetExceeded(
            f"a pattern has at most {MAX_PATTERN_LENGTH:,} characters, received {len(pattern):,}. "
            "Split it and join the parts with `|` or `+`; for many words use `fsm.choice`.",
            "max_pattern_length",
            MAX_PATTERN_LENGTH,
        )
    depth, in_class = 0, False
    for token in _NESTING.findall(pattern):
        if token[0] == "[":
            in_class = not (in_class and token[-1] == "]")
        elif token == "]":
            in_class = False
        elif not in_class:
            depth += (token == "(") - (token == ")")
            if depth > MAX_PATTERN_DEPTH:
                raise _too_deep()


def _too_deep() -> BudgetExceeded:
    return BudgetExceeded(
        f"a pattern nests at most {MAX_PATTERN_DEPTH} groups, and fewer where Python's stack is nearly full. "
        "Remove needless groups, or build the inner part as an expression of its own and join with `+`, `|` and `.repeat`.",
        "max_pattern_depth",
        MAX_PATTERN_DEPTH,
    )


def _syntax_error(pattern: str, message: str, position: int | None, advice: str = "") -> RegexSyntaxError:
    if not advice:
        known = (text for start, text in _ADVICE.items() if message.startswith(start))
        advice = next(known, "Correct the pattern, or write a backslash before a character that means itself.")
    where = "" if position is None else f" at position {position}"
    return RegexSyntaxError(f"{message}, in {clip(pattern, 80)!r}{where}. {advice}", pattern, position)


_Compile = Callable[[Iterator[postfix.Instruction], characters.Speller], Node]
_Task = postfix.Instruction | tuple[Any, int]
"""An instruction to emit, or a parsed sequence to expand, with its flags."""


def _postfix(parsed: Any, flags: int) -> Iterator[postfix.Instruction]:
    """Walk the syntax tree with an explicit stack."""
    tasks: list[_Task] = [(parsed, flags)]
    while tasks:
        task = tasks.pop()
        if isinstance(task, tuple):
            tasks.extend(reversed(_expand_sequence(*task)))
        else:
            yield task


_END = object()


def _expand_sequence(parsed: Any, flags: int) -> list[_Task]:
    tasks: list[_Task] = []
    run: list[str] = []
    count = 0
    literal = None if flags & _IGNORECASE else _sre.LITERAL
    for operator, argument in (*parsed.data, (_END, None)):
        if operator is literal:
            run.append(chr(argument))
            continue
        if run:
            tasks.append(postfix.Text("".join(run)))
            run.clear()
            count += 1
        if operator is not _END:
            tasks.extend(_expand(operator, argument, flags))
            count += 1
    return tasks if count == 1 else [*tasks, postfix.Join(count)]


def _expand(operator: Any, argument: Any, flags: int) -> list[_Task]:
    """Return the instructions of one parsed item, which push exactly one value."""
    if operator in _SETS:
        return [postfix.Character(_SETS[operator](argument, flags))]
    if operator is _sre.SUBPATTERN:
        _, add, remove, body = argument
        return [(body, _scoped(flags, add, remove))]
    if operator in (_sre.MAX_REPEAT, _sre.MIN_REPEAT):
        lo, hi, body = argument
        is_lazy = operator is _sre.MIN_REPEAT
        return [(body, flags), postfix.Loop(int(lo), None if hi is _sre.MAXREPEAT else int(hi), is_lazy)]
    if operator is _sre.BRANCH:
        return [*((option, flags) for option in argument[1]), postfix.Choose(len(argument[1]))]
    if operator is _sre.AT and argument in _ANCHORS:
        return [postfix.Assert(_ANCHORS[argument][bool(flags & _MULTILINE)])]
    if operator in (_sre.ASSERT, _sre.ASSERT_NOT):
        direction, body = argument
        return [(body, flags), postfix.Look(is_behind=direction < 0, is_negative=operator is _sre.ASSERT_NOT)]
    if operator is _sre.AT and argument in (_sre.AT_BOUNDARY, _sre.AT_NON_BOUNDARY):
        word, is_inside = category("w", bool(flags & _ASCII)), argument is _sre.AT_NON_BOUNDARY
        return [*postfix.boundary(word, is_inside=is_inside, matches_empty=_MATCHES_EMPTY)]
    raise postfix.NotSupported(*_refusal(operator, argument))


def _scoped(flags: int, add: int, remove: int) -> int:
    if add & _TYPES:
        flags &= ~_TYPES
    return (flags | add) & ~remove


_ANCHORS = {  # without and with MULTILINE
    _sre.AT_BEGINNING: (Anchor.TEXT_START, Anchor.LINE_START),
    _sre.AT_BEGINNING_STRING: (Anchor.TEXT_START, Anchor.TEXT_START),
    _sre.AT_END: (Anchor.LAST_LINE_END, Anchor.LINE_END),
    _sre.AT_END_STRING: (Anchor.TEXT_END, Anchor.TEXT_END),
}

_SEEN = {  # how many characters before and after an anchor decide whether it matches
    _sre.AT_BEGINNING: (1, 0),
    _sre.AT_BEGINNING_STRING: (1, 0),
    _sre.AT_END: (0, 2),  # it also matches before a newline that ends the text
    _sre.AT_END_STRING: (0, 1),
}

_CATEGORIES = {
    _sre.CATEGORY_DIGIT: "d",
    _sre.CATEGORY_NOT_DIGIT: "D",
    _sre.CATEGORY_SPACE: "s",
    _sre.CATEGORY_NOT_SPACE: "S",
    _sre.CATEGORY_WORD: "w",
    _sre.CATEGORY_NOT_WORD: "W",
}


def _literal_set(argument: Any, flags: int) -> Ranges:
    return _any_case(single(argument), flags)


def _class(argument: Any, flags: int) -> Ranges:
    plain: list[tuple[int, int]] = []
    sets: list[Ranges] = []
    negated = False
    for operator, value in argument:
        if operator is _sre.NEGATE:
            negated = True
        elif operator is _sre.CATEGORY:
            sets.append(category(_CATEGORIES[value], bool(flags & _ASCII)))
        else:
            plain.append(value if operator is _sre.RANGE else (value, value))
    # Categories have both cases of every letter, so only single characters and ranges are extended.
    found = union((_any_case(tuple(plain), flags, has_others=bool(sets)), *sets))
    return invert(found) if negated else found


def _any_case(written: tuple[tuple[int, int], ...], flags: int, *, has_others: bool = False) -> Ranges:
    if not flags & _IGNORECASE:
        return normalize(written)
    return ignoring_case(written, bool(flags & _ASCII), has_others=has_others)


_SETS: dict[Any, Callable[[Any, int], Ranges]] = {
    _sre.LITERAL: _literal_set,
    _sre.NOT_LITERAL: lambda argument, flags: invert(_literal_set(argument, flags)),
    _sre.IN: _class,
    _sre.ANY: lambda argument, flags: characters.ALL_CHARACTERS if flags & _DOTALL else invert(_NEWLINE),
    _sre.FAILURE: lambda argument, flags: (),
}


def _refusal(operator: Any, argument: Any) -> tuple[str, str]:
    """Name a construct that is refused, and what to write instead."""
    if operator is _sre.GROUPREF:
        return f"a back-reference (to group {argument})", "Not a regular language: list the alternatives that you need."
    if operator is _sre.GROUPREF_EXISTS:
        return "a conditional group ('(?(1)...)')", "Write both cases as alternatives: '(?:<a>|a)'."
    if operator is _sre.POSSESSIVE_REPEAT:
        return "a possessive repetition ('*+', '++', '?+', '{m,n}+')", "Leave out the last '+'."
    if operator is _sre.ATOMIC_GROUP:
        return "an atomic group ('(?>...)')", "Write '(?:...)' instead."
    return f"the construct {operator!s}", "Write it in another way."
