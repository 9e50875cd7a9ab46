"""Schemas that a process meets for the first time, one after the other: `python -m benchmarks.masks --schemas FOLDER`.

Each engine has one process for all schemas, as a server has, and a new process in each round, engine after engine. Python's collector of
reference cycles is running; what there is before the first schema is frozen. Times are of the thread that works, not of the clock. A
folder has files of `{"schema": ..., "tests": [{"valid": true, "data": ...}, ...]}`, as `benchmarks.real_instances` reads; without one it
is our own eleven schemas. The valid values are written with their keys in the order of the schema, with one space after `:` and `,`, and
walked token by token; a value that an engine refuses is walked up to there.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import thread_time_ns
from typing import Any

import numpy as np

from benchmarks import machine, table
from benchmarks.case import Case, cases, warm_up
from benchmarks.engines import Cursor, Engine, engine
from benchmarks.rounds import Message, Send, in_process
from benchmarks.tekken import Tokenizer, tekken
from benchmarks.walk import allows

LIMIT_S = 120.0
Task = tuple[Case, list[list[int]]]
"""A schema, and the tokens of each of its texts with the EOS id at the end."""
Found = dict[str, list[dict[str, Message]]]
"""By engine, for each round, what was found for each schema by its name; "" has the pauses of the collector."""


def page(
    folder: Path | None, engines: list[str], rounds: int, core: int | None, described: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Measure; return the figures, and the page of results."""
    tokenizer = tekken()
    tasks = list(_tasks(folder, tokenizer))
    found: Found = {name: [] for name in engines}
    for _ in range(rounds):
        for name in engines:
            found[name].append(_run(name, tokenizer, tasks, core))
    figures = _figures(found)
    return {"rounds": rounds, "engines": figures}, _page(figures, len(tasks), machine.sentence(described), rounds)


def _tasks(folder: Path | None, tokenizer: Tokenizer) -> Iterator[Task]:
    """The schemas with their texts."""
    given: list[tuple[Case, list[str]]] = [(case, [case.text]) for case in cases() if case.kind == "schema"]
    if folder is not None:
        given = []
        for path in sorted(folder.glob("*.json")):
            one = json.loads(path.read_bytes())
            orders = list(_orders(one["schema"]))
            texts = [json.dumps(_ordered(t["data"], orders), ensure_ascii=False) for t in one["tests"] if t["valid"]]
            given.append((Case(path.stem, "schema", one["schema"], ""), texts))
    for case, texts in given:
        yield case, [[*ids, tokenizer.eos_token_id] for ids in tokenizer.encode(texts)]


def _orders(schema: Any) -> Iterator[list[str]]:
    """The names of each `properties` of a schema, in their order."""
    stack = [schema]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            names = part.get("properties")
            if isinstance(names, dict):
                yield list(names)
            stack += part.values()
        elif isinstance(part, list):
            stack += part


def _ordered(value: Any, orders: list[list[str]]) -> Any:
    """A value with the members of each object in that order which has most of their names."""
    if isinstance(value, list):
        return [_ordered(item, orders) for item in value]
    if not isinstance(value, dict):
        return value
    best = max(orders, key=lambda names: (len(value.keys() & set(names)), -len(names)), default=[])
    ranks = {name: rank for rank, name in enumerate(best)}
    return {name: _ordered(value[name], orders) for name in sorted(value, key=lambda name: ranks.get(name, len(ranks)))}


def _run(name: str, tokenizer: Tokenizer, tasks: list[Task], core: int | None) -> dict[str, Message]:
    """All schemas in one process of an engine; in a further one those after a schema with which the process ended."""
    found: dict[str, Message] = {"": {"pauses": []}}
    left = tasks
    while left:
        for message in in_process(_measure, name, tokenizer, left, core, limit=LIMIT_S):
            if "pauses" in message:
                found[""]["pauses"] += message["pauses"]
                left = []
            elif "case" in message:
                found[message["case"]] = message
                left = left[1:]
            else:
                found[left[0][0].name] = {"refused": message["failed"]}
                left = left[1:]
    return found


def _measure(send: Send, name: str, tokenizer: Tokenizer, tasks: list[Task], core: int | None) -> None:
    machine.pin(core)
    subject = engine(name)
    subject.prepare(tokenizer)
    for case in warm_up():
        if case.kind == "schema":
            subject.cursor(subject.compile(case)).fill()
    pauses = list[int]()
    begun = 0

    def watch(phase: str, _: object) -> None:
        nonlocal begun
        if phase == "start":
            begun = thread_time_ns()
        else:
            pauses.append(thread_time_ns() - begun)

    gc.collect()
    gc.freeze()  # as `models.transformers` does before its first model: what a process has imported is not visited again
    gc.callbacks.append(watch)
    for case, texts in tasks:
        send({"case": case.name, **_walked(subject, case, texts)})
    gc.callbacks.remove(watch)
    send({"pauses": pauses})


