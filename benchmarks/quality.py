"""What a constraint does to answers: a real chat model, 60 questions, free text beside constrained text, ours beside outlines.

    python -m scripts.real_model FOLDER            # the model; see docs/models.md
    python -m benchmarks.quality --model FOLDER    # every way; some minutes

Greedy, float32, the same prompts for all. Free text is read generously: the first JSON object, option, date or number in it counts, and
pydantic may convert its fields. A record counts by field. 60 questions are few: a difference of one or two is none.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from benchmarks import machine, table
from benchmarks.quality_tasks import Task, tasks

KINDS = ("record", "arguments", "choice", "date", "number")
_JSON = ("record", "arguments")
_PACKAGES = ("outlines-cont", "transformers", "outlines", "torch")
_MAX_TOKENS = 80
_THOUGHT = " Think about it in one sentence."


def main() -> None:
    """Ask in every way, print the table and write it below `benchmarks/results`."""
    options = _options()
    described = machine.describe(_PACKAGES)
    asked = [task for task in tasks() if task.kind in options.kinds.split(",")][:: options.every]
    library = Library(options.model)
    chosen = {name: way for name, way in WAYS.items() if options.ways is None or name in options.ways.split(",")}
    found: dict[str, list[str]] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("", total=len(chosen))
        for name, way in chosen.items():
            progress.update(bar, description=name)
            found[name] = way(library, asked)
            progress.advance(bar)
    answers = [{"kind": task.kind, "question": task.question, "answer": task.answer} for task in asked]
    report = {"machine": described, "tasks": answers, "texts": found}
    text = page(report, asked)
    Console(width=200, highlight=False).print(text, markup=False)
    if options.output:
        table.write(options.output, report, text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--model", required=True, type=Path, help="folder of the model, of `python -m scripts.real_model`"
    )
    parser.add_argument("--ways", help=f"of {', '.join(WAYS)} (default: all)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)} (default: all)")
    parser.add_argument("--every", type=int, default=1, help="ask every n-th question only (default: 1)")
    parser.add_argument("--output", default="quality", help="name below benchmarks/results; empty: write nothing")
    return parser.parse_args()


class Library:
    """The model in this repository and in outlines, over the same weights."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from outlines_cont import models

        self.network: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", local_files_only=True).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.model = models.from_transformers(self.network, self.tokenizer)

    def prompt(self, question: str, lead: str) -> str:
        """Return the question in the template of the model, with its special tokens as text, and the beginning of the reply."""
        messages = [{"role": "user", "content": question}]
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return text + lead

    def ours(self, group: Sequence[Task], generator: Any, questions: Sequence[str], **options: Any) -> list[str]:
        """Return what a generator writes after the prompts, in one batch."""
        from outlines_cont import Tokens, continuous

        prompts: list[Any] = [Tokens.of(self.prompt(question, group[0].lead), special=True) for question in questions]
        state = continuous(generator)(prompts, max_tokens=_MAX_TOKENS, **options)
        return _texts(state)


def _texts(state: Any) -> list[str]:
    """Return what was generated in each row."""
    return [text for group in state.generated for text in ([group] if isinstance(group, str) else group)]


def free(library: Library, asked: Sequence[Task]) -> list[str]:
    """Free text."""
    from outlines_cont import generate

    generator = generate.text(library.model)
    return _by_kind(asked, lambda group: library.ours(group, generator, [task.question for task in group]))


def constrained(
    *,
    schema_in_prompt: bool = False,
    thinks: bool = False,
    only: Sequence[str] = KINDS,
    draft: Any = None,
    **options: Any,
) -> Callable[[Library, Sequence[Task]], list[str]]:
    """Return a way: the generator that fits the task, with `options` of the generator of JSON (`whitespace`, `key_order`) or of all."""

    def write(library: Library, group: Sequence[Task]) -> list[str]:
        from fsm import schema_text

        questions = [task.question for task in group]
        form = group[0].form
        if schema_in_prompt and group[0].kind in _JSON:
            questions = [f"{question}\n\nThe form of the answer:\n{schema_text(form)}" for question in questions]
        generator = _generator(library.model, group[0], options)
        if thinks:
            return _after_a_thought(library, generator, questions, group[0].lead or "Answer: ")
        return library.ours(group, generator, questions, **({"draft": draft} if draft else {}))

    return lambda library, asked: _by_kind(asked, lambda group: write(library, group), only)


def _generator(model: Any, task: Task, options: dict[str, Any]) -> Any:
    import fsm
    from outlines_cont import generate

    if task.kind in _JSON and options.get("whitespace") == "none or spaced":
        either = fsm.json_schema(task.form, whitespace="none") | fsm.json_schema(task.form, whitespace="spaced")
        return generate.fsm(model, either, end="eos")
    if task.kind in _JSON:
        return generate.json(model, task.form, **options)
    general = {name: value for name, value in options.items() if name not in ("whitespace", "key_order")}
    if task.kind == "choice":
        return generate.choice(model, task.form, **general)
    return generate.regex(model, task.form, **general)


