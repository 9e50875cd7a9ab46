"""A server of several models: one that is there, others that are opened when a request first names them; by the real client of OpenAI."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from outlines_cont import Chat, continuous, generate, models, samplers
from outlines_cont.policies.constraint import KeptConstraints
from outlines_cont.serve import model_list
from outlines_cont.serve.app import make_app
from outlines_cont.serve.limits import ServerLimits
from tests.chat_models import chat_model
from tests.saved_model import save_model
from tests.serve.running import Running

PROMPT = "Message: Send 2 lamps.\nRecord: "
PATTERN = "[a-z]{1,12}, [0-9]{2}"


class Openings:
    """Functions that open models, and how many times each was called."""

    def __init__(self, folder: Path) -> None:
        self.counts: dict[str, int] = {}
        self.may_open = threading.Event()
        self.may_open.set()
        self.all: dict[str, Callable[[], Any]] = {
            "random": self._noted("random", lambda: models.transformers(save_model(folder / "random"))),
            "chat/qwen": self._noted("chat/qwen", lambda: chat_model.__wrapped__("Qwen3")),
            "broken": self._noted("broken", lambda: models.transformers(folder / "no such folder")),
        }

    def _noted(self, name: str, opened: Callable[[], Any]) -> Callable[[], Any]:
        def call() -> Any:
            self.may_open.wait()
            self.counts[name] = self.counts.get(name, 0) + 1
            return opened()

        return call


@pytest.fixture(scope="module")
def openings(tmp_path_factory: pytest.TempPathFactory) -> Openings:
    return Openings(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def several(openings: Openings) -> Iterator[Running]:
    with Running(models.tiny(), others=openings.all, cache_bytes=48 << 20) as running:
        yield running


def statuses(running: Running) -> dict[str, str]:
    return {card.id: card.status for card in running.client.models.list().data}  # type: ignore[attr-defined]


def completion(running: Running, name: str, seed: int = 1) -> str:
    asked: Any = {"structured_outputs": {"regex": PATTERN}, "top_p": 0.9}
    reply = running.client.completions.create(model=name, prompt=PROMPT, seed=seed, max_tokens=40, extra_body=asked)
    assert reply.model == name
    return reply.choices[0].text


def alone(model: Any, seed: int = 1) -> str:
    """The text of the engine alone."""
    generator = generate.regex(model, PATTERN, sampler=samplers.multinomial(top_p=0.9))
    return str(continuous(generator)(PROMPT, rng=seed, max_tokens=40))[len(PROMPT) :]


def test_each_is_opened_once_when_it_is_first_asked(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    with Running(models.tiny(), others=openings.all) as served:
        assert statuses(served) == {"tiny": "loaded", "random": "unloaded", "chat/qwen": "unloaded", "broken": "unloaded"}
        assert completion(served, "tiny") == alone(served.model)
        assert openings.counts == {}
        openings.may_open.clear()
        with ThreadPoolExecutor(4) as threads:
            found = [threads.submit(completion, served, "random") for _ in range(4)]
            served.wait_until(lambda: statuses(served)["random"] == "loading")
            assert completion(served, "tiny", 2) == alone(served.model, 2)  # others go on
            openings.may_open.set()
            texts = {one.result() for one in found}
        assert texts == {alone(models.transformers(tmp_path / "random"))}
        assert openings.counts == {"random": 1}
        assert statuses(served)["random"] == served.client.models.retrieve("random").status == "loaded"  # type: ignore[attr-defined]


def test_all_protocols_reach_a_model_by_its_name(several: Running) -> None:
    messages: Any = [{"role": "user", "content": "Hello."}]
    text = Chat(chat_model("Qwen3")).user("Hello.").assistant(max_tokens=8).messages[-1]["content"]
    asked: Any = {"model": "chat/qwen", "max_tokens": 8, "temperature": 0}
    chat = several.client.chat.completions.create(messages=messages, **asked)
    assert (chat.model, chat.choices[0].message.content) == ("chat/qwen", text)
    response = several.client.responses.create(model="chat/qwen", input="Hello.", max_output_tokens=8, temperature=0)
    assert (response.model, response.output_text) == ("chat/qwen", text)
    chunks = [*several.client.chat.completions.create(messages=messages, stream=True, **asked)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    message = several.post("/v1/messages", asked | {"messages": messages}).json()
    assert (message["model"], message["content"][0]["text"]) == ("chat/qwen", text)
    counted = several.post("/v1/messages/count_tokens", {"model": "chat/qwen", "messages": messages}).json()
    assert counted == {"input_tokens": message["usage"]["input_tokens"] + message["usage"]["cache_read_input_tokens"]}


def test_a_mix_of_requests_gets_the_texts_of_each_model(several: Running, openings: Openings, tmp_path: Path) -> None:
    wanted = {("tiny", seed): alone(several.model, seed) for seed in range(6)}
    random = models.transformers(save_model(tmp_path))
    wanted |= {("random", seed): alone(random, seed) for seed in range(6)}
    with ThreadPoolExecutor(8) as threads:
        found = dict(zip(wanted, threads.map(lambda key: completion(several, *key), wanted), strict=True))
    assert found == wanted


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"])
def test_an_unknown_model_is_an_error_with_the_names(several: Running, path: str) -> None:
    told: dict[str, Any] = {"/v1/completions": {"prompt": "a"}, "/v1/responses": {"input": "a"}}
    body = told.get(path, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1})
    reply = several.post(path, {"model": "gpt-5", **body})
    assert reply.status_code == 404
    error = reply.json()["error"]
    assert error["message"].endswith("expected one of the models 'tiny', 'random', 'chat/qwen', 'broken', got 'gpt-5'")
    if "messages" not in path:
        assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_one_model_alone_is_listed_as_ever(served: Running) -> None:
    (card,) = httpx.get(f"{served.url}/v1/models").json()["data"]
    assert {*card} == {"id", "object", "created", "owned_by", "type", "display_name", "created_at"}
    with pytest.raises(openai.NotFoundError, match="expected the model 'tiny', got 'b'"):
        completion(served, "b")


def test_a_model_that_cannot_be_opened_is_an_error_of_its_own(
    several: Running, openings: Openings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="the model 'broken' could not be opened") as found:
            completion(several, "broken")
        assert (found.value.status_code, found.value.code, found.value.param) == (500, "model_not_loaded", "model")
        assert "no such folder" not in str(found.value)
    assert openings.counts["broken"] == 1
    assert "no such folder" in caplog.text
    assert statuses(several)["broken"] == "failed"
    assert completion(several, "tiny") == alone(several.model)
    monkeypatch.setattr(model_list, "_RETRY_SECONDS", 0.0)
    with pytest.raises(openai.InternalServerError):
        completion(several, "broken")
    assert openings.counts["broken"] == 2


def test_a_client_that_goes_away_does_not_end_an_opening(tmp_path: Path) -> None:
    openings = Openings(tmp_path)
    openings.may_open.clear()
    with Running(models.tiny(), others=openings.all) as served:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.url}/v1/completions", json={"model": "random", "prompt": "a"}, timeout=0.3)
        served.wait_until(lambda: 'cancelled_requests_total{model="random"} 1.0' in httpx.get(f"{served.url}/metrics").text)
        openings.may_open.set()
        served.wait_until(lambda: statuses(served)["random"] == "loaded")
        assert completion(served, "random")


def test_what_is_kept_shares_one_budget(openings: Openings) -> None:
    total = 16 << 20
    app = make_app(models.tiny(), "tiny", others=openings.all, limits=ServerLimits(cache_bytes=total))
    kept: Any = app.state.server.models

    async def open_all() -> list[Any]:
        return [kept.first, await kept.get("random"), await kept.get("chat/qwen")]

    assert kept.first.model.prefix_cache.max_bytes == total // 2
    found = asyncio.run(open_all())
    assert [one.model.prefix_cache.max_bytes for one in found] == [total // 2 // 3] * 3
    assert [KeptConstraints.of(one.model).max_bytes for one in found] == [total // 8 // 3 // 2] * 3
    assert [one.constraints.max_bytes for one in found] == [total // 8 // 3 // 2] * 3
    assert [one.state_bytes for one in found] == [total // 8 // 3] * 3


def test_metrics_are_those_of_each_model(several: Running) -> None:
    def written(name: str) -> float:
        text = httpx.get(f"{several.url}/metrics").text
        (found,) = re.findall(rf'^outlines_cont_tokens_total{{kind="written",model="{name}"}} (\S+)', text, re.M) or ["0"]
        return float(found)

    before = {name: written(name) for name in ("tiny", "random")}
    reply = several.client.completions.create(model="random", prompt="a", max_tokens=3)
    assert reply.usage is not None
    assert written("random") - before["random"] == reply.usage.completion_tokens
    assert written("tiny") == before["tiny"]
    text = httpx.get(f"{several.url}/metrics").text
    assert 'outlines_cont_requests_total{model="random",path="/v1/completions",status="200"}' in text
    assert 'outlines_cont_running_rows{model="random"} 0.0' in text


def test_each_model_has_a_page(several: Running) -> None:
    for path, name in (("/", "tiny"), ("/models/tiny/", "tiny"), ("/models/chat/qwen/", "chat/qwen")):
        page = httpx.get(f"{several.url}{path}")
        assert f'"live":{{"model":"{name}"' in page.text
        run = {"prompt": "Hello.", "steps": [{"kind": "regex", "source": "[0-9]{3}"}]}
        with httpx.stream("POST", f"{several.url}{path}inspect/run", json=run, timeout=60) as stream:
            told = [line for line in stream.iter_lines() if line]
        assert '"state":' in told[-1]
    assert httpx.get(f"{several.url}/models/b/").status_code == 404
    assert httpx.post(f"{several.url}/models/b/inspect/run", json={"prompt": "a", "steps": []}).status_code == 404


def test_pages_need_no_key_and_open_no_model(openings: Openings) -> None:
    with Running(models.tiny(), others={"random": openings.all["broken"]}, key="secret") as served:
        assert httpx.get(f"{served.url}/models/random/").status_code == 200
        assert httpx.post(f"{served.url}/models/random/inspect/run", json={"prompt": "a", "steps": []}).status_code == 401
        assert statuses(served) == {"tiny": "loaded", "random": "unloaded"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("kind", ["tiny", "Qwen3"])
def test_texts_do_not_depend_on_the_default_float_type(dtype: torch.dtype, kind: str) -> None:
    """transformers sets it for the whole process while it makes a network, as that of another model."""
    model = models.tiny() if kind == "tiny" else chat_model(kind)
    made = [
        samplers.multinomial(temperature=0.9, top_p=0.9, repetition_penalty=1.2, logit_bias={5: 1.5}),
        samplers.multinomial(min_p=0.05, frequency_penalty=0.3, presence_penalty=0.3, top_k=40),
        samplers.beam_search(2),
        samplers.greedy(),
    ]

    def texts() -> list[Any]:
        model.prefix_cache.clear()
        found = []
        for sampler in made:
            state = continuous(generate.regex(model, "[a-z ]{10,20}[0-9]", sampler=sampler))(PROMPT, rng=3, max_tokens=24)
            found.append((str(state), state.logprobs.tolist() if hasattr(state.logprobs, "tolist") else repr(state.logprobs)))
        return found

    expected = texts()
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert repr(texts()) == repr(expected)
    finally:
        torch.set_default_dtype(before)
