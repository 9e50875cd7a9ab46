"""`Library`: a chat model in this repository, and in transformers, over the same weights; `score`: how much of an answer to one of the 60
questions of `quality_tasks` is right. `benchmarks.habits` asks them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchmarks.quality_tasks import Task

_JSON = ("record", "arguments")
_MAX_TOKENS = 80


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
        return texts_of(state)


def texts_of(state: Any) -> list[str]:
    """Return what was generated in each row."""
    return [text for group in state.generated for text in ([group] if isinstance(group, str) else group)]


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
