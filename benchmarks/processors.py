"""What a logits processor adds to a step of `model.generate` of transformers: ours, that of outlines and that of xgrammar.

    python -m benchmarks.processors

131,072 tokens (Mistral's tekken) and the extraction schemas of the mask benchmark, each with its text. A Llama of one layer with
random weights runs in `generate`; behind the processor that is timed another one chooses the next token of the text, so that all
sides see the same rows. One process, one thread; sides take turns, round after round. Compiling is not timed, and the first step of
a call is left out, in which the others make what a call needs. *First*: the first call with a constraint, of one row; *again*: later calls.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from rich.console import Console

from benchmarks import machine, table
from benchmarks.case import Case, cases, warm_up
from benchmarks.tekken import Tokenizer, tekken

_PACKAGES = ("outlines-cont", "transformers", "outlines", "outlines-core", "xgrammar", "torch")
_BATCHES = (1, 8)
_PROMPT = 32


@dataclass
class Steps:
    """Microseconds of the steps of one case and side, the first of each call left out."""

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)


class _Tokens:
    """The tokenizer as `adapters.logits_processor` takes it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.token_bytes = tuple(tokenizer.tokens)
        self.eos_token_id = tokenizer.eos_token_id


def _makers(tokenizer: Tokenizer) -> dict[str, Callable[[Case], Callable[[Any], Any]]]:
    """For each side: from a case to what makes its processor for one call, given the inputs."""
    import xgrammar.contrib.hf
    from outlines.backends.outlines_core import OutlinesCoreLogitsProcessor  # type: ignore[import-not-found,unused-ignore]

    import fsm
    from benchmarks.engines import engine
    from outlines_cont import adapters

    tokens = _Tokens(tokenizer)
    core, grammars = engine("outlines-core"), engine("xgrammar")
    for other in (core, grammars):
        other.prepare(tokenizer)

    def ours(case: Case) -> Callable[[Any], Any]:
        processor = adapters.logits_processor(fsm.json_schema(case.source), tokens)
        return lambda inputs: processor.of(inputs)

    def outlines(case: Case) -> Callable[[Any], Any]:
        index = core.compile(case)
        return lambda inputs: OutlinesCoreLogitsProcessor(index, "torch")

    def xgrammars(case: Case) -> Callable[[Any], Any]:
        grammar = grammars.compile(case)
        return lambda inputs: xgrammar.contrib.hf.LogitsProcessor(grammar)

    return {"ours": ours, "outlines": outlines, "xgrammar": xgrammars}


def _network(vocab_size: int) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _call(network: Any, processor: Any, token_ids: list[int], eos: int, num_rows: int) -> list[float]:
    """Run one call of `generate` that writes the text in every row; return the microseconds of the processor, step by step."""
    import torch
    from transformers import LogitsProcessor

    took: list[float] = []
    wanted = [*token_ids, eos]

    class Timed(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            start = perf_counter_ns()
            masked = processor(input_ids, scores)
            took.append((perf_counter_ns() - start) / 1e3)
            token_id = wanted[input_ids.shape[1] - _PROMPT]
            assert bool(masked[:, token_id].isfinite().all()), token_id
            chosen = torch.full_like(masked, -torch.inf)
            chosen[:, token_id] = 0.0
            return chosen

    ids = torch.full((num_rows, _PROMPT), 300)
    network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        logits_processor=[Timed()],
        max_new_tokens=len(wanted),
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=eos,
    )
    return took[1:]


def _measure(
    case: Case, token_ids: list[int], network: Any, makers: Any, eos: int, rounds: int
) -> dict[str, dict[int, Steps]]:
    import torch

    found: dict[str, dict[int, Steps]] = {side: {size: Steps() for size in _BATCHES} for side in makers}
    sides = {side: make(case) for side, make in makers.items()}
    for size in _BATCHES:
        for number in range(rounds + 1):
            for side, make in sides.items():
                inputs = torch.full((size, _PROMPT), 300)
                steps = _call(network, make(inputs), token_ids, eos, size)
                where = found[side][size]
                (where.again if number else where.first).extend(steps)
    return found


def main() -> None:
    """Measure, print the table and write it below `benchmarks/results`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.processors", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="later calls of every side and case (default: 5)")
    parser.add_argument("--cases", type=int, default=None, help="so many schemas only")
    options = parser.parse_args()
    machine.use_one_thread()
    described = machine.describe(_PACKAGES)
    machine.pin()
    tokenizer = tekken()
    schemas = [case for case in cases() if case.kind == "schema"][: options.cases]
    texts = tokenizer.encode([case.text for case in schemas])
    makers, network = _makers(tokenizer), _network(len(tokenizer.tokens))
    warm = next(case for case in warm_up() if case.kind == "schema")
    _measure(warm, tokenizer.encode([warm.text])[0], network, makers, tokenizer.eos_token_id, 1)
    found: dict[str, dict[str, dict[int, Steps]]] = {}
    for case, token_ids in zip(schemas, texts, strict=True):
        try:
            found[case.name] = _measure(case, token_ids, network, makers, tokenizer.eos_token_id, options.rounds)
        except Exception as error:  # a schema that a side does not read is left out for all
            print(f"{case.name}: left out, {type(error).__name__}: {str(error)[:200]}")
    report = {side: _figures(side, found) for side in makers}
    head = ["side", "first", "first, p99", *(f"again, {num} row{'s' * (num > 1)}" for num in _BATCHES)]
    text = (
        f"# Logits processors in `generate`\n\n{machine.sentence(described)} {len(found)} schemas; microseconds a step. "
        f"First: mean and 99th percentile over the steps of the first call, of one row; again: median over those of {options.rounds} later "
        "calls.\n\n"
    )
    text += table.markdown(head, ([side, *figures] for side, figures in report.items()))
    table.write("processors", {"machine": described, "schemas": [*found], "microseconds": report}, text)
    Console(width=160, highlight=False).print(text, markup=False)


def _figures(side: str, found: dict[str, dict[str, dict[int, Steps]]]) -> list[float]:
    first = sorted(us for of_case in found.values() for us in of_case[side][_BATCHES[0]].first)
    again = [
        statistics.median([us for of_case in found.values() for us in of_case[side][size].again]) for size in _BATCHES
    ]
    return [round(figure, 1) for figure in (statistics.mean(first), first[int(0.99 * len(first))], *again)]


if __name__ == "__main__":
    main()
