"""Clients of others, one scenario each. Those that are not installed are skipped; all of them:

pip install -c constraints.txt '.[test,clients]' && npm install --prefix /tmp/js openai@6.49.0 zod@4.6.7
NODE_PATH=/tmp/js/node_modules pytest -m clients -W default tests/serve

`instructor` and `openai-agents` need another version of `openai`, so an environment of their own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import requires, version
from pathlib import Path
from typing import Any, Literal

import pytest
from packaging.requirements import Requirement

from tests.examples import first
from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER, Order

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
ORDER = Order(customer="Ana Novak", item="lamps", quantity=3)


def client(module: str, distribution: str) -> Any:
    """Return a module of a client; skip where it is not installed, or where `openai` is of a version that it does not take."""
    found = pytest.importorskip(module, reason=f"{distribution} is not installed: pip install '.[clients]'", exc_type=ImportError)
    for one in map(Requirement, requires(distribution) or ()):
        if one.name == "openai" and (one.marker is None or one.marker.evaluate({"extra": "openai"})):
            installed = version("openai")
            if not one.specifier.contains(installed, prereleases=True):
                pytest.skip(f"{distribution} takes {one}, and openai {installed} is installed")
    return found


def pydantic_ai_models(served: Running) -> list[Any]:
    """The models of pydantic-ai for each protocol of the server, Messages where the client of Anthropic is installed."""
    openai_models, providers = client("pydantic_ai.models.openai", "pydantic-ai-slim"), pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{served.url}/v1", api_key="none")
    found = [kind("tiny", provider=provider) for kind in (openai_models.OpenAIChatModel, openai_models.OpenAIResponsesModel)]
    try:
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider
    except ImportError:
        return found
    own = AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0)
    profile: Any = {"supports_json_schema_output": True}  # which is known of the names of Anthropic's models alone
    return [*found, AnthropicModel("tiny", provider=AnthropicProvider(anthropic_client=own), profile=profile)]


@pytest.fixture(autouse=True)
def _loop() -> Iterator[None]:
    """The event loop of clients that take the current one: what they leave unclosed would warn in a later test."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()


def test_pydantic_ai(served: Running) -> None:
    ai = client("pydantic_ai", "pydantic-ai-slim")
    for model in pydantic_ai_models(served):
        agent = ai.Agent(model, output_type=ai.NativeOutput(Order), model_settings={"temperature": 0, "max_tokens": 100})
        assert agent.run_sync(ASKED[0]["content"]).output == ORDER
        by_tool = ai.Agent(model, output_type=ai.ToolOutput(Order), model_settings={"temperature": 0, "max_tokens": 200})
        done = by_tool.run_sync(ASKED[0]["content"])
        assert isinstance(done.output, Order)
        assert done.usage().output_tokens > 0


def test_pydantic_ai_streams(served: Running) -> None:
    ai = client("pydantic_ai", "pydantic-ai-slim")

    async def run(model: Any) -> list[Any]:
        agent = ai.Agent(model, output_type=ai.NativeOutput(Order), model_settings={"temperature": 0, "max_tokens": 100})
        async with agent.run_stream(ASKED[0]["content"]) as stream:
            return [part async for part in stream.stream_output(debounce_by=None)]

    for model in pydantic_ai_models(served):
        parts = asyncio.run(run(model))
        assert len(parts) > 1
        assert parts[-1] == ORDER


