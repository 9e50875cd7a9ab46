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
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.serve.running import Running
from tests.serve.test_server import ASKED, WEATHER, Order

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
ORDER = Order(customer="Ana Novak", item="lamps", quantity=3)


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
    ai = pytest.importorskip("pydantic_ai")
    openai_models, providers = pytest.importorskip("pydantic_ai.models.openai"), pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{served.url}/v1", api_key="none")
    for kind in (openai_models.OpenAIChatModel, openai_models.OpenAIResponsesModel):
        model = kind("tiny", provider=provider, settings={"temperature": 0, "max_tokens": 100})
        agent = ai.Agent(model, output_type=ai.NativeOutput(Order))
        assert agent.run_sync(ASKED[0]["content"]).output == ORDER
        by_tool = ai.Agent(model, output_type=ai.ToolOutput(Order)).run_sync(ASKED[0]["content"])
        assert isinstance(by_tool.output, Order)
        assert by_tool.usage().output_tokens > 0


@pytest.mark.parametrize("seed", range(3))
def test_pydantic_ai_with_tools_and_a_native_output(served: Running, seed: int) -> None:
    """Each step is a call of the tool, or the output: whichever the model chooses, both are whole."""
    ai = pytest.importorskip("pydantic_ai")
    openai_models, providers = pytest.importorskip("pydantic_ai.models.openai"), pytest.importorskip("pydantic_ai.providers.openai")
    provider = providers.OpenAIProvider(base_url=f"{served.url}/v1", api_key="none")
    asked: list[str] = []

    def weather(city: Literal["Paris", "Oslo"]) -> str:
        """Tell the weather."""
        asked.append(city)
        return "Rain."

    def now() -> str:
        """Tell the time."""
        asked.append("now")
        return "Noon."

    for kind in (openai_models.OpenAIChatModel, openai_models.OpenAIResponsesModel):
        model = kind(
            "tiny", provider=provider, settings={"temperature": 1.5, "max_tokens": 200, "seed": seed, "parallel_tool_calls": False}
        )
        agent = ai.Agent(model, output_type=ai.NativeOutput(Order), tools=[weather, now], system_prompt="Be kind.")
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
    made = pytest.importorskip("langchain_openai").ChatOpenAI
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
    instructor = pytest.importorskip("instructor")
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        client = instructor.from_openai(served.client, mode=mode)
        asked: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 200, "max_retries": 0}
        if mode is instructor.Mode.JSON:  # any object
            asked["extra_body"] = {
                "response_format": {"type": "json_schema", "json_schema": {"name": "o", "schema": Order.model_json_schema()}}
            }
        assert isinstance(client.chat.completions.create(**asked, response_model=Order), Order)


@pytest.mark.parametrize("uses_responses", [False, True])
def test_openai_agents(served: Running, uses_responses: bool) -> None:
    agents = pytest.importorskip("agents")
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
        async with served.async_client() as client:
            made = agents.OpenAIResponsesModel if uses_responses else agents.OpenAIChatCompletionsModel
            settings = agents.ModelSettings(temperature=1.0, max_tokens=300, parallel_tool_calls=False, store=True)
            agent = agents.Agent(
                "a", instructions="Be kind.", model=made("tiny", client), output_type=Order, tools=[weather, now], model_settings=settings
            )
            forced = agent.clone(model_settings=replace(settings, tool_choice="weather"))
            try:
                first = await agents.Runner.run(forced, ASKED[0]["content"], max_turns=4)
            except agents.MaxTurnsExceeded:  # a random model may call for ever
                return
            assert isinstance(first.final_output, Order)
            last = await agents.Runner.run(agent.clone(tools=[]), [*first.to_input_list(), {"role": "user", "content": "Again."}])
            assert isinstance(last.final_output, Order)

    asyncio.run(run())
    assert asked[0] in ("Paris", "Oslo")


def test_langchain(served: Running) -> None:
    made = pytest.importorskip("langchain_openai").ChatOpenAI
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


def test_litellm(served: Running) -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
    litellm = pytest.importorskip("litellm")
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
