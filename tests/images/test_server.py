"""Requests with images to the server: `data:` URLs of a model that takes them, and what is refused."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image

from outlines_cont import Chat, generate, models
from tests.image_models import parts, picture
from tests.images.test_chat import template
from tests.serve.running import Running


def url(seed: int) -> str:
    file = io.BytesIO()
    Image.fromarray(picture(seed)).save(file, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def asked(*seeds: int) -> list[Any]:
    images = [{"type": "image_url", "image_url": {"url": url(seed), "detail": "low"}} for seed in seeds]
    return [{"role": "user", "content": [{"type": "text", "text": "What?"}, *images]}]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    model = models.from_transformers(*parts("llava"))
    model.tokenizer.hugging_face.chat_template = template("<image>")
    try:
        with Running(model) as running:
            yield running
    finally:
        model.tokenizer.hugging_face.chat_template = None


def test_a_request_with_images_has_the_reply_of_a_chat(served: Running) -> None:
    options: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 4, "logprobs": True}
    for seeds in ((1,), (2,), (1, 2)):
        reply = served.client.chat.completions.create(messages=asked(*seeds), **options)
        chat = Chat(served.model).user(["What?", *map(picture, seeds)]).assistant(generate.text(served.model), max_tokens=4)
        assert reply.choices[0].message.content == chat.messages[-1]["content"]
        assert reply.usage.prompt_tokens == chat[:1].state.shape[2]
        found = [one.logprob for one in reply.choices[0].logprobs.content]
        wanted = chat.state.logprobs[0, 0, -len(found) :].tolist()
        assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("https://example.com/a.png", "`data:` URL"),
        ("/etc/hostname", "`data:` URL"),
        ("data:image/png;base64,AAAA", "the file of an image"),
    ],
)
def test_urls_and_paths_are_refused(served: Running, source: str, message: str) -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": source}}]}]
    with pytest.raises(openai.BadRequestError, match=message):
        served.client.chat.completions.create(model="tiny", messages=messages)  # type: ignore[arg-type]


def test_images_are_counted_and_need_a_model_that_takes_them(served: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 16 images"):
        served.client.chat.completions.create(model="tiny", messages=asked(*[1] * 17))
    with Running(models.tiny()) as text, pytest.raises(openai.BadRequestError, match="takes no images"):
        text.client.chat.completions.create(model="tiny", messages=asked(1))
