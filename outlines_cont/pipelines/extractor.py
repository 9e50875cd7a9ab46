"""`Extractor`: turns rows into JSON records by constrained generation with one model, at most `batch_size` rows at once (continuous
batching), and yields outcomes in input order through a bounded reorder buffer of 16 batches. A row that fails has its error as outcome; its
random numbers depend on `seed` and its prompt, not on other rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, cast

import fsm
from outlines_cont import generate, samplers
from outlines_cont.chat import Chat, with_ends
from outlines_cont.checks import check_int
from outlines_cont.defaults import DEFAULT_MAX_TOKENS
from outlines_cont.errors import OptionError
from outlines_cont.generation.prompt import Item
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import MARKS, control_names_of, mapped_texts
from outlines_cont.pipelines.flow import Flow, Recipe
from outlines_cont.pipelines.prompts.template import DEFAULT_SOURCE, MakePrompt, PromptTemplate, RowPrompt
from outlines_cont.pipelines.rows.errors import RowError
from outlines_cont.pipelines.rows.outcome import Outcome, ShowValue
from outlines_cont.pipelines.rows.schema import RecordSchema
from outlines_cont.pipelines.tables.columns import RecordColumns
from outlines_cont.pipelines.tables.containers import extracted
from outlines_cont.pipelines.tables.shape import shape_of
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.tokens import Tokens, start_ids
from outlines_cont.unknown_option import names_of, unknown_option

Row = str | Mapping[str, Any]
# Look-ahead in batches: the most rows, ended or not, from the first unfinished one on; then no other begins before it has ended.
_AHEAD = 16


class Extractor:
    """A model with a schema and a prompt template, which turns rows into records.

    Args:
        model: the model that writes.
        schema: what a record is: a JSON Schema, a pydantic model or another type, or a `RecordSchema`.
        prompt: a Jinja template that may name `text`, any field of the row, `row` (all fields) and `schema`; or a function from the fields
            of a row to a prompt.
        chat: a conversation, to which the text of the template is the message of the user, and the record the reply; None for plain text.
        text_field: the field of a row that holds the message; a row that is a text has it alone.
        max_tokens: the most tokens of a record.
        sampler: how tokens are drawn; greedy by default.
        seed: of the random numbers; each row has its own, by its prompt.
        samples: how many more records are sampled for each row; `agreement` is the share of them with the same value, for each value.
        batch_size: the most rows that run at once, samples included.
        draft: the draft for speculative decoding; see `PieceOptions`.
        is_scored: whether to compute the log-probabilities of records (`weight`) and of their values.
        **options: given to `fsm.json_schema`, such as `whitespace`.

    It can be pickled where its model can be.

    Raises:
        SetupError: the schema or the template cannot be used.
        OptionError: another argument is out of its range.
        UnknownOption: an option is unknown.
        fsm.FSMError: the schema has no value that the model can write.
    """

    def __init__(
        self,
        model: LanguageModel,
        schema: Any,
        prompt: str | PromptTemplate | MakePrompt | None = None,
        *,
        chat: Chat | None = None,
        text_field: str = "text",
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampler: Sampler | None = None,
        seed: int = 0,
        samples: int = 0,
        batch_size: int = 32,
        draft: Any = None,
        is_scored: bool = True,
        **options: Any,
    ) -> None:
        named = {name: value for name, value in locals().items() if name not in ("self", "options")}
        self._arguments: dict[str, Any] = {**named, **options}
        _check_arguments(model, options)
        check_int("samples", samples, 0)
        check_int("batch_size", batch_size, 1)
        drawn = sampler if sampler is not None else samplers.greedy()
        if isinstance(drawn, BeamSearch | BestOf) or drawn.num_samples not in (None, 1):
            raise OptionError(
                f"expected a sampler that draws one record for each row, got {sampler!r}. For several write `samples=...`.",
                "sampler",
            )
        self.model = model
        self.schema = schema if isinstance(schema, RecordSchema) else RecordSchema.of(schema)
        self.text_field = text_field
        self._shape = shape_of(self.schema, has_formats=options.get("formats", "assert") == "assert")
        make_prompt, self._source, self.needs_text = self._prompt_of(prompt, chat)
        voter = drawn if getattr(drawn, "needs_random", False) else samplers.multinomial()
        make = partial(generate.json, model, self.schema.schema, draft=draft, **options)
        self._recipe = Recipe(
            generator=make(sampler=drawn),
            voter=make(sampler=voter) if samples else None,
            schema=self.schema,
            prompt=make_prompt,
            options=with_ends({"max_tokens": max_tokens}, [chat]) if chat is not None else {"max_tokens": max_tokens},
            seed=seed,
            samples=samples,
            width=batch_size,
            is_scored=is_scored,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments; elsewhere it is made again."""
        return _unpickled, (self._arguments,)

    def __call__(self, data: Any) -> Any:
        """Return the records of rows, as these came: a list of dicts for a list, columns for columns, a frame for a frame.

        There is a column for each member of the records, typed by the schema, and `error`, `weight`, `usage`; see `RecordColumns`. A row
        that fails has nulls and its error. `dataset.map(extractor, batched=True)` adds them to a dataset, and so does `extractor(dataset)`,
        which knows their types before the first row.

        Args:
            data: a list of texts or dicts, a dict of columns, a frame of pandas or polars, a table of pyarrow, a dataset of Hugging Face;
                a text or the dict of one row for one record; for any other iterable the records come one by one.

        Raises:
            OptionError: it is not a supported container of rows.
            SetupError: pyarrow is not installed; lists and dicts do without.
        """
        return extracted(data, self.text_field, self.columns, self.outcomes)

    @property
    def columns(self) -> RecordColumns:
        """The columns of the records."""
        return RecordColumns(self._shape, has_agreement=bool(self._recipe.samples))

    @property
    def digest(self) -> str:
        """Hexadecimal digits of everything but the row that a record depends on: model, schema, prompt and options.

        A function that makes prompts counts by its name.
        """
        left_out = ("model", "schema", "prompt", "chat", "batch_size", "draft")
        options = {name: value for name, value in self._arguments.items() if name not in left_out}
        parts = [self.model.fingerprint, self.schema.json_schema, self._source, sorted(options.items())]
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def outcomes(
        self, rows: Iterable[Row | Exception], show: ShowValue | None = None
    ) -> Generator[Outcome, None, None]:
        """Yield the outcome of each row, in their order, while others are running.

        Rows are taken when there is room for them, so there may be any number of them: a few hundred are held at once.

        Args:
            rows: texts, or the fields of rows; an exception in place of a row that could not be read is its outcome.
            show: takes the values while they are written, by the number of the row; None shows nothing.
        """
        source = enumerate(rows)
        ended: dict[int, Outcome] = {}
        first = taken = 0
        is_over = False
        with self.flow(show) as flow:
            while not (is_over and flow.is_empty):
                room = 0 if is_over else min(flow.room, first + _AHEAD * self._recipe.width - taken)
                if room > 0:
                    found = list(islice(source, room))
                    is_over = len(found) < room
                    taken += len(found)
                    flow.put((number, self._fields(row)) for number, row in found)
                ended.update(cast(list[tuple[int, Outcome]], flow.step()))
                while first in ended:
                    yield ended.pop(first)
                    first += 1

    def prompt(self, row: Row) -> Any:
        """Return the prompt of a row.

        Raises:
            RowError: it has none.
        """
        return self._recipe.prompt(self._checked(row))

    def flow(self, show: ShowValue | None = None) -> Flow:
        """Return a flow, into which the caller puts rows; it must be closed."""
        return Flow(self._recipe, show)

    def _fields(self, row: Row | Exception) -> Mapping[str, Any] | Exception:
        try:
            return row if isinstance(row, Exception) else self._checked(row)
        except RowError as error:
            return error

    def _checked(self, row: Row) -> Mapping[str, Any]:
        """Return the fields of a row.

        Raises:
            RowError: it is not a row.
        """
        if isinstance(row, str):
            return {self.text_field: row}
        if not isinstance(row, Mapping):
            raise RowError(f"expected a row that is a text or a dict of fields, got {type(row).__name__}")
        return row

    def _prompt_of(
        self, prompt: str | PromptTemplate | MakePrompt | None, chat: Chat | None
    ) -> tuple[MakePrompt, str, bool]:
        """Return the function that makes prompts, a text that identifies it, and whether it needs a message."""
        if callable(prompt):
            return prompt, f"{getattr(prompt, '__module__', '')}.{getattr(prompt, '__qualname__', repr(prompt))}", False
        template = prompt if isinstance(prompt, PromptTemplate) else PromptTemplate(prompt or DEFAULT_SOURCE)
        row_prompt = RowPrompt(template, self.text_field, self.schema.json_schema)
        if chat is not None:  # all that is written in a message is letters, so nothing is marked
            source = f"{template.source}\0{json.dumps(chat.messages, default=str)}"
            return (lambda fields: chat.user(row_prompt.text(fields, dict)).state), source, row_prompt.needs_text
        return (
            lambda fields: self._given(row_prompt.text(fields, self._marked)),
            template.source,
            row_prompt.needs_text,
        )

    def _marked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row with a mark inside what is written like a special token, so that it stays letters in a prompt."""
        names = control_names_of(self.model.tokenizer)
        return cast(dict[str, Any], mapped_texts(values, lambda text: names.marked(text, MARKS[0])))

    def _given(self, prompt: str) -> Item:
        """Return a prompt in which the special tokens of the template are such, and those of its row letters."""
        if MARKS[0] not in prompt:
            return Tokens.of(prompt, special=True)
        token_ids = control_names_of(self.model.tokenizer).encode_marked(prompt, MARKS[0], self.model.tokenizer)
        start = start_ids(self.model)
        return token_ids if token_ids[: len(start)] == start else [*start, *token_ids]


def _unpickled(arguments: dict[str, Any]) -> Extractor:
    return Extractor(**arguments)


def _check_arguments(model: object, options: Mapping[str, Any]) -> None:
    """Reject what is no model, and options that nothing takes."""
    if not hasattr(model, "eos_token_ids"):
        raise OptionError(
            f"expected a model as the first argument, such as `models.tiny()`, got {type(model).__name__}. The schema comes second: "
            "`Extractor(model, Order)`.",
            "model",
        )
    taken = (Extractor.__init__, generate.json, fsm.json_schema)
    known = [name for name in dict.fromkeys(name for one in taken for name in names_of(one)) if name != "self"]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise unknown_option("`Extractor`", unknown, known)
