"""`regex` and `ecma_search`: what is refused and how, hostile patterns, the size of what is made; counts and what `re.match` takes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from fsm import regex
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import BudgetExceeded, ExpressionError, RegexSyntaxError, SchemaError, UnsupportedRegex
from fsm.pattern.ecma_pattern import backtracking_matcher, ecma_search
from fsm.pattern.leftmost_first import simplest
from fsm.pattern.python_pattern import MAX_PATTERN_DEPTH, looks_outside, preferred_texts, without_last_look
from fsm.terms import node as nodes
from fsm.terms.characters import json_spelling, json_text, utf8
from fsm.terms.derivative import Derivatives
from fsm.terms.state_elimination import as_loops
from tests.examples import examples


def num_states_after(pattern: str, text: str) -> int:
    """States of the automaton that have been made when it has read `text`."""
    automaton = Automaton(regex(pattern).node)
    assert automaton.next_state(automaton.initial_state, text.encode()) != DEAD
    return len(automaton)


@pytest.mark.parametrize(
    ("pattern", "position", "advice"),
    [
        ("(ab|c", 0, "Close the group"),
        ("ab)c", 2, "Remove the ')'"),
        ("[a", 0, "Close the class"),
        ("*a", 0, "Put something before"),
        ("a**", 2, "Put a group around"),
        ("a\\", 1, "for a backslash"),
        (r"\q", 0, "Remove the backslash"),
        ("[b-a]", 1, "lower character first"),
        ("a{2,1}", 2, "smaller count first"),
        ("a(?i)b", 1, "Move the flags"),
        ("a{99999999999}", None, "Leave the upper count out"),
    ],
)
def test_a_syntax_error_says_where_and_what_to_do(pattern: str, position: int | None, advice: str) -> None:
    with pytest.raises(RegexSyntaxError, match=re.escape(advice)) as caught:
        regex(pattern)
    assert position == caught.value.position
    assert pattern == caught.value.pattern


@pytest.mark.parametrize(
    ("pattern", "construct", "advice"),
    [
        (r"(a)\1", "back-reference", "list the alternatives"),
        (r"(?P<n>a)(?P=n)", "back-reference", "list the alternatives"),
        (r"(a)?(?(1)b|c)", "conditional group", "alternatives"),
        (r"(?<=(?=a).)c", "lookahead inside a lookbehind", "Write it outside"),
        (r"(?:(?=aa)a)*" * 9, "more than 8 lookarounds", "patterns of their own"),
        (r"(?:(?=a)|b){3,9}", "may be a whole iteration", "Take it out of the repetition"),
        ("(?:" * 60 + "(?!b)[ab]" + "x?){2}" * 60, "inside more than 50 groups", "Take it out"),
        (r"(?>a+)b", "atomic group", "(?:...)"),
        (r"a++b", "possessive", "Leave out the last '+'"),
    ],
)
def test_what_is_not_regular_is_refused_by_name(pattern: str, construct: str, advice: str) -> None:
    with pytest.raises(UnsupportedRegex, match=re.escape(construct)) as caught:
        regex(pattern)
    assert advice in str(caught.value)


@pytest.mark.parametrize(("value", "advice"), [(b"a", "Decode"), (re.compile("a"), r"\.pattern"), (3, "int"), (None, "NoneType")])
def test_what_is_not_text_is_refused(value: object, advice: str) -> None:
    with pytest.raises(ExpressionError, match=advice):
        regex(value)  # type: ignore[arg-type]


def test_a_doubtful_class_gives_the_warning_of_re() -> None:
    with pytest.raises(RegexSyntaxError, match="nested set"):  # warnings are errors in these tests
        regex("[[a]")
    with pytest.warns(FutureWarning, match="nested set"):
        assert regex("[[a]").accepts("[")


def test_a_surrogate_matches_nothing() -> None:
    assert regex(r"\ud800").is_empty()
    assert not regex("a\ud800").accepts("a\ud800")
    assert regex(r"[\ud800a]").accepts("a")


def test_a_lookaround_sees_its_own_expression_only() -> None:
    assert (regex("a(?!b)") + "b").accepts("ab")
    assert not (regex("a(?=b)") + "b").accepts("ab")
    assert ("a" + regex(r"\bb") + "c").accepts("abc")
    assert (regex("(?:(?!ab).)*") + regex("(?:(?!ab).)*")).accepts("abab"[:2] + "b")


def test_ascii_is_an_argument_and_a_flag() -> None:
    assert regex(r"\d").accepts("٣")
    assert not regex(r"\d", ascii=True).accepts("٣")
    assert not regex(r"(?a)\d").accepts("٣")
    assert regex("(?i)k").accepts("\u212a")
    assert not regex("(?i)k", ascii=True).accepts("\u212a")


def test_a_long_alternation_makes_few_states_and_is_one_set_where_it_has_words_alone() -> None:
    words = ["".join(random.Random(i).choices("abcdefghij", k=4 + i % 9)) for i in range(20_000)]
    pattern = "|".join(words)
    assert nodes.Kind.WORDS is regex(pattern).node.kind
    assert num_states_after(pattern, words[77]) <= 100
    assert num_states_after("|".join(word + r"\d?" for word in words[:3000]), words[77]) <= 100


@pytest.mark.parametrize(
    ("limit", "most", "pattern"),
    [
        ("max_pattern_depth", MAX_PATTERN_DEPTH, "(" * 5_000 + "a" + ")" * 5_000),
        ("max_pattern_depth", MAX_PATTERN_DEPTH, "(" * 100_000 + "a" + ")" * 100_000),
        # the comment's '[' hides the groups from the count, and the parser sees them
        ("max_pattern_depth", MAX_PATTERN_DEPTH, "(?x) # [\n" + "(" * 5_000 + "a" + ")" * 5_000),
        ("max_pattern_length", 1_000_000, "a" * 1_000_001),
    ],
    ids=["deep", "deeper", "hidden", "long"],
)
def test_what_is_too_deep_or_too_long_is_refused_with_the_limit(limit: str, most: int, pattern: str) -> None:
    with pytest.raises(BudgetExceeded) as caught:
        regex(pattern)
    assert (limit, most) == (caught.value.limit, caught.value.value)


def test_nesting_up_to_the_limit_is_read_and_brackets_in_classes_do_not_count() -> None:
    depth = MAX_PATTERN_DEPTH
    assert regex("(?:" * depth + "a" + ")" * depth).accepts("a")
    assert regex("[(]" * (depth + 1)).accepts("(" * (depth + 1))
    assert regex(r"\(" * (depth + 1)).accepts("(" * (depth + 1))
    assert regex("[](]" * (depth + 1)).accepts("(" * (depth + 1))


def test_a_step_that_unites_too_much_is_refused_with_the_limit() -> None:
    term = regex("(?:" * 100 + "a" + "b?){1,3}" * 100).node
    automaton = Automaton(term)
    automaton.derivatives = Derivatives(max_step=5000)
    with pytest.raises(BudgetExceeded) as caught:
        automaton.accepts(b"ab" * 1000)
    assert caught.value.limit == "max_step"


ONE = nodes.byte_range(0x61, 0x63)


def test_a_union_with_a_long_common_head_needs_no_recursion() -> None:
    head = [nodes.byte_range(0x61, 0x62)] * 5000
    united = nodes.alternation(nodes.sequence([*head, nodes.literal(c)]) for c in (b"xx", b"y", b"z"))
    tail = nodes.alternation((nodes.literal(b"xx"), nodes.literal(b"y"), nodes.literal(b"z")))
    assert nodes.sequence([*head, tail]) is united


def test_neighbouring_loops_of_one_body_join() -> None:
    assert nodes.repeat(ONE, 3, 7) is nodes.concat(nodes.repeat(ONE, 1, 2), nodes.repeat(ONE, 2, 5))
    assert nodes.repeat(ONE, 2) is nodes.sequence([nodes.repeat(ONE, 2, 2), nodes.repeat(ONE), nodes.repeat(ONE, 0, 4)])


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("^foo$", ["foo"], ["foo\n", "foo\\n", "xfoo"]),
        (r"^\cC$|^\t$", ["\x03", "\t"], ["C", "t"]),
        (r"^\cc$", ["\x03"], ["c"]),
        (r"^\d$", ["0"], ["৪", "a"]),
        (r"^\D$", ["৪"], ["0"]),
        (r"^\w$", ["a", "_"], ["é"]),
        (r"^\s$", [" ", "\t", "\v", "\f", "\u00a0", "\ufeff", "\n", "\u2029", "\u2003"], ["\x01", "\u2013", "\x1c", "\x85"]),
        (r"\p{Letter}cole", ["Les hivers de mon enfance: l'école", "l'ecole"], ["L'ÉCOLE", "1cole"]),
        (r"^\p{Lu}\P{L}$", ["É5"], ["é5", "Éa"]),
        (r"^[\p{Nd}x-]+$", ["৪x-"], ["y"]),
        ("^🐲*$", ["", "🐲🐲"], ["🐉", "🐲\ud83d"]),
        (r"^[\ud83d\udc32-\u{1F433}]$", ["🐲", "🐳"], ["🐉"]),
        (r"^\u{1F432}\/\-\@$", ["🐲/-@"], []),
        ("^[^]$", ["\n"], ["", "aa"]),
        ("a[]|b", ["b"], ["a", "a[]"]),
        (r"^[\w-.]+$", ["a-.b"], ["a b"]),
        (r"^[\b]$", ["\b"], ["b"]),
        (r"^\0$", ["\x00"], ["0"]),
        ("^(?<year>[0-9]{4})?$", ["2026", ""], ["202"]),
        (r"^\S(|(.|\n)*\S)$", ["a b", "x"], [" a", "a "]),
        ("^a{,2}$|^]}{$", ["a{,2}", "]}{"], ["aa"]),
        ("^x{2}?y{1,}z{0,1}$", ["xxy", "xxyyz"], ["xy"]),
        (r"^\a\_\i$", ["a_i"], ["\a_i"]),
        (r"^\u12\xg0$", ["u12xg0"], []),
        (r"^\u{2}$", ["\x02"], ["uu"]),
        (r"^\u{1000000}$|^\cé\pL$", ["\\cépL"], ["éL"]),
        (r"^\00\012[\8](a)[\2]$", ["\x00\n8a\x02"], ["0", "8aa"]),
        (r"^\k<n>[\B\d-x]$", ["k<n>B", "k<n>-", "k<n>5"], ["k<n>e"]),
        ("^(?=a)*a|(?=b)?[[:x:]]$", ["a", "x]"], ["b"]),
        (r"^(?i)a\x42[c-d][^e]$", ["aBcx", "AbDF"], ["abee", "abcE"]),
        (r"^((?i)a|b)(?i:c(?-i:d))e$", ["ACde", "BCde"], ["aCDe", "acdE"]),
        ("^(?i)straße{2}$", ["STRAßEE"], ["strasse"]),
        ("^(?s).(?-s:.)(?P<n>x)$", ["\n x"], ["\n\nx"]),
        (r"^(?im:A$.^b)", [], ["a\n"]),
        (r"(?m:^b$)", ["b", "a\nb", "b\r", "\u2028b\u2029c"], ["ab", "b\u0085"]),
        (r"(?m)^(?s:a.b)$(?-m:$)", ["x\na\nb"], ["a\nb\n", "a\n"]),
        (r"^(?:(?<y>\d{4})-\d|\d-(?<y>\d{2}))$", ["2026-1", "1-26"], ["26-1"]),
        (r"^(?<y>a)$|^b\k<y>(?<y>c)$", ["a", "bc"], ["ba", "bca"]),
        (r"^\p{ASCII}$", ["a", "~", "0"], ["é", "\u0080", "ab", ""]),
        (r"^\p{Any}$", ["a", "é", "😀"], ["", "ab"]),
        (r"^\p{Assigned}$", ["a", "é"], ["\u0378", "ab"]),
        (r"^\P{ASCII}$", ["é", "😀"], ["a", ""]),
    ],
)
def test_ecma_search_reads_the_dialect_of_json_schema(pattern: str, found: list[str], missed: list[str]) -> None:
    plain, spelled = Automaton(ecma_search(pattern, utf8)), Automaton(ecma_search(pattern, json_spelling))
    for text in found:
        assert plain.accepts(text.encode()), text
        assert spelled.accepts(json_text(text)), text
    for text in missed:
        assert not plain.accepts(text.encode("utf-8", "surrogatepass")), text


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        (r"^(?:(?<y>a)|(?<y>b))\k<y>$", ["aa", "bb"], ["ab", "ba", "a"]),
        (r"^(?:(?:(?<y>a)|(?<y>b))\k<y>)+$", ["aabb", "bbaa"], ["aab", "abab"]),
        (r"^(?:(?<y>a)|(?<y>b))*\k<y>$", ["", "abb", "baa"], ["ab"]),
        (r"^(?:(?<y>a)|c|(?<y>b)){2}\k<y>{2}$", ["cbbb", "ac", "bc"], ["cb", "abb"]),
        (r"^(?i:(?<y>a)|(?<y>b))(?i:\k<y>)$", ["aA", "Bb"], ["aB"]),
        (r"^(?m:^(.)\1$\n)+$", ["aa\n", "aa\nbb\n"], ["aab\n"]),
    ],
)
def test_groups_of_one_name_and_flags_of_groups_are_matched_by_backtracking(pattern: str, found: list[str], missed: list[str]) -> None:
    matcher = backtracking_matcher(pattern)
    assert [matcher.found_in(text) for text in (*found, *missed)] == [True] * len(found) + [False] * len(missed)


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(a", "unclosed group"),
        ("a)", r"unmatched '\)'"),
        ("[a", "unclosed class"),
        ("[b-a]", "range out of order"),
        ("+a", "nothing to repeat"),
        ("a**", "nothing to repeat"),
        ("^*", "nothing to repeat"),
        ("{2}", "nothing to repeat"),
        ("a{2,1}", "counts out of order"),
        ("a{9999999999999999}", "a count above"),
        ("\\", "a backslash at the end"),
        (r"\p{Greek}", r"no Unicode property is named 'Greek'.*Did you mean '\\p\{Script=Greek\}'"),
        (r"\p{RGI_Emoji}", "property of strings"),
        (r"\p{}", "no Unicode property"),
        (r"\1", r"a back-reference \('\\1'\) to a group that the pattern does not have"),
        (r"(a)\2", "a group that the pattern does not have"),
        (r"(?<n>a)\k<m>", "a group that the pattern does not have"),
        (r"(?<n>a)\k", "without the name of a group"),
        (r"\b*", r"a quantifier after '\\b'"),
        (r"a\B?", r"a quantifier after '\\B'"),
        ("(?<=a)*b", "a quantifier after a lookbehind"),
        ("(?<!a){2}b", "a quantifier after a lookbehind"),
        ("(?=" * 51 + "a" + ")" * 51, "more than 50 lookarounds inside one another"),
        (r"(a)\1", "back-reference.*not supported"),
        (r"(?<n>a)\k<n>", "back-reference.*not supported"),
        ("(?<=(?=a).)c", "lookahead inside a lookbehind.*not supported"),
        ("(?x)a", "inline flag that is not part of ECMA-262"),
        ("(?-:a)", "inline flag that is not part of ECMA-262"),
        ("(?ii:a)", "a flag twice"),
        ("(?m-im:a)", "a flag twice"),
        ("(?<n>a)|b(?:(?<n>c)|(?<n>d)(?<n>e))", "is taken"),
        ("(?<n>a(?<n>b))", "is taken"),
        (r"(?:(?<n>a)|(?<n>b))\k<n>", "back-reference.*not supported"),
        ("(?P=n)a", "syntax of Python"),
        ("a++", "nothing to repeat"),
        (r"\Aa\Z", "not part of ECMA-262"),
        ("(?#note)", "unknown kind of group"),
        ("(?<1>a)", "not an identifier"),
        ("(?<n>a)(?<n>b)", "is taken"),
    ],
)
def test_ecma_search_refuses_with_the_pointer(pattern: str, problem: str) -> None:
    with pytest.raises(SchemaError, match=problem) as caught:
        ecma_search(pattern, utf8, pointer="/properties/a/pattern")
    assert caught.value.pointer == "#/properties/a/pattern"


def test_ecma_search_is_not_deep() -> None:
    depth = 20_000
    term = ecma_search("^" + "(" * depth + "ab" + ")" * depth + "$", utf8)
    assert nodes.literal(b"ab") is term


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?:^|a){1,20}", r"(?:$|a|\n){2,20}", r"(?:^|$|a){2,20}", r"(?:a(?<!b))" * 20, r"(?:a*(?<!b))?(?:^|a)b?",
        r"(?:(?<!^)|a){2,4}",
    ],
)  # fmt: skip
def test_anchors_in_counted_loops_and_many_short_lookbehinds_mean_what_they_mean_to_re(pattern: str) -> None:
    texts = [
        "", "a", "b", "ab", "aa", "a\n", "\n", "a\na", *("a" * n + end for n in (19, 20, 21) for end in ("", "\n")),
    ]  # fmt: skip
    expression = regex(pattern)
    assert [re.fullmatch(pattern, text) is not None for text in texts] == [expression.accepts(text) for text in texts]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", [r"(?:a*(?<!b))", r"(?:a*(?<!é))", r"(?:a*(?<![bc]))?", r"(?:a*(?<!b))*"])
def test_loops_with_lookbehinds_in_a_row_take_a_time_that_does_not_multiply(pattern: str) -> None:
    """`re`, which would try all ways to divide the letters among the loops, is not asked."""
    expression = regex(pattern * 20)
    assert all(expression.accepts("a" * count) for count in (0, 1, 19, 20, 21, 200))
    assert not any(expression.accepts("a" * count + "b") for count in (0, 1, 19, 20, 21, 200))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", [r"(?:a*(?<!bb))", r"(?:a*(?!bb))"])
def test_loops_with_lookarounds_at_several_characters_are_refused_beyond_eight(pattern: str) -> None:
    assert regex(pattern * 8).accepts("a" * 30)
    for count in (9, 20, 200):
        with pytest.raises(UnsupportedRegex, match="more than 8 lookarounds"):
            regex(pattern * count)


@pytest.mark.parametrize("pattern", ["a", r"\ba\b", "(?<=b)a(?!b)", r"a(?!b\b)", "(?:(?!b)a)", r"-\b"])
def test_only_a_last_look_at_what_follows_is_divided_from_a_pattern(pattern: str) -> None:
    assert without_last_look(pattern) is None
    assert without_last_look("(?:a(?!b))") is not None


_LONGEST = 20


def _ranges(most: int) -> Iterator[tuple[int, int | None]]:
    """Every range up to `most`, and those without an end."""
    for low in range(most + 1):
        yield from ((low, high) for high in range(low, most + 1))
        yield low, None


def _sums(inner: tuple[int, int | None], outer: tuple[int, int | None]) -> set[int]:
    """The lengths, up to `_LONGEST`, of some numbers out of `inner`, as many as `outer` says, one after the other."""
    (least, most), (low, high) = inner, outer
    numbers = [n for n in range(_LONGEST + 1) if n >= least and (most is None or n <= most)]
    reached, found = {0}, set[int]()
    for turn in range(_LONGEST + 2 if high is None else high + 1):
        found |= reached if turn >= low else set()
        reached = {total + n for total in reached for n in numbers if total + n <= _LONGEST}
    return found


def _pattern(bounds: tuple[int, int | None]) -> str:
    low, high = bounds
    return f"{{{low},}}" if high is None else f"{{{low},{high}}}"


@pytest.mark.parametrize("body", ["a", "(?:ab|cd)"])
def test_a_loop_of_a_loop_takes_the_sums_of_its_counts(body: str) -> None:
    text = "a" if body == "a" else "ab"
    for inner, outer in product(_ranges(4), _ranges(3)):
        expression = regex(f"(?:{body}{_pattern(inner)}){_pattern(outer)}")
        taken = {n for n in range(_LONGEST + 1) if expression.accepts(text * n)}
        assert _sums(inner, outer) == taken, (inner, outer)
        # Both are one loop of the body where no count is left out.
        node = nodes.repeat(nodes.repeat(ONE, *inner), *outer)
        if node not in (nodes.EPSILON, ONE):
            assert (node.args[0] is ONE) == (taken == {*range(min(taken), max(taken) + 1)}), (inner, outer)


TEXTS = ["".join(text) for length in range(6) for text in product("abx", repeat=length)]
ATOMS = st.sampled_from(["a", "b", "ab", "[ab]", ".", "x", "", "(?!b)", "(?<!a)", "(?=a|x)", r"(?<=b)"])
COUNTS = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{1,3}?", "{2,}?"])


def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.builds("(?:{}){}".format, inner, COUNTS),
    )


@given(st.recursive(ATOMS, grow, max_leaves=10))
@example("x|xa")
@example("a?(?:ab)?")
@example("(?:|a)*")
@example("(?:a??b)*?x")
@example("(?:a|a)a+")
@example("(?:(?!b)|[ab]){1,3}")
@example("(?:|a|)*a+?b")
@example("(?:(?:ab|x|)(?<=b))*")
@settings(max_examples=examples(54), deadline=None)
def test_it_is_what_match_takes(pattern: str) -> None:
    pattern = f"[ab]{pattern}[bx]" if re.search("[!=]", pattern) else pattern
    assume(not looks_outside(pattern))
    try:
        taken = preferred_texts(pattern)
    except UnsupportedRegex:
        assume(False)
    expected = re.compile(pattern)
    for automaton in (Automaton(as_loops(taken) or taken), Automaton(taken)):
        found = {text: expected.match(text) for text in TEXTS}
        assert [t for t, match in found.items() if automaton.accepts(t.encode()) != bool(match and match.end() == len(t))] == []
    language = regex(pattern).node
    whole = Automaton(language)
    is_all = all(automaton.accepts(text.encode()) == whole.accepts(text.encode()) for text in TEXTS)
    assert is_all or simplest(taken, language) is taken
