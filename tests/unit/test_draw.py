"""Pictures, shortest texts, and the command that shows what a schema means."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fsm import TokenFSM, Vocabulary, draw, json_schema, regex
from fsm.shortest import shortest_text
from outlines_cont.cli import app

SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_of_an_automaton_has_its_states_and_arrows() -> None:
    root = ElementTree.fromstring(draw(regex("(ab|a[c-f]*)+x")))
    circles = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "s"]
    rings = [c for c in root.iter(f"{SVG}circle") if c.get("class") == "e"]
    labels = {text.text for text in root.iter(f"{SVG}text")}
    assert len(circles) == 5
    assert len(rings) == 1
    assert {"a", "b", "c-f", "x"} <= labels


def test_a_picture_of_a_token_fsm_names_tokens_and_ends_somewhere() -> None:
    vocabulary = Vocabulary([b"yes", b"no", b"<", b"&", None], [4])
    labels = {
        t.text for t in ElementTree.fromstring(draw(TokenFSM(regex("(yes|no)[<&]"), vocabulary))).iter(f"{SVG}text")
    }
    assert {"yes no", "< &"} <= labels
    small = draw(TokenFSM(regex("(yes|no){9}"), vocabulary), max_states=3)
    assert small.count('class="s"') == 3
    assert "..." in small


PICTURED = regex("(ab|a[c-f]*)+(x|<&>é(h{22}|i{23})?)")
TOKENS = [b"a", b"b", b"ab", b"c", b"d", b"e", b"f", b"x", "<&>é".encode(), b"h" * 22, b"i" * 23, b"cd", None]
GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize(
    ("name", "options"), [("picture.svg", {}), ("picture_of_three.svg", {"max_states": 3, "max_tokens": 5})]
)
def test_a_picture_of_tokens_is_the_recorded_one(name: str, options: dict[str, int]) -> None:
    """All kinds of arrows: onwards, back, to the same column and to itself; labels that are cut; ends."""
    assert (GOLDEN / name).read_text(encoding="utf-8") == draw(
        TokenFSM(PICTURED, Vocabulary(TOKENS, [12])), **options
    ) + "\n"


@pytest.mark.parametrize(
    ("pattern", "label"),
    [
        ("a", "a"),
        ("[ab]", "a-b"),
        ("[acegi-k]", "a c e g ..."),
        ("[aceg]", "a c e g"),
        ("[ !~\x7f\n]", "0a 20-! ~-7f"),
        ("[\x01\x00]", "00-01"),
    ],
)
def test_an_arrow_bears_its_runs_of_bytes(pattern: str, label: str) -> None:
    texts = ElementTree.fromstring(draw(regex(pattern))).iter(f"{SVG}text")
    assert [label] == [text.text for text in texts if text.get("class") == "l"]


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
    refused = CliRunner().invoke(app, ["schema", str(source), "--strict"])
    assert refused.exit_code == 2
    assert "uniqueItems" in refused.output
    assert "Traceback" not in refused.output