def _walked(subject: Engine, case: Case, texts: list[list[int]]) -> Message:
    start = thread_time_ns()
    try:
        constraint = subject.compile(case)
        subject.cursor(constraint).fill()
    except Exception as error:  # whatever a library raises at a schema that it does not read
        return {"refused": f"{type(error).__name__}: {error}"[:200]}
    first = thread_time_ns() - start
    masks, steps, whole = list[list[int]](), list[list[int]](), list[bool]()
    for token_ids in texts:
        masks.append([])
        steps.append([])
        whole.append(_walk(subject.cursor(constraint), token_ids, masks[-1], steps[-1]))
    return {"first": first, "masks": masks, "steps": steps, "whole": whole}


def _walk(cursor: Cursor, token_ids: list[int], masks: list[int], steps: list[int]) -> bool:
    """Walk one text, and return whether all of it was allowed."""
    for position, token_id in enumerate(token_ids):
        start = thread_time_ns()
        cursor.fill()
        masks.append(thread_time_ns() - start)
        if not allows(cursor, token_id):
            return False
        if position + 1 < len(token_ids):
            start = thread_time_ns()
            cursor.advance(token_id)
            steps.append(thread_time_ns() - start)
    return True


def _compiled(found: Found, name: str) -> list[str]:
    """The schemas that an engine compiled in every round."""
    return [case for case in found[name][0] if case and all("first" in one.get(case, {}) for one in found[name])]


def _measured(found: Found, name: str, chosen: Iterable[str], is_wanted: Callable[[str, int], bool]) -> dict[str, Any]:
    """The figures of one engine over some schemas, and of the texts that are wanted; each time is the median over the rounds."""
    firsts, masks, steps, num_whole = list[float](), list[float](), list[float](), 0
    for case in chosen:
        rounds = [one[case] for one in found[name]]
        firsts.append(float(np.median([one["first"] for one in rounds])) / 1e6)
        for number, is_whole in enumerate(rounds[0]["whole"]):
            if is_wanted(case, number):
                num_whole += is_whole
                masks += (np.median([one["masks"][number] for one in rounds], axis=0) / 1e3).tolist()
                steps += (np.median([one["steps"][number] for one in rounds], axis=0) / 1e3).tolist()
    pauses = [[pause / 1e6 for pause in one[""]["pauses"]] for one in found[name]]
    return {
        "schemas": len(firsts), "texts": num_whole, "masks": len(masks),
        "first_ms": _spread(firsts), "mask_us": _spread(masks), "step_us": _spread(steps),
        "collector_ms": float(np.median([sum(one) for one in pauses])),
        "pause_ms": float(np.median([max(one, default=0.0) for one in pauses])),
    }  # fmt: skip


def _spread(values: list[float]) -> list[float]:
    """Median, mean, 99 of 100, and the most."""
    if not values:
        return [0.0] * 4
    return [float(np.median(values)), float(np.mean(values)), float(np.percentile(values, 99)), max(values)]


def _figures(found: Found) -> dict[str, Any]:
    """By engine: its figures over all that it compiles, over what all engines compile and walk, and what it refuses."""
    own = {name: _compiled(found, name) for name in found}
    shared = [case for case in next(iter(own.values())) if all(case in names for names in own.values())]

    def walked_by_all(case: str, number: int) -> bool:
        return all(rounds[0][case]["whole"][number] for rounds in found.values())

    return {
        name: {
            "own": _measured(found, name, own[name], lambda case, number: True),
            "shared": _measured(found, name, shared, walked_by_all),
            "refused": {case: one["refused"] for case, one in found[name][0].items() if "refused" in one},
        }
        for name in found
    }


_HEAD = ["", "schemas", "texts", "first mask, ms: median", "mean", "99 of 100", "mask, us: median", "mean", "99 of 100", "most, ms",
         "step, us: mean", "99 of 100", "collector, ms: all", "longest"]  # fmt: skip


def _row(name: str, of: dict[str, Any]) -> list[object]:
    first, mask, step = of["first_ms"], of["mask_us"], of["step_us"]
    return [
        name,
        of["schemas"],
        of["texts"],
        *first[:3],
        *mask[:3],
        mask[3] / 1e3,
        step[1],
        step[2],
        of["collector_ms"],
        of["pause_ms"],
    ]


def _page(figures: dict[str, Any], num_schemas: int, where: str, rounds: int) -> str:
    num_shared = next(iter(figures.values()))["shared"]
    refused = ", ".join(f"{name} {len(of['refused'])}" for name, of in figures.items())
    return "\n".join(
        [
            f"# Schemas never seen before\n\n{where} {rounds} rounds, thread processor time.\n",
            f"{num_schemas} schemas, one after the other in one process of each engine. Refused: {refused}.\n",
            f"Like for like, the {num_shared['schemas']} schemas that all compile, and those of their valid texts that all walk to the end "
            f"({num_shared['masks']:,} masks):\n",
            table.markdown(_HEAD, [_row(name, of["shared"]) for name, of in figures.items()]),
            "Each with all that it compiles; *texts* are walked to their end, and the others up to the token that is refused:\n",
            table.markdown(_HEAD, [_row(name, of["own"]) for name, of in figures.items()]),
            "The collector's pauses are those of the whole process in both tables.\n",
        ]
    )
