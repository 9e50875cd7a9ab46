"""How long a heavy request makes another one wait: the longest gap between two pieces of a stream beside each of a dozen requests.

    python -m benchmarks.waits
    python -m benchmarks.waits --rounds 1 --only lookaheads,messages --output ''

`outlines-cont serve` with the bundled model is a process of its own with its defaults. A victim streams digits, one token a step; in the
middle of it the heavy request is sent by another process, and the victim reads on until that request is answered, or for some seconds
after. Each figure is the longest gap of the victim, least of the rounds (others may use the machine); the aim is 250 ms.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Any

import httpx

from benchmarks import machine, table

_TEXT, _CHAT = "/v1/completions", "/v1/chat/completions"
_SECONDS = 12.0  # the longest time for which a victim reads beside a request
_BEFORE = 40  # pieces before the heavy request is sent
_PACKAGES = ("outlines-cont", "torch", "transformers")


def _doubling(depth: int) -> Any:
    defs: dict[str, Any] = {
        f"d{i}": {"type": "array", "items": [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "minItems": 2, "maxItems": 2}
        for i in range(depth)
    }
    defs[f"d{depth}"] = {"type": "boolean"}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def _objects(depth: int) -> Any:
    defs: dict[str, Any] = {
        f"d{i}": {
            "type": "object",
            "properties": {name: {"$ref": f"#/$defs/d{i + 1}"} for name in "ab"},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
        for i in range(depth)
    }
    defs[f"d{depth}"] = {"type": "boolean"}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def _text(**fields: Any) -> tuple[str, dict[str, Any]]:
    return _TEXT, {"prompt": "a", "max_tokens": 16, "seed": 1} | fields


def _regex(pattern: str) -> tuple[str, dict[str, Any]]:
    return _text(structured_outputs={"regex": pattern})


def _grammar(text: str) -> tuple[str, dict[str, Any]]:
    return _text(structured_outputs={"grammar": text})


def _chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return _CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 16, "seed": 1} | fields


def _terminals(depth: int) -> str:
    rules = [f"T{i}: T{i + 1} T{i + 1}" for i in range(depth)]
    return "\n".join(["start: T0", *rules, f'T{depth}: "a"'])


def heavy() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the requests by name, each with its path."""
    forms = [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(3_000)]
    tools = [{"type": "function", "function": {"name": f"t{i}", "parameters": form}} for i, form in enumerate(forms)]
    return {
        "nothing else": _text(max_tokens=1),
        "lookaheads": _regex(r"(?=.*a.{12})(?=.*b.{13})(?=.*c.{14})(?=.*d.{11})(?=.*e.{10}).*"),
        "nested repeats": _regex("(a{1000}){1000}"),
        "doubling arrays, 40 deep": _text(structured_outputs={"json": _doubling(40)}),
        "doubling objects, 40 deep": _text(structured_outputs={"json": _objects(40)}),
        "doubling terminals, 40 deep": _grammar(_terminals(40)),
        "25 optional texts": _grammar("start: " + " ".join(f'["a{i}"]' for i in range(25))),
        "optional doubling, 64 deep": _grammar(
            "\n".join(["start: r0", *(f"r{i}: r{i + 1}? r{i + 1}?" for i in range(64)), 'r64: "a"'])
        ),
        "enum of 90,000 values": _text(structured_outputs={"json": {"enum": [f"value {i}" for i in range(90_000)]}}),
        "ban of 300,000 phrases": _text(ban=[f"p{i}" for i in range(300_000)]),
        "ban of a phrase of 3.8 MB": _text(ban=["ab" * 1_900_000]),
        "prompt of 3.9 MB": _text(prompt="ab " * 1_300_000),
        "3,000 tools": _chat(tools=tools),
        "40,000 messages": _chat(messages=[{"role": "user", "content": "a"}] * 40_000),
        "2,000 messages": _chat(
            messages=[{"role": ("user", "assistant")[i % 2], "content": "a"} for i in range(1_999)]
        ),
        "250 tools": _chat(tools=tools[:250]),
        "16 texts of a long prompt": _text(prompt="some words " * 160, n=16),
    }


