"""`to_text`, `to_svg`, `to_html`: a `CompletionTree` as text with box characters, as an SVG picture, and as nested HTML lists. What a
model writes is escaped, and its control characters are replaced.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator
from html import escape

from outlines_cont.conversation.tree import CompletionTree, TreeNode

_SIGNS = {"\n": "↵", "\t": "→", "\r": "←"}
_WRAP, _COLUMN, _LINE, _GAP, _LEFT, _TOP = 32, 300, 16, 12, 20, 56
_SVG_STYLE = (
    "text{font:13px ui-monospace,monospace;fill:#1f2328;white-space:pre}.p{font-weight:bold}"
    "path{fill:none;stroke:#2f6db3;stroke-width:1.3}"
)
_HTML_STYLE = (
    "body{font:14px/1.5 ui-monospace,monospace;margin:2em;color:#1f2328;background:#fff}"
    "h1{font-size:1.1em}ul{list-style:none;margin:0;padding-left:1.2em;border-left:1px solid #2f6db3}"
    "li{padding:.15em 0 .15em .6em}"
)


def to_text(tree: CompletionTree) -> str:
    """Return the tree for a terminal, one line per stretch, the prompt first."""
    return "\n".join([shown(tree.prompt), *_lines(tree.root, "", last=True)])


def to_svg(tree: CompletionTree) -> str:
    """Return the tree as an SVG picture: a column per stretch, from left to right."""
    parts: list[str] = []
    height = _draw(tree.root, 0, _TOP, parts)[1]
    levels = max(len(leaf.path) for leaf in tree.leaves) + 1
    width = max(_LEFT + levels * _COLUMN, 40 + 8 * len(shown(tree.prompt)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    title = f'<text class="p" x="{_LEFT}" y="28">{escape(shown(tree.prompt))}</text>'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<style>{_SVG_STYLE}</style>", background, title, *parts, "</svg>"]) + "\n"


def to_html(tree: CompletionTree) -> str:
    """Return the tree as a page of nested lists, without scripts."""
    title = escape(shown(tree.prompt))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_HTML_STYLE}</style></head>\n<body><h1>{title}</h1>\n{_list([tree.root])}</body></html>\n"
    )


def shown(text: str) -> str:
    """Return a text on one line, with signs for its control characters; nothing in it moves a cursor or turns the text."""
    return "".join(_SIGNS.get(c) or (c if _is_plain(c) else "�") for c in text)


def _is_plain(character: str) -> bool:
    category = unicodedata.category(character)
    return category not in ("Zl", "Zp") and (not category.startswith("C") or character == "\u200d")


def _lines(node: TreeNode, indent: str, *, last: bool) -> Iterator[str]:
    yield f"{indent}{'└── ' if last else '├── '}{shown(node.text)}"
    for child in node.children:
        yield from _lines(child, indent + ("    " if last else "│   "), last=child is node.children[-1])


def _list(nodes: list[TreeNode]) -> str:
    items = (f"<li>{escape(shown(node.text))}{_list(node.children) if node.children else ''}</li>" for node in nodes)
    return "<ul>\n" + "\n".join(items) + "\n</ul>"


def _draw(node: TreeNode, level: int, top: int, parts: list[str]) -> tuple[int, int]:
    """Draw a node and what is below it; return the vertical position of its centre, and where the next node may begin."""
    lines = textwrap.wrap(shown(node.text), _WRAP, drop_whitespace=False, replace_whitespace=False) or [""]
    needed = len(lines) * _LINE + _GAP
    places, bottom = [], top
    for child in node.children:
        place, bottom = _draw(child, level + 1, bottom, parts)
        places.append(place)
    bottom = max(bottom, top + needed)
    middle = (places[0] + places[-1]) // 2 if places else (top + bottom - _GAP) // 2
    x = _LEFT + level * _COLUMN
    first = middle - (len(lines) - 1) * _LINE // 2
    for number, line in enumerate(lines):
        parts.append(f'<text x="{x}" y="{first + number * _LINE + 4}">{escape(line)}</text>')
    end, target = x + max(map(len, lines)) * 8 + 4, x + _COLUMN - 6
    for place in places:
        bend = (end + target) // 2
        parts.append(f'<path d="M{end},{middle} C{bend},{middle} {bend},{place} {target},{place}"/>')
    return middle, bottom
