"""What is left of a token that a stop text has cut, where no tokenizer can encode it: it begins inside a character."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from outlines_cont import Branch
from outlines_cont.policies import StopAt
from tests.fakes import FakeTokenizer

ACUTE = "é".encode()


class CutTokenizer(FakeTokenizer):
    """Has tokens that begin inside a character and go on with text."""

    def __init__(self) -> None:
        super().__init__()
        self.first_new = len(self.token_bytes)
        self.token_bytes = (*self.token_bytes, ACUTE[1:] + b"ab.c", ACUTE[1:] + b"a", ACUTE[1:] + ACUTE[:1])
        self._ids = {data: token_id for token_id, data in enumerate(self.token_bytes) if data}


@pytest.mark.parametrize(
    ("data", "stop", "keep", "back", "spelled"),
    [
        ([ACUTE[:1], ACUTE[1:] + b"ab.c"], "b.", False, 1, [ACUTE[1:] + b"a"]),
        ([ACUTE[:1], ACUTE[1:] + b"ab.c"], ".c", False, 1, [ACUTE[1:] + b"a", b"b"]),
        ([ACUTE[:1], ACUTE[1:] + b"ab.c"], "b.", True, 1, [ACUTE[1:] + b"a", b"b", b"."]),
        ([b"x", ACUTE[:1], ACUTE[1:] + ACUTE[:1], ACUTE[1:] + b"ab.c"], "éa", False, 2, [ACUTE[1:]]),
        ([b"x", ACUTE[:1], ACUTE[1:] + b"a", b"b", b"."], "ab.", False, 3, [ACUTE[1:]]),
    ],
)
def test_what_begins_inside_a_character_is_spelled_byte_by_byte(
    data: list[bytes], stop: str, keep: bool, back: int, spelled: list[bytes]
) -> None:
    tokenizer = CutTokenizer()
    prompt = tokenizer.encode("Hi", add_special_tokens=True)
    token_ids = [tokenizer._ids[token] for token in data]
    policy = StopAt([stop], tokenizer, keep=keep)
    row: Any = SimpleNamespace(token_ids=prompt + token_ids, piece_start=len(prompt), healed=b"")
    state = policy.initial(row)
    for token_id in token_ids:
        state = policy.advance(state, token_id)
    [branch] = policy.branches(state, row)
    expected = Branch(backtrack=back, ff_tokens=[[tokenizer._ids[token] for token in spelled]])
    assert (expected.backtrack, expected.ff_tokens) == (branch.backtrack, branch.ff_tokens)
    joined = b"".join(data)
    end = joined.index(stop.encode()) + (len(stop.encode()) if keep else 0)
    assert joined[:end] == tokenizer.text_bytes(token_ids[: len(token_ids) - back] + branch.ff_tokens[0])
