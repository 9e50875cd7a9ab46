"""Pictures, shortest texts, and the command that shows what a schema means."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from unicodedata import combining
from xml.etree import ElementTree

import pytest
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st
from typer.testing import CliRunner

from fsm import FSMError, TokenFSM, Vocabulary, choice, draw, json_schema, regex
from fsm.automaton.lazy_dfa import shortest_text
from fsm.drawing import StateGraph, expression_graph
from outlines_cont.cli.__main__ import app

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_of_an_automaton_has_its_states_and_arrows() -> None:
    root = ElementTree.fromstring(draw(regex("(ab|a[c-f]*)+x")))
    circles = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "s"]
    rings = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "e"]
    labels = {text.text for text in root.iter(f"{SVG}text")}
    assert len(circles) == 5
    assert len(rings) == 1
    assert {"a", "b", "[c-f]", "x"} <= labels


def test_a_picture_of_a_token_fsm_names_tokens_and_ends_somewhere() -> None:
    vocabulary = Vocabulary([b"yes", b"no", b"<", b"&", None], [4])
    labels = {t.text for t in ElementTree.fromstring(draw(TokenFSM(regex("(yes|no)[<&]"), vocabulary))).iter(f"{SVG}text")}
    assert {"yes no", "< &"} <= labels
    small = draw(TokenFSM(regex("(yes|no){9}"), vocabulary), max_states=3)
    assert small.count('class="s"') == 3
    assert "..." in small


def test_the_dot_text_of_an_automaton_has_its_states_and_edges() -> None:
    dot = draw(regex('(ab|a[c-f]*)+"'), format="dot")
    assert (dot.splitlines()[0], dot.splitlines()[-1]) == ("digraph {", "}")
    nodes, edges = (set(re.findall(r"^  (\d+) \[", dot, re.M)), re.findall(r'^  (\d+) -> (\d+) \[label="(.*)"\];', dot, re.M))
    assert len(nodes) == 1  # the accepting one
    assert {"a", "b", "[c-f]", '\\"'} <= {label for _, _, label in edges}
    assert {str(number) for number in range(1, 6)} == {end for *ends, _ in edges for end in ends}
    beyond = draw(TokenFSM(regex("(yes|no){9}"), Vocabulary([b"yes", b"no", None], [2])), format="dot", max_states=3)
    assert beyond.count('label="..."') == 1
    with pytest.raises(ValueError, match="'svg', 'dot' or 'table', received 'png'"):
        draw(regex("a"), format="png")  # type: ignore[arg-type]


PICTURED = regex("(ab|a[c-f]*)+(x|<&>é(h{22}|i{23})?)")
TOKENS = [b"a", b"b", b"ab", b"c", b"d", b"e", b"f", b"x", "<&>é".encode(), b"h" * 22, b"i" * 23, b"cd", None]
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize(("name", "options"), [("picture.svg", {}), ("picture_of_three.svg", {"max_states": 3, "max_tokens": 5})])
def test_a_picture_of_tokens_is_the_recorded_one(name: str, options: dict[str, int]) -> None:
    """All kinds of arrows: onwards, back, to the same column and to itself; labels that are cut; ends."""
    assert (GOLDEN / name).read_text(encoding="utf-8") == draw(TokenFSM(PICTURED, Vocabulary(TOKENS, [12])), **options) + "\n"


@pytest.mark.parametrize(
    ("pattern", "label"),
    [
        ("a", "a"), (" ", "␣"), ("[ab]", "[ab]"), ("[a-c]", "[a-c]"), ("[acegi-kmo]", "[acegi-km...]"),
        ("[acegik]", "[acegik]"), ('[^"]', '[^"]'), ("[^a-c]", "[^a-c]"), ("[ !~\x7f\n]", r"[\n␣!~\x7f]"),
        ("[\x01\x00]", r"[\x00\x01]"), ("[é-ö]", "[é-ö]"), ("\U0001f600", "\U0001f600"), ("(?s:.)", "any character"),
        ("to be or not", "to␣be␣or␣not"), ("a ?b", "a␣?b"), ("a{9}|a{9}b", "a"), (r"\d", r"\d"), (r"\W", r"\W"),
        ("[0-9]", "[0-9]"), (r"[\d.]", r"[.\d]"), (r"[\w.-]", r"[-.\w]"), (r"[^\s,]", r"[^,\s]"), ("[a\u0301]", r"[a\u0301]"),
    ],
)  # fmt: skip
def test_an_arrow_bears_its_characters(pattern: str, label: str) -> None:
    texts = ElementTree.fromstring(draw(regex(pattern))).iter(f"{SVG}text")
    assert label in [text.text for text in texts if text.get("class") == "l"]


SETS = st.lists(
    st.sampled_from(["a", "b-e", "X", "0", "7-9", ".", ",", "ä", "α-ω", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"]), min_size=1, max_size=4
)
SOME = [chr(n) for n in [*range(0x250), *range(0x300, 0x500, 3), *range(0x600, 0xD000, 501), 0x660, 0x966, 0x2028, 0x1F600]]


@given(SETS, st.booleans())
def test_a_class_is_written_as_it_is_read(parts: list[str], is_negated: bool) -> None:
    pattern = f"[{'^' * is_negated}{''.join(parts)}]"
    graph = expression_graph(regex(pattern).node, 9)
    labels = [name for names in graph.arrows.values() for one in names.values() for name in one]
    assume(labels)  # else it has no character
    (label,) = labels
    if label != "any character" and not label.endswith("...]"):
        read = re.compile(label.replace("␣", " ") if len(label) > 1 else re.escape(label))
        assert [c for c in SOME if read.fullmatch(c)] == [c for c in SOME if re.fullmatch(pattern, c)]
    assert not any(combining(c) for c in label)


def test_the_table_of_an_automaton_has_a_line_for_each_edge() -> None:
    table = draw(regex("(ab|a[c-f]*)+x?"), format="table").splitlines()
    assert table[:2] == ["  1  a      -> (2)", "(2)  a      -> (2)"]
    assert table[-1] == "(5)"
    graph = expression_graph(regex("(ab|a[c-f]*)+x?").node, 40)
    assert len(table) == sum(map(len, graph.arrows.values())) + 1
    assert (
        draw(TokenFSM(regex("(yes|no){9}"), Vocabulary([b"yes", b"no", None], [2])), format="table", max_states=2)
        == "1  yes no  -> 2\n2  yes no  -> ..."
    )


THREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string", "maxLength": 40}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def _boxes(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every label."""
    found = [r for r in ElementTree.fromstring(svg).iter(f"{SVG}rect") if r.get("class") == "b"]
    sides = [[float(r.get(name) or 0) for name in ("x", "y", "width", "height")] for r in found]
    return [(x, y, x + width, y + height) for x, y, width, height in sides]


