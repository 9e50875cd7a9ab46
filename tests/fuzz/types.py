"""Random pydantic types, with random values, as Python source that can be printed and run; and what is wrong with one.

The law: a text of the language that is complete validates by `validate_json`; what `dump_json` writes of a value is in the language; and
what is refused is refused when the type is compiled, by an error of this package. Values leave out what `docs/json_text.md` says is never
written.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import sys
import traceback
import typing
import uuid
import warnings
import zoneinfo
from collections.abc import Callable, Iterator
from itertools import product
from random import Random
from time import monotonic
from types import ModuleType
from typing import Any

import pydantic
import typing_extensions
from pydantic import TypeAdapter

from fsm import Expression, json_schema
from fsm.errors import EmptyLanguage, FSMError
from tests.walks import random_text

Value = Callable[[], str]
MODULE = "random_types"
_NAMES: dict[str, Any] = {
    **{name: getattr(typing, name) for name in typing.__all__},
    **{name: getattr(pydantic, name) for name in pydantic.__all__ if not name.startswith(("validate_arg", "parse_", "V1", "FieldVal"))},
    "TypedDict": typing_extensions.TypedDict, "TypeAliasType": typing_extensions.TypeAliasType,
    "NotRequired": typing_extensions.NotRequired,
    **{module.__name__: module for module in (collections, datetime, decimal, enum, fractions, ipaddress, pathlib, re, uuid, zoneinfo)},
    "dataclass": dataclasses.dataclass, "field": dataclasses.field, "pydantic": pydantic, "Decimal": decimal.Decimal,
}  # fmt: skip
_UTC = "datetime.timezone.utc"

SCALARS: dict[str, list[str]] = {
    "int": ["0", "-7", "10**30", "12"],
    "bool": ["True", "False"],
    "float": ["0.5", "1e-7", "1e22", "-2.0", "3", "-0.0", "5e-324"],
    "str": ["'a'", "''", "'é\\n\"'", "' A b '", "'\\x7f\\u2028'"],
    "None": ["None"],
    "Any": ["1", "'a'", "[None]", "{'a': 1.5}"],
    "object": ["1", "'a'"],
    "bytes": ["b'a'", "b''", "'é'.encode()"],
    "Decimal": ["Decimal('1.50')", "Decimal(10)", "Decimal('-0.000001')", "Decimal('1.50E-10')", "Decimal('-2.5E+3')", "Decimal('-0')"],
    "datetime.date": ["datetime.date(2024, 2, 29)", "datetime.date(1, 1, 1)"],
    "datetime.datetime": [f"datetime.datetime(2024, 2, 29, 12, 0, 1, 5, tzinfo={_UTC})"],
    "datetime.time": ["datetime.time(12, 30)", "datetime.time(23, 59, 59, 999999)"],
    "datetime.timedelta": ["datetime.timedelta(days=3, seconds=4)", "datetime.timedelta(-1, 5, 6)", "datetime.timedelta(0)"],
    "uuid.UUID": ["uuid.UUID(int=5)", "uuid.UUID(int=2**128 - 1)"],
    "UUID4": ["'9a07ebea-dd86-4c92-9773-fd71c9dd0f72'"],
    "UUID1": ["'9a07ebea-dd86-1c92-9773-fd71c9dd0f72'"],
    "pathlib.Path": ["'a/b'", "'x'"],
    "pathlib.PurePosixPath": ["'a/b'"],
    "FilePath": ["'/etc/hosts'"],
    "DirectoryPath": ["'/tmp'"],
    "NewPath": ["'/tmp/not there at all'"],
    "AnyUrl": ["'redis://localhost:6379/0'"],
    "HttpUrl": ["'https://a.b/c'", "'http://127.0.0.1:8000'"],
    "FileUrl": ["'file:///etc/hosts'"],
    "PostgresDsn": ["'postgresql://u:p@localhost:5432/db'"],
    "RedisDsn": ["'redis://localhost:6379/0'"],
    "WebsocketUrl": ["'wss://a.b/'"],
    "ipaddress.IPv4Address": ["'1.2.3.4'"],
    "ipaddress.IPv6Address": ["'::1'", "'2001:db8::ff00:42:8329'"],
    "ipaddress.IPv4Interface": ["'1.2.3.4/24'"],
    "ipaddress.IPv6Interface": ["'2001:db8::1/32'"],
    "ipaddress.IPv4Network": ["'1.2.0.0/16'", "'0.0.0.0/0'", "'1.2.3.4'", "'10.128.0.0/9'"],
    "ipaddress.IPv6Network": ["'2001:db8::/32'", "'::/0'", "'::1/128'", "'2001:8000::/17'"],
    "IPvAnyAddress": ["'1.2.3.4'", "'::1'"],
    "IPvAnyInterface": ["'1.2.3.4/24'", "'::1/64'"],
    "IPvAnyNetwork": ["'1.2.0.0/16'", "'2001:db8::/32'"],
    "fractions.Fraction": ["fractions.Fraction(1, 3)", "fractions.Fraction(-7)", "fractions.Fraction(0)"],
    "complex": ["1+2j"],
    "re.Pattern": ["'a(b)'", "'(?P<x>[a-z]+)'"],
    "re.Pattern[str]": ["'a+'"],
    "re.Pattern[bytes]": ["b'a+'"],
    "ImportString": ["'math.pi'"],
    "Callable": ["print"],
    "type": ["int"],
    "type[int]": ["int"],
    "Hashable": ["1"],
    "zoneinfo.ZoneInfo": ["zoneinfo.ZoneInfo('Europe/Paris')"],
    "Json": ["'[1, null]'"],
    "Json[list[int]]": ["'[1, 2]'"],
    "JsonValue": ["1", "'a'", "[None, {'a': 1.5}]"],
    "SecretStr": ["'a'"],
    "SecretBytes": ["b'a'"],
    "Secret[int]": ["1"],
    "ByteSize": ["1024"],
    "EmailStr": ["'a@b.org'"],
    "NameEmail": ["'A <a@b.org>'"],
    "Base64Str": ["'aGk='"],
    "Base64Bytes": ["b'aGk='"],
    "Base64UrlStr": ["'aGk='"],
    "PositiveInt": ["1", "10**20"],
    "NonNegativeInt": ["0"],
    "NegativeFloat": ["-1e-7", "-1e22", "-5e-324"],
    "PositiveFloat": ["1e-7", "2.5", "1.5e300"],
    "NonNegativeFloat": ["0.0", "1e-10", "-0.0"],
    "FiniteFloat": ["1e-7", "1e16"],
    "StrictInt": ["1"],
    "StrictStr": ["'a'"],
    "StrictBool": ["True"],
    "StrictFloat": ["1.5", "1e-9"],
    "StrictBytes": ["b'a'"],
    "PastDate": ["datetime.date(2000, 1, 1)"],
    "FutureDate": ["datetime.date(9000, 1, 1)"],
    "PastDatetime": [f"datetime.datetime(2000, 1, 1, tzinfo={_UTC})"],
    "AwareDatetime": [f"datetime.datetime(2024, 2, 29, tzinfo={_UTC})"],
    "NaiveDatetime": ["datetime.datetime(2024, 2, 29)"],
    "list": ["[]", "[1, 'a']"],
    "dict": ["{}", "{'a': 1}"],
    "set": ["{1}"],
    "tuple": ["(1, 'a')"],
    "collections.Counter[str]": ["{'a': 2}"],
    "Literal['a', 'b c', 1, None, True]": ["'a'", "1", "None", "True", "'b c'"],
    "Literal[b'a']": ["b'a'"],
    "Literal[1, 2]": ["1", "2"],
    "NotDefined": ["1"],
}
"""The scalars of pydantic's table, and what it has no schema for, with values."""

