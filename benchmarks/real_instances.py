"""Real schemas that come with values: which are compiled, and judge every value as it is labelled.

    python -m benchmarks.real_instances FOLDER                   # a minute for 287 schemas
    python -m benchmarks.real_instances FOLDER --name Kubernetes # only these; nothing is written
    python -m benchmarks.real_instances FOLDER --masks           # the longest mask along each valid value, too

Each file of the folder is `{"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}`, as in JSONSchemaBench (Geng et al. 2025,
arXiv:2501.10868). A value is written as `json.dumps(value, ensure_ascii=False)` writes it, with its keys in any order; a schema is

- *right* when it compiles and accepts exactly the values that are labelled valid;
- *refused* when it does not compile, and *empty* when it compiles to nothing though a value is labelled valid;
- *too wide* when an invalid value is accepted, also with the keys in the order of the schema, and *too narrow* when a valid one is not.

Every schema has a process of its own. Times are of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import process_time
from typing import Any

import fsm
from benchmarks import machine, table
from benchmarks.rounds import Message, Send, in_process
from benchmarks.tekken import tekken
from fsm.errors import BudgetExceeded, EmptyLanguage, FSMError

LIMIT_S = 60.0
VERDICTS = ("right", "refused", "empty", "too wide", "too narrow", "failed")


def main() -> None:
    """Judge every schema, print those that are not right, and write the page of results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_instances", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", help="only files whose name holds this; nothing is written")
    parser.add_argument("--masks", action="store_true", help="time the masks along valid values, with 131,072 tokens")
    parser.add_argument("--out", default="real_instances", help="name below benchmarks/results; empty: write nothing")
    options = parser.parse_args()
    machine.use_one_thread()
    described = machine.describe(["outlines-cont"])
    found = []
    for result in judged(options.folder, options.name, has_masks=options.masks):
        found.append(result)
        if result["verdict"] != "right":
            print(f"{result['name']}: {result['verdict']}: {result['detail'][:500]}", flush=True)
    text = page(found, machine.sentence(described))
    print(text)
    if options.out and options.name is None:
        table.write(options.out, {"machine": described, "cases": found}, text)


def judged(folder: Path, name: str | None = None, *, has_masks: bool = False) -> Iterator[Message]:
    """What became of each schema of the folder."""
    tokenizer = tekken() if has_masks else None
    vocabulary = None if tokenizer is None else fsm.Vocabulary(tokenizer.tokens, [tokenizer.eos_token_id])
    if vocabulary is not None:
        fsm.TokenFSM(fsm.json_schema({"properties": {"a": {"type": ["string", "number"]}}}), vocabulary).bitmask(1)
    for path in sorted(folder.glob("*.json")):
        if name is not None and name not in path.name:
            continue
        case = json.loads(path.read_bytes())
        valid = [_text(test["data"]) for test in case["tests"] if test["valid"]]
        token_ids = [] if tokenizer is None else tokenizer.encode(valid)
        *_, found = in_process(
            judge, case["schema"], case["tests"], vocabulary, token_ids, method="fork", limit=LIMIT_S
        )
        if "failed" in found:
            found = {"verdict": "failed", "detail": found["failed"]}
        yield {"name": path.stem, **found}


def judge(
    send: Send, schema: Any, tests: list[dict[str, Any]], vocabulary: fsm.Vocabulary | None, texts: list[list[int]]
) -> None:
    """Compile one schema and ask it for each value.

    Args:
        send: takes what was found.
        schema, tests: the case.
        vocabulary: for masks; None: none are made.
        texts: the valid values as token ids.
    """
    warnings.simplefilter("ignore")
    try:
        start = process_time()
        expression = fsm.json_schema(schema)
        compile_ms = 1e3 * (process_time() - start)
        in_any_order = fsm.json_schema(schema, key_order="any")
    except EmptyLanguage as error:
        has_valid = any(test["valid"] for test in tests)
        return send({"verdict": "empty" if has_valid else "right", "detail": str(error)})
    except FSMError as error:
        kind = f"budget {error.limit}" if isinstance(error, BudgetExceeded) else type(error).__name__
        return send({"verdict": "refused", "detail": f"{kind}: {error}"})
    faults: dict[str, list[str]] = {"too wide": [], "too narrow": []}
    for test in tests:
        text = _text(test["data"])
        accepted = in_any_order.accepts(text)
        if test["valid"] and not accepted:
            faults["too narrow"].append(text)
        elif not test["valid"] and (accepted or expression.accepts(text)):
            faults["too wide"].append(text)
    verdict = next((name for name, wrong in faults.items() if wrong), "right")
    wrong = faults.get(verdict, [])
    checked = sum(line.level == "checked" for line in expression.report)
    masks = [] if vocabulary is None else _mask_times(fsm.TokenFSM(in_any_order, vocabulary), texts)
    return send(
        {"verdict": verdict, "detail": "; ".join(wrong), "wrong": len(wrong), "compile_ms": compile_ms, "checked": checked,
         "longest_mask_ms": max(masks, default=None), "num_masks": len(masks)}
    )  # fmt: skip


def _mask_times(token_fsm: fsm.TokenFSM, texts: list[list[int]]) -> list[float]:
    times = []
    for token_ids in texts:
        state = token_fsm.initial_state
        for token_id in token_ids:
            start = process_time()
            token_fsm.bitmask(state)
            times.append(1e3 * (process_time() - start))
            try:
                state = token_fsm.next_state(state, token_id)
            except FSMError:
                break  # a value that is refused: it counts as a wrong verdict already
    return times


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def page(found: list[Message], where: str) -> str:
    """The results as text for people."""
    groups: dict[str, Counter[str]] = {}
    for one in found:
        groups.setdefault(one["name"].partition("---")[0], Counter())[one["verdict"]] += 1
    rows = [[name, sum(counts.values()), *(counts[verdict] for verdict in VERDICTS)] for name, counts in groups.items()]
    rows.append(["all", len(found), *(sum(one["verdict"] == verdict for one in found) for verdict in VERDICTS)])
    times = sorted(one["compile_ms"] for one in found if "compile_ms" in one) or [0.0]
    masks = [one["longest_mask_ms"] for one in found if one.get("longest_mask_ms") is not None]
    parts = [
        f"# Real schemas with labelled values\n\n{where}\n",
        table.markdown(["group", "schemas", *VERDICTS], rows),
        f"Compiling takes {statistics.median(times):.3g} ms in the median, {times[int(0.95 * len(times))]:.3g} ms in 95 of 100, at "
        f"most {times[-1]:.3g} ms.",
        f"The longest mask takes {max(masks):.3g} ms; in the median schema {statistics.median(masks):.3g} ms.\n"
        if masks
        else "",
        "What is not right:\n",
        *(f"- {one['name']}: {one['verdict']}: {_line(one['detail'])}" for one in found if one["verdict"] != "right"),
        "",
    ]
    return "\n".join(parts)


def _line(text: str) -> str:
    return " ".join(text.split())[:200].replace("|", "\\|")


if __name__ == "__main__":
    main()
