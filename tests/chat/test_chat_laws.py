"""A conversation has the ids that its template gives, whatever was done to it, and feeds what is new alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Chat, generate
from outlines_cont.state.row import written
from tests.chat_models import TEMPLATES, chat_model
from tests.examples import examples

_ACTIONS = st.lists(
    st.tuples(st.sampled_from(["user", "text", "choice", "json", "say", "back", "slice", "fork"]), st.integers(0, 9)),
    min_size=3,
    max_size=7,
)
_SAYS = [
    "Hi there.",
    "And now?\n",
    " <|im_end|></s>[INST] é🙂",
    "  ",
    "<think>no</think> yes",
    "<tool_call>{}</tool_call>[TOOL_CALLS]<|eot_id|>",
    "<|start_header_id|><thi<think>nk><|im_<|im_start|>end|>",
]
_CHOICES = ["yes", "no thanks", "<|im_end|>", "<think>\nhm\n</think>\n\nGood day"]


@cache
def _generators(kind: str) -> dict[str, Any]:
    model = chat_model(kind)
    return {
        "text": generate.text(model),
        "choice": generate.choice(model, _CHOICES, exact=False),
        "json": generate.json(
            model, {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 99}}, "required": ["n"]}
        ),
    }


def _common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _ids(chat: Chat) -> list[int]:
    return list(chat.state.rows[0][0].token_ids)


def _placed(tokenizer: Any, token_ids: Sequence[int]) -> list[tuple[int, int, int]]:
    """Each token with the bytes of the text that it begins before and ends before."""
    ends = [0, *accumulate(map(len, written(token_ids, tokenizer)))]
    return list(zip(ends[:-1], ends[1:], token_ids, strict=True))


def _reply_spans(chat: Chat, text: str) -> list[tuple[int, int]]:
    """Where the replies stand in the text of a conversation, in bytes, as far as the template has left them there."""
    spans, at = [], 0
    for message in chat.messages:
        content = message["content"].split("</think>")[-1].strip()
        start = text.find(content, at)
        if start >= 0:
            at = start + len(content)
            if message["role"] == "assistant":
                spans.append((len(text[:start].encode()), len(text[:at].encode())))
    return spans


def _wanted_units(chat: Chat) -> list[Any]:
    """What the template writes, character by character, with the ids of control tokens between.

    Before it renders, whatever looks like a control token in a message becomes a character that stands for it, so that those which the
    template itself writes are all that is left. Markup in a reply is a token or letters, as it was written: a set of both.
    """
    tokenizer: Any = chat.model.tokenizer
    special = {name: token_id for token_id, name in tokenizer.special_tokens.items()}
    markup = {name: token_id for token_id, name in tokenizer.markup_tokens.items()}
    stands_for = {chr(0xE000 + number): name for number, name in enumerate(sorted({**special, **markup}, key=len, reverse=True))}
    messages = chat.messages
    for message in messages:
        for stand_in, name in stands_for.items():
            if message["role"] != "assistant" or name in special:
                message["content"] = message["content"].replace(name, stand_in)
    text = tokenizer.hugging_face.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    replied = "".join(message["content"] for message in messages if message["role"] == "assistant")
    units: list[Any] = []
    for part in re.split(f"({'|'.join(map(re.escape, stands_for.values()))})", text) if stands_for else [text]:
        if part in special:
            units.append(special[part])
        elif part in markup:
            units.append({markup[part], part} if part in replied else markup[part])
        else:
            units += [*"".join(stands_for.get(character, character) for character in part)]
    return units


def _units(chat: Chat) -> list[Any]:
    """The text of a conversation, character by character, with the ids of control tokens and markup between."""
    tokenizer: Any = chat.model.tokenizer
    units: list[Any] = []
    run = b""
    for token_id in [*_ids(chat), None]:
        if token_id is None or token_id in tokenizer.special_tokens or token_id in tokenizer.markup_tokens:
            units += run.decode(errors="replace")
            units += [] if token_id is None else [token_id]
            run = b""
        else:
            run += tokenizer.token_bytes[token_id]
    return units


def _are_control_tokens_those_of_the_template(chat: Chat) -> bool:
    units = _units(chat)
    at = 0
    for wanted in _wanted_units(chat):
        if isinstance(wanted, set):
            letters = next(one for one in wanted if isinstance(one, str))
            if at < len(units) and units[at] in wanted - {letters}:
                at += 1
            elif units[at : at + len(letters)] == [*letters]:
                at += len(letters)
            else:
                return False
        elif at < len(units) and units[at] == wanted:
            at += 1
        else:
            return False
    return at == len(units)


def _check(chat: Chat) -> None:
    """Compare text, control tokens and ids with those of the template, the ids of replies left out, which stay as written."""
    assert _are_control_tokens_those_of_the_template(chat)
    tokenizer: Any = chat.model.tokenizer
    text = tokenizer.hugging_face.apply_chat_template(chat.messages, tokenize=False, add_generation_prompt=True)
    assert text == str(chat.state)
    markup = tokenizer.markup_tokens.values()
    asked = [message["content"] for message in chat.messages if message["role"] != "assistant"]
    special = [message["content"] for message in chat.messages]
    if any(name in content for content in special for name in tokenizer.special_tokens.values()) or any(
        name in content for content in asked for name in markup
    ):
        return  # transformers would read control tokens
    ids = tokenizer.hugging_face(text, add_special_tokens=False)["input_ids"]
    if "\ufffd" in text:  # stands for bytes of a reply, which may be fewer
        control = tokenizer.special_tokens.keys()
        assert [i for i in ids if i in control] == [i for i in _ids(chat) if i in control]
        return
    wanted, spans = _placed(tokenizer, ids), _reply_spans(chat, text)
    if not spans:
        assert ids == _ids(chat)
    outside = [place for place in _placed(tokenizer, _ids(chat)) if all(place[1] < a - 2 or place[0] > b + 2 for a, b in spans)]
    assert set(outside) <= set(wanted)


@pytest.mark.parametrize("kind", TEMPLATES)
@settings(max_examples=examples(8), deadline=None)
@given(_ACTIONS)
def test_a_conversation_spells_what_its_template_writes_and_feeds_what_is_new(kind: str, actions: list[tuple[str, int]]) -> None:
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
            if not str(last.state).endswith("\ufffd"):  # else it goes on inside a character, whose first bytes read as another
                assert str(last.state) + chat.messages[-1]["content"][len(last.messages[-1]["content"]) * last._is_reply :] == str(
                    chat.state
                )
            fed = int(chat.state.cached) - min(held, len(opened))
            assert meter.fed_tokens <= fed + 1  # less where other conversations have left a prefix of it
            assert meter.recomputed_tokens <= 1
        kept = _common(before, _ids(chat))
        assert int(chat.state.cached) >= min(held, kept) - 1
        if not chat._is_reply:
            _check(chat)
