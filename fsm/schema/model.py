"""`schema_of_type`: a JSON schema of a Python type or function, and checks, such that pydantic accepts each value that satisfies both. A
subclass of pydantic's schema generator narrows what it makes too wide (formats, patterns, extra members); what only Python code can decide
(validators, bounds of dates) is a check, called on the complete value. Types that neither can express are refused; schemas from
`__get_pydantic_json_schema__` and `json_schema_extra` are used as given.

The type is any that pydantic understands: models, dataclasses, TypedDict, Enum, Literal, unions, `list[int]`, `dict[str, int]`, ... A
value is accepted by `TypeAdapter(type).validate_json` (for a model: `Model.model_validate_json`). Differences from `model_json_schema()`:

- objects are closed, unless the model has extra="allow";
- `date`, `datetime`, `time`, `UUID`, IP addresses as pydantic reads them; a `datetime` has an offset unless it is a `NaiveDatetime`;
- a `Decimal` is a string, spelled as pydantic writes it in JSON (see `number_range.py`); pydantic also reads JSON numbers, but would round
  them to doubles and lose their zeros, so they are not generated;
- a `Flag` is also a combination of its members;
- URLs are those that pydantic reads, with one host and in the spelling that `formats.py` describes;
- a `pattern` is narrowed to what the regex engine of pydantic matches, too, whose `\\d`, `\\w`, `\\s` include all of Unicode;
- the tag of a tagged union is required, as pydantic requires it;
- *checked* are validator functions, `__post_init__`, `model_post_init`, bounds of dates, stripping or changing the case of strings that
  have bounds. The automaton allows the type without it; the code cannot change the text;
- a `timedelta` is an ISO 8601 duration of years, days and times; a set is a list without equal items; the keys of a dict may be texts,
  numbers, booleans, and types that JSON writes as strings;
- a function is the object of its arguments.

Refused are complex numbers, classes as values, members of a plain `Enum` in a `Literal`, keys that pydantic reads from no string, and the
rest of the table at the end of this file. A check calls pydantic on one finished part, or on the whole value where the part refers to
definitions elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from enum import Enum, Flag
from functools import partialmethod, reduce
from inspect import Parameter, signature
from operator import or_
from types import FunctionType
from typing import Any, ClassVar, get_type_hints
from zoneinfo import available_timezones

from pydantic import BaseModel, ConfigDict, TypeAdapter, create_model
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUndefinedAnnotation, PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, WithJsonSchema
from pydantic_core import PydanticSerializationError, SchemaValidator, ValidationError
from pydantic_core import SchemaError as CoreSchemaError

from fsm.errors import NotRegular, SchemaError, shorten
from fsm.limits import DEFAULT_LIMITS
from fsm.schema.keywords.formats import MAX_URL_BYTES, STRING_FORMATS, url
from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.keywords.place import NUMBER_FORMATS, Place, to_decimal
from fsm.schema.keywords.value import TEXT, VALIDATOR, TextLanguage
from fsm.schema.scalars.number import number_node
from fsm.schema.scalars.number_range import Bound, decimal_text, higher, lower
from fsm.schema.spelling import DECIMAL, URL
from fsm.schema.value_check import TypeCheck
from fsm.terms.node import Check, Node

_ESCAPE = (
    "Say what its JSON is: `Annotated[T, WithJsonSchema({...})]`; or pass a JSON schema instead of the type, and validate the result "
    "yourself"
)
_KEYS_ADVICE = (
    "Use `dict[str, ...]`, or a type of keys that JSON writes as a string, such as `int`, `date` or a `str, Enum`"
)
_NO_SCHEMA = (
    PydanticUserError,
    PydanticInvalidForJsonSchema,
    PydanticUndefinedAnnotation,
    PydanticSerializationError,
    CoreSchemaError,
)
_MAX_EXACT = 2**53
_MAX_FLAG_BITS = 8  # of a Flag whose combinations are listed
_STR_OF_CONFIG = ("min_length", "max_length", "strip_whitespace", "to_lower", "to_upper")
_NO_FUNCTION = {"type": "any"}
_RESTRICTIONS = frozenset({"strict", "val_json_bytes", "allow_inf_nan"})
_HASHED = frozenset(
    [
        "float",
        "decimal",
        "date",
        "datetime",
        "time",
        "timedelta",
        "uuid",
        "url",
        "multi-host-url",
        "bytes",
        "literal",
        "enum",
    ]
)  # the types of items that always have a hash; items of different texts may be equal, which counts for two or more
_COMMON_KEYS = {"type", "ref", "metadata", "serialization", "strict"}
_SCALARS = (str, int, float, bool, type(None))
_LOOSE_FORMATS = frozenset({"path", "file-path", "directory-path", "binary", "password"})  # any string is valid
_URL_KEYS = "max_length allowed_schemes host_required preserve_empty_path cls default_host default_port default_path"
_KNOWN_VALIDATORS = frozenset({"path_validator", "EmailStr._validate"})  # they need no check besides `format`
_OURS = {
    "email": "x-mailbox",
    "time": "x-clock",
    "base64": "byte",
    "base64url": "x-base64url",
    "ipv4interface": "x-ipv4-interface",
    "ipv6interface": "x-ipv6-interface",
    "ipv4network": "x-ipv4-network",
    "ipv6network": "x-ipv6-network",
    "fraction": "x-fraction",
}
_EITHER = {
    "ipvanyaddress": ("ipv4", "ipv6"),
    "ipvanyinterface": ("x-ipv4-interface", "x-ipv6-interface"),
    "ipvanynetwork": ("x-ipv4-network", "x-ipv6-network"),
}

# What `\d`, `\s`, `\w` may match in the regex engines of pydantic (Rust's and Python's) in addition to ECMA's; characters that are
# unassigned in our Unicode (Cn) may have any class there.
_WIDER = {"d": r"\p{Nd}\p{Cn}", "s": r"\s\x85\x1c-\x1f", "w": r"\w\p{L}\p{M}\p{N}\p{Pc}\p{So}\p{Cn}\u200c\u200d"}

_EDGES = {
    r"\b": rf"(?:(?<=\w)(?![{_WIDER['w']}])|(?<![{_WIDER['w']}])(?=\w))",
    r"\B": rf"(?:(?<=\w)(?=\w)|(?<![{_WIDER['w']}])(?![{_WIDER['w']}]))",
}


def schema_of_type(annotation: Any) -> tuple[dict[str, Any], dict[str, Check]]:
    """Return a schema whose values pydantic accepts as `annotation`, and the checks that it names.

    Raises:
        SchemaError: pydantic does not support the type, or no schema describes exactly what it accepts.
    """
    if isinstance(annotation, FunctionType):
        annotation = arguments_of(annotation)
    if isinstance(annotation, BaseModel) or (is_dataclass(annotation) and not isinstance(annotation, type)):
        kind = type(annotation).__name__
        raise SchemaError(
            f"expected a type, received a value of the class {kind}: {shorten(annotation)}. Pass the class, `{kind}`"
        )
    generator: type[_Generator] = type("_Generator", (_Generator,), {"checks": {}, "unsure": [], "_definitions": {}})
    adapter = _adapter_of(annotation)
    try:
        schema = adapter.json_schema(schema_generator=generator, mode="validation")
    except (*_NO_SCHEMA, ImportError) as error:
        raise _without_schema(annotation, error) from error
    checks = generator.checks
    if generator.unsure:
        definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        schema = definitions | {"allOf": [schema], VALIDATOR: "whole"}
        checks["whole"] = TypeCheck(", ".join(dict.fromkeys(generator.unsure)), _hashing(adapter.validate_json))
    for part in KEYWORDS.schemas_inside(schema):
        if part.get("type") == "string" and isinstance(name := part.get("format"), str):
            _replace_format(part, name)
    return schema, checks


def _adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """What pydantic makes of a type; it raises other errors than its own for constraints that do not fit, and missing packages."""
    try:
        return TypeAdapter(annotation)
    except (*_NO_SCHEMA, ImportError, TypeError, RuntimeError, NameError, AttributeError) as error:
        raise _without_schema(annotation, error) from error


def _without_schema(annotation: Any, error: Exception) -> SchemaError:
    said = str(error).partition("\n")[0].removesuffix(".")
    advice = "" if isinstance(error, ImportError) else f" {_ESCAPE}"
    return SchemaError(f"pydantic makes no JSON schema of {shorten(annotation)}: {said}.{advice}")


def arguments_of(function: FunctionType) -> type[BaseModel]:
    """A model whose fields are the arguments of a function, with their annotations and defaults.

    Raises:
        SchemaError: the function takes any number of arguments, or an argument has no annotation.
    """
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) or name not in hints:
            raise SchemaError(
                f"expected an argument with a name and an annotation, received {str(parameter)!r} of {function.__name__}. "
                "Annotate each argument, and write no `*args` or `**kwargs`"
            )
        fields[name] = (hints[name], ... if parameter.default is Parameter.empty else parameter.default)
    model: type[BaseModel] = create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields)
    return model


def _replace_format(part: dict[str, Any], name: str) -> None:
    """Replace a format, in place, by that of what pydantic reads."""
    if name in _LOOSE_FORMATS or (name.startswith("uuid") and "pattern" in part):
        del part["format"]
    elif name in _OURS:
        part["format"] = _OURS[name]
    elif name in _EITHER:
        del part["format"]
        part["anyOf"] = [{"format": one} for one in _EITHER[name]]
    elif name == "zoneinfo" and (names := available_timezones()):
        del part["format"]
        part["enum"] = sorted(names)
    elif name not in STRING_FORMATS and name not in NUMBER_FORMATS:
        raise _refuse(f"a type with the format {name!r}")


def _refuse(what: str, advice: str = _ESCAPE) -> SchemaError:
    return SchemaError(f"{what} is not supported yet, since a schema cannot promise that it passes. {advice}")


def _refuse_keys(what: str) -> SchemaError:
    return _refuse(
        f"a dict with keys of type {what}" if " " in what else f"a dict with keys of type `{what}`", _KEYS_ADVICE
    )


def _has_own_schema(schema: Any) -> bool:
    """Whether somebody else than pydantic says what the JSON schema is."""
    functions = schema.get("metadata", {}).get("pydantic_js_annotation_functions", ())
    owners = (type(getattr(function, "__self__", function)) for function in functions)
    return any(owner is WithJsonSchema or not owner.__module__.startswith("pydantic.") for owner in owners)


def _numbers(schema: dict[str, Any], types: frozenset[str]) -> Node:
    """The numbers of a schema."""
    try:
        return number_node((Place(schema, ""),), types, limits=DEFAULT_LIMITS)
    except NotRegular as error:
        raise _refuse_keys("number with this `multiple_of`") from error


def _without_checks(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A schema of keys without the code that checks it, and whether there was none: only the whole dict is checked."""
    if VALIDATOR in schema:
        return _without_checks(schema["allOf"][0])[0], False
    if "anyOf" not in schema:
        return schema, True
    parts = [_without_checks(part) for part in schema["anyOf"]]
    return schema | {"anyOf": [part for part, _ in parts]}, all(is_exact for _, is_exact in parts)


