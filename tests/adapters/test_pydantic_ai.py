"""A model of ours in agents of the real pydantic-ai: texts, outputs, tools, streams, histories, usage, thoughts, errors."""

from __future__ import annotations

import asyncio
import gc
import random
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from outlines_cont import Chat, engine_of, generate, models
from tests.chat_models import chat_model

ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: pip install '.[clients]'")

from pydantic_ai import direct  # noqa: E402
from pydantic_ai import messages as said  # noqa: E402
from pydantic_ai.models import ModelRequestParameters  # noqa: E402
from pydantic_ai.tools import ToolDefinition  # noqa: E402

from outlines_cont.adapters.pydantic_ai import AgentModel  # noqa: E402
from tests.examples import first  # noqa: E402

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]

MESSAGE = "Message: Hello, this is Ana Novak. Please send 3 lamps by 2026-05-04."
CITY: Any = {"type": "object", "properties": {"city": {"enum": ["Paris", "Oslo"]}}, "required": ["city"], "additionalProperties": False}
WEATHER = ToolDefinition(name="weather", description="The weather.", parameters_json_schema=CITY)
FORCED: Any = {"tool_choice": ["weather"], "parallel_tool_calls": False}


class Order(BaseModel):
    customer: str
    item: str
    quantity: int


ORDER = Order(customer="Ana Novak", item="lamps", quantity=3)


