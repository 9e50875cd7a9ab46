"""Contents of messages in the forms of users and their tools: as if they were written plainly, or an error that names the part."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydantic import BaseModel

from outlines_cont import Chat, continuous, generate
from outlines_cont.errors import ChatError, ImageError, UnsupportedModel
from tests.chat_models import TEMPLATES, chat_model
from tests.image_models import image_model, picture
from tests.images.test_chat import chat_of

WORDS = st.text("ab <|>{}'", min_size=1, max_size=8).filter(str.strip)
TEXTS = {
    "a text": lambda text: text,
    "OpenAI": lambda text: {"type": "text", "text": text},
    "Responses": lambda text: {"type": "input_text", "text": text},
    "a reply": lambda text: {"type": "output_text", "text": text, "annotations": []},
    "a refusal": lambda text: {"type": "refusal", "refusal": text},
    "cached": lambda text: {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}},
    "no type": lambda text: {"text": text},
}


def _file(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(number)).save(file, "PNG")
    return file.getvalue()


def _base64(number: int) -> str:
    return base64.b64encode(_file(number)).decode()


def _url(number: int) -> str:
    return f"data:image/png;base64,{_base64(number)}"


IMAGES = {
    "array": picture,
    "bytes": _file,
    "PIL": lambda i: Image.fromarray(picture(i)),
    "transformers": lambda i: {"type": "image", "image": picture(i)},
    "transformers, URL": lambda i: {"type": "image", "url": _url(i)},
    "transformers, base64": lambda i: {"type": "image", "base64": _base64(i)},
    "no type": lambda i: {"image": picture(i)},
    "OpenAI": lambda i: {"type": "image_url", "image_url": {"url": _url(i), "detail": "low"}},
    "OpenAI, short": lambda i: {"type": "image_url", "image_url": _url(i)},
    "Responses": lambda i: {"type": "input_image", "image_url": _url(i)},
    "MCP": lambda i: {"type": "image", "data": _base64(i), "mimeType": "image/png"},
    "Anthropic": lambda i: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _base64(i)}},
    "Anthropic, URL": lambda i: {"type": "image", "source": {"type": "url", "url": _url(i)}},
}


@pytest.mark.parametrize("kind", TEMPLATES)
@given(texts=st.lists(st.tuples(st.sampled_from([*TEXTS]), WORDS), min_size=1, max_size=4), role=st.sampled_from(["user", "system"]))
def test_texts_in_parts_are_written_as_one_text_by_templates_of_texts(kind: str, texts: list[tuple[str, str]], role: str) -> None:
    parts = [TEXTS[form](text) for form, text in texts]
    beside = [] if role == "user" else [{"role": "user", "content": "x"}]
    chat = Chat(chat_model(kind))
    found, plain = (chat.add([{"role": role, "content": content}, *beside]) for content in (parts, "".join(text for _, text in texts)))
    assert found.state.rows[0][0].token_ids == plain.state.rows[0][0].token_ids


@given(items=st.lists(st.tuples(st.sampled_from([*TEXTS, *IMAGES]), WORDS, st.integers(1, 3)), min_size=1, max_size=4))
def test_images_in_the_forms_of_others_are_those_that_are_written_plainly(items: list[tuple[str, str, int]]) -> None:
    given, plain = [], []
    for form, text, number in items:
        given.append(TEXTS[form](text) if form in TEXTS else IMAGES[form](number))
        plain.append(text if form in TEXTS else {"type": "image", "image": picture(number)})
    found, expected = (chat_of("llava").user(content).state.rows[0][0] for content in (given, plain))
    assert found.token_ids == expected.token_ids
    assert [(span.start, span.digest) for span in found.images] == [(span.start, span.digest) for span in expected.images]
    assert len(found.images) == sum(form not in TEXTS for form, _, _ in items)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "a sound"),
        ({"type": "video", "video": "a.mp4"}, "a video"),
        ({"type": "file", "file": {"file_id": "a"}}, "a file"),
        ({"type": "document", "source": {"type": "text", "data": "a"}}, "'document' of the user"),
        ({"type": "tool_result", "content": "a"}, "'tool_result'"),
        ({"type": "TEXT", "text": "a"}, "'TEXT'"),
        ({"inline_data": {"data": ""}}, "with its type"),
        ({"type": "text"}, "as 'text' of a part"),
        ({"type": "text", "text": None}, "as 'text' of a part"),
        ({"type": "text", "text": 5}, "as 'text' of a part"),
        ({"type": "image"}, "an image in a part"),
        ({}, "with its type"),
        (5, "got 5 of the user"),
        (None, "got None of the user"),
    ],
)
def test_no_part_is_lost_in_silence(part: Any, told: str) -> None:
    for chat in (chat_of("llava"), Chat(chat_model("plain"))):
        with pytest.raises(ChatError, match=told):
            str(chat.user([{"type": "text", "text": "Look"}, part]).state)
    with pytest.raises(ChatError, match=told):
        continuous(generate.text(chat_model("plain")))([{"role": "user", "content": [part]}], max_tokens=1)


def test_parts_that_the_template_names_are_its_own() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}{% if p.type == 'document' %}[{{ p.title }}]{% endif %}{% endfor %}{% endfor %}"
    )
    chat = Chat(chat_model("plain"), template=source).user([{"type": "document", "title": "A"}])
    assert str(chat.state) == "[A]"


@pytest.mark.parametrize("part", [{"image_url": {"url": "/etc/hostname"}}, {"type": "image", "source": {"url": "/etc/hostname"}}])
def test_a_url_in_a_message_opens_no_file(part: dict[str, Any]) -> None:
    with pytest.raises(ImageError, match="`data:` URL"):
        chat_of("llava").user([part])


def scan() -> str:
    """Scan the page."""
    return ""


def _called(family: str) -> Chat:
    call = {"id": "a", "type": "function", "function": {"name": "scan", "arguments": {}}}
    chat = chat_of(family, tools=[scan], tool_form="generic").user("Scan it.")
    return chat.message({"role": "assistant", "content": "", "tool_calls": [call]})


class _Text(BaseModel):
    type: str = "text"
    text: str


class _Picture(BaseModel):
    type: str = "image"
    data: str
    mimeType: str = "image/png"  # noqa: N815


class _Result(BaseModel):
    content: list[_Text | _Picture]
    isError: bool = False  # noqa: N815


@dataclass
class _Weather:
    day: date
    degrees: Decimal


@pytest.mark.parametrize("name", ["image", "url", "path", "image_url"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_result_of_a_tool_opens_no_file(name: str, is_nested: bool) -> None:
    named = {name: "/etc/hostname"}
    part = {"type": "image", **({"source": named} if is_nested and name != "image_url" else named)}
    with pytest.raises(ImageError, match="`data:` URL"):
        _called("llava").tool([{"type": "text", "text": "See"}, part])


def test_a_message_without_a_content_stays_without_one() -> None:
    source = "{% for m in messages %}[{{ m.role }}{% if 'content' in m %}: {{ m.content }}{% endif %}]{% endfor %}"
    call = {"id": "a", "type": "function", "function": {"name": "scan", "arguments": {}}}
    chat = Chat(chat_model("plain"), template=source, tools=[scan], tool_form="hermes").user("a")
    ids = chat._format.template.token_ids([*chat.messages, {"role": "assistant", "tool_calls": [call]}])
    assert chat.model.tokenizer.decode(ids) == "[user: a][assistant]"


@pytest.mark.parametrize("form", ["an image", "a list", "MCP's parts", "MCP's objects", "MCP's result"])
def test_results_of_tools_are_images(form: str) -> None:
    objects = [_Text(text="See"), _Picture(data=_base64(1))]
    results = {
        "an image": picture(1),
        "a list": ["See", Image.fromarray(picture(1))],
        "MCP's parts": [part.model_dump() for part in objects],
        "MCP's objects": objects,
        "MCP's result": _Result(content=objects),
    }
    chat = _called("llava").tool(results[form])
    plain = [{"type": "image", "image": picture(1)}]
    plain = plain if form == "an image" else [{"type": "text", "text": "See"}, *plain]
    expected = _called("llava").message({"role": "tool", "name": "scan", "tool_call_id": "a", "content": plain})
    assert len(chat.state.rows[0][0].images) == 1
    assert chat.state == expected.state
    with pytest.raises(UnsupportedModel, match="takes images"):
        Chat(chat_model("plain"), tools=[scan], tool_form="generic").add(_called("llava").messages).tool(results[form])


def test_other_results_of_tools_are_json() -> None:
    for result, written in (
        (_Weather(date(2026, 11, 30), Decimal("1.5")), '{"day": "2026-11-30", "degrees": "1.5"}'),
        ([_Text(text="a")], None),
        ({"type": "text", "text": "a"}, '{"type": "text", "text": "a"}'),
        (_Picture(data="a"), '{"type": "image", "data": "a", "mimeType": "image/png"}'),
        (np.arange(3), "[0, 1, 2]"),
        ({"n": np.int64(3), "at": date(2026, 1, 2)}, '{"n": 3, "at": "2026-01-02"}'),
        ([], "[]"),
        (["a", "b"], '["a", "b"]'),
        (None, "null"),
    ):
        content = _called("llava").tool(result).messages[-1]["content"]
        assert content == (written if written is not None else [{"type": "text", "text": "a"}])
    with pytest.raises(ChatError, match="what JSON can hold"):
        _called("llava").tool(object())
    with pytest.raises(ImageError, match="cannot be read"):
        _called("llava").tool(Path("missing.png"))


def test_a_model_of_images_is_asked_by_each_form_as_a_prompt() -> None:
    model = image_model("llava")
    word = continuous(generate.regex(model, "[a-z]{3}"))
    model.tokenizer.hugging_face.chat_template = chat_of("llava").template
    try:
        texts = {str(word([{"role": "user", "content": ["What?", form(1)]}])) for form in IMAGES.values()}
    finally:
        model.tokenizer.hugging_face.chat_template = None
    assert len(texts) == 1