@pytest.mark.parametrize("seed", first(2, range(3)))
def test_pydantic_ai_with_tools_and_a_native_output(served: Running, seed: int) -> None:
    """Each step is a call of the tool, or the output: whichever the model chooses, both are whole."""
    ai = client("pydantic_ai", "pydantic-ai-slim")
    asked: list[str] = []

    def weather(city: Literal["Paris", "Oslo"]) -> str:
        """Tell the weather."""
        asked.append(city)
        return "Rain."

    def now() -> str:
        """Tell the time."""
        asked.append("now")
        return "Noon."

    for model in pydantic_ai_models(served):
        settings: Any = {"temperature": 1.0 if model.system == "anthropic" else 1.5, "max_tokens": 300, "parallel_tool_calls": False}
        settings |= {"extra_body": {"seed": seed}} if model.system == "anthropic" else {"seed": seed}
        agent = ai.Agent(model, output_type=ai.NativeOutput(Order), tools=[weather, now], system_prompt="Be kind.", model_settings=settings)
        try:
            result = agent.run_sync(ASKED[0]["content"], usage_limits=ai.UsageLimits(request_limit=6))
        except ai.UsageLimitExceeded:  # a random model may call for ever
            assert asked
            continue
        assert isinstance(result.output, Order)
        again = agent.run_sync("Again.", message_history=result.all_messages(), model_settings={"tool_choice": "none"})
        assert isinstance(again.output, Order)
    assert {*asked} <= {"Paris", "Oslo", "now"}


def test_langchain_with_tools_and_a_format(served: Running) -> None:
    made = client("langchain_openai", "langchain-openai").ChatOpenAI
    messages = pytest.importorskip("langchain_core.messages")
    for seed in range(4):
        model = made(model="tiny", base_url=f"{served.url}/v1", api_key="none", temperature=1.5, max_tokens=200, seed=seed)
        strict_tool: Any = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
        bound = model.bind_tools([strict_tool], response_format=Order, strict=True, parallel_tool_calls=False)
        found = bound.invoke(ASKED[0]["content"])
        history = [messages.HumanMessage(ASKED[0]["content"]), found]
        if found.tool_calls:
            assert found.tool_calls[0]["args"]["city"] in ("Paris", "Oslo")
            history.append(messages.ToolMessage("Rain.", tool_call_id=found.tool_calls[0]["id"]))
        else:
            assert isinstance(found.additional_kwargs["parsed"], Order)
            history.append(messages.HumanMessage("Again."))
        assert model.with_structured_output(Order, method="json_schema").invoke(history)


def test_instructor(served: Running) -> None:
    instructor = client("instructor", "instructor")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        asking = instructor.from_openai(served.client, mode=mode)
        asked: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 200, "max_retries": 0}
        if mode is instructor.Mode.JSON:  # any object
            asked["extra_body"] = {
                "response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": Order.model_json_schema()}}
            }
        assert isinstance(asking.chat.completions.create(**asked, response_model=Order), Order)
        parts = [*asking.chat.completions.create_partial(**asked, response_model=Order)]
        assert len(parts) > 3
        assert Order.model_validate(parts[-1].model_dump())


def test_instructor_by_the_protocol_of_anthropic(served: Running) -> None:
    instructor = client("instructor", "instructor")
    anthropic = client("anthropic", "anthropic")
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as own:
        asking = instructor.from_anthropic(own, mode=instructor.Mode.ANTHROPIC_TOOLS)
        found = asking.messages.create(
            model="tiny", messages=ASKED, max_tokens=200, max_retries=0, response_model=Order, extra_body={"temperature": 0}
        )
    assert isinstance(found, Order)


