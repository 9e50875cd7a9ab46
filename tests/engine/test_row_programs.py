"""What follows a piece: the next begins in the same batch; if a function or a program goes wrong its row fails, and the others do not."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from outlines_cont import engine_of, generate, models, samplers
from outlines_cont.engine.job import Job
from outlines_cont.engine.piece import Next, Piece
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.generation.options import Options
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models import Meter
from outlines_cont.state.row import StateRow
from tests.fakes import random_model


def then(second: Piece, row: Row) -> Next:
    """Return one of two texts after the first piece, by what that has written, and then a second piece."""
    tokenizer = row.model.tokenizer
    is_many = tokenizer.text_bytes(row.piece_ids) >= b"50"
    text = " units, many " if is_many else " units, few "
    return Next(second, between=tokenizer.encode_inside(text, row.token_ids))


def branched(prompts: list[list[int] | str], model: LanguageModel) -> list[StateRow]:
    """Return what rows are in which digits, a text by them, and an item are written."""
    first, second = (
        generate.regex(model, pattern, sampler=samplers.multinomial(temperature=3.0)).piece(Options.of({}))
        for pattern in ("[0-9]{2}", "(lamps|chairs)[.]")
    )
    counts = Meter()
    opened = [open_prompt(model, prompt, 1, seed).rows[0][0] for seed, prompt in enumerate(prompts)]
    first = replace(first, then=partial(then, second))
    rows = [Row(source, model, first, counts=counts) for source in opened]
    job = Job(rows, counts)
    with model.meter() as meter:
        engine_of(model).run(job)
    assert meter.forwards >= 1
    assert meter.recomputed_tokens == 0
    return [job.done[i] for i in range(len(rows))]


def test_the_next_piece_begins_in_the_same_row_after_text_that_the_last_one_would_refuse() -> None:
    model, seen = models.tiny(), set()
    for row in branched(["Send "] * 12, model):
        text = model.tokenizer.decode(row.token_ids)
        found = re.fullmatch(r"Send ([0-9]{2}) units, (many|few) (lamps|chairs)[.]", text)
        assert found is not None, text
        assert (found[2] == "many") is (int(found[1]) >= 50)
        assert row.error is None
        assert row.finish_reason == "constraint"
        seen.add(found[2])
    assert seen == {"many", "few"}


def test_the_next_piece_does_not_begin_where_the_context_ends_before_it() -> None:
    model, ends = models.tiny(), set()
    space = model.tokenizer.encode_inside(" ", [])
    for num_left in range(1, 14):
        prompt = (space * model.context_length)[: model.context_length - num_left]
        (row,) = branched([prompt], model)
        assert len(row.token_ids) <= model.context_length
        written = model.tokenizer.decode(row.token_ids[len(prompt) :])
        assert re.fullmatch("[0-9]{0,2}( units, (many|few) ([a-z]*[.]?))?", written)
        assert row.error is None
        ends.add((row.finish_reason, " units" in written))
    assert ends == {("length", False), ("length", True), ("constraint", True)}


def raises(row: Row) -> Next:
    """Raise an error when the first piece has ended."""
    raise ValueError("out of ideas")


def refused(row: Row) -> Next:
    """Return a piece that begins over tokens that it refuses."""
    return Next(replace(row.piece.spec, then=None), start=row.length - 1)


class Raises(RowProgram):
    """Raises an error when the row is planned."""

    def plan(self, row: Row) -> None:
        raise ValueError("out of ideas")


@pytest.mark.parametrize(("then", "program"), [(raises, None), (refused, None), (None, Raises())])
def test_an_error_of_what_follows_or_of_a_program_is_that_of_its_row(then: Any, program: RowProgram | None) -> None:
    model, counts = random_model(), Meter()
    generator = generate.regex(model, "-[a-c]{3}")
    piece = generator.piece(Options.of({}))
    (source,), (other,) = open_prompt(model, ["the", "name"], 1, None).rows
    rows = [Row(source, model, replace(piece, then=then), counts=counts), Row(other, model, piece, counts=counts)]
    rows[0].program = program
    job = Job(rows, counts)
    engine_of(model).run(job)
    assert job.done[0].error is not None
    assert job.done[0].finish_reason == "error"
    assert job.done[1].error is None
    assert model.tokenizer.decode(job.done[1].token_ids).startswith("name-")
