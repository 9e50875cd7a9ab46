"""Special tokens as symbols, tags and triggers: against enumeration over a tiny vocabulary, and against a parser of its own."""

from __future__ import annotations

import pickle
import re
from functools import cache, reduce
from itertools import product
from operator import add, or_

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fsm import (
    Expression,
    ExpressionError,
    TokenFSM,
    TokenNotAllowed,
    Vocabulary,
    VocabularyError,
    VocabularyGap,
    draw,
    from_interegular,
    json_schema,
    regex,
    special,
    tag,
    triggered,
    until,
)
from fsm.expression import Text, as_bytes, lift
from fsm.pattern.python_pattern import widths
from tests.examples import examples

TOKENS: list[bytes | None] = [None, b"a", b"b", b"ab", b"<", b"<x>", None, None, None]
NAMES = {0: "</s>", 6: "<x>", 7: "é|", 8: "<x>"}
VOCABULARY = Vocabulary(TOKENS, [0], NAMES)
BYTES = Vocabulary([bytes((byte,)) for byte in range(256)] + [None] * 3, [256], {257: "<x>", 258: "é|"})
LETTERS = {"<x>": "\ue000", "é|": "\ue001"}  # how the oracle, `re`, writes them

Pair = tuple[Expression, str]


def _one(name: str) -> Pair:
    return (special(name), LETTERS[name]) if name in LETTERS else (lift(name.removeprefix("=")), re.escape(name[1:]))


