"""`StandIn`: rows to outcomes without a model, for what is around one; `extraction`: the command `extract` with it."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from outlines_cont.cli.extract import prepared
from outlines_cont.cli.options import ExtractOptions
from outlines_cont.pipelines import Failure, Outcome
from outlines_cont.pipelines.extraction import Tally
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


def extraction(answer: Answer, stdout: io.BytesIO, stdin: bytes = b"", **options: Any) -> Iterator[Tally]:
    """Check the options of the command, and return its run, whose model is a function."""
    given = ExtractOptions(**{**options, "input": [str(options["input"])]})
    job, schema, template = prepared(given, io.BytesIO(stdin), stdout)
    return job.run(lambda: StandIn(answer, given, schema, template))


def extracted(answer: Answer, stdin: bytes = b"", **options: Any) -> bytes:
    """Run the command, and return its standard output."""
    stdout = io.BytesIO()
    for _ in extraction(answer, stdout, stdin, **options):
        pass
    return stdout.getvalue()
