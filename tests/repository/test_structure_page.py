"""docs/structure.md: its tables of modules are those of the docstrings, and each place that a walk names is there."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from scripts.structure_page import PAGE, PLACE, line_of, renewed


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == renewed(page), "run `python -m scripts.structure_page`"


def test_the_walks_name_places_and_the_first_has_few() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(PLACE.findall(page)) >= 25
    walk = page.split("## From a call to the KV cache and back")[1].split("\n## ")[0]
    assert 5 <= len([line for line in walk.splitlines() if line.partition(".")[0].strip().isdigit()]) <= 12


def test_the_numbers_of_each_list_count_up() -> None:
    numbers = [int(found) for found in re.findall(r"^(\d+)\. ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)]
    assert numbers.count(1) >= 6
    assert all(number in (1, before + 1) for before, number in pairwise([0, *numbers]))


def test_a_place_that_is_not_there_is_an_error() -> None:
    assert line_of("fsm/tokens/token_fsm.py", "TokenFSM.bitmask") > line_of("fsm/tokens/token_fsm.py", "TokenFSM") > 0
    with pytest.raises(KeyError, match="defines no `no_such_name`"):
        line_of("fsm/expression.py", "no_such_name")
