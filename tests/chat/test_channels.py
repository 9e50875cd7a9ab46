"""gpt-oss: a reply is thoughts in a channel, then a call in another or an answer behind the head of the final one."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Chat, Thinking, generate, policies, samplers
from outlines_cont.chats.tool import Tool
from outlines_cont.chats.tool_form import FORMS
from outlines_cont.errors import OptionError
from outlines_cont.generation.thinking import head_of
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import Sampler
from tests.chat_models import GPT_OSS, QWEN3, QWEN3_OPEN, QWEN3_REASONING, chat_model
from tests.examples import examples

HEAD = "<|channel|>final<|message|>"
THOUGHT, ASSISTANT = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
OWN = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}'
TEMPLATES = ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}'
SHORT = Thinking(max_tokens=5, sampler=samplers.multinomial())


def weather(city: Literal["Paris", "Oslo"]) -> str:
    """Tell the weather."""
    return f"Rain in {city}."


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return chat_model("gpt-oss")


def chat_of(model: HuggingFaceModel, **options: Any) -> Chat:
    return Chat(model, template=GPT_OSS, tools=[weather], rng=1, **options).user("Rain?")


def preferring(model: HuggingFaceModel, written: str) -> Sampler:
    """A sampler that begins with the first token of a text, and where there is a choice prefers the others, special tokens among them."""
    first, *others = model.tokenizer.encode_special(written.replace('{"city": "Oslo"}', ""))
    against = model.tokenizer.encode("final", add_special_tokens=False) if "final" not in written else []
    return samplers.greedy(logit_bias={**dict.fromkeys(others, 200.0), **dict.fromkeys(against, -400.0), first: 600.0})


def said(chat: Chat, before: Chat) -> str:
    return str(chat.state)[len(str(before.state)) :]


@pytest.mark.parametrize(
    ("kind", "template", "head"), [("gpt-oss", GPT_OSS, HEAD), *(("Qwen3", one, "") for one in (QWEN3, QWEN3_REASONING, QWEN3_OPEN))]
)
def test_the_head_of_an_answer_is_found(kind: str, template: str, head: str) -> None:
    model = chat_model(kind)
    assert head_of(Chat(model, template=template)._format.template) == head
    if kind != "gpt-oss":
        assert head_of(Chat(chat_model("Llama 3"))._format.template) == head_of(Chat(chat_model("plain"))._format.template) == ""


def test_an_answer_without_thoughts_has_its_head(model: HuggingFaceModel) -> None:
    say = generate.choice(model, ["Yes.", "No."])
    asked = Chat(model, template=GPT_OSS).user("Rain?")
    chat = asked.assistant(say)
    assert said(chat, asked) == HEAD + chat.value
    assert chat.messages[-1] == {"role": "assistant", "content": chat.value}
    # The next turn, and a conversation that is made again, have the same tokens.
    own = [*chat.state.rows[0][0].token_ids]
    assert [*chat.user("Sure?").state.rows[0][0].token_ids][: len(own)] == own
    assert str(Chat(model, template=GPT_OSS).user("Rain?").assistant(chat.value).state) == str(chat.state)
    begun = asked.assistant("Ye").assistant(generate.regex(model, r"[a-z]{1,3}\."))
    assert said(begun, asked).startswith(HEAD + "Ye")
    assert begun.messages[-1]["content"] == "Ye" + begun.value


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("written", [OWN, TEMPLATES])
def test_a_reply_is_a_call_in_either_form(model: HuggingFaceModel, written: str, thinks: bool) -> None:
    asked = chat_of(model)
    options: Any = {"thinking": SHORT} if thinks else {}
    free = generate.text(model, sampler=preferring(model, written))
    chat = asked.assistant(free, max_tokens=80, **options)
    (call,) = chat.tool_calls
    assert call.run() == f"Rain in {call.arguments['city']}."
    assert chat.messages[-1]["content"] == ""
    thought = f"{THOUGHT}{chat.state.thoughts}{ASSISTANT}" if thinks else ""
    assert bool(chat.thoughts) is thinks
    assert said(chat, asked) == thought + written.replace("Oslo", call.arguments["city"])
    with model.meter() as meter:
        answered = chat.tool(call.run()).assistant(generate.choice(model, ["Yes.", "No."]), **options)
    # In the form of the template nothing is fed again.
    kept = len(chat.state.rows[0][0].token_ids) if written == TEMPLATES else len(asked.state.rows[0][0].token_ids)
    assert meter.reused_tokens >= kept - 1
    assert meter.recomputed_tokens == 0 or written == OWN
    assert str(answered.state).endswith(f"{HEAD}{answered.value}")

    stream = asked.stream(free, max_tokens=80, **options)
    events = [*stream]
    assert stream.chat == chat
    assert "".join(event.text for event in events if not event.is_thought) == ""
    parts = [event.call for event in events if event.call is not None]
    assert "".join(part.text for part in parts) == written[written.index("{") :].replace("Oslo", call.arguments["city"])
    assert (parts[-1].name, parts[-1].arguments, parts[-1].is_whole) == ("weather", call.arguments, True)


@pytest.mark.parametrize("thinks", [False, True])
def test_a_reply_is_an_answer_in_the_final_channel(model: HuggingFaceModel, thinks: bool) -> None:
    asked = chat_of(model)
    options: Any = {"thinking": SHORT} if thinks else {}
    free = generate.text(model, sampler=preferring(model, HEAD))
    chat = asked.assistant(free, max_tokens=6, stop_at="zq", **options)
    assert chat.tool_calls == ()
    thought = f"{THOUGHT}{chat.state.thoughts}{ASSISTANT}" if thinks else ""
    assert said(chat, asked) == thought + HEAD + chat.messages[-1]["content"]
    piece = chat.state.rows[0][0].piece
    assert piece is not None
    assert len(chat.state.rows[0][0].token_ids) - piece.start <= 6  # the head does not count
    stream = asked.stream(free, max_tokens=6, stop_at="zq", **options)
    events = [*stream]
    assert stream.chat == chat
    assert "".join(event.text for event in events if not event.is_thought) == chat.messages[-1]["content"]
    # A constrained answer is what its generator writes after the same text.
    say = generate.regex(model, "[a-z]{3,6}", sampler=preferring(model, HEAD))
    chosen = asked.assistant(say, tools=[weather], **options)
    row = chosen.state.rows[0][0]
    assert row.piece is not None
    assert chosen.value == say([*row.token_ids[: row.piece.start]])
    assert str(chosen.state).endswith(HEAD + chosen.value)


def test_the_choice_has_the_shares_of_the_model(model: HuggingFaceModel) -> None:
    """A call is drawn with the probability of the tokens that begin one, among those that begin a call or an answer."""
    asked = chat_of(model)
    logits = asked.state.logits[0, 0].double()
    begins = generate.fsm(model, FORMS["harmony"].expression([Tool.of(weather)], "", asked_names(model)))
    token_fsm = begins.constraint.token_fsm  # type: ignore[union-attr]
    calls = set(token_fsm.allowed_token_ids(token_fsm.initial_state).tolist())
    channel = model.tokenizer.encode_special("<|channel|>")[0]
    probs = logits[sorted(calls | {channel})].softmax(0)
    by_id = dict(zip(sorted(calls | {channel}), probs.tolist(), strict=True))
    drawn = Chat.replies(asked.fork(200), generate.text(model, sampler=samplers.multinomial()), max_tokens=1, rng=[*range(200)])
    outside = [one for one in drawn if one.state.rows[0][0].token_ids[len(asked.state.rows[0][0].token_ids)] != channel]
    expected = 1 - by_id[channel]
    assert len(outside) / 200 == pytest.approx(expected, abs=4.5 * (expected * (1 - expected) / 200) ** 0.5 + 1e-3)


def asked_names(model: HuggingFaceModel) -> Any:
    from outlines_cont.models.tokenizer.special_names import special_names_of

    return special_names_of(model.tokenizer)


@pytest.mark.parametrize("written", [OWN, TEMPLATES, HEAD])
@pytest.mark.parametrize("thinks", [False, True])
def test_a_reply_that_is_left_anywhere_is_resumed(model: HuggingFaceModel, written: str, thinks: bool) -> None:
    asked = chat_of(model)
    options: Any = {"thinking": SHORT} if thinks else {}
    free = generate.text(model, sampler=preferring(model, written))
    options["max_tokens"] = 70 if written != HEAD else 26  # free text goes on to the end
    whole = asked.assistant(free, **options)
    assert len(whole.tool_calls) == (written != HEAD)
    ids = whole.state.rows[0][0].token_ids
    for stop_after in (0, 1, 2, 5, 6, 7, 12, 20):
        stream = asked.stream(free, **options)
        for number, _ in enumerate(stream):
            if number == stop_after:
                break
        left = stream.chat
        assert left.state.rows[0][0].token_ids == ids[: left.state.shape[2]]
        if left.finish_reason != "length" or left.state.shape[2] == len(ids):
            continue
        resumed = left.resume(free, **options)
        assert resumed.state.rows[0][0].token_ids[: len(ids)] == ids
        if whole.finish_reason != "length":
            assert (resumed.messages, resumed.thoughts) == (whole.messages, whole.thoughts)


def test_the_policies_of_a_call_are_those_of_the_text_behind_the_head(model: HuggingFaceModel) -> None:
    asked = chat_of(model)
    free = generate.text(model, sampler=preferring(model, HEAD))
    plain = asked.assistant(free, max_tokens=6).messages[-1]["content"]
    word = plain[:4]
    banned = asked.assistant(free, max_tokens=6, policies=[policies.ban([word])])
    assert word not in banned.messages[-1]["content"]
    stopped = asked.assistant(free, max_tokens=6, stop_at="final")
    assert stopped.messages[-1]["content"] == plain
    calling = generate.text(model, sampler=preferring(model, TEMPLATES))
    assert len(asked.assistant(calling, max_tokens=80).tool_calls) == 1
    assert asked.assistant(calling, max_tokens=80, stop_at="city").tool_calls == ()


@pytest.mark.parametrize(("choice", "names"), [("required", ["weather"]), ("weather", ["weather"]), ("none", [])])
def test_the_choice_of_tools(model: HuggingFaceModel, choice: str, names: list[str]) -> None:
    for options in ({}, {"thinking": SHORT}):
        chat = chat_of(model).assistant(tool_choice=choice, max_tokens=80, **options)  # type: ignore[arg-type]
        assert [call.name for call in chat.tool_calls] == names
        begins = TEMPLATES[:14], OWN[:14]
        behind = str(chat.state).rpartition("<|start|>assistant")[2]
        assert behind.startswith(begins) if names else behind.startswith(HEAD)


def test_a_search_for_a_reply_that_may_call_is_refused(model: HuggingFaceModel) -> None:
    search = generate.text(model, sampler=samplers.beam_search(2))
    with pytest.raises(OptionError, match="best_of"):
        chat_of(model).assistant(search, max_tokens=5)
    assert chat_of(model).assistant(search, max_tokens=5, tool_choice="none").messages[-1]["content"]
    best = chat_of(model).assistant(generate.text(model, sampler=samplers.best_of(2)), max_tokens=5, thinking=SHORT)
    assert best.thoughts


@settings(max_examples=examples(30))
@given(st.sampled_from(["Paris", "Oslo"]), st.booleans())
def test_both_forms_are_in_the_language_and_are_read(city: str, is_own: bool) -> None:
    form = FORMS["harmony"]
    assert form.also is not None
    text = (form.also if is_own else form).written([("weather", {"city": city})])
    assert text == (OWN if is_own else TEMPLATES).replace("Oslo", city)
    tools = [Tool.of(weather)]
    assert form.expression(tools, "").accepts(text)
    assert not form.expression(tools, "").accepts(text.replace(city, "Rome"))
    assert form.calls(text, tools) == [("weather", {"city": city})]
    for end in range(len(text)):
        assert form.calls(text[:end], tools) == []