def _ask(url: str, path: str, body: bytes, begin: Any, answer: Any) -> None:
    """Send a request when it is told to, and put its status and seconds."""
    answer.put(None)
    begin.wait()
    start = perf_counter()
    try:
        reply = httpx.post(url + path, content=body, headers={"Content-Type": "application/json"}, timeout=_SECONDS)
        answer.put((reply.status_code, perf_counter() - start))
    except httpx.HTTPError:
        answer.put((0, perf_counter() - start))


@contextmanager
def _server() -> Iterator[str]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "outlines_cont", "serve", "--port", str(port)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/health", timeout=1).status_code == 200:
                    break
            except httpx.HTTPError:
                sleep(0.1)
        yield url
    finally:
        running.terminate()
        running.wait()


def gap(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the longest gap of a victim beside a request, in seconds, and how that request ended."""
    answer, begin = _PROCESSES.Queue(), _PROCESSES.Event()
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    sent = json.dumps({"model": model} | body).encode()
    asking = _PROCESSES.Process(target=_ask, args=(url, path, sent, begin, answer))
    asking.start()
    answer.get()  # it is ready: to start a process would make the victim's reader wait
    done: list[tuple[int, float]] = []
    victim = {
        "model": model,
        "prompt": "1",
        "max_tokens": 400,
        "stream": True,
        "structured_outputs": {"regex": "[0-9]{4000}"},
    }
    longest, count, last, begun = 0.0, 0, None, None
    reader = threading.Thread(target=lambda: done.append(answer.get()), daemon=True)
    while not done and (begun is None or perf_counter() - begun < _SECONDS):
        with httpx.stream("POST", url + _TEXT, json=victim, timeout=60) as stream:
            for line in stream.iter_lines():
                if not line.startswith("data: {"):
                    continue
                now = perf_counter()
                if last is not None and begun is not None:
                    longest = max(longest, now - last)
                last, count = now, count + 1
                if count == _BEFORE:
                    reader.start()
                    begin.set()
                    begun = perf_counter()
                if done:
                    break
        last = None  # what lies between two streams is not a gap
    asking.join()
    reader.join()
    return {"gap": longest, "status": done[0][0], "seconds": done[0][1]}


_PROCESSES = multiprocessing.get_context("spawn")


def page(report: dict[str, Any]) -> str:
    """Return the table of a report, for people."""
    rows = [
        (name, min(one["gap"] for one in rounds) * 1e3, max(one["gap"] for one in rounds) * 1e3, rounds[0]["status"] or "-",
         min(one["seconds"] for one in rounds) * 1e3)
        for name, rounds in report["requests"].items()
    ]  # fmt: skip
    head = ("request", "longest gap, ms", "of the worst round", "status", "answered after, ms")
    about = (
        "# How long a heavy request makes another one wait\n\n"
        f"{machine.sentence(report['machine'])}\n\n"
        "The longest time between two pieces of a stream of the bundled model beside each request, least of "
        f"{report['rounds']} rounds. Without a status the client gave up after {_SECONDS:.0f} s. `python -m benchmarks.waits`\n\n"
    )
    return about + table.markdown(head, rows)


def main() -> None:
    parser = table.parser(__doc__, "waits", rounds=3)
    parser.add_argument("--only", default="", help="requests whose name contains one of these words, by commas")
    chosen = parser.parse_args()
    words = [word for word in chosen.only.split(",") if word]
    requests = {name: one for name, one in heavy().items() if not words or any(word in name for word in words)}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in requests}
    about = machine.describe(_PACKAGES)
    for number in range(chosen.rounds):
        with _server() as url:
            gap(url, *_text(max_tokens=1))  # the first request of a process finds all code cold
            for name, (path, body) in requests.items():
                found[name].append(gap(url, path, body))
                print(f"round {number + 1}: {name}: {found[name][-1]['gap'] * 1e3:.0f} ms", file=sys.stderr, flush=True)
    report = {"machine": about, "rounds": chosen.rounds, "requests": found}
    table.show(chosen.output, report, page(report))


if __name__ == "__main__":
    main()