def _languages() -> st.SearchStrategy[Pair]:
    """Finite languages of texts and special tokens, each with the pattern of the same language."""
    leaves = st.sampled_from(["=a", "=b", "=ab", "=<x>", "=<", "<x>", "é|"]).map(_one)

    def grown(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
        pairs = st.lists(inner, min_size=2, max_size=3)
        return st.one_of(
            pairs.map(lambda found: (reduce(add, (e for e, _ in found)), "".join(f"(?:{p})" for _, p in found))),
            pairs.map(lambda found: (reduce(or_, (e for e, _ in found)), "|".join(f"(?:{p})" for _, p in found))),
            inner.map(lambda found: (found[0].repeat(0, 2), f"(?:{found[1]}){{0,2}}")),
        )

    return st.recursive(leaves, grown, max_leaves=4)


def _oracle_text(token_ids: tuple[int, ...]) -> str:
    return "".join(LETTERS[NAMES[i]] if i in NAMES else (TOKENS[i] or b"").decode() for i in token_ids)


def _parts(token_ids: tuple[int, ...]) -> Text:
    return [special(NAMES[i]) if i in NAMES else TOKENS[i] or b"" for i in token_ids]


MOST = 4  # characters and special tokens of a text


@cache
def _sequences() -> list[tuple[int, ...]]:
    """All token sequences that may spell such a text."""
    return [ids for size in range(MOST + 1) for ids in product(range(1, len(TOKENS)), repeat=size)]


@settings(max_examples=examples(40), deadline=None)
@given(_languages())
def test_masks_are_those_of_an_enumeration_of_all_texts(pair: Pair) -> None:
    expression, pattern = pair
    assume(widths(pattern).most <= MOST)
    accepted = {ids for ids in _sequences() if re.fullmatch(pattern, _oracle_text(ids))}
    following: dict[tuple[int, ...], set[int]] = {}
    for ids in accepted:
        for size in range(len(ids)):
            following.setdefault(ids[:size], set()).add(ids[size])
        following.setdefault(ids, set()).add(0)
    token_fsm = TokenFSM(expression, VOCABULARY)
    for ids, more in following.items():
        state = token_fsm.initial_state
        for token_id in ids:
            state = token_fsm.next_state(state, token_id)
        assert token_fsm.allowed_token_ids(state).tolist() == sorted(more)
        assert token_fsm.is_accepting(state) == expression.accepts(_parts(ids)) == (ids in accepted)
        for token_id in set(range(1, len(TOKENS))) - more:
            assert not token_fsm.explain(state, token_id).allowed
            with pytest.raises(TokenNotAllowed):
                token_fsm.next_state(state, token_id)
    tables = token_fsm.to_tensors()
    for state, number in enumerate(tables.states.tolist()):
        assert not state or (tables.bitmask(state) == token_fsm.bitmask(number)).all()


@settings(max_examples=examples(60), deadline=None)
@given(_languages(), st.text(st.sampled_from("ab<x>é|"), max_size=6))
def test_letters_never_spell_a_special_token(pair: Pair, text: str) -> None:
    expression, pattern = pair
    assert expression.accepts(text) == bool(re.fullmatch(pattern, text))
    token_fsm = TokenFSM(expression, BYTES)
    state = token_fsm.initial_state
    try:
        for byte in text.encode():
            state = token_fsm.next_state(state, byte)
    except TokenNotAllowed:
        assert not expression.accepts(text)
    else:
        assert expression.accepts(text) == token_fsm.is_accepting(state)
    assert not token_fsm.bitmask(state)[7] >> 31 & 1, "the byte 0xFF is a token, which would begin a symbol"


def test_a_special_token_is_allowed_where_the_mask_takes_too_much_work() -> None:
    symbol, tokens = special("<x>"), [bytes((byte,)) for byte in range(256)]
    language = "-" + regex("(?:(?!a.{20}b).)*") + symbol
    token_fsm = TokenFSM(language, Vocabulary([*tokens, b"abcabc", None, None], [258], {257: "<x>"}), max_mask_work=60)
    state = token_fsm.initial_state
    for byte in b"-ababa":
        state = token_fsm.next_state(state, byte)
    assert {256, 257} <= set(token_fsm.allowed_token_ids(state).tolist())
    assert token_fsm.is_accepting(token_fsm.next_state(state, 257))


def test_languages_of_texts_have_no_special_tokens() -> None:
    symbol = special("<x>")
    for language in (regex("(?s).*"), ~regex("a"), until("b"), ~~regex("a|b"), json_schema({"type": "string"})):
        both = language & (symbol | "ab" | '"s"')
        assert not language.accepts([symbol])
        assert not both.accepts([symbol])
        assert (language | symbol).accepts([symbol])
        assert [language.accepts(text) for text in ("ab", '"s"')] == [both.accepts(text) for text in ("ab", '"s"')]
    mixed = ("a" + symbol) & ("a" + (symbol | "b"))
    assert (mixed.accepts(["a", symbol]), mixed.accepts("ab")) == (True, False)
    assert not (("a" + symbol) & ~regex("b")).accepts(["a", symbol])
    for refused in (lambda: ~mixed, mixed.to_interegular, lambda: special(""), lambda: special(3)):  # type: ignore[arg-type]
        with pytest.raises(ExpressionError):
            refused()
    assert from_interegular(regex("a").to_interegular()).accepts("a")


def test_a_vocabulary_says_which_special_token_it_has_not() -> None:
    for name, advice in [("</s>", "ends a text"), ("ab", "token with letters"), ("<y>", "it has '<x>', 'é|'")]:
        with pytest.raises(VocabularyGap, match=re.escape(repr(name)) + f".*{re.escape(advice)}"):
            TokenFSM(special(name) | "a", VOCABULARY)
    for names in ({1: "a"}, {99: "x"}, {-1: "x"}):
        with pytest.raises(VocabularyError, match="special_tokens"):
            Vocabulary(TOKENS, [0], names)
    assert VOCABULARY.special_ids == {"<x>": 6, "é|": 7}
    assert Vocabulary(TOKENS, [0]).spelled[6] == b""


def test_messages_and_pictures_name_special_tokens() -> None:
    language = special("<x>") + regex("[ab]+") + special("é|")
    token_fsm = TokenFSM(language, VOCABULARY)
    start = token_fsm.initial_state
    refused = token_fsm.explain(start, 7, text="")
    assert (refused.token, refused.position, refused.rest) == (None, None, "<token <x>>[ab]+<token é|>")
    assert "the special token 'é|'" in str(refused)
    assert "expected a special token" in str(token_fsm.explain(start, 1))
    assert token_fsm.explain(start, 8).allowed
    inside = token_fsm.next_state(token_fsm.next_state(start, 6), 1)
    assert "'a', 'b', a special token" in str(token_fsm.explain(inside, 4, text=[special("<x>"), "a"]))
    for drawn in (language, token_fsm):
        assert {"<x>", "é|"} <= set(re.findall(r"<x>|é\|", draw(drawn, format="dot")))
    with pytest.raises(TypeError, match="special tokens"):
        language.accepts([language])
    with pytest.raises(TypeError, match="special tokens"):
        language.accepts(3)  # type: ignore[arg-type]


def test_named_parts_have_the_letters_between_special_tokens() -> None:
    language = (special("<x>") + regex("a*")).named("first") + regex("b+").named("second") + special("é|")
    text = [special("<x>"), "aab", special("é|")]
    assert language.captures(text) == {"first": "aa", "second": "b"}
    again = pickle.loads(pickle.dumps(language))  # noqa: S301
    assert (again, again.specials) == (language, frozenset({"<x>", "é|"}))


# -- triggers: read by a parser that searches for the first end of a trigger ------------------------------------------------------------

PIECES = ["<f", "<", "f", "=a>", "=b>", "1", "12", "</f>", "aab", "a", "b", " ", "<x>"]
TAGS = [("<f=a>", "[0-9]+", "</f>"), ("<f=b>", "1|12|", "</f>"), ("aab", "b*", "<")]
TRIGGERS = ["<f", "aab"]


def _reads(text: str, tags: list[tuple[str, str, str]], triggers: list[str], *, at_least_one: bool, first: bool) -> bool:
    """Whether a text is free text and tags."""

    def from_(start: int, count: int) -> bool:
        ends = [(found + len(mark), mark) for mark in triggers if (found := text.find(mark, start)) >= 0]
        if not ends:
            return (count > 0 or not at_least_one) and (not first or count == 0)
        if first and count:
            return False
        end, mark = min(ends)
        begin = end - len(mark)
        for opening, content, closing in tags:
            if opening.startswith(mark) and text.startswith(opening, begin):
                inside = begin + len(opening)
                for stop in range(inside, len(text) + 1):
                    if re.fullmatch(content, text[inside:stop]) and text.startswith(closing, stop):
                        over = stop + len(closing)
                        if (over == len(text)) if first else from_(over, count + 1):
                            return True
        return False

    return from_(0, 0)


@settings(max_examples=examples(180), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), st.booleans(), st.booleans())
def test_a_trigger_obliges_one_of_its_tags(text: str, at_least_one: bool, first: bool) -> None:
    language = _triggered(at_least_one, first)
    assert language.accepts(text) == _reads(text, TAGS, TRIGGERS, at_least_one=at_least_one, first=first)