def _is_text(schema: dict[str, Any]) -> bool:
    """Whether all values of a schema are strings."""
    return schema.get("type") == "string" or ("anyOf" in schema and all(map(_is_text, schema["anyOf"])))


def _combinations(flags: Iterable[Flag]) -> list[int] | None:
    """The numbers whose bits are bits of some flags, zero among them, ascending; None if they are many."""
    bits = reduce(or_, (flag.value for flag in flags), 0)
    if bits < 0 or bits.bit_count() > _MAX_FLAG_BITS:
        return None
    found = [0]
    for bit in range(bits.bit_length()):
        found += [one | 1 << bit for one in found] if bits >> bit & 1 else []
    return found


def _check_keys(schema: Any, *allowed: str) -> None:
    for key in schema:
        if key not in _COMMON_KEYS and key not in allowed:
            raise _refuse(f"`{key}` of a `{schema['type']}`")


def for_both_engines(pattern: str) -> str:
    r"""Narrow a pattern, so that each text that matches by ECMA-262 also matches in the regex engines of pydantic.

    This changes only negated sets (`\D`, `\S`, `\W`, and shorthands inside `[^...]`), and `\b` and `\B`, which look at letters of all
    alphabets there.

    Raises:
        SchemaError: the pattern has a shorthand that cannot be narrowed, or a set operation of Rust.
    """
    out: list[str] = []
    in_class = is_negated = False
    for token in re.findall(r"\\.|\[\^?|&&|--|~~|.", pattern, re.DOTALL):
        if token[0] == "[":
            if in_class:
                raise _refuse(f"a set inside a set, in pattern {pattern!r},", "Write '\\[' for a bracket")
            in_class, is_negated = True, token == "[^"
        elif token == "]":
            in_class = False
        elif in_class and token in ("&&", "--", "~~"):
            raise _refuse(f"the set operation {token!r}, in pattern {pattern!r},", "Write the set in another way")
        elif token in (r"\D", r"\S", r"\W") and not (in_class and is_negated):
            if in_class:
                raise _refuse(f"{token!r} inside a set, in pattern {pattern!r},", "Name the characters")
            token = f"[^{_WIDER[token[1].lower()]}]"
        elif token in (r"\d", r"\s", r"\w") and in_class and is_negated:
            token = _WIDER[token[1]]
        elif token in _EDGES and not in_class:
            token = _EDGES[token]
        out.append(token)
    return "".join(out)


