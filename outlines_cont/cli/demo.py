"""`Demo`: three generators (choice, JSON, regular expression) chained on one state per message; then the state is cropped to before the
record and forked, to sample more records and count those equal to the first, with the tokens fed, reused and forced in each step. `KINDS`,
`Record` and the texts between the steps are those of the training data of the bundled model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel

from outlines_cont import continuous, generate, samplers
from outlines_cont.continuation import Continuation
from outlines_cont.errors import IncompleteOutput
from outlines_cont.models.hugging_face import HuggingFaceModel
from outlines_cont.state.sequence_state import SequenceState

ShowRecord = Callable[[Any, bool], None]
"""Shows a record while it is written: its value so far, and whether it is whole."""
KINDS = ("order", "invoice", "shipment", "complaint", "quote", "meeting", "application", "other")
DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
VOTES = 3
"""How many more records are sampled to compare with the first one."""
_MAX_TOKENS = 400


class Record(BaseModel):
    """The record that the demo extracts from a message."""

    customer: str
    city: str
    item: str
    quantity: int
    price: float
    currency: Literal["EUR", "USD", "GBP", "JPY"]


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One generator on one message.

    Attributes:
        name: `kind`, `record`, `due` or `votes`.
        value: the generated value as JSON; for `votes` how many sampled records are equal to the record; None if it failed.
        error: why it failed, else None.
        fed: tokens that were fed to the model.
        reused: tokens before them whose keys and values the state had.
        forced: generated tokens that the constraint determined.
    """

    name: str
    value: Any
    error: Exception | None
    fed: int
    reused: int
    forced: int


@dataclass(frozen=True, slots=True)
class DemoRow:
    """A message and its steps."""

    text: str
    steps: tuple[DemoStep, ...]

    @property
    def has_failed(self) -> bool:
        """Whether a step failed."""
        return any(step.error is not None for step in self.steps)

    def to_json(self) -> str:
        """Return the row as one line of JSON: the text, a field per step, and `error` where one failed."""
        fields: dict[str, Any] = {"text": self.text} | {step.name: step.value for step in self.steps}
        errors = [step.error for step in self.steps if step.error is not None]
        if errors:
            fields["error"] = {"type": type(errors[0]).__name__, "message": str(errors[0])}
        return json.dumps(fields, ensure_ascii=False)


class Demo:
    """The chain of generators, compiled once, for the bundled model or any other."""

    def __init__(self, model: HuggingFaceModel) -> None:
        self._model = model
        self._kind = continuous(generate.choice(model, KINDS))
        self._record = continuous(generate.json(model, Record, whitespace="none"))
        self._due = continuous(generate.regex(model, DATE))
        sampler = samplers.multinomial(VOTES)
        self._vote = continuous(generate.json(model, Record, whitespace="none", sampler=sampler))

    def read(self, text: str, show: ShowRecord | None = None) -> DemoRow:
        """Return the steps of one message; show the record while it is written."""
        state, kind = self._step("kind", self._kind, f"Message: {text}\nKind: ", str)
        state += "\nRecord: "
        before_record = len(str(state))
        state, record = self._step("record", self._record, state, BaseModel.model_dump, show)
        state, due = self._step("due", self._due, state + "\nDue: ", str)
        return DemoRow(text, (kind, record, due, self._votes(state, before_record, record)))

    def _votes(self, state: SequenceState, before_record: int, record: DemoStep) -> DemoStep:
        """Crop the state to the text before the record, fork, sample more records, and count those that are equal."""
        with self._model.meter() as meter:
            forks = self._vote(state.crop(slice(before_record)).fork(VOTES), max_tokens=_MAX_TOKENS, rng=0)
        values = [value.model_dump() for value in forks.values[0] if value is not None]
        same = sum(value == record.value for value in values) if record.error is None else 0
        return DemoStep("votes", same, None, meter.fed_tokens, meter.reused_tokens, meter.forced_tokens)

    def _step(
        self,
        name: str,
        generator: Continuation,
        start: str | SequenceState,
        to_json: Callable[[Any], Any],
        show: ShowRecord | None = None,
    ) -> tuple[SequenceState, DemoStep]:
        with self._model.meter() as meter:
            state = generator(start, max_tokens=_MAX_TOKENS) if show is None else _streamed(generator, start, show)
        error = state.errors[0][0]
        if error is None and state.finish_reasons[0][0] == "length":
            error = IncompleteOutput(f"expected a whole {name}, but max_tokens={_MAX_TOKENS} cut it", "", "length")
        value = to_json(state.value) if error is None else None
        return state, DemoStep(name, value, error, meter.fed_tokens, meter.reused_tokens, meter.forced_tokens)


def _streamed(generator: Continuation, start: str | SequenceState, show: ShowRecord) -> SequenceState:
    """Return the state after a generator; show the value while it is written."""
    stream = generator.stream(start, partial=True, max_tokens=_MAX_TOKENS)
    for event in stream:
        show(event.value, event.finish_reason not in ("", "length", "error"))
    return stream.state


def read_messages() -> list[str]:
    """Return the bundled messages."""
    lines = (files("outlines_cont") / "demo_messages.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines if line.strip()]
