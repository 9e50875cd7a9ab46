"""`RecordSchema`: the schema of records: a JSON Schema, a pydantic model or another type that pydantic can describe. `load_schema` reads it
from `FILE.json`, `module:Class` or `FILE.py:Class`; the last two import, and so run, that module.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from functools import partial, reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isroutine
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticUserError

from outlines_cont.pipelines.outcome import SetupError


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A schema of records.

    Attributes:
        schema: the argument of `generate.json`: a JSON Schema, or a Python type.
        json_schema: the JSON Schema as compact text, keys in their order.
        dump: converts a value of a generator to JSON for the output.
    """

    schema: Any
    json_schema: str
    dump: Callable[[Any], Any]

    @classmethod
    def of(cls, schema: Any, source: str | None = None) -> Self:
        """Return the schema of records from a JSON Schema (a dict, a boolean, or JSON text) or a Python type.

        Errors are of the class `SetupError`, and name it by `source`, else by its `repr`.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise SetupError(f"expected a JSON Schema, got a text that is not JSON: {error}") from error
        if isinstance(schema, dict | bool):
            try:
                return cls(schema, _compact(schema), unchanged)
            except (TypeError, ValueError, RecursionError) as error:
                raise SetupError(f"expected a JSON Schema, got a dict that JSON cannot hold: {error}") from error
        shown = repr(schema if source is None else source)
        if isroutine(schema):  # pydantic would describe the arguments of a function, and call it
            raise SetupError(f"expected a pydantic model or another type as {shown}, got the function {schema!r}")
        if not isinstance(schema, type) and (isinstance(schema, BaseModel) or is_dataclass(schema)):
            name = type(schema).__name__
            raise SetupError(
                f"expected a class as the schema of records, got the instance {shown}. Pass the class, {name}."
            )
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(schema)
            text = _compact(adapter.json_schema())
        except (PydanticUserError, TypeError, AttributeError) as error:
            first = str(error).strip().splitlines()[0]
            raise SetupError(
                f"expected a pydantic model, or a type that pydantic can describe by a JSON Schema, as {shown}, got {schema!r}: {first}"
            ) from error
        return cls(schema, text, partial(adapter.dump_python, mode="json", by_alias=True))


def load_schema(source: str) -> RecordSchema:
    """Return the schema that `FILE.json`, `module:Class` or `FILE.py:Class` names.

    A module is searched in the current directory first, as by `python -m`, and it is run: name only code that you trust.

    Raises:
        SetupError: the file, module or class does not exist, or is not a schema.
    """
    if source.endswith(".py") and Path(source).is_file():
        raise SetupError(
            f"expected `:` and the name of a class after the Python file {source!r}. Write `{source}:Order`, with your class for Order."
        )
    if source.endswith(".json") or Path(source).is_file():
        return _from_file(Path(source))
    module, colon, name = source.partition(":")
    if not colon or not module or not name:
        raise SetupError(
            f"expected a JSON Schema file or `module:Class` as the schema, got {source!r}, and there is no such file. "
            "Write a path that ends in .json, or where a pydantic model is, such as `models:Order` or `models.py:Order`."
        )
    return RecordSchema.of(_attribute(_imported(module, source), name, source), source)


def _from_file(path: Path) -> RecordSchema:
    try:
        schema = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"expected a JSON Schema, but {str(path)!r} cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SetupError(f"expected a JSON Schema, but {str(path)!r} is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise SetupError(
            f"expected a JSON Schema, that is a JSON object, got {type(schema).__name__} in {str(path)!r}. "
            'Write for example {"type": "object", "properties": {"name": {"type": "string"}}}.'
        )
    return RecordSchema.of(schema)


def _imported(name: str, source: str) -> Any:
    """Import a module by its name or its file. Its folder goes first in `sys.path`, as for a script, and stays there for later imports."""
    path = Path(name) if name.endswith(".py") else None
    if path is not None and not path.is_file():
        raise SetupError(f"expected a Python file for the schema, but there is no {str(path)!r}")
    folder = ""
    try:
        folder = os.getcwd() if path is None else str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        return import_module(name) if path is None else _run_file(path)
    except (Exception, SystemExit) as error:  # the module is code of the user, which may raise anything
        if path is None and isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise SetupError(
                f"expected a module {name!r} for the schema, but there is none in {folder!r} or among the installed packages. "
                "Go to the folder that holds it, or give the file itself: `path/to/file.py:Class`."
            ) from error
        raise SetupError(
            f"the module {name!r} of the schema {source!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _run_file(path: Path) -> Any:
    # Under a name of its own: a module of the same name may be loaded already.
    name = f"schema_file_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: Any, path: str, source: str) -> Any:
    try:
        return reduce(getattr, path.split("."), module)
    except AttributeError as error:
        types = [name for name, value in vars(module).items() if isinstance(value, type) and not name.startswith("_")]
        close = difflib.get_close_matches(path, types, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"It has the types {', '.join(types) or '(none)'}."
        raise SetupError(
            f"the module {module.__name__!r} has no {path!r}, named by the schema {source!r}. {hint}"
        ) from error


def _compact(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def unchanged(value: Any) -> Any:
    """Return the value."""
    return value
