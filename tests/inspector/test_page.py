"""The page of the inspector without a browser: what it shows is complete and exact, and no text in it is anything but data."""

from __future__ import annotations

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from outlines_cont import SequenceState, continuous, generate, models, policies, samplers
from outlines_cont.errors import OptionError
from outlines_cont.inspector.page import embedded, page
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state import inspection as module
from outlines_cont.state.inspection import inspection
from outlines_cont.state.row import StateRow
from tests.examples import examples
from tests.fakes import FakeTokenizer, recurrent_network, tiny

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["item", "quantity"],
    "properties": {"item": {"type": "string", "maxLength": 20}, "quantity": {"type": "integer"}},
}
PROMPT = "Message: Please send 3 lamps by 2026-05-04.\nOrder: "
ID, TEXT, KIND, LOGPROB, SAMPLED, MORE = range(6)


@pytest.fixture(scope="module")
def model() -> Any:
    return models.tiny(dtype="float64")


@pytest.fixture(scope="module")
def order(model: Any) -> SequenceState:
    return continuous(generate.json(model, SCHEMA, sampler=samplers.multinomial(2)))(PROMPT, rng=1)


def shown(state: SequenceState, top: int = 0, first: int = 0) -> dict[str, Any]:
    return inspection(state.model, state.rows, top, first)


def expanded(data: dict[str, Any]) -> list[list[Any]]:
    """The tokens of each row, as the page puts them together."""
    rows: list[list[Any]] = []
    for row in data["rows"]:
        other, count = row["shared"]
        rows.append([*(rows[other][:count] if count else []), *row["tokens"]])
    return rows


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_every_token_is_shown_as_the_state_has_it(order: SequenceState) -> None:
    for row, tokens in zip(order._flat, expanded(shown(order)), strict=True):
        assert [token[ID] for token in tokens] == list(row.token_ids)
        assert "".join(token[KIND] for token in tokens).encode() == row.kinds
        assert "".join(token[TEXT] for token in tokens) == row.text(order.tokenizer)
        known = [token[LOGPROB] for token in tokens]
        assert [value is None for value in known] == [kind in b"pa" for kind in row.kinds]
        assert [value or 0.0 for value in known] == pytest.approx(row.logprobs, abs=1e-5)


TEXTS = st.lists(st.sampled_from(["a", "b", "ü", "漢", "😀", "</script>", "\n", " c"]), max_size=5).map("".join)


@settings(max_examples=examples(15))
@given(st.lists(TEXTS.filter(bool), min_size=1, max_size=5), TEXTS)
def test_rows_that_share_tokens_are_put_together_again(texts: list[str], front: str) -> None:
    small = tiny()
    ids = [small.tokenizer.encode(front + text) for text in texts]
    found = expanded(inspection(small, tuple((StateRow.of_prompt(each, RandomStream(1)),) for each in ids)))
    assert [[token[ID] for token in tokens] for tokens in found] == ids
    assert ["".join(token[TEXT] for token in tokens) for tokens in found] == [front + text for text in texts]


def test_shared_tokens_are_there_once(order: SequenceState) -> None:
    first, second = shown(order, top=3)["rows"]
    assert first["shared"] == [0, 0]
    assert second["shared"][1] >= len(order.tokenizer.encode(PROMPT, add_special_tokens=True))
    assert len(first["tokens"]) + len(second["tokens"]) < sum(len(row.token_ids) for row in order._flat)


@pytest.mark.parametrize("chunk_bytes", [1, 30_000, 64 << 20])
def test_probabilities_are_those_of_a_plain_forward(
    model: Any, order: SequenceState, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes)
    for row, tokens in zip(order._flat, expanded(shown(order, top=5)), strict=True):
        logits = model.hugging_face(torch.tensor([row.token_ids])).logits[0].detach()
        plain = logits.log_softmax(-1)
        for index, token in enumerate(tokens[1:], 1):
            line, look = plain[index - 1], token[MORE]
            assert look["model"] == pytest.approx(float(line[token[ID]]), abs=2e-5)
            assert look["entropy"] == pytest.approx(float(torch.distributions.Categorical(logits=line).entropy()) / 0.693147181, abs=2e-5)
            assert [one[0] for one in look["top"]] == line.topk(5).indices.tolist()
            assert [one[2] for one in look["top"]] == pytest.approx(line.topk(5).values.tolist(), abs=2e-5)


