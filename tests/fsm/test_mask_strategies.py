"""Each strategy of masks (an inner law), prefixes and patterns beside counts, against the plain loop over all tokens."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsm import EmptyLanguage, Expression, ExpressionError, TokenFSM, Vocabulary, choice, grammar, json_schema, regex
from fsm.automaton.lazy_dfa import DEAD, Automaton, as_prefix
from fsm.bitmask import to_ids
from fsm.terms import node as nodes
from fsm.terms.members import FieldList, fields
from fsm.terms.node import EMPTY, Node
from fsm.tokens import mask_strategies, walk
from fsm.tokens.mask_strategies import BELOW, STRATEGIES, MaskMaker, Strategy, mask_key
from fsm.tokens.sparse_product import SparseProduct, SparseProducts
from fsm.trie import Trie
from tests.examples import examples
from tests.fsm.test_expression import LANGUAGES
from tests.fsm.test_token_fsm import TOKENS, loops, loops_that_leave_out
from tests.fsm.test_walk import plain_step
from tests.judged import at_least, judged
from tests.walks import check_masks

BODIES = st.sampled_from(
    [
        r"(?:\S+\s+)", r"(?:\s*\S+)", r"(?:[^ ]+ )", r"(?:\w+\W*)", "(?:ab?)", "(?:a|aa)", r"(?:[a-c]+,)", r"(?:\w{1,3} )",
        "[ab]", "(?:é|a) ",
    ]
)  # fmt: skip
ENDS = st.sampled_from([r"\S+", "", r"\w*", "b?", "[a-c]+", r"(?:\.|!)", r"\w+(?: x){0,2}", "é"])
STARTS = st.sampled_from(["", "", "a?", r"\S+", "(?:x|yy) ?", ".*", r"(?!.*  )"])
PIECES = ["a", "b", "ab", " ", "  ", "é", "\xa0", ",", ".", "x", "!", "aa", "bc", "y"]


@st.composite
def patterns(draw: st.DrawFn) -> str:
    lo = draw(st.sampled_from([0, 0, 0, 1, 2, 3]))
    hi = lo + draw(st.integers(0, 5))
    body, counts = draw(BODIES), draw(st.sampled_from([f"{{{lo},{hi}}}", f"{{{lo},{hi}}}", f"{{{lo},}}"]))
    found = f"{draw(STARTS)}{body}{counts}{draw(ENDS)}"
    return draw(st.sampled_from([f"^{found}$", f"^{found}$", found, f"^(?:{found}|x{{2,4}} {body}{{0,2}})$"]))


@st.composite
def strings(draw: st.DrawFn) -> dict[str, object]:
    lo, extra = draw(st.sampled_from([0, 0, 1, 4, 9])), draw(st.integers(0, 12))
    bounds = [{}, {"maxLength": lo + extra}, {"minLength": lo, "maxLength": lo + extra}, {"minLength": lo}]
    schema = {"type": "string", "pattern": draw(patterns()), **draw(st.sampled_from(bounds))}
    return draw(st.sampled_from([schema, schema, {"type": "array", "items": schema, "maxItems": 2}]))


STRATEGIES_PIECES = ["a", "b", "é", "1", ".", ",", '"', " ", "\n", "x", "-"]

RECOGNISED: list[tuple[str, Expression]] = [
    ("alternatives", regex("[^q]*q|x{2,3}")),
    ("character_loop", regex('[^"]{2,9}"')),
    ("stack_by_stack", grammar('start: NAME ("," NAME)* | "(" start ")"\nNAME: /[a-z]+/\n%ignore / +/')),
    ("depth_first", choice(["ab", "ax", "b1"])),
    ("breadth_first", regex("[^a]x|[^b]a")),
    ("loop_after_byte", regex("[a-p][a-z0-9]{1,4}x")),
    ("loop_without_words", (regex("[a-z]*") & ~choice(["ab", "x"])) + "1"),
    ("pattern_and_loop", regex(r"(?:\S+\s+){1,3}\S+") & regex("[^q]{3,12}")),
    ("pattern_and_loop", regex(r"(?:\S+\s+){1,3}\S+") & regex("[^q]*")),
    ("pattern_and_loop", regex(r"(?:\w*\s)?") & regex(r"\w*[a-z ][^\W\d]{2}\s")),
]
"""For each strategy one or more terms that it recognises; `spelled` is for other vocabularies, see `test_token_tables.py`."""


@cache
def strategies_vocabulary() -> Vocabulary:
    words = [a + b + c for a in STRATEGIES_PIECES for b in STRATEGIES_PIECES for c in ["", "a", '"', "1"]]
    found = Vocabulary([None, *(bytes((byte,)) for byte in range(256)), *map(str.encode, words)], [0])
    found.walks_before_a_loop = 0
    return found


def strategies_plain(automaton: Automaton, term: Node, before: bytes) -> list[int]:
    """The loop that every strategy replaces, for the tokens that go on after `before`."""
    state, found = automaton.state_of(term), []
    for token_id, token in enumerate(strategies_vocabulary().tokens):
        rest = token[len(before) :] if token and token.startswith(before) else b""
        if rest and automaton.next_state(state, rest) != DEAD:
            found.append(token_id)
    return found


def assert_plain(strategies: tuple[Strategy, ...], automaton: Automaton, term: Node, before: bytes) -> list[str]:
    """Compare each strategy that recognises `term` below the trie node of `before`; return their names."""
    maker, place = (MaskMaker(automaton, strategies_vocabulary()), strategies_vocabulary().trie.follow(Trie.root, before)[1])
    masks = {strategy.__name__: strategy(maker, term, place) for strategy in strategies}
    made = {name: to_ids(words).tolist() for name, words in masks.items() if words is not None}
    assert dict.fromkeys(made, strategies_plain(automaton, term, before)) == made
    return [*made]


@pytest.mark.parametrize(("name", "expression"), RECOGNISED)
def test_a_strategy_makes_the_mask_of_a_term_that_it_recognises(name: str, expression: Expression) -> None:
    automaton = Automaton(expression.node)
    term = mask_key(expression.node, strategies_vocabulary())
    assert name in assert_plain((*STRATEGIES, *BELOW), automaton, term, b"")


def test_every_strategy_has_an_example() -> None:
    assert {strategy.__name__ for strategy in (*STRATEGIES, *BELOW)} == {*dict(RECOGNISED), "spelled"}


@given(
    st.one_of(
        loops(),
        loops_that_leave_out(),
        LANGUAGES.map(lambda language: language[0]),
        patterns().map(regex),
        st.tuples(patterns(), st.sampled_from([".{0,9}", ".{3,}", r"(?:\w*\s)?", r"(?:[^a]*a){1,3}"])).map(
            lambda pair: regex(pair[0]) & regex(pair[1])
        ),
    ),
    st.sampled_from(STRATEGIES_PIECES).map(str.encode),
)
@settings(max_examples=examples(15), deadline=None)
def test_each_strategy_that_recognises_a_term_makes_the_mask_of_the_plain_loop(expression: Expression, before: bytes) -> None:
    automaton = Automaton(expression.node)
    if automaton.is_empty():
        return
    for state in {1, automaton.next_state(1, before)} - {DEAD}:
        term = automaton.nodes[state]
        key = mask_key(term, strategies_vocabulary())
        assert_plain(STRATEGIES, automaton, key, b"")
        assert key is term or strategies_plain(automaton, key, b"") == strategies_plain(automaton, term, b"")
        assert_plain(BELOW, automaton, key, before)


def test_a_pattern_beside_a_count_below_a_node_where_no_token_goes_on() -> None:
    term = (regex(r"(?:\S+\s+){1,3}\S+") & regex("[^q]{3,12}")).node
    few = Vocabulary([None, *(bytes((byte,)) for byte in range(256)), b"zz"], [0])
    place = few.trie.follow(Trie.root, b"zz")[1]
    words = mask_strategies.pattern_and_loop(MaskMaker(Automaton(term), few), term, place)
    assert words is not None
    assert not words.any()


def test_the_order_of_the_strategies_changes_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    expression, masks = regex('[a-z][a-z0-9]{1,4}"|x{3}'), []
    for strategies in (STRATEGIES, STRATEGIES[-1:], STRATEGIES[:1] + STRATEGIES[:0:-1]):
        monkeypatch.setattr(mask_strategies, "STRATEGIES", strategies)
        strategies_vocabulary().masks.clear()
        masks.append(TokenFSM(expression, strategies_vocabulary()).bitmask(1).tolist())
    assert masks[:1] * 3 == masks


DIGIT = nodes.byte_range(0x30, 0x39)
PREFIX_PIECES = st.sampled_from([b"0", b"1", b"12", b"-", b".", b"e", b"e-", b"1.5", b",", b", ", b"1,", b"}", b'"', b"}]"])
TEXTS = st.lists(st.lists(PREFIX_PIECES, min_size=1, max_size=4).map(b"".join), min_size=1, max_size=40)


def literals(*texts: bytes) -> st.SearchStrategy[nodes.Node]:
    return st.sampled_from([nodes.literal(text) for text in texts])


def terms(max_size: int = 3) -> st.SearchStrategy[nodes.Node]:
    """Digits, points and exponents, some of which may be missing: what numbers are made of."""
    digits = st.builds(lambda lo, more: nodes.repeat(DIGIT, lo, None if more > 4 else lo + more), *2 * [st.integers(0, 5)])
    one = st.one_of(digits, literals(b".", b"e", b"-", b"1,"))
    some = st.lists(one, min_size=1, max_size=3).map(nodes.sequence)
    either = st.lists(some, min_size=1, max_size=3).map(nodes.alternation)
    return st.lists(st.one_of(some, either.map(nodes.optional)), min_size=1, max_size=max_size).map(nodes.sequence)


RESTS = st.one_of(literals(b",", b", ", b"}", b"1", b".5}", b"e1"), terms(2))


@given(terms(), TEXTS, st.integers(0, 40))
@settings(max_examples=examples(60), deadline=None)
def test_a_prefix_lists_what_stays_inside_and_where_it_may_end(term: nodes.Node, texts: list[bytes], start: int) -> None:
    trie = Trie(texts)
    automaton = SparseProducts(trie, 1 << 20, Automaton)._narrow_automaton(term)
    assert automaton is not None
    start %= len(trie)
    prefix = SparseProduct(automaton, trie, start)
    below = {label: text for label, text in enumerate(texts) if (at := path(trie, start)) != text and text.startswith(at)}
    inside = {label: text[len(path(trie, start)) :] for label, text in below.items()}
    plain = Automaton(term)
    assert prefix.is_complete
    assert sorted(prefix.inside()) == [label for label, text in inside.items() if plain_step(plain, 1, text) != DEAD]
    expected = {
        (text[:end], text[end])
        for text in inside.values()
        for end in range(len(text))
        if (state := plain_step(plain, 1, text[:end])) != DEAD and plain.is_accepting(state)
    }
    found = {(path(trie, node)[len(path(trie, start)) :], byte) for byte in range(256) for node, _ in prefix.exits({byte})}
    assert found == expected


def path(trie: Trie, node: int) -> bytes:
    """The text that leads to a node."""
    text = b""
    while node:
        text, node = bytes((trie.byte[node],)) + text, int(trie.parent[node])
    return text


@at_least(20)
@given(terms(), RESTS)
@settings(max_examples=examples(120), deadline=None)
def test_a_term_is_its_prefix_and_what_comes_after(term: nodes.Node, rest: nodes.Node) -> None:
    whole = nodes.concat(term, rest)
    found = as_prefix(whole)
    if found is not None:
        prefix, after = found
        judged()
        assert nodes.concat(prefix, after) is whole


def test_a_prefix_that_takes_too_long_is_left_to_a_walk() -> None:
    texts = [f"{number:04d}".encode() for number in range(10_000)]
    tokens = [None, *(bytes((b,)) for b in range(256)), *texts]
    vocabulary = Vocabulary(tokens, [0])
    fsm = TokenFSM(json_schema({"type": "integer"}), vocabulary)
    state = fsm.next_state(fsm.initial_state, 1 + ord("7"))
    term, _ = as_prefix(nodes.concat(fsm.automaton.nodes[state], nodes.literal(b"}"))) or (None, None)
    assert term is not None
    assert vocabulary.sparse.prefix(term, Trie.root) is None
    assert set(fsm.allowed_token_ids(state)) >= {257 + int(text) for text in texts}


def test_schemas_share_what_they_know_of_numbers() -> None:
    vocabulary = Vocabulary([None, *(bytes((b,)) for b in range(256))], [0])
    sizes = []
    for key in ("a", "price", "total"):
        fsm = TokenFSM(json_schema({"type": "object", "properties": {key: {"type": "number"}}, "required": [key]}), vocabulary)
        state = fsm.initial_state
        for byte in f'{{"{key}": 12.5e'.encode():
            fsm.bitmask(state)
            state = fsm.next_state(state, 1 + byte)
        sizes.append(len(vocabulary.sparse.known))
    assert sizes[0] > 0
    assert sizes == sizes[:1] * 3


KEYS = [b"a:", b"ab:", b"b:", b"ba:", b"c:"]
END = nodes.literal(b"}")


@given(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), st.sets(st.integers(0, 4)), st.booleans())
def test_a_run_is_every_selection_in_order(keys: list[bytes], dead: set[int], last_is_required: bool) -> None:
    values = tuple(EMPTY if place in dead else nodes.literal(b"1") for place in range(len(keys)))
    stop = EMPTY if last_is_required else END
    run = fields(FieldList(tuple(keys), values, nodes.literal(b","), stop, END))
    automaton = Automaton(run)
    wanted = set()
    for chosen in product([False, True], repeat=len(keys)):
        picked = [place for place, is_in in enumerate(chosen) if is_in]
        if picked and not dead.intersection(picked) and (chosen[-1] or not last_is_required):
            wanted.add(b",".join(keys[place] + b"1" for place in picked) + b"}")
    texts = {b",".join(key + b"1" for key in some) + b"}" for n in range(1, 4) for some in product(KEYS, repeat=n)}
    assert {text for text in texts | wanted if automaton.accepts(text)} == wanted
    assert automaton.is_empty() == (not wanted)


def test_a_run_equal_in_content_is_the_same_term() -> None:
    first, second = (fields(FieldList((b"a", b"b"), (END, END), nodes.literal(b","), END, END)) for _ in range(2))
    assert first is second


def test_a_word_that_begins_another_is_refused() -> None:
    for words in ((b"a", b"ab"), (b"a", b"a"), ()):
        with pytest.raises(ExpressionError):
            FieldList(words, (END,) * len(words), END, END, END)


FIELDS_PIECES = st.sampled_from([*KEYS, b"a", b"b", b":", b"1", b",", b"1,a", b"1,b", b"}", b"ba", b"c:1", b"1}"])


@st.composite
def runs(draw: st.DrawFn) -> Expression:
    """Members in order of which some cannot be, alone and before something else."""
    keys, dead = draw(st.lists(st.sampled_from(KEYS), min_size=1, unique=True)), draw(st.sets(st.integers(0, 4)))
    values = tuple(EMPTY if place in dead else nodes.literal(b"1") for place in range(len(keys)))
    run = fields(FieldList(tuple(keys), values, nodes.literal(b","), draw(st.sampled_from([EMPTY, END])), END))
    return Expression(draw(st.sampled_from([run, nodes.concat(run, nodes.literal(b"!"))])))


LEFT_OUT = st.tuples(
    st.sampled_from([r"[^\n]*", r'[^"\n]*', "[a-z-]*"]),
    st.sampled_from(["a+b", "a*", "(ab)*", "a+b|b", "[ab]{2,3}", "x-.*"]),
    st.sampled_from(['"', '"\n', "b\n", "a", "\n", '-"']),
) | st.tuples(
    st.just("[a-z]*"),
    st.lists(st.text("abz", min_size=1, max_size=3), min_size=1, max_size=3).map("|".join),
    st.sampled_from(["b", "1", "bc", "-", "a-", "[b-d]", "é"]),
)
"""A loop, a language without which it is, and what follows, maybe with a letter of the loop, so that no token tells where it ends."""
BESIDE = st.sampled_from([".{0,9}", ".{3,}", r"[ -~\n]{4,20}", "[a-z ]{2,6}", r"(?:\w*\s)?", r"(?:[^a]*a){1,3}"])
ABOVE = st.sampled_from(["", "", "", '"', '["', '", "'])
BELOW_TEXT = st.sampled_from(["", "", "", '"', '", ', '"]'])
WORDS = st.builds("{}{}{}".format, ABOVE, st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).map("".join), BELOW_TEXT).map(
    str.encode
)
LETTERS = [bytes((97 + i % 26, 97 + i // 26)) for i in range(120)]
SOURCES: dict[str, tuple[st.SearchStrategy[Expression], st.SearchStrategy[list[bytes]]]] = {
    "loops": (loops(), TOKENS),
    "loops and many letters": (
        loops(),
        st.integers(40, 120).map(lambda n: [before + one for before in (b'"', b"\\n", b"") for one in LETTERS[:n]]),
    ),
    "loops that leave texts out": (loops_that_leave_out(), TOKENS),
    "loops that leave a language out": (
        LEFT_OUT.map(lambda parts: (regex(parts[0]) & ~regex(parts[1])) + regex(parts[2])),
        TOKENS.map(lambda extra: [*extra, *b'ab"\n,aab\n,b",x-a,ab,zzz,abb,ab-,b-,aa1,abc,bbc,z-a'.split(b",")]),
    ),
    "expressions": (LANGUAGES.map(lambda language: language[0]), TOKENS),
    "patterns": (patterns().map(regex), st.lists(WORDS, max_size=100)),
    "patterns beside counts": (st.builds(lambda one, other: regex(one) & regex(other), patterns(), BESIDE), st.lists(WORDS, max_size=100)),
    "strings": (strings().map(json_schema), st.lists(WORDS, max_size=100)),
    "numbers": (st.builds(nodes.concat, terms(), RESTS).filter(lambda node: node.kind is not nodes.Kind.EPSILON).map(Expression), TEXTS),
    "members": (runs(), st.lists(st.lists(FIELDS_PIECES, min_size=1, max_size=4).map(b"".join), min_size=1, max_size=30)),
}
"""Languages of which masks are made in ways of their own, with tokens that go along, besides all bytes."""


@pytest.mark.parametrize("name", SOURCES)
@settings(max_examples=examples(12), deadline=None)
@given(st.data())
def test_a_mask_is_what_a_walk_of_every_token_finds(name: str, data: st.DataObject) -> None:
    """So does `python -m tests.fuzz masks`, for as long as wanted."""
    languages, texts = SOURCES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Vocabulary, "sweeps_before_exits", data.draw(st.sampled_from([0, 1, 24])))
        patch.setattr(walk, "MAX_TAIL_NODES", data.draw(st.sampled_from([0, walk.MAX_TAIL_NODES])))
        patch.setattr(Vocabulary, "walks_before_a_loop", data.draw(st.sampled_from([0, 0, Vocabulary.walks_before_a_loop])))
        if data.draw(st.booleans()):  # let no narrow walk come before
            patch.setattr(mask_strategies, "FEW_BYTES", 0)
            patch.setattr(mask_strategies, "_is_narrow", lambda maker, state: False)
        try:
            expression = data.draw(languages)
            token_fsm = TokenFSM(expression, Vocabulary([None, *(bytes((b,)) for b in range(256)), *data.draw(texts)], [0]))
        except EmptyLanguage:
            return
        check_masks(token_fsm, lambda going_on: data.draw(st.sampled_from(going_on)))


@given(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), st.binary(max_size=6))
def test_reading_a_run_at_once_is_reading_it_byte_by_byte(keys: list[bytes], text: bytes) -> None:
    run = fields(FieldList(tuple(keys), (nodes.literal(b"1"),) * len(keys), nodes.literal(b","), END, END))
    for data in (text, keys[0] + text, keys[0][:1] + text, keys[-1] + b"1," + keys[-1][:1]):
        automaton = Automaton(run)
        state = automaton.initial_state
        for byte in data:
            state = automaton.moves(state).get(byte, DEAD) if state else DEAD
        at_once = Automaton(run)
        assert at_once.nodes[at_once.next_state(at_once.initial_state, data)] is automaton.nodes[state]
