"""Costs of real schemas: time to the first mask, the longest mask along a text, memory.

    python -m benchmarks.schema_costs FOLDER                 # a folder that `benchmarks.real_schemas collect` has filled
    python -m benchmarks.schema_costs FOLDER --name vega     # only these; nothing is written

The vocabulary is Mistral's tekken (131,072 tokens), ready before each schema, and so is what strings of JSON need. Each schema
has a process of its own. Its texts (the shortest one, and random walks of its automaton) are made in another one, so that what
they need of the schema is not built yet when the clock runs. Every mask of every text is timed by itself; the first walk of a
text pays for all that it is the first to meet. Times are of the processor; the collector of cycles leaves alone what was there
before the schema. *Work* is what `TokenFSM.max_mask_work` bounds.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections.abc import Iterator
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

import fsm
from benchmarks import machine, table
from benchmarks.real_schemas import cases, reached, registry_of
from benchmarks.rounds import Message, Send, in_process
from benchmarks.tekken import tekken
from fsm.automaton.lazy_dfa import shortest_text
from fsm.terms import work
from tests.walks import random_text

STEPS = (20, 60, 150, 300)
"""Random moves of each text; after them the shortest end is looked for."""
MAX_TOKENS = 600
"""So many masks of one text are made."""
SLOW_MS, SLOW_MASK_MS, LARGE_MB = 1_000, 20, 20
LIMIT_S = 30.0


def main() -> None:
    """Measure every schema, print those that cost much, and write the page of results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schema_costs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", help="only cases whose name holds this; nothing is written")
    parser.add_argument("--out", default="schema_costs", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    described = machine.describe(["numpy", "tiktoken"])
    found = []
    for message in measured(options.folder, options.name):
        found.append(message)
        if options.name or is_costly(message):
            print(_line(message), flush=True)
    text = page(found, machine.sentence(described))
    print(text)
    if options.out and options.name is None:
        table.write(options.out, {"machine": described, "cases": found}, text)


def measured(folder: Path, name: str | None) -> Iterator[Message]:
    """What each schema of the folder costs, or why that is not known."""
    tokenizer, registry = tekken(), registry_of(folder)
    vocabulary = fsm.Vocabulary(tokenizer.tokens, [tokenizer.eos_token_id])
    fsm.TokenFSM(fsm.json_schema({"properties": {"a": {"type": ["string", "number"]}}}), vocabulary).bitmask(1)
    for case, schema in cases(folder):
        if name is not None and name not in case:
            continue
        known = reached(schema, registry)
        written = _last(in_process(_write, case, schema, known, method="fork", limit=LIMIT_S))
        token_ids = tokenizer.encode(written.get("texts", []))
        costs = _last(in_process(_measure, schema, known, vocabulary, token_ids, method="fork", limit=LIMIT_S))
        yield {"case": case, **costs}


def _last(messages: Iterator[Message]) -> Message:
    """The last message of a process: what it found, or why there is none."""
    return list(messages)[-1]


def _write(send: Send, case: str, schema: Any, registry: dict[str, Any]) -> None:
    expression, random, texts = fsm.json_schema(schema, formats="annotate", registry=registry), Random(case), []
    shortest = shortest_text(expression.node, max_states=5_000)
    texts += [] if shortest is None else [shortest.decode()]
    send({"texts": texts})
    for steps in STEPS:
        texts.append(random_text(expression.node, random, steps).decode())
        send({"texts": texts})


def _measure(
    send: Send, schema: Any, registry: dict[str, Any], vocabulary: fsm.Vocabulary, texts: list[list[int]]
) -> None:
    machine.own_all_pages()
    gc.collect()
    gc.freeze()
    before, start = machine.resident_mb(), process_time()
    token_fsm = fsm.TokenFSM(fsm.json_schema(schema, formats="annotate", registry=registry), vocabulary)
    compile_ms = 1e3 * (process_time() - start)
    token_fsm.bitmask(token_fsm.initial_state)
    first_mask_ms = 1e3 * (process_time() - start)
    masks, steps, works = list[float](), list[float](), list[int]()
    for token_ids in texts:
        state = token_fsm.initial_state
        for token_id in token_ids[:MAX_TOKENS]:
            before_mask, start = work.done(), process_time()
            token_fsm.bitmask(state)
            middle = process_time()
            state = token_fsm.next_state(state, token_id)
            masks.append(1e3 * (middle - start))
            works.append(work.done() - before_mask)
            steps.append(1e3 * (process_time() - middle))
    send(
        {
            "compile_ms": compile_ms, "first_mask_ms": first_mask_ms, "num_masks": len(masks),
            "mean_mask_ms": statistics.mean(masks or [0.0]), "longest_mask_ms": max(masks, default=0.0),
            "longest_step_ms": max(steps, default=0.0), "mask_work": max(works, default=0), "memory_mb": machine.resident_mb() - before,
        }
    )  # fmt: skip


def is_costly(costs: Message) -> bool:
    """True where a target is missed, or the costs are not known for another reason than a refusal."""
    if "failed" in costs:
        return "late" in costs or "Budget" in costs["failed"]
    return bool(
        costs["first_mask_ms"] > SLOW_MS or costs["longest_mask_ms"] > SLOW_MASK_MS or costs["memory_mb"] > LARGE_MB
    )


def _line(costs: Message) -> str:
    if "failed" in costs:
        return f"{costs['case']}: {costs['failed']}"
    return (
        f"{costs['case']}: first mask after {costs['first_mask_ms']:.0f} ms, longest mask {costs['longest_mask_ms']:.1f} ms "
        f"(work {costs['mask_work']:,}), "
        f"longest step {costs['longest_step_ms']:.1f} ms, {costs['memory_mb']:.1f} MB"
    )


def page(found: list[Message], described: str) -> str:
    """The results as text for people."""
    known = [one for one in found if "failed" not in one]
    names = {
        "first_mask_ms": "from the schema to its first mask, ms",
        "longest_mask_ms": "longest mask of its texts, ms",
        "longest_step_ms": "longest step, ms",
        "mask_work": "most work of a mask",
        "memory_mb": "memory, MB",
    }
    rows = [(label, *_spread([one[key] for one in known])) for key, label in names.items()]
    masks = sum(one["num_masks"] for one in known)
    mean = sum(one["mean_mask_ms"] * one["num_masks"] for one in known) / max(masks, 1)
    return "\n".join(
        [
            f"# Costs of real schemas\n\n{described}\n",
            f"{len(known)} schemas of the packages that `real_schemas.py` names; {len(found) - len(known)} others are refused "
            f"or broken. {masks:,} masks, {1e3 * mean:.0f} us in the mean, each on the first walk of its text. "
            "Memory is what the process grew by, masks included (16.4 kB each).\n",
            table.markdown(["", "median", "95 of 100", "99 of 100", "most"], rows),
            f"\nMore than {SLOW_MS} ms, {SLOW_MASK_MS} ms for a mask, or {LARGE_MB} MB:\n",
            *(f"- {_line(one)}" for one in found if is_costly(one)),
            "",
        ]
    )


def _spread(values: list[float]) -> list[float]:
    ordered = sorted(values) or [0.0]
    return [ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.5, 0.95, 0.99, 1)]


if __name__ == "__main__":
    main()
