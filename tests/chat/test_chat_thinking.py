"""Conversations whose replies have thoughts: the message, what the template keeps of them, what is fed."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest

from outlines_cont import Chat, Template, Thinking, Tokens, continuous, generate, pipelines, samplers
from outlines_cont.chat import answering
from outlines_cont.errors import OptionError
from outlines_cont.generation.thinking import marks_of
from tests.chat_models import GPT_OSS, PLAIN, QWEN3, QWEN3_OPEN, QWEN3_REASONING, chat_model

THINK = ("<think>\n", "\n</think>\n\n")
SHORT = Thinking(max_tokens=6, sampler=samplers.multinomial())


def ids_of(chat: Chat) -> list[int]:
    return [*chat.state.rows[0][0].token_ids]


@pytest.mark.parametrize(
    ("kind", "template", "marks"),
    [
        ("Qwen3", QWEN3, THINK),
        ("Qwen3", QWEN3_REASONING, THINK),
        ("Qwen3", QWEN3_OPEN, THINK),
        ("gpt-oss", GPT_OSS, ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")),
        ("Qwen3", PLAIN, THINK),  # by its tokens
        ("plain", PLAIN + "{# '[THINK]' '[/THINK]' #}", ("[THINK]", "[/THINK]")),
    ],
)
def test_marks_are_found(kind: str, template: str, marks: tuple[str, str]) -> None:
    model = chat_model(kind)
    assert marks_of(model, Chat(model, template=template)._format.template) == marks


def test_a_model_without_marks_is_refused() -> None:
    with pytest.raises(OptionError, match="marks"):
        Chat(chat_model("plain")).user("Hi").assistant(thinking=True, max_tokens=3)


@pytest.mark.parametrize(("kind", "template"), [("Qwen3", QWEN3_REASONING), ("Qwen3", QWEN3_OPEN), ("gpt-oss", GPT_OSS), ("plain", PLAIN)])
def test_a_reply_has_its_thoughts_beside_its_content(kind: str, template: str) -> None:
    model = chat_model(kind)
    thinking = SHORT if kind != "plain" else Thinking(begin="[T]", end="[/T]", max_tokens=6)
    asked = Chat(model, template=template, rng=3).user("How much is it?")
    chat = asked.assistant(generate.choice(model, ["Ten.", "Twenty."]), thinking=thinking)
    message = chat.messages[-1]
    assert message["content"] == chat.value
    assert chat.value in ("Ten.", "Twenty.")
    assert message["reasoning_content"] == chat.thoughts == chat.state.thoughts.strip() != ""
    begin = thinking.begin or marks_of(model, asked._format.template)[0]
    end = thinking.end or marks_of(model, asked._format.template)[1]
    before = str(asked.state).removesuffix(begin) + begin
    assert str(chat.state) == before + str(chat.state.thoughts) + end + chat.value
    assert chat.state.thought_reasons in ([["length"]], [["stop"]])
    assert Chat(model, template=template).user("Hi").assistant("Yes.").thoughts == ""


def test_a_template_that_drops_thoughts_keeps_the_cache_before_them() -> None:
    model = chat_model("Qwen3")
    asked = Chat(model, template=QWEN3_REASONING, rng=1).user("How much is it?")
    begin = len(ids_of(asked))
    say = generate.choice(model, ["Ten.", "Twenty."])
    chat = asked.assistant(say, thinking=SHORT)
    with model.meter() as meter:
        chat = chat.user("So much?").assistant(say, thinking=SHORT).user("Why?").assistant(say, thinking=SHORT)
    assert str(chat.state).count("<think>") == 1
    assert [bool(message.get("reasoning_content")) for message in chat.messages] == [False, True] * 3
    # What is fed again is less than all of it by the turns before.
    assert meter.recomputed_tokens == 0
    assert meter.reused_tokens >= 2 * begin


def test_thoughts_that_the_template_keeps_are_not_fed_again() -> None:
    model = chat_model("gpt-oss")
    keeps = GPT_OSS.replace("m.thinking and loop.last", "m.thinking")
    say = generate.choice(model, ["Ten.", "Twenty."], exact=False)  # else both texts are fed
    chat = Chat(model, template=keeps, rng=1).user("How much is it?").assistant(say, thinking=SHORT)
    length = len(ids_of(chat))
    asked = chat.user("So much?")
    assert ids_of(asked)[:length] == ids_of(chat)
    assert int(asked.state.cached) >= length - 1


def test_thoughts_come_before_a_call_of_a_tool() -> None:
    def weather(city: Literal["Paris", "Oslo"]) -> str:
        """Tell the weather."""
        return f"Rain in {city}."

    model = chat_model("Qwen3")
    chat = Chat(model, template=QWEN3_REASONING, tools=[weather], rng=2).user("Do I need an umbrella?")
    calling = generate.fsm(model, "<tool_call>")
    called = chat.assistant(calling, tools=[weather], thinking=SHORT, max_tokens=60)
    (call,) = called.tool_calls
    assert call.run() == f"Rain in {call.arguments['city']}."
    assert called.thoughts
    assert called.messages[-1]["content"] == ""
    answered = called.tool(call.run())
    # The template keeps the thoughts of a turn until the next question.
    assert f"<think>\n{called.thoughts}\n</think>\n\n" in str(answered.state)
    done = answered.assistant(generate.choice(model, ["Yes.", "No."]))
    assert "<think>" not in str(done.user("Thanks.").state)

    stream = chat.stream(calling, tools=[weather], thinking=SHORT, max_tokens=60)
    events = [*stream]
    assert "".join(event.text for event in events if event.is_thought).strip() == stream.chat.thoughts
    assert "".join(event.text for event in events if not event.is_thought) == ""
    assert [call.name for call in stream.chat.tool_calls] == ["weather"]
    parts = [event.call for event in events if event.call is not None]
    assert "".join(part.text for part in parts) == f'{{"city": "{call.arguments["city"]}"}}'
    assert (parts[-1].arguments, parts[-1].is_whole) == (call.arguments, True)


def test_replies_of_a_batch_and_saved_ones_have_their_thoughts(tmp_path: Any) -> None:
    model = chat_model("Qwen3")
    say = generate.choice(model, ["Ten.", "Twenty."], thinking=SHORT)
    asked = Chat(model, template=QWEN3_REASONING, rng=1).user("How much?")
    first, second = Chat.replies(asked.fork(2), say)
    assert first.thoughts != second.thoughts
    first.save(tmp_path / "chat")
    loaded = Chat.load(tmp_path / "chat", model, template=QWEN3_REASONING)
    assert (loaded.thoughts, loaded.messages, ids_of(loaded)) == (first.thoughts, first.messages, ids_of(first))
    again = loaded.user("Sure?").assistant(say)
    assert ids_of(again)[: len(ids_of(asked))] == ids_of(asked)


def test_a_span_of_a_template_thinks() -> None:
    model = chat_model("Qwen3")
    source = "So: {{ choice('kind', ['yes', 'no'], thinking=thinking) }}. And {{ gen('name', regex='[a-z]{3}') }}"
    result = Template(source).run(model, thinking=SHORT, rng=3)
    assert result.captures["kind"] in ("yes", "no")
    assert result.text.startswith("So: <think>\n")
    assert f"\n</think>\n\n{result.captures['kind']}. And {result.captures['name']}" in result.text
    events = [*Template(source).stream(model, thinking=SHORT, rng=3)]
    assert "".join(event.text for event in events) == result.text
    assert "".join(event.text for event in events if event.is_thought)


def test_an_extractor_with_a_chat_and_no_prompt_shows_the_schema() -> None:
    model, schema = chat_model("Qwen3"), {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    extractor = pipelines.Extractor(model, schema, chat=Chat(model, template=QWEN3_REASONING))
    prompt = str(extractor.prompt({"text": "one lamp"}))
    assert re.search(r'JSON object that fits this schema: \{.*"enum".*\}\n\nMessage: one lamp<', prompt, re.DOTALL)


def test_an_extractor_thinks_before_each_record() -> None:
    model = chat_model("Qwen3")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    chat, rows = Chat(model, template=QWEN3_REASONING), ["one lamp", "two desks"]
    greedy = Thinking(max_tokens=6)
    thoughtful = pipelines.Extractor(model, schema, "Count: {{ text }}", chat=chat, thinking=greedy)
    for row, outcome in zip(rows, thoughtful.outcomes(rows), strict=True):
        alone = chat.user(f"Count: {row}").assistant(generate.json(model, schema), thinking=greedy).state.rows[0][0]
        assert alone.piece is not None
        assert outcome.record == alone.value
        assert outcome.usage.tokens > 6
        ends = sum(logprob for at, logprob in alone.counted.ends if at >= alone.piece.start)
        assert outcome.weight == pytest.approx(sum(alone.logprobs[alone.piece.start :]) + ends)
    drawn = [pipelines.Extractor(model, schema, "Count: {{ text }}", chat=chat, thinking=SHORT, seed=3) for _ in range(2)]
    first, second = ([one.weight for one in extractor.outcomes(rows)] for extractor in drawn)
    assert first == second


def test_a_generator_shows_its_schema_in_the_message_of_the_system() -> None:
    model = chat_model("Qwen3")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    count = generate.json(model, schema, show_schema=True)
    chat = Chat(model).user("How many?").assistant(count, max_tokens=20)
    assert chat.messages[0] == {"role": "system", "content": "Answer with JSON of this form:\n{ n: 1 | 2 }"}
    assert chat.value in ({"n": 1}, {"n": 2})
    length = len(ids_of(chat))
    again = chat.user("Sure?").assistant(count, max_tokens=20)
    assert [message["role"] for message in again] == ["system", *["user", "assistant"] * 2]
    assert ids_of(again)[:length] == ids_of(chat)
    told = Chat(model).system("Be short.").user("How many?").assistant(count, max_tokens=20)
    assert told.messages[0]["content"] == "Be short.\n\nAnswer with JSON of this form:\n{ n: 1 | 2 }"
    messages = [{"role": "user", "content": "How many?"}]
    assert count(messages, max_tokens=20) == chat.value
    assert count([messages, messages], max_tokens=20) == [chat.value] * 2


@pytest.mark.parametrize("prompt", ["a", Tokens.of("a"), [1, 2], ["a", "b"]])
def test_a_prompt_that_cannot_show_a_schema_is_refused(prompt: Any) -> None:
    with pytest.raises(OptionError, match="conversation"):
        generate.json(chat_model("plain"), {"type": "null"}, show_schema=True)(prompt)


def test_thoughts_that_a_template_opens_are_closed_before_an_answer_without_thoughts() -> None:
    model = chat_model("Qwen3")
    say, end = generate.choice(model, ["Ten.", "Twenty."]), THINK[1]
    asked = Chat(model, template=QWEN3_OPEN, rng=1).user("How much is it? <think>")
    opened = str(asked.state)
    assert opened.endswith("<think>\n")
    replies = [
        asked.assistant(say),
        asked.assistant(say, thinking=False),
        asked.assistant("T").assistant(generate.choice(model, ["en.", "wenty."])),
        *Chat.replies([asked, asked], say),
    ]
    stream = asked.stream(say)
    assert not any(event.is_thought for event in stream)
    for chat in (*replies, stream.chat):
        assert str(chat.state) == opened + end + chat.messages[-1]["content"]
        assert chat.messages[-1].get("reasoning_content") is None
        again = chat.user("Sure?").assistant(say)
        assert str(again.state).endswith(f"<think>\n{end}{again.value}")
    free = asked.assistant(max_tokens=5)
    assert str(free.state).startswith(opened + end)
    thinking = asked.assistant(say, thinking=SHORT)
    assert str(thinking.state).count(end) == 1
    for template in (QWEN3, QWEN3_REASONING, PLAIN):  # which open none
        chat = Chat(model, template=template).user("<think>")
        assert str(chat.assistant(say).state).startswith(str(chat.state) + "T")


def test_messages_as_a_prompt_and_those_of_an_extractor_leave_the_thoughts_that_the_template_opens(monkeypatch: Any) -> None:
    model = chat_model("Qwen3")
    monkeypatch.setattr(model.tokenizer.hugging_face, "chat_template", QWEN3_OPEN)
    say, messages = generate.choice(model, ["Ten.", "Twenty."]), [{"role": "user", "content": "How much is it?"}]
    for state in (continuous(say)(messages), continuous(say)([messages, "x"])):
        assert next(iter(state)).endswith("<think>\n" + THINK[1] + str(state.values[0][0]))
    assert str(continuous(say)(messages, thinking=SHORT)).count("</think>") == 1
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    texts = [str(answering(Chat(model).user("x"))), str(Chat(model).user("x").state)]
    assert texts[0] == texts[1] + THINK[1]
    extractor = pipelines.Extractor(model, schema, "{{ text }}", chat=Chat(model), max_tokens=20)
    assert str(extractor.prompt("x")) == texts[0]
    assert str(pipelines.Extractor(model, schema, "{{ text }}", chat=Chat(model), thinking=True).prompt("x")) == texts[1]
