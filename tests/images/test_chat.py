"""Conversations with images: places that the template writes, replies behind them, edits, files, and what users type as a place."""

from __future__ import annotations

import io
from typing import Any

import pytest

from outlines_cont import Chat, generate, models, samplers
from outlines_cont.errors import ChatError, UnsupportedModel
from tests.image_models import image_model, parts, picture
from tests.images.oracle import evict_all, worst_error

PLACES = {"llava": "<image>", "qwen2_5_vl": "<|vision_start|><|image_pad|><|vision_end|>", "gemma3": "<start_of_image>"}


def template(place: str) -> str:
    part = "{% if part.type == 'image' %}" + place + "{% else %}{{ part.text }}{% endif %}"
    content = "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}" + part + "{% endfor %}{% endif %}"
    return "{% for m in messages %}{{ m.role }}: " + content + "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def chat_of(family: str, **options: Any) -> Chat:
    return Chat(image_model(family), template=template(PLACES[family]), **options)


@pytest.mark.parametrize("family", PLACES)
def test_replies_behind_images_are_exact_and_feed_an_image_once(family: str) -> None:
    model, word = image_model(family), generate.regex(image_model(family), "[a-z]{3,8}", sampler=samplers.multinomial())
    chat = chat_of(family, rng=1).user(["What is broken here?", picture(1)])
    assert str(chat.state) == "user: What is broken here?<image>\nassistant: "
    model.prefix_cache.clear()  # of what other tests have seen
    with model.meter() as meter:
        chat = chat.assistant(word)
    assert meter.images == 1
    assert worst_error(model, chat.state) < 1e-4
    with model.meter() as meter:
        longer = chat.user(["And here?", picture(2), " Or here?", picture(3)]).assistant(word)
    assert meter.images == 2
    assert worst_error(model, longer.state) < 1e-4
    assert len(longer.state.rows[0][0].images) == 3
    other = longer.back().user(["And here?", picture(4)]).assistant(word)
    assert worst_error(model, other.state) < 1e-4
    evict_all(model)
    again = chat.user("Sure?").assistant(word)
    assert worst_error(model, again.state) < 1e-4


def test_a_conversation_whose_picture_is_replaced_sees_the_other_one() -> None:
    model = image_model("llava")
    word = generate.regex(model, "[a-z]{3,8}")
    first, second = (chat_of("llava").user(["What?", picture(i)]).assistant(word) for i in (1, 2))
    assert first != second
    edited = first[:0].user(["What?", picture(2)]).assistant(word)
    assert edited.messages == second.messages
    assert edited.state.logprobs.nan_to_num().allclose(second.state.logprobs.nan_to_num(), atol=1e-4)


def test_results_of_tools_have_images_if_the_template_knows_no_tools() -> None:
    def scan() -> str:
        """Scan the page."""
        return ""

    model = image_model("llava")
    chat = chat_of("llava", tools=[scan], tool_form="generic").user("Scan it.")
    call = {"id": "a", "type": "function", "function": {"name": "scan", "arguments": {}}}
    results = [{"role": "tool", "tool_call_id": "a", "content": ["See", picture(i)]} for i in (1, 2)]
    chat = chat.add([{"role": "assistant", "content": "", "tool_calls": [call]}, *results])
    chat = chat.assistant(generate.regex(model, "[a-z]{3,8}"))
    assert str(chat.state).count("<tool_response>\nSee<image>\n</tool_response>") == 2
    assert worst_error(model, chat.state) < 1e-4


def test_files_of_conversations_have_their_images() -> None:
    model = image_model("qwen2_5_vl")
    chat = chat_of("qwen2_5_vl").user(["What?", picture(1)]).assistant(generate.regex(model, "[a-z]{3}"))
    for kv in (True, False):
        file = io.BytesIO()
        chat.save(file, kv=kv)
        file.seek(0)
        loaded = Chat.load(file, model, template=template(PLACES["qwen2_5_vl"]))
        assert loaded == chat
        reply = loaded.user(["And?", picture(2)]).assistant(generate.regex(model, "[a-z]{3}"))
        assert worst_error(model, reply.state) < 1e-4


def test_openai_parts_and_what_a_user_types_as_a_place() -> None:
    chat = chat_of("llava")
    typed = chat.user(["Is this <image> a place?", picture(1)])
    assert len(typed.state.rows[0][0].images) == 1
    assert str(typed.state).count("<image>") == 2
    with pytest.raises(ChatError, match="an image in a part"):
        chat.user([{"type": "image"}])
    with pytest.raises(ChatError, match="a place for each image"):
        _ = Chat(image_model("llava"), template="{{ messages[0].role }}").user([picture(1)]).state
    blind = models.from_transformers(parts("llava")[0], parts("llava")[1].tokenizer)
    with pytest.raises(UnsupportedModel):
        Chat(blind, template=template("<image>")).user(["What?", picture(1)])


def test_messages_are_prompts_of_generators() -> None:
    model = image_model("llava")
    before, model.tokenizer.hugging_face.chat_template = model.tokenizer.hugging_face.chat_template, template("<image>")
    try:
        messages = [{"role": "user", "content": ["What?", picture(1)]}]
        word = generate.regex(model, "[a-z]{3,8}")
        assert word(messages) == Chat(model).user(["What?", picture(1)]).assistant(word).value
    finally:
        model.tokenizer.hugging_face.chat_template = before
