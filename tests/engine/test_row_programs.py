"""Programs of rows that go wrong: the row fails, and the others of its batch do not."""

from __future__ import annotations

import pytest

from outlines_cont import engine_of, generate
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.engine.steering import follow_policies
from outlines_cont.generation.options import Options
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.meter import Meter
from tests.fakes import random_model


class Raises(RowProgram):
    """Raises an error when the first piece has ended."""

    def plan(self, row: Row) -> None:
        follow_policies(row)
        if row.has_ended:
            raise ValueError("out of ideas")


class GoesOn(RowProgram):
    """Begins a piece over tokens that it refuses, and then another, as if nothing had happened."""

    def plan(self, row: Row) -> None:
        follow_policies(row)
        if row.has_ended and row.error is None:
            row.program = None
            row.begin(row.piece.spec, start=row.length - 1)
            row.begin(row.piece.spec)
            follow_policies(row)


@pytest.mark.parametrize("program", [Raises(), GoesOn()])
def test_an_error_of_a_program_is_that_of_its_row(program: RowProgram) -> None:
    model, counts = random_model(), Meter()
    generator = generate.regex(model, "-[a-c]{3}")
    piece = generator.piece(Options.of({}))
    (source,), (other,) = open_prompt(model, ["the", "name"], 1, None).rows
    rows = [Row(source, model, piece, counts=counts, ends_row=False), Row(other, model, piece, counts=counts)]
    rows[0].program = program
    job = Job(rows, counts)
    engine_of(model).run(job)
    assert job.done[0].error is not None
    assert job.done[0].finish_reason == "error"
    assert job.done[1].error is None
    assert model.tokenizer.decode(job.done[1].token_ids).startswith("name-")