@pytest.fixture(autouse=True)
def _loop() -> Iterator[None]:
    """The event loop of `run_sync`, which takes the current one: what is left unclosed would warn in a later test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()


def run(work: Any) -> Any:
    return asyncio.get_event_loop().run_until_complete(work)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return models.tiny()


@pytest.fixture(scope="module")
def model(tiny: Any) -> AgentModel:
    return AgentModel(tiny, settings={"max_tokens": 100})


@pytest.fixture(scope="module")
def thinker() -> Any:
    return chat_model("Qwen3")


class Calling(AgentModel):
    """A model that calls the weather first."""

    @asynccontextmanager
    async def request_stream(
        self, messages: list[Any], model_settings: Any, model_request_parameters: Any, run_context: Any = None
    ) -> AsyncGenerator[Any]:
        is_first = not any(part.part_kind == "tool-return" for message in messages for part in message.parts)
        settings = (model_settings or {}) | FORCED if is_first else model_settings
        async with super().request_stream(messages, settings, model_request_parameters, run_context) as streamed:
            yield streamed


# -- outputs -----------------------------------------------------------------------------------------------------------


def test_a_text_is_that_of_a_chat(tiny: Any, model: AgentModel) -> None:
    alone = Chat(tiny).user(MESSAGE).assistant(generate.text(tiny), max_tokens=100)
    result = ai.Agent(model).run_sync(MESSAGE)
    assert result.output == alone.messages[-1]["content"]
    usage = result.usage() if callable(result.usage) else result.usage
    num_prompt = Chat(tiny).user(MESSAGE).state.shape[2]
    assert (usage.input_tokens, usage.output_tokens, usage.requests) == (num_prompt, alone.state.shape[2] - num_prompt, 1)
    response = result.all_messages()[-1]
    assert (response.model_name, response.provider_name, response.finish_reason) == ("local", "outlines-cont", "stop")
    assert (model.model_name, model.system) == ("local", "outlines-cont")


@pytest.mark.parametrize("kind", ["native", "prompted", "tool", "plain"])
def test_an_output_has_its_type(model: AgentModel, kind: str) -> None:
    made = {"native": ai.NativeOutput(Order), "prompted": ai.PromptedOutput(Order), "tool": ai.ToolOutput(Order), "plain": Order}
    found = ai.Agent(model, output_type=made[kind]).run_sync(MESSAGE)
    assert isinstance(found.output, Order)
    if kind in ("native", "prompted"):
        assert found.output == ORDER
    assert len(found.all_messages()) == (2 if kind in ("native", "prompted") else 3)


def test_one_of_several_outputs_is_chosen(model: AgentModel) -> None:
    class Question(BaseModel):
        text: str

    assert isinstance(ai.Agent(model, output_type=[Order, Question]).run_sync(MESSAGE).output, Order | Question)


def test_what_a_validator_refuses_is_asked_for_again(model: AgentModel) -> None:
    agent = ai.Agent(model, output_type=ai.NativeOutput(Order), retries=2)
    asked = []

    @agent.output_validator
    def check(order: Order) -> Order:
        asked.append(order)
        if len(asked) == 1:
            raise ai.ModelRetry("Look again.")
        return order

    result = agent.run_sync(MESSAGE)
    assert (len(asked), len(result.all_messages())) == (2, 4)


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [str, ai.NativeOutput(Order)], ids=str)
def test_a_tool_is_called_and_its_result_read(tiny: Any, output: Any) -> None:
    called = []

    def weather(city: str) -> str:
        """The weather of a city."""
        called.append(city)
        return "Rain."

    agent = ai.Agent(Calling(tiny, settings={"max_tokens": 80}), output_type=output, tools=[weather], instructions="Be kind.")
    result = agent.run_sync(MESSAGE)
    _, call, result_of_call, _ = result.all_messages()
    assert len(called) == 1
    assert isinstance(result.output, str if output is str else Order)
    assert [part.part_kind for part in call.parts] == ["tool-call"]
    assert call.finish_reason == "tool_call"
    assert result_of_call.parts[0].tool_call_id == call.parts[0].tool_call_id
    usage = result.usage() if callable(result.usage) else result.usage
    assert (usage.requests, usage.tool_calls) == (2, 1)
    assert usage.cache_read_tokens > 0
    assert agent.run_sync("And now?", message_history=result.all_messages()).output is not None
    data = said.ModelMessagesTypeAdapter.dump_json(result.all_messages())
    assert said.ModelMessagesTypeAdapter.validate_json(data)[1].parts[0].tool_name == "weather"


def _request(model: AgentModel, parts: Sequence[Any], settings: Any = None, **parameters: Any) -> Any:
    given = ModelRequestParameters(**parameters)
    return direct.model_request_sync(model, [said.ModelRequest(parts=[*parts])], model_settings=settings, model_request_parameters=given)


def test_tools_are_chosen_by_the_settings(model: AgentModel) -> None:
    other = ToolDefinition(name="other", parameters_json_schema={"type": "object", "properties": {}, "additionalProperties": False})
    asked = [said.UserPromptPart(content=MESSAGE)]
    for choice, names in ((["weather"], {"weather"}), (["other"], {"other"}), ("required", {"weather", "other"}), ("none", set())):
        settings: Any = {"tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 40}
        response = _request(model, asked, settings, function_tools=[WEATHER, other], allow_text_output=True)
        calls = [part for part in response.parts if part.part_kind == "tool-call"]
        assert {call.tool_name for call in calls} <= names
        assert len(calls) == (1 if names else 0)
    output = ToolDefinition(name="final", parameters_json_schema=CITY)
    response = _request(model, asked, None, output_tools=[output], output_mode="tool", allow_text_output=False)
    assert [part.tool_name for part in response.parts] == ["final"]
    assert response.parts[0].args_as_dict()["city"] in ("Paris", "Oslo")


def test_a_call_that_was_cut_is_no_complete_one(model: AgentModel) -> None:
    note = ToolDefinition(
        name="note", parameters_json_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    )
    settings: Any = {"tool_choice": ["note"], "max_tokens": 24}
    response = _request(model, [said.UserPromptPart(content=MESSAGE)], settings, function_tools=[note])
    assert response.finish_reason == "length"
    history = [
        said.ModelRequest(parts=[said.UserPromptPart(content="a")]),
        response,
        said.ModelRequest(parts=[said.UserPromptPart(content="b")]),
    ]
    assert direct.model_request_sync(model, history).finish_reason in ("stop", "length")


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_is_the_whole_response(model: AgentModel) -> None:
    agent = ai.Agent(model)

    async def read() -> tuple[list[str], Any]:
        async with agent.run_stream(MESSAGE) as result:
            texts = [text async for text in result.stream_text(delta=True, debounce_by=None)]
            return texts, result.usage() if callable(result.usage) else result.usage

    texts, usage = run(read())
    whole = agent.run_sync(MESSAGE)
    assert len(texts) > 5
    assert "".join(texts) == whole.output
    assert usage.output_tokens == (whole.usage() if callable(whole.usage) else whole.usage).output_tokens


def test_an_output_grows(model: AgentModel) -> None:
    async def read() -> list[Any]:
        async with ai.Agent(model, output_type=ai.NativeOutput(Order)).run_stream(MESSAGE) as result:
            return [output async for output in result.stream_output(debounce_by=None)]

    assert run(read())[-1] == ORDER


def test_events_of_a_call_make_the_call(model: AgentModel) -> None:
    asked = [said.ModelRequest(parts=[said.UserPromptPart(content=MESSAGE)])]
    given = ModelRequestParameters(function_tools=[WEATHER])

    async def read() -> tuple[list[Any], Any]:
        opened = direct.model_request_stream(model, asked, model_settings=FORCED, model_request_parameters=given)
        async with opened as stream:
            events = [event async for event in stream]
            return events, stream.get()

    events, response = run(read())
    assert events[0].event_kind == "part_start"
    (call,) = response.parts
    whole = direct.model_request_sync(model, asked, model_settings=FORCED, model_request_parameters=given).parts[0]
    assert (call.tool_name, call.args_as_dict()) == (whole.tool_name, whole.args_as_dict())


def test_a_stream_that_is_left_frees_its_row(tiny: Any, model: AgentModel) -> None:
    async def leave() -> None:
        async with ai.Agent(model).run_stream(MESSAGE) as result:
            async for _ in result.stream_text(debounce_by=None):
                break

    run(leave())
    assert engine_of(tiny).num_running == 0


def test_agents_at_the_same_time_are_those_alone(model: AgentModel) -> None:
    texts = [MESSAGE, "Rain?", MESSAGE.replace("3", "4"), "Message: Good morning."]
    agent = ai.Agent(model, model_settings={"temperature": 1.2, "seed": 5, "max_tokens": 20})

    async def all_of_them() -> list[str]:
        return [result.output for result in await asyncio.gather(*map(agent.run, texts))]

    assert run(all_of_them()) == [agent.run_sync(text).output for text in texts]


# -- messages ----------------------------------------------------------------------------------------------------------

WORDS = ["Rain?", "Hello, this is Ana Novak.", "Oslo\n", "été", "<|im_end|>"]


def random_history(draw: random.Random) -> tuple[list[Any], list[dict[str, Any]]]:
    """Messages of pydantic-ai, and what they say."""
    system = draw.choices(WORDS, k=draw.randint(0, 2))
    parts: list[Any] = [said.SystemPromptPart(content=text) for text in system]
    messages: list[Any] = []
    told: list[dict[str, Any]] = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    for turn in range(draw.randint(1, 3)):
        content = draw.choices(WORDS, k=draw.randint(1, 2))
        parts.append(said.UserPromptPart(content=content if draw.random() < 0.5 else "\n".join(content)))
        told.append({"role": "user", "content": "\n".join(content)})
        messages.append(said.ModelRequest(parts=parts))
        reply, parts = draw.choice(WORDS), []
        replied: list[Any] = [said.TextPart(content=reply)]
        told.append({"role": "assistant", "content": reply})
        if draw.random() < 0.5:
            replied.insert(0, said.ThinkingPart(content="Hm."))
            told[-1]["reasoning_content"] = "Hm."
        if draw.random() < 0.5:
            arguments: Any = {"city": draw.choice(["Oslo", "Ålesund"])}
            replied.append(said.ToolCallPart(tool_name="weather", args=arguments, tool_call_id=f"call{turn}"))
            told[-1]["tool_calls"] = [{"type": "function", "id": f"call{turn}", "function": {"name": "weather", "arguments": arguments}}]
            result = draw.choice(WORDS)
            parts = [said.ToolReturnPart(tool_name="weather", content=result, tool_call_id=f"call{turn}")]
            told.append({"role": "tool", "name": "weather", "tool_call_id": f"call{turn}", "content": result})
        messages.append(said.ModelResponse(parts=replied))
    parts.append(said.UserPromptPart(content="Why?"))
    told.append({"role": "user", "content": "Why?"})
    return [*messages, said.ModelRequest(parts=parts)], told


@pytest.mark.parametrize("seed", first(4, range(12)))
def test_a_history_is_the_conversation_that_it_says(tiny: Any, thinker: Any, seed: int) -> None:
    draw = random.Random(seed)
    messages, told = random_history(draw)
    tools = [WEATHER] if draw.random() < 0.5 else []
    described = [{"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}] if tools else []
    for language_model in (tiny, thinker):
        chat = Chat(language_model, tools=described)
        for message in told:
            chat = chat.message(message)
        agent_model = AgentModel(language_model, settings={"max_tokens": 8})
        given = ModelRequestParameters(function_tools=tools)
        settings: Any = {"tool_choice": "auto"}
        response = direct.model_request_sync(agent_model, messages, model_settings=settings, model_request_parameters=given)
        alone = chat.assistant(max_tokens=8)
        assert response.usage.input_tokens == chat.state.shape[2]
        assert "".join(part.content for part in response.parts if part.part_kind == "text") == alone.messages[-1]["content"]
        counted = run(agent_model.count_tokens(messages, settings, given))
        assert counted.input_tokens == chat.state.shape[2]


def test_thoughts_are_parts_of_their_own(thinker: Any) -> None:
    agent = ai.Agent(AgentModel(thinker, settings={"thinking": "low", "max_tokens": 40}))
    result = agent.run_sync("Rain?")
    assert [part.part_kind for part in result.all_messages()[-1].parts] == ["thinking", "text"]
    usage = result.usage() if callable(result.usage) else result.usage
    assert 0 < usage.details["reasoning_tokens"] < usage.output_tokens
    assert agent.run_sync("Why?", message_history=result.all_messages()).output
    assert [
        part.part_kind
        for part in ai.Agent(AgentModel(thinker)).run_sync("Rain?", model_settings={"max_tokens": 9}).all_messages()[-1].parts
    ] == ["text"]


def test_what_cannot_be_read_is_refused(model: AgentModel) -> None:
    with pytest.raises(ai.exceptions.UserError, match="models here read no files"):
        ai.Agent(model).run_sync(["What is this?", ai.ImageUrl(url="https://a.example/a.png")])
    with pytest.raises(ai.exceptions.UserError, match="expected a tool"):
        _request(model, [said.UserPromptPart(content="a")], allow_text_output=False)
    with pytest.raises(Exception, match="odd"):
        wrong = ToolDefinition(name="a", parameters_json_schema={"type": "object", "properties": {"b": {"type": "odd"}}})
        _request(model, [said.UserPromptPart(content="a")], function_tools=[wrong])
    with pytest.raises(Exception, match="fewer than 2048 tokens"):
        ai.Agent(model).run_sync("a b c d " * 1000)


def test_the_page_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pydantic_ai.md").read_text(encoding="utf-8")
    (code,), (shown,) = (re.findall(rf"^```{kind}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) for kind in ("py", "output"))
    exec(compile(code, "page", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == shown
