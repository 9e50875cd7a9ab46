"""The official JSON-Schema-Test-Suite, draft 2020-12, required tests, against a ratchet file of expected results.

Every group is either refused with a typed error, or never accepts an invalid instance. `schema_suite.json` holds the result
of every group; a change of any result fails. After an improvement write it anew, and look at the difference:

    JSON_SCHEMA_TEST_SUITE=... python -m tests.golden.test_schema_suite

The suite is found by the environment variable, or beside the repository in `../shared/data/JSON-Schema-Test-Suite`.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fsm.errors import BudgetExceeded, EmptyLanguage, SchemaError
from fsm.schema import json_schema

RATCHET = Path(__file__).with_name("schema_suite.json")
_REPOSITORY = Path(__file__).resolve().parents[2]
SUITE = Path(
    os.environ.get("JSON_SCHEMA_TEST_SUITE", _REPOSITORY.parent / "shared" / "data" / "JSON-Schema-Test-Suite")
)
GROUPS = SUITE / "tests" / "draft2020-12"

needs_suite = pytest.mark.skipif(
    not GROUPS.is_dir(), reason=f"no JSON-Schema-Test-Suite at {SUITE}; set JSON_SCHEMA_TEST_SUITE to a checkout"
)


def spellings(value: Any) -> list[str]:
    """The instance as `json.dumps` writes it, without and with spaces, whole numbers as plain digits."""
    plain = _plain(value)
    return [json.dumps(plain, ensure_ascii=False, separators=s) for s in ((",", ":"), (", ", ": "))]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e40:
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def result_of(group: dict[str, Any]) -> str:
    """`right`, `refused: where`, or `incomplete: n` valid instances that are not accepted.

    Raises:
        AssertionError: an invalid instance is accepted.
    """
    valid = [test for test in group["tests"] if test["valid"]]
    try:
        expression = json_schema(group["schema"], formats="annotate")
    except EmptyLanguage:
        assert not valid, f"no value satisfies {group['schema']}, but these do: {valid}"
        return "right"
    except SchemaError as error:
        return f"refused: at #{error.pointer}"
    except BudgetExceeded as error:
        return f"refused: {error.limit}"
    accepted = {id(t): any(expression.accepts(s) for s in spellings(t["data"])) for t in group["tests"]}
    for test in group["tests"]:
        assert test["valid"] or not accepted[id(test)], f"accepted by {group['schema']}: {test['data']!r}"
    missed = sum(not accepted[id(test)] for test in valid)
    return f"incomplete: {missed}" if missed else "right"


def results() -> dict[str, str]:
    """Return the result of every group by file and description."""
    found: dict[str, str] = {}
    for path in sorted(GROUPS.glob("*.json")):
        for position, group in enumerate(json.loads(path.read_text("utf-8"))):
            found[f"{path.stem}/{position}: {group['description']}"] = result_of(group)
    return found


@needs_suite
def test_every_group_is_right_refused_or_known_to_be_incomplete() -> None:
    found = results()
    counts = Counter(result.partition(":")[0] for result in found.values())
    print(f"\n{len(found)} groups: {dict(counts)}")
    assert json.loads(RATCHET.read_text("utf-8")) == found


if __name__ == "__main__":
    all_results = results()
    RATCHET.write_text(json.dumps(all_results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(Counter(result.partition(":")[0] for result in all_results.values()))