def test_what_the_constraint_allows_is_that_of_the_token_fsm(model: Any, order: SequenceState) -> None:
    row, tokens = order._flat[0], expanded(shown(order, top=4))[0]
    token_fsm = fsm.TokenFSM(fsm.json_schema(SCHEMA), model.memo["vocabulary"])
    plain = model.hugging_face(torch.tensor([row.token_ids])).logits[0].detach().log_softmax(-1)
    state = token_fsm.initial_state
    assert row.piece is not None
    for index in range(row.piece.start, len(row.token_ids)):
        allowed, look, line = token_fsm.allowed_token_ids(state), tokens[index][MORE], plain[index - 1]
        inside = line[torch.tensor(allowed.tolist())]
        assert look["allowed"] == len(allowed)
        assert look["masked"] == pytest.approx(1 - float(inside.exp().sum()), abs=2e-5)
        best = min(4, len(allowed))
        assert [one[2] for one in look["inside"]] == pytest.approx((inside - inside.logsumexp(0)).topk(best).values.tolist(), abs=2e-5)
        forbidden = [one[0] for one in look["top"] if one[0] not in allowed]
        assert ("why" in look) == bool(forbidden)
        if forbidden:
            assert f"token {forbidden[0]} " in look["why"]
        state = token_fsm.next_state(state, row.token_ids[index])
    assert [index for index, token in enumerate(tokens) if "allowed" in token[MORE]] == list(range(row.piece.start, len(tokens)))


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
DISTINCT = {"type": "array", "prefixItems": [DIGIT], "items": DIGIT, "uniqueItems": True, "minItems": 2, "maxItems": 4}


@pytest.mark.parametrize(
    ("make", "prompt", "options"),
    [
        (lambda model: generate.regex(model, " ?[a-z]{6}"), "Message: Hello th", {"heal": True}),
        (lambda model: generate.json(model, DISTINCT, sampler=samplers.multinomial(2)), "Numbers: ", {"rng": 1}),
        (lambda model: generate.regex(model, "[a-z]{6}", sampler=samplers.beam_search(3)), "Message: ", {}),
        (lambda model: generate.cfg(model, 'start: "a" start "b" | "-"'), "x", {"max_tokens": 6}),
    ],
    ids=["healed", "checked", "beams", "grammar"],
)
def test_every_token_of_the_last_span_is_allowed_where_it_is(model: Any, make: Any, prompt: str, options: dict[str, Any]) -> None:
    state = continuous(make(model))(prompt, **options)
    for row, tokens in zip(state._flat, expanded(shown(state, top=model.vocab_size)), strict=True):
        assert row.piece is not None
        assert len(tokens) > row.piece.start
        for token in tokens[row.piece.start :]:
            allowed = [one[0] for one in token[MORE]["inside"]]
            assert token[ID] in allowed
            assert len(allowed) == token[MORE]["allowed"]


def test_what_is_not_known_any_more_is_not_shown(model: Any, tmp_path: Path) -> None:
    state = continuous(generate.choice(model, ["yes", "no"]))("Message: Hello. Yes? ")
    state.save(tmp_path / "state")
    for other in (state + ".", state[:12], SequenceState.load(tmp_path / "state", model)):
        tokens = expanded(shown(other, top=2))[0]
        assert all("top" in token[MORE] for token in tokens[1:])
        assert not any("allowed" in token[MORE] for token in tokens)


