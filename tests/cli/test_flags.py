"""Options that are True or False take nothing else: a text such as "no" would count as true."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable
from typing import Any

import pytest

from outlines_cont import Chat, Tokens, TokenStream, continuous, control, generate, policies
from outlines_cont.errors import OptionError
from outlines_cont.events.event import StreamOptions
from tests.chat_models import chat_model
from tests.fakes import FakeTokenizer, random_model


def _gen(**options: Any) -> Any:
    async def script() -> None:
        await control.gen(stop_at="x", max_tokens=2, **options)

    return control.run(random_model(), script, "a")


def _text(**options: Any) -> Any:
    return generate.text(random_model())("a", stop_at="x", max_tokens=1, **options)


CALLS: list[tuple[Callable[..., Any], str]] = [
    *((_text, option) for option in ("keep_stop", "stop_in_prompt", "heal")),
    *((_gen, option) for option in ("keep_stop", "require_stop", "force")),
    *((lambda **o: next(generate.text(random_model()).stream("a", **o)), option) for option in ("events", "retract", "partial")),
    (lambda **o: continuous(generate.text(random_model())).stream("a", **o), "partial"),
    *((lambda **o: TokenStream(FakeTokenizer(), **o), o) for o in ("skip_special_tokens", "keep_stop", "stop_in_prompt")),
    *((lambda **o: policies.ban("a", **o), option) for option in ("ignore_case", "whole_word", "include_prompt")),
    (lambda **o: Tokens.of("a", **o), "special"),
    (lambda **o: generate.regex(random_model(), "a", **o), "force"),
    (lambda **o: generate.json(random_model(), {}, **o), "force"),
    (lambda **o: policies.StopAt("a", FakeTokenizer(), **o), "keep"),
    (lambda **o: continuous(generate.text(random_model()))("a", max_tokens=1).fork(2, **o), "same"),
    (lambda **o: continuous(generate.text(random_model()))("a", max_tokens=1).save(io.BytesIO(), **o), "kv"),
    (lambda **o: Chat(chat_model("Qwen3")).user("a").save(io.BytesIO(), **o), "kv"),
    (lambda **o: control.run(random_model(), _nothing, "a", **o), "check"),
]


async def _nothing() -> None:
    """A script."""


@pytest.mark.parametrize(("call", "option"), CALLS)
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_flag_is_true_or_false(call: Callable[..., Any], option: str, value: object) -> None:
    with pytest.raises(OptionError, match=f"expected True or False as `{option}`, got {value!r}") as refused:
        call(**{option: value})
    assert option == refused.value.option


def test_each_flag_of_stream_options_is_checked() -> None:
    assert {"events", "retract", "partial"} == {name for name, field in inspect.get_annotations(StreamOptions).items() if field == "bool"}
