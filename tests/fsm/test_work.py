"""Budgets of work: what one mask may take, where it ends, and what is as good as before."""

from __future__ import annotations

import threading

import pytest

from fsm import BudgetExceeded, Expression, TokenFSM, Vocabulary, regex
from fsm.limits import work_bound
from fsm.terms import node as nodes
from fsm.terms import work
from fsm.terms.derivative import Derivatives
from fsm.terms.rule import Rule

Tokens = tuple[list[bytes | None], list[int]]
ENTANGLED = "(?:(?!a.{20}b).)*c"
"""Its states know at which of the last 20 characters an `a` was."""


def vocabulary(tokens: Tokens) -> Vocabulary:
    return Vocabulary(*tokens)


def test_what_takes_too_much_is_refused_with_the_name_of_the_bound() -> None:
    with work_bound("max_mask_work", 10, "one thing"):
        work.add(10)
        work.check()
        work.add(1)
        with pytest.raises(BudgetExceeded, match="one thing takes more than 10 .* raise `max_mask_work`") as caught:
            work.check()
    assert (caught.value.limit, caught.value.value) == ("max_mask_work", 10)
    work.check()


def test_the_nearer_of_two_bounds_counts() -> None:
    with work_bound("outer", 5, "all"), work_bound("inner", 100, "a part"):
        work.add(6)
        with pytest.raises(BudgetExceeded) as caught:
            work.check()
    assert caught.value.limit == "outer"
    with work_bound("outer", 100, "all"):
        with work_bound("inner", 5, "a part"):
            work.add(6)
        work.check()


def test_a_thread_has_its_own_work() -> None:
    found: list[int] = []
    work.add(7)
    thread = threading.Thread(target=lambda: found.append(work.done()))
    thread.start()
    thread.join()
    assert found == [0]


def test_building_a_rule_is_no_work_of_those_who_come_to_it() -> None:
    def build() -> nodes.Node:
        work.add(1_000)
        work.check()
        return nodes.literal(b"x")

    before = work.done()
    with work_bound("max_mask_work", 10, "one thing"):
        assert Derivatives().arcs(Rule("rule", build).term)
    assert work.done() - before <= 10


def test_a_budget_that_cannot_be_kept_refuses_when_the_constraint_is_made(sentencepiece_32k: Tokens) -> None:
    with pytest.raises(BudgetExceeded, match="max_mask_work") as caught:
        TokenFSM(regex(ENTANGLED), vocabulary(sentencepiece_32k), max_mask_work=300)
    assert (caught.value.limit, caught.value.value) == ("max_mask_work", 300)


LATE = "<" + ENTANGLED.replace("20", "9")
"""It is entangled behind its first byte."""


def test_a_mask_beyond_its_budget_is_made_slowly_and_is_the_same(sentencepiece_32k: Tokens) -> None:
    shared = vocabulary(sentencepiece_32k)
    wide = TokenFSM(regex(LATE), shared, max_mask_work=10**9)
    state = wide.automaton.next_state(wide.initial_state, b"<ab")
    before = work.done()
    expected = wide.allowed_token_ids(state).tolist()
    needed = work.done() - before
    shared.clear_cache()
    small = TokenFSM(regex(LATE), shared, max_mask_work=needed // 2)
    state = small.automaton.next_state(small.initial_state, b"<ab")
    assert expected == small.allowed_token_ids(state).tolist()


def test_a_text_that_has_begun_can_be_finished_in_short_tokens(sentencepiece_32k: Tokens) -> None:
    tokens, eos = sentencepiece_32k
    small = TokenFSM(regex(LATE), Vocabulary(tokens, eos), max_mask_work=300)
    wide = TokenFSM(regex(LATE), Vocabulary(tokens, eos), max_mask_work=10**9)
    states = [one.automaton.next_state(one.initial_state, b"<ab") for one in (small, wide)]
    with pytest.warns(RuntimeWarning, match="can be finished, but it is written in smaller pieces"):
        allowed = set(small.allowed_token_ids(states[0]).tolist())
    expected = set(wide.allowed_token_ids(states[1]).tolist())
    longest = max(len(tokens[token_id] or b"") for token_id in allowed)
    assert 1 <= longest < max(len(tokens[token_id] or b"") for token_id in expected)
    assert {token_id for token_id in expected if len(tokens[token_id] or b"") <= longest} == allowed
    end = small.next_state(states[0], next(t for t in allowed if tokens[t] == b"c"))
    assert small.is_accepting(end)


def test_a_mask_within_its_budget_is_what_it_is_without_one(sentencepiece_32k: Tokens) -> None:
    tokens, eos = sentencepiece_32k
    small = TokenFSM(regex(ENTANGLED.replace("20", "2")), Vocabulary(tokens, eos))
    wide = TokenFSM(regex(ENTANGLED.replace("20", "2")), Vocabulary(tokens, eos), max_mask_work=10**9)
    for text in (b"", b"a", b"aba", b"abaa"):
        states = [one.automaton.next_state(one.initial_state, text) for one in (small, wide)]
        assert small.allowed_token_ids(states[0]).tolist() == wide.allowed_token_ids(states[1]).tolist()


PATTERNS = [
    r"\w+@\w+\.(com|org)",
    r"(?=.*\d)(?=.*[A-Z]).{8,40}",
    r"(\w+\s?)+[.!?]",
    r"(?:(?!-->).)*-->",
    r".*a.{20}",
    r"(?:\b\w+\b\W*)+",
    r"(a|b)*a(a|b){16}",
    r"(?:(?!x{1,5000}y)[a-z]){1,100000}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_that_makes_sense_is_far_from_the_budget(pattern: str, sentencepiece_32k: Tokens) -> None:
    token_fsm = TokenFSM(regex(pattern), vocabulary(sentencepiece_32k))
    state = token_fsm.initial_state
    for byte in b"aXxxxxx1xxx":
        before = work.done()
        token_fsm.bitmask(state)
        assert work.done() - before < token_fsm.max_mask_work / 4
        target = token_fsm.automaton.next_state(state, bytes((byte,)))
        state = target or state


def test_what_is_excluded_again_and_again_stays_one_condition() -> None:
    token_fsm = regex("(?:(?!x{1,5000}y)[a-z]){1,100000}")
    derivatives, node = Derivatives(), token_fsm.node
    for _ in range(300):
        node = derivatives.after(node, ord("x"))
    before = work.done()
    derivatives.after(node, ord("x"))
    assert work.done() - before < 300


def test_a_round_of_one_loop_is_united_once_for_all_ways_to_begin_it() -> None:
    tails = [
        nodes.concat(nodes.repeat(regex(".").node, 3 * n, 3 * n), nodes.literal(bytes((n,)))) for n in range(1, 30)
    ]
    before = work.done()
    Derivatives().arcs(nodes.alternation(tails))
    assert work.done() - before < 250


def test_a_search_for_a_text_goes_where_an_end_seems_near() -> None:
    words = ["name", "tags", "when", "vars", "hosts", "roles"]
    node = nodes.intersection([(regex(".*") + regex(word) + regex(".*!")).node for word in words])
    assert Derivatives(max_search=1_000).is_inhabited(node)


def test_a_token_fsm_takes_its_budget_from_its_maker() -> None:
    expression: Expression = regex("a+")
    token_fsm = TokenFSM(expression, Vocabulary([b"a", None], [1]), max_mask_work=50)
    assert token_fsm.max_mask_work == 50