def _hashing(validate: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """A function that refuses an item of a set without a hash, for which old versions of pydantic raise `TypeError`."""

    def read(data: bytes) -> Any:
        try:
            return validate(data)
        except TypeError as error:
            if not str(error).startswith("unhashable type"):
                raise
            raise ValueError(str(error)) from error

    return read


def _has_config_around(schema: Any) -> bool:
    """Whether a type is read by the configuration of the class around it: any but enums, models and classes with one of their own."""
    cls = schema.get("cls")
    has_own = "__pydantic_config__" in getattr(cls, "__dict__", {}) or is_pydantic_dataclass(cls)
    return schema["type"] not in ("model", "enum") and not has_own


def _configurations(schema: Any, definitions: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """For each named type, the different configurations of the classes around it that restrict which scalars are read.

    Args:
        schema: the core schema that refers to the types.
        definitions: the core schema of each type, by its name.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in definitions}
    stack = list[tuple[Any, dict[str, Any]]]([(schema, {})])
    while stack:
        part, config = stack.pop()
        if isinstance(part, list | tuple):
            stack += ((item, config) for item in part)
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if "cls" in part and not _has_config_around(part):
            said = part.get("config") or {}
            config = {
                key: value for key, value in said.items() if value and (key in _RESTRICTIONS or key.startswith("str_"))
            }
        if kind == "definition-ref" and config not in found[name := part["schema_ref"]]:
            found[name].append(config)
            stack.append((definitions[name], config))
        stack += ((value, config) for key, value in part.items() if key != "metadata")
    return found


class _Generator(GenerateJsonSchema):
    """pydantic's generator of JSON schemas, stricter; `checks` and the like are collected in a subclass for each type."""

    checks: ClassVar[dict[str, Check]]
    unsure: ClassVar[list[str]]
    _definitions: ClassVar[dict[str, Any]]
    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012, as in the base class

    def _checked(self, schema: Any, name: str, found: dict[str, Any]) -> dict[str, Any]:
        """A schema whose values are also validated by the code of a type."""
        try:
            validator = SchemaValidator(schema, self._config.core_config(None))
        except CoreSchemaError:  # it refers to definitions elsewhere: the whole type validates instead
            self.unsure.append(name)
            return found
        key = f"{len(self.checks)}"
        self.checks[key] = TypeCheck(name, _hashing(validator.validate_json))
        return {"allOf": [found], VALIDATOR: key}

    def _closed(self, schema: dict[str, Any]) -> dict[str, Any]:
        return {"additionalProperties": False} | schema if schema.get("type") == "object" else schema

    def _class_schema(self, schema: Any, found: dict[str, Any], config: Any) -> dict[str, Any]:
        """A class with fields: closed, and checked where its code runs after them or changes their strings."""
        is_changed = any(config.get(key) for key in ("str_strip_whitespace", "str_to_lower", "str_to_upper"))
        found, name = self._closed(found), schema["cls"].__name__
        return self._checked(schema, name, found) if schema.get("post_init") or is_changed else found

    def model_schema(self, schema: Any) -> dict[str, Any]:
        """A model: closed unless it allows extra fields."""
        if schema.get("custom_init"):
            raise _refuse(f"`__init__` of {schema['cls'].__name__}")
        if schema["cls"].model_config.get("validate_by_alias") is False:
            raise _refuse("validate_by_alias=False")
        return self._class_schema(schema, super().model_schema(schema), schema["cls"].model_config)

    def dataclass_schema(self, schema: Any) -> dict[str, Any]:
        """A dataclass: closed."""
        config: Any = getattr(schema["cls"], "__pydantic_config__", None) or {}
        if _has_config_around(schema):
            return self._class_schema(schema, super().dataclass_schema(schema), config)
        with self._config_wrapper_stack.push(config):
            return self._class_schema(schema, super().dataclass_schema(schema), config)

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        """A TypedDict: closed."""
        return self._closed(super().typed_dict_schema(schema))

    def str_schema(self, schema: Any) -> dict[str, Any]:
        """A string whose bounds apply to the text itself; those of the configuration, too."""
        config: Mapping[str, Any] = {**self._config.config_dict}
        of_config = {key: value for key in _STR_OF_CONFIG if (value := config.get(f"str_{key}"))}
        schema = of_config | schema
        bounded = any(schema.get(key) for key in ("min_length", "max_length", "pattern"))
        is_changed = bounded and any(schema.get(key) for key in ("strip_whitespace", "to_lower", "to_upper"))
        pattern = schema.get("pattern")
        if isinstance(pattern, re.Pattern) and pattern.flags != re.UNICODE:
            raise _refuse("a pattern with flags", "Write it without flags")
        found = super().str_schema(schema)
        if "pattern" in found:
            found["pattern"] = for_both_engines(found["pattern"])
        return self._checked(schema, "a string that is changed first", found) if is_changed else found

    def float_schema(self, schema: Any) -> dict[str, Any]:
        """A float; whole multiples are those below 2^53, as pydantic divides the double that is read."""
        found = super().float_schema(schema)
        if schema.get("multiple_of"):
            found = {"allOf": [found, {"minimum": -_MAX_EXACT, "maximum": _MAX_EXACT}]}
        return found

    def enum_schema(self, schema: Any) -> dict[str, Any]:
        """An Enum of scalars."""
        if not all(isinstance(member.value, _SCALARS) for member in schema["members"]):
            raise _refuse(f"{schema['cls'].__name__}, whose values are not all JSON scalars,")
        found = super().enum_schema(schema)
        return self._flag_schema(schema, found) if issubclass(schema["cls"], Flag) else found

    def _flag_schema(self, schema: Any, found: dict[str, Any]) -> dict[str, Any]:
        """Members of a Flag and their combinations, zero among them: listed, or checked where they are many."""
        flags = _combinations(schema["members"])
        found = {key: value for key, value in found.items() if key not in ("enum", "const")}
        if flags is None:
            most = reduce(or_, (abs(member.value) for member in schema["members"]))
            return self._checked(schema, "the flags of an Enum", found | {"minimum": 0, "maximum": most})
        return found | {"enum": [flag for flag in flags if self._reads(schema, json.dumps(flag))]}

    def literal_schema(self, schema: Any) -> dict[str, Any]:
        """Literals that pydantic reads from JSON."""
        for value in schema["expected"]:
            scalar = value.value if isinstance(value, Enum) else value
            if not isinstance(scalar, _SCALARS):
                raise _refuse(f"{value!r} in a Literal, which is no JSON scalar,", "Leave it out")
            if not self._reads(schema, json.dumps(scalar)):
                kind = type(value).__name__
                advice = f"Make {kind} a `str, Enum`, or write the value in place of the member"
                raise SchemaError(f"pydantic reads the member {value} of a Literal from no JSON text. {advice}")
        return super().literal_schema(schema)

    def _reads(self, schema: Any, text: str) -> bool:
        """Whether pydantic reads a JSON text by a core schema."""
        try:
            SchemaValidator(schema, self._config.core_config(None)).validate_json(text)
        except (ValidationError, TypeError):  # the latter of old versions, for a key that has no hash
            return False
        return True

    def _reads_key(self, schema: Any, text: str) -> bool:
        """Whether pydantic reads a key of JSON by a core schema."""
        return self._reads({"type": "dict", "keys_schema": schema}, json.dumps({text: None}))

    def definitions_schema(self, schema: Any) -> dict[str, Any]:
        """A schema with definitions, which keys of dicts may refer to."""
        definitions = schema["definitions"]
        self._definitions.update({one["ref"]: one for one in definitions})
        named = [one["ref"] for one in definitions if _has_config_around(one)]
        configs = _configurations(schema["schema"], {one["ref"]: one for one in definitions}) if named else {}
        if not any(any(configs[name]) for name in named):
            return super().definitions_schema(schema)
        # pydantic reads a named type by the configuration of the class around it; the definition here is one for all, and the widest.
        self.unsure.append("the configuration of a class, of a named type")
        for one in definitions:
            around = configs[one["ref"]] if one["ref"] in named else []
            config: Any = around[0] if len(around) == 1 else {}
            with self._config_wrapper_stack.push(config):
                super().definitions_schema(schema | {"definitions": [one], "schema": _NO_FUNCTION})
        found: dict[str, Any] = self.generate_inner(schema["schema"])
        return found

    def dict_schema(self, schema: Any) -> dict[str, Any]:
        """A dict; its keys are what pydantic reads from strings."""
        keys = schema.get("keys_schema", {"type": "any"})
        names, is_exact = self._names(keys)
        least, most = schema.get("min_length"), schema.get("max_length")
        found: dict[str, Any] = {"type": "object", "propertyNames": names}
        if "values_schema" in schema:
            found["additionalProperties"] = self.generate_inner(schema["values_schema"])
        found |= {"minProperties": least} if least else {}
        found |= {} if most is None else {"maxProperties": most}
        # Keys of different texts may be equal.
        is_exact = is_exact and ((least or 0) < 2 or keys["type"] in ("str", "int", "literal", "enum", "any"))
        return found if is_exact else self._checked(schema, "the keys of a dict", found)

    ordered_dict_schema = frozendict_schema = dict_schema

    def counter_schema(self, schema: Any) -> dict[str, Any]:
        """A Counter: a dict of whole numbers."""
        return self.dict_schema({"values_schema": {"type": "int"}} | schema)

    def _names(self, schema: Any) -> tuple[dict[str, Any], bool]:
        """The keys that pydantic reads as a type, as a schema of strings; and whether it has all of the conditions."""
        kind = schema["type"]
        if kind == "definition-ref":
            return self._names(self._definitions[schema["schema_ref"]])
        if kind in ("nullable", "default"):  # JSON has no key that is null
            return self._names(schema["schema"])
        if kind in ("function-after", "function-before", "function-wrap"):
            return self._names(schema["schema"])[0], False
        if kind in ("union", "tagged-union"):
            choices = schema["choices"].values() if kind == "tagged-union" else schema["choices"]
            return self._any_name([one[0] if isinstance(one, tuple) else one for one in choices])
        if kind in ("int", "float"):
            if not self._reads_key({key: schema[key] for key in ("type", "strict") if key in schema}, "1"):
                raise _refuse_keys(f"{kind}, from which pydantic reads no key of JSON in strict mode,")
            inner = getattr(GenerateJsonSchema, f"{kind}_schema")(self, schema)
            types = frozenset({"integer"} if kind == "int" else {"integer", "number"})
            return {"type": "string", TEXT: TextLanguage(_numbers(inner, types), None)}, True
        if kind in ("bool", "literal", "enum"):
            values: list[Any] = (
                [True, False] if kind == "bool" else schema["expected" if kind == "literal" else "members"]
            )
            scalars = [value.value if isinstance(value, Enum) else value for value in values]
            if kind == "enum" and issubclass(schema["cls"], Flag):
                scalars = _combinations(values) or scalars
            texts = [one if isinstance(one, str) else json.dumps(one) for one in scalars if isinstance(one, _SCALARS)]
            texts = [text for text in texts if self._reads_key(schema, text)]
            if not texts:
                raise _refuse_keys(f"{kind}, from which pydantic reads no key of JSON,")
            return {"type": "string", "enum": texts}, True
        if kind == "json-or-python" and schema["json_schema"]["type"] == "any":
            return {}, True
        inner = self.generate_inner({key: value for key, value in schema.items() if key != "ref"})
        names, is_exact = _without_checks(inner)
        if kind != "any" and not _is_text(names):
            raise _refuse_keys(kind)
        if "url" in kind and not self._reads_key(schema, f"{(schema.get('allowed_schemes') or ['http'])[0]}://a.b/"):
            raise _refuse_keys(f"{kind} in this version of pydantic")
        return names, is_exact

    def _any_name(self, choices: list[Any]) -> tuple[dict[str, Any], bool]:
        """The keys that pydantic reads as one of several types; those of which there are none are left out."""
        found, refused = [], None
        for choice in choices:
            try:
                found.append(self._names(choice))
            except SchemaError as error:
                refused = error
        if refused is not None and not found:
            raise refused
        return {"anyOf": [{"type": "string", **names} for names, _ in found]}, all(is_exact for _, is_exact in found)

    def _items_once(self, schema: Any) -> dict[str, Any]:
        """A set; pydantic's items are hashed, and some that are different in JSON are equal."""
        found: dict[str, Any] = getattr(GenerateJsonSchema, f"{schema['type']}_schema")(self, schema)
        kind = schema.get("items_schema", {"type": "any"})["type"]
        is_plain = kind in ("str", "int", "bool") or (kind in _HASHED and (schema.get("min_length") or 0) < 2)
        return found if is_plain else self._checked(schema, "the items of a set", found)

    set_schema = frozenset_schema = _items_once

    def lax_or_strict_schema(self, schema: Any) -> dict[str, Any]:
        """The schema of the mode that the type, or its configuration, has."""
        is_strict = schema.get("strict", self._config.config_dict.get("strict", False))
        found: dict[str, Any] = self.generate_inner(schema["strict_schema" if is_strict else "lax_schema"])
        return found

    def chain_schema(self, schema: Any) -> dict[str, Any]:
        """Several steps: the first reads the JSON, the others are checked."""
        first, *more = schema["steps"]
        found = self.generate_inner(first)
        return self._checked(schema, "a chain of validators", found) if more else found

    def custom_error_schema(self, schema: Any) -> dict[str, Any]:
        """A schema with a message of its own."""
        found: dict[str, Any] = self.generate_inner(schema["schema"])
        return found

    def call_schema(self, schema: Any) -> dict[str, Any]:
        """A named tuple (before pydantic 2.14)."""
        function = schema["function"]
        if not (isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields")):
            raise _refuse("a call")
        found: dict[str, Any] = super().arguments_schema(schema["arguments_schema"])
        return found

    def fraction_schema(self, schema: Any) -> dict[str, Any]:
        """A string, as pydantic writes a Fraction; bounds are checked."""
        return self._bounded(schema, {"type": "string", "format": "fraction"})

    def generate_inner(self, schema: Any) -> Any:
        """Any schema; some functions of pydantic decide more than its JSON schema says, unless the type says what its JSON is."""
        if "ref" in schema and self._definitions.get(schema["ref"]) is not schema and _has_config_around(schema):
            # Inside of each class a named type has its configuration; by its name, the JSON schema of the first class would be that of all.
            schema = {key: value for key, value in schema.items() if key != "ref"}
        inner = schema
        while inner["type"].startswith("function-"):  # metadata of the outer one has the JSON schemas of all
            given = inner["function"]
            function = given.get("function") if isinstance(given, dict) else None
            name = getattr(function, "__name__", "")
            if name in _FUNCTIONS and function.__module__.startswith("pydantic.") and not _has_own_schema(schema):
                return self._generated(schema, _FUNCTIONS[name])
            inner = inner.get("schema", _NO_FUNCTION)
        found = super().generate_inner(schema)
        text = self._text_inside(schema)
        if text is not None and not _has_own_schema(schema):
            bounds: dict[str, Any] = super().generate_inner(text)
            more = {key: value for key, value in bounds.items() if found.get(key) != value}
            # Not always `allOf`: pydantic adds the format of a path to what this returns.
            return found | more if not found.keys() & more.keys() else {"allOf": [found, bounds]}
        return found

    def _generated(self, schema: Any, make: Callable[[_Generator, Any], dict[str, Any]]) -> Any:
        """What a function makes of a schema; where that has a name, as a definition."""
        if "ref" not in schema:
            return make(self, schema)
        plain = {key: value for key, value in schema.items() if key != "ref"}
        metadata = {"pydantic_js_functions": [lambda _schema, _handler: make(self, plain)]}
        return super().generate_inner({"type": "any", "ref": schema["ref"], "metadata": metadata})

    def _text_inside(self, schema: Any) -> Any:
        """The string or bytes from which a type is made after them, such as a secret; None if that is what its JSON schema says."""
        inner = schema
        while True:
            kind = inner["type"]
            if kind == "lax-or-strict":
                is_strict = inner.get("strict", self._config.config_dict.get("strict", False))
                inner = inner["strict_schema" if is_strict else "lax_schema"]
            elif kind == "json-or-python":
                inner = inner["json_schema"]
            elif kind == "function-after":
                inner = inner["schema"]
            else:
                return inner if kind in ("str", "bytes") and inner is not schema else None

    def _path_schema(self, schema: Any) -> dict[str, Any]:
        """A path that exists, or does not."""
        return self._checked(schema, "the validator of a path", {"type": "string"})

    def _pattern_schema(self, schema: Any) -> dict[str, Any]:
        """A regular expression of Python."""
        return self._checked(schema, "a regular expression of Python", {"type": "string"})

    def _bytes_pattern_schema(self, schema: Any) -> dict[str, Any]:
        raise _refuse("`re.Pattern[bytes]`, which pydantic reads from no JSON text,", "Use `re.Pattern[str]`")

    def _import_schema(self, schema: Any) -> dict[str, Any]:
        advice = "Use a `Literal` of the names, and import what you trust"
        raise _refuse("`ImportString`, which imports whatever module the text names,", advice)

    def timedelta_schema(self, schema: Any) -> dict[str, Any]:
        """A duration of years of 365 days, days and times, as pydantic writes it after ISO 8601."""
        second, minute = r"(?:[0-9]{1,2}(?:\.[0-9]{1,6})?S)", "[0-9]{1,2}M"
        some = f"T(?:[0-9]{{1,2}}H(?:{minute})?{second}?|{minute}{second}?|{second})"
        days = "(?:[0-9]{1,4}Y(?:[0-9]{1,5}D)?|[0-9]{1,5}D)"
        found = {"type": "string", "pattern": f"^-?P(?:{days}(?:{some})?|{some})$"}
        return self._bounded(schema, found)

    def bytes_schema(self, schema: Any) -> dict[str, Any]:
        """Bytes as the text that they encode in UTF-8, or in base64 or hexadecimal digits where the configuration has that."""
        kind = getattr(self._config, "val_json_bytes", "utf8")
        least, most = schema.get("min_length"), schema.get("max_length")
        found: dict[str, Any] = {"type": "string"}
        if kind == "base64":
            found["format"] = "x-base64url"
        elif kind == "hex":
            found["pattern"] = "^(?:[0-9a-f]{2})*$"
        elif least is not None or most is not None:
            found |= {"minLength": -(-(least or 0) // 4)} | ({} if most is None else {"maxLength": most})
        return found if least is most is None else self._checked(schema, "bytes with bounds", found)

    def _bounded(self, schema: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
        """A date, time or duration; bounds are checked."""
        found = getattr(GenerateJsonSchema, f"{schema['type']}_schema")(self, schema) if found is None else found
        is_plain = schema.keys() <= _COMMON_KEYS | {"microseconds_precision", "tz_constraint"}
        return found if is_plain else self._checked(schema, f"a {schema['type']} with bounds", found)

    date_schema = time_schema = _bounded

    def datetime_schema(self, schema: Any) -> dict[str, Any]:
        """A datetime; naive ones have no offset."""
        constraint = schema.get("tz_constraint", "aware")
        if constraint not in ("aware", "naive"):
            raise _refuse("a datetime of one fixed offset")
        found = {"type": "string", "format": "x-local-date-time" if constraint == "naive" else "date-time"}
        return self._bounded(schema, found)

    def uuid_schema(self, schema: Any) -> dict[str, Any]:
        """A UUID, of one version where the type has one."""
        version = schema.get("version")
        if version is None:
            return {"type": "string", "format": "uuid"}
        x = "[0-9a-fA-F]"
        return {"type": "string", "pattern": f"^{x}{{8}}-{x}{{4}}-{version}{x}{{3}}-[89abAB]{x}{{3}}-{x}{{12}}$"}

    def decimal_schema(self, schema: Any) -> dict[str, Any]:
        """A string, as pydantic writes it."""
        _check_keys(schema, "le", "lt", "ge", "gt", "max_digits", "decimal_places", "allow_inf_nan", "multiple_of")
        low = high = None
        for key in ("ge", "gt", "le", "lt"):
            if schema.get(key) is not None:
                bound = Bound(to_decimal(schema[key]), key in ("ge", "le"))
                low, high = (higher(low, bound), high) if key in ("ge", "gt") else (low, lower(high, bound))
        step = schema.get("multiple_of")
        step = None if step is None else abs(to_decimal(step))
        node = decimal_text(low, high, step, schema.get("max_digits"), schema.get("decimal_places"))
        return {"type": "string", TEXT: TextLanguage(node, DECIMAL)}

    def url_schema(self, schema: Any, *, lists_hosts: bool = False) -> dict[str, Any]:
        """A URL, see `formats.py`."""
        _check_keys(schema, *_URL_KEYS.split())
        schemes = schema.get("allowed_schemes")
        is_strict = bool(schema.get("strict", self._config.config_dict.get("strict")))
        language = url(None if schemes is None else tuple(schemes), lists_hosts=lists_hosts, is_strict=is_strict)
        text = TextLanguage(language, URL)
        found: dict[str, Any] = {"type": "string", TEXT: text}
        if (schema.get("max_length") or MAX_URL_BYTES) < MAX_URL_BYTES:
            return self._checked(schema, "a URL with a length of its own", found)
        return found

    multi_host_url_schema = partialmethod(url_schema, lists_hosts=True)

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        """A union with a discriminator field, which is required in every branch."""
        found = super().tagged_union_schema(schema)
        tag = found.get("discriminator", {}).get("propertyName")
        if not isinstance(tag, str):
            return self._checked(schema, "a discriminator", {"anyOf": found["oneOf"]})
        return {"anyOf": [{"allOf": [branch], "required": [tag]} for branch in found["oneOf"]]}

    def nullable_schema(self, schema: Any) -> dict[str, Any]:
        """A value or null."""
        return {"anyOf": [self.generate_inner(schema["schema"]), {"type": "null"}]}

    def _field_schema(self, schema: Any, name: str) -> dict[str, Any]:
        """A field; an alias that is a path is refused."""
        alias = schema.get("validation_alias")
        if isinstance(alias, list):
            choices = alias if all(isinstance(path, list) for path in alias) else [alias]
            if not any(len(path) == 1 and isinstance(path[0], str) for path in choices):
                raise _refuse("an alias that is a path", "Give the field a plain alias")
        return getattr(GenerateJsonSchema, name)(self, schema)  # type: ignore[no-any-return]

    def _validator_schema(self, schema: Any) -> dict[str, Any]:
        """A value that a function validates: checked, except for functions that are known."""
        function = schema.get("function", {}).get("function") if isinstance(schema.get("function"), dict) else None
        name = getattr(function, "__qualname__", "").rpartition("<locals>.")[2]
        if name in _KNOWN_VALIDATORS and getattr(function, "__module__", "").startswith("pydantic."):
            return {"type": "string"}
        inner = self.generate_inner(schema["schema"]) if "schema" in schema else {}
        return self._checked(schema, f"the validator{f' {name!r}' if name else ''}", inner)

    function_after_schema = function_before_schema = _validator_schema
    function_plain_schema = function_wrap_schema = _validator_schema
    model_field_schema = partialmethod(_field_schema, name="model_field_schema")
    dataclass_field_schema = partialmethod(_field_schema, name="dataclass_field_schema")
    typed_dict_field_schema = partialmethod(_field_schema, name="typed_dict_field_schema")

    def _refused_schema(self, schema: Any, kind: str, advice: str) -> dict[str, Any]:
        raise _refuse(kind, advice)


_FUNCTIONS: dict[str, Callable[[_Generator, Any], dict[str, Any]]] = {
    "pattern_either_validator": _Generator._pattern_schema,
    "pattern_str_validator": _Generator._pattern_schema,
    "pattern_bytes_validator": _Generator._bytes_pattern_schema,
    "import_string": _Generator._import_schema,
    "validate_file": _Generator._path_schema,
    "validate_directory": _Generator._path_schema,
    "validate_socket": _Generator._path_schema,
    "validate_new": _Generator._path_schema,
}
"""Functions of pydantic of which its JSON schema says too little."""

_REFUSED = {
    "complex": ("a complex number", "Use a model of two floats"),
    "json": (
        "`Json`, a JSON text inside of a string,",
        "Use the type of what is inside: `list[int]` for `Json[list[int]]`",
    ),
    "is_instance": ("an arbitrary class", _ESCAPE),
    "is_subclass": ("a class as value", "Use a `Literal` of the names of the classes"),
    "callable": ("a callable", "Use a `Literal` of the names of the functions"),
    "arguments": ("a function's arguments", _ESCAPE),
    "arguments_v3": ("a function's arguments", _ESCAPE),
    "missing_sentinel": ("a sentinel", "Use `None`, or give the field a default"),
}
for _name, (_kind, _advice) in _REFUSED.items():
    setattr(_Generator, f"{_name}_schema", partialmethod(_Generator._refused_schema, kind=_kind, advice=_advice))
