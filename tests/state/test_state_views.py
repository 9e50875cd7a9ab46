"""What a state shows of itself: spans, bytes that are counted once, and HTML."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from html.parser import HTMLParser

import pytest

from outlines_cont import SequenceState, Span, continuous, generate, kv_bytes
from tests.fakes import random_model


def _chain() -> SequenceState:
    model = random_model()
    state = continuous(generate.choice(model, ["yes <b>&", "no way"]))("the \n<script>")
    return continuous(generate.text(model))(state + " & ", max_tokens=2)


def test_spans_are_all_tokens_with_their_kinds() -> None:
    state = _chain()
    (spans,) = state.spans[0]
    row = state.rows[0][0]
    assert [i for span in spans for i in span.tokens] == list(range(len(row.token_ids)))
    assert "".join(span.text for span in spans) == str(state)
    kinds = [span.kind for span in spans]
    assert (kinds[0], kinds[-1]) == ("prompt", "generated")
    assert {"forced", "appended"} <= set(kinds)
    assert [span.is_piece for span in spans] == [span is spans[-1] for span in spans]
    assert isinstance(spans[0], Span)


class _Text(HTMLParser):
    """The text of the tokens, and how they are marked."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.classes: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        self.classes += [value or "" for name, value in attrs if name == "class"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_shows_every_token_escaped_and_marked() -> None:
    state = _chain()
    html = state._repr_html_()
    parser = _Text()
    parser.feed(html)
    assert parser.open == []
    assert parser.tags == {"style", "div", "span"}
    assert "&lt;script&gt;" in re.sub(r"</?span[^>]*>", "", html)
    row = state.rows[0][0]
    marks = [marks.split() for marks in parser.classes if marks.startswith("t")]
    assert sum("c" in mark for mark in marks) == row.cached + 1, "and the one of the legend"
    assert sum("f" in mark for mark in marks) == row.kinds.count(b"f") + 1
    assert html.count("probability ") >= row.kinds.count(b"g")


def test_html_of_many_and_long_rows_is_cut_and_says_so() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name", max_tokens=1)
    assert "and 4 more rows" in state.fork(20)._repr_html_()
    failed = continuous(generate.text(model))(["the", "x" * 300], max_tokens=1)
    assert "ContextLengthError" in failed._repr_html_()


def test_bytes_of_several_states_count_what_they_share_once() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name of the rose " * 12, max_tokens=1)
    forks = state.fork(16)
    longer = continuous(generate.text(model))(forks, max_tokens=2)
    assert kv_bytes([state, forks, state[:9]]) == state.nbytes
    assert kv_bytes([state, longer]) <= state.nbytes + longer.nbytes - state.nbytes // 2
    assert kv_bytes([]) == 0


def test_a_state_takes_no_other_attributes() -> None:
    state = continuous(generate.text(random_model()))("a", max_tokens=1)
    with pytest.raises(FrozenInstanceError):
        state.note = "mine"  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        state.rows = ()  # type: ignore[misc]
