"""`RecordSchema`: the schema of records: a JSON Schema, a pydantic model or another type that pydantic can describe. `load_schema` reads it
from `FILE.json`, `module:Class` or `FILE.py:Class`; the last two import, and so run, that module.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isroutine
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from outlines_cont.pipelines.rows.errors import SetupError


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A schema of records.

    Attributes:
        schema: what `generate.json` takes: a JSON Schema, or a Python type.
        json_schema: the JSON Schema as compact text, keys in their order.
        dump: from a value of a generator to what is written to the output as JSON.
    """

    schema: Any
    json_schema: str
    dump: Callable[[Any], Any]

    @classmethod
    def of(cls, schema: Any, source: str | None = None) -> Self:
        """Return a JSON Schema (as a dict, as text, or a boolean) or a Python type as what a record must be.

        Args:
            schema: the schema or the type.
            source: what an error calls it; None for its `repr`.

        Raises:
            SetupError: it is neither.
        """
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise SetupError(f"expected a JSON Schema, got a text that is not JSON: {error}") from error
        if isinstance(schema, dict | bool):
            return cls(schema, _compact(schema), _same)
        adapter, text = _adapter(schema, repr(schema) if source is None else repr(source))
        return cls(schema, text, partial(adapter.dump_python, mode="json", by_alias=True))


def load_schema(source: str) -> RecordSchema:
    """Return the schema that `FILE.json`, `module:Class` or `FILE.py:Class` names.

    A module is looked up in the current directory first, as `python -m` would, and it is run: name only code that you trust.

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


def _adapter(kind: Any, source: str) -> tuple[TypeAdapter[Any], str]:
    """Return the `TypeAdapter` of a type, and its JSON Schema as text."""
    if isroutine(kind):
        # pydantic would describe the arguments of a function, and call it.
        raise SetupError(f"expected a pydantic model or another type as {source}, got the function {kind!r}")
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(kind)
        return adapter, _compact(adapter.json_schema())
    except (PydanticUserError, TypeError) as error:
        first = str(error).strip().splitlines()[0]
        raise SetupError(
            f"expected a pydantic model, or a type that pydantic can describe by a JSON Schema, as {source}, got {kind!r}: {first}"
        ) from error


def _imported(name: str, source: str) -> Any:
    try:
        if name.endswith(".py"):
            return _module_of_file(Path(name))
        return _module(name)
    except SetupError:
        raise
    except (Exception, SystemExit) as error:
        # The module is the user's own code and may raise anything.
        raise SetupError(
            f"the module {name!r} of the schema {source!r} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _module(name: str) -> Any:
    here = os.getcwd()
    _search_first(here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise SetupError(
            f"expected a module {name!r} for the schema, but there is none in {here!r} or among the installed packages. "
            "Go to the folder that holds it, or give the file itself: `path/to/file.py:Class`."
        ) from error


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise SetupError(f"expected a Python file for the schema, but there is no {str(path)!r}")
    _search_first(str(path.resolve().parent))
    # Under a name of its own: the file may be called like a module that is loaded already.
    name = f"schema_file_{path.stem}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _search_first(folder: str) -> None:
    """Look in `folder` first, as Python does for a script. It stays: a class may import more of its neighbours later."""
    if folder not in sys.path:
        sys.path.insert(0, folder)


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


def _same(value: Any) -> Any:
    return value
