"""Whether LALR takes a grammar: with few of many terminals that stand in the same places, as with all of them."""

from __future__ import annotations

import pytest
from lark import Lark
from lark.common import ParserConf
from lark.exceptions import GrammarError
from lark.grammar import Rule
from lark.parsers.lalr_analysis import LALR_Analyzer

from fsm.lark.conflict import MAX_TWINS, is_lalr

GRAMMARS = {
    "keywords before a name": "start: (K NAME)+",
    "keywords that may be left out": "start: K? NAME K?",
    "a dangling choice": "start: K start | K start ELSE start | NAME",
    "two ways to the same": "start: a NAME | b NAME\na: K\nb: K",
    "two ways that differ later": "start: a NAME | b ELSE\na: K\nb: K",
    "keywords as operators": "start: start K start | NAME",
    "a list of keywords": "start: x+ NAME\nx: K | K K",
    "keywords behind one another": "start: x NAME\nx: K | x K",
    "keywords that nest": "start: K start ELSE | NAME",
    "one of them stands elsewhere, too": 'start: K NAME | "k0" ELSE',
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_many_keywords_are_as_few(name: str) -> None:
    keywords = " | ".join(f'"k{n}"' for n in range(MAX_TWINS + 3))
    text = GRAMMARS[name].replace("K", f"({keywords})") + '\nNAME: "n"\nELSE: "e"\n'
    rules = Lark(text).rules
    assert _is_lalr_with_all(rules) == is_lalr(rules, "start")


def _is_lalr_with_all(rules: list[Rule]) -> bool:
    try:
        LALR_Analyzer(ParserConf(rules, {}, ["start"]), strict=True).compute_lalr()  # type: ignore[no-untyped-call]
    except GrammarError:
        return False
    return True
