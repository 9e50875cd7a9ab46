"""`RecordColumns`: outcomes as columns of Python values or as an Arrow table: one typed column per member of the schema (`record` if it is
no object), others, if allowed, as JSON in `additional`, then `error`, `weight`, `usage`, and with samples `agreement` (the least in each
member). A name that is taken gets the prefix `record.`; a value that its type cannot represent turns the row into an error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from outlines_cont.pipelines.rows.outcome import Failure, Outcome, Usage
from outlines_cont.pipelines.rows.table_rows import pyarrow
from outlines_cont.pipelines.tables.shape import ObjectShape, Shape, with_values

_OTHERS = "additional"


@dataclass(frozen=True)
class RecordColumns:
    """The columns of records, and their values.

    A record that is an object has a column for each of its members, and `additional`, as JSON, where there may be others; any other record
    is one column, `record`. Then follow `error`, `weight`, `usage`, and with samples `agreement`.

    Attributes:
        shape: that of the records.
        has_agreement: whether records are compared with samples.
        taken: names that columns of the input have: a member of such a name is in `record.NAME`.
    """

    shape: Shape
    has_agreement: bool = False
    taken: frozenset[str] = frozenset()

    def with_taken(self, names: Collection[str]) -> RecordColumns:
        """Return the columns for an input that has columns of such names."""
        return replace(self, taken=frozenset(names))

    @cached_property
    def members(self) -> dict[str, tuple[str, Shape]]:
        """For each column of the record the name of its member, and its shape."""
        if not isinstance(self.shape, ObjectShape):
            return {self._free("record"): ("", self.shape)}
        taken = {*self.taken, *self._own}
        return {f"record.{name}" if name in taken else name: (name, shape) for name, shape in self.shape.members}

    @cached_property
    def names(self) -> list[str]:
        """The names of all columns."""
        return [*self.members, *map(self._free, self._own)]

    def schema(self) -> Any:
        """Return names and types as a schema of pyarrow."""
        arrow = pyarrow()
        types = [shape.arrow() for _, shape in self.members.values()]
        types += [arrow.string()] if _OTHERS in self._own else []
        types += [
            arrow.string(),
            arrow.float64(),
            arrow.struct([(field.name, arrow.int64()) for field in fields(Usage)]),
        ]
        if self.has_agreement:
            types.append(arrow.struct([(name or "record", arrow.float64()) for name, _ in self.members.values()]))
        return arrow.schema([*zip(self.names, types, strict=True)])

    def rows(self, outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
        """Yield the columns' values for each outcome, those of unions as they are; one that its type cannot represent is an error."""
        return replace(self, shape=with_values(self.shape))._typed_rows(outcomes)

    def _typed_rows(self, outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
        for outcome in outcomes:
            try:
                yield self._row(outcome)
            except (ValueError, ArithmeticError) as error:
                yield self._row(replace(outcome, record=None, failure=Failure.of(error)))

    def columns(self, outcomes: Iterable[Outcome]) -> dict[str, list[Any]]:
        """Return the values of each column."""
        rows = [*self._typed_rows(outcomes)]
        return {name: [row[name] for row in rows] for name in self.names}

    def table(self, outcomes: Iterable[Outcome]) -> Any:
        """Return a table of pyarrow."""
        return pyarrow().table(self.columns(outcomes), schema=self.schema())

    @cached_property
    def _own(self) -> list[str]:
        """The columns that follow those of the members, by the names that they have if these are free."""
        others = [_OTHERS] if isinstance(self.shape, ObjectShape) and self.shape.is_open else []
        return [*others, "error", "weight", "usage", *(["agreement"] if self.has_agreement else [])]

    def _free(self, name: str) -> str:
        return f"record.{name}" if name in self.taken else name

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        given = (outcome.record or {}) if isinstance(self.shape, ObjectShape) else {"": outcome.record}
        values: list[Any] = []
        for name, shape in self.members.values():
            value = given.get(name)
            values.append(None if value is None else shape.convert(value))
        if _OTHERS in self._own:
            known = {name for name, _ in self.members.values()}
            others = {name: value for name, value in given.items() if name not in known}
            values.append(json.dumps(others, ensure_ascii=False) if others else None)
        has_failed = outcome.failure is not None
        values += [str(outcome.failure) if has_failed else None, outcome.weight, asdict(outcome.usage)]
        if self.has_agreement:
            values.append(None if has_failed else self._agreement(outcome))
        return dict(zip(self.names, values, strict=True))

    def _agreement(self, outcome: Outcome) -> dict[str, float | None]:
        """Return for each member the least share of samples that agree in any of its values."""
        found: dict[str, float | None] = {}
        for name, _ in self.members.values():
            inside = (f"{name}.", f"{name}[")
            shares = [
                share
                for path, share in outcome.agreement.items()
                if not name or path == name or path.startswith(inside)
            ]
            found[name or "record"] = min(shares, default=None)
        return found
