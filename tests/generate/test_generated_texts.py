"""What every generator writes is a text of its expression: the value encodes to the bytes that were generated.

Free text is left out: it has no expression, and a model may write bytes there that are no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

import pytest

import fsm
from fsm import Expression
from outlines_cont import continuous, generate, samplers
from outlines_cont.errors import IncompleteOutput
from outlines_cont.generation.formats import format_of
from tests.fakes import random_model

Options = Literal["é", "日本", 7]
ANY = fsm.regex("(?s).{0,6}")
NO_E = ~fsm.regex("(?s).*(e|é).*")
SCHEMA = {"type": "string", "maxLength": 5, "not": {"pattern": "^[a-zé]"}}
GRAMMAR = 'start: (/[^\\n]/ "é" | /(?s:.)/) /[^a]/? "."'

GENERATORS: dict[str, tuple[Callable[..., Any], Any, Expression]] = {
    "regex": (generate.regex, r"(?s)[^a].{0,4}\W", fsm.regex(r"(?s)[^a].{0,4}\W")),
    "choice": (generate.choice, ["é", "日本語", "🙂"], fsm.choice(["é", "日本語", "🙂"])),
    "json": (generate.json, SCHEMA, fsm.json_schema(SCHEMA)),
    "format": (generate.format, Options, format_of(Options).expression),
    "cfg": (generate.cfg, GRAMMAR, fsm.grammar(GRAMMAR)),
    "fsm": (generate.fsm, ANY + "é", ANY + "é"),
    "complement": (generate.fsm, NO_E, NO_E),
    "complement in front": (generate.fsm, (NO_E & ANY) + "é", (NO_E & ANY) + "é"),
    "complement of a complement": (generate.fsm, ~(NO_E + "x") & ANY, ~(NO_E + "x") & ANY),
    "named": (generate.fsm, (NO_E & ANY).named("a") + "é" + ANY.named("b"), (NO_E & ANY) + "é" + ANY),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_finished_value_is_the_text_whose_bytes_were_generated(name: str) -> None:
    make, source, expression = GENERATORS[name]
    model = random_model()
    generator = make(model, source, sampler=samplers.multinomial(4))
    state = continuous(generator)("a", max_tokens=40, rng=1)
    finished = 0
    for row in state.rows[0]:
        if row.value is None:
            assert isinstance(row.error, IncompleteOutput) or not generator.is_whole(row)
            continue
        finished += 1
        data = b"".join(model.tokenizer.token_bytes[token_id] or b"" for token_id in row.token_ids[row.piece.start :])
        text = _as_text(name, row.value)
        assert data == text.encode()
        assert expression.accepts(text)
    assert finished


def _as_text(name: str, value: Any) -> str:
    if name == "json":
        return json.dumps(value, ensure_ascii=False)
    if name == "named":
        return f"{value['a']}é{value['b']}"
    return str(value)