def _after_a_thought(library: Library, generator: Any, questions: Sequence[str], lead: str) -> list[str]:
    from outlines_cont import Tokens, continuous, generate

    prompts: list[Any] = [Tokens.of(library.prompt(question + _THOUGHT, ""), special=True) for question in questions]
    thought = continuous(generate.text(library.model))(prompts, max_tokens=60, stop_at="\n")
    before = _texts(thought)
    state = continuous(generator)(thought + f"\n{lead}", max_tokens=_MAX_TOKENS)
    return [text[len(first) :].removeprefix(f"\n{lead}") for text, first in zip(_texts(state), before, strict=True)]


def outlines(library: Library, asked: Sequence[Task]) -> list[str]:
    """outlines, with its default white space."""
    import outlines as peer  # type: ignore[import-not-found,unused-ignore]
    from outlines.types import JsonSchema, Regex  # type: ignore[import-not-found,unused-ignore]

    tokenizer = copy(library.tokenizer)
    tokenizer.pad_token, tokenizer.chat_template = tokenizer.eos_token, None  # prompts have the template already
    model = peer.from_transformers(library.network, tokenizer)
    options = {"max_new_tokens": _MAX_TOKENS, "do_sample": False, "pad_token_id": tokenizer.eos_token_id}

    def write(group: Sequence[Task]) -> list[str]:
        form = group[0].form
        if group[0].kind in _JSON:
            output: Any = JsonSchema(form.model_json_schema())
        else:
            output = Regex("|".join(map(re.escape, form)) if group[0].kind == "choice" else form)
        generator = peer.Generator(model, output)
        return [generator(library.prompt(task.question, task.lead), **options) for task in group]

    return _by_kind(asked, write)


def _by_kind(
    asked: Sequence[Task], write: Callable[[Sequence[Task]], list[str]], only: Sequence[str] = KINDS
) -> list[str]:
    found: list[str] = []
    for kind in KINDS:
        group = [task for task in asked if task.kind == kind]
        if group:
            found += write(group) if kind in only else [""] * len(group)
    return found


WAYS: dict[str, Callable[[Library, Sequence[Task]], list[str]]] = {
    "free text": free,
    "constrained": constrained(),
    'whitespace="none"': constrained(whitespace="none", only=_JSON),
    'whitespace="spaced"': constrained(whitespace="spaced", only=_JSON),
    "all spaced or none": constrained(whitespace="none or spaced", only=_JSON),
    'key_order="any"': constrained(key_order="any", only=_JSON),
    "force=False": constrained(force=False),
    'draft="lookup"': constrained(draft="lookup"),
    'end="eos"': constrained(end="eos"),
    'end="free"': constrained(end="free"),
    "schema in the prompt": constrained(schema_in_prompt=True, only=_JSON),
    "a thought first": constrained(thinks=True),
    "outlines": outlines,
}


def page(report: dict[str, Any], asked: Sequence[Task]) -> str:
    """The page of results."""
    kinds = [kind for kind in KINDS if any(task.kind == kind for task in asked)]
    head = ["way", *(f"{kind}s" if kind not in _JSON else f"{kind}, fields" for kind in kinds)]
    rows = [[name, *(_right(kind, asked, texts) for kind in kinds)] for name, texts in report["texts"].items()]
    how = " ".join((__doc__ or "").strip().splitlines()[-2:])
    return f"# Right answers\n\n{machine.sentence(report['machine'])} {how}\n\n{table.markdown(head, rows)}"


def _right(kind: str, asked: Sequence[Task], texts: Sequence[str]) -> str:
    pairs = [(task, text) for task, text in zip(asked, texts, strict=True) if task.kind == kind]
    if not any(text for _, text in pairs):  # was not asked in this way
        return "-"
    right, count = zip(*(score(task, text) for task, text in pairs), strict=True)
    return f"{sum(right)} of {sum(count)}"


def score(task: Task, text: str) -> tuple[int, int]:
    """Return how much of an answer is right, and of how much: fields of JSON, else 1."""
    if task.kind in _JSON:
        found = _read_object(text, task.form)
        return sum(_same(found.get(name), value) for name, value in task.answer.items()), len(task.answer)
    pattern = "|".join(map(re.escape, task.form)) if task.kind == "choice" else task.form
    match = re.search(pattern, text.lower())
    return int(match is not None and match[0] == task.answer), 1


def _read_object(text: str, form: Any) -> dict[str, Any]:
    start = text.find("{")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, max(start, 0))
    except ValueError:
        return {}
    if not isinstance(value, dict):
        return {}
    try:
        return dict(form.model_validate(value).model_dump())
    except ValidationError:
        return value


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, str):
        return isinstance(found, str) and found.strip(" .").casefold() == expected.casefold()
    return bool(found == expected)


if __name__ == "__main__":
    main()