@given(st.from_regex(r"[abc]([ab(]{0,6})(|[*+?]|\{2,4\}|\{9,20\})", fullmatch=True), st.lists(st.sampled_from("abcd |*?"), max_size=9))
@example("(ab|a[c-f]*)+(x|<&>é(h{22}|i{23})?)", [])
@example("(abc|abd|xbd)*(x|yes|no){3}", [])
def test_no_label_lies_on_another(start: str, rest: list[str]) -> None:
    try:
        svg = draw(regex(start + "".join(rest)))
    except FSMError:
        reject()
    boxes = _boxes(svg)
    assert boxes or svg.count('class="s"') == 1
    for i, (left, top, right, bottom) in enumerate(boxes):
        for x, y, to_x, to_y in boxes[:i]:
            assert right <= x or to_x <= left or bottom <= y or to_y <= top


DRAWN = {
    "phone.svg": regex(r"\+[1-9]\d{1,3} \d{3,4}( \d{2,4})+"),
    "tokens.svg": TokenFSM(
        choice(["yes", "no", "not sure"]),
        Vocabulary([b"yes", b"no", b"y", b"es", b"n", b"o", b"e", b"s", b"not sure", b" sure", b"t", None], [11]),
    ),
}


@pytest.mark.parametrize("name", DRAWN)
def test_the_pictures_of_the_pages_are_those_that_are_drawn(name: str) -> None:
    picture = GOLDEN.parent.parent / "docs" / "pictures" / name
    assert picture.read_text(encoding="utf-8") == draw(DRAWN[name]) + "\n"


