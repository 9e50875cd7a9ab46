"""The official JSON-Schema-Test-Suite's optional tests of formats: no invalid text is accepted, and valid ones but for those named here."""

from __future__ import annotations

import json
from random import Random

import jsonschema_rs
import pytest

from fsm import json_schema
from fsm.schema.keywords.formats import FORMATS
from tests.golden.test_schema_suite import GROUPS, needs_suite, spellings
from tests.walks import random_text

# How many valid texts of the suite are left out on purpose, and why.
LEFT_OUT = {
    "time": (6, "leap seconds"),
    "date-time": (3, "leap seconds, and a fraction of fifteen digits"),
    "hostname": (15, "labels in Punycode"),
    "regex": (2, "names and references"),
}
# What the validator asks beyond the standard, or reads in another way.
NOT_ASKED = {
    "regex": "the validator reads more than ECMA-262",
    "email": "the validator refuses a space after a backslash, which RFC 5321 allows",
}


@needs_suite
@pytest.mark.parametrize("name", FORMATS)
def test_the_official_suite_agrees_with_a_format(name: str) -> None:
    language = json_schema({"type": "string", "format": name})
    files = [f"{name}.json", *(["ecmascript-regex.json"] if name == "regex" else [])]
    tests = [
        test
        for file in files
        for group in json.loads((GROUPS / "optional" / "format" / file).read_text("utf-8"))
        for test in group["tests"]
        if isinstance(test["data"], str)
    ]
    accepted = [any(map(language.accepts, spellings(test["data"]))) for test in tests]
    assert [t["description"] for t, answer in zip(tests, accepted, strict=True) if answer and not t["valid"]] == []
    missed = [t["description"] for t, answer in zip(tests, accepted, strict=True) if t["valid"] and not answer]
    assert LEFT_OUT.get(name, (0, ""))[0] == len(missed), missed


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - NOT_ASKED.keys()))
def test_random_texts_of_a_format_satisfy_a_validator(name: str) -> None:
    validator = jsonschema_rs.validator_for({"format": name}, validate_formats=True)
    node = json_schema({"type": "string", "format": name}).node
    random = Random(name)
    for steps in [*range(30)] * 2:
        value = json.loads(random_text(node, random, steps))
        assert validator.is_valid(value), value


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_not_in_a_format_is_told_as_exactly(name: str) -> None:
    inside = json_schema({"type": "string", "format": name})
    outside = json_schema({"type": "string", "not": {"format": name}})
    random = Random(name)
    for steps in range(12):
        for language, other in ((inside, outside), (outside, inside)):
            text = random_text(language.node, random, steps)
            assert language.accepts(text)
            assert not other.accepts(text)
