"""Two replicas on Ray Serve: replies, streams, prefixes that stay at their replica, errors, clients that go away.

pip install -c constraints.txt '.[test,ray-serve]' && pytest -m slow tests/serve/test_ray.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from starlette.requests import Request

from outlines_cont import Chat, generate, models
from outlines_cont.batches.batch_run import BatchRun
from outlines_cont.batches.doors import server_door
from tests.serve.running import wait_until
from tests.serve.test_server import ASKED, Order

ray = pytest.importorskip("ray", reason="needs Ray: pip install -c constraints.txt '.[ray-serve]'")
pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install -c constraints.txt '.[ray-serve]'")
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(580)]

PORT = 18_713
URL = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of an application of two replicas."""
    from outlines_cont.serve.ray import Arguments, app

    environment = pytest.MonkeyPatch()
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("OMP_NUM_THREADS", "1"), ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "120")):
        environment.setenv(name, value)
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        ray.serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        ray.serve.run(
            app(Arguments(replicas=2, patience=60, kv_budget_bytes=1 << 30, cors_origin="https://app.example")), name="outlines-cont"
        )
        yield URL
    finally:
        ray.serve.shutdown()
        ray.shutdown()
        environment.undo()


def test_a_reply_is_that_of_the_engine_alone(served: str) -> None:
    model = models.tiny()
    client = openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0)
    alone = Chat(model).user(ASKED[0]["content"]).assistant(generate.text(model), max_tokens=40)
    asked: Any = {"model": "tiny", "messages": ASKED, "temperature": 0, "max_tokens": 40}
    assert client.chat.completions.create(**asked).choices[0].message.content == alone.value
    chunks = [*client.chat.completions.create(**asked, stream=True)]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == alone.value
    assert len(chunks) > 5
    parsed = client.chat.completions.parse(model="tiny", messages=ASKED, temperature=0, response_format=Order)
    assert parsed.choices[0].message.parsed == Order(customer="Ana Novak", item="lamps", quantity=3)
    client.close()


def test_equal_prefixes_stay_at_their_replica_and_hit_its_cache(served: str) -> None:
    begins = [f"Shop {number}. " + "We sell lamps, desks and chairs, and ship them in a week. " * 6 for number in range(6)]
    replicas: dict[int, set[str]] = {}

    def ask(number: int, turn: int) -> int:
        body = {"model": "tiny", "prompt": f"{begins[number]}Order {turn}: ", "max_tokens": 6, "temperature": 0}
        reply = httpx.post(f"{served}/v1/completions", json=body, timeout=60)
        assert reply.status_code == 200, reply.text
        replicas.setdefault(number, set()).add(reply.headers["x-replica"])
        usage = reply.json()["usage"]
        return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

    for turn in range(3):
        with ThreadPoolExecutor(6) as pool:  # all groups at once, so that Ray has two queues to balance
            fed = [*pool.map(ask, range(6), [turn] * 6)]
        assert turn == 0 or max(fed) < 20, (fed, replicas)  # the prompts have more than a hundred tokens
    assert [len(found) for found in replicas.values()] == [1] * 6
    assert len(set.union(*replicas.values())) == 2


def test_errors_pages_and_metrics_are_those_of_the_server(served: str) -> None:
    refused = httpx.post(f"{served}/v1/completions", json={"model": "other", "prompt": "x"}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert httpx.post(f"{served}/v1/completions", content=b"{", timeout=60).status_code == 400
    page = httpx.get(f"{served}/", timeout=60)
    assert page.headers["content-type"].startswith("text/html")
    assert 'id="tree"' in page.text
    assert "outlines_cont_requests_total" in httpx.get(f"{served}/metrics", timeout=60).text


def test_a_foreign_host_is_refused_at_the_entrance(served: str) -> None:
    for headers, status in (
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "localhost"}, 200),
        ({"Origin": "https://app.example"}, 200),
    ):
        found = httpx.get(f"{served}/v1/models", headers=headers, timeout=60)
        assert found.status_code == status, found.text
    assert found.headers["access-control-allow-origin"] == "https://app.example"


def test_arguments_are_the_limits_of_a_replica() -> None:
    from outlines_cont.serve.ray import Arguments, HostDoor

    given: Any = {"max_phrases": "3", "cache_bytes": "1000", "prefix_cache_bytes": "0", "max_schema_work": "9", "max_requests": "5"}
    arguments = Arguments(allow_host="a.example, b.example", **given)
    limits = arguments.limits
    assert (limits.max_phrases, limits.cache_bytes, limits.prefix_cache_bytes, limits.schema.max_work) == (3, 1000, 0, 9)
    assert (limits.max_requests, limits.max_tokens) == (10, 4_096)
    hosts = {"a.example": False, "b.example:80": False, "c.example": True, "127.0.0.1": False}
    for names, server, refused in ((arguments, "10.0.0.1", hosts), (Arguments(), "10.0.0.1", dict.fromkeys(hosts, False))):
        for host, is_refused in refused.items():
            scope: Any = {"type": "http", "server": (server, 80), "headers": [(b"host", host.encode())]}
            assert (HostDoor(names).refused(Request(scope)) is not None) == is_refused


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_rows(served: str, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "Due: ", "stream": stream, "max_tokens": 4_000, "structured_outputs": {"regex": "[0-9]{1900}"}}
    metrics: dict[str, str] = {}

    def total(name: str) -> float:
        """The sum of a metric over both replicas."""
        with httpx.Client(timeout=60) as client:
            for _ in range(60):  # each goes to one of both at random
                reply = client.get(f"{served}/metrics")
                metrics[reply.headers["x-replica"]] = reply.text
                if len(metrics) == 2:
                    break
        found = [float(text.partition(f'\noutlines_cont_{name}{{model="tiny"}} ')[2].partition("\n")[0]) for text in metrics.values()]
        metrics.clear()
        return sum(found)

    before = total("cancelled_requests_total")
    with httpx.Client(timeout=httpx.Timeout(60, read=60 if stream else 0.5)) as client:
        if stream:
            with client.stream("POST", f"{served}/v1/completions", json=body) as reply:
                next(reply.iter_bytes())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{served}/v1/completions", json=body)
    wait_until(lambda: total("cancelled_requests_total") == before + 1, 60)
    wait_until(lambda: total("running_rows") == 0)


def test_a_batch_file_is_answered_by_the_replicas(served: str, tmp_path: Path) -> None:
    body = {"temperature": 0, "max_tokens": 20, "messages": ASKED}
    urls = ["/v1/chat/completions", "/v1/messages"] * 6
    lines = [{"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, url in enumerate(urls)]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    batch = BatchRun(tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "errors.jsonl", model="tiny")
    batch.run(server_door(served, None), lambda tally: None)
    assert (batch.tally.rows, batch.tally.failed) == (12, 0)
    replies = [json.loads(text)["response"]["body"] for text in (tmp_path / "out.jsonl").read_text().splitlines()]
    texts = {reply["content"][0]["text"] if "content" in reply else reply["choices"][0]["message"]["content"] for reply in replies}
    assert len(texts) == 1