_PATTERNS = [
    ("^[a-z]+$", ["'abc'"]),
    (r"^\\d{2,3}$", ["'12'"]),
    ("[A-Z]", ["'xAx'"]),
    (r"^\\S+@x$", ["'é@x'"]),
    ("^$", ["''"]),
    ("a|b", ["'b'"]),
]
_KEYS = ["int", "bool", "float", "str", "str", "str", "Decimal", "datetime.date", "uuid.UUID", "HttpUrl", "bytes", "ipaddress.IPv4Address",
         "Literal['a', 'b c']", "Literal[1, 2]", "datetime.timedelta", "pathlib.Path", "PositiveInt", "StrictInt", "Any", "None",
         "tuple[int, int]",
         "Base64Str", "SecretStr", "datetime.datetime", "PositiveFloat", "ByteSize", "JsonValue", "Literal[True]",
         "ipaddress.IPv4Network", "fractions.Fraction", "Json", "collections.Counter[str]"]  # fmt: skip
_CONFIGS = ["extra='allow'", "extra='forbid'", "extra='ignore'", "str_strip_whitespace=True", "str_to_lower=True", "str_max_length=4",
            "str_min_length=1", "strict=True", "use_enum_values=True", "val_json_bytes='hex', ser_json_bytes='hex'",
            "val_json_bytes='base64', ser_json_bytes='base64'", "frozen=True", "coerce_numbers_to_str=True",
            "regex_engine='python-re'", "allow_inf_nan=False", "alias_generator=str.upper",
            "use_attribute_docstrings=True", "hide_input_in_errors=True", "str_to_upper=True"]  # fmt: skip


