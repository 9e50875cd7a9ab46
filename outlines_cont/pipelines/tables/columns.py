"""`RecordColumns`: outcomes as columns of plain Python values or as an Arrow table, one typed column per member of the schema. Members that
the schema does not name are JSON in the column `additional`; a value that its type cannot represent turns the row into an error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from outlines_cont.pipelines.rows.outcome import Failure, Outcome, Usage
from outlines_cont.pipelines.rows.table_rows import pyarrow
from outlines_cont.pipelines.tables.shape import ObjectShape, Shape

_OTHERS = "additional"
_USAGE = tuple(field.name for field in fields(Usage))


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of records, and their values.

    A record that is an object has a column for each of its members, and `additional`, as JSON, where there may be others; any other record
    is one column, `record`. Then come `error`, `weight`, `usage`, and with samples `agreement`.

    Attributes:
        shape: that of the records.
        has_agreement: whether records are compared with samples.
        taken: names that columns of the input have: a member of such a name is in `record.NAME`.
    """

    shape: Shape
    has_agreement: bool = False
    taken: frozenset[str] = frozenset()

    def beside(self, names: Collection[str]) -> RecordColumns:
        """Return the columns for an input that has columns of such names."""
        return replace(self, taken=frozenset(names))

    @property
    def members(self) -> dict[str, tuple[str, Shape]]:
        """For each column of the record the name of its member, and its shape."""
        if not isinstance(self.shape, ObjectShape):
            return {self._free("record"): ("", self.shape)}
        own = (*self._own, *([_OTHERS] if self.shape.is_open else []))
        return {
            f"record.{name}" if name in own else self._free(name): (name, shape) for name, shape in self.shape.members
        }

    @property
    def names(self) -> list[str]:
        """The names of all columns."""
        others = [_OTHERS] if self._is_open else []
        return [*self.members, *map(self._free, (*others, *self._own))]

    def schema(self) -> Any:
        """Return names and types as a schema of pyarrow."""
        arrow = pyarrow()
        usage = arrow.struct([(name, arrow.int64()) for name in _USAGE])
        types = [shape.arrow() for _, shape in self.members.values()]
        types += [arrow.string()] if self._is_open else []
        types += [arrow.string(), arrow.float64(), usage]
        if self.has_agreement:
            members = [name or "record" for name, _ in self.members.values()]
            types.append(arrow.struct([(name, arrow.float64()) for name in members]))
        return arrow.schema([*zip(self.names, types, strict=True)])

    def rows(self, outcomes: Iterable[Outcome]) -> Iterator[dict[str, Any]]:
        """Yield the values of the columns for each outcome; a value that its column type cannot represent is the error of the row."""
        for outcome in outcomes:
            try:
                yield self._row(outcome)
            except (ValueError, ArithmeticError) as error:
                yield self._row(replace(outcome, record=None, failure=Failure.of(error)))

    def columns(self, outcomes: Iterable[Outcome]) -> dict[str, list[Any]]:
        """Return the values of each column."""
        found: dict[str, list[Any]] = {name: [] for name in self.names}
        for row in self.rows(outcomes):
            for name, value in row.items():
                found[name].append(value)
        return found

    def table(self, outcomes: Iterable[Outcome]) -> Any:
        """Return a table of pyarrow."""
        return pyarrow().table(self.columns(outcomes), schema=self.schema())

    @property
    def _own(self) -> list[str]:
        return ["error", "weight", "usage", *(["agreement"] if self.has_agreement else [])]

    @property
    def _is_open(self) -> bool:
        return isinstance(self.shape, ObjectShape) and self.shape.is_open

    def _free(self, name: str) -> str:
        return f"record.{name}" if name in self.taken else name

    def _row(self, outcome: Outcome) -> dict[str, Any]:
        record, has_record = outcome.record, outcome.failure is None
        values: list[Any] = []
        for name, shape in self.members.values():
            value = (record.get(name) if isinstance(self.shape, ObjectShape) else record) if has_record else None
            values.append(None if value is None else shape.convert(value))
        if self._is_open:
            known = {name for name, _ in self.members.values()}
            others = {name: value for name, value in record.items() if name not in known} if has_record else {}
            values.append(json.dumps(others, ensure_ascii=False) if others else None)
        values += [None if has_record else str(outcome.failure), outcome.weight, asdict(outcome.usage)]
        if self.has_agreement:
            values.append(self._agreement(outcome) if has_record else None)
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