@cache
def _triggered(at_least_one: bool, first: bool) -> Expression:
    tags = [tag(begin, regex(content), end) for begin, content, end in TAGS]
    return triggered(tags, TRIGGERS, at_least_one=at_least_one, stop_after_first=first)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from([*PIECES, "\ue000"]), max_size=8).map("".join), st.booleans())
def test_a_special_token_may_be_a_trigger(text: str, at_least_one: bool) -> None:
    symbol = special("<x>")
    tags = [tag(symbol, regex("1+|f"), symbol), tag("<f=a>", regex("[0-9]+"), "</f>"), tag(symbol + "a", "b", "")]
    language = triggered(tags, ["<f", symbol], at_least_one=at_least_one)
    plain = [("\ue000", "1+|f", "\ue000"), ("<f=a>", "[0-9]+", "</f>"), ("\ue000a", "b", "")]
    parts = [part for piece in re.split("(\ue000)", text) for part in [symbol if piece == "\ue000" else piece]]
    expected = _reads(text, plain, ["<f", "\ue000"], at_least_one=at_least_one, first=False)
    assert language.accepts(parts) == expected
    assert as_bytes(parts).count(b"\xff") == 2 * text.count("\ue000")


def test_captures_of_tags_are_those_of_the_last_one() -> None:
    call = tag("<f=", regex("[a-z]+").named("name") + ">" + regex("[0-9]*").named("argument"), "</f>")
    language = triggered([call], ["<f="])
    assert language.captures("Hi <f=add>1</f> and <f=sub></f>.") == {"name": "sub", "argument": ""}
    assert language.captures("Hi < f") == {"name": None, "argument": None}


@pytest.mark.parametrize(
    ("tags", "triggers", "problem"),
    [
        ([], ["<f"], "list of tags"),
        (["<f>"], "<f", "list of triggers"),
        (["<f>", "x"], ["<f"], "begin with a trigger"),
        (["<f>"], ["<f", "<g"], "'<g' begins no tag"),
        (["<f>"], ["<f", "<"], "'<f' contains the trigger '<'"),
        (["<f>"], ["<f", "<f"], "contains the trigger '<f'"),
        (["<f>"], [regex("<f?")], "a text or a special token"),
        ([regex("<f>|")], ["<f"], "begin with a trigger"),
        (["<f>"], [""], "a text or a special token"),
    ],
)  # fmt: skip
def test_triggers_that_cannot_be_kept_are_refused(tags: list[str], triggers: list[str], problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem):
        triggered(tags, triggers)  # type: ignore[arg-type]
