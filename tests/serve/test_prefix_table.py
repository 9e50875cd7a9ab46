"""`PrefixTable` against a search through all texts, and what of a request is its prefix."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.serve.prefix_table import PrefixTable, prefix_text

BLOCK = 3
TEXTS = st.text("ab", max_size=14)
OWNERS = st.sampled_from("xyz")


def last_owner(seen: list[tuple[str, str]], text: str, among: set[str]) -> str | None:
    """The plain way: the last to have the longest prefix, in whole blocks, that one of some owners was the last to have."""
    for end in range(len(text) - len(text) % BLOCK, 0, -BLOCK):
        owner = next((owner for had, owner in reversed(seen) if had[:end] == text[:end]), None)
        if owner in among:
            return owner
    return None


@given(st.lists(st.tuples(TEXTS, OWNERS), max_size=8), TEXTS, st.sets(OWNERS))
def test_the_owner_is_the_last_with_the_longest_prefix(seen: list[tuple[str, str]], text: str, among: set[str]) -> None:
    table = PrefixTable(BLOCK)
    for had, owner in seen:
        table.add(had, owner)
    assert table.owner(text, among) == last_owner(seen, text, among)


def test_the_blocks_that_were_used_last_are_kept() -> None:
    table = PrefixTable(2, max_blocks=4)
    for number in range(20):
        table.add(f"{number:02}abcd", str(number))
    assert [table.owner(f"{number:02}abcd", {str(number)}) for number in range(18, 20)] == ["18", "19"]
    assert [table.owner(f"{number:02}abcd", {str(number)}) for number in range(18)] == [None] * 18
    assert len(table._owners) == 4
    table.add("xyzwvu" * 2, "a")  # longer than what is kept: its beginning is
    assert table.owner("xyzw", {"a"}) == "a"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"messages": [{"role": "user", "content": "Ü"}], "model": "a", "temperature": 1}, [[{"role": "user", "content": "Ü"}]]),
        ({"input": "x", "instructions": "y", "tools": []}, ["y", "x"]),
        ({"prompt": [1, 2]}, [[1, 2]]),
        ([1], []),
    ],
)
def test_the_prefix_is_that_of_the_prompt(body: Any, told: Any) -> None:
    assert json.loads(prefix_text(json.dumps(body).encode())) == told


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_has_no_prefix(body: bytes) -> None:
    assert prefix_text(body) == ""
