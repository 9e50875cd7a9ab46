"""Whether a term of maximal munch has a text (`fsm/terms/rivals.py`), against a search of its derivatives, which are few here; and of
terms that refer to themselves, whose derivatives are not, against the texts that are found.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import event, given
from hypothesis import strategies as st

from fsm.errors import BudgetExceeded, ExpressionError
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import EMPTY, EPSILON, Node
from fsm.terms.rule import Rules

MAX_STATES = 400
A, B, C = (nodes.literal(letter) for letter in (b"a", b"b", b"c"))
ALPHABETS = [nodes.ALL_BYTES, *(sum(1 << byte for byte in letters) for letters in (b"ab", b"ac", b"a"))]

heads = st.recursive(
    st.sampled_from([A, B, C, nodes.byte_range(0x61, 0x63), nodes.literal(b"ab")]),
    lambda inner: st.one_of(
        st.builds(nodes.concat, inner, inner),
        st.builds(lambda *members: nodes.alternation(members), inner, inner),
        st.builds(lambda body, least, more: nodes.repeat(body, least, None if more > 2 else least + more), inner,
                  st.integers(0, 2), st.integers(0, 3)),
    ),
    max_leaves=4,
)  # fmt: skip
rivals = st.one_of(st.just(EMPTY), heads)


def terms(leaves: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    """Terms with a MUNCH here and there: behind heads, alone, in loops, in alternatives and between other terms."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(nodes.concat, inner, inner),
            st.builds(lambda *members: nodes.alternation(members), inner, inner),
            st.builds(nodes.munch, heads, inner, rivals),
            st.builds(nodes.munch, st.just(EPSILON), inner, rivals),
            st.builds(nodes.munch, heads, st.just(EPSILON), rivals),
            st.builds(lambda body, least, more: nodes.repeat(body, least, None if more > 2 else least + more), inner,
                      st.integers(0, 2), st.integers(0, 3)),
        ),
        max_leaves=6,
    )  # fmt: skip


def searched(root: Node, alphabet: int) -> bool | None:
    """Whether a derivative of `root` accepts; None where none of the first ones does and there are more, or one takes too much work."""
    derivatives = Derivatives()

    def targets(term: Node) -> list[Node]:
        return [target for mask, target in derivatives.arcs(term) if mask & alphabet]

    with suppress(BudgetExceeded):
        for count, term in enumerate(nodes.reached(root, targets)):
            if term.nullable:
                return True
            if count > MAX_STATES:
                return None
        return False
    return None


def same(root: Node, alphabet: int) -> None:
    """The answer is that of the search, for the term and for its derivatives."""
    derivatives = Derivatives()
    for term in [root, *(target for _, target in derivatives.arcs(root))]:
        expected = searched(term, alphabet)
        event(f"a text: {expected}")
        if expected is not None:
            assert derivatives.is_inhabited(term, alphabet) is expected
            assert Derivatives().is_inhabited(term, alphabet) is expected


@given(terms(heads), st.sampled_from(ALPHABETS))
def test_a_term_has_a_text_where_a_derivative_accepts(root: Node, alphabet: int) -> None:
    same(root, alphabet)


@given(st.data(), st.sampled_from(ALPHABETS))
def test_a_rule_has_a_text_where_a_derivative_accepts(data: st.DataObject, alphabet: int) -> None:
    rules = Rules()
    named = [rules.rule(name, has_munch=True) for name in "xy"]
    leaves = st.one_of(heads, st.sampled_from([rule.term for rule in named]))
    for rule in named:
        body = nodes.concat(data.draw(heads), data.draw(terms(leaves)))
        rule.define(nodes.concat(A, body) if body.nullable else body)
    with suppress(ExpressionError):  # left recursion
        same(rules.entrance(named[0]), alphabet)
