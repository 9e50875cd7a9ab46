"""`Chat`: a conversation as a value."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from outlines_cont import Chat, continuous, engine_of, generate, samplers
from outlines_cont.errors import ChatError, ContextLengthError, ModelMismatch, NoChatTemplate, OptionError, ResumeError, StateFileError
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from outlines_cont.state.file import save_state
from tests.chat_models import PLAIN, TEMPLATES, chat_model, chat_tokenizer
from tests.fakes import random_model


class Order(BaseModel):
    item: str = Field(max_length=6)
    count: int = Field(ge=0, le=99)


def _ids(chat: Chat) -> list[int]:
    return list(chat.state.rows[0][0].token_ids)


def _template_ids(chat: Chat, **options: Any) -> list[int]:
    tokenizer: Any = chat.model.tokenizer.hugging_face  # type: ignore[attr-defined]
    return list(tokenizer.apply_chat_template(chat.messages, return_dict=False, **options))


@pytest.mark.parametrize("kind", TEMPLATES)
def test_three_turns_with_json_in_the_second_feed_no_token_twice(kind: str) -> None:
    model = chat_model(kind)
    order = generate.json(model, Order)
    say = generate.choice(model, ["Gladly.", "No."], exact=False)
    with model.meter() as meter:
        chat = Chat(model).system("You take orders.").user("Good day.")
        assert _ids(chat) == _template_ids(chat, add_generation_prompt=True)
        chat = chat.assistant(say).user("Two lamps, please.")
        chat = chat.assistant(order, max_tokens=400) if kind != "plain" else chat.assistant('{"item": "lamp", "count": 2}')
        assert kind == "plain" or isinstance(chat.value, Order)
        chat = chat.user("Thanks.")
        flags = {"add_generation_prompt": True, "continue_final_message": False}
        assert str(chat.state) == chat._format.template._text(chat.messages, (), {}, flags)
        chat = chat.assistant(say)
    if kind != "Mistral":  # whose system message moves to the last turn
        assert meter.fed_tokens <= len(_ids(chat))
        assert meter.recomputed_tokens == 0
    assert chat.value in ("Gladly.", "No.")
    assert [message["role"] for message in chat] == ["system", *["user", "assistant"] * 3]


def test_canonical_replies_give_the_ids_of_the_template_to_the_last() -> None:
    model = chat_model("Qwen3")
    say = generate.choice(model, ["Gladly, sir.", "No way, sir."])
    chat = Chat(model).user("One.")
    for question in ("Two.", "Three.", "Four."):
        chat = chat.assistant(say)
        ids = _ids(chat)
        chat = chat.user(question)
        assert _ids(chat) == _template_ids(chat, add_generation_prompt=True)
        assert ids == _ids(chat)[: len(ids)]
        assert int(chat.state.cached) >= len(ids) - 1


def test_thoughts_that_the_template_leaves_out_are_fed_no_more_and_the_rest_again() -> None:
    model = chat_model("Qwen3")
    chat = Chat(model).user("How much is 2 + 2?")
    begin = len(_ids(chat))
    chat = chat.assistant("<think>\n").assistant(generate.regex(model, "[a-z]{4,6}\n</think>\n\n"))
    chat = chat.assistant(generate.choice(model, ["four"]))
    assert chat.messages[-1]["content"].startswith("<think>\n")
    assert chat.value == "four"
    asked = chat.user("Sure?")
    assert "<think>" not in str(asked.state)
    assert _ids(asked) == _template_ids(asked, add_generation_prompt=True)
    assert int(asked.state.cached) == begin
    with model.meter() as meter:
        asked.assistant(generate.choice(model, ["yes"]))
    assert meter.fed_tokens >= len(_ids(asked)) - begin
    silent = Chat(model, enable_thinking=False).user("Hi")
    assert str(silent.state).endswith("<think>\n\n</think>\n\n")
    assert _ids(silent) == _template_ids(silent, add_generation_prompt=True, enable_thinking=False)


def test_a_letter_that_pads_texts_is_a_letter() -> None:
    tokenizer = chat_tokenizer("Qwen3")
    tokenizer.pad_token = "!"
    model: Any = SimpleNamespace(tokenizer=Tokenizer(tokenizer), context_length=None, kv_store=None, vocab_size=len(tokenizer))
    assert str(Chat(model).user("Hi! <|im_end|>").state).startswith("<|im_start|>user\nHi! <|im_end|><|im_end|>\n")


def test_forks_slices_and_going_back_share_what_was_computed() -> None:
    model = chat_model("Qwen3")
    write = generate.text(model, sampler=samplers.multinomial(1))
    chat = Chat(model, rng=3).user("One.").assistant("First.").user("Two.")
    with model.meter() as meter:
        forks = chat.fork(3)
        replies = Chat.replies(forks, write, max_tokens=6)
    assert meter.fed_tokens <= len(_ids(chat)) + 3 * 6
    assert len({str(reply) for reply in replies}) > 1
    assert [len(reply) for reply in replies] == [5 - 1] * 3
    one = replies[0]
    assert one[:3] == one.back().user("Two.") == chat
    assert one.back().messages == [{"role": "user", "content": "One."}, {"role": "assistant", "content": "First."}]
    assert one.back(2).messages == []
    assert int(one[:2].state.cached) == len(_ids(one[:2]))
    assert str(one[:2].state).endswith("First.")
    assert one[:] is one
    with model.meter() as meter:
        again = one[:3].assistant(write, max_tokens=1, rng=1)
    assert meter.fed_tokens <= 2
    assert again[:3] == one[:3]
    with pytest.raises(ChatError, match="from 1 to 2"):
        one.back(3)
    with pytest.raises(TypeError, match=r"chat.messages\[0\]"):
        one[0]  # type: ignore[index]


def test_a_conversation_is_saved_like_a_state(tmp_path: Path) -> None:
    model = chat_model("Qwen3")
    chat = Chat(model, enable_thinking=False).user("One.").assistant(generate.regex(model, "[a-z]{3}"))
    chat.save(tmp_path / "chat.safetensors")
    loaded = Chat.load(tmp_path / "chat.safetensors", model)
    assert (chat, chat.value, _ids(chat)) == (loaded, loaded.value, _ids(loaded))
    assert int(chat.state.cached) == int(loaded.state.cached)
    assert _ids(loaded.user("Two.")) == _ids(chat.user("Two."))
    buffer = io.BytesIO()
    chat.user("x").save(buffer, kv=False)
    buffer.seek(0)
    assert Chat.load(buffer, model) == chat.user("x")
    chat.state.save(tmp_path / "state.safetensors")
    with pytest.raises(StateFileError, match="a state and no conversation"):
        Chat.load(tmp_path / "state.safetensors", model)
    with pytest.raises(ChatError, match="JSON"):
        Chat(model).message({"role": "user", "content": "x", "extra": object()}).save(tmp_path / "x")


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"turns": [], "options": {"nosuch": 1}}', '{"turns": [], "options": {}, "tools": [{}]}'),
        '{"turns": [{"message": {}, "text": null, "value": null}], "options": {}}',
        '{"turns": [{"message": {"role": "user", "content": 3}, "text": null, "value": null}], "options": {}}',
        '{"turns": [{"message": {"role": "user", "content": "a"}, "value": null}], "options": {}}',
        "[" * 5000,
    ],
)
def test_a_file_whose_messages_are_none_is_refused(text: str, tmp_path: Path) -> None:
    model = chat_model("Qwen3")
    state = Chat(model).user("One.").state
    save_state(tmp_path / "chat", model, state.rows, state.seed, kv=False, chat=text)
    with pytest.raises(StateFileError, match="expected a conversation with this model"):
        Chat.load(tmp_path / "chat", model)


def test_messages_are_a_short_form_of_a_prompt() -> None:
    model = chat_model("Llama 3")
    say = generate.choice(model, ["Gladly.", "No."], exact=False)
    messages = [{"role": "user", "content": "Hi"}]
    chat = Chat(model).user("Hi")
    assert say(messages) == chat.assistant(say).value
    assert [say(messages)] * 2 == say([messages, messages])
    state = continuous(say)(messages)
    assert _ids(chat.assistant(say)) == list(state.rows[0][0].token_ids)
    open_reply = [*messages, {"role": "assistant", "content": "Well, "}]
    begun = continuous(say)(open_reply)
    assert _template_ids(chat.assistant("Well,"), continue_final_message=True) == list(
        begun.rows[0][0].token_ids[: len(_ids(chat.assistant("Well,")))]
    )
    with pytest.raises(ChatError, match="role"):
        say([{"role": 1, "content": "Hi"}])


def test_a_reply_streams() -> None:
    model = chat_model("Qwen3")
    say = generate.choice(model, ["Gladly, sir.", "No way, sir."])
    chat = Chat(model).user("Hi")
    stream = chat.stream(say)
    text = "".join(event.text for event in stream)
    assert text == stream.chat.value == chat.assistant(say).value
    assert stream.chat.messages[-1] == {"role": "assistant", "content": text}

    async def read() -> Chat:
        async with chat.stream(say) as events:
            async for _ in events:
                pass
        return events.chat

    assert asyncio.run(read()) == stream.chat
    with chat.stream(generate.text(model), max_tokens=9) as cut:
        next(iter(cut))
    assert len(cut.chat) == 2
    assert cut.chat.finish_reason == "length"
    assert engine_of(model).num_running == 0

    async def leave() -> Chat:
        async with chat.stream(generate.text(model), max_tokens=9) as events:
            await anext(aiter(events))
            assert engine_of(model).num_running == 1
        assert engine_of(model).num_running == 0
        return events.chat

    assert asyncio.run(leave()).finish_reason == "length"


def test_a_reply_that_was_cut_is_resumed(tmp_path: Path) -> None:
    model = chat_model("Qwen3")
    order = generate.json(model, Order)
    chat = Chat(model, rng=1).user("Two lamps.")
    whole = chat.assistant(order, max_tokens=200)
    cut = chat.assistant(order, max_tokens=3)
    assert (cut.value, cut.finish_reason) == (None, "length")
    with model.meter() as meter:
        resumed = cut.resume(order, max_tokens=200)
    assert resumed == whole
    assert resumed.value == whole.value
    assert _ids(resumed) == _ids(whole)
    assert meter.recomputed_tokens == 0
    cut.save(tmp_path / "chat")
    assert Chat.load(tmp_path / "chat", model).resume(order, max_tokens=200) == whole
    for ended in (chat, whole, Chat(model), chat.assistant("{")):
        with pytest.raises(ChatError, match="last reply was cut"):
            ended.resume(order)
    with pytest.raises(ResumeError):
        cut.resume(generate.regex(model, "[a-z]+"))
    with pytest.raises(OptionError, match="a generator, such as"):
        cut.resume(None)  # type: ignore[arg-type]


def test_a_cut_reply_without_its_cache_is_fed_once_for_all_that_resume_it(tmp_path: Path) -> None:
    model = chat_model("Qwen3")
    order = generate.json(model, Order)
    Chat(model, rng=1).user("Two lamps.").assistant(order, max_tokens=3).save(tmp_path / "chat", kv=False)
    loaded = Chat.load(tmp_path / "chat", model)
    model.prefix_cache.clear()
    model.prefix_cache.max_bytes = 0
    fed = []
    for _ in range(2):
        with model.meter() as meter:
            loaded.resume(order, max_tokens=1)
        fed.append(meter.fed_tokens)
    assert fed[1] < fed[0] / 4


def test_a_reply_that_is_no_text_keeps_its_tokens() -> None:
    model = chat_model("Qwen3")
    first, second, third = ([*model.tokenizer.token_bytes].index(bytes([byte])) for byte in "日".encode())
    broken = generate.text(model, sampler=samplers.greedy(logit_bias={first: 1000.0}))
    with model.meter() as meter:
        chat = Chat(model).user("One.").assistant(broken, max_tokens=3)
        assert chat.messages[-1]["content"] == "\ufffd" * 3
        ids = _ids(chat)
        asked = chat.user("Two.")
        assert _ids(asked)[: len(ids)] == ids
        asked.assistant(broken, max_tokens=1)
    assert meter.fed_tokens == len(_ids(asked))
    for byte in (second, third):
        goes_on = generate.text(model, sampler=samplers.greedy(logit_bias={byte: 1000.0}))
        chat = chat.resume(goes_on, max_tokens=1)
    assert chat.messages[-1]["content"] == "\ufffd\ufffd日"
    assert _ids(chat.user("Two."))[: len(_ids(chat))] == _ids(chat)


def test_a_template_of_ones_own_serves_a_model_without_one() -> None:
    model = random_model()
    with pytest.raises(NoChatTemplate, match="Chat\\(model, template="):
        Chat(model)
    with pytest.raises(NoChatTemplate):
        generate.text(model)([{"role": "user", "content": "Hi"}], max_tokens=1)
    chat = Chat(model, template=PLAIN).user("the name").assistant(generate.choice(model, ["red", "blue"])).user("and")
    assert str(chat.state) == f"user: the name\nassistant: {chat.value}\nuser: and\nassistant: "
    assert chat.template == PLAIN
    assert Chat(model, template=PLAIN).user("a") != Chat(model, template=PLAIN + "!").user("a")


def test_what_cannot_be_is_refused_with_advice() -> None:
    model = chat_model("Qwen3")
    chat = Chat(model).user("Hi")
    with pytest.raises(OptionError, match="expected a generator"):
        chat.assistant(model)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="Chat.replies"):
        chat.assistant(generate.text(model, sampler=samplers.multinomial(2)))
    with pytest.raises(ModelMismatch):
        chat.assistant(generate.text(random_model()))
    with pytest.raises(ChatError, match="one message or more"):
        Chat(model).assistant(generate.text(model), max_tokens=1)
    with pytest.raises(ChatError, match="role"):
        chat.message({"content": "x"})
    for content in (None, 3, {"text": "a"}):
        with pytest.raises(ChatError, match="expected a text as the content"):
            chat.user(content)
    with pytest.raises(OptionError, match="Did you mean 'enable_thinking'"):
        Chat(model, enable_thinkng=False)
    with pytest.raises(ChatError, match="chat template"):
        Chat(model, template="{{ raise_exception('Roles must alternate') }}").user("x").state
    with pytest.raises(ChatError, match="chat template"):
        Chat(model, template="{{ messages[0].content.__class__.__mro__ }}").user("x").state
    with pytest.raises(ChatError, match="chat template"):
        Chat(model, template="{% if %}").user("x").state
    with pytest.raises(ContextLengthError):
        chat.assistant("a").user("x " * 5000).state
    with pytest.raises(OptionError, match="expected a model"):
        Chat("Qwen/Qwen3-0.6B")  # type: ignore[arg-type]
    network: Any = model.hugging_face
    with pytest.raises(OptionError, match="got Qwen3ForCausalLM. Wrap a model of transformers") as caught:
        Chat(network)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("kind", "options", "meant"),
    [
        ("Qwen3", {"enable_thinkin": False}, "enable_thinking"),
        ("plain", {"tool": []}, "tools"),
        ("plain", {"role": 1}, None),
        ("Llama 3", {"bos_token": "x"}, None),
        ("Qwen3", {"messages": []}, None),
    ],
)
def test_an_option_that_the_template_does_not_read_is_refused(kind: str, options: Any, meant: str | None) -> None:
    with pytest.raises(OptionError, match=f"Did you mean '{meant}'" if meant else "does not read|a reserved name"):
        Chat(chat_model(kind), **options)
    assert Chat(chat_model("Qwen3"), enable_thinking=False) != Chat(chat_model("Qwen3"))
    marked = PLAIN.replace("{{ m.role", "{% generation %}{{ note or '' }}{% endgeneration %}{{ m.role")
    assert str(Chat(chat_model("plain"), template=marked, note="N").user("a").state).startswith("Nuser: a")


def test_a_role_that_nobody_knows_is_refused() -> None:
    model = chat_model("plain")
    with pytest.raises(ChatError, match="'usr'. Did you mean 'user'"):
        Chat(model).message({"role": "usr", "content": "a"})
    with pytest.raises(ChatError, match="got 'critic'"):
        generate.text(model)([{"role": "critic", "content": "a"}], max_tokens=1)
    mentions = PLAIN + "{# 'critic' #}"
    assert "critic: a" in str(Chat(model, template=mentions).message({"role": "critic", "content": "a"}).state)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for m in messages %}{{ m.contnt }}{% endfor %}", "writes nothing for roles user"),
        ("a\n{% if %}", "cannot be read: .* in line 2. Correct it"),
        ("a\n\n{{ messages[0].content + 1 }}", "fails for roles user: .* in line 3 of the template"),
        ("a\n{{ messages[0].contnt.x }}", "fails for roles user: .* no attribute 'contnt', in line 2"),
        ("{{ raise_exception('No user first') }}", "it rejects: No user first"),
    ],
)
def test_an_error_of_a_template_says_where_it_is(template: str, said: str) -> None:
    with pytest.raises(ChatError, match=said):
        _ = Chat(chat_model("plain"), template=template).user("x").state


def test_the_best_of_a_search_is_the_reply() -> None:
    model = chat_model("Qwen3")
    chat = Chat(model).user("Hi")
    options = ["Gladly, sir.", "No way, sir."]
    for sampler in (samplers.beam_search(2), samplers.best_of(2)):
        replied = chat.assistant(generate.choice(model, options, sampler=sampler), rng=1)
        assert replied.value in options
        assert replied.state.shape[:2] == (1, 1)


def test_a_batch_of_conversations_replies_as_each_alone() -> None:
    model = chat_model("Qwen3")
    write = generate.text(model)
    chats = [Chat(model).user("Hi"), Chat(model).system("Be kind.").user("Hi, how are you?")]
    assert [chat.assistant(write, max_tokens=5) for chat in chats] == Chat.replies(chats, write, max_tokens=5)
    assert Chat.replies([], write) == []
    assert repr(chats[0]) == "<Chat of 1 messages (user), 8 tokens cached>" or "tokens cached" in repr(chats[0])
    assert repr(Chat(model)) == "<Chat without messages>"
    assert chat_tokenizer("Qwen3").chat_template == chats[0].template
