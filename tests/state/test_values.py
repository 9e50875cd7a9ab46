"""Values are what they hold: copies of them are they themselves, equal ones are equal, and what is shown of them says what they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import fsm
from fsm.terms import node as nodes
from fsm.terms.derivative import Derivatives
from fsm.terms.node import Kind
from fsm.terms.rendering import render
from fsm.tokens.token_fsm import TokenFSM
from fsm.tokens.vocabulary import Vocabulary
from outlines_cont import BatchedExecutor, Chat, control, policies
from outlines_cont.policies.text_scan import Alternatives
from tests.chat_models import chat_model
from tests.fakes import FakeTokenizer, random_model

A, B = nodes.literal(b"a"), nodes.literal(b"b")


@pytest.mark.parametrize(
    "value",
    [
        fsm.regex("a+"),
        fsm.json_schema({"type": "integer"}),
        control.Shared(),
        Chat(chat_model("plain")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_copy_of_what_never_changes_is_the_same(value: Any) -> None:
    assert copy.copy(value) is value or isinstance(value, control.Shared)
    assert copy.deepcopy(value) is value
    assert copy.deepcopy([value])[0] is value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Kind.LITERAL, "Kind.LITERAL"),
        (policies.ban({"ab": 0.5}), "ban({'ab': 0.5})"),
        (policies.ban(["ab", "c"]), "ban(['ab', 'c'])"),
        (policies.ban(["a", "b", "c", "d"]), "ban(['a', 'b', 'c', ... (4 of them)])"),
        (policies.replace({"a": "b"}), "replace({'a': 'b'})"),
        (policies.replace({"a": "b"}, at_most=2), "replace({'a': 'b'}, at_most=2)"),
        (Alternatives(policies.ban(["a"]), 2, FakeTokenizer()), "ban(['a'])"),
        (control.Shared(), "Shared({})"),
    ],
)
def test_what_is_shown_says_what_it_is(value: object, shown: str) -> None:
    assert shown == repr(value)


def test_a_term_is_shown_with_its_kind() -> None:
    assert f"<literal {A.serial}>" == repr(A)
    vocabulary = Vocabulary([b"a", b"b", b""], [2])
    assert "Vocabulary(3 tokens, eos_token_ids=" in repr(vocabulary)
    made = TokenFSM(fsm.regex("a"), vocabulary)
    assert f"TokenFSM({made.expression!r}, {vocabulary!r})" == repr(made)
    assert vocabulary.nbytes == vocabulary.trie.nbytes + vocabulary.cache_nbytes > 0


def test_a_conversation_is_shown_with_its_length() -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("the name", seed=7)
        assert f"<Conversation of {len(conversation)} tokens, {len(conversation)} pending>" == repr(conversation)
        assert conversation.seed == 7
        conversation.close()
        assert repr(conversation) == "<Conversation, closed>"


def test_conversations_are_equal_by_template_and_messages() -> None:
    model = chat_model("plain")
    one, other = Chat(model).user("a"), Chat(model).user("a")
    assert one == other
    assert hash(one) == hash(other)
    assert one != one.user("b")
    assert one != "a"
    assert Chat(model)
    assert len(Chat(model)) == 0


def test_terms_without_texts_stay_without() -> None:
    assert nodes.byte_set(0) is nodes.EMPTY
    assert nodes.munch(nodes.EMPTY, A, B) is nodes.munch(A, nodes.EMPTY, B) is nodes.EMPTY
    assert nodes.munch(nodes.EPSILON, A, nodes.EMPTY) is nodes.munch(nodes.EPSILON, A, nodes.EPSILON) is A
    assert Derivatives().is_inhabited(nodes.munch(A, B, nodes.EMPTY))
    assert not Derivatives().is_inhabited(nodes.EMPTY)


def test_what_is_left_as_soon_as_it_cannot_go_on_is_shown_as_its_parts() -> None:
    assert render(nodes.munch(nodes.repeat(A, 1), B, nodes.EMPTY)) == render(nodes.concat(nodes.repeat(A, 1), B))
