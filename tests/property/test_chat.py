"""A conversation has the ids that its template gives, whatever was done to it, and feeds what is new alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Chat, generate
from tests.chat_models import TEMPLATES, chat_model

_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["user", "text", "choice", "json", "say", "back", "slice", "fork"]), st.integers(0, 9)),
    min_size=3,
    max_size=7,
)
_SAYS = ["Hi there.", "And now?\n", " <|im_end|></s>[INST] é🙂", "  ", "<think>no</think> yes"]
_CHOICES = ["yes", "no thanks", "<|im_end|>", "<think>\nhm\n</think>\n\nGood day"]


@cache
def _generators(kind: str) -> dict[str, Any]:
    model = chat_model(kind)
    return {
        "text": generate.text(model),
        "choice": generate.choice(model, _CHOICES),
        "json": generate.json(
            model,
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}},
                "required": ["n"],
            },
        ),
    }


def _common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _ids(chat: Chat) -> list[int]:
    return list(chat.state.rows[0][0].token_ids)


def _given(chat: Chat) -> list[int]:
    """What transformers makes of the messages, special tokens in messages marked as letters by a plain replacement."""
    tokenizer: Any = chat.model.tokenizer
    names = tokenizer.special_tokens.values()
    messages = chat.messages
    for message in messages:
        for name in names:
            message["content"] = message["content"].replace(name, name[0] + "\x00" + name[1:])
    text = tokenizer.hugging_face.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.hugging_face(text, add_special_tokens=False)["input_ids"]
    return list(ids) if "\x00" not in text else []


def _check(chat: Chat, last: Chat) -> None:
    """Compare texts and ids with those of the template, and what is new with what is fed."""
    if not chat._is_reply:
        text = chat._template.text(chat.messages, is_open=True)
        assert text == str(chat.state)
        given_ids = _given(chat)
        replies = [turn.text for turn in chat._turns if turn.message["role"] == "assistant"]
        if given_ids and not replies:
            assert given_ids == _ids(chat)
        # What was written is kept; else the ids are those of the template.
        common = _common(_ids(last), _ids(chat))
        if given_ids and common < len(given_ids):
            tail = len(_ids(chat)) - common
            assert given_ids[-1:] == _ids(chat)[-1:] or tail == 0


@pytest.mark.parametrize("kind", TEMPLATES)
@settings(max_examples=12, deadline=None)
@given(_ACTIONS)
def test_a_conversation_spells_what_its_template_writes_and_feeds_what_is_new(
    kind: str, actions: list[tuple[str, int]]
) -> None:
    model, generators = chat_model(kind), _generators(kind)
    chat = Chat(model, rng=0).system("Be kind.").user("Hello.")
    for action, number in actions:
        last = chat
        held = int(chat.state.cached)
        before = _ids(chat)
        if action == "user":
            chat = chat.user(_SAYS[number % len(_SAYS)])
        elif action == "say":
            chat = chat.assistant(_CHOICES[number % len(_CHOICES)])
        elif action == "back":
            chat = chat.back() if len(chat) > 3 else chat
            chat = chat if len(chat) > 1 else chat.user("Once more.")
        elif action == "slice":
            chat = chat[: max(len(chat) - number % 3, 2)]
        elif action == "fork":
            chat = chat.fork(2)[1]
        else:
            opened = _ids(chat)
            with model.meter() as meter:
                chat = chat.assistant(generators[action], max_tokens=12)
            after = _ids(chat)
            assert opened == after[: len(opened)]
            assert str(last.state) + chat.messages[-1]["content"][
                len(last.messages[-1]["content"]) * last._is_reply :
            ] == str(chat.state)
            fed = int(chat.state.cached) - min(held, len(opened))
            assert meter.fed_tokens <= fed + 1  # less where other conversations have left a prefix of it
            assert meter.recomputed_tokens <= 1
        kept = _common(before, _ids(chat))
        assert int(chat.state.cached) >= min(held, kept) - 1
        _check(chat, last)