class TypeSource:
    """Draws a type, and the source of the classes that it needs, into `lines`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.count = 0

    def name(self, kind: str) -> str:
        """A name that no other class has."""
        self.count += 1
        return f"{kind}{self.count}"

    def draw(self, depth: int) -> tuple[str, Value]:
        """A type as an expression, and a function that draws the source of a value."""
        if not depth or self.random.random() < 0.15:
            return self.scalar()
        kinds = [
            self.scalar, self.bounded_number, self.text, self.enum,
            lambda: self.items(depth), lambda: self.mapping(depth), lambda: self.mapping(depth), lambda: self.union(depth),
            lambda: self.model(depth), lambda: self.model(depth), lambda: self.other_class(depth), lambda: self.tagged(depth),
            lambda: self.generic(depth), lambda: self.root(depth), lambda: self.validated(depth), lambda: self.alias(depth),
        ]  # fmt: skip
        return self.random.choice(kinds)()

    def scalar(self) -> tuple[str, Value]:
        """A type of the table."""
        source = self.random.choice(list(SCALARS))
        return source, lambda: self.random.choice(SCALARS[source])

    def _some(self, words: dict[str, list[str]], most: int = 3) -> str:
        names = self.random.sample(sorted(words), self.random.randint(1, min(most, len(words))))
        return ", ".join(f"{name}={self.random.choice(words[name])}" for name in names)

    def bounded_number(self) -> tuple[str, Value]:
        """A number with constraints."""
        kind = self.random.choice(["int", "float", "float", "Decimal", "datetime.date", "datetime.timedelta", "fractions.Fraction"])
        if kind in ("datetime.date", "datetime.timedelta"):
            bound = "datetime.date(2020, 5, 6)" if kind == "datetime.date" else "datetime.timedelta(days=2)"
            values = (
                ["datetime.date(2021, 1, 1)"] if kind == "datetime.date" else ["datetime.timedelta(days=1)", "datetime.timedelta(days=3)"]
            )
            said = self._some({"ge": [bound], "lt": [bound]}, 1)
            return f"Annotated[{kind}, Field({said})]", lambda: self.random.choice(values)
        words = {
            "ge": ["0", "-5", "1e-9", "3", "1e-300"], "gt": ["0", "-1.5", "2", "1e-7"], "le": ["10", "1e-3", "1e20", "7.25"],
            "lt": ["100", "0", "1e17", "0.5", "-1e-8"],
            "multiple_of": ["2", "0.5", "3"] if kind == "float" else ["2", "3"],
        }  # fmt: skip
        if kind == "int":
            words = {name: [one for one in found if "." not in one and "e" not in one] or ["5"] for name, found in words.items()}
        if kind in ("Decimal", "fractions.Fraction"):
            words = {name: [f"{kind}('{one}')" for one in found if "e" not in one] or [f"{kind}('5')"] for name, found in words.items()}
        if kind == "Decimal":
            words |= {"max_digits": ["3", "12"], "decimal_places": ["2", "0"]}
        more = {
            "float": ["1e-8", "2.5e-8", "1e16", "1e19", "3e-310", "0.25", "-1e-7", "123456.5e-12", "-0.0"],
            "Decimal": [f"Decimal('{text}')" for text in ("1E-8", "0.1E-7", "1E+1", "-12E+20", "-0", "0E+1", "0.25")],
        }
        numbers = ["0", "1", "4", "-4", "6", "12", *more.get(kind, [])]
        said = self._some(words)
        if "multiple_of" in said:  # such numbers have no exponent but that of a zero of a Decimal, and such floats no signed zero
            numbers = [one for one in numbers if not re.search(r"[1-9.]\d*[eE]|-0\.0", one)]
        return f"Annotated[{kind}, Field({said})]", lambda: self.random.choice(numbers)

    def text(self) -> tuple[str, Value]:
        """A string or bytes with constraints."""
        if self.random.random() < 0.15:
            return f"Annotated[bytes, Field({self._some({'min_length': ['1', '2'], 'max_length': ['2', '4']})})]", lambda: "b'ab'"
        pattern, values = self.random.choice(_PATTERNS)
        words = {
            "min_length": ["1", "2"], "max_length": ["3", "5"], "pattern": [f"'{pattern}'"], "strip_whitespace": ["True"],
            "to_lower": ["True"], "to_upper": ["True"], "strict": ["True"],
        }  # fmt: skip
        values = [*values, "'abc'", "' A '", "'aB'", "'é'"]
        return f"Annotated[str, StringConstraints({self._some(words)})]", lambda: self.random.choice(values)

    def enum(self) -> tuple[str, Value]:
        """An enumeration of one of the kinds, or a literal of its members."""
        name = self.name("E")
        base, members = self.random.choice([
            ("enum.Enum", ["'x'", "'y z'"]), ("enum.Enum", ["1", "'x'"]), ("enum.Enum", ["1.5", "2.0"]), ("enum.IntEnum", ["1", "2"]),
            ("str, enum.Enum", ["'x'", "'y'"]), ("enum.Enum", ["True", "'n'"]), ("enum.Flag", ["1", "2"]), ("enum.IntFlag", ["1", "2"]),
            ("enum.Enum", ["(1, 2)", "'x'"]), ("float, enum.Enum", ["1e-7", "2.5"]), ("enum.Enum", ["1e-7", "1e22"]),
            ("enum.Enum", ["b'a'", "b'b'"]),
        ])  # fmt: skip
        self.lines += [f"class {name}({base}):", *(f"    m{number} = {value}" for number, value in enumerate(members))]
        values = [f"{name}.m{number}" for number in range(len(members))]
        values += [f"{name}.m0 | {name}.m1", f"{name}(0)"] if "Flag" in base else []
        if self.random.random() < 0.3:
            return f"Literal[{name}.m0]", lambda: values[0]
        return name, lambda: self.random.choice(values)

    def items(self, depth: int) -> tuple[str, Value]:
        """A list, set, tuple or another container."""
        source, value = self.draw(depth - 1)
        form = self.random.choice([
            "list[{}]", "list[{}]", "set[{}]", "frozenset[{}]", "tuple[{}, ...]", "Sequence[{}]", "collections.deque[{}]",
            "Optional[{}]", "list[OnErrorOmit[{}]]", "Annotated[collections.deque[{}], Field(max_length=2)]",
            "Annotated[list[{}], Field(min_length=1, max_length=2)]", "Annotated[set[{}], Field(max_length=2)]", "Json[{}]",
            "Annotated[list[{}], FailFast()]", "SerializeAsAny[{}]", "Annotated[{}, Field(strict=True)]", "tuple[{}, int]",
        ])  # fmt: skip
        if form.startswith("tuple[{}, i"):
            return form.format(source), lambda: f"({value()}, 1)"
        if form in ("Optional[{}]", "SerializeAsAny[{}]", "Annotated[{}, Field(strict=True)]"):
            return form.format(source), lambda: value() if form[0] != "O" or self.random.random() < 0.7 else "None"
        if form == "Json[{}]":
            return form.format(source), lambda: "'1'"
        return form.format(source), lambda: f"[{', '.join(value() for _ in range(self.random.randint(0, 2)))}]"

    def mapping(self, depth: int) -> tuple[str, Value]:
        """A mapping with keys of any type that may be one."""
        source, value = self.draw(depth - 1)
        drawn = self.random.random()
        if drawn < 0.4:
            key, key_value = self.text()
        elif drawn < 0.5:
            key, key_value = self.enum()
        elif drawn < 0.6:
            key, key_value = self.bounded_number()
        elif drawn < 0.7:
            first, second = self.random.sample(_KEYS, 2)
            key, key_value = f"Union[{first}, {second}]", lambda: self.random.choice(SCALARS.get(first, ["1"]))
        elif drawn < 0.8:
            key, key_value = self.draw(depth - 1)
        else:
            name = self.random.choice(_KEYS)
            key, key_value = name, lambda: self.random.choice(SCALARS.get(name, ["1", "True"]))
        form = self.random.choice([
            "dict[{}, {}]", "dict[{}, {}]", "Mapping[{}, {}]", "collections.OrderedDict[{}, {}]", "MutableMapping[{}, {}]",
            "Annotated[dict[{}, {}], Field(min_length=1, max_length=2)]",
        ])  # fmt: skip
        return form.format(key, source), lambda: f"{{{', '.join(f'{key_value()}: {value()}' for _ in range(self.random.randint(0, 2)))}}}"

    def union(self, depth: int) -> tuple[str, Value]:
        """One of several types."""
        found = [self.draw(depth - 1) for _ in range(self.random.randint(2, 3))]
        source = f"Union[{', '.join(source for source, _ in found)}]"
        if self.random.random() < 0.2:
            source = f"Annotated[{source}, Field(union_mode='left_to_right')]"
        return source, lambda: self.random.choice(found)[1]()

    def _config(self, *, is_model: bool = True) -> str:
        some = self.random.sample(_CONFIGS, self.random.choice([0, 0, 1, 1, 2]))
        return ", ".join(some)

    def _fields(self, depth: int, names: str = "abc") -> list[tuple[str, str, Value]]:
        return [(name, *self.draw(depth - 1)) for name in names[: self.random.randint(1, len(names))]]

    def _field_line(self, name: str, source: str, value: Value) -> str:
        default = self.random.random()
        if default < 0.12:
            return f"    {name}: {source} = Field({self.random.choice(['alias', 'validation_alias'])}='x{name}')"
        if default < 0.2:
            return f"    {name}: Optional[{source}] = None"
        if default < 0.25:
            return f"    {name}: {source} = Field(default=None, description='d', examples=[1])"
        if default < 0.3:
            return f"    {name}: {source} = Field(default_factory=list)"
        return f"    {name}: {source}"

    def _dict_of(self, fields: list[tuple[str, str, Value]], lines: list[str]) -> Value:
        keys = {
            name: (re.findall(r" = Field\((?:validation_)?alias='(\w+)'", line) or [name])[0]
            for (name, *_), line in zip(fields, lines, strict=True)
        }
        return lambda: "{" + ", ".join(f"{keys[name]!r}: {value()}" for name, _, value in fields) + "}"

    def model(self, depth: int, base: str = "BaseModel") -> tuple[str, Value]:
        """A model, which may contain itself."""
        name, fields = self.name("M"), self._fields(depth)
        lines = [self._field_line(*one) for one in fields]
        last = self.random.random()
        if last < 0.15:
            lines.append(
                f"    own: {self.random.choice(['Optional[{}] = None', 'list[{}] = []', 'dict[str, {}] = {{}}']).format(repr(name))}"
            )
        elif last < 0.2:
            lines.append("    @pydantic.model_validator(mode='after')\n    def check(self):\n        return self")
        elif last < 0.25:
            lines += ["    @pydantic.field_validator('a')", "    @classmethod", "    def check(cls, v):"]
            lines += ["        if v in ('a', 1, 'ab'):", "            raise ValueError('no')", "        return v"]
        config = self._config()
        self.lines += [f"class {name}({base}):", *([f"    model_config = ConfigDict({config})"] if config else []), *lines]
        return name, self._dict_of(fields, lines[: len(fields)])

    def other_class(self, depth: int) -> tuple[str, Value]:
        """A dataclass, TypedDict or NamedTuple."""
        name, fields = self.name("C"), self._fields(depth)
        kind = self.random.choice(["dataclass", "pydantic.dataclasses.dataclass", "TypedDict", "TypedDict, total=False", "NamedTuple"])
        if "dataclass" in kind:
            config = f"(config=ConfigDict({self._config()}))" if kind.startswith("pydantic") else ""
            lines = [f"    {name}: {source}" for name, source, _ in fields]
            self.lines += [f"@{kind}{config}", f"class {name}:", *lines]
            if self.random.random() < 0.2:
                self.lines.append("    last: int = 0")
        else:
            lines = [f"    {name}: {source}" for name, source, _ in fields]
            if kind == "TypedDict" and self.random.random() < 0.4:
                self.lines += [f"class {name}({kind}):", *(f"    {one}: NotRequired[{source}]" for one, source, _ in fields)]
            else:
                self.lines += [f"class {name}({kind}):", *lines]
            if kind == "TypedDict" and self.random.random() < 0.3:
                self.lines.append(f"    __pydantic_config__ = ConfigDict({self._config()})")
            if kind == "NamedTuple":
                if self.random.random() < 0.3:
                    self.lines.append("    last: int = 0")
                return name, lambda: "[" + ", ".join(value() for _, _, value in fields) + "]"
        return name, self._dict_of(fields, lines)

    def tagged(self, depth: int) -> tuple[str, Value]:
        """A union of models with a discriminator."""
        names, values = [], []
        for tag in ("'x'", "'y'", "3")[: self.random.randint(2, 3)]:
            name, fields = self.name("T"), self._fields(depth, "ab")
            kind = self.random.choice(["kind: Literal[{}]", "kind: Literal[{}] = {}"]).format(tag, tag)
            self.lines += [f"class {name}(BaseModel):", f"    {kind}", *(f"    {one}: {source}" for one, source, _ in fields)]
            names.append(name)
            values.append((tag, fields))

        def value() -> str:
            tag, fields = self.random.choice(values)
            return f"{{'kind': {tag}, {', '.join(f'{name!r}: {value()}' for name, _, value in fields)}}}"

        if self.random.random() < 0.2:
            tagged = ", ".join(f"Annotated[{name}, Tag({tag!r})]" for name, (tag, _) in zip(names, values, strict=True))
            function = "lambda v: repr(v.get('kind') if isinstance(v, dict) else getattr(v, 'kind', None))"
            return f"Annotated[Union[{tagged}], Discriminator({function})]", value
        return f"Annotated[Union[{', '.join(names)}], Field(discriminator='kind')]", value

    def generic(self, depth: int) -> tuple[str, Value]:
        """A generic model with an argument."""
        name, (source, value) = self.name("G"), self.draw(depth - 1)
        variable = self.name("V")
        self.lines += [f"{variable} = TypeVar('{variable}')", f"class {name}(BaseModel, Generic[{variable}]):", f"    v: {variable}"]
        self.lines.append(f"    more: list[{variable}] = []")
        return f"{name}[{source}]", lambda: f"{{'v': {value()}, 'more': [{value()}]}}"

    def root(self, depth: int) -> tuple[str, Value]:
        """A root model."""
        name, (source, value) = self.name("R"), self.draw(depth - 1)
        self.lines += [
            f"class {name}(RootModel[{source}]):",
            f"    {self.random.choice(['pass', 'model_config = ConfigDict(frozen=True)'])}",
        ]
        return name, value

    def validated(self, depth: int) -> tuple[str, Value]:
        """A type with a function of Python."""
        source, value = self.draw(depth - 1)
        forms = ["AfterValidator(lambda v: v)", "BeforeValidator(lambda v: v)", "WrapValidator(lambda v, h: h(v))", "Field(title='t')"]
        form = self.random.choice(forms)
        return f"Annotated[{source}, {form}]", value

    def alias(self, depth: int) -> tuple[str, Value]:
        """A named alias, which may be recursive, or a NewType."""
        source, value = self.draw(depth - 1)
        name = self.name("A")
        if self.random.random() < 0.3:
            self.lines.append(f"{name} = NewType('{name}', {source})")
        elif self.random.random() < 0.5:
            self.lines.append(f"{name} = TypeAliasType('{name}', {source})")
        else:
            self.lines.append(
                f"{name} = TypeAliasType('{name}', 'Union[list[{name}], dict[str, {name}], {source}]')".replace("'Union", '"Union').replace(
                    "]')", ']")'
                )
            )
        return name, value


def draw(random: Random) -> tuple[str, list[str]]:
    """The source of a module whose `T` is a type, and sources of values."""
    made = TypeSource(random)
    source, value = made.draw(random.randint(1, 3))
    return "\n".join([*made.lines, f"T = {source}"]), [value() for _ in range(4)]


class Counts:
    """How many types were compiled, refused and tried."""

    def __init__(self) -> None:
        self.types = self.refused = self.unknown = self.texts = self.values = 0

    def __str__(self) -> str:
        return f"{self.types} types, {self.refused} refused, {self.unknown} unknown to pydantic, {self.texts} texts, {self.values} values"


def faults(random: Random, counts: Counts) -> Iterator[str]:
    """Yield what is wrong with a random type."""
    source, values = draw(random)
    yield from _faults(source, values, random, counts)


def faults_of(source: str, values: list[str], seed: int) -> Iterator[str]:
    """Yield what is wrong with the type `T` of a module."""
    yield from _faults(source, values, Random(seed), Counts())


def _faults(source: str, values: list[str], random: Random, counts: Counts) -> Iterator[str]:
    counts.types += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = [f"{fault}\n{source}" for fault in _judged(source, values, random, counts)]
        except Exception:
            found = [f"{traceback.format_exc()}\n{source}"]
    yield from found


def _judged(source: str, values: list[str], random: Random, counts: Counts) -> Iterator[str]:
    module = sys.modules[MODULE] = ModuleType(MODULE)
    module.__dict__.update(_NAMES)
    adapter: TypeAdapter[Any] | None = None
    try:
        exec(compile(source, MODULE, "exec", dont_inherit=True), module.__dict__)
        annotation = module.T
        adapter = TypeAdapter(annotation)
    except Exception:
        counts.unknown += 1
        if "annotation" not in locals():
            return
    try:
        expression = json_schema(annotation)
    except EmptyLanguage:
        expression = None
    except FSMError as error:
        counts.refused += 1
        if str(error).strip():
            return
    except Exception as error:
        yield f"{type(error).__name__} is no error of ours: {error}"
        return
    if adapter is None:
        if expression is not None:
            yield "pydantic makes nothing of it, but it compiles"
        return
    texts = [] if expression is None else [random_text(expression.node, random, steps) for steps in (random.randint(0, 6), 10, 40)]
    finished = [text for text in texts if expression.accepts(text)] if expression is not None else []
    for text in values:
        try:
            value = eval(text, module.__dict__)  # noqa: S307
            dumped = adapter.dump_json(adapter.validate_python(value), by_alias=True, warnings="error")
            is_kept = adapter.dump_json(adapter.validate_json(dumped), by_alias=True) == dumped  # nothing was omitted
        except Exception:
            is_kept = False
        if not is_kept:
            continue
        counts.values += 1
        # Members are in the order of the schema; so are the keys of a dict where there are few.
        if expression is None or not (expression.accepts(dumped) or json_schema(annotation, key_order="any").accepts(dumped)):
            if _is_strict(adapter, dumped) and not _NARROWED.search(dumped) and not _is_of_another(expression, source, dumped):
                yield f"what pydantic writes is refused: {dumped!r}"
                break
            continue
        finished.append(dumped)
    for text in finished[:]:
        finished += [changed] if expression is not None and expression.accepts(changed := _changed(text, random)) else []
    for text in finished:
        counts.texts += 1
        try:
            adapter.validate_json(text)
        except TypeError:  # such as those of pydantic 2.10 for a Fraction in a union
            continue
        except Exception as error:
            yield f"what we write is refused: {text!r}: {str(error).splitlines()[:3]}"
            break


_NARROWED = re.compile(
    rb'"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?|\d{4}-\d\d-\d\d \S+'
    rb"|[\d:.]{5,15}(?:Z|[+-]\d\d:\d\d)|(?:-?\d+ days?, )?\d+:\d\d:\d\d(?:\.\d+)?)\""
    rb'|"-?\d+/\d{41}|"-?\d{41}|"(?:True|False)"'
)
"""Texts that a union writes of another type's value, and that we do not write: datetimes without an offset or a `T`, times with one,
durations as Python prints them, fractions with more than 40 digits, as those of some floats have, and booleans as Python prints them, which
are keys beside one that is written by `str`. `docs/json_text.md` says so."""

_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?\d+)(?![\d.e])')


def _is_of_another(expression: Expression | None, source: str, text: bytes) -> bool:
    """Whether a union of integers wrote a Fraction or Decimal beside it as a whole number, where its own text is a string."""
    if expression is None or "Union[" not in source or not re.search("Fraction|Decimal", source):
        return False
    places = [found.span(1) for found in _NUMBER.finditer(text) if found[1]]
    for chosen in product((False, True), repeat=min(len(places), 6)):
        changed = text
        for is_quoted, (start, end) in reversed([*zip(chosen, places, strict=False)]):
            changed = changed[:start] + b'"%s"' % changed[start:end] + changed[end:] if is_quoted else changed
        if expression.accepts(changed):
            return True
    return False


def _is_strict(adapter: TypeAdapter[Any], text: bytes) -> bool:
    """Whether a text is no other type's, such as a number as the text that a URL beside it in a union has."""
    try:
        adapter.validate_json(text, strict=True)
    except pydantic.ValidationError:
        return False
    return True


def _changed(text: bytes, random: Random) -> bytes:
    """A text with something put in, taken out or repeated."""
    at, to = sorted(random.choices(range(len(text) + 1), k=2))
    put = random.choice([b"", b"0", b"a", b"A", b" ", b"-", b".", b"e5", b"null", text[at:to], b'"', b"1"])
    return text[:at] + put + text[at if random.random() < 0.5 else min(to, at + 2) :]


def run(seed: int, seconds: float, counts: Counts, *, count: int | None = None, progress: float = 0) -> Iterator[str]:
    """Yield findings of random types until the time or the count is up; a seed repeats each."""
    started = said = monotonic()
    while monotonic() - started < seconds and (count is None or counts.types < count):
        for fault in faults(Random(seed), counts):
            yield f"seed {seed}: {fault}"
        seed += 1
        if progress and monotonic() - said > progress:
            said = monotonic()
            print(f"{counts}", flush=True)