@pytest.mark.parametrize("uses_responses", [False, True])
def test_openai_agents(served: Running, uses_responses: bool) -> None:
    agents = client("agents", "openai-agents")
    agents.set_tracing_disabled(True)
    asked: list[str] = []

    @agents.function_tool
    def weather(city: Literal["Paris", "Oslo"]) -> str:
        """Tell the weather."""
        asked.append(city)
        return "Rain."

    @agents.function_tool
    def now() -> str:
        """Tell the time."""
        asked.append("now")
        return "Noon."

    async def run() -> None:
        async with served.async_client() as own:
            made = agents.OpenAIResponsesModel if uses_responses else agents.OpenAIChatCompletionsModel
            settings = agents.ModelSettings(temperature=1.0, max_tokens=300, parallel_tool_calls=False, store=True)
            agent = agents.Agent(
                "a", instructions="Be kind.", model=made("tiny", own), output_type=Order, tools=[weather, now], model_settings=settings
            )
            forced = agent.clone(model_settings=replace(settings, tool_choice="weather"))
            try:
                first = await agents.Runner.run(forced, ASKED[0]["content"], max_turns=4)
            except agents.MaxTurnsExceeded:  # a random model may call for ever
                return
            assert isinstance(first.final_output, Order)
            last = await agents.Runner.run(agent.clone(tools=[]), [*first.to_input_list(), {"role": "user", "content": "Again."}])
            assert isinstance(last.final_output, Order)
            streamed = agents.Runner.run_streamed(agent.clone(tools=[]), ASKED[0]["content"])
            kinds = [event.type async for event in streamed.stream_events()]
            assert kinds.count("raw_response_event") > 5
            assert isinstance(streamed.final_output, Order)

    asyncio.run(run())
    assert asked[0] in ("Paris", "Oslo")


def test_langchain(served: Running) -> None:
    made = client("langchain_openai", "langchain-openai").ChatOpenAI
    for uses_responses in (False, True):
        options: Any = {"temperature": 0, "max_tokens": 100, "use_responses_api": uses_responses}
        model = made(model="tiny", base_url=f"{served.url}/v1", api_key="none", **options)
        assert model.with_structured_output(Order, method="json_schema").invoke(ASKED[0]["content"]) == ORDER
        called = model.bind_tools([WEATHER], tool_choice="weather", parallel_tool_calls=False).invoke(ASKED[0]["content"])
        assert called.tool_calls[0]["args"]["city"] in ("Paris", "Oslo")
        whole = model.invoke(ASKED[0]["content"])
        chunks = [*model.stream(ASKED[0]["content"])]
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert whole.usage_metadata["output_tokens"] > 0


def test_litellm(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else it asks the network for prices
    litellm = client("litellm", "litellm")
    asked: Any = {"model": "openai/tiny", "messages": ASKED, "temperature": 0, "max_tokens": 100}
    asked |= {"api_base": f"{served.url}/v1", "api_key": "none"}
    reply = litellm.completion(**asked, response_format=Order)
    assert Order.model_validate_json(reply.choices[0].message.content) == ORDER
    text = litellm.completion(**asked).choices[0].message.content
    chunks = [*litellm.completion(**asked, stream=True, stream_options={"include_usage": True})]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage.completion_tokens > 0
    called = litellm.completion(**asked, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True)
    whole = litellm.stream_chunk_builder([*called]).choices[0].message
    assert json.loads(whole.tool_calls[0].function.arguments)["city"] in ("Paris", "Oslo")


def test_litellm_by_the_protocol_of_anthropic(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = client("litellm", "litellm")
    asked: Any = {"model": "anthropic/tiny", "messages": ASKED, "temperature": 0, "max_tokens": 100}
    asked |= {"api_base": served.url, "api_key": "none"}
    text = litellm.completion(**asked).choices[0].message.content
    chunks = [*litellm.completion(**asked, stream=True)]
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    called = litellm.completion(**asked, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False).choices[0].message
    assert json.loads(called.tool_calls[0].function.arguments)["city"] in ("Paris", "Oslo")
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "Rain."}
    assert litellm.completion(**asked | {"messages": [*ASKED, called, result]}, tools=[WEATHER]).choices[0].message.content is not None


HAS_NODE = shutil.which("node") is not None and (Path(os.environ.get("NODE_PATH", "")) / "openai").exists()


@pytest.mark.skipif(not HAS_NODE, reason="needs node, and `openai` in NODE_PATH")
def test_the_client_for_javascript(served: Running) -> None:
    run = ["node", str(Path(__file__).with_name("client.cjs")), served.url]
    found = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["parsed"] == told["response"] == ORDER.model_dump()
    assert told["same"]
    assert told["told"] in ("Rain in Paris.", "Rain in Oslo.")
    assert min(told["tokens"], told["events"]) > 5