def test_a_schema_of_three_properties_fits_on_a_screen() -> None:
    svg = draw(json_schema(THREE))
    assert (GOLDEN.parent.parent / "docs" / "pictures" / "person.svg").read_text(encoding="utf-8") == svg + "\n"
    root = ElementTree.fromstring(svg)
    assert float(root.get("width") or 0) <= 1280
    assert float(root.get("height") or 0) <= 400
    labels = [text.text for text in root.iter(f"{SVG}text") if text.get("class") == "l"]
    assert '{"name":␣?"' in labels
    assert labels.count("character of a JSON string") == 2


@given(st.from_regex(r"([ab]|\([ab]{1,2}\|b\)|c[*?]|a\{1,3\}| ?){1,6}", fullmatch=True))
def test_a_picture_shows_the_texts_of_its_language(pattern: str) -> None:
    """Read along the arrows of the graph, with `␣?` read as it is meant: exactly the texts of `re`."""
    graph = expression_graph(regex(pattern).node, 400)
    for length in range(5):
        for text in map("".join, product("abc ", repeat=length)):
            assert _is_read(graph, text) == bool(re.fullmatch(pattern, text)), text


def _is_read(graph: StateGraph, text: str) -> bool:
    places = {(graph.order[0], 0)}
    todo = list(places)
    for state, at in todo:
        for target, names in graph.arrows[state].items():
            new = {(target, end) for name in names if (end := _end(name, text, at)) is not None}
            todo += new - places
            places |= new
    return any(at == len(text) and state in graph.accepting for state, at in places)


def _end(label: str, text: str, at: int) -> int | None:
    """Where a label, one way for every text here, ends in a text."""
    pattern = re.sub(r"␣", " ", label)
    found = re.compile(pattern).match(text, at)
    return None if found is None else found.end()


def test_notebooks_show_pictures_and_tables() -> None:
    expression = json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    svg = expression._repr_svg_()
    assert svg is not None
    assert ElementTree.fromstring(svg).tag == f"{SVG}svg"
    table = ElementTree.fromstring(expression.report._repr_html_())
    assert ["checked", "#/uniqueItems"] in [[cell.text for cell in row][:2] for row in table]
    small = TokenFSM(regex("a|b"), Vocabulary([b"a", b"b", None], [2]))._repr_svg_()
    assert small is not None
    assert "a b" in small


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (regex("a{3}|bb"), b"bb"),
        (regex("[^a-z]"), b"0"),
        (json_schema({"type": "array", "minItems": 2, "items": {"type": "integer"}}, whitespace="none"), b"[0,0]"),
        (json_schema({"properties": {"a": {"const": 7}}, "required": ["a"], "type": "object"}), b'{"a":7}'),
    ],
    ids=str,
)
def test_the_shortest_text(expression: object, text: bytes) -> None:
    assert shortest_text(expression.node) == text  # type: ignore[attr-defined]


def test_a_language_with_long_texts_only_is_given_up() -> None:
    assert shortest_text(regex("[ab]{0,9}c{5000}").node, max_states=50) is None


def test_schema_says_how_each_keyword_is_enforced(tmp_path: Path) -> None:
    source, picture = tmp_path / "order.json", tmp_path / "order.svg"
    source.write_text(json.dumps({"type": "array", "items": {"type": "integer"}, "minItems": 1, "uniqueItems": True}))
    done = CliRunner().invoke(app, ["schema", str(source), "--draw", str(picture)])
    assert done.exit_code == 0, done.output
    assert re.search(r"minItems +#/minItems +exact", done.output)
    assert re.search(r"uniqueItems +#/uniqueItems +checked", done.output)
    assert "example: [0]" in done.output
    ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    other = CliRunner().invoke(app, ["schema", str(source), "--draw", str(tmp_path / "order.png")])
    assert (other.exit_code, (tmp_path / "order.png").exists()) == (2, False)
    assert "ends in .svg" in other.output
    refused = CliRunner().invoke(app, ["schema", str(source), "--strict"])
    assert refused.exit_code == 2
    assert "uniqueItems" in refused.output
    assert "Traceback" not in refused.output
