"""Requests of different lengths that arrive at random, and the ways to serve them: our engine, and what transformers offers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from benchmarks.rig import Rig

_END = 0
"""The id of `</s>` in the tokenizer of the rig."""


@dataclass(frozen=True)
class Request:
    """One request.

    Attributes:
        arrival: seconds from the start.
        prompt: its text, one token per character.
        max_tokens: the most tokens of an answer without a schema.
        schema: what an answer must be, where it is constrained.
    """

    arrival: float
    prompt: str
    max_tokens: int
    schema: dict[str, Any]


@dataclass(frozen=True)
class Served:
    """How a load was served: seconds from the start to the last answer, and all tokens of all answers."""

    seconds: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def load(rig: Rig, count: int, seconds: float) -> list[Request]:
    """Return `count` requests that arrive within `seconds`, the same ones each time."""
    draw = random.Random(7)
    arrivals = sorted(draw.uniform(0, seconds) for _ in range(count))
    return [
        Request(at, rig.text(draw.randint(16, 128), seed), draw.randint(8, 96), _schema(draw.randint(2, 48)))
        for seed, at in enumerate(arrivals)
    ]


def _schema(size: int) -> dict[str, Any]:
    properties = {
        "name": {"type": "string", "maxLength": size},
        "kind": {"enum": ["order", "complaint", "question"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    }
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def serve_ours(rig: Rig, requests: Sequence[Request], *, constrained: bool) -> Served:
    """Every request is a task of its own; all share the engine. With `constrained`, the answer is JSON for the schema."""
    from outlines_cont import continuous, generate

    text = continuous(generate.text(rig.model))

    async def answer(request: Request) -> int:
        await asyncio.sleep(request.arrival)
        if not constrained:
            state = await text.acall(request.prompt, max_tokens=request.max_tokens)
        else:
            state = await continuous(generate.json(rig.ending_model, request.schema)).acall(request.prompt)
        assert state.errors == [[None]], state.errors
        return int(state.attention_mask.sum()) - len(request.prompt)

    async def everyone() -> list[int]:
        return await asyncio.gather(*map(answer, requests))

    start = perf_counter()
    counts = asyncio.run(everyone())
    return Served(perf_counter() - start, sum(counts))


def serve_in_batches(rig: Rig, requests: Sequence[Request], size: int = 16) -> Served:
    """`generate` on every `size` requests, when the last of them is there, with the logits processor of xgrammar."""
    import torch
    import xgrammar
    from xgrammar.contrib.hf import LogitsProcessor

    tokens = [data or b"" for data in rig.model.tokenizer.token_bytes]
    info = xgrammar.TokenizerInfo(tokens, vocab_size=rig.model.vocab_size, stop_token_ids=[_END])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    start, written = perf_counter(), 0
    for first in range(0, len(requests), size):
        batch = requests[first : first + size]
        sleep(max(batch[-1].arrival - (perf_counter() - start), 0))
        grammars = [compiler.compile_json_schema(json.dumps(request.schema), any_whitespace=False) for request in batch]
        rows = [rig.model.tokenizer.encode(request.prompt) for request in batch]
        width = max(map(len, rows))
        ids = torch.tensor([[_END] * (width - len(row)) + row for row in rows], device=rig.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=rig.device)
        with torch.inference_mode():
            out = rig.network.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=512,
                eos_token_id=_END,
                logits_processor=[LogitsProcessor(grammars)],
            )
        written += int((out[:, width:] != _END).sum())
    return Served(perf_counter() - start, written)


def serve_continuously(rig: Rig, requests: Sequence[Request]) -> Served:
    """The continuous batching of transformers, warmed up before the clock starts."""
    import transformers

    settings = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=_END, max_new_tokens=8)
    manager = rig.network.init_continuous_batching(generation_config=settings)
    manager.start()
    try:
        manager.add_request([7] * 16, request_id="first", max_new_tokens=4)
        _answers(manager, 1)
        start = perf_counter()
        for number, request in enumerate(requests):
            sleep(max(request.arrival - (perf_counter() - start), 0))
            ids = rig.model.tokenizer.encode(request.prompt)
            manager.add_request(ids, request_id=str(number), max_new_tokens=request.max_tokens)
        written = _answers(manager, len(requests))
        return Served(perf_counter() - start, written)
    finally:
        manager.stop(block=True)


def _answers(manager: Any, count: int) -> int:
    """Wait for `count` answers; return how many tokens they have."""
    tokens, found = 0, 0
    while found < count:
        output = manager.get_result(timeout=1)
        if output is not None and output.is_finished():
            tokens, found = tokens + len(output.generated_tokens), found + 1
    return tokens
