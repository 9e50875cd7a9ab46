"""Pictures of trees: what stands where, for trees of any shape, against what a reader expects of a picture."""

from __future__ import annotations

import re
from html import unescape
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import CompletionTree
from outlines_cont.conversation.tree import TreeNode, to_html, to_svg, to_text
from tests.fakes import random_model

_SVG = "{http://www.w3.org/2000/svg}"
_TEXTS = st.text("ab <&", max_size=12) | st.just("long words in one stretch, " * 3) | st.just("x" * 70)


@st.composite
def _trees(draw: st.DrawFn) -> CompletionTree:
    tree = CompletionTree(random_model(), draw(st.sampled_from(["the", "", "p" * 120])), depth=1)

    def grow(node: TreeNode, levels: int) -> TreeNode:
        node.text = draw(_TEXTS)
        if levels and draw(st.booleans()):
            node.children = [grow(TreeNode((*node.path, turn)), levels - 1) for turn in range(2)]
        return node

    tree.root = grow(TreeNode(), 3)
    return tree


def _nodes(node: TreeNode) -> list[TreeNode]:
    return [node, *(below for child in node.children for below in _nodes(child))]


def _stretches(svg: Any) -> dict[int, list[list[tuple[int, str]]]]:
    """For each column the stretches, from above: the lines of each, 16 apart, with their heights."""
    columns: dict[int, list[list[tuple[int, str]]]] = {}
    for element in svg.iter(f"{_SVG}text"):
        if element.get("class") is None:
            x, y, text = int(element.get("x")), int(element.get("y")), element.text or ""
            stretches = columns.setdefault(x, [])
            if stretches and stretches[-1][-1][0] + 16 == y:
                stretches[-1].append((y, text))
            else:
                stretches.append([(y, text)])
    return columns


@settings(max_examples=40, deadline=None)
@given(_trees())
def test_every_stretch_has_its_place_and_a_curve_from_the_one_before_it(tree: CompletionTree) -> None:
    svg = ElementTree.fromstring(to_svg(tree))
    width, height = int(svg.get("width", 0)), int(svg.get("height", 0))
    assert f"0 0 {width} {height}" == svg.get("viewBox")
    columns, nodes = _stretches(svg), _nodes(tree.root)
    levels = max(len(node.path) for node in nodes) + 1
    assert [20 + 300 * level for level in range(levels)] == sorted(columns)
    assert width >= 20 + 300 * levels
    assert width >= 20 + 8 * len(tree.prompt)
    for level, (x, stretches) in enumerate(sorted(columns.items())):
        # From above as the nodes of a level stand in the tree, and every line is at most 32 characters wide.
        here = [node for node in nodes if len(node.path) == level]
        assert [node.text for node in here] == ["".join(text for _, text in lines) for lines in stretches]
        lines = [line for stretch in stretches for line in stretch]
        assert all(len(text) <= 32 for _, text in lines)
        assert all(below - above >= 16 for (above, _), (below, _) in pairwise(lines))
        assert lines[0][0] >= 56
        assert lines[-1][0] < height
        # A twin keeps a distance from the next one.
        assert all(after[0][0] - before[-1][0] > 16 + 4 for before, after in pairwise(stretches))
        assert x + 8 * 32 < x + 300
    curves = [re.findall(r"-?\d+", str(path.get("d"))) for path in svg.iter(f"{_SVG}path")]
    centres = {
        node.path: (x, sum(y for y, _ in stretch) / len(stretch), max(len(text) for _, text in stretch))
        for x, stretches in columns.items()
        for node, stretch in zip([node for node in nodes if 20 + 300 * len(node.path) == x], stretches, strict=True)
    }
    found = set()
    for numbers in curves:
        start_x, start_y, bend_x, bend_y, other_x, other_y, end_x, end_y = map(int, numbers)
        assert (start_y, bend_x, end_y) == (bend_y, other_x, other_y)
        assert start_x < bend_x < end_x
        (child,) = [
            path for path, (x, y, _) in centres.items() if path and 0 < x - end_x < 16 and abs(y - 4 - end_y) <= 1
        ]
        x, y, longest = centres[child[:-1]]
        assert 0 < start_x - (x + 8 * longest) < 16
        assert abs(y - 4 - start_y) <= 1
        found.add(child)
    assert {node.path for node in nodes if node.path} == found
    assert len(curves) == len(found)
    # A parent stands in the middle between its children.
    for node in nodes:
        if node.children:
            first, last = (centres[child.path][1] for child in (node.children[0], node.children[-1]))
            assert abs(centres[node.path][1] - (first + last) / 2) <= 2


@settings(max_examples=25, deadline=None)
@given(_trees())
def test_text_and_page_show_every_stretch_once_in_its_depth(tree: CompletionTree) -> None:
    nodes = _nodes(tree.root)
    first, *lines = to_text(tree).split("\n")
    assert first == tree.prompt
    assert [(4 * len(node.path) + 4, node.text) for node in nodes] == [
        (line.index("── ") + 3, line[line.index("── ") + 3 :]) for line in lines
    ]
    for above, below in pairwise(lines):
        # A branch that goes on below is drawn through.
        for at, sign in enumerate(below[: below.index("── ") + 3]):
            if sign in "│├└":
                assert at >= len(above) or above[at] in "│├" or at == above.index("── ") + 3
    assert sum("├── " in line for line in lines) == sum(bool(node.children) for node in nodes)
    page = to_html(tree)
    listed = re.findall(r"<li>(.*?)(?=</li>|<ul>)", page, re.DOTALL)
    assert [node.text for node in nodes] == [unescape(text).strip("\n") for text in listed]
    assert page.count("<ul>") == page.count("</ul>") == 1 + sum(bool(node.children) for node in nodes)