@pytest.mark.parametrize("chunk_bytes", [100, 64 << 20])
def test_a_recurrent_model_is_read_as_well(chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.from_transformers(recurrent_network().double(), FakeTokenizer())
    monkeypatch.setattr(module, "_CHUNK_BYTES", chunk_bytes * 4)
    state = continuous(generate.text(model))("the name", max_tokens=3)
    tokens = expanded(shown(state, top=1))[0]
    plain = model.hugging_face(torch.tensor([state._flat[0].token_ids])).logits[0].detach().log_softmax(-1)
    found = [token[MORE]["model"] for token in tokens[1:]]
    assert found == pytest.approx([float(line[token[ID]]) for line, token in zip(plain, tokens[1:], strict=False)], abs=1e-4)


def test_logits_are_computed_for_the_last_positions_alone(model: Any, order: SequenceState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_POSITIONS", 7)
    with model.meter() as meter:
        tokens = expanded(shown(order, top=2))
    assert meter.fed_tokens <= 7 + 2  # and the last token of each row, where it was not fed yet
    assert [index for index, token in enumerate(tokens[0]) if "top" in token[MORE]] == list(range(len(tokens[0]) - 7, len(tokens[0])))
    with model.meter() as meter:
        shown(order)
    assert meter.forwards == 0


def test_what_was_refused_is_shown_where_it_was(model: Any) -> None:
    plain = continuous(generate.text(model))("Message: Hello", max_tokens=4)
    word = str(plain)[len("Message: Hello") :].split()[-1]
    banned = continuous(generate.text(model))("Message: Hello", max_tokens=8, policies=[policies.ban([word])])
    retried = [token for token in expanded(shown(banned))[0] if token[MORE].get("retries")]
    assert retried
    assert any(word.startswith(text.strip()) for token in retried for text in token[MORE]["refused"])


def test_drafted_tokens_are_those_that_the_meter_counts(model: Any) -> None:
    copy, message = generate.regex(model, "[a-z ]{1,60}"), "Message: please send the blue desk lamps to the office\nCopy: please send the"
    with model.meter() as meter:
        drafted = continuous(copy)(message, max_tokens=30, draft="lookup")
    marked = [token for token in expanded(shown(drafted))[0] if "drafted" in token[MORE]]
    assert len(marked) == meter.accepted_tokens > 0
    assert {token[KIND] for token in marked} == {"g"}
    undrafted = continuous(copy)(message, max_tokens=30)
    assert undrafted == drafted
    assert not any("drafted" in token[MORE] for token in expanded(shown(undrafted))[0])


def test_tokens_that_were_not_fed_again_are_counted(model: Any) -> None:
    begun = continuous(generate.text(model))("Message: Hello, this is", max_tokens=5)
    with model.meter() as meter:
        longer = continuous(generate.regex(model, " [a-z]{3}"))(begun.tokens[:7] + " and")
    (row,) = shown(longer)["rows"]
    assert row["reused"] == 7 == meter.reused_tokens
    (row,) = shown(begun)["rows"]
    assert row["reused"] == 0


def test_a_row_that_has_failed_is_shown_with_its_error(model: Any) -> None:
    ended = continuous(generate.text(model))([PROMPT, ""], max_tokens=2)
    good, bad = shown(ended, top=2)["rows"]
    assert good["error"] == ""
    assert bad["error"].startswith("EmptyPrompt: ")


def test_a_part_of_a_character_is_shown_with_its_bytes(model: Any) -> None:
    token_ids = model.tokenizer.encode_inside("漢", ())
    assert len(token_ids) == 3
    row = StateRow.of_prompt(model.tokenizer.encode("a") + token_ids, RandomStream(1))
    (tokens,) = expanded(inspection(model, ((row,),)))
    assert [token[TEXT] for token in tokens[-3:]] == ["", "", "漢"]
    assert [token[MORE].get("bytes") for token in tokens[-3:]] == ["e6", "bc", None]


# -- the file ----------------------------------------------------------------------------------------------------------

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "]]><img src=x onerror=alert(1)>",
    "{{js}} {{data}} ${alert(1)}",
    "\u2028\u2029\x00\ud800",
    '"; alert(1); "',
]


@given(
    st.recursive(
        st.text() | st.sampled_from(HOSTILE) | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_values_are_themselves_and_cannot_end_the_script(value: Any) -> None:
    text = embedded({"value": value})
    assert json.loads(text) == {"value": value}
    assert text.isascii()
    assert not re.search("[<>&]", text)


@pytest.mark.parametrize("text", HOSTILE)
def test_the_page_has_two_scripts_and_its_data_whatever_is_in_it(text: str) -> None:
    made = page({"rows": [], "text": text}, title=text)
    found = re.findall(r"<script([^>]*)>(.*?)</script>", made, re.DOTALL)
    assert [kind for kind, _ in found] == [' type="application/json" id="data"', ' type="module"']
    assert json.loads(found[0][1]) == {"rows": [], "text": text}
    assert made.count("<script") == made.count("</script>") == 2


def test_the_page_needs_nothing_from_elsewhere() -> None:
    made = page({"rows": []})
    assert "connect-src 'none'" in made
    assert "connect-src 'self'" in page({"rows": []}, is_live=True)
    assert not re.findall(r"(?:src|href)=|@import|url\(|\bimport\(|https?://|innerHTML|insertAdjacentHTML|document\.write", made)


def test_a_state_writes_its_page(order: SequenceState, tmp_path: Path) -> None:
    order.inspect(tmp_path / "page.html", top=2)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])
    assert data == shown(order, top=2)
    with pytest.raises(OptionError, match="expected a number of tokens from 0 to 1000 as `top`, got -1"):
        order.inspect(tmp_path / "other.html", top=-1)
    assert not (tmp_path / "other.html").exists()


def framed(html: str) -> dict[str, Any]:
    """The data of a page in a notebook, by a parser of HTML."""
    attributes: dict[str, str | None] = {}

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert tag in ("iframe", "details", "summary", "pre")
            attributes.update(attrs if tag == "iframe" else ())

    Parser().feed(html)
    assert attributes["sandbox"] == "allow-scripts"
    return json.loads(re.findall(r'id="data">(.*?)</script>', attributes["srcdoc"] or "")[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("text", [one.encode(errors="replace").decode() for one in HOSTILE])
def test_a_notebook_shows_the_page_in_a_frame_without_rights(text: str) -> None:
    state = continuous(generate.text(models.tiny()))(text, max_tokens=1)
    assert framed(state._repr_html_()) == shown(state) | {"more": 0}
    assert escape(str(state)) in state._repr_html_()


def test_a_notebook_shows_some_rows_and_their_last_tokens(model: Any) -> None:
    row = StateRow.of_prompt([300] * 2_500, RandomStream(1))
    data = framed(SequenceState(model, ((row,),) * 20, 1)._repr_html_())
    assert (data["first"], data["more"], len(data["rows"])) == (500, 4, 16)
    assert [row["shared"] for row in data["rows"]] == [[0, 0]] + [[0, 2_000]] * 15
