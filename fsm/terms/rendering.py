"""`render`: a term as a string of at most 120 characters for error messages, in the notation of regular expressions, with `&` and `~`. It
cannot be parsed back: bytes of no character are escapes, and what has no notation is a name in brackets (rules, machines, `<fields>`).
"""

from __future__ import annotations

import re

from fsm.terms.characters import ALL_CHARACTERS, JSON_CHARACTER, invert, normalize, utf8
from fsm.terms.node import ALL_BYTES, ANYTHING, EPSILON, Kind, Node, children

MAX_LENGTH = 120
_SYMBOL = re.compile("\udcff([^\udcff]*)\udcff")  # of a special token
_FEW = 4
_KNOWN = {
    ANYTHING: "<anything>",
    utf8(ALL_CHARACTERS): "<character>",
    utf8(invert(((0x0A, 0x0A),))): ".",
    JSON_CHARACTER: "<character of a JSON string>",
}


def known_name(node: Node) -> str | None:
    """Return the name of a term that is shown by name, without brackets."""
    name = _KNOWN.get(node, "")
    return name[1:-1] if name.startswith("<") else None


def render(node: Node, most: int = MAX_LENGTH) -> str:
    """A term as text of at most `most` characters. Cost: bounded by `most`, however large the term is."""
    out: list[str] = []
    size, steps, stack = 0, 0, list[Node | str]((node,))
    while stack and size <= most and steps <= 4 * most:
        top = stack.pop()
        steps += 1
        if isinstance(top, str):
            out.append(top)
            size += len(top)
        else:
            stack += reversed(_pieces(top))
    text = "".join(out)
    return text if not stack and len(text) <= most else f"{text[: most - 3]}..."


def _pieces(node: Node) -> list[Node | str]:
    """The text of a term, with terms for its parts."""
    kind, args = node.kind, node.args
    if node in _KNOWN:
        return [_KNOWN[node]]
    if kind in (Kind.ALTERNATION, Kind.INTERSECTION):
        sign = "|" if kind is Kind.ALTERNATION else " & "
        inside = [piece for part in args[: MAX_LENGTH // 2] if part is not EPSILON for piece in (sign, part)]
        return ["(", *inside[1:], ")?" if EPSILON in args else ")"]
    if kind is Kind.COMPLEMENT:
        return ["~(", args[0], ")"]
    if kind in (Kind.CONCAT, Kind.CHECK, Kind.MUNCH):
        return list(children(node))
    if kind is Kind.CONTINUATION:
        return [args[0], "<what looks around>"]
    if kind is Kind.REPEAT:
        body, lo, hi = args
        return [*_grouped(body), _count(lo, hi)]
    return [_leaf(node)]


def _leaf(node: Node) -> str:
    kind, args = node.kind, node.args
    if kind is Kind.BYTES:
        return _byte_class(args[0])
    if kind is Kind.LITERAL:
        return _escaped(args[0])
    if kind is Kind.WORDS:
        word_list, lo, hi, depth = args
        shown = [_escaped(word[depth:]) for word in word_list.words[lo : min(hi, lo + _FEW)]]
        return "(" + "|".join([*shown, f"... {hi - lo} words"] if hi - lo > _FEW else shown) + ")"
    if kind is Kind.RULE:
        return f"<{args[0].name}>"
    if kind is Kind.MACHINE:
        return f"<{type(args[0]).__name__}>"
    return {Kind.EMPTY: "<nothing>", Kind.FIELDS: "<fields>", Kind.MEMBERS: "<members>"}.get(kind, "")


def _grouped(body: Node) -> list[Node | str]:
    is_byte = body.kind is Kind.BYTES or (body.kind is Kind.LITERAL and len(body.args[0]) == 1)
    is_optional = body.kind is Kind.ALTERNATION and EPSILON in body.args  # shown as `(...)?`
    is_group = body.kind in (Kind.ALTERNATION, Kind.INTERSECTION, Kind.WORDS) and not is_optional
    return [body] if body in _KNOWN or is_byte or is_group else ["(", body, ")"]


def _count(lo: int, hi: int | None) -> str:
    if hi is None:
        return {0: "*", 1: "+"}.get(lo, f"{{{lo},}}")
    if (lo, hi) == (0, 1):
        return "?"
    return f"{{{lo}}}" if lo == hi else f"{{{lo},{hi}}}"


def _escaped(text: bytes) -> str:
    """A text, with special tokens as names in brackets."""
    parts = _SYMBOL.split(text.decode("utf-8", "surrogateescape"))
    return "".join(
        f"<token {part}>" if number % 2 else "".join(map(_visible, part)) for number, part in enumerate(parts)
    )


def _visible(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that is not a character
        return _byte(ord(character) - 0xDC00)
    if character in "\\.^$*+?{}[]|()":
        return f"\\{character}"
    return character if character.isprintable() else repr(character)[1:-1]


def _byte_class(mask: int) -> str:
    if mask == ALL_BYTES:
        return "<byte>"
    negated = mask.bit_count() > 128
    rest = ALL_BYTES & ~mask if negated else mask
    ranges = normalize((byte, byte) for byte in range(256) if rest >> byte & 1)
    inside = "".join(f"{_byte(a)}{'-' if b > a + 1 else ''}{_byte(b) if b > a else ''}" for a, b in ranges)
    return f"[{'^' if negated else ''}{inside}]"


def _byte(byte: int) -> str:
    shown = chr(byte)
    if byte >= 0x80:
        return rf"\x{byte:02x}"
    return f"\\{shown}" if shown in "\\]^-" else shown if shown.isprintable() else repr(shown)[1:-1]
