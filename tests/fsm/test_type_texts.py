"""Narrow laws of pydantic types: what is written of hard numbers, of flags, and of named types in classes of several configurations."""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random

import pytest

from fsm import json_schema
from tests.fuzz.types import faults_of

Drawn = tuple[str, list[str]]
"""The source of a module whose `T` is a type, and sources of values."""

_FORMS = [
    ("{}", "{}"), ("list[{}]", "[{}]"), ("dict[str, {}]", "{{'a': {}}}"), ("dict[{}, int]", "{{{}: 1}}"), ("Optional[{}]", "{}"),
    ("tuple[{}, int]", "({}, 1)"), ("RootModel[{}]", "{}"),
]  # fmt: skip


def _number(random: Random) -> str:
    digits = "".join(random.choices("0123456789", k=random.choice([1, 1, 2, 5, 15])))
    exponent = random.choice([0, -1, -4, -5, -7, -10, -20, -300, 1, 3, 16, 20, 290])
    return f"{random.choice(['', '-'])}{digits[0]}.{digits[1:] or '0'}e{exponent}"


def numbers(random: Random) -> Drawn:
    """A number of any size, alone, with a bound, or in a union with others."""
    kinds = ["float", "Decimal", "fractions.Fraction", "NonNegativeFloat", "NegativeFloat", "FiniteFloat", "ByteSize", "int"]
    first = random.choice(kinds[:6])
    kind = "Decimal" if first == "Decimal" else "float"
    source, values = first, [f"Decimal('{_number(random)}')" if kind == "Decimal" else _number(random) for _ in range(3)]
    values += [f"{kind}('-0.0')", f"{kind}(0)"]
    chosen = random.random()
    if chosen < 0.3 and first in ("float", "Decimal"):
        source = f"Annotated[{first}, Field({random.choice(['ge', 'le', 'gt', 'lt'])}={values[0]})]"
    elif chosen < 0.6:
        mode = random.choice(["smart", "left_to_right"])
        others = random.sample([kind for kind in kinds if kind != first], random.randint(1, 2))
        source = f"Annotated[Union[{', '.join([first, *others])}], Field(union_mode='{mode}')]"
    form, value = random.choice(_FORMS)
    return f"T = {form.format(source)}", [value.format(one) for one in values]


def flags(random: Random) -> Drawn:
    """A flag of a few bits, some of them only together, alone or with other types."""
    bits = random.sample([1, 2, 4, 8, 64, 3, 9, 1 << 40], random.randint(1, 5))
    base = random.choice(["enum.Flag", "enum.IntFlag", "enum.IntFlag, boundary=enum.STRICT"])
    lines = [f"class E({base}):", *(f"    m{bit} = {bit}" for bit in bits)]
    some = [" | ".join(f"E.m{bit}" for bit in random.sample(bits, random.randint(1, len(bits)))) for _ in range(4)]
    source = random.choice(["E", "E", "Union[E, str]", "Union[bool, E]", "Annotated[E, Field(description='d')]"])
    form, value = random.choice([one for one in _FORMS if one[0] != "dict[{}, int]"])
    return "\n".join([*lines, f"T = {form.format(source)}"]), [value.format(one) for one in (*some, "E(0)")]


_CONFIGURATIONS = [
    "", "", "val_json_bytes='hex', ser_json_bytes='hex'", "val_json_bytes='base64', ser_json_bytes='base64'", "str_max_length=4",
    "str_to_upper=True", "strict=True", "str_strip_whitespace=True",
]  # fmt: skip


def named(random: Random) -> Drawn:
    """A named type that classes of several configurations, or of none, share."""
    inner, texts = random.choice([
        ("bytes", ["b'ab'", "b'~z'"]), ("Base64Bytes", ["b'aGk='"]), ("str", ["'Ab '", "'abcdef'"]), ("float", ["1", "0.5"]),
        ("int", ["1"]), ("datetime.date", ["datetime.date(2020, 1, 1)"]),
    ])  # fmt: skip
    union = random.choice([f"Union[list[A], {inner}]", f"Union[dict[str, A], {inner}]", f"Optional[{inner}]", inner])
    kind = random.choice(["alias", "alias", "TypedDict", "NamedTuple", "dataclass", "pydantic.dataclasses.dataclass"])
    if kind == "alias":
        lines = [f'A = TypeAliasType("A", "{union}")']
    else:
        header = [f"class A({kind}):"] if kind[0] in "TN" else [f"@{kind}", "class A:"]
        lines = [*header, f"    s: {inner}"]
        texts = [f"({text},)" if kind == "NamedTuple" else f"{{'s': {text}}}" for text in texts]
    names: list[str] = []
    for number in range(random.randint(1, 3)):
        config = random.choice(_CONFIGURATIONS)
        names.append(f"M{number}")
        lines += [f"class M{number}(BaseModel):", f"    model_config = ConfigDict({config})", "    a: A", "    b: Optional[A] = None"]
        if random.random() < 0.5:
            lines.pop()
        lines += [f"    m: Optional[{names[-2]}] = None"] if number and random.random() < 0.5 else []
    values = [f"{{'a': {text}}}" for text in texts]
    form, value = random.choice([("Union[{}]", "{}"), ("tuple[A, {}]", None), ("tuple[{}]", None), ("list[Union[{}]]", "[{}]")])
    if value is None:
        values = [f"({', '.join(([text] if 'A' in form else []) + [f'dict(a={text})'] * len(names))},)" for text in texts]
    else:
        values = [value.format(one) for one in values]
    return "\n".join([*lines, f"T = {form.format(', '.join(names))}"]), values


@pytest.mark.parametrize(("draw", "count"), [(numbers, 50), (flags, 30), (named, 50)], ids=["numbers", "flags", "named"])
def test_what_pydantic_writes_of_a_hard_type_is_accepted(draw: Callable[[Random], Drawn], count: int) -> None:
    for seed in range(count):
        source, values = draw(Random(seed))
        assert [*faults_of(source, values, seed)] == [], seed


def test_a_flag_of_many_bits_is_any_combination() -> None:
    many = enum.Flag("many", [f"m{bit}" for bit in range(20)])  # type: ignore[misc]
    accepts = json_schema(many).accepts
    assert accepts("0")
    assert accepts(f"{(1 << 20) - 1}")
    assert not accepts(f"{1 << 20}")
    assert not accepts("-1")
