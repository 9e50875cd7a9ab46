"""The official JSON-Schema-Test-Suite, draft 2020-12, required tests, against a ratchet file of expected results.

Every group is judged twice: with the checks of the expression, and with `strict=True` by walking a token FSM over the 256 single
bytes, the automaton alone. It is either right, or refused with a typed error, or misses valid instances; an invalid instance is
never accepted. `schema_suite.json` holds both results of every group; a change of any fails. After an improvement write it anew,
and look at the difference:

    JSON_SCHEMA_TEST_SUITE=... python -m tests.golden.test_schema_suite

The suite is found by the environment variable, or beside the repository in `../shared/data/JSON-Schema-Test-Suite`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fsm import TokenFSM, Vocabulary, json_schema
from fsm.errors import BudgetExceeded, EmptyLanguage, SchemaError, SchemaWarning, TokenNotAllowed

RATCHET = Path(__file__).with_name("schema_suite.json")
_REPOSITORY = Path(__file__).resolve().parents[2]
SUITE = Path(os.environ.get("JSON_SCHEMA_TEST_SUITE", _REPOSITORY.parent / "shared" / "data" / "JSON-Schema-Test-Suite"))
GROUPS = SUITE / "tests" / "draft2020-12"

needs_suite = pytest.mark.skipif(
    not GROUPS.is_dir(), reason=f"no JSON-Schema-Test-Suite at {SUITE}; set JSON_SCHEMA_TEST_SUITE to a checkout"
)


BYTES = Vocabulary([bytes((n,)) for n in range(256)] + [None], [256])


@cache
def registry() -> dict[str, Any]:
    """The schemas that the suite's own server would serve, by their URIs."""
    remotes = SUITE / "remotes"
    return {
        f"http://localhost:1234/{path.relative_to(remotes).as_posix()}": json.loads(path.read_text("utf-8"))
        for path in sorted(remotes.rglob("*.json"))
    }


def spellings(value: Any) -> set[str]:
    """The instance as `json.dumps` writes it."""
    return {json.dumps(value, ensure_ascii=ascii, separators=s) for ascii in (True, False) for s in ((",", ":"), (", ", ": "))}


def accepts_alone(token_fsm: TokenFSM, text: str) -> bool:
    """Whether the automaton accepts, a byte at a time."""
    state = token_fsm.initial_state
    try:
        for byte in text.encode():
            state = token_fsm.next_state(state, byte)
    except TokenNotAllowed:
        return False
    return token_fsm.is_accepting(state)


def result_of(group: dict[str, Any], *, strict: bool) -> tuple[str, int]:
    """`right`, `refused: where`, or `incomplete: n` valid instances that are not accepted; and how many of them are.

    Raises:
        AssertionError: an invalid instance is accepted.
    """
    valid = [test for test in group["tests"] if test["valid"]]
    try:
        with warnings.catch_warnings(action="ignore", category=SchemaWarning):
            expression = json_schema(group["schema"], formats="annotate", key_order="any", registry=registry(), strict=strict)
    except EmptyLanguage:
        assert not valid, f"no value satisfies {group['schema']}, but these do: {valid}"
        return "right", 0
    except SchemaError as error:
        return f"refused: at {error.pointer}", 0
    except BudgetExceeded as error:
        return f"refused: {error.limit}", 0
    token_fsm = TokenFSM(expression, BYTES) if strict else None
    missed = 0
    for test in group["tests"]:
        texts = spellings(test["data"])
        accepted = any(expression.accepts(t) if token_fsm is None else accepts_alone(token_fsm, t) for t in texts)
        assert test["valid"] or not accepted, f"accepted by {group['schema']}: {test['data']!r}"
        missed += test["valid"] and not accepted
    return f"incomplete: {missed}" if missed else "right", len(valid) - missed


def results() -> tuple[dict[str, list[str]], Counter[str]]:
    """Return both results of every group by file and description, and what they sum up to."""
    found: dict[str, list[str]] = {}
    sums: Counter[str] = Counter()
    for path in sorted(GROUPS.glob("*.json")):
        for position, group in enumerate(json.loads(path.read_text("utf-8"))):
            checked, accepted = result_of(group, strict=False)
            strict, alone = result_of(group, strict=True)
            found[f"{path.stem}/{position}: {group['description']}"] = [checked, strict]
            sums.update({"groups": 1, "right": checked == "right", "accepted": accepted})
            sums.update({"right alone": strict == "right", "accepted alone": alone})
    return found, sums


@needs_suite
def test_every_group_is_right_refused_or_known_to_be_incomplete() -> None:
    found, sums = results()
    print(f"\n{dict(sums)}")
    assert json.loads(RATCHET.read_text("utf-8")) == found
    assert sums["groups"] == 383
    assert sums["right"] >= 345
    assert sums["right alone"] >= 270
    assert sums["accepted"] >= 725


if __name__ == "__main__":
    all_results, all_sums = results()
    RATCHET.write_text(json.dumps(all_results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(dict(all_sums))
