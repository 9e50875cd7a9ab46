"""`StandIn`: rows to outcomes without a model, for what is around one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from outlines_cont.cli.options import ExtractOptions
from outlines_cont.pipelines.outcome import Failure, Outcome
from outlines_cont.pipelines.prompt_template import PromptTemplate, RowPrompt
from outlines_cont.pipelines.record_schema import RecordSchema

Answer = Callable[[str], Any]


class StandIn:
    """What an `Extractor` is for an extraction, where a function gives the value of every prompt, or its error."""

    def __init__(self, answer: Answer, options: ExtractOptions, schema: RecordSchema, template: PromptTemplate) -> None:
        self._answer = answer
        self._schema = schema
        self._prompt = RowPrompt(template, options.text_field, schema.json_schema, options.missing)

    def outcomes(self, rows: Iterable[Mapping[str, Any] | Exception], show: Any = None) -> Iterator[Outcome]:
        for row in rows:
            try:
                yield self._outcome(row)
            except Exception as error:
                yield Outcome(failure=Failure.of(error))

    def _outcome(self, row: Mapping[str, Any] | Exception) -> Outcome:
        if isinstance(row, Exception):
            raise row
        value = self._answer(self._prompt.text(row, lambda values: values))
        if isinstance(value, Exception):
            raise value
        return Outcome(self._schema.dump(value))


def standing_in(answer: Answer) -> Callable[..., StandIn]:
    """Return what makes a `StandIn` for a command."""
    return lambda options, schema, template: StandIn(answer, options, schema, template)
