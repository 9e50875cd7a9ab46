"""Three ways to write the same records with the same weights: this repository, transformers alone, outlines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from pydantic import BaseModel, ConfigDict
from transformers import AutoModelForCausalLM, AutoTokenizer

from outlines_cont.errors import IncompleteOutput


class Record(BaseModel):
    """What is read out of a message; the demo's record. It has no other keys, so that every engine has the same texts to choose from."""

    model_config = ConfigDict(extra="forbid")

    customer: str
    city: str
    item: str
    quantity: int
    price: float
    currency: Literal["EUR", "USD", "GBP", "JPY"]


SCHEMA = Record.model_json_schema()


@dataclass(slots=True)
class Counts:
    """What the model was asked for.

    Attributes:
        forwards: calls of the model.
        fed: token ids in them, padding included, but for this repository.
        written: token ids of the answers, without padding and end.
    """

    forwards: int = 0
    fed: int = 0
    written: int = 0


@dataclass(slots=True)
class Weights:
    """A model and its tokenizer, as transformers loads them, with a count of calls."""

    model: Any
    tokenizer: Any
    max_tokens: int
    counts: Counts = field(default_factory=Counts)


def load(folder: Path | None = None, max_tokens: int = 400) -> Weights:
    """Load the model in a folder in float32, or the bundled one, for records of so many tokens; nothing is downloaded."""
    with as_file(files("outlines_cont.models") / "tiny") as bundled:
        source = bundled if folder is None else folder
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype="float32", local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
    return Weights(model.eval(), tokenizer, max_tokens)


class Writer(Protocol):
    """One library with the bundled model; made once, used for many prompts."""

    counts: Counts

    def write(self, prompts: Sequence[str]) -> list[str]:
        """One answer per prompt; one prompt goes the way of one prompt, several go as a batch."""


class Ours:
    """`generate.json` of this repository; nothing is reused from call to call. A meter counts: with a hook transformers runs the layers."""

    def __init__(self, weights: Weights, draft: str | None = None) -> None:
        from outlines_cont import generate, models

        self.counts, self._max_tokens = weights.counts, weights.max_tokens
        self._model = models.from_transformers(weights.model, weights.tokenizer, prefix_cache_bytes=0)
        self._generator = generate.json(self._model, SCHEMA, whitespace="none", draft=draft)

    def write(self, prompts: Sequence[str]) -> list[str]:
        given = list(prompts) if len(prompts) > 1 else prompts[0]
        with self._model.meter() as meter:
            try:
                values = self._generator(given, max_tokens=self._max_tokens)
            except IncompleteOutput as error:  # of some of them
                values = error.results
        self.counts.forwards += meter.forwards
        self.counts.fed += meter.fed_tokens
        self.counts.written += meter.sampled_tokens + meter.forced_tokens
        found = values if isinstance(values, list) else [values]
        return ["" if value is None else Record.model_validate(value).model_dump_json() for value in found]


class _Generate:
    """Counts the token ids that `model.generate` writes, for libraries that hand on the text only, and by a hook those that it feeds."""

    def __init__(self, weights: Weights) -> None:
        self._generate, self._eos, self._counts = weights.model.generate, weights.tokenizer.eos_token_id, weights.counts
        weights.model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, _: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        input_ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        self._counts.forwards += 1
        self._counts.fed += input_ids.numel()

    def __call__(self, **options: Any) -> torch.Tensor:
        ids: torch.Tensor = self._generate(**options)
        written = ids[:, options["input_ids"].shape[1] :]
        self._counts.written += int((written != self._eos).sum())  # padding is the same id
        return ids


class Transformers:
    """`model.generate` of transformers, greedy, without any constraint; ends where the model says so."""

    def __init__(self, weights: Weights) -> None:
        self.counts, self._max_tokens = weights.counts, weights.max_tokens
        self._tokenizer = weights.tokenizer
        self._tokenizer.pad_token, self._tokenizer.padding_side = self._tokenizer.eos_token, "left"
        self._generate = _Generate(weights)

    def write(self, prompts: Sequence[str]) -> list[str]:
        inputs = self._tokenizer(list(prompts), return_tensors="pt", padding=True)
        with torch.inference_mode():
            ids = self._generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=False,
                max_new_tokens=self._max_tokens,
                pad_token_id=self._tokenizer.pad_token_id,
            )
        texts: list[str] = self._tokenizer.batch_decode(
            ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        return texts


class Outlines:
    """`outlines.Generator` with its default backend, on the same schema without white space."""

    def __init__(self, weights: Weights) -> None:
        import outlines  # type: ignore[import-not-found,unused-ignore]
        from outlines.types import JsonSchema  # type: ignore[import-not-found,unused-ignore]

        self.counts, self._max_tokens = weights.counts, weights.max_tokens
        weights.tokenizer.pad_token = weights.tokenizer.eos_token
        weights.model.generate = _Generate(weights)
        model = outlines.from_transformers(weights.model, weights.tokenizer)
        self._generator = outlines.Generator(model, JsonSchema(SCHEMA, whitespace_pattern=""))
        self._options = {
            "max_new_tokens": self._max_tokens,
            "do_sample": False,
            "pad_token_id": weights.tokenizer.eos_token_id,
        }

    def write(self, prompts: Sequence[str]) -> list[str]:
        if len(prompts) == 1:
            return [self._generator(prompts[0], **self._options)]
        texts: list[str] = self._generator.batch(list(prompts), **self._options)
        return texts


def drafted(weights: Weights) -> Ours:
    """The same, guessing ahead what stands in the prompt."""
    return Ours(weights, draft="lookup")


WRITERS: dict[str, Callable[[Weights], Writer]] = {
    "ours": Ours,
    "drafted": drafted,
    "transformers": Transformers,
    "outlines": Outlines,
}
