"""Clients of others, one scenario each. Those that are not installed are skipped; all of them:

pip install -c constraints.txt '.[test,clients]' && npm install --prefix /tmp/js openai@6.49.0 zod@4.6.7
NODE_PATH=/tmp/js/node_modules pytest -m clients -W default tests/serve
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
